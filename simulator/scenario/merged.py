"""The requests of several models as one stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.simulator.scenario.scenario import SharedModel

Chunk = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16]]


@dataclasses.dataclass(frozen=True, slots=True)
class MergedWorkload:
    """A Workload; requests that arrive at one instant come in the order of the models."""

    models: Sequence[SharedModel]

    @property
    def name(self) -> str:
        """A short name."""
        return "+".join(model.name for model in self.models)

    @property
    def duration_s(self) -> float:
        """Seconds in which requests arrive."""
        return max(model.workload.duration_s for model in self.models)

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Arrivals and lengths, as a Workload yields them; chunks_by_model() adds each request's model."""
        for arrived, length, _ in self.chunks_by_model():
            yield arrived, length

    def chunks_by_model(self) -> Iterator[Chunk]:
        """Arrivals in order: ns from the start [n], tokens [n], numbers of models [n]."""
        streams = [model.workload.chunks() for model in self.models]
        held: list[tuple[NDArray[np.int64], NDArray[np.int32]] | None] = [_next(stream) for stream in streams]
        while any(each is not None for each in held):
            # All that arrives before the first stream has to be read on is known.
            until = min(int(each[0][-1]) for each in held if each is not None)
            parts: list[Chunk] = []
            for number, each in enumerate(held):
                if each is None:
                    continue
                arrived, length = each
                count = int(np.searchsorted(arrived, until, side="right"))
                parts.append((arrived[:count], length[:count], np.full(count, number, np.uint16)))
                left = (arrived[count:], length[count:])
                held[number] = left if count < len(arrived) else _next(streams[number])
            order = np.argsort(np.concatenate([part[0] for part in parts]), kind="stable")
            yield (
                np.concatenate([part[0] for part in parts])[order],
                np.concatenate([part[1] for part in parts])[order],
                np.concatenate([part[2] for part in parts])[order],
            )

    def expected(self) -> float:
        """About how many requests there are."""
        return float(sum(model.workload.expected() for model in self.models))  # type: ignore[attr-defined]

    def describe(self) -> str:
        """One line for each model."""
        return "\n          ".join(f"{model.name}: {model.workload.describe()}" for model in self.models)


def _next(
    stream: Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]],
) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    return next(((arrived, length) for arrived, length in stream if len(arrived)), None)
