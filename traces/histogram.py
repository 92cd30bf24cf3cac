"""Length histograms: how many requests have how many tokens."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError

DATA = Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthHistogram:
    """counts[i] requests of length[i] tokens; `source` says where they were counted."""

    length: NDArray[np.int32]
    count: NDArray[np.int64]
    source: str

    @classmethod
    def of(cls, counts: Mapping[int, int], source: str) -> LengthHistogram:
        """From a mapping of tokens to requests. ConfigError when it is empty or has lengths below 1."""
        pairs = sorted((int(length), int(count)) for length, count in counts.items() if count)
        if not pairs or pairs[0][0] < 1 or min(count for _, count in pairs) < 0:
            raise ConfigError(f"a length histogram needs counts of lengths of 1 or more tokens ({source})")
        length, count = np.array(pairs, np.int64).T
        return cls(length=length.astype(np.int32), count=count, source=source)

    @classmethod
    def load(cls, path: Path) -> LengthHistogram:
        """Read {"source": ..., "counts": {"tokens": requests, ...}}."""
        try:
            raw = json.loads(path.read_text())
            return cls.of({int(k): int(v) for k, v in raw["counts"].items()}, str(raw["source"]))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(f"{path} is not a length histogram ({error!r})") from None

    def percentile(self, q: float) -> int:
        """The smallest length that at least q percent of the requests do not exceed."""
        reached = np.cumsum(self.count) >= q / 100 * self.count.sum()
        return int(self.length[int(np.argmax(reached))])


@functools.cache
def tweet_lengths() -> LengthHistogram:
    """Token lengths of English tweets of 2018-04-25, [CLS] and [SEP] included; source: traces/README.md."""
    return LengthHistogram.load(DATA / "tweet_lengths.json")
