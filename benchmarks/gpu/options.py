"""What a run is asked for, checked before anything is measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

from arlo.compile.engines.interface import Precision
from arlo.compile.options import check_lengths
from arlo.errors import ConfigError

MODELS = ("bert-base", "bert-large", "minilm")
LENGTHS = tuple(range(16, 513, 16))
BATCHES = (1, 2, 4, 8, 16, 32)
COARSE = 64  # multiples of it are measured first: the paper's step


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of one run. ConfigError says which value is wrong."""

    models: tuple[str, ...] = ("bert-base", "bert-large")
    precisions: tuple[str, ...] = ("fp16", "fp32")
    lengths: tuple[int, ...] = LENGTHS  # tokens, ascending; the last one is what `padded` pads to
    batches: tuple[int, ...] = BATCHES  # rows, ascending
    contenders: tuple[str, ...] = ()  # names, or their first part (`torch`); empty: all that run here
    out: Path | None = None  # None: benchmarks/results/<device>
    work: Path | None = None  # models and engines; None: a folder of the cache of `arlo compile`
    threads: int = 1  # of a CPU back-end
    cell_s: float = 0.3  # measuring time of one contender at one length and batch
    rounds: tuple[int, int] = (5, 100)  # least and most repetitions of a cell
    budget_s: float | None = None  # of the whole run, end to end included
    resume: bool = True
    end_to_end: bool = True
    end_to_end_s: float = 30.0  # of the trace
    workers: int = 4  # Triton workers of the end-to-end part

    def __post_init__(self) -> None:
        for field, known in (("models", MODELS), ("precisions", get_args(Precision))):
            values = getattr(self, field)
            if not values:
                raise ConfigError(f"{field} is empty: use one or more of {', '.join(known)}")
            for value in values:
                if value not in known:
                    raise ConfigError(f"{field} {value!r} is unknown: use {', '.join(known)}")
        check_lengths(self.lengths)
        if self.lengths[-1] > 512:
            raise ConfigError(f"length {self.lengths[-1]} is more than the 512 tokens that BERT reads")
        if self.lengths[0] < 3:
            raise ConfigError(f"length {self.lengths[0]} is too short: a text has [CLS], [SEP] and a word, 3 tokens")
        if not self.batches or list(self.batches) != sorted(set(self.batches)) or self.batches[0] < 1:
            raise ConfigError(f"batches {self.batches} must ascend and be 1 row or more")
        for name in ("threads", "workers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("cell_s", "end_to_end_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.budget_s is not None and not self.budget_s > 0:
            raise ConfigError(f"budget must be above 0 seconds, not {self.budget_s}")
        if not 1 <= self.rounds[0] <= self.rounds[1]:
            raise ConfigError(f"rounds {self.rounds}: the least must be 1 or more, and the most not below it")

    @property
    def longest(self) -> int:
        """What `padded` pads to, and the end of the dynamic range."""
        return self.lengths[-1]
