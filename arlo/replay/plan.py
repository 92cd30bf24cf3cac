"""The plan file of arlo-loadgen; src/loadgen/plan.h defines its format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"ARLOPLN1"


def write_plan(
    path: Path,
    payloads: Sequence[bytes],
    send_at_us: NDArray[np.int64] | None = None,
    payload: NDArray[np.uint32] | None = None,
    timeout_us: int = 0,
) -> None:
    """Write a plan of n requests: send_at_us int64[n] ascending, payload uint32[n] indexes into `payloads`.

    Without them it is a plan for a closed loop, which needs the payloads only. `timeout_us` 0: no deadline.
    """
    at = np.ascontiguousarray(send_at_us if send_at_us is not None else [], "<i8")
    which = np.ascontiguousarray(payload if payload is not None else [], "<u4")
    offsets = np.zeros(len(payloads) + 1, "<u8")
    np.cumsum([len(p) for p in payloads], out=offsets[1:])
    with path.open("wb") as file:
        file.write(_MAGIC)
        file.write(np.array([len(at), len(payloads)], "<u8").tobytes())
        file.write(at.tobytes())
        file.write(which.tobytes() + b"\0" * (which.nbytes % 8))
        file.write(np.full(len(at), timeout_us, "<i8").tobytes())
        file.write(offsets.tobytes())
        for each in payloads:
            file.write(each)
