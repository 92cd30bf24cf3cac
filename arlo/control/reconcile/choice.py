"""Which kind of runtime the workers serve: what [deployment] says, else what was measured to be quicker. Pure."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Literal

from arlo.catalog.bundle import Bundle, bundle_of, memory_mb, shared_bundle
from arlo.catalog.manifest import Manifest, Runtime
from arlo.config import Config
from arlo.errors import ConfigError
from arlo.planning.lengths.advice import dynamic_runtime, missing
from arlo.planning.lengths.holding import Holding, Wanted, alike, best, best_together
from arlo.traces.traffic import traffic


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """`static`: allocated by length. `dynamic`: one runtime on every worker, which may be a bundle of static ones.
    `both`: as [deployment] counts them. `models`: a bundle for each of several models, on workers of its own."""

    serve: Literal["static", "dynamic", "both", "models"]
    why: str
    what: str  # the runtimes, for people

    @property
    def text(self) -> str:
        """One line for people."""
        return f"serving {self.what}: {self.why}"


def choose(config: Config, manifest: Manifest) -> Choice:
    """What to serve, and why. ConfigError when [deployment] asks for a kind of runtime that the repository lacks, or
    [workers] for less memory than the longest takes."""
    wanted, repository = config.deployment, config.model.repository
    if config.dedicated:
        bundles = servable(config, manifest).runtimes
        what = [
            f"{one.model} ({_members(held.parts)}) on {model.workers} worker{'s' if model.workers != 1 else ''}"
            for one, held, model in zip(manifest.models, bundles, config.models, strict=True)
        ]
        moves = "which move to where they are needed" if config.control.reallocate else "as configured"
        reasons = [f"each model has workers of its own, {moves}"]
        for one, held in zip(manifest.models, bundles, strict=True):
            if isinstance(held, Bundle) and held.why:
                reasons.append(f"{one.model}: {held.why}")
        return Choice("models", "; ".join(reasons), ", ".join(what))
    static = [runtime for runtime in manifest.runtimes if not runtime.dynamic]
    dynamic = dynamic_runtime(manifest)
    bundle = dynamic if isinstance(dynamic, Bundle) else _bundle(config, manifest)
    if bundle is not None:
        return Choice("dynamic", bundle.why, f"{_what(manifest, bundle)}, all on every worker")
    if wanted.runtimes == "static" and not static:
        raise ConfigError(f'deployment.runtimes is "static", but {repository} has no static runtime: remove the key')
    if dynamic is None:
        if wanted.runtimes == "dynamic":
            raise ConfigError(
                f'deployment.runtimes is "dynamic", but {repository} has no dynamic runtime: compile one '
                "(`arlo compile` does unless --no-dynamic is given), or remove the key"
            )
        return Choice("static", "the repository has no dynamic one", _levels(static))
    everywhere = f"the dynamic runtime {dynamic.name} on every worker"
    if not static:
        return Choice("dynamic", "the repository has no static one", everywhere)
    if wanted.runtimes == "dynamic":
        return Choice("dynamic", 'deployment.runtimes is "dynamic"', everywhere)
    if wanted.dynamic:
        return Choice("both", "[deployment] names `dynamic` instances", f"{_levels(static)} and {dynamic.name}")
    if wanted.instances:
        return Choice("static", "[deployment] has an `allocation`", _levels(static))
    if wanted.runtimes == "static":
        return Choice("static", 'deployment.runtimes is "static"', _levels(static))
    advice = manifest.recommendation
    if advice is None:
        why = missing(manifest) or "nothing is recommended: `arlo compile profile REPOSITORY --update` compares them"
        return Choice("static", why, _levels(static))
    return Choice(
        advice.serve, f"{advice.why} ({advice.device})", everywhere if advice.serve == "dynamic" else _levels(static)
    )


def servable(config: Config, manifest: Manifest) -> Manifest:
    """The manifest without runtimes whose latency was not measured, which are none of those that are served.

    ConfigError when one that would be served was not measured: planning and dispatch go by its latency.
    """
    if config.dedicated:
        if isinstance(manifest.runtimes[0], Bundle):
            return manifest
        return dataclasses.replace(manifest, runtimes=_own(config, manifest))
    bundle = _bundle(config, manifest)
    if bundle is not None:
        return dataclasses.replace(manifest, runtimes=(bundle,))
    serve = choose(config, manifest).serve
    dynamic = dynamic_runtime(manifest)
    unmeasured = [runtime for runtime in manifest.runtimes if not runtime.latency]
    needed = [
        runtime.name
        for runtime in unmeasured
        if (serve != "static" and runtime is dynamic) or (serve != "dynamic" and not runtime.dynamic)
    ]
    if needed:
        raise _unmeasured(config, needed)
    return dataclasses.replace(manifest, runtimes=tuple(runtime for runtime in manifest.runtimes if runtime.latency))


def _bundle(config: Config, manifest: Manifest) -> Bundle | None:
    """The static runtimes that every worker holds; None where each worker serves one runtime."""
    if len(manifest.models) > 1:
        return _shared(config, manifest)
    wanted, memory_mb = config.deployment, config.workers.memory_mb
    static = [runtime for runtime in manifest.runtimes if not runtime.dynamic]
    if wanted.runtimes == "bundle":
        if not static:
            raise ConfigError(
                f'deployment.runtimes is "bundle", but {config.model.repository} has no static runtime: remove the key'
            )
        unmeasured = [runtime.name for runtime in static if not runtime.latency]
        if unmeasured:
            raise _unmeasured(config, unmeasured)
        why = 'deployment.runtimes is "bundle"'
    elif (inside := _inside(config, manifest)) is not None:
        return inside
    else:
        advice = manifest.recommendation
        pays = advice.serve == "static" if advice is not None else dynamic_runtime(manifest) is None
        known = all(runtime.latency and runtime.memory_mb is not None for runtime in static)
        if wanted.runtimes != "recommended" or wanted.instances or memory_mb is None or len(static) < 2:
            return None
        if not pays or not known:
            return None
        why = "workers.memory_mb is known, and rows of one length go together on any worker"
    if memory_mb is not None:
        longest = max(runtime.max_length for runtime in static)
        counts, over = _expected(config, manifest, longest)
        held = best(Wanted(static, counts, config.model.slo_ms), memory_mb=memory_mb)
        if wanted.runtimes != "bundle" and len(held.runtimes) == 1:
            return None  # nothing goes together: a runtime per worker, allocated by length
        why += f"; {_held(held, len(static), memory_mb, over)}"
        static = list(held.runtimes)
    return bundle_of(_bundle_name(manifest), static, why=why)


def _inside(config: Config, manifest: Manifest) -> Bundle | None:
    """The engines of the plugin, where every worker is a server that has it and so holds them already."""
    wanted = config.deployment
    engines = [runtime for runtime in manifest.runtimes if runtime.name in manifest.inside]
    if config.workers.kind != "endpoints" or wanted.runtimes != "recommended" or wanted.instances or not engines:
        return None
    if any(runtime.dynamic for runtime in engines):
        return None  # one of any length: no bundle
    taken, limit = memory_mb(engines), config.workers.memory_mb
    if taken is not None and limit is not None and taken > limit:
        return None  # then these servers cannot hold them
    unmeasured = [runtime.name for runtime in engines if not runtime.latency]
    if unmeasured:
        raise _unmeasured(config, unmeasured)
    why = "the repository has a logical model of the plugin, whose servers hold all of them"
    return bundle_of(_bundle_name(manifest), engines, why=why)


def _candidates(config: Config, one: Manifest) -> list[Runtime]:
    """What a worker may hold of one of several models: its static runtimes, or a dynamic one that is quicker."""
    if config.deployment.lengths is not None:
        try:
            traffic(config.deployment.lengths, max(runtime.max_length for runtime in one.runtimes))
        except ConfigError as error:
            raise ConfigError(f"lengths of model {config.model.name or one.model!r}: {error}") from None
    runtimes = [runtime for runtime in one.runtimes if not runtime.dynamic]
    advice, dynamic = one.recommendation, dynamic_runtime(one)
    if dynamic is not None and (not runtimes or (advice is not None and advice.serve == "dynamic")):
        runtimes = [dynamic]
    unmeasured = [runtime.name for runtime in runtimes if not runtime.latency]
    if unmeasured:
        raise _unmeasured(config, unmeasured)
    return runtimes


def _own(config: Config, manifest: Manifest) -> tuple[Bundle, ...]:
    """Several models on workers of their own: what a worker of each holds."""
    memory_mb, bundles = config.workers.memory_mb, []
    for model, one in zip(config.models, manifest.models, strict=True):
        alone = config.of(model)
        runtimes, why = _candidates(alone, one), ""
        if memory_mb is not None:
            longest = max(runtime.max_length for runtime in runtimes)
            counts, over = _expected(alone, one, longest)
            held = best(Wanted(runtimes, counts, model.slo_ms), memory_mb=memory_mb)
            runtimes, why = list(held.runtimes), _held(held, len(runtimes), memory_mb, over)
        bundles.append(shared_bundle(_bundle_name(one), [runtimes], why=why))
    return tuple(bundles)


def _shared(config: Config, manifest: Manifest) -> Bundle:
    """Several models on the same workers."""
    memory_mb = config.workers.memory_mb
    pairs = zip(config.models, manifest.models, strict=True)
    models = [_candidates(config.of(model), one) for model, one in pairs]
    why = f"{len(models)} models share the workers"
    if memory_mb is not None:
        wanted = [
            Wanted(
                runtimes,
                _expected(config.of(model), one, max(runtime.max_length for runtime in runtimes))[0],
                model.slo_ms,
                model.share,
            )
            for runtimes, model, one in zip(models, config.models, manifest.models, strict=True)
        ]
        held = best_together(wanted, memory_mb=memory_mb)
        taken, all_of_them = sum(each.memory_mb for each in held), sum(len(runtimes) for runtimes in models)
        chosen = sum(len(each.runtimes) for each in held)
        if chosen == all_of_them:
            why += f", {taken} of {memory_mb} MB"
        else:
            dearer = ", ".join(
                f"{model.name} {each.row_us / each.all_us:.3g}"
                for model, each in zip(config.models, held, strict=True)
                if each.all_us
            )
            why += (
                f"; of {all_of_them} runtimes these {chosen} fit best, {taken} of {memory_mb} MB: a row costs so many "
                f"times what it would with all of them: {dearer}"
            )
        models = [list(each.runtimes) for each in held]
    return shared_bundle(_bundle_name(manifest), models, why=why)


def _bundle_name(manifest: Manifest) -> str:
    names = {runtime.name for runtime in manifest.runtimes}
    name = f"{manifest.model}_bundle"
    while name in names:
        name += "_"
    return name


def _expected(config: Config, manifest: Manifest, longest: int) -> tuple[dict[int, int], str]:
    """Requests by length, and what they are, for people: as configured, else those that the repository was built for,
    else any."""
    wanted, built_for = config.deployment.lengths, manifest.options.get("histogram")
    if wanted is not None:
        expected = traffic(wanted, longest)
        return expected.by_length, expected.text
    if isinstance(built_for, str):
        with contextlib.suppress(ConfigError):  # a file that was there when the model was built
            expected = traffic(built_for, longest)
            return expected.by_length, expected.text
    return alike(longest), "lengths that are not known"


def _held(held: Holding, all_of_them: int, memory_mb: int, over: str) -> str:
    """What memory makes of a bundle, for people."""
    if len(held.runtimes) == all_of_them:
        return f"together they take {held.memory_mb} of {memory_mb} MB"
    return (
        f"of {all_of_them} runtimes these fit best, {held.memory_mb} of {memory_mb} MB: over {over}, a row costs "
        f"{held.row_us / 1000:.3g} ms of a worker, with all {held.all_us / 1000:.3g} ms"
    )


def _unmeasured(config: Config, names: list[str]) -> ConfigError:
    return ConfigError(
        f"no latency of {', '.join(names)} was measured, as no device ran it when it was built: run "
        f"`arlo compile profile {config.model.repository} --update` on this machine first"
    )


def _what(manifest: Manifest, bundle: Bundle) -> str:
    if len(manifest.models) == 1:
        return _levels(bundle.members)
    parts = []
    for one in manifest.models:
        members = [runtime for runtime in bundle.members if manifest.of(runtime) is one]
        parts.append(f"{one.model} ({_members(members)})")
    return " and ".join(parts)


def _members(members: Sequence[Runtime]) -> str:
    return f"any length up to {members[0].max_length} tokens" if members[0].dynamic else _levels(members)


def _levels(static: Sequence[Runtime]) -> str:
    lengths = sorted({runtime.max_length for runtime in static})
    if len(lengths) == 1:
        return f"the static runtime for {lengths[0]} tokens"
    return f"static runtimes for {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} tokens"
