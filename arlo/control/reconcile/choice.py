"""Chooses the runtimes for the workers: the kind set in [deployment], else the one measured to be quicker. Pure."""

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
from arlo.planning.lengths.holding import Wanted, alike, best, best_together
from arlo.traces.traffic import traffic

Kind = Literal["static", "dynamic", "both", "models"]


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """`static`: allocated by length. `dynamic`: one runtime on every worker, which may be a bundle of static ones.
    `both`: the numbers in [deployment]. `models`: a bundle for each of several models, on separate workers."""

    serve: Kind
    why: str
    what: str  # the runtimes, for people
    manifest: Manifest  # of the runtimes that workers may hold; all of them were measured

    @property
    def text(self) -> str:
        """One line for people."""
        return f"serving {self.what}: {self.why}"


def choose(config: Config, manifest: Manifest) -> Choice:
    """Choose the runtimes to serve, with the reason.

    ConfigError when [deployment] asks for a kind of runtime that the repository lacks, [workers] for less memory than
    the longest needs, or when a runtime to be served was not measured: planning and dispatch depend on its latency.
    """
    if config.dedicated:
        return _on_their_own(config, manifest)
    bundle = _shared(config, manifest) if len(manifest.models) > 1 else _bundle(config, manifest)
    if bundle is not None:
        what = f"{_what(manifest, bundle)}, all on every worker"
        return Choice("dynamic", bundle.why, what, dataclasses.replace(manifest, runtimes=(bundle,)))
    serve, why = _kind(config, manifest)
    static, dynamic = _static(manifest), dynamic_runtime(manifest)
    needed = [*(static if serve != "dynamic" else []), *([dynamic] if dynamic and serve != "static" else [])]
    _check_measured(config, needed)
    what = _levels(static) if serve != "dynamic" else ""
    if dynamic is not None and serve != "static":
        what = f"{what} and {dynamic.name}" if what else f"the dynamic runtime {dynamic.name} on every worker"
    measured = tuple(runtime for runtime in manifest.runtimes if runtime.latency)
    return Choice(serve, why, what, dataclasses.replace(manifest, runtimes=measured))


def _kind(config: Config, manifest: Manifest) -> tuple[Kind, str]:
    """The kind of runtime for one model without a bundle, with the reason."""
    wanted, repository, advice = config.deployment, config.model.repository, manifest.recommendation
    static, dynamic = _static(manifest), dynamic_runtime(manifest)
    if wanted.runtimes == "static" and not static:
        raise ConfigError(f'deployment.runtimes is "static", but {repository} has no static runtime: remove the key')
    if wanted.runtimes == "dynamic" and dynamic is None:
        raise ConfigError(
            f'deployment.runtimes is "dynamic", but {repository} has no dynamic runtime: compile one '
            "(`arlo compile` does unless --no-dynamic is given), or remove the key"
        )
    if dynamic is None:
        return "static", "the repository has no dynamic one"
    if not static:
        return "dynamic", "the repository has no static one"
    if wanted.runtimes == "dynamic":
        return "dynamic", 'deployment.runtimes is "dynamic"'
    if wanted.dynamic:
        return "both", "[deployment] names `dynamic` instances"
    if wanted.instances:
        return "static", "[deployment] has an `allocation`"
    if wanted.runtimes == "static":
        return "static", 'deployment.runtimes is "static"'
    if advice is None:
        nothing = "nothing is recommended: `arlo compile profile REPOSITORY --update` compares them"
        return "static", missing(manifest) or nothing
    return advice.serve, f"{advice.why} ({advice.device})"


def _bundle(config: Config, manifest: Manifest) -> Bundle | None:
    """The static runtimes that every worker holds; None where each worker serves one runtime."""
    wanted, memory_mb = config.deployment, config.workers.memory_mb
    static = _static(manifest)
    if wanted.runtimes == "bundle":
        if not static:
            raise ConfigError(
                f'deployment.runtimes is "bundle", but {config.model.repository} has no static runtime: remove the key'
            )
        _check_measured(config, static)
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
        fits, said = _fitting(config, manifest, static, memory_mb)
        if wanted.runtimes != "bundle" and len(fits) == 1:
            return None  # no two fit together: a runtime per worker, allocated by length
        static, why = fits, f"{why}; {said}"
    return bundle_of(_bundle_name(manifest), static, why=why)


