"""More than the cluster can do, with clients that give up: what is still answered on time, and how soon all is well.

Five real Triton workers with the emulated engines of examples/emulated.toml behind the gateway with its shipped
policy and in-flight limit, tweet lengths, an SLO of 150 ms. Capacity is measured first: answers per second to a closed
loop. Each cell then offers a multiple of it for `--seconds` to clients that give up after a time-out, and 0.8 of it
before and after. Figures of a cell:

    on_time_rps    answers within the SLO per second of the overload, by the moment of sending
    of_peak        the same over the best of this cell and those with less load and the same time-out
    long_on_time   share of the rows above 256 tokens that were on time over that of all rows
    recovery_s     from the end of the overload until all half seconds that follow have 95 % on time
    pending_max    requests at one Triton that it had not finished, by its own counter, looked at 20 times a second

`--scale 10` makes every engine ten times slower, for machines on which the sender or the gateway, and not the engines,
would be what is overloaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.replay import ReplayOptions, run_replay
from arlo.traces import Trace, rescale, tweet_lengths
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.pool import WorkerInfo
from benchmarks import harness

LATENCY_MS = {64: 1.15, 128: 1.7, 256: 2.7, 512: 4.9}
PLACED = (64, 64, 128, 256, 512)
SLO_MS = 150.0
INFLIGHT = 2
BEFORE_S, AFTER_S, CALM = 2.0, 6.0, 0.8
BIN_S = 0.5
PENDING = re.compile(rb'^nv_inference_pending_request_count\{model="[^"]*",version="[^"]*"\} (\S+)', re.MULTILINE)


class PendingWatch:
    """The most requests pending at one of the workers while the block runs."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.most = 0
        self._urls = urls
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PendingWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for url in self._urls:
                with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as page:
                    counts = [int(float(found)) for found in PENDING.findall(page.read())]
                    self.most = max(self.most, *counts, 0)


def lengths(count: int, seed: int) -> Any:
    """Tweet lengths stretched to 512 tokens."""
    return rescale(tweet_lengths().sample(count, np.random.default_rng(seed)), 512).astype(np.int32)


def arrivals(phases: Sequence[tuple[float, float]], seed: int) -> Trace:
    """Poisson arrivals: (seconds, rate) one after the other."""
    rng = np.random.default_rng(seed)
    at, start_s = [], 0.0
    for seconds, rate in phases:
        count = rng.poisson(seconds * rate)
        at.append(start_s + np.sort(rng.uniform(0, seconds, count)))
        start_s += seconds
    arrived_at_s = np.concatenate(at)
    return Trace(arrived_at_s=arrived_at_s, length=lengths(len(arrived_at_s), seed))


