"""`arlo plan`: the allocation for a demand, and what-if questions, offline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.plan import inputs
from arlo.cli.text import LENGTHS, TIMES_MS, between, listed, print_json
from arlo.config.flag import flag_help
from arlo.config.keeping import ControlConfig
from arlo.errors import ArloError, ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from arlo.planning.allocation.problem import Allocation, AllocationProblem, Solver

TIME_LIMIT_S = 60.0  # for each allocation

DESCRIPTION = """How many instances of each runtime a demand needs (paper, section 3.3). Nothing is started or moved.

With --models, several models: what each gets of workers that all share, or that are divided among them, simulated.
Otherwise the runtimes come from --max-lengths and --latency-ms (of one request, max_batch 1), from the manifest of a
repository, or from a latency profile; batches are counted in where these have them. The demand comes from
--demand, a trace, or a rate and a length distribution.
"""

EPILOG = """examples:
  arlo plan --workers 10 --slo-ms 150 --max-lengths 64,128,256,512 --latency-ms 1.15,1.7,2.7,4.9 \\
            --demand 30,20,8,2 --solver exact --json
  arlo plan --workers 4-16 --slo-ms 150 --repository minilm --rate 800 --lengths tweets
  arlo plan --workers 8 --slo-ms 150 --profile minilm/profile.json --trace trace.csv
  arlo plan --workers 6-9 --models examples/simulate/many_models.toml

columns: M requests that one instance finishes within the SLO, Q demand per SLO period, least the lower bound of
N (Eq. 3 and 7), N instances, B load of one instance, left over what goes on to the next runtime (Eq. 4), mean
the latency of the requests that this runtime processes. All of these are of Eq. 1-7, where the requests of an SLO
period come at once; the mean latency under random arrivals is predicted beside it. load: until a worker has loaded
the runtime, where the profile knows it.

A demand that the workers cannot carry gets the least-bad plan and a reason; that is no error (exit code 0).
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `plan`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="how many instances of each runtime a demand needs; what-if questions",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add = parser.add_argument
    add(
        "--workers",
        type=inputs.workers,
        required=True,
        metavar="G",
        help="number of workers; a range such as 4-16 compares them",
    )
    time_ms = between(0, whole=False, above=True)
    add("--slo-ms", type=time_ms, metavar="MS", help="the SLO; demand is counted per this period")
    add("--models", type=Path, metavar="FILE", help="a scenario with several [[model]] (docs/scenario.md)")

    what = parser.add_argument_group("runtimes")
    what.add_argument("--max-lengths", type=LENGTHS, metavar="L,L,...", help="maximum lengths in tokens, ascending")
    what.add_argument(
        "--latency-ms", type=TIMES_MS, metavar="MS,MS,...", help="latency of one request at each maximum length"
    )
    what.add_argument("--repository", type=Path, metavar="DIR", help="the static runtimes of a Triton repository")
    what.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="latencies measured by `arlo compile profile`; alone, or for --repository",
    )

    load = parser.add_argument_group("demand")
    load.add_argument(
        "--demand",
        type=listed(0),
        metavar="Q,Q,...",
        help="requests per SLO period in the length bin of each runtime",
    )
    load.add_argument("--trace", type=Path, metavar="FILE", help="a CSV trace (arrived_at_s,length): its mean demand")
    load.add_argument(
        "--rate", type=between(0, whole=False, above=True), metavar="RPS", help="requests per second, with --lengths"
    )
    load.add_argument(
        "--lengths",
        metavar="SPEC",
        help="as --histogram of `arlo compile lengths`: tweets, stretched to the longest runtime, fixed:N, a file, ...",
    )

    how = parser.add_argument_group("solving")
    for key, brief, default in (
        ("solver", "what solves it", ControlConfig.solver),
        # Unlike in `arlo serve`: the paper's numbers come from Eq. 1, and no cluster waits for the answer.
        ("objective", "paper: Eq. 1 as printed; queueing: with waiting under random arrivals, exact only", "paper"),
    ):
        how.add_argument(
            f"--{key}", default=default, metavar="NAME", help=flag_help(ControlConfig, key, brief, default=default)
        )
    add("--json", action="store_true", help="print JSON; for a range, an object with a list under `plans`")
    return parser