def _inside(config: Config, manifest: Manifest) -> Bundle | None:
    """The plugin's engines, if every worker is a server with the plugin and so holds them already."""
    wanted = config.deployment
    engines = [runtime for runtime in manifest.runtimes if runtime.name in manifest.inside]
    if config.workers.kind != "endpoints" or wanted.runtimes != "recommended" or wanted.instances or not engines:
        return None
    if any(runtime.dynamic for runtime in engines):
        return None  # one runtime for any length: no bundle
    taken, limit = memory_mb(engines), config.workers.memory_mb
    if taken is not None and limit is not None and taken > limit:
        return None  # these servers cannot hold them
    _check_measured(config, engines)
    why = "the repository has a logical model of the plugin, whose servers hold all of them"
    return bundle_of(_bundle_name(manifest), engines, why=why)


def _candidates(config: Config, one: Manifest) -> list[Runtime]:
    """Runtimes that a worker may hold for one of several models: its static ones, or a quicker dynamic one."""
    if config.deployment.lengths is not None:
        try:
            traffic(config.deployment.lengths, max(runtime.max_length for runtime in one.runtimes))
        except ConfigError as error:
            raise ConfigError(f"lengths of model {config.model.name or one.model!r}: {error}") from None
    runtimes, advice, dynamic = _static(one), one.recommendation, dynamic_runtime(one)
    if dynamic is not None and (not runtimes or (advice is not None and advice.serve == "dynamic")):
        runtimes = [dynamic]
    _check_measured(config, runtimes)
    return runtimes


def _on_their_own(config: Config, manifest: Manifest) -> Choice:
    """A choice for several models on separate workers, each with a bundle."""
    moves = "which move to where they are needed" if config.control.reallocate else "as configured"
    bundles, what, why = [], [], [f"each model has separate workers, {moves}"]
    for model, one in zip(config.models, manifest.models, strict=True):
        alone, said = config.of(model), ""
        runtimes = _candidates(alone, one)
        if config.workers.memory_mb is not None:
            runtimes, said = _fitting(alone, one, runtimes, config.workers.memory_mb)
            why.append(f"{one.model}: {said}")
        bundles.append(shared_bundle(_bundle_name(one), [runtimes], why=said))
        count = f"{model.workers} worker{'s' if model.workers != 1 else ''}"
        what.append(f"{one.model} ({_members(bundles[-1].parts)}) on {count}")
    return Choice("models", "; ".join(why), ", ".join(what), dataclasses.replace(manifest, runtimes=tuple(bundles)))


def _shared(config: Config, manifest: Manifest) -> Bundle:
    """A bundle for several models on the same workers."""
    memory_mb = config.workers.memory_mb
    models = [_candidates(config.of(model), one) for model, one in zip(config.models, manifest.models, strict=True)]
    why = f"{len(models)} models share the workers"
    if memory_mb is not None:
        wanted = [
            _wanted(config.of(model), one, runtimes, model.share)[0]
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
    """Requests by length, with a description for people: the configured ones, else those that the repository was built
    for, else any."""
    wanted, built_for = config.deployment.lengths, manifest.options.get("histogram")
    if wanted is not None:
        expected = traffic(wanted, longest)
        return expected.by_length, expected.text
    if isinstance(built_for, str):
        with contextlib.suppress(ConfigError):  # a file that existed when the model was built
            expected = traffic(built_for, longest)
            return expected.by_length, expected.text
    return alike(longest), "lengths that are not known"


def _wanted(config: Config, manifest: Manifest, runtimes: Sequence[Runtime], share: float = 1.0) -> tuple[Wanted, str]:
    """The input for sharing out memory, and a description of its lengths."""
    counts, over = _expected(config, manifest, max(runtime.max_length for runtime in runtimes))
    return Wanted(list(runtimes), counts, config.model.slo_ms, share), over


def _fitting(
    config: Config, manifest: Manifest, runtimes: Sequence[Runtime], memory_mb: int
) -> tuple[list[Runtime], str]:
    """The runtimes that fit into memory, with the reason, for people."""
    wanted, over = _wanted(config, manifest, runtimes)
    held = best(wanted, memory_mb=memory_mb)
    if len(held.runtimes) == len(runtimes):
        return list(held.runtimes), f"together they take {held.memory_mb} of {memory_mb} MB"
    return list(held.runtimes), (
        f"of {len(runtimes)} runtimes these fit best, {held.memory_mb} of {memory_mb} MB: over {over}, a row costs "
        f"{held.row_us / 1000:.3g} ms of a worker, with all {held.all_us / 1000:.3g} ms"
    )


def _static(manifest: Manifest) -> list[Runtime]:
    return [runtime for runtime in manifest.runtimes if not runtime.dynamic]


def _check_measured(config: Config, runtimes: Sequence[Runtime]) -> None:
    if names := [runtime.name for runtime in runtimes if not runtime.latency]:
        raise ConfigError(
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
