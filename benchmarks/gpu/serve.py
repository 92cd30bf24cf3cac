"""Stage `serve`: the largest rate of which 99 % of the rows are answered within 100 ms, by server, over gRPC.

    static                 `arlo serve` with a real Triton worker that holds a runtime of the torch engine a length
    packed, both           the same with one runtime of these kinds, which is one of dynamic shape to the gateway
    packed_fifo            benchmarks/peers/servers/packed_fifo.py: one queue, 16,384 packed tokens at a time
    triton                 `arlo serve` that passes rows on; Triton's own dynamic batcher over the dynamic kind

All have the same kernels and the same rows (`mix`). Servers of one runtime start together and are measured in turn:
first with too many rows, to find the most that a server does, then by bisection around that, then at 1.3 times the rate
found. The simulator repeats Arlo's runs by the latencies in table.json; single rows measure a row's other costs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.compile.engines.interface import EngineSettings, get_engine
from arlo.compile.engines.torch import PACKED_FROM
from arlo.compile.repository.triton_config import config_text, model_code
from arlo.compile.spec import RuntimeSpec
from arlo.replay import ReplayOptions, run_replay
from arlo.replay.records import latency_us
from arlo.simulator.run import run as simulate
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.sections import ClusterSection, DispatchSection, RunSection, WorkloadSection
from arlo.traces import Trace
from benchmarks.gpu import Cell
from benchmarks.gpu.bench import POSITIONS, Bench, mixes, model_folder
from benchmarks.gpu.profiles import Latency, manifest, runtime
from benchmarks.harness import Program, serving
from benchmarks.load.twin import Beyond, trace_of, twin
from benchmarks.peers.search import SHARE, Search

NAME, MIX, SLO_MS = "bench", "mix", 100.0
LENGTHS = tuple(range(64, POSITIONS + 1, 64))
ROWS, PACKED_ROWS = 32, 256  # of a batch
KINDS = {"both": ("static", "packed"), "packed": ("packed",), "static": ("static",), "triton": ("dynamic",)}
# Servers and their workers, those of most value first.
ORDER = (("both", 1), ("packed_fifo", 1), ("packed", 1), ("triton", 1), ("static", 1))
TWO, TWO_S = ("both", 2), 200.0  # two workers, where the stage has so many seconds
DRY = (("both", 1), ("packed_fifo", 1), ("static", 1))
RATES, STEP_S, OVER, FRONTS, CHANNELS = 15, 4.0, 1.3, 8, 80  # RATES: of which bisection tries four
DRY_ROWS_S = 100.0  # rows a second that a busy CPU answers on time


def latency_of(table: Sequence[Cell], shape: str, kinds: Sequence[str]) -> Latency:
    """Latencies of batches as the gateway knows them, by longest row and rows, from the cells of the stage `table`.

    In packed batches the other rows are taken to have the mean length of the mix.
    """
    cells = [cell for cell in table if cell["shape"] == shape and "host_ms" in cell]
    static = {(c["length"], c["rows"]): c["host_ms"] for c in cells if c["kind"] == "static"}
    buckets = {c["tokens"]: c["host_ms"] for c in cells if c["kind"] == "packed" and c["mix"] == MIX}
    if not static or not buckets:
        raise ValueError(f"table.json has no latencies of {shape}: run the stage `table` first")
    mean, most = float(mixes(10_000, seed=9)[MIX].mean()), max(buckets)

    def packed_ms(length: int, rows: int) -> float:
        live = length + (rows - 1) * min(mean, length)
        whole, rest = divmod(live, most)
        last = min(ms for tokens, ms in buckets.items() if tokens >= rest) if rest else 0.0
        return float(whole * buckets[most] + last)

    found: Latency = {}
    for length in sorted({length for length, _ in static}):
        for rows in sorted({rows for _, rows in static} | {PACKED_ROWS // 2, PACKED_ROWS}):
            packs = "packed" in kinds and (kinds == ("packed",) or length * rows >= PACKED_FROM["cuda"])
            if packs or (length, rows) in static:
                found[length, rows] = packed_ms(length, rows) if packs else static[length, rows]
    return found


def write_repository(path: Path, bench: Bench, shape: str, server: str, latency: Latency) -> None:
    """A Triton repository of the torch engine, with weights that are drawn when it is loaded."""
    kinds, rows = KINDS[server], PACKED_ROWS if "packed" in KINDS[server] else ROWS
    engine = get_engine("torch", EngineSettings(precision=bench.precision, device=bench.device, kinds=kinds))  # type: ignore[arg-type]
    about: Cell = {"max_batch": rows, "shape": "profiles", "profiles": LENGTHS}
    specs = [RuntimeSpec(name=f"{NAME}_torch", max_length=POSITIONS, **about)]
    if server == "static":
        about = {"max_batch": rows, "shape": "static"}
        specs = [RuntimeSpec(name=f"{NAME}_len{length}", max_length=length, **about) for length in LENGTHS]
    about = {"max_batch": rows, "precision": bench.precision, "device": bench.device, "kinds": kinds}
    runtimes = [
        runtime(spec.name, latency, max_length=spec.max_length, dynamic=spec.dynamic, profiles=spec.profiles, **about)
        for spec in specs
    ]
    made = manifest(NAME, shape, runtimes)
    for spec in specs:
        version = model_folder(path / spec.name / "1", shape, bench.precision)
        serving = engine.serving(spec)
        text = config_text(serving, spec, inputs=made.inputs, outputs=made.outputs, batcher=server == "triton")
        (version.parent / "config.pbtxt").write_text(text)
        for file in model_code("torch"):
            shutil.copy(file, version)
    made.save(path)


@contextlib.contextmanager
def arlo(work: Path, bench: Bench, server: str, workers: int) -> Iterator[str]:
    """`arlo serve` on work/repository; yields the address of its data port."""
    batching = "worker" if server == "triton" else "deadline"
    runtimes = "bundle" if server == "static" else "dynamic"
    settings = {"deployment": {"runtimes": runtimes}, "dispatch": {"batching": batching}}
    try:
        with serving(work, slo_ms=round(SLO_MS), settings=settings, workers=workers) as (_, endpoint, _):
            yield endpoint
    except SystemExit as error:
        raise RuntimeError(f"arlo serve did not start, see the logs: {str(error)[:80]}") from None
    finally:
        for number, log in enumerate([work / "serve.log", *sorted((work / "run").rglob("*.log"))]):
            with contextlib.suppress(OSError):
                shutil.copy(log, bench.logs / f"{work.name}-{number}-{log.name}")


@contextlib.contextmanager
def packed_fifo(work: Path, bench: Bench, shape: str) -> Iterator[str]:
    """Run the server that has one queue; yields its address."""
    log = bench.logs / "packed_fifo.log"
    command: list[object] = [sys.executable, "-m", "benchmarks.peers.servers.packed_fifo", "--threads", 1]
    command += ["--model", model_folder(work / "model", shape), "--precision", bench.precision]
    command += ["--device", bench.device, "--fronts", 1 if bench.dry else FRONTS]
    with Program(command, log=log) as program:
        while not (said := [line for line in log.read_text().splitlines() if line.startswith("ready ")]):
            if program.process.poll() is not None or bench.left_s < 5:
                raise RuntimeError(f"packed_fifo did not start: {log.read_text()[-300:]}")
            time.sleep(0.2)
        yield str(json.loads(said[0].removeprefix("ready "))["grpc"])


def offer(endpoint: str, trace: Trace) -> Cell:
    """Replay a trace; unanswered rows count as late."""
    result = run_replay(trace, ReplayOptions(endpoint=endpoint, model=NAME, slo_ms=SLO_MS, channels=CHANNELS))
    ms = np.where(result.records["code"] == 0, latency_us(result.records) / 1000, np.inf)
    answered = np.isfinite(ms)
    last_s = float((trace.arrived_at_s + ms / 1000)[answered].max(initial=float(trace.arrived_at_s[-1])))
    p99 = float(np.percentile(ms, 99, method="lower"))
    return {
        "rate": round(len(trace) / float(trace.arrived_at_s[-1]), 1),
        "on_time": round(float((ms <= SLO_MS).mean()), 4),
        "answered_s": round(int(answered.sum()) / last_s, 1),
        "mean_ms": round(float(ms[answered].mean()), 2) if answered.any() else None,
        "p99_ms": round(p99, 2) if np.isfinite(p99) else None,
        "late_sends": round(result.summary.sends.late / len(trace), 4),
    }


def traffic(repository: Path, rate: float, seconds: float, workers: int) -> tuple[Any, Trace]:
    """The simulator's scenario of Arlo on a repository, and its arrivals, which every server gets."""
    static = repository.parent.name.startswith("static")
    scheme: Cell = {"bundle": "all", "max_batch": ROWS} if static else {"scheme": "dt"}
    config = ScenarioConfig(
        run=RunSection(seed=1),
        workload=WorkloadSection(arrivals="poisson", rate=rate, duration_s=seconds, length=MIX),
        cluster=ClusterSection(workers=workers, profile=str(repository), slo_ms=SLO_MS, **scheme),
        dispatch=DispatchSection(policy="late", batching="deadline"),
    )
    made = build(config).scenario
    return made, trace_of(made, 1.0)


