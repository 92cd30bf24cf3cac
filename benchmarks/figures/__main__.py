"""python -m benchmarks.figures [names] [--short] [--jobs N] [--out FILE]: runs what is not up to date, then the report.

Ctrl-C leaves the results so far; the next run goes on from there.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from arlo.errors import ArloError
from benchmarks.figures import document, registry, runner
from benchmarks.figures.cells import Context
from benchmarks.figures.experiment import Experiment, verdict


def main() -> int:
    known = registry.experiments()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"experiments (default: all): {', '.join(known)}")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes of each trace, kept apart")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: all cores)")
    parser.add_argument("--out", type=Path, help="the report (default reports/evaluation.html)")
    parser.add_argument("--results", type=Path, help="keep results there instead of benchmarks/results/figures")
    parser.add_argument("--force", action="store_true", help="run also what is up to date")
    parser.add_argument("--report-only", action="store_true", help="run nothing, only write report and document")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no experiment {unknown[0]!r}: there are {', '.join(known)}")
    if args.jobs < 1:
        parser.error("--jobs is at least 1")
    store = runner.Store(short=args.short, folder=args.results)
    wanted = [known[name] for name in args.names or known]
    try:
        failed = [] if args.report_only else _run(wanted, store, args)
    except KeyboardInterrupt:
        print("\nstopped; what was finished is kept, run it again to go on", file=sys.stderr)
        return 130
    results = store.all_kept()
    if not results:
        print("there are no results yet: run without --report-only", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([row for name in args.names or results for row in _rows(results[name])], indent=1))
    else:
        for name in [experiment.NAME for experiment in wanted if experiment.NAME in results]:
            _show(results[name])
    out = args.out or Path("reports") / ("evaluation-short.html" if args.short else "evaluation.html")
    from benchmarks.figures import report

    report.write(out, list(results.values()))
    print(f"-> {out}", file=sys.stderr)
    if not args.short and args.results is None and set(results) == set(known):
        for page, text in document.pages(list(results.values())).items():
            page.write_text(text)
            print(f"-> {page.relative_to(runner.ROOT)}", file=sys.stderr)
    for name, why in failed:
        print(f"{name} failed: {why}", file=sys.stderr)
    return 1 if failed else 0


def _run(wanted: list[Experiment], store: runner.Store, args: argparse.Namespace) -> list[tuple[str, str]]:
    """Run what is to be run; those that failed, and why."""
    stamps = {e.NAME: runner.fingerprint(e, short=args.short) for e in wanted}  # before anything is edited meanwhile
    due = [e for e in wanted if args.force or not store.is_current(e)]
    for experiment in wanted:
        if experiment not in due:
            print(f"{experiment.NAME}: up to date", file=sys.stderr)
    command = " ".join(["python -m benchmarks.figures", *sys.argv[1:]])
    failed: list[tuple[str, str]] = []
    columns = (TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console) as bar, Context(short=args.short, jobs=args.jobs) as context:
        total = bar.add_task("experiments", total=len(due))
        for experiment in due:
            task = bar.add_task(experiment.NAME + ": " + experiment.TITLE[:32], total=None)
            try:
                runner.perform(
                    experiment,
                    context,
                    store,
                    command=command,
                    stamp=stamps[experiment.NAME],
                    progress=functools.partial(_tell, bar, task),
                )
            except (ArloError, RuntimeError, FileNotFoundError) as error:
                failed.append((experiment.NAME, str(error)))
            bar.update(task, total=1, completed=1)
            bar.advance(total)
            if not console.is_terminal:
                print(f"{experiment.NAME}: done", file=sys.stderr)
    return failed


def _tell(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)


def _rows(result: dict[str, object]) -> list[dict[str, object]]:
    targets = result["targets"]
    return [
        {"experiment": result["name"], **targets[row["target"]], **row, "verdict": verdict(targets[row["target"]], row)}  # type: ignore[index]
        for row in result["rows"]  # type: ignore[attr-defined]
    ]


def _show(result: dict[str, object]) -> None:
    print(f"\n{result['title']}  [{result['wall_s']} s]")
    for line in document.rows_as_text(result):
        print(f"  {line}")


if __name__ == "__main__":
    raise SystemExit(main())
