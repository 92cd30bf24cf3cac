"""The one interface of what sends a replay: `native` (arlo-loadgen) and `sdk` (arlo.client.AsyncClient)."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.client.codec import Codec
from arlo.client.transport import TLS
from arlo.replay.progress import ProgressHook
from arlo.replay.rows import Rows

PROGRESS_EVERY_S = 0.5
CONNECT_S = 10.0  # how long the target may take to accept connections
GRACE_S = 1.0  # after an interrupt: how long to wait for what is in flight


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """What to send, when and where. send_at_us: int64[n], ascending, from the start."""

    endpoint: str
    tls: TLS | None
    token: str | None
    codec: Codec
    tokenizer: Path | None
    send_at_us: NDArray[np.int64]
    rows: Rows
    timeout_us: int
    slo_us: int
    late_us: int
    drain_s: float
    warmup: int
    channels: int
    keep_responses: int  # 0: none; n: of every n-th request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SendResult:
    """What a sender brings back. `messages` maps records["error"] to the server's words."""

    records: NDArray[Any]  # dtype SENT
    messages: Mapping[int, str]
    responses: Mapping[int, Mapping[str, NDArray[Any]]]  # index -> outputs without row dimension
    interrupted: bool
    undrained: bool  # answers were still missing when the waiting ended
    cpu_s: float  # of the sender, while it sent


class Sender(Protocol):
    """Blocks until all is sent and answered, or `stop` is set, or Ctrl-C; then returns what there is."""

    def __call__(self, job: Job, *, on_progress: ProgressHook | None, stop: threading.Event) -> SendResult: ...