@contextlib.contextmanager
def cluster(
    work: Path, latency_ms: Mapping[int, float], placed: Sequence[int], env: Mapping[str, str] | None = None
) -> Iterator[tuple[list[harness.Backend], list[WorkerInfo]]]:
    """Workers with an emulated engine each, of these maximum lengths, as back-ends of a gateway."""
    repository = work / "repository"
    manifest = write_emulated_repository(
        repository, model="bench", max_lengths=list(latency_ms), latency_ms=list(latency_ms.values())
    )
    by_length = {runtime.max_length: runtime for runtime in manifest.runtimes}
    with asyncio.Runner() as runner:
        pool = LocalPool(repository, workers=len(placed), run_dir=work / "run", env=env)
        runner.run(pool.__aenter__())
        try:
            workers = runner.run(pool.workers())

            async def load() -> None:
                pairs = zip(workers, placed, strict=True)
                await asyncio.gather(*(pool.load(worker.id, by_length[length].name) for worker, length in pairs))

            runner.run(load())
            backends = []
            for worker, length in zip(workers, placed, strict=True):
                latency_us = by_length[length].latency[0].latency_us
                backends.append(
                    harness.Backend(
                        endpoint=worker.endpoint,
                        runtime=by_length[length].name,
                        max_length=length,
                        latency_us=round(latency_us),
                        capacity=int(SLO_MS * 1000 // latency_us),
                    )
                )
            yield backends, list(workers)
        finally:
            runner.run(pool.__aexit__(None, None, None))


@contextlib.contextmanager
def gateway(work: Path, backends: Sequence[harness.Backend], policy: str) -> Iterator[int]:
    with harness.gateway(work, backends, dims=4, policy=policy, inflight_limit=INFLIGHT, slo_ms=round(SLO_MS)) as (
        _,
        port,
    ):
        yield port


def capacity(work: Path, backends: Sequence[harness.Backend], policy: str, seconds: float, sent: Any) -> float:
    """Answers per second to a closed loop that keeps every worker busy with requests of these lengths."""
    payloads = [harness.payload(int(length), seed=index) for index, length in enumerate(sent)]
    with gateway(work, backends, policy) as port:
        report = harness.load(work, port, payloads, "--concurrency", "48", "--seconds", f"{seconds:g}")
    return float(report["done"] / report["duration_s"])


def on_time(records: Any) -> Any:
    """Which requests were answered within the SLO, from the moment when they should have been sent."""
    return (records["code"] == 0) & (records["done_us"] - records["scheduled_us"] <= SLO_MS * 1000)


def one(
    work: Path, backends: Sequence[harness.Backend], urls: Sequence[str], rate: float, *, multiple: float, args: Any
) -> dict[str, float]:
    """A cell: `args` has the seconds, the policy and the time-out."""
    phases = ((BEFORE_S, CALM * rate), (args.seconds, multiple * rate), (AFTER_S, CALM * rate))
    trace = arrivals(phases, seed=7)
    options = ReplayOptions(
        endpoint="",
        model="bench",
        slo_ms=SLO_MS,
        timeout_ms=args.timeout_s * 1000,
        drain_s=args.timeout_s + 5,
        vocabulary=1000,
    )
    with gateway(work, backends, args.policy) as port, PendingWatch(urls) as pending:
        result = run_replay(trace, dataclasses.replace(options, endpoint=f"127.0.0.1:{port}"))
    records = result.records
    at_s = records["scheduled_us"] / 1e6
    good = on_time(records)
    end_s = BEFORE_S + args.seconds
    during = (at_s >= BEFORE_S) & (at_s < end_s)
    long = during & (records["length"] > 256)
    share = good[during].mean()
    return {
        "offered_rps": float(during.sum() / args.seconds),
        "on_time_rps": float(good[during].sum() / args.seconds),
        "answered_rps": float((records["code"][during] == 0).sum() / args.seconds),
        "long_on_time": float(good[long].mean() / share) if long.any() and share > 0 else float("nan"),
        "recovery_s": recovery_s(at_s, good, end_s),
        "pending_max": float(pending.most),
    }


def recovery_s(at_s: Any, good: Any, end_s: float) -> float:
    """Infinite when it was not well at the end."""
    bins = int(AFTER_S / BIN_S)
    well = []
    for index in range(bins):
        inside = (at_s >= end_s + index * BIN_S) & (at_s < end_s + (index + 1) * BIN_S)
        well.append(bool(good[inside].mean() >= 0.95) if inside.any() else True)
    if not well[-1]:
        return float("inf")
    bad = [index for index, is_well in enumerate(well) if not is_well]
    return (bad[-1] + 1) * BIN_S if bad else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each overload (default 60)")
    parser.add_argument("--multiples", type=float, nargs="+", default=[1, 1.5, 2, 5, 10])
    parser.add_argument("--timeouts", type=float, nargs="+", default=[0.25, 1.5, 10], help="of the clients, seconds")
    parser.add_argument("--policy", default="late")
    parser.add_argument("--scale", type=float, default=1.0, help="latency of the engines, times that of emulated.toml")
    args = parser.parse_args()
    cells: dict[str, dict[str, dict[str, float]]] = {}
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        latency_ms = {length: args.scale * ms for length, ms in LATENCY_MS.items()}
        with cluster(work, latency_ms, PLACED) as (backends, workers):
            urls = [worker.metrics_url for worker in workers if worker.metrics_url]
            rate = capacity(work, backends, args.policy, min(args.seconds, 10), lengths(512, 1))
            print(f"capacity {rate:.0f} answers/s", flush=True)
            for timeout_s in args.timeouts:
                args.timeout_s = timeout_s
                by_multiple = cells.setdefault(f"{timeout_s:g}", {})
                for multiple in sorted(args.multiples):
                    figures = one(work, backends, urls, rate, multiple=multiple, args=args)
                    by_multiple[f"{multiple:g}"] = figures
                    said = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
                    print(f"time-out {timeout_s:g} s  {multiple:g} x  {said}", flush=True)
                peak = 0.0
                for figures in by_multiple.values():
                    peak = max(peak, figures["on_time_rps"])
                    figures["of_peak"] = figures["on_time_rps"] / peak if peak else 0.0
                print(
                    f"time-out {timeout_s:g} s  of the peak: "
                    + "  ".join(f"{multiple} x {figures['of_peak']:.3f}" for multiple, figures in by_multiple.items()),
                    flush=True,
                )
    print(f"{time.monotonic() - began_s:.0f} s")
    found = {"capacity_rps": rate, "policy": args.policy, "scale": args.scale, "by_timeout_s_and_multiple": cells}
    path = harness.save("overload", "python -m benchmarks.overload " + " ".join(sys.argv[1:]), found)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
