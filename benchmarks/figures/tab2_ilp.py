"""Table 2: time to solve the allocation problem."""

from __future__ import annotations

import importlib.util
import random
import statistics

from arlo.planning.allocation.solve import make_solver
from benchmarks.allocation import SHAPES, SIZES, random_problem
from benchmarks.figures.cells import Context
from benchmarks.figures.experiment import Outcome, Parameter, Plot, Row, Series, Table, Target

NAME = "tab2"
TITLE = "Solving the allocation problem"
TEXT = (
    "Section 5.1.4, Table 2: the time of Eq. 1-7 for three sizes, mean of 20 runs; measured here, one thread of this "
    "machine. `exact` is Arlo's own solver in C++ and the default; Gurobi and HiGHS solve the same problem written as "
    "a mixed-integer program. All three prove the optimum."
)
RUNS = 20
RUNS_OF = {"exact": RUNS, "gurobi": RUNS, "highs": 5}  # HiGHS takes seconds
PACKAGES = {"gurobi": "gurobipy", "highs": "highspy"}
COLLECTED = (
    "benchmarks/allocation.py",
    "arlo/planning/allocation/exact.py",
    "arlo/planning/allocation/gurobi.py",
    "arlo/planning/allocation/highs.py",
)
PAPER = {
    f"{workers}x{runtimes}": Target(
        quantity=f"{workers} GPUs, {runtimes} runtimes",
        paper=paper_ms / 1000,
        unit="s",
        where="5.1.4, Table 2",
        aim="at_most",
    )
    for workers, runtimes, paper_ms, _ in SIZES
}


def run(context: Context) -> Outcome:
    """Random instances of each size and shape."""
    rows, lines = [], []
    means: dict[str, dict[str, float]] = {}
    solvers = [name for name in RUNS_OF if name not in PACKAGES or importlib.util.find_spec(PACKAGES[name])]
    if context.short:
        solvers = ["exact"]
    for workers, runtimes, _, _ in SIZES:
        key = f"{workers}x{runtimes}"
        generator = random.Random(f"table 2 {key}")
        problems = [random_problem(generator, workers, runtimes, "log_normal") for _ in range(RUNS)]
        means[key] = {}
        for name in solvers:
            taken = [make_solver(name).solve(problem, time_limit_s=60.0) for problem in problems[: RUNS_OF[name]]]
            times_s = [one.solve_s for one in taken]
            proven = sum(one.optimal for one in taken)
            means[key][name] = statistics.fmean(times_s)
            lines.append(
                [
                    key.replace("x", " x "),
                    name,
                    f"{len(times_s)}",
                    f"{1000 * means[key][name]:.3f}",
                    f"{1000 * max(times_s):.3f}",
                    f"{proven}",
                ]
            )
        worst = {
            shape: statistics.fmean(
                make_solver("exact")
                .solve(random_problem(generator, workers, runtimes, shape), time_limit_s=60.0)
                .solve_s
                for _ in range(context.pick(RUNS, 2))
            )
            for shape in SHAPES
        }
        others = ", ".join(f"{name} {means[key][name]:.3f} s" for name in solvers[1:])
        slowest = max(worst, key=lambda shape: worst[shape])
        rows.append(
            Row(
                target=key,
                ours=means[key]["exact"],
                low=min(worst.values()),
                high=max(worst.values()),
                over="shapes of demand",
                note=(f"On the same instances: {others}. " if others else "")
                + f"The hardest of {len(SHAPES)} shapes of demand is '{slowest}'. The paper does not describe its "
                "instances, its machine or its solver's settings (GUROBI).",
            )
        )
    plot = Plot(
        title="Time to solve, mean",
        kind="bars",
        x="GPUs x runtimes",
        y="seconds",
        log_y=True,
        series=[
            Series(name="paper (GUROBI)", x=list(PAPER), y=[t.paper for t in PAPER.values()], scheme="published"),
            *(
                Series(name=name, x=list(PAPER), y=[means[key][name] for key in PAPER], scheme=colour)
                for name, colour in zip(solvers, ("arlo", "paper", "dt"), strict=False)
            ),
        ],
    )
    return Outcome(
        rows=rows,
        plots=[plot],
        tables=[
            Table(
                title="Time to solve, ms",
                columns=["GPUs x runtimes", "solver", "runs", "mean", "most", "proven optimal"],
                rows=lines,
            )
        ],
        parameters=[
            Parameter(
                name="instances",
                value="log-normal lengths at random medians and widths, load 20 to 98 %",
                source="'varying request traffic': paper; no more is said",
            ),
            Parameter(name="SLO", value="150 ms", source="paper, 5"),
        ],
    )
