"""Traces: when requests arrive, how long they are, and what they say. Formats and sources: traces/README.md."""

from __future__ import annotations

from arlo.traces.generate import Lengths, arrivals, parse_lengths, poisson, rescale
from arlo.traces.histogram import LengthHistogram, tweet_lengths
from arlo.traces.text import Row, TextSource
from arlo.traces.trace import Trace, read_csv, write_csv

__all__ = [
    "LengthHistogram",
    "Lengths",
    "Row",
    "TextSource",
    "Trace",
    "arrivals",
    "parse_lengths",
    "poisson",
    "read_csv",
    "rescale",
    "tweet_lengths",
    "write_csv",
]
