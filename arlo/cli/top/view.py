"""The document that `arlo top` shows: the answers of control plane and gateway, and the rows of arlo.cli.top.tables
made of them. Pure: no terminal, no network.

Counters are compared with an earlier sample of the same run of the gateway; without one, rates are averages since its
start.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from arlo.cascade.decide import DEADLINE, REASONS
from arlo.cli.top.tables import FINISHED, HEAD, RESTING, TABLES, Document, Row, ratio
from arlo.control.http.status import ControlStatus, ModelStatus, WorkerStatus

RATE_WINDOW_S = 5.0  # rates and shares; long enough not to flicker
WINDOW_S = 60.0  # attainment and lengths
TREND_S = 300.0  # the sparkline of p98
DROPS = ("budget", "deadline", "overload", "fanout", "failed", "evicted")  # src/flow/pipeline/pipeline.h
HEALTH = ("ready", "degraded", "failing", "empty", "unreachable")  # from the best to the worst
Note = tuple[str, str]  # a sentence, and its style


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What both answered at one moment. Messages of arlo.v1 are dicts (arlo.control.gateway.messages.to_dict)."""

    at_s: float  # any clock that never steps back
    control: ControlStatus | None = None
    control_error: str = ""
    gateway_error: str = ""
    deployment: Document = dataclasses.field(default_factory=dict)
    stats: dict[str, Document] = dataclasses.field(default_factory=dict)  # arlo.v1.Stats by model
    model: str = ""  # the only one to show, with its stages; empty: all

    def within(self, name: str) -> list[str]:
        """The stages of a cascade or a pipeline."""
        own = self.stats.get(name, {})
        stages = {stage["model"] for stage in own.get("stages", ())}
        return [each for each in self.stats if each in stages or (own.get("pipeline") and each.startswith(f"{name}."))]

    @property
    def shown(self) -> dict[str, Document]:
        """The statistics to show."""
        if not self.model:
            return self.stats
        return {name: self.stats[name] for name in (self.model, *self.within(self.model)) if name in self.stats}

    def before(self, name: str, earlier: Sample | None) -> Document:
        """The earlier statistics of a model, if they are of the same run of the gateway; else nothing."""
        now, old = self.stats.get(name), earlier.stats.get(name) if earlier is not None else None
        same = now and old and old["started_at_ms"] == now["started_at_ms"] and old["uptime_ns"] < now["uptime_ns"]
        return old if old is not None and same else {}

    def row(self, model: str, earlier: Sample | None, **facts: Any) -> Row:
        """The statistics of a model since an earlier sample, or since the gateway's start."""
        now, old = self.stats.get(model, {}), self.before(model, earlier)
        return Row(now, old, (now.get("uptime_ns", 0) - old.get("uptime_ns", 0)) / 1e9, **facts)


class History:
    """The samples of the last minute; makes the document of the newest."""

    def __init__(self) -> None:
        self._samples: collections.deque[Sample] = collections.deque()
        self._p98: collections.deque[tuple[float, float]] = collections.deque()

    def add(self, sample: Sample) -> Document:
        """Add a sample; return its document."""
        while self._samples and sample.at_s - self._samples[0].at_s > WINDOW_S + RATE_WINDOW_S:
            self._samples.popleft()
        self._samples.append(sample)
        made = document(sample, self._earlier(RATE_WINDOW_S), self._earlier(WINDOW_S))
        self._p98 += [(sample.at_s, row["p98_ms"]) for row in made["now"]["models"][:1] if row["p98_ms"] is not None]
        while self._p98 and sample.at_s - self._p98[0][0] > TREND_S:
            self._p98.popleft()
        made["now"]["p98_trend"] = [{"ago_s": sample.at_s - at_s, "p98_ms": value} for at_s, value in self._p98]
        return made

    def _earlier(self, window_s: float) -> Sample | None:
        """The oldest sample within the window with statistics of the same run of the gateway. The sample before the
        newest counts as within, however long ago it was."""
        newest, last = self._samples[-1], self._samples[-2] if len(self._samples) > 1 else None
        for sample in self._samples:
            near = newest.at_s - sample.at_s <= window_s * 1.01 or sample is last
            if near and any(newest.before(name, sample) for name in newest.stats):
                return sample
        return None


