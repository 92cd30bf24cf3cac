"""Trace replay: send a trace to any KServe v2 endpoint in an open loop, and report the outcome of every request.

    result = run_replay(trace, ReplayOptions(endpoint="127.0.0.1:8001", model="minilm"))
    print_table(result)
    write_report(result, Path("report.html"))

Requests leave when the trace says, whether or not earlier ones were answered, and latency is measured from that
instant, so a slow target cannot slow down the load and hide it (no coordinated omission).
"""

from __future__ import annotations

from arlo.replay.options import ReplayOptions
from arlo.replay.outcomes import OUTCOMES
from arlo.replay.progress import LiveProgress, Progress
from arlo.replay.report import write_report
from arlo.replay.result import SCHEMA, ReplayResult
from arlo.replay.run import run_replay
from arlo.replay.summary import Summary
from arlo.replay.table import print_table

__all__ = [
    "OUTCOMES",
    "SCHEMA",
    "LiveProgress",
    "Progress",
    "ReplayOptions",
    "ReplayResult",
    "Summary",
    "print_table",
    "run_replay",
    "write_report",
]
