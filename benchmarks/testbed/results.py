"""The files that the testbed writes, for tables and figures."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import harness

FIDELITY = "testbed"
SCHEMES = "testbed_schemes"
SCALING = "testbed_scaling"
SIDES = ("calibrated", "paper")  # simulated, with the overheads measured here, or with the paper's fixed one
OVERLOAD = "testbed_overload"
PLANNED = ("scheme", "rate_rps", "timeout_ms", "round")  # tell one planned run from the others
OF_RUN = ("scheme", "policy", "rate_rps", "load", "round", "valid")


def name_of(model: str, schemes: bool, timeouts: bool) -> str:
    """Which file a bench writes."""
    return (SCHEMES if schemes else OVERLOAD if timeouts else FIDELITY) + ("" if model == "bert-base" else f"_{model}")


def load(name: str = FIDELITY) -> dict[str, Any]:
    """benchmarks/results/NAME.json: `testbed` (simulator against cluster), `testbed_schemes` (Fig. 6 and 7; with
    `_bert-large` appended for that model), `testbed_scaling` (Fig. 8; its runs are not those of rows()). Times and
    rates are stretched by its "stretch"."""
    path = harness.RESULTS / f"{name}.json"
    if not path.exists():
        flags = " --schemes" if name.startswith(SCHEMES) else " --scaling" if name == SCALING else ""
        flags += " --model bert-large" if name.endswith("bert-large") else ""
        raise FileNotFoundError(f"{path} is not there: run `python -m benchmarks.testbed{flags}`")
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def rows(name: str = FIDELITY) -> list[dict[str, Any]]:
    """One row for each run and side, flat: OF_RUN, side, and that side's figures; curve_ms is the latency at
    compare.QUANTILES.

    Sides: `cluster` (measured) and those of SIDES (simulated), which have their error against the cluster in percent as
    error_mean_ms and so on, and its standard error as spread_mean_ms.
    """
    return [row for run in load(name)["runs"] for row in of_run(run)]


def of_run(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of one entry of "runs"."""
    common = {key: run[key] for key in OF_RUN}
    found = [{**common, "side": "cluster", **run["cluster"], "curve_ms": run["curve_ms"]}]
    for side in SIDES:
        simulated = run[side]
        row = {**common, "side": side, **simulated["simulated"], "curve_ms": simulated["curve_ms"]}
        for kind in ("error", "spread"):
            row |= {f"{kind}_{key}": value for key, value in simulated[f"{kind}_percent"].items()}
        found.append(row)
    return found


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest error of either simulated side over the valid runs, percent."""
    valid = [run for run in runs if run["valid"]]
    planned, done = ({tuple(run[key] for key in PLANNED) for run in group} for group in (runs, valid))
    return {
        "runs": len(runs),
        "valid": len(valid),
        "without_valid": len(planned - done),  # planned runs that succeeded in no attempt
        **{
            side: {
                key: max((abs(run[side]["error_percent"][key]) for run in valid), default=None)
                for key in ("mean_ms", "p98_ms")
            }
            for side in SIDES
        },
    }
