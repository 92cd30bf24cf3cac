"""Cascades of Tabi, HybridServe, INFaaS and Cocktail in a simulated scenario, compared with those that Arlo finds.

python -m benchmarks.papers.schemes examples/simulate/cascade_sst2.toml --scheme tabi --c 0.95
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from arlo.cascade.decide import Floats
from arlo.cascade.search import ladder, points, sampling
from arlo.cascade.search.find import SELECT
from arlo.cascade.search.table import Table
from arlo.cascade.spec import Rule, Rules
from arlo.cascade.study import Study
from arlo.errors import ConfigError
from arlo.simulator.cascade.build import build
from arlo.simulator.cascade.rows import Chosen, Drawn
from arlo.simulator.cascade.schemes import alone, whole
from arlo.simulator.cascade.served import ServedCascade
from arlo.simulator.run import run
from arlo.simulator.scenario.cascades import CascadeSection
from arlo.simulator.scenario.config import load
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.merged import MergedWorkload
from arlo.simulator.scenario.scenario import Listed, Scenario, SharedModel
from benchmarks.papers.hybridserve import search as hybridserve
from benchmarks.papers.tabi import search as tabi

SchemeName = Literal["tabi", "hybridserve-ap", "hybridserve-eo", "infaas-model", "cocktail"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A scheme and its parameters."""

    name: SchemeName
    accuracy: float | None = None  # to reach; None: that of the last stage less the scenario's tolerance
    c: float | None = None  # of Eq. 4, of a population; None: the least of Tabi's steps that is accurate enough
    k: float = 10.0  # of Eq. 4, which the paper does not give

    def of_records(self, study: Study, section: CascadeSection, *, seed: int) -> Chosen:
        """The scheme's choice, searched on the select split."""
        select = study.of(SELECT)
        accuracy = [float((each.answer == select.truth).mean()) for each in select.said]
        target = self._target(accuracy[-1], section)
        if self.name == "infaas-model":
            return self._quickest(tabi.infaas(tabi.by_stage(select), select.truth, accuracy=target), target)
        if self.name == "cocktail":
            vote = tabi.cocktail(tabi.by_stage(select), select.truth, accuracy=target)
            return self._voting(None if vote is None else vote.stages, accuracy, target)
        if self.name == "tabi":
            return whole(range(study.stages), tabi.point(study, accuracy=target, k=self.k, seed=seed))
        name: hybridserve.PointName = "ap" if self.name == "hybridserve-ap" else "eo"
        return whole(range(study.stages), hybridserve.point(study, name, tolerance=section.tolerance, seed=seed))

    def of_population(
        self, drawn: Drawn, ms: Floats, names: Sequence[str], section: CascadeSection, *, seed: int
    ) -> Chosen:
        """The scheme's choice, searched on drawn rows; `ms` [rows, stages]."""
        stages = range(len(names))
        table = Table(drawn.confidence, drawn.right, ms)
        accuracy = drawn.right.mean(axis=0)
        target = self._target(float(accuracy[-1]), section)
        if self.name == "infaas-model":
            good = [s for s in stages if accuracy[s] >= target]
            return self._quickest(min(good, key=lambda s: float(ms[:, s].mean())) if good else None, target)
        if self.name == "cocktail":
            return self._voting(_cheapest_vote(drawn, ms, target), accuracy.tolist(), target)
        if self.name == "tabi":
            rule = Rule(kind="soft", c=self._c(table, target), k=self.k)
            return whole(stages, Rules(prices=((rule,) * (len(names) - 1),)))
        front = sampling.search(table, seed=seed)
        # Rows are drawn, so there is no noise to fear.
        at = points.accuracy_point(front, table, tolerance=section.tolerance, level=None)
        at = len(front) - 1 if at is None else at
        if self.name == "hybridserve-eo":
            bend = points.efficient_point(front, table)
            at = at if bend is None else bend
        return whole(stages, Rules(prices=(ladder.as_rules(front.thresholds[at]),)))

    def _target(self, last: float, section: CascadeSection) -> float:
        return last - section.tolerance if self.accuracy is None else self.accuracy

    def _c(self, table: Table, target: float) -> float:
        """The least c that is accurate enough; Eq. 4 is treated as the cut that it acts like."""
        if self.c is not None:
            return self.c
        good = [c for c in tabi.C_STEPS if table.measure(np.full(table.stages - 1, (1 + c) / 2))[0] >= target]
        return min(good, default=max(tabi.C_STEPS))

    def _quickest(self, stage: int | None, target: float) -> Chosen:
        if stage is None:
            raise ConfigError(f"{self.name}: no stage is {target:.2%} right")
        return alone(stage)

    def _voting(self, stages: Sequence[int] | None, weights: Sequence[float], target: float) -> Chosen:
        if stages is None:
            raise ConfigError(f"{self.name}: no two stages or more before the last are {target:.2%} right by a vote")
        return Chosen(stages=tuple(stages), rules=None, weights=tuple(weights[s] for s in stages))


