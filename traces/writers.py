"""Writing workloads as traces, chunk by chunk: a file may be larger than memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from arlo.errors import ConfigError
from arlo.traces.rates import SECOND_NS
from arlo.traces.trace import COLUMNS
from arlo.traces.workloads import Workload


def write_workload(workload: Workload, path: Path, on_requests: Callable[[int], None] | None = None) -> int:
    """Write CSV; returns the number of requests.

    `on_requests` is called with the number written so far. The file has its name only once it is complete.
    """
    if path.suffix.lower() != ".csv":
        raise ConfigError(f"the name of a trace ends in .csv, not as {path.name!r}")
    part = path.with_name(path.name + ".part")
    written = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="ascii", newline="") as file:
            file.write(",".join(COLUMNS[:2]) + "\n")
            for arrived, length in workload.chunks():
                seconds, ns = np.divmod(arrived, SECOND_NS)
                rows = zip(seconds.tolist(), ns.tolist(), length.tolist(), strict=True)
                file.writelines("%d.%09d,%d\n" % row for row in rows)  # noqa: UP031  # twice as fast
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
