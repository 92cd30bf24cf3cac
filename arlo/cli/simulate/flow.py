"""`arlo simulate FLOW.toml`: a flow under load, with router and drop rule as asked."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.catalog.flow import Flow
    from arlo.cli.simulate.find import Found
    from arlo.simulator.flows import FlowResult

DEFAULT_RATE, DEFAULT_DURATION_S, DEFAULT_WORKERS = 100.0, 60.0, 20
MOST_WORKERS = 2000
# Flags of a scenario that mean the same for a flow.
TRAFFIC = {"arrivals", "rate", "duration_s", "burst", "sojourn_ms", "cv", "counts", "segment", "smooth_s", "trace"}
OTHERS = {"workers", "slo_ms", "seed", "warmup_s"}
SWEPT = ("router", "drop", "workers", "rate", "seed")


def add_flow_flags(parser: argparse.ArgumentParser) -> None:
    """Those of flow files alone."""
    group = parser.add_argument_group("a flow file (docs/flows.md)")
    group.add_argument("--router", metavar="NAME,...", help="price, plan or maf (default: the file's)")
    group.add_argument(
        "--drop", metavar="NAME,...", help="slack, reroute, per_task, last or none (default: the file's)"
    )
    group.add_argument(
        "--hold",
        choices=("plan", "all"),
        default="plan",
        help="a worker holds the variant that the plan gives it, or all variants of all stages (default: plan)",
    )
    group.add_argument("--plan-period-s", type=float, metavar="S", help="between plans (default: the file's)")
    group.add_argument(
        "--least-accuracy",
        type=float,
        metavar="A",
        help="with --find-workers: of what is answered (default: 0)",
    )


def is_flow(path: Path | None) -> bool:
    """Whether a file describes a flow. What cannot be read is for others to say."""
    import tomllib

    try:
        return path is not None and "flow" in tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def refuse_without_flow(args: argparse.Namespace) -> None:
    """ConfigError for flags that only a flow file takes."""
    for name in ("router", "drop", "plan_period_s", "least_accuracy"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} goes with a flow file only: one with a [flow] section")
    if args.hold != "plan":
        raise ConfigError("--hold goes with a flow file only: one with a [flow] section")


def run_flow(args: argparse.Namespace) -> int:
    """Simulate every combination and print. ConfigError says what to change."""
    from arlo.catalog.flow_file import load_flow

    flow = load_flow(args.file)
    if args.least_accuracy is not None and not (args.find_workers and 0 <= args.least_accuracy <= 1):
        raise ConfigError("--least-accuracy is a share from 0 to 1 and belongs to --find-workers")
    given = _given(args)
    lists = [given.get(name, [None]) for name in SWEPT]
    runs = []
    found = []
    for values in itertools.product(*lists):
        chosen = {name: value for name, value in zip(SWEPT, values, strict=True) if value is not None}
        rest = {name: values[0] for name, values in given.items() if name not in SWEPT}
        if args.find_workers:
            found.append((chosen, _find(flow, chosen | rest, args)))
        else:
            runs.append((chosen, _one(flow, chosen | rest, args)))
    if args.find_workers:
        _print_found(found, args)
    else:
        _print(runs, args)
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Tried:
    """A number of workers that was simulated, as a search for the least one asks it."""

    result: FlowResult
    least_accuracy: float

    @property
    def slo_attainment(self) -> float:
        return 0.0 if self.result.accuracy < self.least_accuracy else 1 - self.result.violations


def _find(flow: Flow, chosen: dict[str, Any], args: argparse.Namespace) -> Found:
    from arlo.catalog.flow_exits import work_s
    from arlo.cli.simulate.find import DEFAULT_ATTAINMENT, search

    def run(counts: Sequence[int]) -> list[Any]:
        return [_Tried(_one(flow, chosen | {"workers": n}, args), args.least_accuracy or 0.0) for n in counts]

    # What the most accurate variants are busy with a root; stages of which each needs a worker of its own.
    best = [max(range(len(stage.variants)), key=stage.accuracy) for stage in flow.stages]
    root_s = sum(
        flow.multiplicity(s, tuple(best[at] for at in flow.line(s))) * work_s(stage, best[s])
        for s, stage in enumerate(flow.stages)
    )
    lowest = 1 if args.hold == "all" else len(flow.stages)
    first = run([lowest])[0]
    span_s = max(1, len(first.result.seconds["demand"]))  # of the rows that came, whatever they are drawn from
    load = max(math.ceil(first.result.roots / span_s * root_s), lowest)
    return search(
        lambda counts: [first if n == lowest else run([n])[0] for n in counts],
        lowest=lowest,
        attainment=DEFAULT_ATTAINMENT if args.attainment is None else args.attainment,
        most=MOST_WORKERS,
        load=load,
    )


def _print_found(found: Sequence[tuple[dict[str, Any], Found]], args: argparse.Namespace) -> None:
    from arlo.cli.simulate.find import DEFAULT_ATTAINMENT
    from arlo.cli.text import print_json

    attainment = DEFAULT_ATTAINMENT if args.attainment is None else args.attainment
    if args.json:
        made = [
            {"run": chosen, **each.as_dict(attainment, lambda _, tried: tried.result.as_dict())}
            for chosen, each in found
        ]
        print_json(made[0] if len(made) == 1 else {"runs": made})
        return
    from rich.console import Console

    def cells(_: int, tried: _Tried) -> list[str]:
        result = tried.result
        return [f"{1 - result.violations:.2%}", f"{result.accuracy:.4f}", f"{result.mean_ms:.1f}"]

    console = Console(highlight=False)
    for chosen, each in found:
        if len(found) > 1:
            console.print(_name(chosen))
        each.print(
            console,
            attainment,
            ("on time", "accuracy", "mean ms"),
            cells,
            also=f" at an accuracy of {args.least_accuracy:g}" if args.least_accuracy else "",
            close="this is close, try another --seed",
        )


def _given(args: argparse.Namespace) -> dict[str, list[Any]]:
    from arlo.cli.simulate.flags import flags, values_of

    for name in ("plot", "record", "save", "price", "jobs"):
        if getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')} does not go with a flow file: leave it out")
    given: dict[str, list[Any]] = {}
    for flag in flags():
        text = getattr(args, flag.name)
        if text is None:
            continue
        if flag.key not in TRAFFIC | OTHERS:
            raise ConfigError(f"{flag.option} does not go with a flow file, which says what runs: leave it out")
        given[flag.key] = list(values_of(flag, text))
    from arlo.catalog import flow as kinds

    for name, kind in (("router", kinds.RouterName), ("drop", kinds.DropName)):
        text = getattr(args, name)
        if text is None:
            continue
        given[name] = [part.strip() for part in text.split(",")]
        for part in given[name]:
            if part not in get_args(kind):
                raise ConfigError(f"--{name} must be one of {', '.join(get_args(kind))}, not {part!r}")
    return given


def _one(flow: Flow, chosen: dict[str, Any], args: argparse.Namespace) -> FlowResult:
    import numpy as np

    from arlo.catalog.flow_outcomes import Outcomes
    from arlo.simulator.flows import FlowRun, planner_of, run
    from arlo.traces import make_workload, materialise

    changes: dict[str, Any] = {name: chosen[name] for name in ("router", "drop", "slo_ms") if name in chosen}
    if args.plan_period_s is not None:
        changes["plan_period_s"] = args.plan_period_s
    flow = dataclasses.replace(flow, **changes)
    outcomes = Outcomes.load(Path(flow.records)).of(flow) if flow.records else None
    traffic = {name: chosen[name] for name in TRAFFIC if name in chosen}
    if not traffic.keys() & {"counts", "segment", "trace"}:
        traffic = {"rate": DEFAULT_RATE, "duration_s": DEFAULT_DURATION_S} | traffic
    seed = chosen.get("seed", 0)
    trace = materialise(make_workload(seed=seed, length="fixed:1", **traffic))
    return run(
        FlowRun(
            flow=flow,
            planner=planner_of(flow, outcomes=outcomes),
            outcomes=outcomes,
            counted=True,
            workers=chosen.get("workers", DEFAULT_WORKERS),
            arrived_ns=np.round(trace.arrived_at_s * 1e9).astype(np.int64),
            hold=args.hold,
            batching="deadline" if flow.drop == "slack" else "fill",
            seed=seed,
            warmup_s=chosen.get("warmup_s", 0.0),
        )
    )


def _name(chosen: dict[str, Any]) -> str:
    named = (
        f"{value:g} req/s" if name == "rate" and not isinstance(value, str) else str(value)
        for name, value in chosen.items()
    )
    return ", ".join(named) or "as in the file"


def _print(runs: Sequence[tuple[dict[str, Any], FlowResult]], args: argparse.Namespace) -> None:
    from arlo.cli.text import print_json

    if args.json:
        made = [{"run": chosen, **result.as_dict()} for chosen, result in runs]
        print_json(made[0] if len(made) == 1 else {"runs": made})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=None, box=None)
    drawn = ("joules",) if any(result.joules is not None for _, result in runs) else ()
    for title in ("run", "roots", "violations", "accuracy", "utility", "workers", "drops", "rerouted", *drawn):
        table.add_column(title, justify="left" if title == "run" else "right")
    for chosen, result in runs:
        table.add_row(
            _name(chosen),
            f"{result.roots:,}",
            f"{result.violations:.2%}",
            f"{result.accuracy:.4f}",
            f"{result.utility:.4f}",
            f"{result.workers_mean:.1f}",
            f"{sum(result.dropped.values()):,}",
            f"{result.rerouted:,}",
            *("-" if result.joules is None else f"{result.joules:.3g}" for _ in drawn),
        )
    Console(highlight=False).print(table)
