"""A real Triton with emulated engines under `arlo serve`, and the same arrivals simulated.

    python -m benchmarks.load.twin [SUBJECT...] [--loads 0.5 0.75 0.95] [--seconds 20] [--workers 1]

one, deadline        BERT-base on an A100 (published latencies), `--slower` times, with the SLO that many times 100 ms:
                     so two cores carry the load. One row at a time, and batches formed by Arlo
fifo                 one dynamic runtime as quick as the static ones; batches in order of arrival
triton               the same, with Triton's own batcher, which the simulator does not have
triton-lengths       all lengths on the worker, each with Triton's own batcher
cascade, tree        pipelines (flows.py), six workers: a stage behind another; one whose rows become many
tokens:POLICY        OTAS's queries on a body at several token counts, by policy (flows.py)

Loads are shares of the simulated capacity. The overhead of an execution beyond the profile, and of the way there and
back, is measured separately before the runs and given to the simulator.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.bundle import bundle_of
from arlo.replay import ReplayOptions, run_replay
from arlo.replay.records import latency_us
from arlo.simulator.profiles import load_profile
from arlo.simulator.run import run
from arlo.simulator.scenario.build import build
from arlo.traces import Trace
from arlo.workers.emulated.repository import emulated, write_runtimes
from benchmarks import harness
from benchmarks.load import study

STEP = 32  # tokens between the lengths
TIMEOUT_MS = 10 * study.SLO_MS  # the gateway's default
# Measurement of executions: a worker that always has rows of one length waiting, for PRESSED_S seconds.
MEASURED = (32, 64, 128, 256, 512)  # tokens
PRESSED, PRESSED_S = 1.2, 4.0  # of what it can do
COUNTED = (0.3, 0.9)  # of the answers
Figures = dict[str, float]


class Subject(Protocol):
    """A served subject. `slo_ms`: by the server's clock."""

    @property
    def slo_ms(self) -> float: ...

    @property
    def workers(self) -> int: ...

    def write(self, work: Path) -> Mapping[str, Mapping[str, Any]]:
        """Write the repositories; returns their settings for serve.toml."""

    def prepare(self, endpoint: str, http: int) -> Mapping[str, float]:
        """Measure the simulator's inputs."""

    def compare(self, endpoint: str, load: float, seconds: float) -> tuple[Figures, Figures | None]:
        """Figures of the served side, and of the simulated one."""


class Replayed:
    """A trace as a workload, at the whole microseconds at which the load generator sends."""

    def __init__(self, trace: Trace) -> None:
        self.name = "replayed"
        self.duration_s = trace.duration_s
        self._trace = trace

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        yield np.rint(self._trace.arrived_at_s * 1e6).astype(np.int64) * 1000, self._trace.length

    def describe(self) -> str:
        return f"{len(self._trace)} requests of a trace"


@dataclasses.dataclass(frozen=True)
class Beyond:
    """Overheads beyond the latency profile, in milliseconds of the slower engines."""

    batch_ms: float  # of each execution
    token_ms: float  # of each token in it, padding included
    request_ms: float  # the way to the gateway, to the worker, and back

    def of(self, length: int, rows: int) -> float:
        return self.batch_ms + self.token_ms * length * rows


def trace_of(made: Any, slower: float) -> Trace:
    at, lengths = zip(*made.workload.chunks(), strict=True)
    return Trace(arrived_at_s=np.concatenate(at) * 1e-9 * slower, length=np.concatenate(lengths).astype(np.int32))


def twin(made: Any, trace: Trace, slower: float, beyond: Beyond) -> Any:
    """The scenario of a trace, at the speed of the profile, plus the measured overheads."""
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


def rate_of(done: Any) -> float:
    """Rows per second, from their end times in ms."""
    first, last = (round(part * len(done)) for part in COUNTED)
    ends = np.sort(done)
    return float((last - first) / (ends[last] - ends[first]) * 1000)


