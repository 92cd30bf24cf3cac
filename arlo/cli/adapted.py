"""The folder that `arlo adapt` writes: what was found as adapt.json; made of it, tokens.toml for `arlo simulate`, and
flow.toml with serve.toml for `arlo serve`."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.compile.adapt.variant import Plan
    from arlo.planning.lengths.pairs import Engine

FILE = "adapt.json"
TASKS = "tasks"  # a folder: what was fitted for each task that has a name


def read_adapted(folder: Path) -> dict[str, Any]:
    """adapt.json. ConfigError when there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / FILE} cannot be read ({error}): give the folder that `arlo adapt` wrote"
        ) from None
    return found


def write_adapted(result: Mapping[str, Any], out: Path) -> None:
    """adapt.json, and the files that are made of it; each whole, and flow.toml, which `arlo serve` follows, last."""
    _write(out / FILE, json.dumps(result, indent=1) + "\n")
    _write(out / "tokens.toml", tokens_file(result))
    if "repository" in result["variants"][0]:
        if not (out / "serve.toml").exists():
            _write(out / "serve.toml", SERVE)
        _write(out / "flow.toml", flow_file(result))


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(file)


def described(plan: Plan, compared: Any, by_task: Mapping[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    """A variant in adapt.json. by_task: whether each measured row is right; lengths: of all of them, tokens."""
    import numpy as np

    from arlo.catalog.flow_outcomes import interval

    right = np.concatenate(list(by_task.values()))
    ends = [plan.length // 4, plan.length // 2, plan.length - 1, plan.length]
    bins = np.searchsorted(ends, lengths)

    def by_length(right: Any, bins: Any) -> list[dict[str, Any]]:
        told = []
        for i, end in enumerate(ends):
            if rows := int((bins == i).sum()):
                good = int(right[bins == i].sum())
                told.append(
                    {"max_length": end, "rows": rows, "accuracy": good / rows, "interval": interval(good, rows)}
                )
        return told

    starts = np.cumsum([0, *(len(one) for one in by_task.values())])
    pieces = {name: slice(a, b) for name, a, b in zip(by_task, starts, starts[1:], strict=False)}
    return {
        "name": plan.name,
        "tokens": plan.tokens,
        "kind": plan.kind,
        "each": plan.merge,
        "schedule": list(plan.schedule),
        "multiplications": plan.multiplications,
        "accuracy": float(right.mean()),
        "interval": interval(int(right.sum()), len(right)),
        "bins": by_length(right, bins) if len(lengths) else [],
        "by_task": {name: float(one.mean()) for name, one in by_task.items()},
        "bins_by_task": {name: by_length(right[one], bins[one]) for name, one in pieces.items()}
        if len(lengths)
        else {},
        "verified": dataclasses.asdict(compared),
    }


def merged(before: dict[str, Any], added: dict[str, Any], rows: tuple[int, int]) -> dict[str, Any]:
    """A variant with what was measured of another task; rows: that were measured before, and now."""
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
        **both(before, added, rows),
        "bins": [bins[end] for end in sorted(bins)],
        "by_task": before["by_task"] | added["by_task"],
        "bins_by_task": before.get("bins_by_task", {}) | added["bins_by_task"],
        "verified": added["verified"],
    }


def _distinct(variants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of variants with the same tokens the most accurate one: a count says which one is meant."""
    best: dict[int, dict[str, Any]] = {}
    for each in variants:
        if each["tokens"] not in best or each["accuracy"] > best[each["tokens"]]["accuracy"]:
            best[each["tokens"]] = each
    return list(best.values())


def tokens_file(result: Mapping[str, Any]) -> str:
    """What was found as a file for `arlo simulate`: three classes of queries of each task."""
    variants = sorted(_distinct(result["variants"]), key=lambda each: int(each["tokens"]))
    slo_ms = float(result["slo_ms"])
    lines = [
        "# Written by `arlo adapt`: accuracies and latencies as measured; what queries are worth is assumed.",
        "[tokens]",
        f'name = "{result["model"]}"',
        f"batch = {max(int(rows) for rows in variants[0]['latency_ms'])}",
        f"delta_ms = {slo_ms:g}",
        f"eta_ms = {slo_ms:g}",
        f"horizon_s = {max(5.0, slo_ms / 200):g}",
    ]
    for each in variants:
        points = ", ".join(f"[{rows}, {ms:.3f}]" for rows, ms in each["latency_ms"].items())
        lines += ["[[tokens.variant]]", f"tokens = {each['tokens']}", f"latency = [{points}]"]
    tasks = {task: [each["by_task"][task] for each in variants] for task in variants[0]["by_task"]}
    lines += ["[tokens.accuracy]"]
    lines += [f"{task} = [{', '.join(f'{one:.4f}' for one in right)}]" for task, right in tasks.items()]
    for task, (utility, patience) in itertools.product(tasks, ((1.0, 1), (0.3, 1), (0.1, 2))):
        lines += ["[[tokens.query]]", f'task = "{task}"', f"slo_ms = {slo_ms * patience:g}", f"utility = {utility}"]
    return "\n".join(lines) + "\n"


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


FEW_ROWS = 100  # a length bin with fewer measured rows of a task is put together with the one above
ALL_ROWS = 200  # what a bin of so many rows says counts half beside what rows of all lengths say


def length_bins(variant: Mapping[str, Any]) -> tuple[list[int], dict[str, list[float]]]:
    """Ends of length bins that enough rows were measured of, and the accuracy in each by task, drawn towards that of
    all lengths as if `ALL_ROWS` more had been measured with it: a bin of few rows differs by chance. Nothing where
    there are no two such bins."""
    measured = variant.get("bins_by_task", {})
    if not measured or measured.keys() != variant["by_task"].keys():
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
            (sum(right[task].get(e, 0) for e in ends) + ALL_ROWS * variant["by_task"][task])
            / (sum(rows[task].get(e, 0) for e in ends) + ALL_ROWS)
            for ends in groups
        ]
        for task in measured
    }
    return [ends[-1] for ends in groups], accuracy


def flow_file(result: Mapping[str, Any]) -> str:
    """What was found as a flow of one stage, for `arlo serve`: the variants of more and less tokens are its own."""
    lines = [
        "# Written by `arlo adapt`: one model at several token counts; accuracies as measured.",
        "[flow]",
        f'name = "{result["name"]}"',
        f"slo_ms = {result['slo_ms']:g}",
        "[[flow.stage]]",
        'name = "tokens"',
    ]
    for each in sorted(_distinct(result["variants"]), key=lambda one: -int(one["tokens"])):
        lines += [
            "[[flow.stage.variant]]",
            f'repository = "{each["name"]}"',
            f"tokens = {each['tokens']}",
            f"accuracy = {each['accuracy']:.4f}",
            f"max_lengths = [{result['length']}]",
        ]
        if result.get("engine", "onnxruntime") == "onnxruntime":  # else what it takes is in the repository
            points = ", ".join(f"[{rows}, {ms:.3f}]" for rows, ms in each["latency_ms"].items())
            lines.append(f"latency = [{points}]")
        ends, by_length = length_bins(each)
        told = {task: f"[{', '.join(f'{one:.4f}' for one in right)}]" for task, right in by_length.items()}
        if ends:
            lines.append(f"bins = {ends}")
        if result["room"]:
            told = told or {task: f"{right:.4f}" for task, right in each["by_task"].items()}
            lines.append(f"task_accuracy = {{{', '.join(f'{task} = {right}' for task, right in told.items())}}}")
        elif ends:
            lines.append(f"bin_accuracy = {next(iter(told.values()))}")
    return "\n".join(lines) + "\n"


def engines_of(folder: Path) -> list[Engine]:
    """The variants of a folder as pairs of length and tokens, with the accuracy of each length bin that was measured;
    a bin without rows has that of the next one. ConfigError."""
    from arlo.planning.lengths.pairs import Engine

    result = read_adapted(folder)
    length = int(result["length"])
    engines = []
    for each in _distinct(result["variants"]):
        bins = [(int(one["max_length"]), float(one["accuracy"])) for one in each["bins"]]
        if not bins or bins[-1][0] < length:
            bins.append((length, bins[-1][1] if bins else float(each["accuracy"])))
        name = f"{folder.name}/{each['name']}"
        time_us = 1000 * float(each["latency_ms"]["1"])
        engines.append(Engine(length=length, tokens=each["tokens"], time_us=time_us, accuracy=tuple(bins), name=name))
    return engines
