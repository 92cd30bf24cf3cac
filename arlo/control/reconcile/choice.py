"""Which kind of runtime the workers serve: what [deployment] says, else what was measured to be quicker. Pure."""

from __future__ import annotations

import dataclasses
from typing import Literal

from arlo.catalog.bundle import Bundle, bundle_of
from arlo.catalog.manifest import Manifest, Runtime
from arlo.config import Config
from arlo.errors import ConfigError
from arlo.planning.lengths.advice import dynamic_runtime, missing


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """`static`: allocated by length. `dynamic`: one runtime on every worker, which may be a bundle of static ones.
    `both`: as [deployment] counts them."""

    serve: Literal["static", "dynamic", "both"]
    why: str
    what: str  # the runtimes, for people

    @property
    def text(self) -> str:
        """One line for people."""
        return f"serving {self.what}: {self.why}"


def choose(config: Config, manifest: Manifest) -> Choice:
    """What to serve, and why. ConfigError when [deployment] asks for a kind of runtime that the repository lacks."""
    wanted, repository = config.deployment, config.model.repository
    static = [runtime for runtime in manifest.runtimes if not runtime.dynamic]
    dynamic = dynamic_runtime(manifest)
    if isinstance(dynamic, Bundle):  # servable() has seen to it
        static = list(dynamic.members)
    if wanted.runtimes == "bundle":
        if not static:
            raise ConfigError(
                f'deployment.runtimes is "bundle", but {repository} has no static runtime: remove the key'
            )
        return Choice("dynamic", 'deployment.runtimes is "bundle"', f"{_levels(static)}, all on every worker")
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
        why = missing(manifest) or "nothing is recommended: `arlo profile REPOSITORY --update` compares them"
        return Choice("static", why, _levels(static))
    return Choice(
        advice.serve, f"{advice.why} ({advice.device})", everywhere if advice.serve == "dynamic" else _levels(static)
    )


def servable(config: Config, manifest: Manifest) -> Manifest:
    """The manifest without runtimes whose latency was not measured, which are none of those that are served.

    ConfigError when one that would be served was not measured: planning and dispatch go by its latency.
    """
    serve = choose(config, manifest).serve
    if config.deployment.runtimes == "bundle":
        manifest = _bundled(config, manifest)
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


def _bundled(config: Config, manifest: Manifest) -> Manifest:
    """The manifest with all static runtimes as one."""
    static = [runtime for runtime in manifest.runtimes if not runtime.dynamic]
    unmeasured = [runtime.name for runtime in static if not runtime.latency]
    if unmeasured:
        raise _unmeasured(config, unmeasured)
    names = {runtime.name for runtime in manifest.runtimes}
    name = f"{manifest.model}_bundle"
    while name in names:
        name += "_"
    return dataclasses.replace(manifest, runtimes=(bundle_of(name, static),))


def _unmeasured(config: Config, names: list[str]) -> ConfigError:
    return ConfigError(
        f"no latency of {', '.join(names)} was measured, as no device ran it when it was built: run "
        f"`arlo profile {config.model.repository} --update` on this machine first"
    )


def _levels(static: list[Runtime]) -> str:
    lengths = sorted({runtime.max_length for runtime in static})
    if len(lengths) == 1:
        return f"the static runtime for {lengths[0]} tokens"
    return f"static runtimes for {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} tokens"
