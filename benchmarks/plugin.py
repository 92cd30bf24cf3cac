"""Arlo inside Triton beside what Triton does alone, on a real Triton with emulated engines; and what it costs.

    python -m benchmarks.plugin [--seconds 20] [--slower 16] [--rounds 2] [--only rates cost]

*rates*: the engines take the time of BERT-base on an A100 (`bert-base-a100`; lengths in steps of 64, batches of up to
32), `--slower` times, and an answer is on time within that many times 100 ms. Four of five rows have 16 to 64 tokens,
one of five 256 to 512; open loop, Poisson, over gRPC. The contenders, each on the same server:

    plugin      the logical model
    dynamic     one dynamic model, as quick as the static ones at every length, with Triton's dynamic batcher
    lengths     the client chooses the shortest engine that fits and pads; each has Triton's dynamic batcher
    rejecting   the same, and Triton's queue gives up what has waited for the SLO (a default_queue_policy)
    limited     the same as lengths under Triton's rate limiter: one execution at a time, and the short engine gets
                `--turns` turns for one of each long engine
    tuned       limited and rejecting
    profiles    one engine with a profile for each length: one model, as quick as the static ones at every length; the
                client pads to the profile, so that Triton's dynamic batcher may join what comes one after the other

All engines of a server share one emulated device, which executes one batch at a time, whoever sends it.

All are offered the same rates (`--rates`). What is on time is counted of what is sent after the first quarter of a run,
so that a queue has filled that will fill; seconds / slower should be some 12 times 0.1 s or more. `bound` is what the
device can execute at all: every row in a batch of its own length, of the size that makes it cheapest.

*cost*: engines that answer at once, one row of 64 tokens; the logical model and the engine itself, in turns: the
median latency at concurrency 1, and the server's CPU for each request at concurrency 8.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arlo.catalog.bundle import bundle_of
from arlo.catalog.logical import LogicalOptions, write_logical_model
from arlo.simulator.profiles import load_profile
from arlo.workers.emulated.repository import emulated, write_emulated_repository, write_runtimes
from arlo.workers.paths import plugin_library
from arlo.workers.ports import free_port
from arlo.workers.triton.alone import LoneTriton
from benchmarks import batches, harness

NAME = "plugin"
STEP = 64
CONTENDERS = ("plugin", "dynamic", "lengths", "rejecting", "limited", "tuned", "profiles")
PAYLOADS = 200
LENGTHS = ((16, 65), (256, 513))  # of four rows of five, of one


@contextlib.contextmanager
def served(repository: Path, *options: str) -> Iterator[tuple[harness.Measured, int]]:
    """One Triton on a repository: its process, its gRPC port."""
    port = free_port("127.0.0.1")
    with asyncio.Runner() as runner:
        server = LoneTriton(
            repository, grpc_port=port, http_port=None, log=repository.parent / "triton.log", extra=options
        )
        runner.run(server.__aenter__())
        try:
            yield harness.Measured(server.pid), port
        finally:
            runner.run(server.__aexit__(None, None, None))


def write_repository(path: Path, contender: str, args: argparse.Namespace) -> None:
    slower = args.slower
    profile = load_profile(batches.PROFILE)
    models = profile.static_runtimes(range(STEP, profile.max_length + 1, STEP), max_batch=batches.ROWS)
    engines = [bundle_of("bench", models)] if contender in ("dynamic", "profiles") else models
    runtimes = [emulated(each, model="bench", slower=slower, batcher=contender != "plugin") for each in engines]
    manifest = write_runtimes(path, model="bench", runtimes=runtimes)
    if contender in ("limited", "tuned"):
        for file in path.glob("*/config.pbtxt"):
            text, one = file.read_text(), "count: 1 kind: KIND_CPU"
            assert one in text
            priority = 1 if file.parent.name.endswith("_len64") else args.turns
            limiter = (
                f'rate_limiter {{ resources [ {{ name: "device" global: true count: 1 }} ] priority: {priority} }}'
            )
            file.write_text(text.replace(one, f"{one} {limiter}"))
    if contender in ("rejecting", "tuned"):
        policy = f"timeout_action: REJECT default_timeout_microseconds: {round(batches.SLO_MS * slower * 1000)}"
        for file in path.glob("*/config.pbtxt"):
            text = file.read_text()
            assert "dynamic_batching { }" in text
            batcher = f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
            file.write_text(text.replace("dynamic_batching { }", batcher))
    if contender == "plugin":
        options = LogicalOptions(slo_ms=round(batches.SLO_MS * slower), inflight_limit=args.inflight)
        write_logical_model(path, manifest, library=plugin_library(), options=options)


def payloads(contender: str) -> list[bytes]:
    random = np.random.default_rng(5)
    made = []
    for number in range(PAYLOADS):
        length = int(random.integers(*LENGTHS[0 if number % 5 else 1]))
        engine = -(-length // STEP) * STEP
        width = engine if contender in ("lengths", "rejecting", "limited", "tuned", "profiles") else length
        one = {"plugin": "bench", "dynamic": "bench_len512", "profiles": "bench_len512"}
        model = one.get(contender, f"bench_len{engine}")
        made.append(harness.payload(length, width, model=model, seed=number))
    return made


class Contender:
    """One contender's server, and the load on it."""

    def __init__(self, name: str, folder: Path, args: argparse.Namespace) -> None:
        self._name, self._folder, self._slower, self._seconds = name, folder, args.slower, args.seconds
        self._payloads = payloads(name)
        self._repository = folder / name
        self._options = (
            ("--rate-limit=execution_count", "--rate-limit-resource=device:1") if name in ("limited", "tuned") else ()
        )
        write_repository(self._repository, name, args)

    def run(self, port: int, rate: float) -> dict[str, Any]:
        """Shares and rates in times of the engines as they are (rows/s of an A100)."""
        slo_us = round(batches.SLO_MS * self._slower * 1000)
        flags = ("--slo-us", str(slo_us), "--warmup", "8", "--drain-s", "5")
        seconds = self._seconds
        harness.paced_load(self._folder, port, self._payloads, *flags, rate=rate / self._slower, seconds=seconds)
        records = np.load(self._folder / "records.npy")
        latency_us = np.where(records["code"] == 0, records["done_us"] - records["scheduled_us"], np.inf)
        later = records["scheduled_us"] >= seconds / 4 * 1e6
        p99_us = float(np.sort(latency_us)[int(0.99 * len(latency_us))])
        return {
            "rate": rate,
            "on_time": int((latency_us[later] <= slo_us).sum()) / (seconds * 3 / 4) * self._slower,
            "answered": float(np.isfinite(latency_us[later]).mean()),
            "p99_ms": p99_us / 1000 / self._slower if np.isfinite(p99_us) else None,
        }

    def at_rates(self, rates: list[float]) -> list[dict[str, Any]]:
        found = []
        with served(self._repository, *self._options) as (process, port):
            for rate in rates:
                before = process.cpu_s()
                run = self.run(port, rate)
                run["server_cpu_us"] = (process.cpu_s() - before) * 1e6 / (rate / self._slower * self._seconds)
                p99 = "over 1 % unanswered" if run["p99_ms"] is None else f"p99 {run['p99_ms']:,.0f} ms"
                print(f"{self._name:9} offered {rate:7,.0f}: on time {run['on_time']:7,.0f} rows/s; {p99}", flush=True)
                found.append(run)
        return found


