"""One row of input: from the user's form to the codec's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from arlo.client.errors import InvalidRequestError, TooLongError
from arlo.client.model import TASK, TEXT, TensorInfo
from arlo.client.tokenizer import Text, Tokenizer

if TYPE_CHECKING:
    from arlo.client.codec import Codec

TokenIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Row: TypeAlias = Text | TokenIds | NDArray[Any] | Mapping[str, TokenIds | NDArray[Any] | Text]
"""A text, a pair of texts, token ids, an array of the size of a row, or a mapping of input names to values:
`text` may stand for token ids in it, and `task` be a name where the model has several."""


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedRow:
    """Token ids of shape [tokens], and the values for other inputs, each of the same shape. If the server tokenises,
    `text` replaces all of it."""

    ids: NDArray[np.integer[Any]]
    extra: Mapping[str, NDArray[np.integer[Any]]]
    text: Text | None = None
    cut: bool = False  # the server may cut the text


_NONE: Mapping[str, NDArray[np.integer[Any]]] = {}
_NO_IDS: NDArray[np.integer[Any]] = np.empty(0, np.int64)
_ONE_ID = np.zeros(1, np.int64)  # a row of tensors counts as one token


@dataclasses.dataclass(slots=True)
class RowReader:
    """The checks and the tokenisation of rows for one model.

    `max_length` may only lower the model's limit; `truncate` cuts longer rows instead of refusing them.
    """

    codec: Codec
    tokenizer: Tokenizer | None = None
    max_length: int | None = None
    truncate: bool = False
    limit: int | None = dataclasses.field(init=False)  # the longest row; None: not known

    def __post_init__(self) -> None:
        if self.codec.of_tensors and (self.truncate or self.max_length is not None):
            raise InvalidRequestError("truncate and max_length are of tokens, and rows of this model have none")
        if self.max_length is not None and self.max_length < 1:
            raise InvalidRequestError(f"max_length must be 1 or more, not {self.max_length}")
        known = [n for n in (self.codec.info.max_length, self.max_length) if n is not None]
        self.limit = min(known, default=None)
        if self.truncate and self.limit is None:
            raise InvalidRequestError("the server does not say how long a row may be: pass max_length= to truncate")

    def read(self, rows: Sequence[Row]) -> list[PreparedRow]:
        """All rows in their order. InvalidRequestError names the first bad row, TooLongError both lengths."""
        if isinstance(rows, str | bytes | Mapping):
            raise InvalidRequestError("infer_batch takes a list of rows; use infer for one")
        if len(rows) == 0:
            raise InvalidRequestError("no rows: give at least one")
        if self.codec.of_tensors:
            return [self._tensors(row) for row in rows]
        texts = [r for r in rows if isinstance(r, str) or _is_pair(r)]
        if len(texts) == len(rows):
            return self._encode(texts)
        encoded = iter(self._encode(texts)) if texts else iter(())
        return [next(encoded) if isinstance(r, str) or _is_pair(r) else self._ids(r) for r in rows]

    def _encode(self, texts: list[Any]) -> list[PreparedRow]:
        if self.codec.only_text:
            return [PreparedRow(_NO_IDS, _NONE, text, self.truncate) for text in texts]
        if self.tokenizer is None:
            raise InvalidRequestError("text needs a tokenizer: pass tokenizer= to the client, or send token ids")
        out = []
        for row in self.tokenizer.encode(texts, cut_to=self.limit if self.truncate else None):
            self._check_length(row.ids.size)
            extra = _NONE
            if row.type_ids is not None and self.codec.type_ids_name is not None:
                extra = {self.codec.type_ids_name: row.type_ids}
            out.append(PreparedRow(row.ids, extra))
        return out

    def _ids(self, row: Any) -> PreparedRow:
        if self.codec.only_text:
            raise InvalidRequestError("this model takes texts, not token ids: its stages have different vocabularies")
        if not isinstance(row, Mapping):
            ids = _array(row, "token ids")
            self._check_length(ids.size)
            return PreparedRow(self._cut(ids), _NONE)
        ids_name, mask_name, sized = self.codec.ids_name, self.codec.mask_name, self.codec.sized
        row = self._numbered(row)
        whole = {name: _sized(row[name], *of) for name, of in sized.items() if name in row}
        if TEXT in row and ids_name not in row:
            if unknown := row.keys() - whole.keys() - {TEXT}:
                raise InvalidRequestError(f"beside text a row may have {', '.join(sized)}, not {min(unknown)}")
            (encoded,) = self._encode([row[TEXT]])
            return dataclasses.replace(encoded, extra={**encoded.extra, **whole})
        if ids_name not in row:
            raise InvalidRequestError(f"a row lacks {ids_name!r}; it has {', '.join(map(repr, row)) or 'nothing'}")
        given = {name: _array(values, name) for name, values in row.items() if name not in whole}
        ids = given.pop(ids_name)
        for name, values in given.items():
            if values.size != ids.size:
                raise InvalidRequestError(f"{name} has {values.size} values, {ids_name} has {ids.size}")
        mask = given.get(mask_name) if mask_name is not None else None
        if mask is not None:  # padding that a tokenizer added at the end is not part of the row
            length = int(mask.nonzero()[0].max(initial=-1)) + 1
            ids, given = ids[:length], {name: values[:length] for name, values in given.items()}
        self._check_length(ids.size)
        return PreparedRow(self._cut(ids), {name: self._cut(values) for name, values in given.items()} | whole)

    def _tensors(self, row: Any) -> PreparedRow:
        """A row of a model that takes tensors alone: an array, or a mapping of input names to arrays."""
        sized = self.codec.sized
        if not isinstance(row, Mapping):
            needed = [name for name, (tensor, _) in sized.items() if not tensor.optional]
            if len(needed) != 1:
                raise InvalidRequestError(f"give a mapping with {', '.join(needed) or 'some input'}")
            row = {needed[0]: row}
        row = self._numbered(row)
        if unknown := [name for name in row if name not in sized]:
            raise InvalidRequestError(f"there is no input {', '.join(unknown)}; there are {', '.join(sized)}")
        return PreparedRow(_ONE_ID, {name: _sized(values, *sized[name]) for name, values in row.items()})

    def _numbered(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with the number of its task in place of the name."""
        name, tasks = row.get(TASK), list(self.codec.info.tasks)
        if not isinstance(name, str):
            return row
        if name not in tasks:
            known = ", ".join(tasks) or "none"
            raise InvalidRequestError(f"unknown task {name!r}; there are {known}: model_info(refresh=True) asks again")
        return {**row, TASK: np.array([tasks.index(name)], np.int64)}

    def _check_length(self, length: int) -> None:
        if length == 0:
            raise InvalidRequestError("a row has no tokens: give at least one")
        if self.limit is not None and length > self.limit and not self.truncate:
            raise TooLongError(
                f"a row has {length} tokens, the longest allowed is {self.limit}: shorten it, or pass truncate=True",
                length=length,
                max_length=self.limit,
            )

    def _cut(self, values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """The values cut to the limit, with the last token kept: encoders are trained to see their end marker there."""
        if self.limit is None or values.size <= self.limit:
            return values
        return np.concatenate((values[: self.limit - 1], values[-1:]))


def _is_pair(row: object) -> bool:
    return isinstance(row, tuple) and len(row) > 0 and isinstance(row[0], str)


def _array(values: Any, name: str) -> NDArray[np.integer[Any]]:
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        what = f"{array.dtype} of shape {list(array.shape)}"
        hint = "; use infer_batch for several rows" if array.ndim == 2 or array.dtype.kind in "UO" else ""
        raise InvalidRequestError(f"{name} must be integers of shape [tokens], not {what}{hint}")
    return array


def _sized(values: Any, tensor: TensorInfo, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values of one row, with the size and type of the input. InvalidRequestError."""
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        array = np.empty((), object)
    size = tensor.shape[1:]
    if array.shape != size:
        hint = "; use infer_batch for several rows" if array.shape[1:] == size else ""
        raise InvalidRequestError(f"{tensor.name} must be of shape {list(size)}, not {list(array.shape)}{hint}")
    if array.dtype.kind not in "iufb" or (dtype.kind in "iu" and array.dtype.kind == "f"):
        raise InvalidRequestError(f"{tensor.name} is {tensor.datatype}, and {array.dtype} is none")
    cast = array.astype(dtype, copy=False)
    if dtype.kind in "iu" and not np.array_equal(cast, array):
        raise InvalidRequestError(f"{tensor.name} has values that do not fit {tensor.datatype}")
    return cast
