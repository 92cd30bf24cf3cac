"""A flow file: TOML -> Flow. Tables are [flow], [[flow.stage]], [[flow.stage.variant]] and [[flow.edge]].

An unknown key is an error that names the nearest known one. A variant is either numbers (name, accuracy, latency), for
planning and simulation, or the folder of a compiled repository: its manifest has the latencies, and the flow file its
accuracy.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from arlo.catalog.flow import Expand, Flow, FlowBatch, FlowEdge, FlowStage, FlowVariant, Guard, table_of_ms
from arlo.catalog.flow_exits import with_shares
from arlo.catalog.flow_outcomes import Outcomes
from arlo.catalog.latency import LatencyTable
from arlo.catalog.manifest import Manifest
from arlo.errors import ConfigError

MOST_MS = 3_600_000.0  # per batch
_FLOW = {
    "name", "slo_ms", "router", "drop", "on_drop", "utilisation", "plan_period_s", "max_children", "records",
    "joule", "watts", "stage", "edge",
}  # fmt: skip
_STAGE = {"name", "entry", "variants", "variant", "batch", "lengths", "fire", "told"}
_VARIANT = {
    "name", "accuracy", "latency", "max_lengths", "max_batch", "batches", "memory_mb", "load_ms", "repository",
    "tokens", "temperature", "task_accuracy", "bins", "bin_accuracy", "watts",
}  # fmt: skip
_BATCH = {"max", "wait_ms", "same_utility"}
_EDGE = {"from", "to", "when", "expand", "hop_ms", "answer", "join"}
_WHEN = {"score", "at_least", "below", "label_in", "share"}
_EXPAND = {
    "kind", "output", "max", "factor", "distribution", "counts", "window", "stride", "inputs", "alpha", "min_words",
    "to_level",
}  # fmt: skip
_ANSWER = {"ensemble", "weights"}


def load_flow(path: Path) -> Flow:
    """Read and check a flow file. ConfigError says what to change and where."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the path of a TOML file with a [flow]") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None
    return parse_flow(text, base=path.absolute().parent, source=str(path))


