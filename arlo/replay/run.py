"""run_replay: ask the target for its inputs, prepare the rows, send them, summarise the answers."""

from __future__ import annotations

import datetime
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from arlo.client.codec import Codec
from arlo.client.model import ModelInfo
from arlo.clock import unix_s
from arlo.errors import ConfigError
from arlo.replay import loadgen
from arlo.replay.options import DEFAULT_LONGEST, ReplayOptions
from arlo.replay.progress import ProgressHook
from arlo.replay.records import complete
from arlo.replay.result import ReplayResult, machine, versions
from arlo.replay.rows import make_rows
from arlo.replay.summary import summarize
from arlo.traces import TextSource, Trace


def run_replay(
    trace: Trace,
    options: ReplayOptions,
    *,
    on_progress: ProgressHook | None = None,
    stop: threading.Event | None = None,
) -> ReplayResult:
    """Replay `trace`; blocks until all is answered. Not from a coroutine: use asyncio.to_thread, and `stop` to end it.

    Ctrl-C (in the main thread) and `stop` end the sending; what came back by then is the result, `interrupted` in its
    summary. `on_progress` is called every half second. Raises ClientError when the target is not there or does not take
    this kind of request, ConfigError for wrong options, EnvironmentProblem when the load generator is missing.
    """
    if len(trace) == 0:
        raise ConfigError("the trace has no requests: raise its rate or its duration")
    trace = trace.faster(options.speed) if options.speed != 1.0 else trace
    with options.client() as client:
        info = client.model_info()
    source = None if options.tokenizer is None else TextSource(options.tokenizer)
    rows = make_rows(trace, source, vocabulary=options.vocabulary, seed=options.seed)
    width = np.maximum(trace.length, _fixed_width(info)).astype(np.int32)
    started_at = datetime.datetime.fromtimestamp(unix_s(), datetime.UTC)
    sent = loadgen.send(
        options,
        Codec(info),
        rows,
        np.rint(trace.arrived_at_s * 1e6).astype(np.int64),
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
        "input": "random token ids" if source is None else "text",
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
