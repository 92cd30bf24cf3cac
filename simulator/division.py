"""Workers divided among models in the best way, compared with the same workers shared by all.

A model's gain from one more worker is simulated with the serving code. The division with the least sum is found
exactly (src/solve/separable.cc).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from arlo import _core
from arlo.errors import ConfigError
from arlo.simulator.report.result import Result
from arlo.simulator.run import run_many
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.scenario import Scenario

MISSED_MS = 1e6  # the latency of a request that is not on time: missed ones count first, then the mean latency


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """`workers` and `alone`, by model: its dedicated workers, and its result on them. `shared`: all models on all."""

    models: tuple[str, ...]
    workers: tuple[int, ...]
    alone: tuple[Result, ...]
    shared: Result

    @property
    def mean_ms(self) -> float:
        """Mean latency of the answers when the workers are divided."""
        answers = [result.outcomes["on_time"] + result.outcomes["late"] for result in self.alone]
        total = sum(n * result.mean_ms for n, result in zip(answers, self.alone, strict=True) if n)
        return total / sum(answers) if any(answers) else math.nan

    @property
    def slo_attainment(self) -> float:
        """Share of all requests that is on time when the workers are divided."""
        return sum(r.outcomes["on_time"] for r in self.alone) / max(sum(r.requests for r in self.alone), 1)


def divide(
    config: ScenarioConfig,
    counts: Sequence[int],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Division]:
    """The division for each number of workers. Each [[model]] alone on 1, 2, ... workers, and all on all, run once.

    `progress` is called with the simulations done and their total. ConfigError if there are fewer workers than models.
    """
    models = config.model
    if not models:
        raise ConfigError("a division is among the [[model]] of a scenario, and this one has none")
    if min(counts) < len(models):
        raise ConfigError(f"{min(counts)} workers cannot be divided among {len(models)} models: each needs one")
    most = max(counts) - len(models) + 1
    alone = [_on(config.of(model), count) for model in models for count in range(1, most + 1)]
    results = run_many([*(_on(config, count) for count in counts), *alone], jobs, progress)
    by_model = [results[i : i + most] for i in range(len(counts), len(results), most)]
    return [_best(config, count, shared, by_model) for count, shared in zip(counts, results, strict=False)]


def _on(config: ScenarioConfig, workers: int) -> Scenario:
    return build(dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, workers=workers))).scenario


def _best(config: ScenarioConfig, total: int, shared: Result, by_model: Sequence[Sequence[Result]]) -> Division:
    """`by_model`: of each model on 1, 2, ... workers."""
    most = total - len(by_model) + 1
    cost = [[math.inf, *map(_cost, results[:most]), *[math.inf] * (total - most)] for results in by_model]
    workers, *_ = _core.allocate_separable(total, cost, [1] * len(by_model))
    return Division(
        models=tuple(model.name for model in config.model),
        workers=tuple(workers),
        alone=tuple(results[count - 1] for results, count in zip(by_model, workers, strict=True)),
        shared=shared,
    )


def _cost(result: Result) -> float:
    answered = result.outcomes["on_time"] + result.outcomes["late"]
    missed = result.requests - result.outcomes["on_time"]
    return MISSED_MS * missed + (answered * result.mean_ms if answered else 0.0)