def document(sample: Sample, earlier: Sample | None = None, long_ago: Sample | None = None) -> Document:
    """The document of `--json`. Rates are since `earlier`; attainment and lengths, over more rows, `long_ago`."""
    control, shown = sample.control, sample.shown
    plans = {model.name: model for model in control.each_model} if control is not None else {}
    names = list(shown) or [name for name in plans if sample.model in ("", name)]
    flows = [name for name in shown if shown[name]["stages"] or shown[name]["pipeline"]]
    clients = [name for name in shown if not shown[name]["stage"]] or list(shown)
    first = sample.row(next(iter(shown), ""), earlier)
    lengths = [row for name in names if name not in flows for row in _lengths(name, sample, plans.get(name), earlier)]
    rows: dict[str, Iterable[Row]] = {
        "models": (_model(name, sample, plans.get(name), earlier, long_ago) for name in names),
        "outcomes": (Row(shown[name] | shown[name]["outcomes"], name=name) for name in clients),
        "latency": (
            Row(shown[name][part], part=part, name=name if len(clients) > 1 else None)
            for name in clients
            for part in ("total", "queue", "execute")
            if shown[name][part]["count"]
        ),
        "lengths": lengths,
        "workers": _workers(sample, first, lengths),
        "plans": _plans(control) if control is not None else (),
    }
    arrivals = [sample.row(name, long_ago) for name in clients]
    counters = control.counters if control is not None else {}
    head = Row(
        first.now,
        health=health(sample),
        state=control.state if control is not None else None,
        uptime_s=first["uptime_ns"] / 1e9 if shown else None,
        deployment_version=first["deployment_version"] or (control.deployment_version if control is not None else 0),
        failed_moves=counters.get("replacement_failures"),
        fallbacks=counters.get("plan_fallbacks"),
    )
    now = {cell.key: cell.of(head) for cell in HEAD} | {name: as_dicts(name, made) for name, made in rows.items()}
    now["flows"] = [_flow(name, sample, earlier) for name in flows]
    now["rows_by_length"] = _summed(row.grown("arrivals_by_length") for row in arrivals)
    now["window_s"] = first.elapsed_s
    now["lengths_window_s"] = arrivals[0].elapsed_s if arrivals else 0.0
    return {
        "health": now["health"],
        "deployment": sample.deployment,
        "stats": shown,
        "control": control.to_json() if control is not None else None,
        "control_error": sample.control_error or None,
        "gateway_error": sample.gateway_error or None,
        "now": now,
    }


def as_dicts(table: str, rows: Iterable[Row]) -> list[Document]:
    """The cells of each row by their keys."""
    return [{cell.key: cell.of(row) for cell in TABLES[table]} for row in rows]


def models_of(deployment: Document) -> list[Document]:
    """The models of a deployment, its cascades and pipelines first."""
    logical = [*deployment.get("cascades", ()), *deployment.get("pipelines", ())]
    return [*logical, deployment.get("model", {}), *deployment.get("more_models", ())]


def health(sample: Sample) -> str:
    """One of HEALTH: that of the worst model; see the help of `arlo top --once`."""
    if not sample.shown or sample.gateway_error:
        return "unreachable"
    if not sample.deployment.get("version"):
        return "empty"
    return max((_health(sample.deployment, *each) for each in sample.shown.items()), key=HEALTH.index)


def _health(deployment: Document, name: str, stats: Document) -> str:
    mine = _runtimes(deployment, name)
    names = {runtime["name"] for runtime in mine}
    names |= {bundle["name"] for bundle in deployment["bundles"] if names & set(bundle["runtimes"])}
    variants = {v["model"] for each in deployment["pipelines"] for stage in each["stages"] for v in stage["variants"]}
    if name in variants and not any(instance["runtime"] in names for instance in deployment["instances"]):
        return "ready"  # the plan gives it no worker: others of its stage answer
    # A level whose runtimes have all moved elsewhere stays in the statistics; no instances of it are wanted.
    wanted = {runtime["max_length"] for runtime in mine}
    if any(level["instances"] == 0 for level in stats["levels"] if level["max_length"] in wanted):
        return "failing"
    states = [instance["state"] for instance in stats["instances"]]
    return "ready" if states and all(state == "active" for state in states) else "degraded"


def _summed(lists: Iterable[list[int]]) -> list[int]:
    total: list[int] = []
    for each in lists:
        total += [0] * (len(each) - len(total))
        for index, value in enumerate(each):
            total[index] += value
    return total


