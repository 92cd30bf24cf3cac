"""The schemes that the paper compares (section 5, Table 1), as configurations of the same parts.

    pieces = scheme("arlo", load_profile("bert-base"), workers=10)
    scenario = pieces.scenario(workload, name="stable")

    st      one static runtime of the longest length, every request padded to it; least loaded instance
    dt      one dynamic-shape runtime; least loaded instance
    infaas  all variants, as many instances of each; bin packing over the instances that fit
    paper   Arlo as in the paper: Algorithm 1, and every 120 s the allocation that minimises Eq. 1
    arlo    Arlo as shipped: late binding, and an allocation that counts waiting

Every field can be set; docs/profiles.md separates the paper's values from our choices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

from arlo.config.keeping import ControlConfig
from arlo.config.load import nearest
from arlo.config.model import DispatchConfig
from arlo.errors import ConfigError
from arlo.planning.placement.replacement import COVER_AFTER
from arlo.simulator.profiles import Profile
from arlo.simulator.scenario.scenario import Allocate, AllocationKind, Dispatch, RuntimeModel, Scale, Scenario, Workload

SCHEMES = {"st": "ST", "dt": "DT", "infaas": "INFaaS", "paper": "Arlo (paper)", "arlo": "Arlo (shipped)"}
_POLICY = {"st": "uniform", "dt": "uniform", "infaas": "infaas", "paper": "rs", "arlo": "late"}

_CONTROL, _GRACE_S = ControlConfig(), DispatchConfig().unavailable_grace_ms / 1000
# The defaults of `arlo serve`, except for its plans between two periods, which `shift` enables.
SHIPPED = Allocate(
    min_gain=_CONTROL.min_gain,
    make_before_break=_CONTROL.make_before_break,
    max_unavailable=_CONTROL.max_unavailable,
    max_moving=_CONTROL.max_moving,
    cover_after_s=COVER_AFTER * _GRACE_S,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The pieces of a scenario that a scheme decides."""

    name: str
    title: str  # as in plots
    profile: Profile
    workers: int
    runtimes: tuple[RuntimeModel, ...]  # ascending max_length
    dispatch: Dispatch
    allocate: Allocate
    scale: Scale

    def scenario(self, workload: Workload, **fields: Any) -> Scenario:
        """A scenario with these pieces; `fields` are Scenario's own (name, slo_ms, seed, ...), and replace them."""
        pieces: dict[str, Any] = {
            "name": self.title,
            "workload": workload,
            "runtimes": self.runtimes,
            "workers": self.workers,
            "slo_ms": self.profile.slo_ms,
            "dispatch": self.dispatch,
            "allocate": self.allocate,
            "scale": self.scale,
        }
        unknown = set(fields) - {field.name for field in dataclasses.fields(Scenario)}
        if unknown:
            name = min(unknown)
            known = [field.name for field in dataclasses.fields(Scenario)]
            raise ConfigError(f"a scenario has no field {name!r}{nearest(name, known)}")
        return Scenario(**{**pieces, **fields})


def scheme(
    name: str,
    profile: Profile,
    *,
    workers: int,
    max_lengths: Sequence[int] | None = None,
    max_batch: int = 1,
    policy: str | Dispatch | None = None,
    allocation: AllocationKind | Sequence[int] | Allocate | None = None,
    objective: str | None = None,
    scaling: bool | Scale = False,
) -> Scheme:
    """The pieces of a scheme of SCHEMES. ConfigError for settings in conflict.

    `max_lengths`: of the static runtimes (default: multiples of the profile's step; `st` has the longest one only, `dt`
    a runtime for all). `policy`: of dispatch, by name or whole. `allocation`: a kind of Allocate, instances by runtime,
    or a whole Allocate. `objective`: of the periodic, global or oracle allocation. `scaling`: True for
    the scheme's own, False for a fixed number of workers, or a Scale. infaas puts as many requests on an instance as it
    executes at a time (max_batch) before it takes the next one.
    """
    if name not in SCHEMES:
        raise ConfigError(f"there is no scheme {name!r}{nearest(name, SCHEMES)}")
    if workers < 1:
        raise ConfigError(f"a cluster has at least 1 worker, not {workers}")
    runtimes = _runtimes(name, profile, max_lengths, max_batch)
    if name == "infaas":
        runtimes = tuple(dataclasses.replace(runtime, capacity=max_batch) for runtime in runtimes)
    return Scheme(
        name=name,
        title=SCHEMES[name],
        profile=profile,
        workers=workers,
        runtimes=runtimes,
        dispatch=policy if isinstance(policy, Dispatch) else Dispatch(policy=policy or _POLICY[name]),
        allocate=_allocate(name, runtimes=runtimes, workers=workers, allocation=allocation, objective=objective),
        scale=_scale(name, scaling),
    )