def measure(cell: Cell, endpoint: str, bench: Bench, repository: Path, estimate: float) -> None:
    """Measure the steps of one server and write them into its cell."""
    workers, step_s = cell["workers"], 1.0 if bench.dry else STEP_S

    def at(rate: float, seconds: float = step_s) -> Cell:
        return offer(endpoint, traffic(repository, rate, seconds, workers)[1])

    cell["flood"] = at(1.5 * workers * estimate, step_s / 2)
    most = min(cell["flood"]["answered_s"], DRY_ROWS_S) if bench.dry else cell["flood"]["answered_s"]
    search = Search([round(most * (0.65 + 0.4 * index / (RATES - 1)), 1) for index in range(RATES)])
    steps: dict[float, Cell] = {}
    cell["steps"] = []
    while (rate := search.next) is not None and not (bench.dry and len(steps) == 2):
        cell["steps"].append(steps.setdefault(rate, at(rate)))
        search.tell(steps[rate]["on_time"] >= SHARE)
    cell["kept_rows_s"] = search.found
    if search.found is not None:
        cell |= {name: steps[search.found][name] for name in ("mean_ms", "p99_ms")}
        cell["over"] = at(OVER * search.found)
        if cell["server"] in ("static", "packed", "both"):
            cell["simulated"] = simulated(cell, endpoint, repository, sorted(steps), step_s)


