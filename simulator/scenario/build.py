"""From a scenario file to a Scenario: the workload, the runtimes, and the settings that the scheme leaves open."""

from __future__ import annotations

import dataclasses
from typing import Any

from arlo.errors import ConfigError
from arlo.simulator.profiles import Profile, load_profile
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.merged import MergedWorkload
from arlo.simulator.scenario.scenario import (
    Allocate,
    Dispatch,
    Fault,
    RuntimeModel,
    Scale,
    Scenario,
    SharedModel,
    Workload,
)
from arlo.simulator.scenario.schemes import runtimes_of, scheme
from arlo.simulator.scenario.sections import DEFAULT_DURATION_S, ClusterSection, RuntimeSection, WorkloadSection
from arlo.traces import make_workload

DEFAULT_PROFILE = "bert-base"
DEFAULT_SLO_MS = 150.0
DEFAULT_ARRIVALS = "twitter-bursty"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A scenario, and notes for readers of its results."""

    scenario: Scenario
    latencies: str  # where they come from
    notes: tuple[str, ...] = ()


def build(config: ScenarioConfig, *, name: str = "", record: bool = False) -> Built:
    """Build the scenario. ConfigError names settings in conflict."""
    if config.cluster.serves is not None:
        from arlo.simulator.scenario import served

        built = Built(scenario=served.scenario_of(config), latencies=config.cluster.serves.name)
    else:
        built = _of_several_models(config) if config.model else _of_one_model(config)
    title = name or config.run.name or built.scenario.name
    return dataclasses.replace(built, scenario=dataclasses.replace(built.scenario, name=title, record=record))


def _of_one_model(config: ScenarioConfig) -> Built:
    cluster, batching, allocation = config.cluster, config.dispatch.batching, config.allocation
    if batching == "fifo":
        cluster = dataclasses.replace(cluster, scheme="dt", dynamic=cluster.dynamic or "none")
    if batching == "one":
        cluster = dataclasses.replace(cluster, max_batch=1)
    workload = workload_of(config.workload, config.run.seed)
    if config.runtime:
        runtimes, slo_ms, latencies = _given_runtimes(config.runtime, cluster), DEFAULT_SLO_MS, "given"
    else:
        profile = load_profile(cluster.profile or DEFAULT_PROFILE, dynamic=cluster.dynamic)
        runtimes, slo_ms = _of_profile(profile, cluster), profile.slo_ms
        latencies = f"{profile.name} ({profile.kind}): {profile.source}"
        if any(runtime.dynamic for runtime in runtimes) and profile.dynamic_source:
            latencies += f" {profile.dynamic_source}"
    if allocation.instances and len(allocation.instances) != len(runtimes):
        raise ConfigError(
            f"allocation.instances needs one number for each of the {len(runtimes)} runtimes, not "
            f"{len(allocation.instances)}"
        )
    own = scheme(
        cluster.scheme,
        kind=allocation.kind,
        instances=allocation.instances,
        objective=allocation.objective,
        scaling=config.scaling.kind == "scheme",
    )
    scenario = Scenario(
        name=cluster.scheme,
        workload=workload,
        runtimes=runtimes,
        slo_ms=cluster.slo_ms if cluster.slo_ms is not None else slo_ms,
        dispatch=dispatch_of(config, own["dispatch"]),
        allocate=allocate_of(config, own["allocate"]),
        scale=scale_of(config, own["scale"]),
        bundle=cluster.bundle,
        timeout_ms=cluster.timeout_ms,
        bulk_share=config.workload.bulk_share,
        **fields_of(config),
    )
    return Built(scenario=scenario, latencies=latencies, notes=tuple(_too_long(config, workload, runtimes)))


def _of_profile(profile: Profile, cluster: ClusterSection) -> tuple[RuntimeModel, ...]:
    if cluster.scheme != "dt" and not profile.static:
        raise ConfigError(f"the latency profile {profile.name} has dynamic runtimes only: the scheme dt takes them")
    if cluster.scheme == "dt" and not profile.dynamic:
        raise ConfigError(
            f"the latency profile {profile.name} has no dynamic runtime, and the scheme dt needs one: name a model "
            "of its latency with cluster.dynamic, for example added"
        )
    lengths, max_batch = cluster.max_lengths, cluster.max_batch or 1
    if profile.kind == "measured":  # a repository: only compiled lengths exist
        lengths = lengths or tuple(sorted({length for length, _, _ in profile.static}))
        max_batch = cluster.max_batch or profile.max_batch
    if lengths and lengths[-1] > profile.max_length:
        raise ConfigError(
            f"cluster.max_lengths has {lengths[-1]}, but the latency profile {profile.name} ends at "
            f"{profile.max_length}"
        )
    return runtimes_of(cluster.scheme, profile, lengths, max_batch)


def _of_several_models(config: ScenarioConfig) -> Built:
    each = [build(config.of(model)) for model in config.model]
    scenarios = [built.scenario for built in each]
    models = tuple(
        SharedModel(
            name=section.name,
            runtimes=len(one.runtimes),
            workload=one.workload,
            slo_ms=one.slo_ms,
            timeout_ms=one.timeout_ms,
            share=section.share,
        )
        for section, one in zip(config.model, scenarios, strict=True)
    )
    runtimes = tuple(
        dataclasses.replace(runtime, name=f"{one.name}/{runtime.name}") for one in scenarios for runtime in one.runtimes
    )
    scenario = dataclasses.replace(
        scenarios[0],
        name="+".join(model.name for model in models),
        seed=config.run.seed,
        workload=MergedWorkload(models),
        runtimes=runtimes,
        models=models,
    )
    latencies = "; ".join(dict.fromkeys(built.latencies for built in each))
    notes = tuple(f"{one.name}: {note}" for one, built in zip(scenarios, each, strict=True) for note in built.notes)
    return Built(scenario=scenario, latencies=latencies, notes=notes)


def fields_of(config: ScenarioConfig) -> dict[str, Any]:
    """The fields of Scenario that are alike for all kinds."""
    run, cluster = config.run, config.cluster
    return {
        "workers": cluster.workers,
        "faults": tuple(Fault(**dataclasses.asdict(fault)) for fault in config.fault),
        "overhead_ms": cluster.overhead_ms,
        "hop_out_ms": cluster.hop_ms,
        "hop_back_ms": cluster.hop_ms,
        "noise_cv": cluster.noise,
        "warmup_s": run.warmup_s,
        "seed": run.seed,
    }


def workload_of(section: WorkloadSection, seed: int) -> Workload:
    """The requests of a scenario."""
    settings: dict[str, Any] = {
        field.name: getattr(section, field.name)
        for field in dataclasses.fields(section)
        if getattr(section, field.name) is not None and field.name != "bulk_share"  # drawn as they arrive
    }
    if section.trace is None:
        settings.setdefault("arrivals", DEFAULT_ARRIVALS)
        settings["seed"] = seed
    if section.drawn:
        settings.setdefault("duration_s", DEFAULT_DURATION_S)
    return make_workload(**settings)


def _given_runtimes(sections: tuple[RuntimeSection, ...], cluster: ClusterSection) -> tuple[RuntimeModel, ...]:
    made = tuple(
        RuntimeModel(
            name=f"{'dynamic' if section.dynamic else 'static'}-{section.max_length}",
            max_length=section.max_length,
            points=_points(section.points) or ((section.max_length, 1, float(section.latency_ms or 0)),),
            max_batch=cluster.max_batch or section.max_batch,
            dynamic=section.dynamic,
            truth=_points(section.truth) or None,
        )
        for section in sections
    )
    if cluster.scheme not in ("dt", "st"):
        return made
    found = tuple(runtime for runtime in made if runtime.dynamic == (cluster.scheme == "dt"))
    if not found:
        raise ConfigError(
            "the scheme dt needs a dynamic runtime: give a latency profile (--profile bert-base), or a [[runtime]] "
            "with dynamic = true in a scenario file"
            if cluster.scheme == "dt"
            else "the scheme st needs a runtime that is not dynamic"
        )
    return found[-1:]


def _points(points: tuple[tuple[float, ...], ...]) -> tuple[tuple[int, int, float], ...]:
    return tuple((int(length), int(batch), float(ms)) for length, batch, ms in points)


def dispatch_of(config: ScenarioConfig, own: Dispatch) -> Dispatch:
    """The request scheduler; `own`: the settings that the scheme leaves open."""
    section = config.dispatch
    if section.batching == "fifo":  # the order of arrival is that of late binding where all share one line
        return dataclasses.replace(own, policy=section.policy or "late", batching="fill")
    return dataclasses.replace(own, policy=section.policy or own.policy, batching=section.batching or own.batching)


def allocate_of(config: ScenarioConfig, own: Allocate) -> Allocate:
    """The times of plans and replacements; `own`: the settings that are left out."""
    section = config.allocation
    return dataclasses.replace(
        own,
        period_s=own.period_s if section.period_s is None else section.period_s,
        replacement_s=section.replacement_s,
        shift=section.shift,
    )


def scale_of(config: ScenarioConfig, own: Scale) -> Scale:
    """How the number of workers follows the load; `own`: the scheme's settings."""
    section = config.scaling
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    values["kind"] = own.kind if section.kind == "scheme" else section.kind
    values["replan"] = config.cluster.scheme == "arlo"
    return dataclasses.replace(own, **values)


def _too_long(config: ScenarioConfig, workload: Workload, runtimes: tuple[RuntimeModel, ...]) -> list[str]:
    """Reject explicit lengths that no runtime takes; for other lengths, note that some requests are rejected."""
    longest = max(runtime.max_length for runtime in runtimes)
    trace, lengths = getattr(workload, "trace", None), getattr(workload, "lengths", None)
    if trace is not None:
        share = float((trace.length > longest).mean())
        most = int(trace.length.max())
    elif lengths is not None and lengths.most > longest:
        share, most = float("nan"), int(lengths.most)
    else:
        return []
    spec = config.workload.length or ""
    if share == 1 or (share != share and spec.startswith(("fixed:", "uniform:"))):  # noqa: PLR0124  # NaN
        what = "every request of the trace is" if trace is not None else f"the length {spec} asks for requests that are"
        raise ConfigError(
            f"{what} longer than the longest runtime, {longest} tokens: add a runtime of {most}, or ask for shorter "
            "requests"
        )
    if share == 0:
        return []
    return [f"requests of more than {longest} tokens are rejected, as no runtime takes them (there are up to {most})"]
