"""What `arlo top` shows, as numbers: two documents (of the control plane, of the gateway) and what changed between two
samples of the second. Pure; nothing here knows of terminals or networks.

Either document may be missing. Rates are None until there are two samples of one life of the gateway.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from arlo.cascade.decide import DEADLINE, REASONS
from arlo.cli.top.flows import FlowRows, flows
from arlo.control.http.status import ControlStatus, PlanRecord, WorkerStatus

RATE_WINDOW_S = 5.0  # rates and shares; long enough not to flicker
WINDOW_S = 60.0  # the length histogram and the attainment
TREND_S = 300.0  # the latency's sparkline
FINISHED = ("on_time", "late", "rejected", "expired", "cancelled", "failed")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look. `gateway` is arlo.v1.Stats and `deployment` arlo.v1.Deployment, as dictionaries
    (arlo.control.gateway.messages.to_dict). `several`: statistics by model, where the deployment has several."""

    at_s: float  # any clock that never steps back
    control: ControlStatus | None = None
    control_error: str = ""
    gateway: dict[str, Any] | None = None
    gateway_error: str = ""
    deployment: dict[str, Any] | None = None  # for what the control plane says otherwise: model, SLO, runtimes
    several: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    chosen: str = ""  # the one of several models that was asked for; empty: all

    @property
    def shown(self) -> dict[str, Any] | None:
        """The statistics that rates are of: of one model, or of all together."""
        if self.gateway is None or len(self.several) < 2:
            return self.gateway
        if self.chosen:
            return with_stages(self.gateway, self.several)
        return together(list(self.several.values()))


@dataclasses.dataclass(slots=True, kw_only=True)
class WorkerRow:
    """One worker."""

    id: str
    runtime: str  # that it serves, or of which its instance is
    target: str  # the runtime that it should have, where that is another one
    step: str  # of the control plane, or the process's state where that is worse, or the gateway's state
    step_s: float | None  # how long already
    trouble: bool
    in_flight: int | None = None
    queued: int | None = None
    busy: float | None = None  # share of the window with at least one row in flight
    rows_per_s: float | None = None
    restarts: int | None = None
    error: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class RuntimeRow:
    """One runtime, with the numbers of its level; of several models one length of one of them."""

    max_length: int
    model: str = ""  # of several
    name: str = ""
    desired: int | None = None
    observed: int | None = None
    demand: float | None = None  # requests per SLO period
    peak: float | None = None
    load: float | None = None  # demand as a share of what the observed instances carry
    share: float | None = None  # of the arrivals: rows whose ideal level this is
    demoted: float | None = None  # share of the rows started on it whose ideal level is shorter
    latency_ms: float | None = None
    capacity: int | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelRow:
    """One of several models. Rates are over RATE_WINDOW_S, the attainment over WINDOW_S, latencies the gateway's."""

    name: str
    slo_ms: int | None
    desired: int | None = None  # instances that are wanted, and that serve it
    observed: int | None = None
    rows_per_s: float | None = None
    goodput_rps: float | None = None
    attainment: float | None = None
    mean_ms: float | None = None
    p98_ms: float | None = None
    stage: bool = False  # of a cascade: clients do not see it
    queued: int | None = None
    in_flight: int | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class StageRow:
    """One stage of a cascade, over RATE_WINDOW_S. Shares are of the rows that it answered."""

    name: str
    answers_per_s: float | None = None
    reach: float | None = None  # of the first stage's rows
    planned: float | None = None  # the same, of the operating point as it was searched
    went_on: float | None = None
    ended: dict[str, float] = dataclasses.field(default_factory=dict)  # with its answer, by reason


@dataclasses.dataclass(slots=True, kw_only=True)
class CascadeRows:
    """A cascade: what is in force, and its stages."""

    name: str
    point: str
    price: int
    degraded: float | None  # share of the rows that ended
    agreement: float | None  # of the rows that ended by rule, with the last stage; None: there are no shadow rows
    agreement_planned: float | None  # the same, of the operating point as it was searched
    stages: list[StageRow]