def run(args: argparse.Namespace) -> int:
    """Solve and print."""
    if args.models is not None:
        from arlo.cli.plan.models import run_models

        return run_models(args)
    if args.slo_ms is None:
        raise ConfigError("--slo-ms is missing: the SLO, for whose time the demand counts")
    from arlo.planning.allocation.problem import AllocationProblem
    from arlo.planning.allocation.solve import make_solver

    solver = make_solver(args.solver, args.objective)
    runtimes = inputs.runtimes(args)
    demand = inputs.demand(args, runtimes.max_lengths)
    problems = [
        AllocationProblem(
            workers=count,
            slo_ms=args.slo_ms,
            max_lengths=runtimes.max_lengths,
            curves=runtimes.curves,
            demand=demand.demand,
        )
        for count in args.workers
    ]
    plans = [(problem, _solve(problem, solver)) for problem in problems]
    warnings = [*runtimes.warnings, *demand.warnings]
    if args.json:
        found = [
            as_dict(p, a, runtimes.load_ms) | {"warnings": [*warnings_of(p, a, args.objective).values()]}
            for p, a in plans
        ]
        whole = {"objective_name": args.objective, "warnings": warnings}
        one = {**found[0], **whole, "warnings": [*warnings, *found[0]["warnings"]]}
        print_json(one if len(found) == 1 else {"plans": found, **whole})
    elif len(plans) == 1:
        _print_one(*plans[0], runtimes.load_ms, args.objective, warnings)
    else:
        _print_range(plans, args.objective, warnings)
    return 0


def _solve(problem: AllocationProblem, solver: Solver) -> Allocation:
    from arlo.planning.allocation.bounds import SolverMissing
    from arlo.planning.allocation.problem import SolverError
    from arlo.planning.allocation.solve import allocate

    try:
        return allocate(problem, solver, time_limit_s=TIME_LIMIT_S)
    except SolverMissing as error:
        raise EnvironmentProblem(str(error)) from None
    except SolverError as error:
        raise ArloError(f"{error}; try another --solver") from None


def as_dict(problem: AllocationProblem, allocation: Allocation, load_ms: Sequence[int | None] = ()) -> dict[str, Any]:
    """One plan as JSON: the answer first, then its effect on each runtime. load_ms: null if not measured."""
    from arlo.planning.allocation.problem import flow
    from arlo.planning.allocation.queueing import predicted_mean_ms

    flows = flow(problem, allocation.instances)
    return {
        "allocation": list(allocation.instances),
        "objective": allocation.objective,
        "solver": allocation.solver,
        "solve_s": allocation.solve_s,
        "optimal": allocation.optimal,
        "reason": allocation.reason,
        "mean_ms": flows.mean_ms,
        "queueing_mean_ms": predicted_mean_ms(problem, allocation.instances),
        "workers": problem.workers,
        "max_lengths": list(problem.max_lengths),
        "capacities": list(problem.capacities),
        "demand": list(problem.demand),
        "lower_bounds": list(problem.lower_bounds),
        "processed": list(flows.processed),
        "load": list(flows.load),
        "left_over": list(flows.left_over),
        "load_ms": list(load_ms) or [None] * len(problem.max_lengths),
    }


def warnings_of(problem: AllocationProblem, allocation: Allocation, objective: str) -> dict[str, str]:
    """The caveats for a reader of the numbers: a word or two -> the sentence."""
    from arlo.planning.allocation.problem import flow

    if allocation.reason is not None:
        return {allocation.reason.partition(":")[0]: allocation.reason}
    said = {}
    if not allocation.optimal and objective == "paper":
        said["unproven"] = f"{allocation.solver} did not prove this optimal in time"
    slow = [
        length
        for length, m, q in zip(problem.max_lengths, problem.capacities, problem.demand, strict=True)
        if m == 0 and q > 0
    ]
    if slow:
        said["a runtime above the SLO"] = (
            f"the runtimes of {slow} take longer than the SLO (M is 0): a longer one takes their requests"
        )
    load, most = flow(problem, allocation.instances).load[-1], problem.capacities[-1]
    if load > most:
        said["longest above M"] = (
            f"the longest runtime gets {load:.4g} requests per instance, above its M of {most}: some will be late"
        )
    return said