@dataclasses.dataclass
class Rows:
    """A plain model. `batching` of the simulated side is also that whose loads Triton's own batchers are offered."""

    length: str
    slower: float
    workers: int
    dynamic: bool  # one runtime of any length
    batcher: bool  # Triton's own
    batching: str
    beyond: Beyond = Beyond(0.0, 0.0, 0.0)

    @property
    def slo_ms(self) -> float:
        return study.SLO_MS * self.slower

    def write(self, work: Path) -> Mapping[str, Mapping[str, Any]]:
        profile = load_profile(study.PROFILE)
        models = profile.static_runtimes(range(STEP, profile.max_length + 1, STEP), max_batch=study.ROWS)
        served = [bundle_of("bench", models)] if self.dynamic else models
        runtimes = [emulated(each, model="bench", slower=self.slower, batcher=self.batcher) for each in served]
        write_runtimes(work / "repository", model="bench", runtimes=runtimes)
        batching = "worker" if self.batcher else "fill" if self.dynamic else self.batching
        deployment = {"runtimes": "dynamic" if self.dynamic else "bundle"}
        return {"deployment": deployment, "dispatch": {"batching": batching}}

    def scenario(self, rate: float, seconds: float, length: str | None = None) -> Any:
        """The simulated twin at the speed of the profile; its workload has the arrivals of both sides."""
        offered = study.config(length or self.length, self.batching, rate, seconds, workers=self.workers, warmup_s=0.0)
        return build(offered).scenario

    def prepare(self, endpoint: str, http: int) -> Mapping[str, float]:
        """Send lone rows, then more rows of one length than the workers can do, and compare their times with the
        simulation by the profile; returns the difference per execution and per token in it."""
        if self.batcher:
            return {}
        made = self.scenario(1.0, 1.0, "mix")
        apart_s = study.SLO_MS * self.slower / 2000
        at_s = 0.1 + np.arange(5 * len(MEASURED)) * apart_s
        alone = Trace(arrived_at_s=at_s, length=np.array(MEASURED * 5, np.int32))
        request_ms = float(np.median(self.replay_ms(endpoint, alone) - self.simulate_ms(made, alone)))
        found = []
        for length in MEASURED:
            all_at_once = Trace(arrived_at_s=np.full(2000, 0.1), length=np.full(2000, length, np.int32))
            row_ms = 1000 / rate_of(self.simulate_ms(made, all_at_once) + 100)
            count = round(PRESSED * PRESSED_S * 1000 / row_ms)
            at_s = 0.1 + np.sort(np.random.default_rng(length).uniform(0, PRESSED_S, count))
            pressed = Trace(arrived_at_s=at_s, length=np.full(count, length, np.int32))
            rows = run(twin(made, pressed, self.slower, self.beyond)).mean_batch
            sides = self.replay_ms(endpoint, pressed), self.simulate_ms(made, pressed)
            rates = [rate_of(at_s * 1000 + side) for side in sides]
            found.append((length * rows, self.workers * rows * 1000 * (1 / rates[0] - 1 / rates[1])))
        tokens, extra = np.array(found).T
        token_ms = max(0.0, float(np.polyfit(tokens, extra, 1)[0]))
        batch_ms = float(np.mean(extra - token_ms * tokens))
        way_ms = max(0.0, request_ms - batch_ms - token_ms * float(np.mean(MEASURED)))
        self.beyond = Beyond(batch_ms, token_ms, way_ms)
        return dataclasses.asdict(self.beyond)

    def replay(self, endpoint: str, trace: Trace) -> Any:
        return run_replay(trace, ReplayOptions(endpoint=endpoint, slo_ms=self.slo_ms, timeout_ms=0))

    def replay_ms(self, endpoint: str, trace: Trace) -> NDArray[np.float64]:
        """Latency of each row."""
        return np.asarray(latency_us(self.replay(endpoint, trace).records) / 1000)

    def simulate_ms(self, made: Any, trace: Trace) -> NDArray[np.float64]:
        """Simulated latency of each row, in times of the slower engines."""
        result = run(dataclasses.replace(twin(made, trace, self.slower, self.beyond), record=True))
        assert result.columns is not None
        return np.asarray(result.columns["latency_ns"] / 1e6 * self.slower)

    def compare(self, endpoint: str, load: float, seconds: float) -> tuple[Figures, Figures | None]:
        rate = load * study.carried(self.length, self.batching) * self.workers
        made = self.scenario(rate, seconds / self.slower)
        trace = trace_of(made, self.slower)
        summary = self.replay(endpoint, trace).summary
        assert summary.latency is not None
        real = {
            "rows_s": rate / self.slower,
            "on_time": summary.slo_attainment,
            "mean_ms": summary.latency.mean_ms,
            "p98_ms": summary.latency.p98_ms,
            "late_sends": summary.sends.late / summary.requests,
        }
        if self.batcher:
            return real, None
        result = run(twin(made, trace, self.slower, self.beyond))
        return real, {
            "on_time": result.slo_attainment,
            "mean_ms": result.mean_ms * self.slower,
            "p98_ms": result.p98_ms * self.slower,
        }


ROWS = {  # dynamic, Triton's batcher, batching
    "one": (False, False, "one"),
    "deadline": (False, False, "deadline"),
    "fifo": (True, False, "fifo"),
    "triton": (True, True, "fifo"),
    "triton-lengths": (False, True, "fifo"),
}


def subject_of(name: str, args: argparse.Namespace) -> Subject:
    """The subject of this name; SystemExit if there is none."""
    from benchmarks.load import flows  # which uses this

    if name in ROWS:
        return Rows(args.lengths, args.slower, args.workers, *ROWS[name])
    if name in flows.SHAPES:
        return flows.Pipeline(flows.SHAPES[name]())
    if name.startswith("tokens:"):
        return flows.Tokens(name.partition(":")[2])
    raise SystemExit(f"no subject {name!r}: there are {', '.join([*ROWS, *flows.SHAPES])} and tokens:POLICY")


def said(real: Figures, simulated: Figures | None) -> str:
    return ", ".join(
        f"{key} {value:,.3f}" + (f" ({simulated[key]:,.3f})" if simulated is not None and key in simulated else "")
        for key, value in real.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", default=["deadline"], metavar="SUBJECT", help="(default: deadline)")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.75, 0.95])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (default: 20)")
    parser.add_argument("--workers", type=int, default=1, help="of plain rows (default: 1)")
    parser.add_argument("--lengths", default="mix", choices=study.LENGTHS, help="of plain rows (default: mix)")
    parser.add_argument("--slower", type=float, default=10.0, help="engines of plain rows (default: 10 times)")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.subjects:
        subject = subject_of(name, args)
        with tempfile.TemporaryDirectory() as folder:
            settings = subject.write(Path(folder))
            started = harness.serving(
                Path(folder), slo_ms=round(subject.slo_ms), settings=settings, workers=subject.workers
            )
            with started as (_, endpoint, http):
                beside = subject.prepare(endpoint, http)
                print(f"{name}: told to the simulator: {dict(beside)}", flush=True)
                for load in args.loads:
                    real, simulated = subject.compare(endpoint, load, args.seconds)
                    rows.append({"subject": name, "load": load, "real": real, "simulated": simulated, **beside})
                    print(f"{name} {load:g}, served (simulated): {said(real, simulated)}", flush=True)
    command = " ".join(["python -m benchmarks.load.twin", *sys.argv[1:]])
    print(f"-> {harness.save('twin', command, {'runs': rows})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