@dataclasses.dataclass(slots=True, kw_only=True)
class View:
    """All that one screen shows."""

    control: ControlStatus | None
    control_error: str
    gateway: dict[str, Any] | None
    gateway_error: str
    model: str
    slo_ms: int | None
    rows_per_s: float | None
    goodput_rps: float | None
    attainment: float | None  # over WINDOW_S
    padding: float | None  # share of computed tokens, over RATE_WINDOW_S
    window_s: float | None  # time that `lengths` and `attainment` cover
    lengths: list[int]  # rows by length in that time; index = tokens
    p98_ms: list[tuple[float, float]]  # age in seconds, value; oldest first
    runtimes: list[RuntimeRow]
    workers: list[WorkerRow]
    plans: list[PlanRecord]  # oldest first
    models: list[ModelRow] = dataclasses.field(default_factory=list)  # of several; empty for one
    cascades: list[CascadeRows] = dataclasses.field(default_factory=list)
    flows: list[FlowRows] = dataclasses.field(default_factory=list)

    @property
    def edges(self) -> list[int]:
        """Max lengths, ascending, each once."""
        return sorted({row.max_length for row in self.runtimes})


class History:
    """The samples of the last minutes, and the view of the last one."""

    def __init__(self) -> None:
        self._samples: collections.deque[Sample] = collections.deque()
        self._p98: collections.deque[tuple[float, float]] = collections.deque()

    def add(self, sample: Sample) -> View:
        """Take a sample; returns what to show."""
        while self._samples and sample.at_s - self._samples[0].at_s > WINDOW_S + RATE_WINDOW_S:
            self._samples.popleft()
        self._samples.append(sample)
        if (stats := sample.shown) is not None and stats["total"]["count"]:
            self._p98.append((sample.at_s, stats["total"]["p98_us"] / 1000))
        while self._p98 and sample.at_s - self._p98[0][0] > TREND_S:
            self._p98.popleft()
        trend = [(sample.at_s - at_s, value) for at_s, value in self._p98]
        base, long_base = self._base(RATE_WINDOW_S), self._base(WINDOW_S)
        return view(
            sample,
            base.shown if base is not None else None,
            long_base.shown if long_base is not None else None,
            trend,
            several=base.several if base is not None else None,
            long_several=long_base.several if long_base is not None else None,
        )

    def _base(self, window_s: float) -> Sample | None:
        """The oldest sample within the window with statistics of the same life of the gateway as the newest ones. The
        sample before counts as within, however long ago it was."""
        newest, before = self._samples[-1], self._samples[-2] if len(self._samples) > 1 else None
        if newest.gateway is None:
            return None
        for sample in self._samples:
            near = newest.at_s - sample.at_s <= window_s * 1.01 or sample is before
            if near and sample.gateway is not None and _earlier(sample.gateway, newest.gateway):
                return sample
        return None