def bound() -> float:
    """Rows a second of this mix that the device can execute at all."""
    profile = load_profile(batches.PROFILE)
    models = profile.static_runtimes(range(STEP, profile.max_length + 1, STEP), max_batch=batches.ROWS)
    cheapest = {
        runtime.max_length: min(runtime.latency_ns(rows) / rows for rows in range(1, batches.ROWS + 1))
        for runtime in models
    }
    row_ns = [float(np.mean([cheapest[-(-length // STEP) * STEP] for length in range(*ends)])) for ends in LENGTHS]
    return 1e9 / (0.8 * row_ns[0] + 0.2 * row_ns[1])


def rates(args: argparse.Namespace) -> dict[str, Any]:
    """What is on time at rates that are the same for all."""
    most = bound()
    print(f"the device executes at most {most:,.0f} rows/s of this mix")
    with tempfile.TemporaryDirectory() as folder:
        contenders = {name: Contender(name, Path(folder), args) for name in args.contenders}
        found = {name: each.at_rates(args.rates) for name, each in contenders.items()}
    best = {name: max(run["on_time"] for run in runs) for name, runs in found.items()}
    print(f"the most on time, at any of the rates: {best}")
    return {"bound": most, "at": found, "most": best}


def cost(args: argparse.Namespace) -> dict[str, Any]:
    """Microseconds that the logical model adds to a request of one row."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "cost"
        manifest = write_emulated_repository(
            repository, model="bench", max_lengths=[64, 128], latency_ms=[0, 0], max_batch=8, pooled_dims=384
        )
        write_logical_model(repository, manifest, library=plugin_library())
        found: dict[str, list[tuple[float, float]]] = {"bench": [], "bench_len64": []}
        with served(repository) as (process, port):
            for _ in range(2 * args.rounds + 3):
                for model, figures in found.items():
                    one = [harness.payload(64, model=model)]
                    work = Path(folder)
                    harness.load(work, port, one, "--concurrency", "1", "--seconds", "1", "--warmup", "50")
                    records = np.load(work / "records.npy")
                    p50_us = float(np.median(records["done_us"] - records["sent_us"]))
                    before = process.cpu_s()
                    report = harness.load(work, port, one, "--concurrency", "8", "--seconds", "2", "--warmup", "50")
                    cpu_us = (process.cpu_s() - before) * 1e6 / len(np.load(work / "records.npy"))
                    assert report is not None
                    figures.append((p50_us, cpu_us))
    p50, cpu = (
        {model: statistics.median(each[which] for each in figures) for model, figures in found.items()}
        for which in (0, 1)
    )
    added = {"p50_us": p50["bench"] - p50["bench_len64"], "cpu_us": cpu["bench"] - cpu["bench_len64"]}
    print(f"p50 us at concurrency 1: {p50}; CPU us a request: {cpu}; added: {added}")
    return {"p50_us": p50, "cpu_us": cpu, "added": added}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (default: 20)")
    parser.add_argument("--slower", type=float, default=16.0, help="times of the engines, multiplied (default: 16)")
    parser.add_argument("--rounds", type=int, default=2, help="of cost (default: 2)")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--rates", nargs="+", type=float, default=[4500, 6500, 7000, 8000, 16_000])
    parser.add_argument("--inflight", type=int, default=2, help="of the plugin (default: 2)")
    parser.add_argument(
        "--turns", type=int, default=3, help="of the short engine, for `limited` and `tuned` (default: 3)"
    )
    parser.add_argument("--only", nargs="+", default=["cost", "rates"], choices=["cost", "rates"])
    args = parser.parse_args()
    figures = {name: {"cost": cost, "rates": rates}[name](args) for name in args.only}
    if args.contenders != list(CONTENDERS) or len(args.only) < 2:
        return 0  # a part of it is not kept
    command = f"python -m benchmarks.{NAME} --seconds {args.seconds:g} --slower {args.slower:g} --rounds {args.rounds}"
    print(f"-> {harness.save(NAME, command, figures)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
