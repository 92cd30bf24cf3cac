"""Where batches by length win, and where they lose: loads, lengths, arrivals and numbers of workers, simulated.

    python -m benchmarks.load.study [--seconds 10] [--only carried cells]

*carried*: the highest rate at which one worker answers 99 % of the rows within the SLO, for tweets, passages for
retrieval and a mix of both, one row at a time, in batches of `fifo`, in ours formed by `fill` and by `deadline`; then
the on-time share at twice the rate that ours carries, with clients that wait for the SLO or ten times as long.
*cells*: loads as fractions of the rate that one worker carries with `deadline`.

BERT-base on A100s (published latencies), SLO 100 ms, clients that wait a second. Contenders:

* `row`: every worker holds all lengths, one row at a time;
* `apart`: one runtime for each worker, batches, allocated by length (from ten workers on);
* `fifo`: batches of up to 32 in order of arrival, padded to their longest, on a dynamic runtime as quick as static
  ones;
* `packed`: batches in order of arrival up to a budget of tokens, without padding, as token-budget servers form them. A
  bound: it knows no time limits, its budget is the best of four for each cell, and its kernels are as quick as static
  ones (1), or take a quarter or half as long again;
* `bundle`: ours, every worker holds all lengths, `deadline`; with a latency table 30 % off: `wrong table`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import heapq
import itertools
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from arlo.report.progress import LiveBar
from arlo.simulator.profiles import load_profile
from arlo.simulator.run import run
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.scenario import RuntimeModel
from arlo.simulator.scenario.sections import ClusterSection, DispatchSection, RunSection, WorkloadSection
from benchmarks import harness

PROFILE = "bert-base-a100"
SLO_MS, TIMEOUT_MS, OVERHEAD_MS = 100.0, 1000.0, 0.8
ROWS = 32  # of a batch
LENGTHS = ("tweets", "rag", "mix")
BATCHINGS = ("one", "fifo", "fill", "deadline")
ATTAINMENT, HALVINGS, OVERLOAD = 0.99, 9, 2.0
LOADS = (0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3)
BUDGETS = (2048, 4096, 8192, 16384)  # tokens
KERNELS = (1.0, 1.25, 1.5)
STEP = 32
# Factors on the run time of one worker: many workers get enough rows; bursts and drifting lengths need time.
PARTS = {("poisson", 10): 0.4, ("twitter-bursty", 10): 2.0, ("poisson", 100): 0.1}
SETTINGS: tuple[tuple[str, int], ...] = (
    ("poisson", 1),
    ("mmpp", 1),
    ("poisson", 10),
    ("twitter-bursty", 10),
    ("poisson", 100),
)
MODES: dict[str, tuple[str, str]] = {
    "row": ("all", "one"),
    "apart": ("one", "deadline"),
    "fifo": ("one", "fifo"),
    "bundle": ("all", "deadline"),
    "wrong table": ("all", "deadline"),
}


def config(
    length: str,
    batching: str,
    rate: float,
    seconds: float,
    *,
    arrivals: Any = "poisson",
    workers: int = 1,
    bundle: str | None = None,
    warmup_s: float = 1.0,
    timeout_ms: float | None = None,
) -> ScenarioConfig:
    """A scenario of BERT-base on A100s. `bundle`: all lengths on a worker but for `fifo`."""
    bundle = bundle or ("one" if batching == "fifo" else "all")
    return ScenarioConfig(
        run=RunSection(warmup_s=warmup_s, seed=1),
        workload=WorkloadSection(arrivals=arrivals, rate=rate, duration_s=seconds + warmup_s, length=length),
        cluster=ClusterSection(
            workers=workers,
            profile=PROFILE,
            max_batch=ROWS,
            slo_ms=SLO_MS,
            timeout_ms=timeout_ms,
            bundle=bundle,  # type: ignore[arg-type]
        ),
        dispatch=DispatchSection(batching=batching),  # type: ignore[arg-type]
    )


@functools.cache
def carried(length: str, batching: str, seconds: float = 10.0) -> float:
    """The highest rate of one worker that keeps ATTAINMENT, to one part in 2^HALVINGS of 32,000 rows/s."""
    low, high = 0.0, 32_000.0
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        kept = run(build(config(length, batching, rate, seconds)).scenario).slo_attainment >= ATTAINMENT
        low, high = (rate, high) if kept else (low, rate)
    return low


def carried_table(seconds: float) -> dict[str, Any]:
    """The carried rates, and the on-time shares at OVERLOAD times the rate that `deadline` carries."""
    found: dict[str, Any] = {"carried": [], "overload": []}
    for length in LENGTHS:
        most = {batching: carried(length, batching, seconds) for batching in BATCHINGS}
        for batching, rate in most.items():
            result = run(build(config(length, batching, rate, seconds)).scenario)
            row = {"length": length, "batching": batching, "rate_rps": rate, "mean_ms": result.mean_ms}
            found["carried"].append({**row, "p99_ms": result.p99_ms, "mean_batch": result.mean_batch})
            print(
                f"{length:8} {batching:9} {rate:7,.0f} rows/s, of one {rate / most['one']:5.1f}, of fifo "
                f"{rate / most['fifo']:5.2f}; mean {result.mean_ms:5.1f}, p99 {result.p99_ms:5.1f} ms, "
                f"{result.mean_batch:4.1f} rows a batch"
            )
        for batching, timeout_ms in itertools.product(("fifo", "fill", "deadline"), (SLO_MS, 10 * SLO_MS)):
            rate = OVERLOAD * most["deadline"]
            result = run(build(config(length, batching, rate, seconds, timeout_ms=timeout_ms)).scenario)
            share = result.goodput_rps / most["deadline"]
            found["overload"].append({"length": length, "batching": batching, "timeout_ms": timeout_ms, "share": share})
            print(
                f"{length:8} {batching:9} at {OVERLOAD:g} times, clients wait {timeout_ms:5.0f} ms: {share:.2f} on time"
            )
    return found


@dataclasses.dataclass(frozen=True)
class Case:
    """The offered load: `load` is a fraction of the rate that `workers` carry with `bundle`."""

    arrivals: Any
    workers: int
    length: str
    load: float


def config_of(case: Case, seconds: float, mode: str) -> ScenarioConfig:
    bundle, batching = MODES[mode]
    rate = case.load * carried(case.length, "deadline") * case.workers
    return config(
        case.length,
        batching,
        rate,
        seconds,
        arrivals=case.arrivals,
        workers=case.workers,
        bundle=bundle,
        timeout_ms=TIMEOUT_MS,
    )


def wrong(runtime: RuntimeModel, sign: float) -> RuntimeModel:
    """A runtime whose believed latencies are 30 % too long or too short, by `sign`; the true ones stay the same."""
    believed = tuple((length, rows, ms * (1 + sign * 0.3)) for length, rows, ms in runtime.points)
    return dataclasses.replace(runtime, points=believed, truth=runtime.points)


def simulated(offered: ScenarioConfig, mode: str) -> dict[str, float]:
    """Share of all rows on time, mean and p99 of the answers."""
    scenario = build(offered).scenario
    if mode == "wrong table":
        signs = np.random.default_rng(1).choice((-1.0, 1.0), size=len(scenario.runtimes))
        runtimes = tuple(map(wrong, scenario.runtimes, signs.tolist()))
        scenario = dataclasses.replace(scenario, runtimes=runtimes)
    result = run(scenario)
    return {"on_time": result.slo_attainment, "mean_ms": result.mean_ms, "p99_ms": result.p99_ms}


@functools.cache
def table_ms() -> NDArray[np.float64]:
    """Time of a batch [length step, rows] of rows of one length; beyond 128 rows in proportion."""
    profile = load_profile(PROFILE)
    return np.array(
        [[0.0] + [profile.static_ms(step * STEP, rows) for rows in range(1, 129)] for step in range(1, 512 // STEP + 1)]
    )


def packed_ms(tokens: int, squares: int) -> float:
    """Time of rows without padding: that of the same total tokens in rows of their token-weighted mean length."""
    length = squares / tokens
    at = min(max(length / STEP - 1, 0.0), len(table_ms()) - 1.0)
    low = math.floor(at)
    part = at - low
    total = 0.0
    for step, weight in ((low, 1 - part), (min(low + 1, len(table_ms()) - 1), part)):
        rows = tokens / ((step + 1) * STEP)
        line = table_ms()[step]
        ms = line[128] * rows / 128 if rows > 128 else float(np.interp(max(rows, 1.0), np.arange(129), line))
        total += weight * ms
    return total


def packed(offered: ScenarioConfig, budget: int, slower: float) -> dict[str, float]:
    """Figures of first come, first served: a free worker takes rows up to `budget` tokens."""
    scenario = build(offered).scenario
    chunks = list(scenario.workload.chunks())
    arrived = np.concatenate([chunk[0] for chunk in chunks]) / 1e6
    lengths = np.concatenate([chunk[1] for chunk in chunks]).astype(np.int64)
    tokens, squares = np.cumsum(np.r_[0, lengths]), np.cumsum(np.r_[0, lengths**2])
    latency = np.full(len(arrived), np.inf)
    free = [0.0] * offered.cluster.workers
    at = 0
    while at < len(arrived):
        now = max(heapq.heappop(free), float(arrived[at]))
        # Clients that have gone are not served.
        at = max(at, int(np.searchsorted(arrived, now - TIMEOUT_MS, side="right")))
        here = int(np.searchsorted(arrived, now, side="right"))
        if at >= here:
            heapq.heappush(free, now)
            if at >= len(arrived):
                break
            continue
        end = int(np.searchsorted(tokens, tokens[at] + budget, side="right")) - 1
        end = min(max(end, at + 1), here)
        done = now + slower * packed_ms(int(tokens[end] - tokens[at]), int(squares[end] - squares[at]))
        latency[at:end] = done - arrived[at:end] + OVERHEAD_MS
        heapq.heappush(free, done)
        at = end
    counted = latency[arrived >= 1000.0 * offered.run.warmup_s]
    answers = counted[counted <= TIMEOUT_MS]
    return {
        "on_time": float(np.mean(counted <= SLO_MS)),
        "mean_ms": float(answers.mean()) if len(answers) else math.nan,
        "p99_ms": float(np.quantile(answers, 0.99)) if len(answers) else math.nan,
    }


def figures_of(case: Case, seconds: float) -> dict[str, dict[str, float]]:
    """The figures of each contender, by name."""
    seconds *= PARTS.get((case.arrivals, case.workers), 1.0)
    found: dict[str, dict[str, float]] = {}
    for mode in MODES:
        if mode != "apart" or case.workers >= 10:
            found[mode] = simulated(config_of(case, seconds, mode), mode)
    offered = config_of(case, seconds, "bundle")
    for slower in KERNELS:
        tried = [packed(offered, budget, slower) for budget in BUDGETS]
        found[f"packed {slower:g}"] = max(
            tried, key=lambda figures: (round(figures["on_time"], 3), -figures["mean_ms"])
        )
    return found


def cells(seconds: float, jobs: int | None) -> dict[str, Any]:
    """All contenders in every setting."""
    cases = [Case(*setting, length, load) for setting in SETTINGS for length in LENGTHS for load in LOADS]
    rows: list[dict[str, Any]] = []
    with LiveBar(Console()) as bar, ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for case, figures in zip(cases, pool.map(figures_of, cases, itertools.repeat(seconds)), strict=True):
            rows.append({**dataclasses.asdict(case), "figures": figures})
            bar.show(len(rows), len(cases), f"{case.workers} workers, {case.arrivals}, {case.length}, {case.load:g}")
    names = ["row", "apart", "fifo", *(f"packed {slower:g}" for slower in KERNELS), "bundle", "wrong table"]
    for setting in SETTINGS:
        print(f"\n{setting[1]} workers, {setting[0]}: on time, p99 ms\n{'':12}" + "".join(f"{n:>16}" for n in names))
        for row in rows:
            if (row["arrivals"], row["workers"]) == setting:
                cells = [row["figures"].get(name) for name in names]
                said = [f"{c['on_time']:8.1%} {c['p99_ms']:6.0f}" if c else "" for c in cells]
                print(f"{row['length']:7}{row['load']:5g}" + "".join(f"{text:>16}" for text in said))
    return {"cells": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run of one worker (default: 10)")
    parser.add_argument("--only", nargs="+", choices=("carried", "cells"), default=["carried", "cells"])
    parser.add_argument("--jobs", type=int, help="processes (default: one for each core)")
    args = parser.parse_args()
    figures = carried_table(args.seconds) if "carried" in args.only else {}
    figures |= cells(args.seconds, args.jobs) if "cells" in args.only else {}
    print(f"-> {harness.save('study', f'python -m benchmarks.load.study --seconds {args.seconds:g}', figures)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