def parse_flow(text: str, *, base: Path, source: str = "flow") -> Flow:
    """Check TOML text; other sections than [flow] are left alone. Folders are relative to `base`."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    if "flow" not in raw:
        raise ConfigError(f"{source} has no [flow]{_nearest('flow', raw)}")
    return read_flow(raw["flow"], base=base, source=source)


def read_flow(raw: Any, *, base: Path, source: str = "flow") -> Flow:
    """The flow in the table [flow] of a parsed file."""
    try:
        return _flow(_table(raw, "[flow]"), base)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _flow(raw: Mapping[str, Any], base: Path) -> Flow:
    _known(raw, _FLOW, "[flow]")
    records = Outcomes.load(base / str(raw["records"])) if raw.get("records") else None
    watts = _taken(raw, "[flow]", {"watts": float})
    stages = tuple(_stage(each, base, records, watts) for each in _tables(raw, "stage", "[flow]"))
    variants = {stage.name: [variant.name for variant in stage.variants] for stage in stages}
    values = _taken(
        raw,
        "[flow]",
        {
            "name": str, "slo_ms": float, "router": str, "drop": str, "on_drop": str,
            "plan_period_s": float, "max_children": int, "records": str, "joule": float,
        },
        required=("name", "slo_ms"),
    )  # fmt: skip
    if raw.get("utilisation") == "window":
        values["utilisation"] = "window"
    elif isinstance(raw.get("utilisation"), str):
        raise ConfigError(f'[flow]: utilisation must be a number or "window", not {raw["utilisation"]!r}')
    else:
        values |= _taken(raw, "[flow]", {"utilisation": float})
    if values.get("records"):
        values["records"] = str(base / values["records"])
    edges = tuple(_edge(each, variants) for each in _tables(raw, "edge", "[flow]"))
    if records is not None:
        edges = with_shares(stages, edges, records.of_stages(stages))
    return Flow(stages=stages, edges=edges, **values)


def _stage(raw: Mapping[str, Any], base: Path, records: Outcomes | None, defaults: Mapping[str, Any]) -> FlowStage:
    """The stage that a table describes. `defaults`: for its variants."""
    where = f"[[flow.stage]] {raw.get('name', '')!r}"
    _known(raw, _STAGE, where)
    values = _taken(raw, where, {"name": str, "entry": bool, "fire": str, "told": bool}, required=("name",))
    named = raw.get("variants", [])
    if not isinstance(named, list):
        raise ConfigError(f"{where}: variants must be an array of repository folders or tables")
    given = [{"repository": each} if isinstance(each, str) else each for each in named] + _tables(raw, "variant", where)
    if not given:
        raise ConfigError(f"{where} has no variants: add [[flow.stage.variant]], or variants = [folders]")
    if "batch" in raw:
        batch = _table(raw["batch"], f"{where} batch")
        _known(batch, _BATCH, f"{where} batch")
        for name in sorted({"wait_ms", "same_utility"} & batch.keys()):
            if name != "wait_ms" or batch[name] != 0:
                raise ConfigError(
                    f"{where} batch: {name} is not served: no worker waits while rows do, and rows of any utility go"
                    " together; leave it out"
                )
        values["batch"] = FlowBatch(**_taken(batch, f"{where} batch", {"max": int}))
    if "lengths" in raw:
        values["lengths"] = tuple((int(a), b) for a, b in _rows(raw["lengths"], 2, f"{where} lengths"))
    limit = values["batch"].max if "batch" in values else FlowBatch().max
    return FlowStage(
        variants=tuple(
            _variant({**defaults, **_table(each, f"{where} variant")}, base, where, limit, records) for each in given
        ),
        **values,
    )


def _variant(raw: Mapping[str, Any], base: Path, stage: str, limit: int, records: Outcomes | None) -> FlowVariant:
    where = f"{stage} variant {raw.get('name') or raw.get('repository', '')!r}"
    _known(raw, _VARIANT, where)
    kinds = {
        "name": str, "max_batch": int, "memory_mb": int, "load_ms": float, "repository": str, "tokens": int,
        "temperature": float, "watts": float,
    }  # fmt: skip
    values = _taken(raw, where, kinds)
    for key in ("max_lengths", "batches", "bins"):
        if key in raw:
            values[key] = tuple(_numbers(raw[key], f"{where} {key}", int))

    def shares(given: Any, key: str) -> tuple[float, ...]:
        return tuple(_numbers(given if isinstance(given, list) else [given], f"{where} {key}", float))

    values |= {key: shares(raw[key], key) for key in ("accuracy", "bin_accuracy") if key in raw}
    if "task_accuracy" in raw:
        by_task = _table(raw["task_accuracy"], f"{where} task_accuracy")
        values["task_accuracy"] = tuple((task, shares(given, "task_accuracy")) for task, given in by_task.items())
    if "latency" in raw:
        lengths = values.get("max_lengths", ()) if "repository" in values else values.get("max_lengths", (1,))
        values["table"] = _latency(raw["latency"], lengths, where)
    if folder := values.get("repository"):
        values = _from_manifest(base / folder, where, measured="table" not in values) | values
        values["repository"] = str(base / folder)
    if records is not None and values.get("name") in records.variants:
        values.setdefault("temperature", records.variants[values["name"]].temperature)
        if "accuracy" not in values:
            values["accuracy"] = records.accuracy(values["name"], values.get("max_lengths", (1,)))
    for key, field in (("name", "name"), ("accuracy", "accuracy"), ("latency", "table")):
        if field not in values:
            raise ConfigError(f"{where}: {key} is missing")
    batches = values["table"].batches()
    values.setdefault("max_batch", max(batches, default=1))
    values["max_batch"] = min(values["max_batch"], limit)
    return FlowVariant(**values)


def _latency(raw: Any, lengths: tuple[int, ...], where: str) -> LatencyTable:
    """The latency table of [rows, ms] points if there is one length, else of [tokens, rows, ms] points."""
    width = len(raw[0]) if isinstance(raw, list) and raw and isinstance(raw[0], list) else 3
    if width == 2 and len(lengths) != 1:
        raise ConfigError(f"{where}: latency needs [tokens, rows, ms] where there may be several max_lengths")
    rows = _rows(raw, 2 if width == 2 else 3, f"{where} latency")
    if worst := next((row for row in rows if row[-1] > MOST_MS), None):
        raise ConfigError(f"{where}: latency is in ms, at most an hour, not {worst[-1]:g}")
    points = [(lengths[0] if len(row) == 2 else int(row[0]), int(row[-2]), row[-1]) for row in rows]
    if len({point[:2] for point in points}) < len(points):
        raise ConfigError(f"{where}: latency has two values for the same rows and tokens")
    return table_of_ms(points)


def _from_manifest(folder: Path, where: str, *, measured: bool) -> dict[str, Any]:
    """A variant's values from its repository: of static runtimes, or of a dynamic one if there are no others."""
    manifest = Manifest.load(folder)
    runtimes = [r for r in manifest.runtimes if not r.dynamic] or list(manifest.runtimes)
    points: list[tuple[int, int, int]] = []
    for runtime in runtimes if measured else ():
        if not runtime.latency:
            raise ConfigError(
                f"{where}: {folder} has no latencies yet: measure them with `arlo compile profile {folder} --update`"
            )
        points += [(runtime.max_length, rows, runtime.latency_ns(rows)) for rows in runtime.table.batches()]
    return {
        "name": folder.name,
        "table": LatencyTable(tuple(dict.fromkeys(points))),
        "max_lengths": tuple(sorted({r.max_length for r in runtimes})),
        "max_batch": min(r.max_batch for r in runtimes),
        "memory_mb": sum(r.memory_mb or 0 for r in runtimes),
        "load_ms": float(sum(r.load_ms or 0 for r in runtimes)),
    }