def _by(items: Iterable[Document] | None, key: str) -> dict[Any, Document]:
    return {item[key]: item for item in items or ()}


# --- rows ---


def _model(name: str, sample: Sample, plan: ModelStatus | None, earlier: Sample | None, long_ago: Sample | None) -> Row:
    control, stats = sample.control, sample.stats.get(name)
    deployed: Document = next((each for each in models_of(sample.deployment) if each.get("name") == name), {})
    row = sample.row(name, earlier, name=name, slo_ms=deployed.get("slo_ms") or (plan.slo_ms if plan else None))
    row.facts |= dict.fromkeys(("outcomes", "attainment", "p98_ms"))
    if plan is not None and control is not None:
        held = {runtime.name for runtime in plan.runtimes}
        row.facts["desired"], row.facts["observed"] = (
            sum(counts.get(runtime, 0) for runtime in held) for counts in (control.desired, control.observed)
        )
    if stats is None:
        return row
    parts = [stats, *(sample.stats[each] for each in sample.within(name))]  # where the rows of a flow wait and run
    row.facts["waiting"], row.facts["in_flight"] = (sum(p[key] for p in parts) for key in ("queued", "in_flight"))
    if plan is None and len(parts) == 1:
        row.facts["observed"] = max((level["instances"] for level in stats["levels"]), default=0)
    if stats["total"]["count"]:
        row.facts["p98_ms"] = stats["total"]["p98_us"] / 1000
    if not stats["stage"]:  # a row is on time, or late, when its whole way has ended: stages have no outcomes
        ended = Row(stats["outcomes"], sample.before(name, long_ago).get("outcomes"))
        row.facts["attainment"] = ratio(ended.grown("on_time"), sum(ended.grown(key) for key in FINISHED))
        row.facts["outcomes"] = Row(stats["outcomes"], row.old.get("outcomes"), row.elapsed_s)
    return row


def _runtimes(deployment: Document, name: str) -> list[Document]:
    """The runtimes of one model."""
    first = deployment.get("model", {}).get("name")
    return [runtime for runtime in deployment.get("runtimes", ()) if (runtime["model"] or first) == name]


def _lengths(name: str, sample: Sample, plan: ModelStatus | None, earlier: Sample | None) -> Iterator[Row]:
    """Each length of a model: its plan, and the rows that arrived and ran there."""
    control, stats = sample.control, sample.row(name, earlier)
    levels, old = _by(stats.now.get("levels"), "max_length"), _by(stats.old.get("levels"), "max_length")
    deployed = _by(reversed(_runtimes(sample.deployment, name)), "max_length")
    rows = sum(Row(level, old.get(length)).grown("ideal") for length, level in levels.items())
    for index, length in enumerate(plan.lengths if plan is not None else sorted(deployed or levels)):
        runtime, level = deployed.get(length, {}), levels.get(length, {})
        row = Row(level, old.get(length), model=name if len(sample.stats) > 1 else None, max_length=length, rows=rows)
        row.facts |= {"runtime": runtime.get("name"), "capacity": runtime.get("capacity")}
        row.facts |= {"latency_ms": _alone_ms(runtime.get("latency", ())), "observed": level.get("instances")}
        if plan is not None and control is not None:
            row.facts |= {"latency_ms": plan.latency_ms[index], "capacity": plan.capacity[index]}
            row.facts |= {"demand": plan.demand[index], "peak": plan.demand_peak[index]}
            mine = [each.name for each in plan.runtimes if each.max_length == length]
            row.facts |= {"runtime": ", ".join(mine), "observed": None}
            if not control.models:  # of several, instances are of all lengths, and stand with the models
                row.facts["desired"] = sum(control.desired.get(each, 0) for each in mine)
                row.facts["observed"] = sum(control.observed.get(each, 0) for each in mine)
        yield row


def _alone_ms(points: Iterable[Document]) -> float | None:
    """The latency of one request of the greatest length measured."""
    points = list(points)
    smallest = min((point["batch"] for point in points), default=0)
    return max((point["latency_us"] / 1000 for point in points if point["batch"] == smallest), default=None)


