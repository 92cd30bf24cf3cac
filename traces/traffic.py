"""The lengths that requests have, as counts by tokens, from a length specification of `arlo.traces`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces.lengths import LENGTH_FORMS, PAPER_LONGEST, from_file, parse_length_spec

STRETCHED = ("tweets", "paper")
"""Specifications that name a shape of the traffic, not its lengths in tokens."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Requests by length, of 65,536 in all."""

    counts: NDArray[np.int64]  # [longest + 1]: requests of that many tokens
    spec: str  # as it was given
    text: str  # for people
    cut_share: float  # of the requests, longer than the longest that is served; counted as that

    @property
    def longest(self) -> int:
        """Tokens of the longest request that is served."""
        return len(self.counts) - 1

    @property
    def by_length(self) -> dict[int, int]:
        """Requests by length, lengths that do not come left out; ascending."""
        return {int(length): int(self.counts[length]) for length in np.flatnonzero(self.counts)}

    def percentile(self, q: float) -> int:
        """The smallest length that at least q percent of the requests do not exceed."""
        reached = np.cumsum(self.counts)
        return int(np.argmax(reached >= q / 100 * reached[-1]))


def traffic(spec: str, longest: int) -> Traffic:
    """The traffic of `spec`, of 1 to `longest` tokens; the same counts each time.

    spec: a length specification of `arlo.traces`, or just the path of a histogram or trace. `tweets` and `paper` are
    stretched so that the paper's 125 tokens become `longest`, as the paper does for its workloads (section 5); all
    others are in tokens and taken as they are (`mixture:1*tweets` gives tweets as they were counted). Lengths above
    `longest` count as `longest`, as a client that truncates would send them. ConfigError for a specification that
    cannot be parsed.
    """
    if longest < 1:
        raise ConfigError(f"the longest length must be 1 token or more, not {longest}")
    name = spec.strip()
    if name in STRETCHED:
        lengths, text = parse_length_spec(name, longest), f"{name}, {PAPER_LONGEST} tokens stretched to {longest}"
        cut = 0.0  # the few above are part of the stretched lengths
    else:
        if ":" not in name and not Path(name).is_file() and (Path(name).suffix or "/" in name):
            raise ConfigError(f"histogram {name} does not exist: name a file, or {LENGTH_FORMS}")
        lengths = from_file(Path(name)) if Path(name).is_file() else parse_length_spec(name)
        cut = float((lengths.tokens > longest).mean())
        text = Path(name.removeprefix("file:")).name if name.startswith("file:") or Path(name).is_file() else name
    tokens = np.minimum(lengths.tokens, longest)
    counts = np.bincount(tokens, minlength=longest + 1).astype(np.int64)
    return Traffic(counts=counts, spec=name, text=text, cut_share=cut)