def _edge(raw: Mapping[str, Any], variants: Mapping[str, list[str]]) -> FlowEdge:
    where = f"[[flow.edge]] {raw.get('from', '')}>{raw.get('to', '')}"
    _known(raw, _EDGE, where)
    values = _taken(raw, where, {"from": str, "to": str, "hop_ms": float, "join": str}, required=("from", "to"))
    tail, head = values.pop("from"), values.pop("to")
    names = variants.get(tail, [])
    if "when" in raw:
        values["when"] = _guard(_table(raw["when"], f"{where} when"), f"{where} when", names)
    if "expand" in raw:
        values["expand"] = _expand(_table(raw["expand"], f"{where} expand"), f"{where} expand", names)
    if "answer" in raw:
        answer = _table(raw["answer"], f"{where} answer")
        _known(answer, _ANSWER, f"{where} answer")
        values["combine"] = _taken(answer, f"{where} answer", {"ensemble": str}).get("ensemble", "weighted")
        if "weights" in answer:
            values["weights"] = tuple(_numbers(answer["weights"], f"{where} answer.weights", float))
    return FlowEdge(tail=tail, head=None if head == "exit" else head, **values)


def _guard(raw: Mapping[str, Any], where: str, names: list[str]) -> Guard:
    _known(raw, _WHEN, where)
    values = _taken(raw, where, {"score": str})
    for key in ("at_least", "below"):
        if key in raw:
            if raw[key] in ("planned", "price"):
                values[key] = raw[key]
            else:
                values |= _taken(raw, where, {key: float})
    if "label_in" in raw:
        given = raw["label_in"]
        if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
            raise ConfigError(f"{where}: label_in must be an array of labels, not {given!r}")
        values["label_in"] = tuple(given)
    if "share" in raw:
        values["share"] = _by_variant(raw["share"], f"{where} share", names)
    return Guard(**values)


