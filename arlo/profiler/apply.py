"""Replaces the latencies of a manifest with a latency profile. Pure."""

from __future__ import annotations

import dataclasses

from arlo.catalog.manifest import Manifest, Runtime
from arlo.errors import ConfigError
from arlo.profiler.format import LatencyProfile, RuntimeProfile, runtime_hash


def with_profile(manifest: Manifest, profile: LatencyProfile, *, partial: bool = False) -> Manifest:
    """The manifest with the measured means as its latencies, their device, and the load times.

    ConfigError when the profile is of another model or build, or lacks a runtime; with `partial`, runtimes that it
    lacks keep the latencies that they have. Runtimes of the profile that the manifest lacks are left out.

    The old recommendation is dropped, as it was for other latencies; arlo.planning.lengths.advice makes the new one.
    """
    if profile.model != manifest.model:
        raise ConfigError(
            f"the latency profile is of model {profile.model!r}, but the repository has {manifest.model!r}: name the "
            "right profile, or write one with `arlo compile profile`"
        )
    runtimes = []
    for runtime in manifest.runtimes:
        measured = profile.runtime(runtime.name)
        if measured is None or not measured.points:
            if not partial:
                raise ConfigError(
                    f"the latency profile has no points for runtime {runtime.name}: run `arlo compile profile` again "
                    "with the same --out, it measures what is missing"
                )
            runtimes.append(runtime)
            continue
        runtimes.append(_apply(runtime, measured, profile.device))
    return dataclasses.replace(manifest, runtimes=tuple(runtimes), recommendation=None)


def _apply(runtime: Runtime, measured: RuntimeProfile, device: str) -> Runtime:
    if measured.hash != runtime_hash(runtime):
        raise ConfigError(
            f"the latency profile is of another build of runtime {runtime.name}: measure this one with `arlo "
            "compile profile`"
        )
    if not any(point.length == runtime.max_length for point in measured.points):
        raise ConfigError(
            f"the latency profile of runtime {runtime.name} has no point at its max_length {runtime.max_length}: run "
            "`arlo compile profile` again with the same --out, it measures what is missing"
        )
    load_ms = runtime.load_ms if measured.load_ms is None else measured.load_ms
    return dataclasses.replace(runtime, latency=measured.latency, device=device, load_ms=load_ms)
