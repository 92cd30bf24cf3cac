"""`reference.npz`: the texts that every runtime is verified with, and the original model's answers to them.

It is written by `reference`, read by `verify` and `arlo compile verify`, and lies in the root of a repository, so that
engines can be verified on another machine than the one that built them, without the original model.

    ids, types     [all tokens]  token ids and token types of all rows, one after the other
    lengths        [rows]        tokens of each row
    levels         [rows]        the runtime length that a row was chosen for
    deep           [rows]        whether the token-level outputs behind the first output are kept for it
    answer:<name>  row-level: [rows, *dims]; token-level: [all tokens, *dims] of the first output and of those with one
                   number a token, see `kept_whole`; of another one [kept tokens of the deep rows, *dims], see
                   `kept_positions`. Outputs on request may be missing: an ONNX file has no importance to compare with
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import InputTensor, OutputTensor
from arlo.catalog.tensors import sample
from arlo.errors import ConfigError

FILE_NAME = "reference.npz"
_KEPT_POSITIONS = 24
_FIELDS = ("ids", "types", "lengths", "levels", "deep")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One text, or one pair of texts, as the tokenizer encodes it."""

    ids: tuple[int, ...]
    types: tuple[int, ...]  # token types; all zero but for the second text of a pair

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """A row and the original's answers to it: by output [*dims], or [tokens, *dims] for token-level outputs.

    positions: the tokens that a token-level output holds, where it does not hold all.
    """

    row: Row
    level: int
    deep: bool
    answers: Mapping[str, NDArray[np.float32]]
    positions: Mapping[str, NDArray[np.int64]]


def kept_whole(number: int, output: OutputTensor) -> bool:
    """Whether answers of output `number` are kept for every row and token; vectors of tokens would fill the disk."""
    return number == 0 or not output.token_level or not output.dims


def kept_positions(tokens: int) -> NDArray[np.int64]:
    """The tokens whose secondary answers are kept for a row of `tokens`: evenly spread, first and last among them."""
    return np.unique(np.linspace(0, tokens - 1, min(tokens, _KEPT_POSITIONS)).round().astype(np.int64))


def save(path: Path, rows: Sequence[Answered], outputs: Sequence[OutputTensor]) -> None:
    """Write `rows` as described above. The same rows give the same bytes."""
    arrays: dict[str, NDArray[np.generic]] = {
        "ids": np.array([i for answered in rows for i in answered.row.ids], np.int32),
        "types": np.array([i for answered in rows for i in answered.row.types], np.uint8),
        "lengths": np.array([len(answered.row) for answered in rows], np.int32),
        "levels": np.array([answered.level for answered in rows], np.int32),
        "deep": np.array([answered.deep for answered in rows], np.bool_),
    }
    stored = [output for output in outputs if not output.on_request or output.name in rows[0].answers]
    for output in stored:
        parts = [answered.answers[output.name] for answered in rows if output.name in answered.answers]
        shaped = np.concatenate(parts) if output.token_level else np.stack(parts)
        arrays[f"answer:{output.name}"] = shaped.astype(np.float32)
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def load(path: Path, outputs: Sequence[OutputTensor]) -> list[Answered]:
    """Read `reference.npz`. ConfigError when it is missing or not whole."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            missing = [output for output in outputs if output.on_request and f"answer:{output.name}" not in stored]
            outputs = [output for output in outputs if output not in missing]
            arrays = {name: stored[name] for name in (*_FIELDS, *(f"answer:{output.name}" for output in outputs))}
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is missing: it holds the answers to verify with; build the repository again"
        ) from None
    except Exception as error:  # zipfile, zlib and numpy raise their own kinds
        raise ConfigError(f"{path} cannot be read ({error}): copy the repository again, or build it again") from None
    lengths = arrays["lengths"].tolist()
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    kept = dict.fromkeys((output.name for output in outputs), 0)
    rows = []
    for index, (start, tokens) in enumerate(zip(starts[:-1], lengths, strict=True)):
        deep = bool(arrays["deep"][index])
        answers: dict[str, NDArray[np.float32]] = {}
        positions: dict[str, NDArray[np.int64]] = {}
        for number, output in enumerate(outputs):
            stored_answers = arrays[f"answer:{output.name}"]
            if not output.token_level:
                answers[output.name] = stored_answers[index]
            elif kept_whole(number, output):
                answers[output.name] = stored_answers[start : start + tokens]
            elif deep:
                positions[output.name] = kept_positions(tokens)
                first = kept[output.name]
                kept[output.name] += len(positions[output.name])
                answers[output.name] = stored_answers[first : kept[output.name]]
        row = Row(tuple(arrays["ids"][start:][:tokens].tolist()), tuple(arrays["types"][start:][:tokens].tolist()))
        rows.append(Answered(row, int(arrays["levels"][index]), deep, answers, positions))
    return rows


def pad(
    inputs: Sequence[InputTensor], rows: Sequence[Row], width: int, *, filling: Sequence[int] = ()
) -> dict[str, NDArray[Any]]:
    """Rows as tensors [rows, width], padded on the right as the gateway pads; inputs of role tensor [rows, *dims].

    filling: put these ids, repeated, under the mask instead of the padding id: no answer may change by it.
    """
    tensors: dict[str, NDArray[Any]] = {}
    for tensor in inputs:
        if tensor.role == "tensor":  # drawn from the row's ids, which then are nothing else
            tensors[tensor.name] = np.stack([sample(tensor, row.ids) for row in rows])
            continue
        array = np.full((len(rows), width), tensor.pad_value, np.int32 if tensor.datatype == "INT32" else np.int64)
        if filling and tensor.role == "ids":
            array[:] = np.resize(np.array(filling), array.shape)
        for index, row in enumerate(rows):
            if tensor.role == "mask":
                array[index, : len(row)] = 1
            elif tensor.role == "ids":
                array[index, : len(row)] = row.ids
            elif takes_types(tensor):
                array[index, : len(row)] = row.types
        tensors[tensor.name] = array
    return tensors


def plain_rows(inputs: Sequence[InputTensor], lengths: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Rows of these lengths, padded to the longest, of a word that every vocabulary has: the one behind the padding."""
    word = inputs[0].pad_value + 1
    return pad(inputs, [Row((word,) * tokens, (0,) * tokens) for tokens in lengths], max(lengths))


def takes_types(tensor: InputTensor) -> bool:
    """Whether it is the input for token types (segments)."""
    return tensor.role == "other" and ("type" in tensor.name or "segment" in tensor.name)
