"""Cascades: workers with the runtimes of one stage, or of all; rows whose journeys come from records.

The engine decides with src/flow, as the gateway does. A row's answer at each stage is that of its record; rows take
records in the order of their arrival, and start again from the first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.cascade.decide import REASONS, core_rules
from arlo.cascade.energy import energy_mj
from arlo.cascade.spec import Rules
from arlo.errors import ConfigError
from arlo.planning.planner import PlannerSettings
from arlo.simulator.report.result import ENGINE_OUTCOMES, Figures
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Rows, RuntimeModel, Scenario, Workload

MS_NS = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Journeys:
    """The stages' answers to each record."""

    confidence: NDArray[np.float64]  # [records, stages]
    correct: NDArray[np.bool_]  # [records, stages]: of the answer of a row that ends there
    agrees: NDArray[np.bool_] | None = None  # [records, stages]: it is the last stage's; None: not known
    tokens: NDArray[np.int32] | None = None  # [records, stages]: as that stage gets it; None, or 0: all
    length: NDArray[np.int64] | None = None  # [records], tokens; None: the workload's

    def __post_init__(self) -> None:
        if self.correct.shape != self.confidence.shape or self.confidence.ndim != 2:
            raise ConfigError("confidence and correct must both be [records, stages]")
        for each in (self.tokens, self.agrees):
            if each is not None and each.shape != self.confidence.shape:
                raise ConfigError("tokens and agrees must be [records, stages]")


def scenario_of(
    stages: Sequence[Sequence[RuntimeModel]],
    rules: Rules | None,
    journeys: Journeys,
    workload: Workload,
    *,
    workers: Sequence[int],
    names: Sequence[str] = (),
    served: ServedCascade | None = None,
    **fields: Any,
) -> Scenario:
    """Rows of one cascade, cheapest stage first. `rules` None: there is one stage, which answers all.

    `workers`: of each stage; one number: all hold all stages. `served`: what else is known of it. `fields`: others of
    Scenario.
    """
    if journeys.confidence.shape[1] != len(stages) or len(workers) not in (1, len(stages)):
        raise ConfigError(f"there are {len(stages)} stages: give confidences and workers of each")
    names = names or [f"stage{s}" for s in range(len(stages))]
    own: dict[str, Any] = {
        "name": "cascade",
        "dispatch": Dispatch(batching="deadline"),
        "allocate": Allocate(kind="fixed", start=tuple(workers)) if len(workers) > 1 else Allocate(kind="even"),
        "bundle": "variant" if len(workers) > 1 else "all",
        "overhead_ms": 0.0,
    }
    cascade = served or ServedCascade()
    some = next(workload.chunks(), (None, np.ones(1, np.int32)))[1] if journeys.length is None else journeys.length
    return Scenario(
        **{**own, **fields},
        workload=workload,
        runtimes=tuple(
            dataclasses.replace(model, name=f"{names[s]}/{model.name}", variant=s)
            for s, models in enumerate(stages)
            for model in models
        ),
        workers=sum(workers),
        served=dataclasses.replace(
            cascade,
            rules=rules,
            journeys=journeys,
            names=tuple(names),
            work_s=sum(_alone_s(models, some) for models in stages),
        ),
    )


def _alone_s(models: Sequence[RuntimeModel], lengths: NDArray[np.integer[Any]]) -> float:
    """Mean time of rows alone at a stage, each on the shortest runtime that takes it."""
    ends = np.asarray([model.max_length for model in models])
    at = np.minimum(np.searchsorted(ends, lengths), len(ends) - 1)
    return float(np.asarray([model.latency_ns(1) / 1e9 for model in models])[at].mean()) if len(at) else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServedCascade:
    """A cascade, and the answers to its rows."""

    rules: Rules | None = None
    journeys: Journeys = Journeys(confidence=np.ones((1, 1)), correct=np.ones((1, 1), np.bool_))
    names: tuple[str, ...] = ()
    auto_price: bool = False
    margin_ms: float = 2.0
    energy: Sequence[Sequence[tuple[int, int, float]]] = ()  # of each stage: (tokens, rows, mJ); empty: not known
    ahead: int = 2
    work_s: float = 0.0  # of a row alone at every stage

    def planner(self, settings: PlannerSettings, scenario: Scenario) -> None:
        return None

    def begin(self, engine: _core.Simulation, scenario: Scenario) -> CascadeRows:
        if self.rules is not None:
            tokens = self.journeys.tokens
            engine.set_cascade(
                list(range(len(self.names))),
                core_rules(self.rules),
                np.ascontiguousarray(self.journeys.confidence, np.float64).ravel(),
                tokens=None if tokens is None else np.ascontiguousarray(tokens, np.int32).ravel(),
                seed=scenario.seed,
                margin=round(self.margin_ms * MS_NS),
                auto_price=self.auto_price,
            )
        elif len(self.names) > 1:
            raise ConfigError("without rules there is one stage, which answers every row")
        return CascadeRows(self, engine, scenario)


