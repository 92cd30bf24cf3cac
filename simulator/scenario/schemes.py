"""The schemes that the paper compares (section 5, Table 1), as configurations of the same parts.

    fields = scheme("arlo")
    scenario = Scenario(runtimes=runtimes_of("arlo", load_profile("bert-base")), workers=10, ..., **fields)

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
from typing import Any, Literal

from arlo.config.keeping import ControlConfig
from arlo.config.load import nearest
from arlo.config.model import DispatchConfig
from arlo.errors import ConfigError
from arlo.planning.placement.replacement import COVER_AFTER
from arlo.simulator.profiles import Profile
from arlo.simulator.scenario.scenario import Allocate, AllocationKind, Dispatch, RuntimeModel, Scale

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


def scheme(
    name: str,
    *,
    policy: str | None = None,
    kind: AllocationKind | None = None,
    instances: tuple[int, ...] = (),
    objective: str | None = None,
    scaling: bool = False,
) -> dict[str, Any]:
    """The fields of Scenario that a scheme of SCHEMES decides; a policy, allocation or objective that is given replaces
    its own. `scaling`: its own way to scale, instead of a fixed number of workers."""
    if name not in SCHEMES:
        raise ConfigError(f"there is no scheme {name!r}{nearest(name, SCHEMES)}")
    ours = name in ("paper", "arlo")
    kind = kind or ("fixed" if instances else "periodic" if ours else "even")
    starts: dict[str, Literal["even", "global"]] = {"even": "even", "global": "global"}
    scale = Scale()
    if scaling and ours:
        # Section 4: a new worker gets the longest runtime. What ships plans at once for it.
        scale = Scale(kind="target", replan=name == "arlo")
    elif scaling:
        # INFaaS's heuristics (section 5): it adds a replica to the variant that lacks one; ST and DT have one variant.
        scale = Scale(kind="headroom", new_runtime="least_headroom" if name == "infaas" else "longest")
    return {
        "dispatch": Dispatch(policy=policy or _POLICY[name]),
        "allocate": dataclasses.replace(
            SHIPPED if name == "arlo" else Allocate(),
            kind=kind,
            start=instances or starts.get(kind, "first"),
            objective=objective or ("paper" if name == "paper" else "queueing"),
        ),
        "scale": scale,
    }


def runtimes_of(
    name: str, profile: Profile, lengths: Sequence[int] = (), max_batch: int = 1
) -> tuple[RuntimeModel, ...]:
    """The runtimes of a scheme, ascending: `lengths`, by default multiples of the profile's step. `st` has the longest
    one only, `dt` a dynamic one; infaas puts as many requests on an instance as it executes at a time before it takes
    the next one."""
    longest = max(lengths, default=profile.max_length)
    if name == "dt":
        return (profile.dynamic_runtime(longest, max_batch=max_batch),)
    if name == "st":
        return (profile.static_runtime(longest, max_batch=max_batch),)
    steps = range(profile.step, profile.max_length + 1, profile.step)
    found = profile.static_runtimes(lengths or {*steps, profile.max_length}, max_batch=max_batch)
    return tuple(dataclasses.replace(each, capacity=max_batch) for each in found) if name == "infaas" else found
