"""Table 3 and Fig. 12: periodic allocation against even and global ones."""

from __future__ import annotations

from arlo.simulator.scenario.scenario import Allocate, AllocationKind, Scenario
from benchmarks.papers.arlo.cells import Cluster, Context
from benchmarks.papers.arlo.compare import ms
from benchmarks.papers.arlo.experiment import Experiment, Outcome, Parameter, Row, Table, Target, reduction
from benchmarks.papers.arlo.notes import COMMON

KINDS: tuple[AllocationKind, ...] = ("periodic", "even", "global", "oracle")
BASE = Cluster(model="bert-large", arrivals="twitter-bursty", rate=6000, workers=40, duration_s=600)
# Lengths that change over minutes, as Fig. 12's allocation does: spread and median drift with a time constant of 2 min.
SLOW = "0.21:120:0.2"
_WHERE = "5.2.3, Table 3"
PAPER = {
    "even": Target(quantity="periodic against even allocation: mean", paper=0.0, unit="% less", where=_WHERE),
    "global": Target(quantity="periodic against global allocation: mean", paper=0.0, unit="% less", where=_WHERE),
    "even_p98": Target(quantity="periodic against even allocation: p98", paper=0.0, unit="% less", where=_WHERE),
    "global_p98": Target(quantity="periodic against global allocation: p98", paper=0.0, unit="% less", where=_WHERE),
    "moved": Target(
        quantity="instances moved in ten minutes (Fig. 12 shows that they move)", paper=None, unit="", where="Fig. 12",
        aim="fact",
    ),
}  # fmt: skip
OBJECTIVES = {"paper": "paper", "arlo": "queueing"}


def scenario(cluster: Cluster, scheme: str, kind: AllocationKind) -> Scenario:
    """A scheme with another allocation."""
    allocate = Allocate(kind=kind, start="first", objective=OBJECTIVES[scheme])
    return cluster.scenario(scheme, options={"allocation": allocate})


def run(context: Context) -> Outcome:
    """All allocations under the paper's scheduler and ours."""
    base = BASE.but(duration_s=context.pick(600.0, 5.0))
    others = {
        "lengths drift over minutes": base.but(drift=SLOW),
        "weak drift": base.but(drift="weak"),
        "no drift": base.but(drift="none"),
        "3,333 req/s": base.but(rate=3333.0),
        "8,000 req/s": base.but(rate=8000.0),
        "300 GPUs, 25,000 req/s": base.but(workers=300, rate=25000.0, duration_s=context.pick(360.0, 2.0)),
        "BERT-base": base.but(model="bert-base", rate=15000.0),
        "seed 2": base.but(seed=2),
        "seed 3": base.but(seed=3),
    }
    if context.short:
        others = {"lengths drift over minutes": others["lengths drift over minutes"]}
    others = {label: cluster.but(duration_s=min(cluster.duration_s, 360.0)) for label, cluster in others.items()}
    clusters = {"as taken": base, **others}
    done = context.simulate(
        {
            (label, scheme, str(kind)): scenario(cluster, scheme, kind)
            for label, cluster in clusters.items()
            for scheme in OBJECTIVES
            for kind in KINDS
        }
    )

    def less(label: str, scheme: str, other: str, figure: str) -> float:
        mine = getattr(done[label, scheme, "periodic"], figure)
        return reduction(mine, getattr(done[label, scheme, other], figure))

    rows = []
    for key in ("even", "global", "even_p98", "global_p98"):
        other, figure = key.removesuffix("_p98"), "p98_ms" if key.endswith("_p98") else "mean_ms"
        values = [less(label, "paper", other, figure) for label in clusters]
        mine, its = (getattr(done["as taken", "paper", kind], figure) for kind in ("periodic", other))
        told, told_its = (getattr(done["as taken", "arlo", kind], figure) for kind in ("periodic", other))
        note = f"{ms(mine)} against {ms(its)} ms; with the queueing objective {ms(told)} against {ms(told_its)} ms. "
        if other == "even":
            note += "Half of the GPUs have runtimes that few requests need."
        else:
            note += (
                "The lengths of the paper's trace are the same over minutes (its Fig. 1 says so of ten-minute clips), "
                f"so a global allocation that knows them loses little. Where they drift over minutes: "
                f"{less('lengths drift over minutes', 'paper', other, figure):.1f} %, queueing objective "
                f"{less('lengths drift over minutes', 'arlo', other, figure):.1f} %."
            )
        rows.append(
            Row(
                target=key,
                ours=less("as taken", "paper", other, figure),
                low=min(values),
                high=max(values),
                over="assumptions",
                better=less("as taken", "arlo", other, figure),
                note=note,
            )
        )
    at = done["as taken", "paper", "periodic"]
    slow = done["lengths drift over minutes", "paper", "periodic"]
    rows.append(
        Row(
            target="moved",
            ours=float(at.replacements),
            better=float(done["as taken", "arlo", "periodic"].replacements),
            note=f"{slow.replacements} where lengths drift over minutes.",
        )
    )
    return Outcome(
        rows=rows,
        sensitivity=[
            Table(
                title=f"Mean ms / p98 ms / late, {title}",
                columns=["assumption", *KINDS],
                rows=[
                    [
                        label,
                        *(
                            f"{ms(r.mean_ms)} / {ms(r.p98_ms)} / {100 * (1 - r.slo_attainment):.2f} %"
                            for r in (done[label, scheme, kind] for kind in KINDS)
                        ),
                    ]
                    for label in clusters
                ],
            )
            for scheme, title in (("paper", "rs and Eq. 1 (paper)"), ("arlo", "late and queueing (shipped)"))
        ],
        parameters=[
            *COMMON,
            Parameter(name="trace", value="that of Fig. 11: 40 GPUs, 6,000 requests per second", source="not stated"),
            Parameter(name="start", value="solved for the first period", source="not stated"),
        ],
    )


EXPERIMENT = Experiment(
    name="tab3",
    title="Periodic allocation against even and global ones",
    text=(
        "Section 5.2.3, Table 3 and Fig. 12: the Runtime Scheduler's periodic allocation against as many instances of "
        "each runtime (even) and one allocation for the lengths of the whole trace (global), which knows the future. "
        "The oracle is not in the paper: it solves each period for the demand that will come in it. Here on the trace "
        "of Fig. 11."
    ),
    paper=PAPER,
    run=run,
)
