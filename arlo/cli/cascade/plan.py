"""`arlo cascade plan`: which operating point so many workers carry at a rate, simulated on the records of the test
split with the latencies of the stages' repositories; and how the workers are best divided, where they are."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.cli.cascade.common import TIMES_MS, study_of, within
from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.manifest import Point
    from arlo.cascade.study import Study
    from arlo.simulator.cascade.rows import Chosen
    from arlo.simulator.report.result import Result

SECONDS = 20.0  # simulated
MOST_ROWS = 400_000
MOST_DIVISIONS = 64  # of workers among stages that are tried


def run(args: argparse.Namespace) -> int:
    """Simulate every point; 1 when none meets the SLO."""
    from arlo.simulator.cascade.build import repository_runtimes
    from arlo.simulator.cascade.schemes import alone, whole

    within(args.workers, 1, 100_000, "--workers")
    within(args.rate, 1e-3, 1e7, "--rate")
    within(args.slo_ms, *TIMES_MS, "--slo-ms")
    within(args.accuracy, 0, 1, "--accuracy")
    if args.accuracy is not None and args.divided:
        raise ConfigError("--accuracy looks for workers that hold all stages: leave out --divided")
    study = study_of(args)
    if not study.cascade.points:
        raise ConfigError("the cascade has no operating points yet: run `arlo cascade search`")
    test = study.of(2)
    folder = args.cascade if args.cascade.is_dir() else args.cascade.parent
    stages = [repository_runtimes(folder / stage.repository) for stage in test.cascade.stages]
    if args.accuracy is not None:
        return _least(args, test, stages)
    found: list[dict[str, Any]] = []
    for point in test.cascade.points:
        shared = _simulate(args, test, stages, whole(range(test.stages), point.all_rules), (args.workers,))
        found.append(_row(point.name, "all stages on every worker", shared, args))
        if args.divided:
            best = max(_divided(args, test, stages, point), key=lambda pair: (pair[1].slo_attainment, -pair[1].mean_ms))
            found.append(_row(point.name, " + ".join(map(str, best[0])), best[1], args))
    last = _simulate(args, test, stages, alone(test.stages - 1), (args.workers,))
    found.append(_row("last stage alone", "all of the last stage", last, args))
    good = [row for row in found if row["meets_slo"]]
    chosen = max(good, key=lambda row: (row["accuracy"], -row["mean_ms"]), default=None)
    if args.json:
        print_json({"points": found, "chosen": chosen})
    else:
        _print(found, chosen, args)
    return 0 if chosen is not None else 1


def _least(args: argparse.Namespace, test: Study, stages: Any) -> int:
    """The fewest workers, `--workers` at most, with which a point of that accuracy meets the SLO; 1 when none does."""
    from arlo.simulator.cascade.schemes import alone, whole

    ways = [(point.name, whole(range(test.stages), point.all_rules)) for point in test.cascade.points]
    ways.append(("last stage alone", alone(test.stages - 1)))
    found = [_fewest(args, test, stages, name, way) for name, way in ways]
    good = [row for row in found if row["meets_slo"] and row["accuracy"] >= args.accuracy]
    chosen = min(good, key=lambda row: (row["count"], -row["accuracy"], row["mean_ms"]), default=None)
    if args.json:
        print_json({"points": found, "chosen": chosen})
    else:
        _print(found, chosen, args)
    return 0 if chosen is not None else 1


def _fewest(args: argparse.Namespace, test: Study, stages: Any, name: str, way: Chosen) -> dict[str, Any]:
    """The row of the fewest workers that meet the SLO; of all of them where none do."""

    def row(workers: int) -> dict[str, Any]:
        return _row(name, str(workers), _simulate(args, test, stages, way, (workers,)), args) | {"count": workers}

    best, short = row(args.workers), 0  # `short`: so many are not enough
    while best["meets_slo"] and best["count"] - short > 1:
        middle = row((best["count"] + short) // 2)
        if middle["meets_slo"]:
            best = middle
        else:
            short = middle["count"]
    return best


def _simulate(args: argparse.Namespace, test: Study, stages: Any, chosen: Chosen, workers: tuple[int, ...]) -> Result:
    from arlo.simulator.cascade.rows import rows_of
    from arlo.simulator.cascade.served import scenario_of
    from arlo.simulator.run import run
    from arlo.simulator.scenario.scenario import Listed

    rows = min(MOST_ROWS, max(1000, round(args.rate * SECONDS)))
    gaps = np.random.default_rng(args.seed).exponential(1e9 / args.rate, rows)
    lengths = np.resize(np.minimum(test.length, _longest(stages)), rows).astype(np.int32)
    return run(
        scenario_of(
            [stages[s] for s in chosen.stages],
            chosen.rules,
            rows_of(test, chosen),
            Listed(np.cumsum(gaps).astype(np.int64), lengths),
            workers=workers,
            slo_ms=args.slo_ms,
            timeout_ms=max(10 * args.slo_ms, 1000.0),
            seed=args.seed,
        )
    )


def _longest(stages: Any) -> int:
    return int(max(runtime.max_length for runtime in stages[-1]))


def _divided(args: argparse.Namespace, test: Study, stages: Any, point: Point) -> Any:
    """Every division of the workers among the stages, at least one each; some of them where there are many."""
    from arlo.simulator.cascade.schemes import whole

    cuts = list(itertools.combinations(range(1, args.workers), test.stages - 1))
    if not cuts:
        raise ConfigError(f"--divided needs at least {test.stages} workers, one for each stage")
    step = -(-len(cuts) // MOST_DIVISIONS)
    for cut in cuts[::step]:
        ends = (0, *cut, args.workers)
        counts = tuple(b - a for a, b in itertools.pairwise(ends))
        yield counts, _simulate(args, test, stages, whole(range(test.stages), point.all_rules), counts)


def _row(name: str, workers: str, result: Result, args: argparse.Namespace) -> dict[str, Any]:
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


def _print(found: list[dict[str, Any]], chosen: dict[str, Any] | None, args: argparse.Namespace) -> None:
    least = args.accuracy is not None
    most = "at most " if least else ""
    print(f"{most}{args.workers} worker(s), {args.rate:g} rows/s, SLO {args.slo_ms:g} ms; simulated on the test split")
    print(f"{'point':18} {'workers':28} {'accuracy':>8} {'mean ms':>9} {'p98 ms':>9} {'on time':>8}  answered by stage")
    for row in found:
        exits = ", ".join(f"{share:.0%}" for share in row["exits"])
        mark = "*" if row is chosen else " "
        print(
            f"{row['point']:18} {row['workers']:28} {row['accuracy']:8.2%} {row['mean_ms']:9.2f} {row['p98_ms']:9.2f} "
            f"{row['on_time']:8.2%} {mark} {exits}"
        )
    if least and chosen is None:
        print(f"no point meets the SLO with an accuracy of {args.accuracy:.2%}: give more workers, or a lower rate")
    elif least and chosen is not None:
        print(f"* the fewest workers with an accuracy of {args.accuracy:.2%}: {chosen['count']}, {chosen['point']}")
    elif chosen is None:
        print("no point meets the SLO: give more workers, a lower rate, or search a cheaper point")
    else:
        print(f"* the most accurate that meets the SLO (p98, and 98 % on time): {chosen['point']}")