def _cheapest_vote(drawn: Drawn, ms: Floats, target: float) -> tuple[int, ...] | None:
    stages = range(drawn.right.shape[1] - 1)
    accuracy = drawn.right.mean(axis=0)
    best: tuple[float, tuple[int, ...]] | None = None
    for size in range(2, len(stages) + 1):
        for members in itertools.combinations(stages, size):
            chosen = Chosen(stages=members, rules=None, weights=tuple(accuracy[list(members)].tolist()))
            right = drawn.at(chosen, np.ones(len(ms))).correct[:, 0]
            slowest = float(ms[:, list(members)].max(axis=1).mean())
            if right.mean() >= target and (best is None or slowest < best[0]):
                best = (slowest, members)
    return None if best is None else best[1]


def simulated(config: ScenarioConfig, scheme: Scheme) -> dict[str, Any]:
    """Outcomes of the rows of a scenario with a cascade, as this scheme runs it."""
    scenario = build(config, of_records=scheme.of_records, of_population=scheme.of_population).scenario
    assert isinstance(scenario.served, ServedCascade)
    if scenario.served.rules is None and len(scenario.served.names) > 1:
        return voted(scenario, scenario.served)
    result = run(scenario)
    known = {name: result.figures.more[name] for name in ("exits", "agreement")}
    known |= {"accuracy": result.figures.accuracy, "joules": result.joules}
    return known | {"mean_ms": result.mean_ms, "on_time": result.slo_attainment}


def voted(scenario: Scenario, served: ServedCascade) -> dict[str, Any]:
    """Every row is asked of all stages at once, as of several models, and answered when the slowest has."""
    arrived = np.concatenate([part for part, _ in scenario.workload.chunks()])
    rows, names = Listed(arrived, served.lengths), served.names
    held = [sum(runtime.variant == s for runtime in scenario.runtimes) for s in range(len(names))]
    models = tuple(
        SharedModel(name=name, runtimes=n, workload=rows, slo_ms=scenario.slo_ms, timeout_ms=scenario.timeout_ms)
        for name, n in zip(names, held, strict=True)
    )
    each = dataclasses.replace(
        scenario, workload=MergedWorkload(models), models=models, bundle="all", served=None, record=True
    )
    columns = run(each).columns
    assert columns is not None
    latency_ms = columns["latency_ns"].reshape(len(arrived), len(names)) / 1e6
    answered, slowest = (latency_ms >= 0).all(axis=1), latency_ms.max(axis=1)
    correct = served.journeys.correct[np.arange(len(arrived)) % len(served.journeys.correct), -1]
    return {
        "exits": [*[0.0] * (len(names) - 1), 1.0],
        "accuracy": float(correct[answered].mean()),
        "joules": None,
        "mean_ms": float(slowest[answered].mean()),
        "on_time": float((answered & (slowest <= scenario.slo_ms)).mean()),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows' outcomes as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("scenario", type=Path, help="a scenario file with [cascade]")
    add("--scheme", choices=get_args(SchemeName), required=True)
    add("--accuracy", type=float, metavar="A", help="to reach (default: the last stage's less cascade.tolerance)")
    add("--c", type=float, help="c of Tabi's Eq. 4, of a population (default: found)")
    add("--k", type=float, default=10.0, help="k of Eq. 4 (default: 10)")
    args = parser.parse_args(argv)
    found = simulated(load(args.scenario), Scheme(name=args.scheme, accuracy=args.accuracy, c=args.c, k=args.k))
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
