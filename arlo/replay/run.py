"""run_replay: ask the target what it takes, prepare the rows, send them, sum up."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import sys
import threading
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from arlo.client import Client
from arlo.client.codec import Codec
from arlo.client.model import ModelInfo
from arlo.client.transport import TLS
from arlo.clock import unix_s
from arlo.errors import ConfigError
from arlo.replay import native, sdk
from arlo.replay.progress import ProgressHook
from arlo.replay.records import complete
from arlo.replay.result import ReplayResult, machine, versions
from arlo.replay.rows import RowSource, make_rows
from arlo.replay.sender import CONNECT_S, Job, Sender
from arlo.replay.summary import summarize
from arlo.traces import TextSource, Trace

SenderName = Literal["native", "sdk"]
DEFAULT_LONGEST = 512


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to replay a trace. ConfigError says which value is wrong.

    endpoint: host:port of any KServe v2 gRPC service. model: None takes the only one there. tokenizer: a
    tokenizer.json or its folder, for real text; None sends random ids below `vocabulary`. slo_ms: what is on time.
    timeout_ms: when the client gives up, counted from the scheduled instant; 0: never; None: after ten times the SLO
    and at least a second, as the gateway assumes of a client that does not say. speed: 2.0 is twice as fast.
    late_ms: a send later than this is counted. drain_s: how long to wait for answers after the last send.
    warmup: requests before the start, unrecorded. channels: connections of the native sender (the SDK has one).
    keep_responses: 0 none, n: the outputs of every n-th request.
    """

    endpoint: str
    model: str | None = None
    sender: SenderName = "native"
    tokenizer: Path | None = None
    vocabulary: int = 30_000
    seed: int = 0
    slo_ms: float = 150.0
    timeout_ms: float | None = None
    speed: float = 1.0
    late_ms: float = 5.0
    drain_s: float = 60.0
    warmup: int = 8
    channels: int = 4
    keep_responses: int = 0
    tls: TLS | None = None
    token: str | None = dataclasses.field(default=None, repr=False)

    @property
    def gives_up_ms(self) -> float:
        """timeout_ms, or what it is when left out."""
        return max(10 * self.slo_ms, 1000.0) if self.timeout_ms is None else self.timeout_ms

    def __post_init__(self) -> None:
        if self.sender not in get_args(SenderName):
            raise ConfigError(f"sender is one of {', '.join(get_args(SenderName))}, not {self.sender!r}")
        for name, least in (("slo_ms", 0.001), ("speed", 0.001), ("vocabulary", 2), ("channels", 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("late_ms", "drain_s", "warmup", "keep_responses"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not self.gives_up_ms >= 0:
            raise ConfigError(f"timeout_ms must be 0 or more, not {self.timeout_ms}")


def run_replay(
    trace: Trace,
    options: ReplayOptions,
    *,
    source: RowSource | None = None,
    on_progress: ProgressHook | None = None,
    stop: threading.Event | None = None,
) -> ReplayResult:
    """Replay `trace`, with rows of `source` (None: as the options say); blocks until all is answered. Not from a
    coroutine: use asyncio.to_thread, and `stop` to end it.

    Ctrl-C (in the main thread) and `stop` end the sending; what came back by then is the result, `interrupted` in its
    summary. `on_progress` is called every half second. Raises ClientError when the target is not there or does not take
    this kind of request, ConfigError for wrong options, EnvironmentProblem when the load generator is missing.
    """
    if len(trace) == 0:
        raise ConfigError("the trace has no requests: raise its rate or its duration")
    trace = trace.faster(options.speed) if options.speed != 1.0 else trace
    with Client(
        options.endpoint,
        model=options.model,
        timeout_s=CONNECT_S,
        tls=options.tls,
        token=options.token,
        retries=0,
    ) as client:
        info = client.model_info()
    if source is None and options.tokenizer is not None:
        source = TextSource(options.tokenizer)
    rows = make_rows(trace, source, vocabulary=options.vocabulary, seed=options.seed)
    width = np.maximum(trace.length, _fixed_width(info)).astype(np.int32)
    started_at = datetime.datetime.fromtimestamp(unix_s(), datetime.UTC)
    send: Sender = native.send if options.sender == "native" else sdk.send
    sent = send(
        Job(
            endpoint=options.endpoint,
            tls=options.tls,
            token=options.token,
            codec=Codec(info),
            tokenizer=options.tokenizer,
            send_at_us=np.rint(trace.arrived_at_s * 1e6).astype(np.int64),
            rows=rows,
            timeout_us=round(options.gives_up_ms * 1000),
            slo_us=round(options.slo_ms * 1000),
            late_us=round(options.late_ms * 1000),
            drain_s=options.drain_s,
            warmup=options.warmup,
            channels=options.channels,
            keep_responses=options.keep_responses,
        ),
        on_progress=on_progress,
        stop=stop if stop is not None else threading.Event(),
    )
    records = complete(sent.records, trace.length, width, sent.messages, options.slo_ms * 1000)
    summary = summarize(
        records,
        planned=len(trace),
        longest=info.max_length or DEFAULT_LONGEST,
        slo_ms=options.slo_ms,
        late_ms=options.late_ms,
        cpu_s=sent.cpu_s,
        interrupted=sent.interrupted,
        undrained=sent.undrained,
    )
    header: dict[str, Any] = {
        "target": options.endpoint,
        "model": info.name,
        "sender": options.sender,
        "input": "text" if options.tokenizer is not None else "random token ids" if source is None else "given rows",
        "started_at": started_at.isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "options": {
            "timeout_ms": options.gives_up_ms,
            **{name: getattr(options, name) for name in ("slo_ms", "speed", "late_ms", "warmup", "channels", "seed")},
        },
    }
    return ReplayResult(
        summary=summary,
        records=records,
        messages=sent.messages,
        responses=sent.responses,
        trace=trace,
        rows=rows,
        header=header,
    )


def _fixed_width(info: ModelInfo) -> int:
    """Tokens that every request has on the wire because an input's shape is fixed; 0: any."""
    return max((t.shape[1] for t in info.inputs if len(t.shape) == 2), default=0)
