"""From a scenario file with a cascade to its simulation: the stages' runtimes, the rows, the scheme."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.decide import Floats, Ints
from arlo.cascade.manifest import CascadeManifest
from arlo.cascade.study import Study
from arlo.catalog.manifest import Manifest
from arlo.errors import ConfigError
from arlo.simulator.cascade.rows import Chosen, Drawn, draw, draw_by_length, read_study, rows_of, toward_reach
from arlo.simulator.cascade.schemes import from_population, from_records, goes_on
from arlo.simulator.cascade.served import Journeys, ServedCascade, scenario_of
from arlo.simulator.profiles import latency_ms, load_profile
from arlo.simulator.scenario.build import Built, Parts, dispatch_of, workload_of
from arlo.simulator.scenario.cascades import CascadeSection, ChangeSection, StageSection
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.scenario import Dispatch, RuntimeModel, Workload

LONGEST = 512  # of a stage of one latency
DEFAULT_SLO_MS = 100.0
MOST_ROWS = 5_000_000
SELECTED = 20_000  # rows of a population that schemes are chosen on
POOL = 100_000  # of a change of reach
TEST = 2


@dataclasses.dataclass(frozen=True, slots=True)
class _Load:
    """The arrivals of rows, and their tokens."""

    arrived_ns: NDArray[np.int64]
    lengths: NDArray[np.int32]


class OfRecords(Protocol):
    """Chooses stages and rules on the select split of a study."""

    def __call__(self, study: Study, section: CascadeSection, *, seed: int) -> Chosen: ...


class OfPopulation(Protocol):
    """Chooses stages and rules on rows drawn from a population; `ms` [rows, stages]."""

    def __call__(
        self, drawn: Drawn, ms: Floats, names: Sequence[str], section: CascadeSection, *, seed: int
    ) -> Chosen: ...


def build(
    config: ScenarioConfig,
    *,
    name: str = "",
    record: bool = False,
    of_records: OfRecords = from_records,
    of_population: OfPopulation = from_population,
) -> Built:
    """Build the simulation; `of_records` and `of_population` choose its rules. ConfigError for conflicting settings."""
    workload = workload_of(config.workload, config.run.seed)
    load = _load(workload)
    made = (
        _of_records(config, load, of_records)
        if config.cascade.manifest is not None
        else _of_population(config, load, of_population)
    )
    chosen, stages, names, journeys, lengths, notes = made
    cluster, cascade = config.cluster, config.cascade
    at = [names[s] for s in chosen.stages]
    workers: tuple[int, ...] = (cluster.workers,)
    if cascade.workers and len(at) == len(names):
        workers = _of_stages(cascade.workers, names)
    longest = max(runtime.max_length for runtime in stages[chosen.stages[-1]])
    cut = lengths > longest
    if cut.any():
        notes = (*notes, f"{cut.mean():.2%} of the rows are cut to {longest} tokens, the longest that the stages take")
    fields = Parts(config, name=name or config.run.name or cascade.scheme, record=record).fields
    del fields["workers"]
    marks = tuple(sorted({each.at_s for each in config.change} | {fault.at_s for fault in config.fault} - {0.0}))
    served = ServedCascade(
        auto_price=cascade.price == "auto" and cascade.scheme == "arlo",
        marks_s=marks,
        watts=(cascade.watts[0], cascade.watts[1]) if cascade.watts else None,
        energy=_energy(config, chosen.stages),
    )
    scenario = scenario_of(
        [stages[s] for s in chosen.stages],
        chosen.rules,
        journeys,
        workload,
        workers=workers,
        names=at,
        lengths=np.minimum(lengths, longest).astype(np.int32),
        served=served,
        slo_ms=DEFAULT_SLO_MS if cluster.slo_ms is None else cluster.slo_ms,
        timeout_ms=cluster.timeout_ms,
        dispatch=dispatch_of(config, Dispatch()),
        **fields,
    )
    return Built(scenario=scenario, latencies=f"of {', '.join(at)}", notes=notes)


def _energy(config: ScenarioConfig, stages: Sequence[int]) -> Sequence[Sequence[tuple[int, int, float]]]:
    """The energy that `arlo fit --objective energy` wrote for each of these stages; empty if one has none."""
    if config.cascade.manifest is None:
        return ()
    of_all = [stage.energy_mj for stage in CascadeManifest.load(config.cascade.manifest).stages]
    found = [of_all[s] for s in stages]
    return found if all(any(rows == 1 for _, rows, _ in each) for each in found) else ()


def _of_stages(workers: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
    if len(workers) != len(names):
        raise ConfigError(f"cascade.workers needs one number for each stage, {', '.join(names)}")
    return tuple(workers)


def _load(workload: Workload) -> _Load:
    parts = [part for part in workload.chunks() if len(part[0])]
    if not parts:
        raise ConfigError("no row arrives: give a higher workload.rate, or a longer duration_s")
    arrived, lengths = (np.concatenate([part[i] for part in parts]) for i in range(2))
    if len(arrived) > MOST_ROWS:
        raise ConfigError(f"{len(arrived):,} rows are more than {MOST_ROWS:,}: a lower rate, or a shorter duration_s")
    return _Load(arrived, lengths)


_Made = tuple[Chosen, list[Sequence[RuntimeModel]], list[str], Journeys, Ints, tuple[str, ...]]


def _of_records(config: ScenarioConfig, load: _Load, choose: OfRecords) -> _Made:
    cascade = config.cascade
    assert cascade.manifest is not None
    assert cascade.data is not None
    study = read_study(cascade.manifest, cascade.data, cascade.records)
    names = [stage.name for stage in study.cascade.stages]
    given = {stage.name: stage for stage in config.stage}
    for name in given:
        if name not in names:
            raise ConfigError(f"[[stage]] {name}: the cascade has {', '.join(names)}")
    folder = cascade.manifest if cascade.manifest.is_dir() else cascade.manifest.parent
    stages = [
        stage_runtimes(given.get(s.name, StageSection(name=s.name)), config, folder / s.repository)
        for s in study.cascade.stages
    ]
    chosen = choose(study, cascade, seed=config.run.seed)
    of_arlo = chosen
    if any(change.reach != 1 for change in config.change):
        of_arlo = from_records(study, dataclasses.replace(cascade, scheme="arlo"), seed=config.run.seed)
    by_workload = cascade.lengths == "workload"
    parts, test = [], study.of(TEST)
    lengths = np.array(load.lengths, np.int64)
    rng = np.random.default_rng(config.run.seed)
    for change, rows in _phases(config, load):
        weights = _weights(test, of_arlo, change)
        if by_workload:
            if weights is not None:
                raise ConfigError("change.reach draws records by confidence: cascade.lengths must be records with it")
            picks = draw_by_length(test.length, lengths[rows], rng)
        else:
            picks = rng.choice(len(test.row), len(lengths[rows]), p=weights)
        said = rows_of(test, chosen, temperature=change.temperature)
        tokens = None if said.tokens is None else said.tokens[picks]
        if by_workload and tokens is not None:  # the same share of a row of another length
            tokens = np.ceil(tokens * (lengths[rows] / test.length[picks])[:, None]).astype(np.int32)
        parts.append(Journeys(
            confidence=said.confidence[picks], correct=said.correct[picks], tokens=tokens,
            agrees=None if said.agrees is None else said.agrees[picks],
        ))  # fmt: skip
        if not by_workload:
            lengths[rows] = test.length[picks]
    drawn = "by the lengths of the workload" if by_workload else "with their own lengths"
    notes = (f"rows are drawn from {int((study.split == TEST).sum()):,} records of the test split, {drawn}",)
    return chosen, stages, names, _joined(parts), lengths, notes


def _of_population(config: ScenarioConfig, load: _Load, choose: OfPopulation) -> _Made:
    cascade = config.cascade
    if cascade.lengths == "records":
        raise ConfigError("cascade.lengths is of records: a population has the lengths of the workload")
    names = [stage.name for stage in config.stage]
    stages = [stage_runtimes(stage, config, None) for stage in config.stage]
    seed, lengths = config.run.seed, np.array(load.lengths, np.int64)
    some = np.resize(lengths, SELECTED)
    select = draw(config.stage, SELECTED, alpha=cascade.alpha, seed=seed + 1)
    ms = np.stack([_times(stages[s], some * select.kept[:, s]) for s in range(len(names))], axis=1)
    chosen = choose(select, ms, names, cascade, seed=seed)
    of_arlo = chosen
    if any(change.reach != 1 for change in config.change):
        of_arlo = from_population(select, ms, names, dataclasses.replace(cascade, scheme="arlo"), seed=seed)
    parts = []
    for change, rows in _phases(config, load):
        count = rows.stop - rows.start
        # Rows that are drawn again by weight come from many: few of them twice.
        pool = count if change.reach == 1 else max(count, POOL)
        drawn = draw(config.stage, pool, alpha=cascade.alpha, seed=seed + 1000 + rows.start)
        if change.reach != 1:
            weights = toward_reach(goes_on(of_arlo, drawn.confidence[:, 0], 0), change.reach)
            drawn = drawn.take(np.random.default_rng(seed + rows.start).choice(pool, count, p=weights))
        parts.append(drawn.at(chosen, lengths[rows], temperature=change.temperature))
    notes = (f"rows are drawn from a population; schemes are chosen on {SELECTED:,} others",)
    return chosen, stages, names, _joined(parts), lengths, notes


def _phases(config: ScenarioConfig, load: _Load) -> list[tuple[ChangeSection, slice]]:
    """The settings of each range of rows, in order."""
    changes = sorted(config.change, key=lambda change: change.at_s)
    if not changes or changes[0].at_s > 0:
        changes = [ChangeSection(at_s=0.0), *changes]
    ends = np.searchsorted(load.arrived_ns, [change.at_s * 1e9 for change in changes])
    pairs = zip(changes, ends, [*ends[1:], len(load.arrived_ns)], strict=True)
    return [(change, slice(int(a), int(b))) for change, a, b in pairs if b > a]


def _weights(test: Study, of_arlo: Chosen, change: ChangeSection) -> Floats | None:
    if change.reach == 1:
        return None
    return toward_reach(goes_on(of_arlo, test.said[0].confidence, test.length), change.reach)


def _joined(parts: Sequence[Journeys]) -> Journeys:
    def all_of(get: Callable[[Journeys], NDArray[np.generic] | None]) -> NDArray[np.generic] | None:
        found = [get(part) for part in parts]
        return None if any(each is None for each in found) else np.concatenate(found)  # type: ignore[arg-type]

    return Journeys(
        confidence=np.concatenate([part.confidence for part in parts]),
        correct=np.concatenate([part.correct for part in parts]),
        agrees=all_of(lambda part: part.agrees),  # type: ignore[arg-type]
        tokens=all_of(lambda part: part.tokens),  # type: ignore[arg-type]
    )


def stage_runtimes(stage: StageSection, config: ScenarioConfig, repository: Path | None) -> Sequence[RuntimeModel]:
    """The runtimes of a stage, from one latency, a latency profile, or the measurements of its repository."""
    most = config.cluster.max_batch
    if stage.latency_ms is not None:
        points = ((LONGEST, 1, stage.latency_ms * stage.factor),)
        return (RuntimeModel(name=stage.name, max_length=LONGEST, points=points, max_batch=1),)
    profile = stage.profile or config.cluster.profile
    lengths = stage.max_lengths or config.cluster.max_lengths
    if profile is None:
        assert repository is not None
        found = repository_runtimes(repository, lengths, most)
    else:
        known = load_profile(profile, dynamic=config.cluster.dynamic)
        lengths = lengths or tuple(range(known.step, known.max_length + 1, known.step))
        found = known.static_runtimes(lengths, max_batch=most or 1)
    return [dataclasses.replace(r, points=tuple((n, b, stage.factor * ms) for n, b, ms in r.points)) for r in found]


def repository_runtimes(
    repository: Path, lengths: Sequence[int] = (), max_batch: int | None = None
) -> Sequence[RuntimeModel]:
    """The measured static runtimes of a repository, or its dynamic one if it has none."""
    profile, manifest = load_profile(repository), Manifest.load(repository)
    most = max_batch or max(runtime.max_batch for runtime in manifest.runtimes)
    there = [runtime.max_length for runtime in manifest.runtimes if not runtime.dynamic and runtime.latency]
    if not there:
        return (profile.dynamic_runtime(max_batch=most),)
    return profile.static_runtimes(lengths or there, max_batch=most)


def _times(runtimes: Sequence[RuntimeModel], lengths: Floats) -> Floats:
    """Milliseconds of single rows of these lengths, each on the shortest runtime that takes it."""
    ends = np.asarray([runtime.max_length for runtime in runtimes])
    at = np.minimum(np.searchsorted(ends, np.minimum(lengths, ends[-1])), len(ends) - 1)
    ms = np.asarray([latency_ms(runtime.points, runtime.max_length) for runtime in runtimes])
    return np.asarray(ms[at])