def _workers(sample: Sample, stats: Row, lengths: list[Row]) -> list[Row]:
    """Each worker; those that are on the move or in trouble first."""
    control = sample.control
    instances: dict[str, list[Document]] = {}
    for item in stats["instances"] or ():
        instances.setdefault(item["worker"], []).append(item)
    old = _by(stats.old.get("instances"), "id")
    known = {worker.id: worker for worker in control.workers} if control is not None else {}
    # Runtimes are labelled by length, or by model where each of several models has its own workers.
    labels = {row["runtime"]: str(row["max_length"]) for row in lengths}
    if control is not None and control.models:
        labels = {runtime.name: runtime.model or "all" for runtime in control.runtimes}
    rows = []
    for name in dict.fromkeys([*known, *instances]):
        row = Row({}, {}, stats.elapsed_s, id=name, serving="", target="", step="", step_s=None)
        if name in known and control is not None:
            _add_worker(row, known[name], control.at_ms)
        if name in instances:
            _add_instances(row, instances[name], old)
        rows.append(row)
    for row in rows:
        serves, target = (labels.get(row[key], row[key]) for key in ("serving", "target"))
        row.facts["serves"] = f"{serves} to {target}".strip() if target else serves
    return sorted(rows, key=lambda row: row["step"] in RESTING)


def _add_worker(row: Row, worker: WorkerStatus, at_ms: int) -> None:
    gone = worker.state != "ready" and worker.step in ("steady", "waiting")
    target = worker.desired if worker.desired != worker.serving else None
    row.facts |= {"serving": worker.serving or "", "target": target or "", "restarts": worker.restarts}
    row.facts |= {"step": worker.state if gone else worker.step, "error": worker.error}
    row.facts["step_s"] = max(0.0, (at_ms - worker.step_since_ms) / 1000)


def _add_instances(row: Row, instances: list[Document], old: dict[str, Document]) -> None:
    serving = next((item for item in instances if item["state"] == "active"), instances[-1])
    row.facts["serving"] = row["serving"] or serving["runtime"]
    row.facts["error"] = row["error"] or serving["last_error"] or None
    if not row["step"] or (row["step"] == "steady" and serving["state"] != "active"):
        row.facts["step"], row.facts["step_s"] = serving["state"], None
    row.now = {key: sum(item[key] for item in instances) for key in ("in_flight", "queued", "failed")}
    for key in ("started", "busy_us"):
        row.now[key] = sum(Row(item, old.get(item["id"])).grown(key) for item in instances)


def _plans(control: ControlStatus) -> Iterator[Row]:
    """The last plans, newest first. A plan that the configuration gives, or that was restored, was not solved."""
    for plan in reversed(control.plans):
        counts = (
            f"{runtime.model} {plan.instances.get(runtime.name, 0)}".strip()
            for runtime in control.runtimes
            if runtime.name in plan.instances or not control.models
        )
        row = Row(dataclasses.asdict(plan), ago_s=max(0.0, (control.at_ms - plan.at_ms) / 1000))
        row.facts |= {"instances": " ".join(counts), "moved": plan.changed if plan.moved else None}
        row.facts["note"] = plan.note or None
        row.facts["mean_ms"] = plan.predicted_mean_ms if plan.solver else None
        row.facts["solver"] = f"{plan.solver} {plan.solve_ms:.1f} ms" if plan.solver else None
        yield row


# --- stages of cascades and pipelines ---


def _flow(name: str, sample: Sample, earlier: Sample | None) -> Document:
    """The stages of a cascade or a pipeline: which rows each answered, how, and notes on them."""
    stats = sample.row(name, earlier)
    if stats["stages"]:
        title, rows, notes = _cascade(name, stats, sample.control)
    else:
        title, rows, notes = _pipeline(name, stats, sample.deployment)
    for row in rows:
        row.facts["entry"] = next((first for each in rows if (first := each.grown(each["came"]))), 0)
        row.elapsed_s = stats.elapsed_s
    return {"name": name, "title": f"stages of {name}: {title}", "stages": as_dicts("stages", rows), "notes": notes}


