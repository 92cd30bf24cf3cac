"""`arlo plan --cascade`: which operating point so many workers carry at a rate, simulated on the records of the test
split with the latencies of the stages' repositories."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.cli.fit.common import TIMES_MS, folder_of, study_of, within
from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.study import Study
    from arlo.simulator.cascade.rows import Chosen
    from arlo.simulator.report.result import Result

SECONDS = 20.0  # simulated
MOST_ROWS = 400_000


def run(args: argparse.Namespace, workers: int) -> int:
    """Simulate every point, with `workers` or, for an accuracy, the fewest up to that; 1 if none meets the SLO."""
    from arlo.simulator.cascade.build import repository_runtimes
    from arlo.simulator.cascade.rows import alone, whole

    within(args.rate, 1e-3, 1e7, "--rate")
    within(args.slo_ms, *TIMES_MS, "--slo-ms")
    within(args.accuracy, 0, 1, "--accuracy")
    study = study_of(args.cascade, args.data)
    if not study.cascade.points:
        raise ConfigError("the cascade has no operating points yet: run `arlo fit`")
    test, folder = study.of(2), folder_of(args.cascade)
    stages = [repository_runtimes(folder / stage.repository) for stage in test.cascade.stages]
    ways = [(point.name, whole(range(test.stages), point.all_rules)) for point in test.cascade.points]
    ways.append(("last stage alone", alone(test.stages - 1)))

    def row(name: str, way: Chosen, count: int) -> dict[str, Any]:
        return _row(name, count, _simulate(args, test, stages, way, count), args)

    if args.accuracy is None:
        found = [row(name, way, workers) for name, way in ways]
        good = [each for each in found if each["meets_slo"]]
        chosen = max(good, key=lambda each: (each["accuracy"], -each["mean_ms"]), default=None)
    else:
        found = [_fewest(workers, functools.partial(row, name, way)) for name, way in ways]
        good = [each for each in found if each["meets_slo"] and each["accuracy"] >= args.accuracy]
        chosen = min(good, key=lambda each: (each["workers"], -each["accuracy"], each["mean_ms"]), default=None)
    if args.json:
        print_json({"points": found, "chosen": chosen})
    else:
        _print(found, chosen, args, workers)
    return 0 if chosen is not None else 1


def _fewest(most: int, row: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """The row of the fewest workers that meet the SLO; of all of them if none do."""
    best, short = row(most), 0  # `short`: a number that is too small
    while best["meets_slo"] and best["workers"] - short > 1:
        middle = row((best["workers"] + short) // 2)
        if middle["meets_slo"]:
            best = middle
        else:
            short = middle["workers"]
    return best


def _simulate(args: argparse.Namespace, test: Study, stages: Any, chosen: Chosen, workers: int) -> Result:
    from arlo.simulator.cascade.rows import rows_of
    from arlo.simulator.cascade.served import scenario_of
    from arlo.simulator.run import run
    from arlo.simulator.scenario.scenario import Listed

    rows = min(MOST_ROWS, max(1000, round(args.rate * SECONDS)))
    gaps = np.random.default_rng(0).exponential(1e9 / args.rate, rows)
    return run(
        scenario_of(
            [stages[s] for s in chosen.stages],
            chosen.rules,
            rows_of(test, chosen),
            Listed(np.cumsum(gaps).astype(np.int64)),
            workers=(workers,),
            slo_ms=args.slo_ms,
            timeout_ms=max(10 * args.slo_ms, 1000.0),
        )
    )


def _row(name: str, workers: int, result: Result, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "point": name,
        "workers": workers,
        "accuracy": result.figures.accuracy,
        "mean_ms": result.mean_ms,
        "p98_ms": result.p98_ms,
        "on_time": result.slo_attainment,
        "exits": result.figures.more["exits"],
        "degraded": result.figures.degraded,
        "meets_slo": bool(result.p98_ms <= args.slo_ms and result.slo_attainment >= 0.98),
    }


def _print(found: list[dict[str, Any]], chosen: dict[str, Any] | None, args: argparse.Namespace, workers: int) -> None:
    least = args.accuracy is not None
    most = "at most " if least else ""
    print(f"{most}{workers} worker(s), {args.rate:g} rows/s, SLO {args.slo_ms:g} ms; simulated on the test split")
    print(f"{'point':18} {'workers':>8} {'accuracy':>8} {'mean ms':>9} {'p98 ms':>9} {'on time':>8}  answered by stage")
    for row in found:
        exits = ", ".join(f"{share:.0%}" for share in row["exits"])
        mark = "*" if row is chosen else " "
        print(
            f"{row['point']:18} {row['workers']:8} {row['accuracy']:8.2%} {row['mean_ms']:9.2f} {row['p98_ms']:9.2f} "
            f"{row['on_time']:8.2%} {mark} {exits}"
        )
    if least and chosen is None:
        print(f"no point meets the SLO with an accuracy of {args.accuracy:.2%}: give more workers, or a lower rate")
    elif least and chosen is not None:
        print(f"* the fewest workers with an accuracy of {args.accuracy:.2%}: {chosen['workers']}, {chosen['point']}")
    elif chosen is None:
        print("no point meets the SLO: give more workers, a lower rate, or fit a cheaper point")
    else:
        print(f"* the most accurate that meets the SLO (p98, and 98 % on time): {chosen['point']}")