def max_lengths(n: int, longest: int = 512) -> tuple[int, ...]:
    """Maximum lengths of n runtimes in steps of longest / n, as in Fig. 11: 2 gives 256 and 512."""
    if not 1 <= n <= longest:
        raise ConfigError(f"the number of runtimes is 1 to {longest}, not {n}")
    return tuple(round(longest * i / n) for i in range(1, n + 1))


def _runtimes(name: str, profile: Profile, lengths: Sequence[int] | None, max_batch: int) -> tuple[RuntimeModel, ...]:
    longest = max(lengths) if lengths else profile.max_length
    if name == "dt":
        return (profile.dynamic_runtime(longest, max_batch=max_batch),)
    if name == "st":
        return (profile.static_runtime(longest, max_batch=max_batch),)
    steps = range(profile.step, profile.max_length + 1, profile.step)
    return profile.static_runtimes(lengths or {*steps, profile.max_length}, max_batch=max_batch)


def _allocate(
    name: str,
    *,
    runtimes: tuple[RuntimeModel, ...],
    workers: int,
    allocation: AllocationKind | Sequence[int] | Allocate | None,
    objective: str | None,
) -> Allocate:
    own = {"paper": "paper", "arlo": "queueing"}.get(name, "queueing")
    if isinstance(allocation, Allocate):
        if objective is not None:
            raise ConfigError("give the objective inside the Allocate")
        return allocation
    if allocation is None:
        allocation = "periodic" if name in ("paper", "arlo") else "even"
    if isinstance(allocation, str):
        kinds = get_args(AllocationKind)
        if allocation not in kinds:
            raise ConfigError(f"there is no allocation {allocation!r}{nearest(allocation, kinds)}")
        if allocation == "fixed":
            raise ConfigError("a fixed allocation is given by its numbers: allocation=(instances per runtime)")
        kind = cast(AllocationKind, allocation)
        starts: dict[str, Literal["even", "global"]] = {"even": "even", "global": "global"}
        return dataclasses.replace(
            SHIPPED if name == "arlo" else Allocate(),
            kind=kind,
            start=starts.get(kind, "first"),
            objective=objective or own,
        )
    instances = tuple(int(n) for n in allocation)
    if len(instances) != len(runtimes) or min(instances) < 0 or sum(instances) != workers:
        raise ConfigError(
            f"an allocation has one number for each of the {len(runtimes)} runtimes, {workers} in all, not {instances}"
        )
    return Allocate(kind="fixed", start=instances, objective=objective or own)


def _scale(name: str, scaling: bool | Scale) -> Scale:
    if isinstance(scaling, Scale):
        return scaling
    if not scaling:
        return Scale()
    if name in ("paper", "arlo"):
        # Section 4: a new worker gets the longest runtime. What ships plans at once for it.
        return Scale(kind="target", replan=name == "arlo")
    # INFaaS's heuristics (section 5): it adds a replica to the variant that lacks one; ST and DT have one variant.
    return Scale(kind="headroom", new_runtime="least_headroom" if name == "infaas" else "longest")
