"""Readers: the formats of traces that are known, told apart by their header.

A format holds either requests (a time and a length each) or counts per step of time; requests become a Trace, counts a
Counts, from which arrivals are generated.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import difflib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces.rates import Series
from arlo.traces.trace import Trace, read_csv


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A known format."""

    name: str
    columns: tuple[str, ...]  # that its header must have
    what: str
    counts: bool = False


SAMPLE_MS = 100  # of each second; requests that all lie in fewer are a sample of it
SAMPLE_REQUESTS = 20  # fewer may lie together by chance
_SPREAD = "times and tokens of tweets; those of a sample are spread over their second"
_AZURE = "Azure LLM inference trace (a stand-in: not the traffic of an encoder)"

FORMATS = (
    Format("arlo", ("arrived_at_s", "length"), "Arlo's own"),
    Format("tweet-lengths", ("epoch_ms", "bert_tokens_full"), _SPREAD),
    Format("azure-llm", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _AZURE),
    Format("twitter-counts", ("segment", "t_in_segment_s", "count"), "events per second in named windows", counts=True),
    Format("azure-functions", ("minute", "invocations"), "invocations per minute", counts=True),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """count[i] arrivals, int64[n], in the i-th step of `step_s` seconds."""

    count: NDArray[np.int64]
    step_s: float
    source: str

    @property
    def duration_s(self) -> float:
        return len(self.count) * self.step_s

    def relative(self, smooth_s: float) -> Series:
        """Means over `smooth_s` relative to the mean of all: a load of mean 1.

        Counts of a sample have the sample's own noise, which is no property of the load: multiplied to a higher rate it
        would look like bursts. Means over some seconds leave the load. Fewer seconds at the end are left out.
        """
        width = max(1, round(smooth_s / self.step_s))
        whole = len(self.count) // width * width
        if whole == 0:
            raise ConfigError(f"{self.source}: {self.duration_s:g} s of counts have no mean over {smooth_s:g} s")
        means = self.count[:whole].reshape(-1, width).mean(axis=1)
        if not means.any():
            raise ConfigError(f"{self.source}: all counts are 0")
        return Series(means / means.mean(), width * self.step_s, self.source)


def detect(path: Path) -> Format:
    """The format of a file. ConfigError lists the known formats."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            columns = [name.strip() for name in next(csv.reader(file), [])]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from None
    for each in FORMATS:
        if set(each.columns) <= set(columns):
            return each
    known = "; ".join(f"{each.name} ({','.join(each.columns)})" for each in FORMATS)
    shown = ",".join(columns)[:200] or "nothing"
    raise ConfigError(f"{path} has no column layout that is known: its first line is {shown!r}. Known are {known}")


def read_trace(path: Path, *, tokens: str = "context") -> Trace:
    """Requests of any format that has them. Times count from the first request, except in our own format.

    tokens: of an Azure LLM trace, `context` (prompt), `generated`, or `total`.

    The public sample of tweets has those of the same ten milliseconds of every second. As they stand they would arrive
    in ten milliseconds and pause for 990, as no traffic does: they are spread over their second, at random.
    """
    found = detect(path)
    if found.counts:
        raise ConfigError(
            f"{path} holds counts per step of time ({found.name}), no requests: give it as counts, with a rate"
        )
    if found.name == "tweet-lengths":
        return _ordered(path, _tweets(path))
    if found.name == "azure-llm":
        return _ordered(path, _azure(path, tokens))
    return read_csv(path)


def read_counts(path: Path, segment: str | None = None) -> Counts:
    """Counts per step of time of any format that has them. `segment` chooses one of several windows."""
    found = detect(path)
    if not found.counts:
        raise ConfigError(f"{path} holds requests ({found.name}), no counts: give it as a trace")
    if found.name == "azure-functions":
        rows = [
            (line, _whole(path, line, row, "minute"), _whole(path, line, row, "invocations"))
            for line, row in _rows(path)
        ]
        return _steps(path, rows, 60.0, f"{path.name} (Azure Functions)")
    windows: dict[str, list[tuple[int, int, int]]] = {}
    for line, row in _rows(path):
        entry = (line, _whole(path, line, row, "t_in_segment_s"), _whole(path, line, row, "count"))
        windows.setdefault(str(row["segment"]), []).append(entry)
    if segment is None and len(windows) == 1:
        segment = next(iter(windows))
    if segment not in windows:
        close = difflib.get_close_matches(segment or "", windows, n=1)
        hint = f"did you mean {close[0]!r}? It" if close else "it"
        wanted = "name a segment" if segment is None else f"there is no segment {segment!r}"
        raise ConfigError(f"{path}: {wanted}: {hint} has {', '.join(windows) or 'none'}")
    return _steps(path, windows[segment], 1.0, f"window {segment} of {path.name}")


def segments(path: Path) -> list[str]:
    """The named windows of a file of counts, in their order; empty where they have no names."""
    if detect(path).name != "twitter-counts":
        return []
    return list(dict.fromkeys(str(row["segment"]) for _, row in _rows(path)))


def _tweets(path: Path) -> Iterator[tuple[float, int]]:
    rows = [
        (_whole(path, line, row, "epoch_ms"), _whole(path, line, row, "bert_tokens_full", least=1))
        for line, row in _rows(path)
    ]
    at = np.array([ms for ms, _ in rows], np.int64)
    first, width = _window(at)
    # Where in its millisecond a tweet came is not known; the same file gives the same times.
    part = np.random.default_rng(0).random(len(at)) if width < 1000 else np.zeros(len(at))
    at_s = at // 1000 + (at % 1000 - first + part) / width
    return zip(at_s.tolist(), (length for _, length in rows), strict=True)


def _window(at: NDArray[np.int64]) -> tuple[int, int]:
    """The milliseconds of each second in which all of `at` lie, as the first one and their number: a sample's ten, or
    (0, 1000) of a whole trace."""
    if len(at) < SAMPLE_REQUESTS or len(np.unique(at // 1000)) < 2:
        return 0, 1000
    low, high = int((at % 1000).min()), int((at % 1000).max())
    return (low, high - low + 1) if high - low < SAMPLE_MS else (0, 1000)


def _azure(path: Path, tokens: str) -> Iterator[tuple[float, int]]:
    columns = {"context": ["ContextTokens"], "generated": ["GeneratedTokens"]}
    columns["total"] = columns["context"] + columns["generated"]
    if tokens not in columns:
        raise ConfigError(f"tokens of an Azure LLM trace are {', '.join(columns)}, not {tokens!r}")
    for line, row in _rows(path):
        # Python reads six digits of a second; these have seven.
        stamp, _, digits = str(row["TIMESTAMP"]).partition(".")
        try:
            day = datetime.datetime.fromisoformat(stamp).replace(tzinfo=datetime.UTC)
            at = day.timestamp() + (float(f"0.{digits}") if digits else 0.0)
        except ValueError:
            raise ConfigError(f"{path}, line {line}: TIMESTAMP {row['TIMESTAMP']!r} is no date and time") from None
        # Some answers are empty; no request is shorter than one token.
        yield at, max(1, sum(_whole(path, line, row, column) for column in columns[tokens]))


def _ordered(path: Path, rows: Iterator[tuple[float, int]]) -> Trace:
    pairs = list(rows)
    if not pairs:
        raise ConfigError(f"{path} has no request that was asked for")
    at = np.array([moment for moment, _ in pairs], np.float64)
    order = np.argsort(at, kind="stable")
    length = np.array([tokens for _, tokens in pairs], np.int64).astype(np.int32)
    # Differences of times since 1970 are good to a microsecond or better; more digits would be those of the rounding.
    return Trace(arrived_at_s=np.round(at[order] - at[order[0]], 6), length=length[order])


def _steps(path: Path, rows: list[tuple[int, int, int]], step_s: float, source: str) -> Counts:
    for number, (line, step, _) in enumerate(rows):
        if step != rows[0][1] + number:
            raise ConfigError(f"{path}, line {line}: step {step} comes after {rows[number - 1][1]}: steps go up by one")
    if not rows:
        raise ConfigError(f"{path} has no counts")
    return Counts(count=np.array([count for _, _, count in rows], np.int64), step_s=step_s, source=source)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Line number and row of a CSV file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        for row in reader:
            yield reader.line_num, row


def _whole(path: Path, line: int, row: dict[str, str | None], column: str, least: int = 0) -> int:
    text = row[column]
    try:
        value = int(text or "")
    except ValueError:
        raise ConfigError(f"{path}, line {line}: {column} is {text!r}, not a whole number") from None
    if not least <= value < 2**53:
        raise ConfigError(f"{path}, line {line}: {column} is {value}, it must be {least} or more")
    return value
