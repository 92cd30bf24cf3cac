"""Batches on a real Triton with emulated engines, beside the same runs simulated.

    python -m benchmarks.batches_served [--seconds 15] [--loads 0.8 0.95 1.05] [--lengths mix] [--workers 1]

Workers under `arlo serve`, as shipped, whose engines take the time of BERT-base on an A100 (`bert-base-a100`,
lengths in steps of 32, batches of up to 32), `--slower` times, with the SLO that many times 100 ms: so two cores carry
the load. Each contender is offered the loads as shares of what the simulation says that it carries
(`python -m benchmarks.batches`) for each worker, the same arrivals on both sides. What an execution takes beyond the
profile, and the way there and back, are measured before the runs, apart from them, and told to the simulator.

    one, deadline     all lengths on the worker; one row at a time, and batches formed by Arlo
    fifo              one dynamic runtime as quick as the static ones; batches in order of arrival
    triton            the same, with Triton's own batcher
    triton-lengths    all lengths on the worker, each with Triton's own batcher

`carried` is the rate at which 99 % would be on time, between the loads that were tried (linear; empty when all or none
of them keep it).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.catalog.bundle import bundle_of
from arlo.replay import ReplayOptions, run_replay
from arlo.replay.records import latency_us
from arlo.simulator.profiles import load_profile
from arlo.simulator.run import run
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.file import ScenarioConfig
from arlo.simulator.scenario.sections import ClusterSection, DispatchSection, RunSection, WorkloadSection
from arlo.traces import Trace
from arlo.workers.emulated.repository import emulated, write_runtimes
from benchmarks import batches, harness
from benchmarks.testbed.simulated import Replayed

NAME = "batches_served"
STEP = 32
CONTENDERS = {  # -> whether it has one dynamic runtime, Triton's batcher, and [dispatch] batching
    "one": (False, False, "one"),
    "deadline": (False, False, "deadline"),
    "fifo": (True, False, "fill"),
    "triton": (True, True, "worker"),
    "triton-lengths": (False, True, "worker"),
}
RIVALS = {"triton": "fifo", "triton-lengths": "fifo"}  # whose loads they are offered, as the simulator has no such
TIMEOUT_MS = 10 * batches.SLO_MS  # the gateway's default
# What is measured of executions: a worker that always has rows of one length waiting, for so many seconds.
MEASURED = (32, 64, 128, 256, 512)  # tokens
PRESSED, PRESSED_S = 1.2, 4.0  # of what it can do
COUNTED = (0.3, 0.9)  # of the answers


@dataclasses.dataclass(frozen=True)
class Beyond:
    """Milliseconds, of the slower engines: what takes longer than the latency profile says."""

    batch_ms: float  # of each execution
    token_ms: float  # of each token in it, padding included
    request_ms: float  # the way to the gateway, to the worker, and back

    def of(self, length: int, rows: int) -> float:
        return self.batch_ms + self.token_ms * length * rows


def write_repository(path: Path, *, dynamic: bool, batcher: bool, slower: float) -> None:
    """The engines: one for each length, or one for all of them."""
    profile = load_profile(batches.PROFILE)
    models = profile.static_runtimes(range(STEP, profile.max_length + 1, STEP), max_batch=batches.ROWS)
    served = [bundle_of("bench", models)] if dynamic else models  # one of any length: in steps, as the static ones
    runtimes = [emulated(each, model="bench", slower=slower, batcher=batcher) for each in served]
    write_runtimes(path, model="bench", runtimes=runtimes)


@contextlib.contextmanager
def served(work: Path, contender: str, slower: float, workers: int) -> Iterator[str]:
    """`arlo serve`; yields the address of its data port."""
    dynamic, batcher, batching = CONTENDERS[contender]
    write_repository(work / "repository", dynamic=dynamic, batcher=batcher, slower=slower)
    settings = {
        "deployment": {"runtimes": "dynamic" if dynamic else "bundle"},
        "dispatch": {"batching": batching},
    }
    slo_ms = round(batches.SLO_MS * slower)
    with serving(work, slo_ms=slo_ms, settings=settings, workers=workers) as (_, endpoint, _):
        yield endpoint


@contextlib.contextmanager
def serving(
    work: Path, *, slo_ms: int, settings: Mapping[str, Mapping[str, Any]], workers: int = 1
) -> Iterator[tuple[harness.Program, str, int]]:
    """`arlo serve` with workers of work/repository: its process, the data port, and the port of /metrics."""
    ports = {name: harness.free_port() for name in ("grpc", "http", "admin", "status")}
    sections: dict[str, Mapping[str, object]] = {
        "model": {"repository": str(work / "repository"), "slo_ms": slo_ms},
        "workers": {"count": workers, "run_dir": str(work / "run")},
        "gateway": {f"{name}_address": f"127.0.0.1:{ports[name]}" for name in ("grpc", "http", "admin")},
        "control": {"http_address": f"127.0.0.1:{ports['status']}"},
        **settings,
    }
    config = work / "serve.toml"
    config.write_text(
        "".join(
            f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            for name, values in sections.items()
            if values
        )
    )
    with harness.Program([harness.binary("arlo"), "serve", config], log=work / "serve.log") as program:
        deadline_s = time.monotonic() + 120
        while not ready(ports["http"]):
            if program.process.poll() is not None or time.monotonic() > deadline_s:
                logs = [work / "serve.log", *sorted((work / "run").rglob("*.log"))]
                said = "\n".join(f"-- {log.name}\n{log.read_text(errors='replace')[-12000:]}" for log in logs)
                raise SystemExit(f"arlo serve did not come up:\n{said}")
            time.sleep(0.2)
        yield program, f"127.0.0.1:{ports['grpc']}", ports["http"]


def ready(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as page:
        return bool(page.status == 200)
    return False


def scenario(contender: str, length: str, rate: float, seconds: float, workers: int = 1) -> Any:
    """The simulated twin at the speed of the profile; its workload has the arrivals of both sides."""
    config = ScenarioConfig(
        run=RunSection(seed=1),
        workload=WorkloadSection(arrivals="poisson", rate=rate, duration_s=seconds, length=length),
        cluster=ClusterSection(
            workers=workers,
            profile=batches.PROFILE,
            max_batch=batches.ROWS,
            slo_ms=batches.SLO_MS,
            bundle="one" if contender == "fifo" else "all",
        ),
        dispatch=DispatchSection(batching=contender),  # type: ignore[arg-type]
    )
    return build(config).scenario


def trace_of(made: Any, slower: float) -> Trace:
    at, lengths = zip(*made.workload.chunks(), strict=True)
    return Trace(arrived_at_s=np.concatenate(at) * 1e-9 * slower, length=np.concatenate(lengths).astype(np.int32))


def twin(made: Any, trace: Trace, slower: float, beyond: Beyond) -> Any:
    """The scenario of a trace, at the speed of the profile, with what was measured beside that."""
    fast = dataclasses.replace(trace, arrived_at_s=trace.arrived_at_s / slower)
    hop_ms = beyond.request_ms / 3 / slower  # at the client, to the worker, and back
    return dataclasses.replace(
        made,
        workload=Replayed(fast),
        timeout_ms=TIMEOUT_MS,
        runtimes=tuple(
            dataclasses.replace(
                each, truth=tuple((n, rows, ms + beyond.of(n, rows) / slower) for n, rows, ms in each.points)
            )
            for each in made.runtimes
        ),
        overhead_ms=hop_ms,
        hop_out_ms=hop_ms,
        hop_back_ms=hop_ms,
    )


def measured(endpoint: str, contender: str, slower: float, workers: int) -> Beyond:
    """Rows alone, and more rows of one length than the workers can do: how long they take beside the same ones
    simulated by the profile; the difference by executions, and by tokens in them."""
    made = scenario(contender, "mix", 1.0, 1.0, workers)
    plain = Beyond(0.0, 0.0, 0.0)
    apart_s = batches.SLO_MS * slower / 2000
    alone = Trace(arrived_at_s=0.1 + np.arange(5 * len(MEASURED)) * apart_s, length=np.array(MEASURED * 5, np.int32))
    real_ms, fast_ms = done_ms(endpoint, alone, made, slower, plain)
    request_ms = float(np.median(real_ms - fast_ms))
    found = []
    for length in MEASURED:
        all_at_once = Trace(arrived_at_s=np.full(2000, 0.1), length=np.full(2000, length, np.int32))
        row_ms = 1000 / rate_of(done_ms(endpoint, all_at_once, made, slower, plain, real=False)[1] + 100)
        count = round(PRESSED * PRESSED_S * 1000 / row_ms)
        at_s = 0.1 + np.sort(np.random.default_rng(length).uniform(0, PRESSED_S, count))
        pressed = Trace(arrived_at_s=at_s, length=np.full(count, length, np.int32))
        rows = run(twin(made, pressed, slower, plain)).mean_batch
        rates = [rate_of(at_s * 1000 + side) for side in done_ms(endpoint, pressed, made, slower, plain)]
        found.append((length * rows, workers * rows * 1000 * (1 / rates[0] - 1 / rates[1])))
    tokens, extra = np.array(found).T
    token_ms = max(0.0, float(np.polyfit(tokens, extra, 1)[0]))
    batch_ms = float(np.mean(extra - token_ms * tokens))
    beyond = Beyond(batch_ms, token_ms, max(0.0, request_ms - batch_ms - token_ms * float(np.mean(MEASURED))))
    print(f"{contender}: {beyond}; {[(round(t), round(e, 2)) for t, e in found]}", flush=True)
    return beyond


def rate_of(done: Any) -> float:
    """Rows per second, of the instants of their ends in ms."""
    first, last = (round(part * len(done)) for part in COUNTED)
    ends = np.sort(done)
    return float((last - first) / (ends[last] - ends[first]) * 1000)


def done_ms(
    endpoint: str, trace: Trace, made: Any, slower: float, beyond: Beyond, *, real: bool = True
) -> tuple[Any, Any]:
    """Latency of each row, of the real side (where that is asked for) and simulated, in times of the slower engines."""
    options = ReplayOptions(endpoint=endpoint, slo_ms=batches.SLO_MS * slower, timeout_ms=0)
    served = latency_us(run_replay(trace, options).records) / 1000 if real else None
    result = run(dataclasses.replace(twin(made, trace, slower, beyond), record=True))
    assert result.columns is not None
    return served, result.columns["latency_ns"] / 1e6 * slower


def simulated(made: Any, trace: Trace, slower: float, beyond: Beyond) -> dict[str, float]:
    """In times of the slower engines."""
    result = run(twin(made, trace, slower, beyond))
    return {
        "on_time": result.slo_attainment,
        "mean_ms": result.mean_ms * slower,
        "p98_ms": result.p98_ms * slower,
        "batch": result.mean_batch,
    }


def replayed(endpoint: str, trace: Trace, slower: float) -> dict[str, float]:
    options = ReplayOptions(endpoint=endpoint, slo_ms=batches.SLO_MS * slower, timeout_ms=0)
    result = run_replay(trace, options)
    summary = result.summary
    assert summary.latency is not None
    return {
        "on_time": summary.slo_attainment,
        "mean_ms": summary.latency.mean_ms,
        "p98_ms": summary.latency.p98_ms,
        "late_sends": summary.sends.late / summary.requests,
        "failed": summary.outcomes["failed"],
    }


def carried(points: Sequence[tuple[float, float]]) -> float | None:
    """The rate at which ATTAINMENT is crossed, of (rate, on time) by rate."""
    for (low, good), (high, bad) in itertools.pairwise(points):
        if good >= batches.ATTAINMENT > bad:
            return low + (high - low) * (good - batches.ATTAINMENT) / (good - bad)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run (default: 15)")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 0.95, 1.05])
    parser.add_argument("--lengths", nargs="+", default=list(batches.LENGTHS), choices=batches.LENGTHS)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--slower", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    kept = json.loads((harness.RESULTS / f"{batches.NAME}.json").read_text())["carried"]
    most = {(row["length"], row["batching"]): row["rate_rps"] for row in kept}
    rows: list[dict[str, Any]] = []
    print("lengths  contender         rate/s   on time            mean ms              p98 ms        rows/batch  late")
    for contender in args.contenders:
        twins = RIVALS.get(contender, contender)
        with (
            tempfile.TemporaryDirectory() as folder,
            served(Path(folder), contender, args.slower, args.workers) as endpoint,
        ):
            beyond = None
            if contender not in RIVALS:
                beyond = measured(endpoint, contender, args.slower, args.workers)
            for length in args.lengths:
                for load in args.loads:
                    rate = load * most[length, twins] * args.workers
                    made = scenario(twins, length, rate, args.seconds / args.slower, args.workers)
                    trace = trace_of(made, args.slower)
                    real = replayed(endpoint, trace, args.slower)
                    found: dict[str, Any] = {"length": length, "contender": contender, "rate_rps": rate, "real": real}
                    if beyond is not None:
                        found["beyond"] = dataclasses.asdict(beyond)
                        found["simulated"] = simulated(made, trace, args.slower, beyond)
                    rows.append(found)
                    show(found)
    ends = [
        {
            "length": length,
            "contender": contender,
            **{
                side: carried([(r["rate_rps"], r[side]["on_time"]) for r in here])
                for side in ("real", "simulated")
                if all(side in r for r in here)
            },
        }
        for contender in args.contenders
        for length in args.lengths
        if (here := [r for r in rows if (r["length"], r["contender"]) == (length, contender)])
    ]
    for end in ends:
        print(end)
    options = f"--seconds {args.seconds:g} --loads {' '.join(f'{load:g}' for load in args.loads)}"
    options += f" --slower {args.slower:g} --workers {args.workers}"
    name = NAME if max(args.loads) > 1 else f"{NAME}_below"  # of what is carried, and latencies below that
    path = harness.save(name, f"python -m benchmarks.{NAME} {options}", {"runs": rows, "carried": ends})
    print(f"-> {path}")
    return 0


def show(found: dict[str, Any]) -> None:
    real, twin = found["real"], found.get("simulated")

    def pair(key: str, form: str) -> str:
        return f"{real[key]:{form}} {'' if twin is None else f'({twin[key]:{form}})':>10}"

    print(
        f"{found['length']:8} {found['contender']:15} {found['rate_rps']:8,.0f}   {pair('on_time', '.3f')} "
        f"{pair('mean_ms', '8.1f')} {pair('p98_ms', '8.1f')} {'' if twin is None else format(twin['batch'], '.1f'):>8} "
        f"{real['late_sends']:8.1%}",
        flush=True,
    )
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
