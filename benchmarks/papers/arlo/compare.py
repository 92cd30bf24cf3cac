"""Schemes beside each other on one cluster, under the paper's assumptions and under others: Fig. 6 and Fig. 10."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from arlo.simulator.profiles import Profile
from arlo.simulator.report.result import Result
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Scenario
from arlo.simulator.scenario.schemes import SCHEMES, Scheme, scheme
from arlo.traces.workloads import Workload
from benchmarks.papers.arlo.cells import ORDER, Cluster, Context
from benchmarks.papers.arlo.experiment import Row, Table, reduction

OTHERS = ("st", "dt", "infaas")
Balance = Literal["least", "turns", "random"]
Results = Mapping[str, Result]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """The requests that one of `of` workers gets when a balancer does not look at load: in turns, or at random."""

    whole: Workload
    of: int
    random: bool

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def duration_s(self) -> float:
        return self.whole.duration_s

    def describe(self) -> str:
        how = "at random" if self.random else "in turns"
        return f"one of {self.of} parts, dealt {how}, of: {self.whole.describe()}"

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        generator, seen = np.random.default_rng(0), 0
        for arrived, length in self.whole.chunks():
            if self.random:
                taken = generator.random(len(arrived)) < 1 / self.of
            else:
                taken = (np.arange(len(arrived)) + seen) % self.of == 0
            seen += len(arrived)
            yield arrived[taken], length[taken]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """An assumption instead of the one that is taken: other fields of the cluster, other options of schemes."""

    name: str
    cluster: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # by scheme
    infaas: str | None = None  # a reading of infaas_readings()
    balance: Balance = "least"  # of ST and DT
    counts: bool = True  # whether the span of a row includes it: a bound that is not a plausible reading does not


def scenarios(cluster: Cluster, variant: Variant, schemes: Sequence[str] = ORDER) -> dict[str, Scenario]:
    """One for each scheme."""
    changed = cluster.but(**variant.cluster)
    found = {}
    for name in schemes:
        of = changed.but(workers=1) if variant.balance != "least" and name in ("st", "dt") else changed
        scenario = of.scenario(name, options=variant.options.get(name))
        if name == "infaas" and variant.infaas is not None:
            read = infaas_readings(changed.profile(), workers=changed.workers, demand=changed.demand())[variant.infaas]
            scenario = dataclasses.replace(
                scenario, runtimes=read.runtimes, dispatch=read.dispatch, allocate=read.allocate
            )
        if of is not changed:
            part = Part(whole=changed.workload(), of=changed.workers, random=variant.balance == "random")
            scenario = dataclasses.replace(scenario, workload=part)
        found[name] = scenario
    return found


QUEUEING = "Arlo's allocation by queueing instead of Eq. 1"
WEAK = "drift of lengths as in the tweets of 2018-04-25"
AS_TAKEN = Variant(name="as taken")


def variants(cluster: Cluster) -> list[Variant]:
    """The assumptions that the paper leaves open, each changed alone."""
    readings = infaas_readings(cluster.profile(), workers=cluster.workers, demand=cluster.demand())
    found = [
        *(Variant(name=f"INFaaS: {reading}", infaas=reading) for reading in list(readings)[1:]),
        *(
            Variant(name=f"dynamic shapes by the model '{model}'", cluster={"dynamic": model})
            for model in ("published", "falling", "flat", "rising", "least", "most")
        ),
        Variant(name="ST and DT deal requests in turns", balance="turns"),
        Variant(name="ST and DT deal requests at random", balance="random"),
        Variant(name="no drift of lengths", cluster={"drift": "none"}),
        Variant(name=WEAK, cluster={"drift": "weak"}),
        Variant(name="each second draws its lengths from 50", cluster={"drift": "sample:50"}),
        Variant(name="lengths of the tweets of 2018-04-25, stretched", cluster={"length": "tweets", "rescale": 512}),
        Variant(name="overhead 0 ms", cluster={"overhead_ms": 0.0}),
        Variant(name="rate as in Twitter's steady window", cluster={"segment": "steady_high"}),
        Variant(name="even allocation at the start", options={"paper": START_EVEN, "arlo": START_EVEN_OURS}),
        Variant(name=QUEUEING, options={"paper": {"objective": "queueing"}}),
    ]
    if cluster.model == "bert-large":
        found += [
            Variant(name=f"BERT-large takes {ms:g} ms at 512 tokens", cluster={"scale": ms})
            for ms in (4.86, 6.0, 6.5, 9.2, 16.9)
        ]
    if cluster.arrivals == "twitter-bursty":
        found += [
            Variant(name="bursts of 10 times the rate, 100 ms", cluster={"burst": 10.0}),
            Variant(name="bursts of 3 times the rate, 1 s", cluster={"sojourn_ms": 1000.0}),
            Variant(
                name="bursts of 10 times the rate, 10 ms in 100 ms", cluster={"burst": 10.0, "sojourn_ms": "10:100"}
            ),
            Variant(name="plateaus of Twitter's window 'bursty'", cluster={"segment": "bursty"}, counts=False),
            *(
                Variant(
                    name="plateaus of Twitter's window 'bursty', and BERT-large takes 6 ms at 512",
                    cluster={"segment": "bursty", "scale": 6.0},
                    counts=False,
                )
                for _ in range(cluster.model == "bert-large")
            ),
        ]
    return found


def _start_even(objective: str) -> dict[str, Any]:
    return {"allocation": Allocate(kind="periodic", start="even", objective=objective)}


START_EVEN, START_EVEN_OURS = _start_even("paper"), _start_even("queueing")


def against(results: Results, other: str, figure: str = "mean_ms", ours: str = "paper") -> float:
    """Reduction of a figure by `ours` (a scheme) against another scheme, percent."""
    return reduction(getattr(results[ours], figure), getattr(results[other], figure))


def sensitivity(title: str, found: Mapping[str, Results]) -> Table:
    """One line for each assumption: reductions of mean and p98, and the means themselves."""
    rows = []
    for name, results in found.items():
        rows.append(
            [
                name,
                *(_percent(against(results, other)) for other in OTHERS),
                *(_percent(against(results, other, "p98_ms")) for other in OTHERS),
                *(ms(results[scheme].mean_ms) for scheme in ORDER),
            ]
        )
    columns = ["assumption", *(f"mean vs {SCHEMES[o]}" for o in OTHERS), *(f"p98 vs {SCHEMES[o]}" for o in OTHERS)]
    return Table(
        title=title,
        columns=[*columns, *(f"{SCHEMES[s]} mean ms" for s in ORDER)],
        rows=rows,
        caption="Reductions of Arlo as the paper has it (rs, Eq. 1) in percent, each assumption changed alone.",
    )


def figures_table(title: str, results: Results) -> Table:
    """What each scheme did."""
    return Table(
        title=title,
        columns=["scheme", "mean ms", "p50 ms", "p98 ms", "p99 ms", "on time", "GPUs busy", "padding", "executing ms"],
        rows=[
            [
                SCHEMES.get(name, name), ms(r.mean_ms), ms(r.p50_ms), ms(r.p98_ms), ms(r.p99_ms),
                f"{100 * r.slo_attainment:.2f} %", f"{100 * r.utilization:.1f} %", f"{100 * r.padding:.1f} %",
                ms(r.mean_execution_ms),
            ]
            for name, r in results.items()
        ],
    )  # fmt: skip


def reduction_row(
    target: str,
    *,
    seeds: Sequence[Results],
    other: str,
    figure: str,
    note: str,
    assumed: Mapping[str, Results],
    counted: Sequence[str],
) -> Row:
    """Median over the seeds, and the span over the assumptions counted."""
    values = [against(results, other, figure) for results in seeds]
    span = [against(assumed[name], other, figure) for name in counted] + values
    return Row(
        target=target,
        ours=median(values),
        note=note,
        low=min(span),
        high=max(span),
        over="assumptions",
        better=median([against(results, other, figure, "arlo") for results in seeds]),
    )


def run_all(
    context: Context, cluster: Cluster, *, seeds: Sequence[int], sensitive_s: float
) -> tuple[list[Results], dict[str, Results], list[str]]:
    """Runs with each seed, runs under each assumption (shorter ones), and the assumptions that count for the span."""
    cells: dict[tuple[str, str], Scenario] = {}
    for seed in seeds:
        for name, scenario in scenarios(cluster.but(seed=seed), AS_TAKEN).items():
            cells[f"seed {seed}", name] = scenario
    shorter = cluster.but(duration_s=sensitive_s)
    others = [AS_TAKEN, *variants(shorter)]
    if context.short:
        others = others[:3]
    for variant in others:
        for name, scenario in scenarios(shorter, variant).items():
            cells[variant.name, name] = scenario
    done = context.simulate(cells)
    by_seed: list[Results] = [{name: done[f"seed {seed}", name] for name in ORDER} for seed in seeds]
    assumed: dict[str, Results] = {v.name: {name: done[v.name, name] for name in ORDER} for v in others}
    return by_seed, assumed, [v.name for v in others if v.counts]


def typical(seeds: Sequence[Results], other: str) -> Results:
    """The runs of the seed whose reduction of the mean is the median (of an even number the upper one)."""
    return sorted(seeds, key=lambda results: against(results, other))[len(seeds) // 2]


def median(values: Sequence[float]) -> float:
    """Of the values that are numbers."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if known else math.nan


