"""Writing workloads as traces, chunk by chunk: a file may be larger than memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces.parquet import ParquetWriter
from arlo.traces.rates import SECOND_NS
from arlo.traces.trace import COLUMNS
from arlo.traces.workloads import Workload

Write = Callable[[NDArray[np.int64], NDArray[np.int32]], None]


def write_workload(workload: Workload, path: Path, on_requests: Callable[[int], None] | None = None) -> int:
    """Write CSV, or Parquet if the name ends in .parquet or .pq; returns the number of requests.

    `on_requests` is called with the number written so far. The file has its name only once it is complete.
    """
    kind = path.suffix.lower()
    if kind not in {".csv", ".parquet", ".pq"}:
        raise ConfigError(f"the name of a trace ends in .csv or .parquet, not as {path.name!r}")
    part = path.with_name(path.name + ".part")
    written = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _csv(part) if kind == ".csv" else _parquet(part) as write:
            for arrived, length in workload.chunks():
                write(arrived, length)
                written += len(arrived)
                if on_requests is not None:
                    on_requests(written)
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write the trace {path}: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return written


@contextlib.contextmanager
def _csv(path: Path) -> Iterator[Write]:
    with path.open("w", encoding="ascii", newline="") as file:
        file.write(",".join(COLUMNS[:2]) + "\n")

        def write(arrived: NDArray[np.int64], length: NDArray[np.int32]) -> None:
            seconds, ns = np.divmod(arrived, SECOND_NS)
            rows = zip(seconds.tolist(), ns.tolist(), length.tolist(), strict=True)
            file.writelines("%d.%09d,%d\n" % row for row in rows)  # noqa: UP031  # twice as fast

        yield write


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    with ParquetWriter(path) as writer:
        yield lambda arrived, length: writer.write(arrived / SECOND_NS, length)
