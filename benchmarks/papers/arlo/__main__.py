"""python -m benchmarks.papers.arlo [names] [--short] [--jobs N] [--out FOLDER]: runs experiments, keeps their results.

Results in benchmarks/results/figures are written to build/figures/arlo.md. Ctrl-C leaves the results so far.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from arlo.clock import unix_s
from arlo.errors import ArloError
from arlo.report.progress import LiveBar
from benchmarks import harness
from benchmarks.papers.arlo import document, measured, simulated
from benchmarks.papers.arlo.cells import Context
from benchmarks.papers.arlo.experiment import plain

EXPERIMENTS = simulated.EXPERIMENTS | measured.EXPERIMENTS


def perform(name: str, context: Context) -> dict[str, Any]:
    """The result of an experiment, as it is kept."""
    rows, tables = EXPERIMENTS[name].run(context)
    return {
        "command": f"python -m benchmarks.papers.arlo {name}",
        "date": time.strftime("%Y-%m-%d", time.gmtime(unix_s())),
        "machine": harness.machine(),
        "title": EXPERIMENTS[name].title,
        "text": EXPERIMENTS[name].text,
        "rows": plain(rows),
        "tables": plain(tables),
    }


def lines(result: Mapping[str, Any]) -> str:
    """JSON with a line for each entry of the lists, so that a change shows as one."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(json.dumps(item) for item in value)
            parts.append(f" {json.dumps(key)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _show(bar: LiveBar, title: str, done: int, of: int) -> None:
    bar.show(done, of, title)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.arlo", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"experiments (default: all): {', '.join(EXPERIMENTS)}"
    )
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes of each trace")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: all cores)")
    parser.add_argument(
        "--out", type=Path, help="keep results there and write no documents; default with --short: reports"
    )
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in EXPERIMENTS]:
        parser.error(f"no experiment {unknown[0]!r}: there are {', '.join(EXPERIMENTS)}")
    if args.jobs < 1:
        parser.error("--jobs is at least 1")
    out = args.out or (Path("reports/evaluation-short") if args.short else document.RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    try:
        for name in args.names or EXPERIMENTS:
            with LiveBar(Console(stderr=True)) as bar, Context(short=args.short, jobs=args.jobs) as context:
                context.progress = functools.partial(_show, bar, name)
                try:
                    result = perform(name, context)
                except (ArloError, RuntimeError) as error:
                    failed.append(f"{name} failed: {error}")
                    continue
            (out / f"{name}.json").write_text(lines(result))
            print(f"\n{result['title']}", *document.rows_as_text(result), sep="\n  ", flush=True)
    except KeyboardInterrupt:
        print("\nstopped; what was finished is kept", file=sys.stderr)
        return 130
    if out == document.RESULTS:
        document.PAGE.parent.mkdir(parents=True, exist_ok=True)
        document.PAGE.write_text(document.page(document.kept()))
        print(f"-> {document.PAGE}", file=sys.stderr)
    print(*failed, sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
