"""The result of a replay, and its JSON form."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import arlo
from arlo.replay.outcomes import NAME_OF
from arlo.replay.records import Records
from arlo.replay.rows import Rows
from arlo.replay.summary import Summary
from arlo.traces import Trace, write_csv

SCHEMA = "arlo.replay/2"
"""Name and version of the JSON form. The number grows when a field goes or changes its meaning; new fields keep it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayResult:
    """All results of a replay.

    `records`: arlo.replay.records.RECORD[n], by index in the trace. `messages`: what records["error"] refers to.
    `responses`: kept outputs by index in the trace, without row dimension.
    `rows.of(index)`: ids and text of a request. `header`: the target, place, time and settings of the measurement.
    """

    summary: Summary
    records: Records
    messages: Mapping[int, str]
    responses: Mapping[int, Mapping[str, NDArray[Any]]]
    trace: Trace
    rows: Rows
    header: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """0; 1 when a request failed; 130 when the replay was interrupted."""
        if self.summary.interrupted:
            return 130
        return 1 if self.summary.outcomes["failed"] else 0

    def errors(self) -> list[dict[str, Any]]:
        """Distinct errors, the most frequent first: code, message, count."""
        bad = self.records[self.records["code"] != 0]
        pairs, counts = np.unique(np.stack([bad["code"], bad["error"]], axis=1), axis=0, return_counts=True)
        found = [
            {"code": NAME_OF.get(int(code), str(code)), "message": self.messages.get(int(key), ""), "count": int(count)}
            for (code, key), count in zip(pairs, counts, strict=True)
        ]
        return sorted(found, key=lambda e: -int(e["count"]))

    def to_json(self) -> dict[str, Any]:
        """Plain values; the form is named in "schema"."""
        length = self.trace.length
        return {
            "schema": SCHEMA,
            **self.header,
            "trace": {
                "requests": len(self.trace),
                "duration_s": self.trace.duration_s,
                "rate": self.trace.rate,
                "length_p50": float(np.percentile(length, 50)) if len(length) else None,
                "length_p98": float(np.percentile(length, 98)) if len(length) else None,
                "length_max": int(length.max()) if len(length) else None,
            },
            "summary": dataclasses.asdict(self.summary),
            "errors": self.errors(),
        }

    def save(self, folder: Path) -> None:
        """Write result.json, records.npy and trace.csv into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(json.dumps(self.to_json(), indent=2) + "\n")
        np.save(folder / "records.npy", self.records)
        write_csv(self.trace, folder / "trace.csv")


def machine() -> dict[str, Any]:
    """The machine that the sender ran on, without its name."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model,
        "cores": cores,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    found = {"arlo": arlo.__version__, "python": platform.python_version()}
    for package in ("grpcio", "numpy", "tritonclient"):
        found[package] = importlib.metadata.version(package)
    return found