def models_of(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """What a deployment says of each of its models, its cascades and pipelines first."""
    logical = [*deployment.get("cascades", ()), *deployment.get("pipelines", ())]
    return [*logical, deployment.get("model", {}), *deployment.get("more_models", ())]


def together(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Statistics of several models as one; without levels and latencies, which have no meaning over models. A row of a
    cascade is one row, whatever stages it runs on, but what waits and runs does so at them."""
    seen = [each for each in several if not each["stage"]] or several
    first = seen[0]
    longest = max(len(each["arrivals_by_length"]) for each in seen)
    arrivals = [0] * longest
    for each in seen:
        for length, rows in enumerate(each["arrivals_by_length"]):
            arrivals[length] += rows
    counted = ("queued", "parked", "in_flight", "tokens", "computed_tokens", "retries")
    return {
        **first,
        **{name: sum(each[name] for each in several) for name in counted},
        "model": first["model"] if len(seen) == 1 else "",
        "arrivals_by_length": arrivals,
        "outcomes": {name: sum(each["outcomes"][name] for each in seen) for name in first["outcomes"]},
        "levels": [],
        "total": first["total"] if len(seen) == 1 else {**first["total"], "count": 0},
    }


def with_stages(stats: dict[str, Any], several: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of a cascade or a pipeline with what waits and runs at its stages; of another model as they are."""
    stages = [several[stage["model"]] for stage in stats["stages"] if stage["model"] in several]
    if stats["pipeline"]:
        stages = [one for name, one in several.items() if one["stage"] and name.startswith(f"{stats['model']}.")]
    return together([stats, *stages]) if stages else stats


def _earlier(base: dict[str, Any], now: dict[str, Any]) -> bool:
    return bool(base["started_at_ms"] == now["started_at_ms"] and base["uptime_ns"] < now["uptime_ns"])


def view(
    sample: Sample,
    base: dict[str, Any] | None = None,
    long_base: dict[str, Any] | None = None,
    p98_ms: list[tuple[float, float]] | None = None,
    *,
    several: dict[str, dict[str, Any]] | None = None,
    long_several: dict[str, dict[str, Any]] | None = None,
) -> View:
    """What to show of `sample`; rates against `base`, attainment and histogram against `long_base`, both earlier
    statistics of the same life of the gateway; `several` and `long_several` are those of each of several models."""
    control, gateway, deployment = sample.control, sample.shown, sample.deployment or {}
    models = _models(sample, several or {}, long_several or {})
    seen = [row for row in models if not row.stage]
    cascades = _cascades(sample, several or {})
    pipelines = flows(deployment, sample.several, several or {}, sample.chosen)
    if models and not sample.chosen:
        model, slo_ms = ", ".join(row.name for row in seen), seen[0].slo_ms if len(seen) == 1 else None
    else:
        model = (gateway or {}).get("model") or sample.chosen or (control.model if control is not None else "")
        model = model or deployment.get("model", {}).get("name", "")
        slo_ms = _slo_ms(deployment, model) or next((row.slo_ms for row in models if row.name == model), None)
        slo_ms = slo_ms or (control.slo_ms if control is not None else None)
    if models:
        chosen = {sample.chosen, *(stage.name for each in cascades for stage in each.stages)}
        within = tuple(f"{each.name}." for each in pipelines)
        rows = [
            r
            for r in _by_model(sample, models, several or {})
            if not sample.chosen or r.model in chosen or r.model.startswith(within)
        ]
    else:
        rows = _runtimes(control, gateway, base, deployment)
    elapsed_s = _elapsed_s(gateway, base)
    window_s = _elapsed_s(gateway, long_base)
    lengths = _difference(gateway, long_base, "arrivals_by_length") if gateway and long_base else []
    padding = None
    if gateway is not None and base is not None and elapsed_s:
        computed = gateway["computed_tokens"] - base["computed_tokens"]
        padding = 1 - (gateway["tokens"] - base["tokens"]) / computed if computed else None
    rows_per_s, goodput = _rates(gateway, base)
    return View(
        control=control,
        control_error=sample.control_error,
        gateway=gateway,
        gateway_error=sample.gateway_error,
        model=model,
        slo_ms=slo_ms,
        rows_per_s=rows_per_s,
        goodput_rps=goodput,
        attainment=_attainment(gateway, long_base),
        padding=padding,
        window_s=window_s,
        lengths=lengths,
        p98_ms=p98_ms if p98_ms is not None else [],
        runtimes=rows,
        workers=_workers(control, gateway, base, elapsed_s),
        plans=control.plans if control is not None else [],
        models=models,
        cascades=cascades,
        flows=pipelines,
    )


def _cascades(sample: Sample, base: dict[str, dict[str, Any]]) -> list[CascadeRows]:
    """Of those that are shown, what became of the rows at each stage since `base`."""
    found = []
    for name, stats in sample.several.items():
        if not stats["stages"] or sample.chosen not in ("", name):
            continue
        before = {stage["model"]: stage for stage in base[name]["stages"]} if name in base else {}
        elapsed_s = _elapsed_s(stats, base.get(name))
        searched = sample.control.cascade if sample.control is not None else None
        if searched is not None and (searched.name, searched.point) != (name, stats["point"]):
            searched = None  # of another one, or a moment behind
        rows: list[StageRow] = []
        first, ended, degraded = 0, 0, 0
        for stage in stats["stages"]:
            old = before.get(stage["model"])
            row = StageRow(name=stage["model"], planned=searched.reach[len(rows)] if searched is not None else None)
            rows.append(row)
            if old is None or not elapsed_s:
                continue
            visits, exits = _grown(stage, old, "visits"), _difference(stage, old, "exits")
            first = first or visits
            ended, degraded = ended + sum(exits), degraded + sum(exits[DEADLINE:])
            row.answers_per_s = visits / elapsed_s
            row.reach = visits / first if first else None
            if visits:
                row.went_on = sum(_difference(stage, old, "escalations")) / visits
                row.ended = {reason: rows / visits for reason, rows in zip(REASONS, exits, strict=False) if rows}
        share = degraded / ended if ended else None
        found.append(
            CascadeRows(
                name=name,
                point=stats["point"],
                price=stats["price"],
                degraded=share,
                agreement=_agreement(stats),
                agreement_planned=searched.agreement if searched is not None else None,
                stages=rows,
            )
        )
    return found


def _agreement(stats: dict[str, Any]) -> float | None:
    """As arlo_cascade_agreement: rows that ended early by rule differ as often as shadow rows do."""
    shadows = stats["shadows"] or {}
    early, last = (sum(stage["exits"][reason] for stage in stats["stages"] if stage["exits"]) for reason in (0, 1))
    if not shadows.get("rows") or not early:
        return None
    return 1.0 - float(early / (early + last) * shadows["disagreed"] / shadows["rows"])


def _rates(now: dict[str, Any] | None, base: dict[str, Any] | None) -> tuple[float | None, float | None]:
    """Rows, and rows on time, per second."""
    elapsed_s = _elapsed_s(now, base)
    if now is None or base is None or not elapsed_s:
        return None, None
    on_time = now["outcomes"]["on_time"] - base["outcomes"]["on_time"]
    return sum(_difference(now, base, "arrivals_by_length")) / elapsed_s, on_time / elapsed_s


def _attainment(now: dict[str, Any] | None, base: dict[str, Any] | None) -> float | None:
    if now is None or base is None:
        return None
    ended = {name: now["outcomes"][name] - base["outcomes"][name] for name in FINISHED}
    return ended["on_time"] / sum(ended.values()) if sum(ended.values()) else None


def _models(sample: Sample, base: dict[str, dict[str, Any]], long_base: dict[str, dict[str, Any]]) -> list[ModelRow]:
    """Of several models each, by what is there: the control plane's part, the gateway's. Empty for one."""
    control, deployment = sample.control, sample.deployment or {}
    planned = {model.name: model for model in control.models} if control is not None else {}
    cascades = [name for name, stats in sample.several.items() if stats["stages"] or stats["pipeline"]]
    names = [*cascades, *(planned or (name for name in sample.several if name not in cascades))]
    rows = []
    for name in names if len(names) > 1 else ():
        model, stats = planned.get(name), sample.several.get(name)
        row = ModelRow(name=name, slo_ms=model.slo_ms if model is not None else _slo_ms(deployment, name))
        if model is not None and control is not None:
            row.desired = sum(control.desired.get(runtime.name, 0) for runtime in model.runtimes)
            row.observed = sum(control.observed.get(runtime.name, 0) for runtime in model.runtimes)
        if stats is not None:
            if model is None and name not in cascades:
                row.observed = max((level["instances"] for level in stats["levels"]), default=0)
            row.stage = stats["stage"]
            row.rows_per_s, row.goodput_rps = _rates(stats, base.get(name))
            row.attainment = _attainment(stats, long_base.get(name))
            now = with_stages(stats, sample.several)
            row.queued, row.in_flight = now["queued"], now["in_flight"]
            if row.stage:
                row.goodput_rps = None  # a row is on time when it has ended, at whatever stage
            if stats["total"]["count"]:
                row.mean_ms, row.p98_ms = stats["total"]["mean_us"] / 1000, stats["total"]["p98_us"] / 1000
        rows.append(row)
    return rows


def _by_model(sample: Sample, models: list[ModelRow], base: dict[str, dict[str, Any]]) -> list[RuntimeRow]:
    """The lengths of each of several models."""
    control, deployment = sample.control, sample.deployment or {}
    planned = {model.name: model for model in control.models} if control is not None else {}
    found = []
    for name in (row.name for row in models):
        model, stats = planned.get(name), sample.several.get(name)
        if model is not None:
            columns = (model.lengths, model.demand, model.demand_peak, model.latency_ms, model.capacity)
            rows = [
                RuntimeRow(max_length=length, demand=demand, peak=peak, latency_ms=latency_ms, capacity=capacity)
                for length, demand, peak, latency_ms, capacity in zip(*columns, strict=False)
            ]
        else:
            levels = {level["max_length"]: level for level in stats["levels"]} if stats is not None else {}
            rows = _deployed(
                {"runtimes": [each for each in deployment.get("runtimes", ()) if each["model"] == name]}, levels
            )
        for row in rows:
            row.model = name
        _add_levels(rows, stats, base.get(name))
        found += rows
    return found


def _slo_ms(deployment: dict[str, Any], model: str) -> int | None:
    for one in models_of(deployment):
        if one.get("name") == model:
            return one.get("slo_ms") or None
    return None


def as_dict(sample: Sample, shown: View) -> dict[str, Any]:
    """What --json prints: both documents as they came, and what was computed from two samples."""
    return {
        "control": sample.control.to_json() if sample.control is not None else None,
        "control_error": sample.control_error or None,
        "gateway": sample.gateway,
        "gateway_error": sample.gateway_error or None,
        "gateway_by_model": sample.several,
        "now": {
            "rows_per_s": shown.rows_per_s,
            "goodput_rps": shown.goodput_rps,
            "slo_attainment": shown.attainment,
            "padding": shown.padding,
            "window_s": shown.window_s,
            "cascades": [dataclasses.asdict(each) for each in shown.cascades],
            "pipelines": [dataclasses.asdict(each) for each in shown.flows],
            "models": [dataclasses.asdict(row) for row in shown.models],
            "runtimes": [dataclasses.asdict(row) for row in shown.runtimes],
            "workers": [dataclasses.asdict(row) for row in shown.workers],
        },
    }


def _elapsed_s(now: dict[str, Any] | None, base: dict[str, Any] | None) -> float | None:
    return (now["uptime_ns"] - base["uptime_ns"]) / 1e9 if now is not None and base is not None else None


def _difference(now: dict[str, Any], base: dict[str, Any], name: str) -> list[int]:
    """Of two lists of counters; the later one may be longer."""
    before = base[name]
    return [value - (before[index] if index < len(before) else 0) for index, value in enumerate(now[name])]


def _grown(item: dict[str, Any], before: dict[str, Any] | None, name: str) -> int:
    """How much a counter grew. One that is new, or smaller than it was, began at 0."""
    value, old = int(item[name]), int(before[name]) if before is not None else 0
    return value - old if value >= old else value


def _runtimes(
    control: ControlStatus | None,
    gateway: dict[str, Any] | None,
    base: dict[str, Any] | None,
    deployment: dict[str, Any],
) -> list[RuntimeRow]:
    levels = {level["max_length"]: level for level in gateway["levels"]} if gateway is not None else {}
    rows = _planned(control) if control is not None else _deployed(deployment, levels)
    _add_levels(rows, gateway, base)
    return rows


def _add_levels(rows: list[RuntimeRow], gateway: dict[str, Any] | None, base: dict[str, Any] | None) -> None:
    """What the gateway counted by level between two statistics of one model."""
    levels = {level["max_length"]: level for level in gateway["levels"]} if gateway is not None else {}
    before = {level["max_length"]: level for level in base["levels"]} if base is not None else {}
    ideal = {length: _grown(level, before.get(length), "ideal") for length, level in levels.items()} if base else {}
    for row in rows:
        level = levels.get(row.max_length)
        if level is None or base is None:
            continue
        started = _grown(level, before.get(row.max_length), "dispatched")
        row.share = ideal[row.max_length] / sum(ideal.values()) if sum(ideal.values()) else None
        row.demoted = _grown(level, before.get(row.max_length), "demoted") / started if started else None


def _planned(control: ControlStatus) -> list[RuntimeRow]:
    rows = []
    for index, runtime in enumerate(control.runtimes):
        observed = control.observed.get(runtime.name, 0)
        demand = control.demand[index] if index < len(control.demand) else None
        carried = observed * runtime.capacity
        rows.append(
            RuntimeRow(
                max_length=runtime.max_length,
                name=runtime.name,
                desired=control.desired.get(runtime.name, 0),
                observed=observed,
                demand=demand,
                peak=control.demand_peak[index] if index < len(control.demand_peak) else None,
                load=demand / carried if demand is not None and carried else None,
                latency_ms=runtime.latency_ms,
                capacity=runtime.capacity,
            )
        )
    return rows


def _deployed(deployment: dict[str, Any], levels: dict[int, dict[str, Any]]) -> list[RuntimeRow]:
    """Without a control plane: what the gateway was given, or at least the levels that it counts."""
    runtimes = sorted(deployment.get("runtimes", []), key=lambda runtime: int(runtime["max_length"]))
    if not runtimes:
        return [RuntimeRow(max_length=length, observed=level["instances"]) for length, level in sorted(levels.items())]
    return [
        RuntimeRow(
            max_length=runtime["max_length"],
            name=runtime["name"],
            observed=levels.get(runtime["max_length"], {}).get("instances"),
            latency_ms=_latency_ms(runtime["latency"]),
            capacity=runtime["capacity"],
        )
        for runtime in runtimes
    ]


def _latency_ms(points: list[dict[str, Any]]) -> float | None:
    """Of one request of the greatest length measured."""
    smallest = min((point["batch"] for point in points), default=0)
    return max((point["latency_us"] / 1000 for point in points if point["batch"] == smallest), default=None)


def _workers(
    control: ControlStatus | None,
    gateway: dict[str, Any] | None,
    base: dict[str, Any] | None,
    elapsed_s: float | None,
) -> list[WorkerRow]:
    instances: dict[str, list[dict[str, Any]]] = {}
    for item in gateway["instances"] if gateway is not None else []:
        instances.setdefault(item["worker"], []).append(item)
    before = {item["id"]: item for item in base["instances"]} if base is not None else {}
    known = {worker.id: worker for worker in control.workers} if control is not None else {}
    rows = []
    for name in [*known, *(name for name in instances if name not in known)]:
        row = _known(known[name], control.at_ms) if control is not None and name in known else _unknown(name)
        _add_instances(row, instances.get(name, []), before, elapsed_s)
        rows.append(row)
    return rows


def _known(worker: WorkerStatus, at_ms: int) -> WorkerRow:
    lost = worker.state != "ready"
    moving = worker.desired is not None and worker.desired != worker.serving
    return WorkerRow(
        id=worker.id,
        runtime=worker.serving or "",
        target=worker.desired if moving and worker.desired is not None else "",
        step=worker.state if lost and worker.step in ("steady", "waiting") else worker.step,
        step_s=max(0.0, (at_ms - worker.step_since_ms) / 1000),
        trouble=worker.state in ("failed", "stopped") or worker.step == "failed",
        restarts=worker.restarts,
        error=worker.error or "",
    )


def _unknown(name: str) -> WorkerRow:
    return WorkerRow(id=name, runtime="", target="", step="", step_s=None, trouble=False)


def _add_instances(
    row: WorkerRow, instances: list[dict[str, Any]], before: dict[str, dict[str, Any]], elapsed_s: float | None
) -> None:
    if not instances:
        return
    serving = next((item for item in instances if item["state"] == "active"), instances[-1])
    row.runtime = row.runtime or serving["runtime"]
    if serving["state"] != "active" and row.step in ("", "steady"):
        row.step, row.step_s = serving["state"], None
    row.step = row.step or "active"
    row.trouble = row.trouble or serving["state"] == "ejected"
    row.in_flight = sum(item["in_flight"] for item in instances)
    row.queued = sum(item["queued"] for item in instances)
    if elapsed_s:
        row.rows_per_s = sum(_grown(item, before.get(item["id"]), "started") for item in instances) / elapsed_s
        busy_s = sum(_grown(item, before.get(item["id"]), "busy_us") for item in instances) / 1e6
        row.busy = min(1.0, busy_s / elapsed_s)
