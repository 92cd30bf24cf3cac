"""`--record`: a row for each request, as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arlo.simulator.report.result import ENGINE_OUTCOMES

if TYPE_CHECKING:
    from arlo.simulator.report.result import Result

# As the engine numbers them (arlo._core.Simulation.columns).
HEAD = ("arrived_at_s", "length", "outcome", "latency_ms", "wait_ms", "worker", "runtime")
_AT_ONCE = 100_000


def write_rows(result: Result, path: Path) -> None:
    """Columns HEAD. Nothing where there is nothing to say: a latency without an answer, a worker never reached.

    EnvironmentProblem when Parquet is asked for and pyarrow is not there.
    """
    assert result.columns is not None, "the scenario was not recorded"
    if path.suffix.lower() == ".parquet":
        _write_parquet(result, path)
    else:
        _write_csv(result, path)


def _write_csv(result: Result, path: Path) -> None:
    import csv

    assert result.columns is not None
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


def _write_parquet(result: Result, path: Path) -> None:
    from arlo.traces.parquet import pyarrow

    assert result.columns is not None
    arrow, parquet, columns = pyarrow(), pyarrow("pyarrow.parquet"), result.columns

    def number(name: str, scale: float | None = None) -> Any:
        values: NDArray[Any] = columns[name]
        return arrow.array(values if scale is None else values / scale, mask=np.asarray(values < 0))

    def words(name: str, known: list[str]) -> Any:
        codes = columns[name]
        return arrow.DictionaryArray.from_arrays(
            arrow.array(codes.astype(np.int32), mask=np.asarray(codes < 0)), arrow.array(known)
        )

    table = arrow.table(
        dict(
            zip(
                HEAD,
                (
                    number("arrived_ns", 1e9),
                    number("length"),
                    words("outcome", list(ENGINE_OUTCOMES)),
                    number("latency_ns", 1e6),
                    number("wait_ns", 1e6),
                    number("worker"),
                    words("runtime", [str(runtime["name"]) for runtime in result.runtimes]),
                ),
                strict=True,
            )
        )
    )
    parquet.write_table(table, path)
