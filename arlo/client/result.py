"""The result of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.client.errors import NotFoundError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time went. The server's fields are None when it does not send them (a Triton without Arlo).

    `level` is where the request ran (0 = shortest; of a batch the longest), `max_length` the tokens that level takes,
    `demoted` how many of its rows ran on a longer level than their ideal one, `computed_tokens` the tokens computed for
    it, padding included, and `batch_rows` how many rows went to the worker together, those of other clients included
    (the most that any of its rows went with). `elapsed_us` is measured by the client over all attempts, back-off
    included.
    """

    elapsed_us: int
    level: int | None = None
    max_length: int | None = None
    demoted: int | None = None
    queue_us: int | None = None
    execute_us: int | None = None
    total_us: int | None = None
    computed_tokens: int | None = None
    batch_rows: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to one request.

    `outputs` maps names to arrays. From `infer` and `stream` the arrays have no row dimension: [dims...], or
    [tokens, dims...] for a token-level output. From `infer_batch` rows come first: [rows, dims...] or
    [rows, longest, dims...]. The arrays are views of the received bytes: read-only, copy before writing.
    `lengths` holds the tokens of each row, `attempts` how often the request was sent. `final` is False for an early
    cascade stage's answer on a stream while the row goes on: the final answer follows.

    A pipeline may have several answers for a row, or none. Then `owners` holds the row of each, [answers], by output;
    those outputs are [answers, dims...] for every call, and `answers` splits them by row.
    """

    id: str
    model: str
    outputs: Mapping[str, NDArray[Any]]
    lengths: tuple[int, ...]
    timing: Timing
    attempts: int
    batched: bool
    token_level: frozenset[str]
    final: bool = True
    owners: Mapping[str, NDArray[Any]] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The output called `name`; NotFoundError if the answer has none."""
        try:
            return self.outputs[name]
        except KeyError:
            known = ", ".join(self.outputs) or "none"
            raise NotFoundError(f"the answer has no output {name!r}; it has {known}", request_id=self.id) from None

    def rows(self, name: str) -> list[NDArray[Any]]:
        """One array per row; those of token-level outputs are cut to the row's length: [tokens, dims...]. ValueError if
        rows have several answers or none."""
        array = self[name]
        if name in self.owners:
            raise ValueError(f"output {name!r} has {len(array)} answers of {len(self.lengths)} rows: use answers()")
        if not self.batched:
            return [array]
        if name not in self.token_level:
            return list(array)
        return [row[:length] for row, length in zip(array, self.lengths, strict=True)]

    def answers(self, name: str) -> list[NDArray[Any]]:
        """The answers of each row, [answers, dims...]; each row has one unless the model is a pipeline."""
        owner = self.owners.get(name)
        if owner is None:
            return [row[np.newaxis] for row in self.rows(name)]
        return [self[name][owner == row] for row in range(len(self.lengths))]

    @property
    def padded_tokens(self) -> int | None:
        """Tokens computed for padding; None when the server does not say."""
        computed = self.timing.computed_tokens
        return None if computed is None else computed - int(np.sum(self.lengths))
