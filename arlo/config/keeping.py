"""The configuration sections that keep a deployment running: health, control, scaling. See model.py."""

from __future__ import annotations

from typing import Literal

from arlo.config.field import FieldError, option, section

Objective = Literal["queueing", "paper"]
SolverName = Literal["exact", "gurobi"]


@section("health")
class HealthConfig:
    """How the gateway checks instances."""

    interval_ms: int = option(
        default=1000, doc="Between checks of an instance in service.", unit="ms", minimum=10, maximum=3_600_000
    )
    timeout_ms: int = option(default=1000, doc="Of one check.", unit="ms", minimum=10, maximum=3_600_000)
    failures: int = option(
        default=3, doc="Checks in a row that must fail before an instance is ejected.", minimum=1, maximum=1000
    )


@section("control")
class ControlConfig:
    """The runtime scheduler (paper, section 3.3): it keeps the deployment matched to the traffic."""

    reallocate: bool = option(
        default=True,
        doc="Solve for the best number of instances per static runtime every period and move workers there. false: the "
        "allocation of [deployment] stays.",
    )
    period_s: float = option(default=120.0, doc="Between two plans.", unit="s", minimum=1, maximum=86_400)
    window_s: float | None = option(
        default=None,
        doc="Sliding window of the demand that a plan is made for.",
        left_out="period_s",
        unit="s",
        minimum=1,
        maximum=86_400,
    )
    early: bool = option(
        default=True,
        doc="Plan before the period is over when the lengths or the load have clearly shifted.",
    )
    objective: Objective = option(
        default="queueing",
        doc="What a plan minimises: `paper` is Eq. 1 as printed; `queueing` counts waiting under random arrivals too.",
    )
    solver: SolverName = option(
        default="exact",
        doc="What solves it. `gurobi` needs the extra of that name and objective `paper`.",
    )
    min_gain: float = option(
        default=0.03,
        doc="Smallest predicted reduction of the mean latency, as a share, for which workers are moved.",
        minimum=0,
        maximum=1,
    )
    max_unavailable: float = option(
        default=0.125,
        doc="Largest share of the workers that is out of service at a time for being moved; at least one worker.",
        above=0,
        maximum=1,
    )
    max_moving: float = option(
        default=0.5,
        doc="Largest share of the workers that is moved at a time with make_before_break, where each serves on until "
        "its new runtime is ready; at least one worker.",
        above=0,
        maximum=1,
    )
    make_before_break: bool = option(
        default=True,
        doc="Load the new runtime beside the old one, then switch. Where a worker's memory does not hold two engines "
        "that load fails, the old one serves on, and from then on workers are moved the other way: drain, unload, "
        "load. false: always the other way.",
    )
    recycle_factor: float = option(
        default=0.0,
        doc="Restart a worker whose requests take this many times longer than the latency profile and than the other "
        "workers of its runtime, for three periods of 10 s in a row. 0: never.",
        minimum=0,
        maximum=1000,
    )
    http_address: str = option(
        default="127.0.0.1:8004",
        doc="Port of the control plane's /status (JSON, for `arlo top`), /metrics and /livez. Port 0 picks a free one.",
        format="address",
    )

    def check_relations(self) -> None:
        if self.solver != "exact" and self.objective != "paper":
            raise FieldError("control", "solver", f'{self.solver} solves objective = "paper" only; `exact` solves both')
        if 0 < self.recycle_factor < 1.2:
            raise FieldError("control", "recycle_factor", f"must be 0 or at least 1.2, not {self.recycle_factor:g}")

    @property
    def demand_window_s(self) -> float:
        """window_s, or its value when left out."""
        return self.window_s if self.window_s is not None else self.period_s


@section("scaling")
class ScalingConfig:
    """How the number of workers follows the load (paper, section 4)."""

    policy: Literal["none", "target", "headroom", "plan"] = option(
        default="none",
        doc="`target`: by the p98 latency against the SLO, as in the paper. `headroom`: keeps spare capacity, as "
        "INFaaS does. `plan`, of a served [pipeline]: as many as its planner wants. `none`: the number of workers "
        "stays.",
    )
    min_workers: int = option(default=1, doc="Never fewer workers.", minimum=1, maximum=1000)
    max_workers: int | None = option(
        default=None,
        doc="Never more workers.",
        left_out="workers.count, so nothing is added",
        minimum=1,
        maximum=1000,
        relation="at least min_workers",
    )
    scale_out_share: float = option(
        default=0.95, doc="target: add a worker when p98 reaches this share of the SLO.", above=0, maximum=10
    )
    scale_in_share: float = option(
        default=0.5,
        doc="target: release the least busy worker when p98 stayed below this share of the SLO for scale_in_period_s.",
        minimum=0,
        maximum=10,
        relation="below scale_out_share",
    )
    scale_in_period_s: float = option(default=60.0, doc="See scale_in_share.", unit="s", above=0, maximum=86_400)
    headroom: float = option(
        default=0.05, doc="headroom: spare capacity to keep, as a share of the load.", minimum=0, maximum=10
    )
    cooldown_s: float = option(
        default=10.0, doc="Least time between two steps of scaling.", unit="s", minimum=0, maximum=86_400
    )

    def check_relations(self) -> None:
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise FieldError(
                "scaling", "max_workers", f"must be at least min_workers ({self.min_workers}), not {self.max_workers}"
            )
        if self.scale_in_share >= self.scale_out_share:
            raise FieldError(
                "scaling",
                "scale_in_share",
                f"must be below scale_out_share ({self.scale_out_share:g}), not {self.scale_in_share:g}",
            )
