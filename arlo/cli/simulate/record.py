"""`--record`: a row for each request, as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from arlo.simulator.report.result import ENGINE_OUTCOMES

if TYPE_CHECKING:
    from arlo.simulator.report.result import Result

# The engine's numbering (arlo._core.Simulation.columns).
HEAD = ("arrived_at_s", "length", "outcome", "latency_ms", "wait_ms", "worker", "runtime")
_AT_ONCE = 100_000


def write_rows(result: Result, path: Path) -> None:
    """Write columns HEAD. A field without a value is empty: a latency without an answer, a worker never reached."""
    import csv

    assert result.columns is not None, "the scenario was not recorded"
    columns, names = result.columns, [str(runtime["name"]) for runtime in result.runtimes]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for start in range(0, len(columns["length"]), _AT_ONCE):
            part = {name: column[start : start + _AT_ONCE].tolist() for name, column in columns.items()}
            writer.writerows(
                (
                    f"{arrived / 1e9:.9f}",
                    length,
                    ENGINE_OUTCOMES[outcome],
                    f"{latency / 1e6:.6f}" if latency >= 0 else "",
                    f"{wait / 1e6:.6f}" if wait >= 0 else "",
                    worker if worker >= 0 else "",
                    names[runtime] if runtime >= 0 else "",
                )
                for arrived, length, outcome, latency, wait, worker, runtime in zip(
                    part["arrived_ns"],
                    part["length"],
                    part["outcome"],
                    part["latency_ns"],
                    part["wait_ns"],
                    part["worker"],
                    part["runtime"],
                    strict=True,
                )
            )
