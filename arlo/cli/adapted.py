"""The folder that `arlo adapt` writes: the results as adapt.json, and made from it tokens.toml for `arlo simulate`, and
flow.toml with serve.toml for `arlo serve`."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.toml_text import to_toml, write_whole
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.compile.adapt.kept import Examined
    from arlo.compile.adapt.texts import Subject
    from arlo.planning.lengths.pairs import Engine

FILE = "adapt.json"
TASKS = "tasks"  # a folder: the fitted parts of each task that has a name
PARTS = ".parts"  # a folder while repositories are built


def read_adapted(folder: Path) -> dict[str, Any]:
    """adapt.json. ConfigError when there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
        for each in found["variants"]:  # older files give these once for all lengths
            each.setdefault("length", found["length"])
            each.setdefault("rows", found["rows"]["measured"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / FILE} cannot be read ({error}): give the folder that `arlo adapt` wrote"
        ) from None
    return found


def write_adapted(result: Mapping[str, Any], out: Path) -> None:
    """Write adapt.json and the files made from it; each whole, and flow.toml, which `arlo serve` follows, last."""
    write_whole(out / FILE, json.dumps(result, indent=1) + "\n")
    write_whole(out / "tokens.toml", tokens_file(result))
    if "repository" in result["variants"][0]:
        if not (out / "serve.toml").exists():
            write_whole(out / "serve.toml", SERVE)
        write_whole(out / "flow.toml", flow_file(result))


def described(examined: Examined, subject: Subject) -> dict[str, Any]:
    """A variant of one maximum length in adapt.json. All but the longest are measured on the rows that fit."""
    import numpy as np

    from arlo.catalog.flow_outcomes import by_length, interval

    plan, by_task, lengths = examined.plan, examined.right, subject.row_lengths(examined.plan)
    right = np.concatenate(list(by_task.values()))
    ends = subject.ends(plan)
    starts = np.cumsum([0, *(len(one) for one in by_task.values())])
    pieces = {name: slice(a, b) for name, a, b in zip(by_task, starts, starts[1:], strict=False)}
    return {
        "name": plan.name,
        "tokens": plan.tokens,
        "length": plan.length,
        "kind": plan.kind,
        "each": plan.merge,
        "schedule": list(plan.schedule),
        "multiplications": plan.multiplications,
        "rows": len(right),
        "accuracy": float(right.mean()),
        "interval": interval(int(right.sum()), len(right)),
        "bins": by_length(right, lengths, ends) if len(lengths) else [],
        "by_task": {name: float(one.mean()) for name, one in by_task.items()},
        "bins_by_task": {name: by_length(right[one], lengths[one], ends) for name, one in pieces.items()}
        if len(lengths)
        else {},
        "verified": dataclasses.asdict(examined.compared),
    }


