"""What a contender is: it opens a model at a length, and makes a call of a batch that can be timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.plan import Shape

if TYPE_CHECKING:
    from benchmarks.gpu.subject import Subject

Embeddings = NDArray[np.float32]  # [rows, dims]: the mean of the last hidden state over a row's real tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Rows of `length` real tokens each, and the same as text."""

    length: int
    ids: NDArray[np.int64]  # [rows, length]
    texts: list[str]  # each `length` tokens with its special tokens

    def padded(self, columns: int) -> dict[str, NDArray[np.int64]]:
        """input_ids and attention_mask, [rows, columns] each."""
        if columns < self.length:
            raise ValueError(f"{self.length} tokens do not fit into {columns} columns")
        rows = len(self.ids)
        ids = np.zeros((rows, columns), np.int64)
        mask = np.zeros((rows, columns), np.int64)
        ids[:, : self.length], mask[:, : self.length] = self.ids, 1
        return {"input_ids": ids, "attention_mask": mask}

    @property
    def end_rows(self) -> list[int]:
        """The rows whose answers are compared: the first and the last one."""
        return sorted({0, len(self.ids) - 1})

    def ends(self) -> Batch:
        """Of these rows alone."""
        return Batch(self.length, self.ids[self.end_rows], [self.texts[index] for index in self.end_rows])


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One batch, ready to be run again and again.

    `whole` takes the batch from host memory to the embeddings in host memory; it has returned when they are there.
    `compute_s` runs it with all data on the device and returns seconds: by device events, or by a synchronised clock
    where the back-end shows no stream. None: nothing beside `whole` can be told apart, as on a CPU.
    """

    whole: Callable[[], Embeddings]
    compute_s: Callable[[], float] | None = None


class Opened(Protocol):
    """A contender with a model in memory."""

    def prepare(self, batch: Batch) -> Call:
        """Whatever must be done once for a shape (capture, compile, allocate) is done here or in the first runs."""

    def close(self) -> None:
        """Give its memory back."""


class Contender(Protocol):
    """A way to run an encoder."""

    @property
    def name(self) -> str:
        """Back-end and shape, as `torch-graphs-static`."""

    @property
    def backend(self) -> str:
        """Contenders of one back-end differ in shape only, so their ratio is what the shape makes."""

    @property
    def shape(self) -> Shape:
        """What it does with lengths; `user`: what the library does by itself."""

    @property
    def slow(self) -> bool:
        """Whether each new shape takes long to build, so that a short run leaves most lengths out."""

    def available(self, precision: str) -> str:
        """Why it cannot run here; empty when it can. Quick: it opens no model."""

    def open(self, subject: Subject, length: int) -> Opened:
        """With the model in memory. length: the one that a static contender is made for; others ignore it."""


def columns(shape: Shape, batch: Batch, longest: int) -> int:
    """Columns that rows of the batch have for this shape."""
    return longest if shape == "padded" else batch.length


def package_missing(*names: str) -> str:
    """Which of the packages is not installed, as a reason; empty when all are. Imports nothing."""
    import importlib.util

    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} is not installed" if missing else ""


def forget(*objects: Any) -> None:
    """Collect garbage after big objects went away, and give cached device memory back to the driver."""
    import gc
    import sys

    del objects
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
