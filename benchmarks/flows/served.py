"""Pipelines on real Triton workers with emulated engines, beside the same arrivals simulated.

    python -m benchmarks.flows.served [--flow tree] [--seconds 30] [--workers 6] [--loads 0.5 0.75 0.95] [--router plan]

Of `cascade`, `topic` ends the rows that it is sure of and `tags` answers the rest; of `tree`, after Loki's traffic
flow, `detect` makes of each row 10 to 20 rows for `cars` and 2 or 3 for `faces`, 17.4 on average. Each stage has two
variants. Every worker holds all of them; the planner of `arlo serve` measures demand and sets prices, as the simulated
one does. Loads are shares of what the flow can carry at all (the quickest variants, all of the capacity). What a visit
takes beside executing, which keeps the worker idle, is what the gateway says of executions of rows that come alone, at
a fiftieth of it; what a request takes once, between client and gateway, is the rest of what they take more than
simulated. The first is told to the simulator, the second is added to its mean. What rows become is what those that
are served become. When plans are made, beside the arrivals, is not known to the simulator: it runs with ten phases, and
what is compared is the mean of these, given with their standard deviation.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.catalog.flow import Flow
from arlo.catalog.flow_file import load_flow
from arlo.catalog.manifest import LatencyPoint
from arlo.clock import monotonic_s
from arlo.planning.flows.curve import capacity
from arlo.simulator.flows import FlowResult, FlowRun, planner_of, run
from arlo.workers.emulated.repository import EmulatedRuntime, runtime_name
from benchmarks import harness
from benchmarks.batches_served import serving
from benchmarks.replayed import write_replayed_repository

NAME, SLO_MS, CLS, SEP, RECORDS = "tree", 2600, 101, 102, 1000
SURE = 0.7
PHASES = 10
Figures = dict[str, float]
BARS = {"accuracy": 0.005, "violations": 0.02, "mean": 0.05}  # the last one relative


@dataclasses.dataclass(frozen=True)
class Engine:
    """A variant: accuracy, and ms of one row and of the largest batch."""

    name: str
    accuracy: float
    ms: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage with the one length of its engines."""

    name: str
    length: int
    rows: int  # of the largest batch
    variants: tuple[Engine, ...]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A flow: its stages, its edges as TOML, lengths of what is asked, drawn alike, and tokens of a piece by edge."""

    stages: tuple[Stage, ...]
    edges: str
    lengths: tuple[int, ...]
    pieces: tuple[int, ...] = ()

    def drawn(self, count: int) -> NDArray[np.int64]:
        """Tokens of the first `count` rows of a load."""
        return np.random.default_rng(count).choice(self.lengths, count)

    def traced(self, flow: Flow, count: int) -> Flow:
        """The flow whose roots in a simulation become, one by one, what those of a load of so many rows do."""
        if not self.pieces:
            return flow
        edges = [
            dataclasses.replace(
                edge,
                expand=dataclasses.replace(
                    edge.expand,
                    distribution="trace",
                    counts=(counts := pieces_of(self.drawn(count), piece)),
                    factor=(float(np.mean(counts)),),
                ),
            )
            for edge, piece in zip(flow.edges, self.pieces, strict=True)
        ]
        return dataclasses.replace(flow, edges=tuple(edges))


def cascade() -> Subject:
    """All models of a stage say the same, so that the share of the exit is known."""
    e = np.exp(logits_of(RECORDS))
    ends = float(((e / e.sum(-1, keepdims=True)).max(-1) >= SURE).mean())
    stages = (
        Stage("topic", 32, 8, (Engine("sure", 0.95, (160, 480)), Engine("quick", 0.85, (40, 120)))),
        Stage("tags", 32, 8, (Engine("large", 0.95, (200, 600)), Engine("small", 0.8, (60, 180)))),
    )
    guard = f'{{score = "calibrated_max", at_least = {SURE}, share = {ends}}}'
    edges = f'[[flow.edge]]\nfrom = "topic"\nto = "exit"\nwhen = {guard}\n[[flow.edge]]\nfrom = "topic"\nto = "tags"\n'
    return Subject(stages, edges, (32,))


def tree() -> Subject:
    """Pieces of 16 tokens are cars, pieces of 128 tokens are faces."""
    lengths = range(162, 323, 16)
    pieces = {"cars": 16, "faces": 128}
    stages = (
        Stage("detect", 322, 8, (Engine("fine", 0.95, (300, 900)), Engine("rough", 0.85, (100, 300)))),
        Stage("cars", 18, 16, (Engine("car_large", 0.95, (60, 360)), Engine("car_small", 0.8, (30, 120)))),
        Stage("faces", 130, 8, (Engine("face_large", 0.95, (80, 400)), Engine("face_small", 0.8, (40, 160)))),
    )
    edges = ""
    for head, piece in pieces.items():
        counts = list(pieces_of(lengths, piece))
        expand = f"window = {piece + 2}, stride = {piece}, factor = {np.mean(counts)}, counts = {counts}"
        edges += f'[[flow.edge]]\nfrom = "detect"\nto = "{head}"\nexpand = {{kind = "chunks", max = 20, {expand}}}\n'
    return Subject(stages, edges, tuple(lengths), tuple(pieces.values()))


def pieces_of(lengths: Iterable[int], piece: int) -> tuple[int, ...]:
    """Pieces of `piece` tokens of each row, its first and last token left out."""
    return tuple(-(-(int(length) - 2) // piece) for length in lengths)


SUBJECTS = {"cascade": cascade, "tree": tree}


def logits_of(records: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(0, 2, (records, 4)).astype(np.float32)


def write_flow(work: Path, subject: Subject, router: str) -> Path:
    """Repositories and a flow file."""
    text = f'[flow]\nname = "{NAME}"\nslo_ms = {SLO_MS}\nplan_period_s = 5\nrouter = "{router}"\n'
    for stage in subject.stages:
        text += f'[[flow.stage]]\nname = "{stage.name}"\n'
        for engine in stage.variants:
            points = tuple(
                LatencyPoint(length=stage.length, batch=rows, latency_us=1000 * ms)
                for rows, ms in zip((1, stage.rows), engine.ms, strict=True)
            )
            runtime = EmulatedRuntime(
                name=runtime_name(engine.name, stage.length),
                max_length=stage.length,
                max_batch=stage.rows,
                dynamic=False,
                latency=points,
            )
            write_replayed_repository(
                work / engine.name, model=engine.name, runtimes=[runtime], logits=logits_of(RECORDS)
            )
            text += f'[[flow.stage.variant]]\nrepository = "{engine.name}"\naccuracy = {engine.accuracy}\n'
    (work / "flow.toml").write_text(text + subject.edges)
    return work / "flow.toml"


def request(record: int, length: int) -> bytes:
    """The token after the first one is the record, of a piece, too."""
    ids = np.array([[CLS, record, *range(1, length - 2), SEP]], np.int64)
    message = service_pb2.ModelInferRequest(model_name=NAME)
    for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
        message.inputs.add(name=name, datatype="INT64", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    message.outputs.add(name="accuracy_expected")
    message.parameters["timeout"].int64_param = SLO_MS * 1000  # late is worth nothing, as to the simulator
    return bytes(message.SerializeToString())


async def replayed(
    endpoint: str, subject: Subject, arrived_ns: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Rows at their moments: ms that each took, infinity for an error; its accuracy; share that was sent late."""
    bodies = [request(i % RECORDS, int(length)) for i, length in enumerate(subject.drawn(len(arrived_ns)))]
    took = np.full(len(bodies), np.inf)
    accuracy, late = np.zeros(len(bodies)), 0
    async with grpc.aio.insecure_channel(endpoint) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        begun = monotonic_s() + 0.2

        async def ask(i: int) -> None:
            nonlocal late
            at = begun + arrived_ns[i] * 1e-9
            await asyncio.sleep(max(0.0, at - monotonic_s()))
            late += monotonic_s() - at > 0.01
            try:
                answer = service_pb2.ModelInferResponse.FromString(await infer(bodies[i]))
            except grpc.aio.AioRpcError:
                return
            took[i] = 1000 * (monotonic_s() - at)
            accuracy[i] = np.frombuffer(answer.raw_output_contents[0], "<f4")[0]

        await asyncio.gather(*map(ask, range(len(bodies))))
    return took, accuracy, late / len(bodies)


