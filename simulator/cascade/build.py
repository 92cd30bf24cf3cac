"""From a cascade.json and the texts of its records to a simulation: the stages' runtimes, the rows, the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from arlo.cascade.study import Study
from arlo.catalog.manifest import Manifest
from arlo.errors import ConfigError
from arlo.simulator.cascade.rows import Chosen, alone, read_study, rows_of, whole
from arlo.simulator.cascade.served import ServedCascade, scenario_of
from arlo.simulator.profiles import load_profile
from arlo.simulator.scenario.build import dispatch_of, fields_of
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.scenario import Dispatch, RuntimeModel, Scenario, Workload

DEFAULT_SLO_MS = 100.0
TEST = 2  # the split whose rows arrive


def at_point(study: Study, point: str | None) -> Chosen:
    """An operating point of the cascade; `first` or `last`: one stage alone, as clients ask for it."""
    if point in ("first", "last"):
        return alone(0 if point == "first" else study.stages - 1)
    return whole(range(study.stages), study.cascade.point(point).all_rules)


def scenario_from(
    config: ScenarioConfig,
    manifest: Path,
    workload: Workload,
    choose: Callable[[Study, str | None], Chosen] = at_point,
) -> Scenario:
    """The test split's rows, one after the other and again. `choose`: stages and rules, by name. ConfigError for
    conflicting settings."""
    cluster, instances = config.cluster, config.allocation.instances
    if cluster.texts is None:
        raise ConfigError(f"cluster.texts is needed with {manifest.name}: the texts of its records")
    if config.scaling.kind != "none":
        raise ConfigError("scaling.kind does not go with a cascade: its workers stay")
    study = read_study(manifest, cluster.texts)
    chosen = choose(study, config.dispatch.point)
    stages = [study.cascade.stages[s] for s in chosen.stages]
    if instances and len(instances) != study.stages:
        raise ConfigError(f"allocation.instances needs one number for each of the {study.stages} stages")
    folder = manifest if manifest.is_dir() else manifest.parent
    energy = [stage.energy_mj for stage in stages]
    return scenario_of(
        [repository_runtimes(folder / stage.repository) for stage in stages],
        chosen.rules,
        rows_of(study.of(TEST), chosen),
        workload,
        workers=instances if instances and len(stages) == study.stages else (cluster.workers,),
        names=[stage.name for stage in stages],
        served=ServedCascade(
            auto_price=config.dispatch.price == "auto" and chosen.rules is not None,
            energy=energy if all(any(rows == 1 for _, rows, _ in each) for each in energy) else (),
        ),
        slo_ms=DEFAULT_SLO_MS if cluster.slo_ms is None else cluster.slo_ms,
        timeout_ms=cluster.timeout_ms,
        dispatch=dispatch_of(config, Dispatch(batching="deadline")),
        name=manifest.stem,
        **{name: value for name, value in fields_of(config).items() if name != "workers"},
    )


def repository_runtimes(repository: Path) -> Sequence[RuntimeModel]:
    """The measured static runtimes of a repository, or its dynamic one if it has none."""
    profile, manifest = load_profile(repository), Manifest.load(repository)
    most = max(runtime.max_batch for runtime in manifest.runtimes)
    there = [runtime.max_length for runtime in manifest.runtimes if not runtime.dynamic and runtime.latency]
    return profile.static_runtimes(there, max_batch=most) if there else (profile.dynamic_runtime(max_batch=most),)
