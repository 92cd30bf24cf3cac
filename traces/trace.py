"""The trace itself, and its CSV form."""

from __future__ import annotations

import csv
import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError

COLUMNS = ("arrived_at_s", "length", "text_id")
MOST_TOKENS = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """n requests in order of arrival.

    arrived_at_s: float64[n], seconds from the start, ascending.
    length: int32[n], tokens of each request, 1 or more, special tokens included.
    text_id: int64[n] or None: which text a request carries; requests of one id and length carry the same.
    """

    arrived_at_s: NDArray[np.float64]
    length: NDArray[np.int32]
    text_id: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrived_at_s", np.ascontiguousarray(self.arrived_at_s, np.float64))
        object.__setattr__(self, "length", np.ascontiguousarray(self.length, np.int32))
        if self.text_id is not None:
            object.__setattr__(self, "text_id", np.ascontiguousarray(self.text_id, np.int64))
        shapes = {c.shape for c in (self.arrived_at_s, self.length, self.text_id) if c is not None}
        if shapes != {(self.length.size,)}:
            raise ConfigError("a trace needs columns of one length: one entry per request")
        if len(self) == 0:
            return
        if not np.isfinite(self.arrived_at_s).all() or self.arrived_at_s[0] < 0:
            raise ConfigError("a trace's arrived_at_s must be finite and not negative")
        if (np.diff(self.arrived_at_s) < 0).any():
            raise ConfigError("a trace's arrived_at_s must not go back: sort the requests by arrival")
        if self.length.min() < 1:
            raise ConfigError("a trace's length must be 1 or more tokens")

    def __len__(self) -> int:
        return len(self.length)

    @property
    def duration_s(self) -> float:
        """Seconds until the last arrival; 0 for an empty trace."""
        return float(self.arrived_at_s[-1]) if len(self) else 0.0

    @property
    def rate(self) -> float:
        """Mean arrivals per second; 0 with fewer than two arrivals, which define no rate."""
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else 0.0

    def faster(self, speed: float) -> Trace:
        """The same requests, arriving `speed` times as fast."""
        if not (np.isfinite(speed) and speed > 0):
            raise ConfigError(f"speed must be above 0, not {speed}")
        return dataclasses.replace(self, arrived_at_s=self.arrived_at_s / speed)


def write_csv(trace: Trace, path: Path) -> None:
    """Columns arrived_at_s (nanosecond digits), length and, where there are any, text_id."""
    columns = [[f"{t:.9f}" for t in trace.arrived_at_s.tolist()], trace.length.tolist()]
    if trace.text_id is not None:
        columns.append(trace.text_id.tolist())
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS[: len(columns)])
        writer.writerows(zip(*columns, strict=True))


def read_csv(path: Path) -> Trace:
    """Read a file of write_csv; other columns are ignored. ConfigError names the faulty line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
        missing = [c for c in COLUMNS[:2] if c not in header]
        if missing:
            raise ConfigError(f"{path} has no column {missing[0]}: a trace needs the columns arrived_at_s,length")
        table: NDArray[np.void] | dict[str, NDArray[Any]] | None = _read_fast(path, header)
        if table is None:
            table = _read_lines(path, header)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from None
    try:
        return Trace(
            arrived_at_s=table["arrived_at_s"],
            length=table["length"].astype(np.int32),
            text_id=table["text_id"] if "text_id" in header else None,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


_TYPES = (np.float64, np.int64, np.int64)


def _read_fast(path: Path, header: list[str]) -> NDArray[np.void] | None:
    """The columns of a file without faults; None where there is one, or something unusual."""
    names = [name for name in COLUMNS if name in header]
    kind = [(name, each) for name, each in zip(COLUMNS, _TYPES, strict=True) if name in names]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as whole numbers with a fraction
            table: NDArray[np.void] = np.loadtxt(
                path,
                dtype=kind,
                delimiter=",",
                skiprows=1,
                usecols=[header.index(name) for name in names],
                comments=None,
                quotechar='"',
                encoding="utf-8",
                ndmin=1,
            )
    except (ValueError, Warning):
        return None
    return table if table["length"].max(initial=0) <= MOST_TOKENS else None


def _read_lines(path: Path, header: list[str]) -> dict[str, NDArray[Any]]:
    """The same line by line. ConfigError names the first that is wrong."""
    has_text = "text_id" in header
    arrived, length, text = [], [], []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, fieldnames=header)
        next(reader, None)
        for row in reader:
            try:
                arrived.append(float(row["arrived_at_s"]))
                length.append(int(row["length"]))
                text.append(int(row["text_id"]) if has_text else 0)
                if length[-1] > MOST_TOKENS:
                    raise ValueError(f"no request is longer than {MOST_TOKENS} tokens")
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{path}, line {reader.line_num}: {error}") from None
    return {
        "arrived_at_s": np.array(arrived, np.float64),
        "length": np.array(length, np.int64),
        "text_id": np.array(text, np.int64),
    }