def simulated(cell: Cell, endpoint: str, repository: Path, rates: Sequence[float], step_s: float) -> Cell:
    """Simulated runs at these rates: the largest one of which 99 % are on time, and the mean at the one kept."""
    alone = Trace(arrived_at_s=0.1 + 0.05 * np.arange(20), length=np.full(20, POSITIONS, np.int32))
    made, _ = traffic(repository, 1.0, 10.0, 1)
    fast_ms = simulate(twin(made, alone, 1.0, Beyond(0.0, 0.0, 0.0))).mean_ms
    beyond = Beyond(0.0, 0.0, max(0.0, (offer(endpoint, alone)["mean_ms"] or 0.0) - fast_ms))
    found: Cell = {"request_ms": round(beyond.request_ms, 3)}
    for rate in rates:
        result = simulate(twin(*traffic(repository, rate, step_s, cell["workers"]), 1.0, beyond))
        if result.slo_attainment >= SHARE:
            found["kept_rows_s"] = rate
        if rate == cell["kept_rows_s"]:
            found["mean_ms"] = round(result.mean_ms, 2)
    return found


def run(bench: Bench) -> None:
    """Write serve.json, a cell for each server."""
    shape = "tiny" if bench.dry else "bert-large"
    table = json.loads(bench.results.with_name("table.json").read_text())
    order = DRY if bench.dry else (*ORDER, *([TWO] if bench.left_s > TWO_S else []))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arlo-kit-")))
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor())
        folders = {each: work / f"{each[0]}-{each[1]}" for each in [("static", 1), *order]}
        for (server, _), folder in folders.items():
            folder.mkdir()
            if server in KINDS:
                write_repository(folder / "repository", bench, shape, server, latency_of(table, shape, KINDS[server]))
        cost = {length: ms / rows for (length, rows), ms in latency_of(table, shape, ("static",)).items()}
        lengths = traffic(folders["static", 1] / "repository", 1000.0, 1.0, 1)[1].length
        estimate = 1e3 / float(np.interp(lengths, list(cost), list(cost.values())).mean())

        def started(server: str, workers: int) -> str:
            if server == "packed_fifo":
                return stack.enter_context(packed_fifo(folders[server, workers], bench, shape))
            return stack.enter_context(arlo(folders[server, workers], bench, server, workers))

        endpoints = {each: pool.submit(started, *each) for each in order if each[0] != "static"}
        concurrent.futures.wait(endpoints.values(), timeout=0.6 * bench.left_s)
        for server, workers in order:

            def one(cell: Cell) -> None:
                key = cell["server"], cell["workers"]
                if key not in endpoints:  # it loads one runtime after the other, for a minute
                    endpoints[key] = pool.submit(started, *key)
                own = folders[key if key[0] in KINDS else ("static", 1)] / "repository"
                measure(cell, endpoints[key].result(timeout=max(1.0, bench.left_s)), bench, own, estimate)

            about: Cell = {"server": server, "shape": shape, "workers": workers, "mix": MIX, "slo_ms": SLO_MS}
            bench.cell("server", about, one)