def merged(before: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """A variant with the measurements of another task added."""
    from arlo.catalog.flow_outcomes import interval

    def both(old: dict[str, Any], new: dict[str, Any], counts: tuple[int, int]) -> dict[str, Any]:
        right = round(old["accuracy"] * counts[0] + new["accuracy"] * counts[1])
        return {"accuracy": right / sum(counts), "interval": interval(right, sum(counts))}

    bins = {each["max_length"]: each for each in before["bins"]}
    for each in added["bins"]:
        old = bins.get(each["max_length"])
        total = each["rows"] + (old["rows"] if old else 0)
        bins[each["max_length"]] = (
            {**old, "rows": total, **both(old, each, (old["rows"], each["rows"]))} if old else each
        )
    return {
        **before,
        "rows": before["rows"] + added["rows"],
        **both(before, added, (before["rows"], added["rows"])),
        "bins": [bins[end] for end in sorted(bins)],
        "by_task": before["by_task"] | added["by_task"],
        "bins_by_task": before.get("bins_by_task", {}) | added["bins_by_task"],
        "verified": added["verified"],
    }


def by_repository(variants: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The variants by the repository that they are served from, ascending by length: the several lengths of a count
    share one."""
    several = len({each["length"] for each in variants}) > 1
    found: dict[str, list[dict[str, Any]]] = {}
    for each in sorted(variants, key=lambda one: int(one["length"])):
        name = str(each["name"])
        found.setdefault(name.rpartition("-")[0] if several else name, []).append(each)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """A token count as it is served: each row uses the shortest engine that it fits."""

    name: str  # of its repository
    engines: tuple[Mapping[str, Any], ...]  # in adapt.json, ascending by length
    accuracy: float
    by_task: Mapping[str, float]
    bins_by_task: Mapping[str, list[dict[str, Any]]]

    @property
    def tokens(self) -> int:
        """The tokens that each layer adds, or, below 0, merges away."""
        return int(self.engines[0]["tokens"])

    @property
    def points(self) -> list[list[float]]:
        """[length, rows, ms] of all engines."""
        return [
            [int(each["length"]), int(rows), round(ms, 3)]
            for each in self.engines
            for rows, ms in each["latency_ms"].items()
        ]


def counts_of(result: Mapping[str, Any]) -> list[Count]:
    """The served counts of an adapt.json, ascending by tokens; of counts with the same tokens the most accurate one."""
    best: dict[int, Count] = {}
    for name, engines in by_repository(result["variants"]).items():
        found = _count(name, engines)
        if found.tokens not in best or found.accuracy > best[found.tokens].accuracy:
            best[found.tokens] = found
    return sorted(best.values(), key=lambda each: each.tokens)


def _count(name: str, engines: Sequence[Mapping[str, Any]]) -> Count:
    longest = engines[-1]
    if len(engines) == 1:
        return Count(name, tuple(engines), longest["accuracy"], longest["by_task"], longest.get("bins_by_task", {}))
    bins: dict[str, list[dict[str, Any]]] = {task: [] for task in longest["bins_by_task"]}
    for task, found in bins.items():
        shorter = 0
        for engine in engines:
            found += [each for each in engine["bins_by_task"][task] if each["max_length"] > shorter]
            shorter = engine["length"]

    def mean(parts: Sequence[Mapping[str, Any]]) -> float:
        return float(sum(each["accuracy"] * each["rows"] for each in parts) / sum(each["rows"] for each in parts))

    every = [each for parts in bins.values() for each in parts]
    return Count(name, tuple(engines), mean(every), {task: mean(parts) for task, parts in bins.items()}, bins)


def tokens_file(result: Mapping[str, Any]) -> str:
    """The results as a file for `arlo simulate`: three classes of queries of each task, as long as the measured rows
    were."""
    counts = counts_of(result)
    slo_ms = float(result["slo_ms"])
    tasks = list(counts[0].by_task)
    found = [length_bins(each.bins_by_task, each.by_task) for each in counts]
    ends = found[0][0]
    by_length = bool(ends) or any(len(each.engines) > 1 for each in counts)
    tokens = {
        "name": result["model"],
        "batch": max(int(rows) for _, rows, _ in counts[0].points),
        "delta_ms": slo_ms,
        "eta_ms": slo_ms,
        "horizon_s": max(5.0, slo_ms / 200),
        "bins": ends or None,
        "accuracy": {task: [round(each.by_task[task], 4) for each in counts] for task in tasks},
        "bin_accuracy": {task: [_rounded(accuracy[task]) for _, accuracy in found] for task in tasks} if ends else None,
        "variant": [
            {"tokens": each.tokens, "latency": each.points if by_length else [point[1:] for point in each.points]}
            for each in counts
        ],
        "query": [
            {"task": task, "slo_ms": slo_ms * patience, "utility": utility}
            for task, (utility, patience) in itertools.product(tasks, ((1.0, 1), (0.3, 1), (0.1, 2)))
        ],
    }
    workload = {"workload": {"length": _lengths(counts[0])}} if by_length else {}
    return to_toml(
        {**workload, "tokens": tokens},
        "Written by `arlo adapt`: accuracies and latencies as measured; what queries are worth is assumed.",
    )


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(each, 4) for each in values]


def _lengths(count: Count) -> str:
    """The measured rows' lengths as a distribution, uniform within each bin."""
    rows: dict[int, int] = {}
    for bins in count.bins_by_task.values():
        for each in bins:
            rows[each["max_length"]] = rows.get(each["max_length"], 0) + each["rows"]
    starts = [1, *(end + 1 for end in sorted(rows))]
    total = sum(rows.values())
    parts = [
        f"{rows[end] / total:.4f}*uniform:{start}:{end}"
        for start, end in zip(starts, sorted(rows), strict=False)
        if rows[end] >= total / 10_000
    ]
    return f"mixture:{'+'.join(parts)}"


SERVE = """\
# Written by `arlo adapt`: all variants as one model, on one worker. `arlo serve serve.toml`
[pipeline]
flow = "flow.toml"
tokens = "price"                        # or "fixed:0", "fixed:-8": always so many

[workers]
count = 1
run_dir = "run"
threads = 1

[gateway]
grpc_address = "127.0.0.1:8001"
http_address = "127.0.0.1:8002"
admin_address = "127.0.0.1:8003"
"""


FEW_ROWS = 100  # a length bin with fewer measured rows of a task is merged with the one above
ALL_ROWS = 200  # in a bin of so many rows, its own accuracy counts half, that of all lengths the other half


def length_bins(
    measured: Mapping[str, Sequence[Mapping[str, Any]]], by_task: Mapping[str, float]
) -> tuple[list[int], dict[str, list[float]]]:
    """Ends of length bins that have enough `measured` rows, by task; and the accuracy in each, drawn towards `by_task`,
    that of all lengths, as if `ALL_ROWS` more had been measured with it: a bin of few rows differs by chance. Empty if
    there are no two such bins."""
    if not measured or measured.keys() != by_task.keys():
        return [], {}
    rows = {task: {each["max_length"]: each["rows"] for each in bins} for task, bins in measured.items()}
    right = {
        task: {each["max_length"]: each["accuracy"] * each["rows"] for each in bins} for task, bins in measured.items()
    }
    groups: list[list[int]] = [[]]
    for end in sorted(set().union(*rows.values())):
        if groups[-1] and all(sum(one.get(e, 0) for e in groups[-1]) >= FEW_ROWS for one in rows.values()):
            groups.append([])
        groups[-1].append(end)
    if len(groups) > 1 and any(sum(one.get(e, 0) for e in groups[-1]) < FEW_ROWS for one in rows.values()):
        groups[-2:] = [groups[-2] + groups[-1]]
    if len(groups) < 2:
        return [], {}
    accuracy = {
        task: [
            (sum(right[task].get(e, 0) for e in ends) + ALL_ROWS * by_task[task])
            / (sum(rows[task].get(e, 0) for e in ends) + ALL_ROWS)
            for ends in groups
        ]
        for task in measured
    }
    return [ends[-1] for ends in groups], accuracy


def flow_file(result: Mapping[str, Any]) -> str:
    """The results as a flow of one stage, for `arlo serve`: it gets all variants of more and fewer tokens."""
    here = result.get("engine", "onnxruntime") == "onnxruntime"  # other engines state their needs in the repository
    variants = []
    for each in reversed(counts_of(result)):
        ends, by_length = length_bins(each.bins_by_task, each.by_task)
        right: Any = {task: _rounded(one) for task, one in by_length.items()}
        if not ends:
            right = {task: round(one, 4) for task, one in each.by_task.items()}
        variants.append(
            {
                "repository": each.name,
                "tokens": each.tokens,
                "accuracy": round(each.accuracy, 4),
                "max_lengths": [engine["length"] for engine in each.engines],
                "latency": each.points if here else None,
                "bins": ends or None,
                "task_accuracy": right if result["room"] else None,
                "bin_accuracy": next(iter(right.values())) if ends and not result["room"] else None,
            }
        )
    flow = {"name": result["name"], "slo_ms": result["slo_ms"], "stage": [{"name": "tokens", "variant": variants}]}
    return to_toml(
        {"flow": flow}, "Written by `arlo adapt`: one model at several token counts; accuracies as measured."
    )


def engines_of(variants: Sequence[Mapping[str, Any]]) -> list[Engine]:
    """The variants of an adapt.json as pairs of length and tokens, with the measured accuracy of each length bin; a bin
    without rows has that of the next one. Of several with the same pair the most accurate one."""
    from arlo.planning.lengths.pairs import Engine

    engines = []
    best: dict[tuple[int, int], Mapping[str, Any]] = {}
    for each in variants:
        pair = (int(each["length"]), int(each["tokens"]))
        if pair not in best or each["accuracy"] > best[pair]["accuracy"]:
            best[pair] = each
    for (length, tokens), each in best.items():
        bins = [(int(one["max_length"]), float(one["accuracy"])) for one in each["bins"]]
        if not bins or bins[-1][0] < length:
            bins.append((length, bins[-1][1] if bins else float(each["accuracy"])))
        time_us = 1000 * float(each["latency_ms"]["1"])
        engines.append(
            Engine(length=length, tokens=tokens, time_us=time_us, accuracy=tuple(bins), name=str(each["name"]))
        )
    return engines


def chosen_pairs(
    variants: Sequence[dict[str, Any]], counts: Mapping[int, float], worth_us: float, most: int
) -> list[dict[str, Any]]:
    """The variants that pay for rows of these lengths, and always the
    longest one of each count, for a count takes every row. ConfigError."""
    from arlo.planning.lengths.pairs import choose_pairs

    found = choose_pairs(engines_of(variants), counts, worth_us=worth_us, most=most)
    names = {engine.name for engine in found.chosen.engines}
    counts_kept = {(each["tokens"], each["kind"]) for each in variants if each["name"] in names}
    longest = max(each["length"] for each in variants)
    return [
        each
        for each in variants
        if each["name"] in names or (each["length"] == longest and (each["tokens"], each["kind"]) in counts_kept)
    ]