def _cascade(name: str, stats: Row, control: ControlStatus | None) -> tuple[str, list[Row], list[Note]]:
    searched = control.cascade if control is not None else None
    if searched is not None and (searched.name, searched.point) != (name, stats["point"]):
        searched = None  # of another cascade, or a moment behind
    old = _by(stats.old.get("stages"), "model")
    rows, ended, degraded = [], 0, 0
    for index, stage in enumerate(stats["stages"]):
        row = Row(stage, old.get(stage["model"]), stage=stage["model"], came="visits", dropped=None)
        row.facts["planned"] = searched.reach[index] if searched is not None else None
        exits, visits = row.grown("exits"), row.grown("visits")
        ended, degraded = ended + sum(exits), degraded + sum(exits[DEADLINE:])
        row.facts["by"] = {why: count / visits for why, count in zip(REASONS, exits, strict=False) if count and visits}
        rows.append(row)
    title = f"point {stats['point']}, price {stats['price']}"
    title += f", degraded {degraded / ended:.1%}" if degraded else ""
    agreement = _agreement(stats.now)
    title += f", agrees {agreement:.1%}" if agreement is not None else ""
    title += f" (planned {searched.agreement:.1%})" if searched is not None else ""
    energy = control.energy if control is not None else None
    notes = _shadow_notes(stats["shadows"])
    if energy is not None and energy.joules_per_request is not None:
        notes.append((f"energy: {energy.joules_per_request:.3g} J a row ({energy.source}, idle time included)", ""))
    return title, rows, notes


def _agreement(stats: Document) -> float | None:
    """The metric arlo_cascade_agreement; early answers are assumed to differ as often as those that were checked."""
    early, last = (sum(stage["exits"][reason] for stage in stats["stages"] if stage["exits"]) for reason in (0, 1))
    differ = ratio(stats["shadows"]["disagreed"], stats["shadows"]["rows"])
    return 1.0 - float(early / (early + last) * differ) if differ is not None and early else None


def _shadow_notes(shadows: Document) -> list[Note]:
    """The findings from rows of a cascade that also ran on the last stage."""
    rows, disagreed = shadows["rows"], shadows["disagreed"]
    if not (rows or shadows["skipped"] or shadows["failed"]):
        return []
    text = f"shadow rows: {rows}, {disagreed} of which the last stage answers otherwise"
    text += f" ({disagreed / rows:.1%})" if rows else ""
    text += f"; {shadows['may_differ'] / rows:.1%} may" if shadows["may_differ"] else ""
    text += f"; {shadows['skipped']} left out while it was busy, {shadows['failed']} failed"
    return [(f"DRIFT: {text}", "red")] if shadows["alarm"] else [(text, "")]


def _pipeline(name: str, stats: Row, deployment: Document) -> tuple[str, list[Row], list[Note]]:
    spec = _by(deployment.get("pipelines"), "name").get(name, {"stages": [], "edges": []})
    parent = {edge["to"]: edge["from"] for edge in reversed(spec["edges"]) if edge["to"] >= 0}
    old, rows = _by(stats.old.get("pipeline"), "stage"), []
    for depth, number in _downwards(len(stats["pipeline"]), parent):
        stage = stats["pipeline"][number]
        row = Row(stage, old.get(stage["stage"]), came="arrived", planned=None, stage="  " * depth + stage["stage"])
        came, answered = row.grown("arrived"), row.grown("answered")
        dropped = zip(DROPS, row.grown("dropped"), strict=False)
        row.facts["dropped"] = {why: rows / came for why, rows in dropped if rows and came} or None
        variants = spec["stages"][number]["variants"] if number < len(spec["stages"]) else []
        before = row.old.get("variants") or [{}] * len(variants)
        grown = [Row(*pair).grown("answered") for pair in zip(stage["variants"], before, strict=False)]
        answers = [(variant, count) for variant, count in zip(variants, grown, strict=False) if count]
        row.facts["by"] = {_short(variant["model"]): count / answered for variant, count in answers if answered}
        accuracy = sum(count * variant["accuracy"] for variant, count in answers)
        row.facts["accuracy"] = ratio(accuracy, sum(count for _, count in answers))
        row.facts["price"] = " ".join(f"{price:.3g}" for price in stage["price"])
        rows.append(row)
    notes = _plan_notes(spec, deployment, parent) if spec.get("plan", {}).get("planner") else []
    title = "no plan yet"
    if notes:
        plan = spec["plan"]
        title = f"{plan['step']} scaling, served {plan['served']:.1%}, accuracy {plan['accuracy']:.1%}, "
        title += f"price {plan['price']:.3g}"
    return title, rows, notes + worths(stats.now) + _token_notes(spec, stats.now) + audited(stats["audit"])