def figures(took: NDArray[np.float64], accuracy: NDArray[np.float64], late_sends: float) -> dict[str, float]:
    """Of the rows that came after the warm-up, as the simulator's."""
    answered = np.isfinite(took)
    return {
        "roots": len(took),
        "violations": float((took > SLO_MS).mean()),
        "accuracy": float(accuracy[answered].mean()),
        "mean_ms": float(took[answered].mean()),
        "late_sends": late_sends,
    }


def beside_executing(subject: Subject, http: int, took: NDArray[np.float64], lone: FlowResult) -> tuple[float, float]:
    """ms of a visit, by the gateway's count of the first stage's most accurate variant, and of a request; of rows that
    were alone. `lone`: the same simulated with neither."""
    first = subject.stages[0]
    model = f'"{NAME}.{first.name}.{first.variants[0].name}"'
    with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=5) as page:
        lines = [line for line in page.read().decode().splitlines() if model in line]
    total, count = (
        float(next(line for line in lines if line.startswith(f"arlo_execute_duration_seconds_{what}{{")).split()[-1])
        for what in ("sum", "count")
    )
    visit = max(1000 * total / count - first.variants[0].ms[0], 0.0)
    deep = lone.rows / lone.roots if len(subject.stages) == 2 else 2  # visits one behind the other
    return visit, max(float(took[np.isfinite(took)].mean()) - lone.mean_ms - deep * visit, 0.0)