class CascadeRows(Rows):
    """The rows of one run."""

    def __init__(self, cascade: ServedCascade, engine: _core.Simulation, scenario: Scenario) -> None:
        self._cascade, self._engine, self._scenario = cascade, engine, scenario
        self._longest = max(runtime.max_length for runtime in scenario.runtimes)
        self._fed = 0

    def feed(
        self, arrived: NDArray[np.int64], length: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], None]:
        if (known := self._cascade.journeys.length) is not None:
            length = known[np.arange(self._fed, self._fed + len(arrived)) % len(known)].astype(np.int32)
        self._fed += len(arrived)
        return arrived, np.minimum(length, self._longest).astype(np.int32), None

    def figures(self) -> Figures:
        cascade, journeys, columns = self._cascade, self._cascade.journeys, self._engine.columns()
        counted, answered = columns["arrived_ns"] >= self._scenario.warmup_s * 1e9, columns["latency_ns"] >= 0
        of, stages = counted & answered, range(len(cascade.names))
        stage, reason = np.zeros(len(of), np.int64), np.full(len(of), REASONS.index("final"))
        if cascade.rules is not None:
            stage, reason = columns["stage"], columns["reason"]
        rows, total = np.nonzero(of)[0], max(1, int(of.sum()))
        reasons, ms = np.bincount(reason[of], minlength=len(REASONS)), columns["latency_ns"] / MS_NS
        lost, counts = np.unique(columns["outcome"][counted & ~answered], return_counts=True)

        def share(table: NDArray[np.bool_] | None) -> float:
            if table is None or not len(rows):
                return math.nan
            return float(table[rows % len(table), stage[rows]].mean())

        return Figures(
            accuracy=share(journeys.correct),
            degraded=float(reasons[REASONS.index("deadline") :].sum() / total),
            joules=self._joules(columns, np.where(answered, stage, -1)),
            more={
                "stages": list(cascade.names),
                "agreement": share(journeys.agrees),
                "exits": (np.bincount(stage[of], minlength=len(stages)) / total).tolist(),
                "exit_ms": [_times(ms[of & (stage == s)]) for s in stages],
                "reasons": {name: int(n) for name, n in zip(REASONS, reasons, strict=True) if n},
                "unanswered": {ENGINE_OUTCOMES[int(c)]: int(n) for c, n in zip(lost, counts, strict=True)},
                "price": self._engine.price,
            },
        )

    def _joules(self, columns: dict[str, NDArray[Any]], stage: NDArray[np.int64]) -> float | None:
        """Joules of a row: the energy of single rows at the stages up to the answering one (-1: none), which ignores
        batches' savings and idle workers."""
        cascade, rows = self._cascade, max(1, len(stage))
        if not cascade.energy:
            return None
        tokens, spent = cascade.journeys.tokens, np.zeros(rows)
        skips, start = (False, 0) if cascade.rules is None else (any(cascade.rules.skip), cascade.rules.start)
        for s, points in enumerate(cascade.energy):
            of_stage = columns["length"] if tokens is None or s == 0 else tokens[np.arange(rows) % len(tokens), s]
            ran = s >= start and (stage == s if skips and s > start else stage >= s)
            spent += np.where(ran if cascade.rules is not None else True, energy_mj(points, of_stage, str(s)), 0.0)
        return float(spent.mean()) / 1000


def _times(ms: NDArray[np.float64]) -> dict[str, float]:
    mean, p98 = (ms.mean(), np.quantile(ms, 0.98)) if len(ms) else (math.nan, math.nan)
    return {"mean": float(mean), "p98": float(p98)}
