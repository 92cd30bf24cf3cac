"""Traces and workloads: arrivals, lengths and texts of requests. Formats, generators, sources:
traces/README.md."""

from __future__ import annotations

from arlo.traces.generate import Lengths, arrivals, parse_lengths, poisson, rescale
from arlo.traces.histogram import LengthHistogram, tweet_lengths
from arlo.traces.make import ARRIVALS, make_workload, shipped_loads
from arlo.traces.readers import FORMATS, Counts, detect, read_counts, read_trace
from arlo.traces.text import Row, TextSource
from arlo.traces.trace import Trace, read_csv, write_csv
from arlo.traces.workloads import Replayed, Synthetic, Workload, materialise, replayed

__all__ = [
    "ARRIVALS",
    "FORMATS",
    "Counts",
    "LengthHistogram",
    "Lengths",
    "Replayed",
    "Row",
    "Synthetic",
    "TextSource",
    "Trace",
    "Workload",
    "arrivals",
    "detect",
    "make_workload",
    "materialise",
    "parse_lengths",
    "poisson",
    "read_counts",
    "read_csv",
    "read_trace",
    "replayed",
    "rescale",
    "shipped_loads",
    "tweet_lengths",
    "write_csv",
]
