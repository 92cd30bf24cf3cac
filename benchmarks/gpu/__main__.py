"""python -m benchmarks.gpu STAGE|report; see the package."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.standalone import attach

STAGES = ("facts", "table", "mixes", "serve", "ort")
STRETCH = "ARLO_KIT_STRETCH"  # the stage whose cells take 100 times as long, for tests of the time limits


def main(arguments: Sequence[str]) -> int:
    """Run one stage, or write the report."""
    start_s = time.monotonic()  # imports are part of the stage's time
    attach()
    if arguments[:1] == ["report"]:
        return int(importlib.import_module("benchmarks.gpu.report").main(arguments[1:]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="One stage of the GPU kit.")
    parser.add_argument("stage", choices=STAGES, help="or `report DIR`")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for the stage (default: 600)")
    parser.add_argument("--dry", action="store_true", help="a two-layer model on the CPU: does every path run?")
    parser.add_argument("--logs", type=Path, help="folder for logs of servers (default: OUT)")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended
    from benchmarks.gpu.bench import Bench

    stretch = 100 if os.environ.get(STRETCH) == given.stage else 1
    seconds = given.seconds - (time.monotonic() - start_s)
    results = given.out / f"{given.stage}.json"
    bench = Bench(results, seconds, dry=given.dry, logs=given.logs or given.out, stretch=stretch)
    importlib.import_module(f"benchmarks.gpu.{given.stage}").run(bench)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
