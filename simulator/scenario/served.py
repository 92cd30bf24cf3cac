"""`cluster.serves`: a flow file, or one of token counts, in place of a profile; and the scenario of either alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.flow_file import load_flow
from arlo.catalog.flow_outcomes import Outcomes
from arlo.config.load import read_text, read_toml
from arlo.errors import ConfigError
from arlo.simulator import flows
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.scenario import Dispatch, Scenario, Workload
from arlo.simulator.scenario.schemes import SHIPPED
from arlo.simulator.scenario.sections import ClusterSection, WorkloadSection
from arlo.simulator.tokens import served as tokens
from arlo.simulator.tokens.file import load_tokens

if TYPE_CHECKING:
    from arlo.simulator.scenario.build import Parts

RATE, DURATION_S = 100.0, 60.0
WORKERS = {"flow": 20, "tokens": 1}
DEFAULT_POLICY = "price"


def kind_of(raw: Mapping[str, Any]) -> str:
    """`flow` or `tokens`; empty: a file of another kind."""
    return next((kind for kind in WORKERS if kind in raw), "")


def alone(path: Path, kind: str) -> ScenarioConfig:
    """The scenario of such a file by itself; that of token counts has [workload] in it."""
    section = load_tokens(path).workload if kind == "tokens" else WorkloadSection()
    left_out: dict[str, Any] = {} if section.trace is not None else {"arrivals": "poisson"}
    left_out |= {"rate": RATE, "duration_s": DURATION_S} if section.drawn else {}
    return ScenarioConfig(
        workload=dataclasses.replace(
            section, **{key: value for key, value in left_out.items() if getattr(section, key) is None}
        ),
        cluster=ClusterSection(serves=path.absolute(), workers=WORKERS[kind], overhead_ms=0.0),
    )


def scenario_of(config: ScenarioConfig, parts: Parts) -> Scenario:
    """ConfigError says what does not fit together."""
    path = config.cluster.serves
    assert path is not None
    kind = kind_of(read_toml(read_text(path, "file"), str(path)))
    if kind == "flow":
        return _flow(config, path, parts)
    if kind == "tokens":
        return _tokens(config, path, parts)
    raise ConfigError(f"{path} has neither [flow] nor [tokens]: cluster.serves is a flow file, or one of token counts")


def _flow(config: ScenarioConfig, path: Path, parts: Parts) -> Scenario:
    dispatch, cluster, allocation = config.dispatch, config.cluster, config.allocation
    if dispatch.tokens is not None:
        raise ConfigError("dispatch.tokens does not go with a flow file: it is of token counts")
    flow = load_flow(path)
    changes: dict[str, Any] = {"router": dispatch.router, "drop": dispatch.drop, "slo_ms": cluster.slo_ms}
    flow = dataclasses.replace(flow, **{key: value for key, value in changes.items() if value is not None})
    own = dataclasses.replace(SHIPPED, cover_after_s=None, period_s=flow.plan_period_s)
    return flows.scenario_of(
        flow,
        _workload(config, parts, "the flow says what its rows are like"),
        outcomes=Outcomes.load(Path(flow.records)).of(flow) if flow.records else None,
        dispatch=parts.dispatch(Dispatch(batching="deadline" if flow.drop == "slack" else "fill")),
        allocate=dataclasses.replace(
            own,
            period_s=own.period_s if allocation.period_s is None else allocation.period_s,
            replacement_s=allocation.replacement_s,
            shift=allocation.shift,
        ),
        scale=parts.scale(),
        bundle="all" if cluster.bundle == "all" else "variant",
        **parts.fields,
    )


def _tokens(config: ScenarioConfig, path: Path, parts: Parts) -> Scenario:
    dispatch, cluster = config.dispatch, config.cluster
    for key, value in (("dispatch.router", dispatch.router), ("dispatch.drop", dispatch.drop),
                       ("dispatch.batching", dispatch.batching), ("cluster.slo_ms", cluster.slo_ms)):  # fmt: skip
        if value is not None:
            raise ConfigError(f"{key} does not go with a file of token counts: leave it out")
    spec = load_tokens(path)
    if spec.by_length:
        section = config.workload
        lengths = {} if section.trace is not None or section.length else {"length": "paper", "rescale": spec.length}
        workload = parts.workload(**({"length": section.length} if section.length else lengths))
    else:
        workload = _workload(config, parts, "lengths make no difference to this body: say its latency as "
                             "[[length, rows, ms], ...], and its accuracy by bins, or leave them out")  # fmt: skip
    return tokens.scenario_of(spec, dispatch.tokens or DEFAULT_POLICY, workload, **parts.fields)


def _workload(config: ScenarioConfig, parts: Parts, why: str) -> Workload:
    """Arrivals without lengths."""
    for key in ("length", "rescale", "drift"):
        if getattr(config.workload, key) is not None:
            raise ConfigError(f"workload.{key}: {why}")
    return parts.workload(**({} if config.workload.trace is not None else {"length": "fixed:1", "drift": "none"}))
