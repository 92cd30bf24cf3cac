"""`cluster.serves`: a flow, a cascade or token counts in place of a profile; and the scenario of each alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from arlo.catalog.flow_file import load_flow
from arlo.catalog.flow_outcomes import Outcomes
from arlo.config.load import read_text, read_toml
from arlo.errors import ConfigError
from arlo.simulator import flows
from arlo.simulator.scenario.build import allocate_of, dispatch_of, fields_of, scale_of, workload_of
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.scenario import Dispatch, Scale, Scenario, Workload
from arlo.simulator.scenario.schemes import SHIPPED
from arlo.simulator.scenario.sections import ClusterSection, WorkloadSection
from arlo.simulator.tokens import served as tokens
from arlo.simulator.tokens.file import NO_LENGTHS, load_tokens

RATE, DURATION_S = 100.0, 60.0
WORKERS = {"flow": 20, "tokens": 1, "cascade": 1}
DEFAULT_POLICY = "price"
KINDS = {"flow": "a flow file", "tokens": "a file of token counts", "cascade": "a cascade"}
OTHERS = {  # keys that do not go with a kind
    "flow": ("dispatch.tokens", "dispatch.point", "dispatch.price", "cluster.texts", "allocation.instances"),
    "tokens": ("dispatch.router", "dispatch.drop", "dispatch.point", "dispatch.price", "dispatch.batching",
               "cluster.slo_ms", "cluster.texts", "allocation.instances"),
    "cascade": ("dispatch.router", "dispatch.drop", "dispatch.tokens"),
}  # fmt: skip


def kind_of(path: Path) -> str:
    """`flow`, `cascade` or `tokens`; empty: a file of another kind."""
    if path.suffix == ".json":
        return "cascade"
    raw = read_toml(read_text(path, "scenario"), str(path))
    return next((kind for kind in ("flow", "tokens") if kind in raw), "")


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


def scenario_of(config: ScenarioConfig) -> Scenario:
    """ConfigError says what does not fit together."""
    path = config.cluster.serves
    assert path is not None
    kind = kind_of(path)
    for key in OTHERS.get(kind, ()):
        section, _, name = key.partition(".")
        if getattr(getattr(config, section), name) not in (None, ()):
            raise ConfigError(f"{key} does not go with {KINDS[kind]}: leave it out")
    if kind == "flow":
        return _flow(config, path)
    if kind == "tokens":
        return _tokens(config, path)
    if kind == "cascade":
        from arlo.simulator.cascade.build import scenario_from

        return scenario_from(config, path, _workload(config, "the records say what rows are like"))
    raise ConfigError(f"{path} has neither [flow] nor [tokens], and is no cascade.json: cluster.serves is one of these")


def _flow(config: ScenarioConfig, path: Path) -> Scenario:
    dispatch, cluster = config.dispatch, config.cluster
    flow = load_flow(path)
    changes: dict[str, Any] = {"router": dispatch.router, "drop": dispatch.drop, "slo_ms": cluster.slo_ms}
    flow = dataclasses.replace(flow, **{key: value for key, value in changes.items() if value is not None})
    own = dataclasses.replace(SHIPPED, cover_after_s=None, period_s=flow.plan_period_s)
    return flows.scenario_of(
        flow,
        _workload(config, "the flow says what its rows are like"),
        outcomes=Outcomes.load(Path(flow.records)).of(flow) if flow.records else None,
        dispatch=dispatch_of(config, Dispatch(batching="deadline" if flow.drop == "slack" else "fill")),
        allocate=allocate_of(config, own),
        scale=scale_of(config, Scale()),
        bundle="all" if cluster.bundle == "all" else "variant",
        name=path.stem,
        **fields_of(config),
    )


def _tokens(config: ScenarioConfig, path: Path) -> Scenario:
    spec = load_tokens(path)
    section = config.workload
    if not spec.by_length:
        workload = _workload(config, NO_LENGTHS)
    else:
        if section.trace is None and section.length is None:
            section = dataclasses.replace(section, length="paper", rescale=spec.length)
        workload = workload_of(section, config.run.seed)
    return tokens.scenario_of(
        spec, config.dispatch.tokens or DEFAULT_POLICY, workload, name=path.stem, **fields_of(config)
    )


def _workload(config: ScenarioConfig, why: str) -> Workload:
    """Arrivals without lengths."""
    for key in ("length", "rescale", "drift"):
        if getattr(config.workload, key) is not None:
            raise ConfigError(f"workload.{key}: {why}")
    alike: dict[str, Any] = {} if config.workload.trace is not None else {"length": "fixed:1", "drift": "none"}
    return workload_of(dataclasses.replace(config.workload, **alike), config.run.seed)