def _short(variant: str) -> str:
    """A variant's name without its pipeline and stage."""
    return variant.rpartition(".")[2]


def _downwards(count: int, parent: dict[int, int]) -> list[tuple[int, int]]:
    """Depth and number of each stage, each directly followed by those below it."""
    order: list[tuple[int, int]] = []
    below = [(0, number) for number in range(count) if number not in parent]
    while below:
        depth, number = below.pop(0)
        order.append((depth, number))
        below = [(depth + 1, child) for child in range(count) if parent.get(child) == number] + below
    return order


def _plan_notes(spec: Document, deployment: Document, parent: dict[int, int]) -> list[Note]:
    """The plan of a pipeline: its demand and workers, and each variant's share of the rows and of the workers."""
    plan, first = spec["plan"], deployment["model"]["name"]
    of = {runtime["name"]: runtime["model"] or first for runtime in deployment["runtimes"]}
    of |= {bundle["name"]: of[name] for bundle in deployment["bundles"] for name in bundle["runtimes"][:1]}
    serving = collections.Counter(of.get(instance["runtime"]) for instance in deployment["instances"])
    head = f"plan of {plan['planner']}: {plan['demand']:.4g} rows/s on {plan['workers']} workers"
    head += f", utilisation {plan['utilisation']:.3g}" if plan["utilisation"] else ""
    notes = [(head, "")] + [(text, "yellow") for text in (plan["note"], plan["reason"]) if text]
    at, prefixes = 0, list[int]()
    for number, stage in enumerate(spec["stages"]):
        count = len(stage["variants"])
        prefixes.append((prefixes[parent[number]] if number in parent else 1) * count)
        mine = plan["share"][at : at + prefixes[-1]]
        at += prefixes[-1]
        parts = (
            f"{_short(variant['model'])} {sum(mine[v::count]):.0%} (workers {serving[variant['model']]})"
            for v, variant in enumerate(stage["variants"])
        )
        notes.append((f"  {stage['name']}: {', '.join(parts)}", ""))
    return notes


def worths(stats: Document) -> list[Note]:
    """The four outcomes of OTAS, and utility, of each class, task and tenant. Right answers are an expected number."""
    notes = []
    kinds = {"": stats["worth"], "task ": stats["by_task"], "tenant ": stats["by_tenant"]}
    busy_s = sum(worth["busy_s"] for worth in stats["by_tenant"])
    for kind, worth in [(kind, each) for kind, of_kind in kinds.items() for each in of_kind]:
        if not (worth["in_time"] or worth["late"] or worth["evicted"] or worth["failed"]):
            continue
        text = f"{kind}{worth['of'] or '(none)'}: {worth['right']:.0f} right in time"
        text += f", {worth['in_time'] - worth['right']:.0f} wrong, {worth['late']} late, {worth['evicted']} evicted"
        text += f", {worth['failed']} failed; utility {worth['earned']:.6g} of {worth['offered']:.6g}"
        text += f" ({(ratio(worth['earned'], worth['offered']) or 0.0):.1%})"
        if worth["busy_s"]:
            text += f"; {worth['busy_s'] / busy_s:.0%} of the worker time, at {worth['price']:.3g} times the price"
        notes.append((text, ""))
    return notes


def _token_notes(spec: Document, stats: Document) -> list[Note]:
    """How often rows with fewer tokens get the same label as with all tokens."""
    notes = []
    for stage, counted in zip(spec["stages"], stats["pipeline"], strict=False):
        for variant, one in zip(stage["variants"], counted["variants"], strict=False):
            if rows := one["shadow_rows"]:
                text = f"{variant['model']}: {one['shadow_agreed']} of {rows} shadow rows agree with all tokens"
                notes.append((f"{text} ({one['shadow_agreed'] / rows:.1%})", ""))
    return notes


def audited(audit: Document) -> list[Note]:
    """How often the most accurate variants give the same answer, and whether that is as often as accuracies promise."""
    if not audit["rows"]:
        return []
    rows, differ = audit["rows"], audit["disagreed"]
    text = f"audit: {rows - differ} of {rows} rows, expected accuracy {audit['accuracy'] / rows:.1%},"
    text += f" are answered alike by the most accurate variants; {differ} differ: "
    text += "more often than their accuracies allow" if audit["alarm"] else f"at most {audit['may_differ']:.1f} may"
    return [(text, "red" if audit["alarm"] else "")]
