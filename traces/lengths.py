"""Lengths of requests: distributions of lengths, and their drift.

A distribution is kept as its quantiles at 65,536 equally likely points, so that drawing is one look-up. The share of a
length is thereby exact to 1 / 65,536.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces.histogram import LengthHistogram, tweet_lengths

POINTS = 1 << 16

PAPER_MEDIAN, PAPER_P98, PAPER_LONGEST = 21, 72, 125
"""Tokens of the tweets of the Arlo paper: Fig. 1 and sec. 2.1, and the longest, about, of sec. 5, "Workloads"."""

LENGTH_FORMS = (
    "paper, tweets, rag, mix, fixed:N, uniform:MIN:MAX, lognormal:MEDIAN:P98:MAX, bimodal:A:B:SHARE_OF_B, file:PATH "
    "or mixture:SHARE*SPEC+SHARE*SPEC"
)


@dataclasses.dataclass(frozen=True, eq=False)  # no slots: cached properties
class Lengths:
    """A distribution of lengths in tokens.

    quantile: float64[POINTS], ascending, before it is stretched.
    stretch: every length is multiplied by it, rounded, and kept between 1 and `most`.
    """

    quantile: NDArray[np.float64]
    most: int
    source: str
    stretch: float = 1.0

    @functools.cached_property
    def tokens(self) -> NDArray[np.int32]:
        """int32[POINTS]: the stretched lengths."""
        return np.asarray(np.clip(np.rint(self.quantile * self.stretch), 1, self.most), np.int32)

    @functools.cached_property
    def deviation(self) -> NDArray[np.float32]:
        """float32[POINTS]: the logarithm of each quantile over the median."""
        return np.asarray(np.log(self.quantile / self.median), np.float32)

    @property
    def median(self) -> float:
        """Median of the quantiles, before stretching."""
        return float(np.sqrt(self.quantile[POINTS // 2 - 1] * self.quantile[POINTS // 2]))

    def percentile(self, q: float) -> int:
        """The smallest length, stretched, that q percent of the requests do not exceed."""
        return int(self.tokens[min(POINTS - 1, max(0, math.ceil(q / 100 * POINTS) - 1))])

    def draw(self, n: int, random: np.random.Generator) -> NDArray[np.int32]:
        """n lengths, int32[n]."""
        drawn: NDArray[np.int32] = self.tokens[random.integers(0, POINTS, n, np.uint16)]
        return drawn

    def draw_drifted(
        self, n: int, random: np.random.Generator, spread: NDArray[np.float32], shift: NDArray[np.float32]
    ) -> NDArray[np.int32]:
        """n lengths, where the i-th deviates from the median spread[i] times as much, and e**shift[i] times longer."""
        logarithm = self.deviation[random.integers(0, POINTS, n, np.uint16)]
        logarithm *= spread
        logarithm += shift
        tokens = np.exp(logarithm, out=logarithm)
        tokens *= np.float32(self.median * self.stretch)
        np.rint(tokens, out=tokens)
        return np.asarray(np.clip(tokens, 1, self.most, out=tokens), np.int32)

    def rescaled(self, max_length: int, longest: int = PAPER_LONGEST) -> Lengths:
        """Stretched so that `longest` becomes `max_length`, to which the few above are cut (paper, sec. 5)."""
        if max_length < 1 or longest < 1:
            raise ConfigError(f"max_length and longest must be 1 or more, not {max_length} and {longest}")
        source = f"{self.source}, times {max_length}/{longest}"
        return dataclasses.replace(self, most=max_length, stretch=max_length / longest, source=source)


def fixed(tokens: int) -> Lengths:
    """All of them `tokens` long."""
    return _integers(np.full(POINTS, tokens), f"all {tokens} tokens")


def uniform(low: int, high: int) -> Lengths:
    """Each length from `low` to `high` equally likely."""
    return _integers(low + (np.arange(POINTS) * (high - low + 1)) // POINTS, f"uniform from {low} to {high} tokens")


def bimodal(short: int, long: int, share: float) -> Lengths:
    """`short`, or with probability `share`, `long`."""
    longer = round(share * POINTS)
    values = np.repeat([short, long], [POINTS - longer, longer])
    return _integers(np.sort(values), f"{short} tokens, {100 * share:g} % of them {long}")


def histogram(counts: LengthHistogram) -> Lengths:
    """The distribution of a histogram of counted lengths."""
    reached = np.cumsum(counts.count)
    at = (np.arange(POINTS) + 0.5) / POINTS * reached[-1]
    return _integers(counts.length[np.searchsorted(reached, at)], f"{counts.count.sum()} lengths of: {counts.source}")


@functools.lru_cache(maxsize=8)
def lognormal(median: float, p98: float, longest: float) -> Lengths:
    """A lognormal distribution, truncated at `longest`, with these two quantiles.

    The quantiles are those after truncation: the width of the distribution is solved for them.
    """
    if not 1 <= median <= p98 <= longest or not math.isfinite(longest):
        raise ConfigError(f"a lognormal distribution needs 1 <= MEDIAN <= P98 <= MAX, not {median}, {p98}, {longest}")
    source = f"lognormal, median {median:g}, p98 {p98:g}, at most {longest:g} tokens"
    if p98 == median:
        return dataclasses.replace(fixed(round(median)), source=source)
    normal = NormalDist()
    reach, cut = math.log(p98 / median), math.log(longest / median)
    # Cutting the top off moves both quantiles down: find centre and width of the whole such that they come out right.
    sigma, centre, step = reach / normal.inv_cdf(0.98), 0.0, math.inf
    for _ in range(1000):
        kept = normal.cdf((cut - centre) / sigma)
        if kept < 0.1:
            break
        low, high = normal.inv_cdf(0.5 * kept), normal.inv_cdf(0.98 * kept)
        step = abs(sigma - reach / (high - low))
        sigma = reach / (high - low)
        centre = -low * sigma
    if not step < 1e-9 * reach:
        raise ConfigError(f"no lognormal distribution has P98 {p98:g} so near its MAX {longest:g}: raise MAX")
    kept = normal.cdf((cut - centre) / sigma)
    points = [normal.inv_cdf(kept * (i + 0.5) / POINTS) for i in range(POINTS)]
    return Lengths(np.maximum(median * np.exp(centre + sigma * np.array(points)), 1.0), math.ceil(longest), source)


def mixture(parts: list[tuple[float, Lengths]]) -> Lengths:
    """Each request from one of several distributions, with probabilities in the proportion of the shares."""
    total = sum(share for share, _ in parts)
    edges = np.rint(np.cumsum([0.0, *(share / total for share, _ in parts)]) * POINTS).astype(int)
    values = [
        part.quantile[((np.arange(high - low) + 0.5) / (high - low) * POINTS).astype(int)]
        for (_, part), low, high in zip(parts, edges[:-1], edges[1:], strict=True)
        if high > low
    ]
    source = " + ".join(f"{100 * share / total:g} % ({part.source})" for share, part in parts)
    return Lengths(np.sort(np.concatenate(values)), max(part.most for _, part in parts), source)


def paper_lengths() -> Lengths:
    """A lognormal distribution fitted to the quantiles that the Arlo paper states, not stretched."""
    fitted = lognormal(PAPER_MEDIAN, PAPER_P98, PAPER_LONGEST)
    return dataclasses.replace(fitted, source=f"fitted to the Arlo paper's quantiles: {fitted.source}")


@functools.lru_cache(maxsize=1)
def rag_chunks() -> Lengths:
    """Passages of documents as retrieval stores them, a model: normal, mean 290, deviation 90, 20 to 512 tokens."""
    normal = NormalDist(290, 90)
    low, high = normal.cdf(20), normal.cdf(512)
    points = [normal.inv_cdf(low + (high - low) * (i + 0.5) / POINTS) for i in range(POINTS)]
    return Lengths(np.array(points), 512, "passages for retrieval: normal, mean 290, deviation 90, 20 to 512 tokens")


def tweets() -> Lengths:
    """The counted lengths of tweets."""
    return histogram(tweet_lengths())


def mix() -> Lengths:
    """Four tweets to one passage: searches, and the passages indexed for them."""
    return mixture([(0.8, tweets()), (0.2, rag_chunks())])


NAMED: dict[str, Callable[[], Lengths]] = {"paper": paper_lengths, "tweets": tweets, "rag": rag_chunks, "mix": mix}


def parse_length_spec(spec: str, rescale: int | None = None) -> Lengths:
    """One of LENGTH_FORMS. `rescale` stretches 125 tokens to so many; `paper` alone is stretched to 512."""
    lengths = _parse(spec.strip())
    if rescale is None and spec.strip() == "paper":
        rescale = 512
    return lengths if rescale is None else lengths.rescaled(rescale)


def _parse(spec: str) -> Lengths:
    name, _, rest = spec.partition(":")
    if name == "mixture" and rest:
        return _parse_mixture(rest, spec)
    if name == "file" and rest:
        return from_file(Path(rest))
    if name in NAMED and not rest:
        return NAMED[name]()
    try:
        if name == "lognormal":
            median, p98, longest = (float(number) for number in rest.split(":"))
            return lognormal(median, p98, longest)
        if name == "bimodal":
            short, long, share = rest.split(":")
            if int(short) >= 1 and int(long) >= 1 and 0 <= float(share) <= 1:
                return bimodal(int(short), int(long), float(share))
        values = [int(number) for number in rest.split(":")]
    except ValueError:
        values = []
    if name == "fixed" and len(values) == 1 and values[0] >= 1:
        return fixed(values[0])
    if name == "uniform" and len(values) == 2 and 1 <= values[0] <= values[1]:
        return uniform(values[0], values[1])
    raise ConfigError(f"lengths are {LENGTH_FORMS}, with 1 <= MIN <= MAX, not {spec!r}")


def _parse_mixture(rest: str, spec: str) -> Lengths:
    parts = []
    for part in rest.split("+"):
        share, star, inner = part.partition("*")
        try:
            weight = float(share)
        except ValueError:
            weight = -1.0
        if not star or not (math.isfinite(weight) and weight > 0) or inner.startswith("mixture"):
            raise ConfigError(
                f"a mixture is SHARE*SPEC+SHARE*SPEC with shares above 0, as in mixture:0.9*tweets+0.1*fixed:512, "
                f"not {spec!r}"
            )
        parts.append((weight, _parse(inner)))
    return mixture(parts)


def from_file(path: Path) -> Lengths:
    """The lengths of a histogram (JSON) or of any trace that has lengths."""
    from arlo.traces.readers import read_trace

    if path.suffix == ".json":
        return histogram(LengthHistogram.load(path))
    found = np.unique(read_trace(path).length, return_counts=True)
    return histogram(LengthHistogram.of(dict(zip(*(c.tolist() for c in found), strict=True)), f"the trace {path.name}"))


def _integers(values: NDArray[np.int64] | NDArray[np.int32], source: str) -> Lengths:
    return Lengths(values.astype(np.float64), int(values[-1]), source)