def phases(flow: Flow, workers: int, arrived_ns: NDArray[np.int64], warmup_s: float, hop_ms: float) -> Figures:
    """Simulated with plans at ten phases of their period: means, and standard deviations as `.._sd`."""
    waits = np.linspace(0, flow.plan_period_s, PHASES, endpoint=False)
    found = [simulated(flow, workers, arrived_ns + round(wait * 1e9), warmup_s + float(wait), hop_ms) for wait in waits]
    twin: Figures = {}
    for name in ("accuracy", "violations", "mean_ms"):
        each = [getattr(one, name) for one in found]
        twin |= {name: float(np.mean(each)), f"{name}_sd": float(np.std(each))}
    return twin


def simulated(flow: Flow, workers: int, arrived_ns: NDArray[np.int64], warmup_s: float, hop_ms: float) -> FlowResult:
    return run(
        FlowRun(
            flow=flow,
            planner=planner_of(flow),
            workers=workers,
            arrived_ns=arrived_ns,
            hold="all",
            batching="deadline",
            fixed=True,
            counted=True,
            warmup_s=warmup_s,
            hop_ms=hop_ms,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flow", choices=tuple(SUBJECTS), default="cascade")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run, beside its warm-up")
    parser.add_argument("--warmup-s", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.75, 0.95])
    parser.add_argument("--router", choices=("price", "plan", "maf"), default="price")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    subject = SUBJECTS[args.flow]()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        path = write_flow(work, subject, args.router)
        flow = load_flow(path)
        most = capacity(flow, args.workers)
        settings: dict[str, dict[str, Any]] = {
            "model": {},
            "pipeline": {"flow": str(path)},
            "dispatch": {"batching": "deadline", "inflight_limit": 1},
        }

        def arrivals(rate: float, seconds: float, seed: int) -> NDArray[np.int64]:
            gaps = np.random.default_rng(seed).exponential(1e9 / rate, round(rate * seconds))
            return np.asarray(np.cumsum(gaps).astype(np.int64))

        with serving(work, slo_ms=SLO_MS, settings=settings, workers=args.workers) as (_, endpoint, http):
            arrived = arrivals(0.02 * most, 60.0, 1)
            took, _, _ = asyncio.run(replayed(endpoint, subject, arrived))
            lone = simulated(subject.traced(flow, len(arrived)), args.workers, arrived, 0.0, 0.0)
            visit_ms, request_ms = beside_executing(subject, http, took, lone)
            beside = {"visit_ms": visit_ms, "request_ms": request_ms}
            print(
                f"carries {most:.1f} rows/s at most; beside executing a visit takes {visit_ms:.1f} ms, and a request"
                f" {request_ms:.1f} ms",
                flush=True,
            )
            for seed, load in enumerate(args.loads, start=2):
                arrived = arrivals(load * most, args.seconds + args.warmup_s, seed)
                took, accuracy, late_sends = asyncio.run(replayed(endpoint, subject, arrived))
                skip = int((arrived < args.warmup_s * 1e9).sum())
                real = figures(took[skip:], accuracy[skip:], late_sends)
                same = subject.traced(flow, len(arrived))
                twin = phases(same, args.workers, arrived, args.warmup_s, visit_ms / 2)
                mean_ms = twin["mean_ms"] + request_ms
                off = {
                    "accuracy": real["accuracy"] - twin["accuracy"],
                    "violations": real["violations"] - twin["violations"],
                    "mean": real["mean_ms"] / mean_ms - 1,
                }
                kept = all(abs(off[name]) <= bar for name, bar in BARS.items())
                rows.append({"load": load, "real": real, "simulated": twin, "off": off, "kept": kept})
                print(
                    f"{load:.2f} {load * most:6.1f}/s accuracy {real['accuracy']:.4f} ({twin['accuracy']:.4f} ± "
                    f"{twin['accuracy_sd']:.4f}) violations {real['violations']:.3%} ({twin['violations']:.3%} ± "
                    f"{twin['violations_sd']:.3%}) mean {real['mean_ms']:.0f} ({mean_ms:.0f} ± "
                    f"{twin['mean_ms_sd']:.0f}) ms, {off['mean']:+.1%}; late sends {real['late_sends']:.1%}: "
                    f"{'kept' if kept else 'NOT KEPT'}",
                    flush=True,
                )
    command = (
        f"python -m benchmarks.flows.served --flow {args.flow} --seconds {args.seconds:g} --workers {args.workers} "
        f"--router {args.router}"
    )
    name = f"flows_served_{args.router}" if args.flow == "cascade" else f"flows_served_{args.flow}_{args.router}"
    print(f"-> {harness.save(name, command, {'most_rps': most, **beside, 'runs': rows})}")
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