def _print_one(
    problem: AllocationProblem,
    allocation: Allocation,
    load_ms: Sequence[int | None],
    objective: str,
    notes: list[str],
) -> None:
    from arlo.planning.allocation.problem import flow
    from arlo.planning.allocation.queueing import predicted_mean_ms
    from arlo.report.terminal import columns, console, say, warn

    flows = flow(problem, allocation.instances)
    loads = ["load s"] if any(each is not None for each in load_ms) else []
    rows = [
        (
            str(problem.max_lengths[i]),
            f"{curve.points[0][1]:.4g}" if curve.max_batch == 1 else _batches(curve),
            str(problem.capacities[i]),
            f"{problem.demand[i]:.4g}",
            str(problem.lower_bounds[i]),
            str(allocation.instances[i]),
            f"{flows.load[i]:.4g}" if allocation.instances[i] else "-",
            f"{flows.left_over[i]:.4g}" if flows.left_over[i] else "-",
            f"{curve.mean_ms(flows.load[i]):.4g}" if flows.processed[i] else "-",
            *(_load_s(load_ms[i]) for _ in loads),
        )
        for i, curve in enumerate(problem.curves)
    ]
    head = ("max_length", "latency ms", "M", "Q", "least", "N", "B", "left over", "mean ms", *loads)
    title = f"{problem.workers} workers, SLO {problem.slo_ms:g} ms, {sum(problem.demand):.4g} requests per SLO"
    out = console(100)
    out.print(f"[bold]{title}", soft_wrap=True)
    out.print(columns(head, rows, left=()))
    proven = ", proven optimal" if allocation.optimal else ""
    say(
        out,
        [
            f"mean latency {flows.mean_ms:.4g} ms when all requests of an SLO period come at once (Eq. 1: "
            f"{allocation.objective:.6g} ms x requests)",
            f"mean latency {predicted_mean_ms(problem, allocation.instances):.4g} ms under random arrivals (queueing)",
            f"minimised: {objective}; {allocation.solver} in {allocation.solve_s * 1000:.3g} ms{proven}",
        ],
    )
    warn(out, [*notes, *warnings_of(problem, allocation, objective).values()])


def _load_s(load_ms: int | None) -> str:
    return "-" if load_ms is None else f"{load_ms / 1000:.3g}"


def _print_range(plans: list[tuple[AllocationProblem, Allocation]], objective: str, notes: list[str]) -> None:
    from arlo.planning.allocation.queueing import predicted_mean_ms
    from arlo.report.terminal import columns, console, warn

    first, rows = plans[0][0], []
    for problem, allocation in plans:
        total = sum(problem.demand)
        said = ", ".join(warnings_of(problem, allocation, objective))
        rows.append(
            (
                str(problem.workers),
                ", ".join(map(str, allocation.instances)),
                f"{allocation.objective / total if total else 0:.4g}",
                f"{predicted_mean_ms(problem, allocation.instances):.4g}",
                f"{'yes' if allocation.reason is None else 'no'}{f': {said}' if said else ''}",
            )
        )
    lengths = ", ".join(map(str, first.max_lengths))
    title = f"SLO {first.slo_ms:g} ms, {sum(first.demand):.4g} requests per SLO, max_lengths {lengths}"
    out = console(120)
    head = ("workers", "N", "mean ms, Eq. 1", "mean ms, queueing", "feasible")
    out.print(f"[bold]{title}, minimised: {objective}", soft_wrap=True)
    out.print(columns(head, rows, left=(1, 4)))
    warn(out, notes)


def _batches(curve: Any) -> str:
    """`1.2-6.4 (8)`: of one row and of max_batch rows."""
    return f"{curve.points[0][1]:.4g}-{curve.points[-1][1]:.4g} ({curve.max_batch})"
