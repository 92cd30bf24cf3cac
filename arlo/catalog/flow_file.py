"""A flow file: TOML -> Flow. Tables are [flow], [[flow.stage]], [[flow.stage.variant]] and [[flow.edge]].

An unknown key is an error that names the nearest known one. A variant is either numbers (name, accuracy, latency), for
planning and simulation, or the folder of a compiled repository: its manifest has the latencies, and the flow file its
accuracy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arlo.catalog.flow import EXIT, Expand, Flow, FlowBatch, FlowEdge, FlowStage, FlowVariant, Guard, table_of_ms
from arlo.catalog.flow_exits import with_shares
from arlo.catalog.flow_outcomes import Outcomes
from arlo.catalog.latency import LatencyTable
from arlo.catalog.manifest import Manifest
from arlo.catalog.structured import check_known, plain, table, values_of
from arlo.errors import ConfigError

MOST_MS = 3_600_000.0  # per batch


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
        raise ConfigError(f"{source} has no [flow]")
    try:
        return _flow(table(raw["flow"], "[flow]"), base)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _flow(raw: Mapping[str, Any], base: Path) -> Flow:
    more = ("watts", "stage", "edge")
    values = values_of(Flow, raw, "[flow]", also=more, but=("stages", "edges"), required=("name", "slo_ms"))
    defaults = {"watts": plain(raw["watts"], float, "[flow]: watts")} if "watts" in raw else {}
    records = None
    if values.get("records"):
        values["records"] = str(base / values["records"])
        records = Outcomes.load(Path(values["records"]))
    stages = tuple(_stage(each, base, records, defaults) for each in _tables(raw, "stage", "[flow]"))
    variants = {stage.name: [variant.name for variant in stage.variants] for stage in stages}
    edges = tuple(_edge(each, variants) for each in _tables(raw, "edge", "[flow]"))
    if records is not None:
        edges = with_shares(stages, edges, records.of_stages(stages))
    return Flow(stages=stages, edges=edges, **values)


def _stage(raw: Mapping[str, Any], base: Path, records: Outcomes | None, defaults: Mapping[str, Any]) -> FlowStage:
    """The stage that a table describes. `defaults`: for its variants."""
    where = f"[[flow.stage]] {raw.get('name', '')!r}"
    values = values_of(FlowStage, raw, where, also=("variants", "variant", "batch", "lengths"), required=("name",))
    named = raw.get("variants", [])
    if not isinstance(named, list):
        raise ConfigError(f"{where}: variants must be an array of repository folders or tables")
    given = [{"repository": each} if isinstance(each, str) else each for each in named] + _tables(raw, "variant", where)
    if not given:
        raise ConfigError(f"{where} has no variants: add [[flow.stage.variant]], or variants = [folders]")
    if "batch" in raw:
        values["batch"] = FlowBatch(**values_of(FlowBatch, raw["batch"], f"{where} batch"))
    if "lengths" in raw:
        values["lengths"] = tuple((int(a), b) for a, b in _rows(raw["lengths"], 2, f"{where} lengths"))
    limit = values.get("batch", FlowBatch()).max
    variants = ({**defaults, **table(each, f"{where} variant")} for each in given)
    return FlowStage(variants=tuple(_variant(each, base, where, limit, records) for each in variants), **values)


def _variant(raw: Mapping[str, Any], base: Path, stage: str, limit: int, records: Outcomes | None) -> FlowVariant:
    where = f"{stage} variant {raw.get('name') or raw.get('repository', '')!r}"
    shares = ("accuracy", "bin_accuracy")  # a number, or several
    more = ("latency", "task_accuracy", *shares)
    values = values_of(FlowVariant, raw, where, also=more, but=("table",))

    def share(given: Any, key: str) -> tuple[float, ...]:
        found: tuple[float, ...] = plain(
            given if isinstance(given, list) else [given], tuple[float, ...], f"{where}: {key}"
        )
        return found

    values |= {key: share(raw[key], key) for key in shares if key in raw}
    if "task_accuracy" in raw:
        by_task = table(raw["task_accuracy"], f"{where} task_accuracy")
        values["task_accuracy"] = tuple((task, share(given, "task_accuracy")) for task, given in by_task.items())
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
    values["max_batch"] = min(values.get("max_batch", max(batches, default=1)), limit)
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
    hidden = ("tail", "head", "combine", "weights")
    more = ("from", "to", "when", "expand", "answer")
    values = values_of(FlowEdge, raw, where, also=more, but=hidden, required=("from", "to"))
    tail, head = (plain(raw[key], str, f"{where}: {key}") for key in ("from", "to"))
    names = variants.get(tail, [])
    if "when" in raw:
        at = f"{where} when"
        found = values_of(Guard, raw["when"], at, also=("share",))
        values["when"] = Guard(**found | _by_variant(raw["when"], "share", at, names))
    if "expand" in raw:
        values["expand"] = _expand(raw["expand"], f"{where} expand", names)
    if "answer" in raw:
        at = f"{where} answer"
        check_known(table(raw["answer"], at), ("ensemble", "weights"), at)
        values["combine"] = plain(raw["answer"].get("ensemble", "weighted"), str, f"{at}: ensemble")
        if "weights" in raw["answer"]:
            values["weights"] = plain(raw["answer"]["weights"], tuple[float, ...], f"{at}.weights")
    return FlowEdge(tail=tail, head=None if head == EXIT else head, **values)


def _expand(raw: Any, where: str, names: list[str]) -> Expand:
    values = values_of(Expand, raw, where, also=("factor", "inputs")) | _by_variant(raw, "factor", where, names)
    if "counts" in values:
        values.setdefault("distribution", "empirical")
    if "inputs" in raw:
        given = table(raw["inputs"], f"{where} inputs")
        if wrong := next((name for name, source in given.items() if not isinstance(source, str)), None):
            raise ConfigError(f"{where} inputs: {wrong} must be the name of an output or input of the tail")
        values["inputs"] = tuple(given.items())
    return Expand(**values)


def _by_variant(raw: Mapping[str, Any], key: str, where: str, names: list[str]) -> dict[str, tuple[float, ...]]:
    """A key's number for all variants of the tail, or its table {variant = number} of all of them."""
    if key not in raw:
        return {}
    given = raw[key]
    if isinstance(given, dict):
        check_known(given, names, f"{where} {key}")
        if missing := [name for name in names if name not in given]:
            raise ConfigError(f"{where} {key} lacks the variant {missing[0]!r}")
    values = [given[name] for name in names] if isinstance(given, dict) else [given]
    return {key: plain(values, tuple[float, ...], f"{where} {key}")}


def _tables(raw: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    given = raw.get(key, [])
    if not isinstance(given, list):
        raise ConfigError(f"{where}: write {key} as an array of tables, [[...{key}]]")
    return [table(each, f"{where} {key}") for each in given]


def _rows(raw: Any, width: int, where: str) -> list[tuple[float, ...]]:
    if not isinstance(raw, list) or not raw:
        raise ConfigError(f"{where} must be an array of {width} numbers each, not {raw!r}")
    rows: list[tuple[float, ...]] = [plain(each, tuple[float, ...], where) for each in raw]
    for row in rows:
        if len(row) != width:
            raise ConfigError(f"{where} must be an array of {width} numbers each, not {list(row)}")
        if any(value != int(value) or value < 1 for value in row[:-1]):
            raise ConfigError(f"{where}: tokens and rows are whole numbers from 1, not {list(row)}")
    return rows
