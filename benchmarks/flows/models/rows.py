"""What a flow makes of rows, for Triton models that run one: pieces, guards, where rows end. Copied beside model.py.

The rules are the gateway's (src/gateway/desk/flow_call.cc). A flow is what `arlo export-ensemble` wrote into the model
parameter `flow`: stages with their edges, parents before children. It needs numpy only.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
EXIT = -1


@dataclasses.dataclass(frozen=True)
class Visit:
    """A row at a stage."""

    row: int  # of the client's
    ids: Ids
    way: tuple[tuple[int, int], ...] = ()  # edges and places among siblings, from the entry: answers come in this order


def read_flow(config: dict[str, Any]) -> dict[str, Any]:
    """The flow of a model configuration."""
    found: dict[str, Any] = json.loads(config["parameters"]["flow"]["string_value"])
    return found


def rows_of(ids: NDArray[Any], mask: NDArray[Any]) -> list[Ids]:
    """Rows [rows, tokens] without the padding at their ends. ValueError where a row is empty, or the two differ."""
    if ids.ndim != 2 or ids.shape != mask.shape:
        raise ValueError(f"input ids and mask must be [rows, tokens] alike, not {ids.shape} and {mask.shape}")
    lengths = mask.astype(bool).sum(axis=1)
    if not lengths.all():
        raise ValueError("a row has no token")
    return [row[:length].astype(np.int64) for row, length in zip(ids, lengths.tolist(), strict=True)]


def padded(rows: list[Ids], length: int, pad: int) -> tuple[Ids, Ids]:
    """Ids and mask [rows, length]; of `length` 0 as long as the longest row. ValueError for a row that is longer."""
    longest = max((len(row) for row in rows), default=1)
    if length and longest > length:
        raise ValueError(f"a row has {longest} tokens, and the stage takes {length} at most")
    ids = np.full((len(rows), length or longest), pad, np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask


def pieces(ids: Ids, window: int, stride: int) -> list[Ids]:
    """A row as it goes on: whole, or in pieces of at most `window` tokens with its first and last token around each."""
    if window == 0 or len(ids) <= window:
        return [ids]
    content, end, found = window - 2, len(ids) - 1, []
    for start in range(1, end, stride):
        found.append(np.concatenate([ids[:1], ids[start : min(start + content, end)], ids[-1:]]))
        if start + content >= end:
            break
    return found


def judged(logits: NDArray[np.float32], t: float) -> tuple[int, float]:
    """Most likely label, and how sure it is; -1: no answer to judge by."""
    if logits.size == 0 or not np.isfinite(logits).all():
        return -1, 0.0
    best = int(logits.argmax())
    return best, 1 / float(np.exp((logits - logits[best]).astype(np.float64) / t).sum())


def taken(stage: dict[str, Any], logits: NDArray[np.float32] | None) -> list[int]:
    """Edges of a stage that a row takes whose answer has these logits. None: it ends there."""
    label, sure = judged(logits, stage["t"]) if logits is not None else (-1, 0.0)
    found: list[int] = []
    for number, edge in enumerate(stage["edges"]):
        if edge["judges"]:
            if label < 0 or sure < edge["at_least"] or (edge["below"] > 0 and sure >= edge["below"]):
                continue
            if edge["labels"] and label not in edge["labels"]:
                continue
        if edge["to"] == EXIT:
            return []
        if not found or not stage["first"]:
            found.append(number)
    return found


def children(visit: Visit, stage: dict[str, Any], logits: NDArray[np.float32] | None) -> list[tuple[int, Visit]]:
    """What an answered visit becomes: (stage, visit). None: it ends."""
    return [
        (edge["to"], Visit(visit.row, ids, (*visit.way, (number, index))))
        for number in taken(stage, logits)
        for edge in [stage["edges"][number]]
        for index, ids in enumerate(pieces(visit.ids, edge["window"], edge["stride"]))
    ]


class Answers:
    """Of all rows, what the stages said where they ended; outputs in the gateway's order."""

    def __init__(self, flow: dict[str, Any]) -> None:
        self._stages = flow["stages"]
        self._ended: list[list[tuple[Visit, dict[str, NDArray[Any]]]]] = [[] for _ in self._stages]

    def add(self, stage: int, visit: Visit, said: dict[str, NDArray[Any]]) -> None:
        """A visit has ended; `said`: of this row alone."""
        self._ended[stage].append((visit, said))

    def tensors(self, rows: range) -> dict[str, NDArray[Any]]:
        """Outputs of some client rows, which count from 0 there."""
        found: dict[str, NDArray[Any]] = {}
        for stage, ended in zip(self._stages, self._ended, strict=True):
            if not stage["ends"]:
                continue
            mine = sorted((each for each in ended if each[0].row in rows), key=lambda each: (each[0].row, each[0].way))
            for out in stage["answers"]:
                empty = np.zeros((0, *out["dims"]), out["numpy"])
                values = [said[out["name"]] for _, said in mine]
                found[stage["prefix"] + out["name"]] = np.stack(values) if values else empty
            found[stage["prefix"] + "row"] = np.array([visit.row - rows.start for visit, _ in mine], np.int32)
        return found