def _percent(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-"


def ms(value: float) -> str:
    """Milliseconds, to what is worth reading."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def infaas_readings(
    profile: Profile, *, workers: int, demand: Sequence[float], max_lengths: Sequence[int] | None = None
) -> dict[str, Scheme]:
    """INFaaS as it may be read, the default first: the paper says that it packs and does not look at lengths, no more.

    `demand`: requests of each length bin, in any unit. docs/latency-profiles.md says what each stands for.
    """

    def make(**fields: Any) -> Scheme:
        return scheme("infaas", profile, workers=workers, max_lengths=max_lengths, **fields)

    # As INFaaS's published front end chooses: the first variant whose least loaded replica still meets the SLO.
    first_fit = Dispatch(policy="rs", lambda_=1.0, alpha=1.0, max_peek=1 << 20)
    return {
        "even, packed to a batch": make(),
        "even, packed to 2": make(packing=2),
        "even, packed to 4": make(packing=4),
        "even, packed to the SLO": make(packing="slo"),
        "even, first fit over variants": make(policy=first_fit, packing="slo"),
        "by requests, packed to a batch": make(allocation="proportional", demand=demand),
        "by requests, first fit over variants": make(
            allocation="proportional", demand=demand, policy=first_fit, packing="slo"
        ),
        "by work, packed to a batch": make(allocation="work", demand=demand),
        "by work, first fit over variants": make(allocation="work", demand=demand, policy=first_fit, packing="slo"),
    }