def _expand(raw: Mapping[str, Any], where: str, names: list[str]) -> Expand:
    _known(raw, _EXPAND, where)
    values = _taken(
        raw,
        where,
        {
            "kind": str, "output": str, "max": int, "distribution": str, "window": int, "stride": int, "alpha": float,
            "min_words": int, "to_level": bool,
        },
    )  # fmt: skip
    if "factor" in raw:
        values["factor"] = _by_variant(raw["factor"], f"{where} factor", names)
    if "counts" in raw:
        values["counts"] = tuple(_numbers(raw["counts"], f"{where} counts", int))
        values.setdefault("distribution", "empirical")
    if "inputs" in raw:
        given = _table(raw["inputs"], f"{where} inputs")
        if wrong := next((name for name, source in given.items() if not isinstance(source, str)), None):
            raise ConfigError(f"{where} inputs: {wrong} must be the name of an output or input of the tail")
        values["inputs"] = tuple(given.items())
    return Expand(**values)


def _by_variant(raw: Any, where: str, names: list[str]) -> tuple[float, ...]:
    """A number for all variants of the tail, or a table {variant = number} of all of them."""
    if not isinstance(raw, dict):
        return tuple(_numbers([raw], where, float))
    _known(raw, set(names), where)
    if missing := [name for name in names if name not in raw]:
        raise ConfigError(f"{where} lacks the variant {missing[0]!r}")
    return tuple(_numbers([raw[name] for name in names], where, float))


def _known(raw: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in raw:
        if key not in known:
            raise ConfigError(f"{where}: {key!r} is not a key here{_nearest(key, sorted(known))}")


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {match[0]!r}?" if match else f"; known: {', '.join(known) or 'none'}"


def _taken(
    raw: Mapping[str, Any], where: str, kinds: Mapping[str, type], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The values of those of these keys that are present, of the right type."""
    words = {str: "a string", float: "a number", int: "a whole number", bool: "true or false"}
    found: dict[str, Any] = {}
    for key, kind in kinds.items():
        if key not in raw:
            if key in required:
                raise ConfigError(f"{where}: {key} is missing")
            continue
        value = raw[key]
        good = isinstance(value, (int, float) if kind is float else kind)
        if not good or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{where}: {key} must be {words[kind]}, not {value!r}")
        found[key] = float(value) if kind is float else value
    return found


def _table(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} must be a table, not {raw!r}")
    return raw


def _tables(raw: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    given = raw.get(key, [])
    if not isinstance(given, list):
        raise ConfigError(f"{where}: write {key} as an array of tables, [[...{key}]]")
    return [_table(each, f"{where} {key}") for each in given]


def _numbers(raw: Any, where: str, kind: type) -> list[Any]:
    if not isinstance(raw, list) or not raw:
        raise ConfigError(f"{where} must be an array of numbers, not {raw!r}")
    for each in raw:
        if isinstance(each, bool) or not isinstance(each, (int, float) if kind is float else int):
            raise ConfigError(f"{where} must be {'numbers' if kind is float else 'whole numbers'}, not {each!r}")
        if not math.isfinite(each):
            raise ConfigError(f"{where} must be finite, not {each}")
    return [kind(each) for each in raw]


def _rows(raw: Any, width: int, where: str) -> list[list[float]]:
    if not isinstance(raw, list) or not raw:
        raise ConfigError(f"{where} must be an array of {width} numbers each, not {raw!r}")
    rows = [_numbers(each, where, float) for each in raw]
    for row in rows:
        if len(row) != width:
            raise ConfigError(f"{where} must be an array of {width} numbers each, not {row!r}")
        if any(value != int(value) or value < 1 for value in row[:-1]):
            raise ConfigError(f"{where}: tokens and rows are whole numbers from 1, not {row!r}")
    return rows
