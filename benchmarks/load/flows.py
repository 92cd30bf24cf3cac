"""Subjects of twin.py that are pipelines.

cascade  `topic` answers the rows that it is sure of, and `tags` answers the rest
tree     after Loki's traffic flow: `detect` makes of each row 10 to 20 rows for `cars` and 2 or 3 for `faces`, 17.4 on
         average
tokens   OTAS's synthetic stream, 200 to 700 queries a second, on a body that carries 430 with all tokens; times and
         accuracies are those of examples/simulate/otas.toml

Each stage of the first two has two variants. Each of the six workers holds all of them; the planner of `arlo serve`
measures demand and sets prices, as the simulated one does. Loads are shares of the flow's largest capacity (quickest
variants, all workers). A visit's overhead besides execution, during which the worker is idle, comes from the gateway's
executions of lone rows and is an input of the simulator. A request's one-time overhead between client and gateway is
the remaining excess over the simulated time, and is added to the simulated mean. Simulated rows expand as the served
rows do. The simulator does not know the phase of the plans relative to the arrivals: it runs with ten phases, and their
mean is compared. In `tokens`, an answer that is in time by the client's clock earns its query's utility times the
accuracy of the count that it names.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
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
from arlo.simulator import flows
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Dispatch, Listed
from arlo.simulator.tokens.file import load_tokens
from arlo.simulator.tokens.served import kinds_of, scenario_of
from arlo.workers.emulated.repository import EmulatedRuntime, runtime_name
from benchmarks import harness
from benchmarks.load.twin import Figures
from benchmarks.papers.otas.figures import EXAMPLE, SHOWN, at_capacity, synthetic
from tests.fakes.replayed import write_replayed_repository

NAME, SLO_MS, CLS, SEP, RECORDS = "bench", 2600, 101, 102, 1000
SURE = 0.7
PHASES = 10
WARM_S = 10  # of a load, sent and not counted
SHORTEST = 3  # tokens of a query of the first task; those of each further one have one more
TOO_LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
Asked = tuple[float, Any]  # ms that a request took, and its answer; infinity and None: refused


async def replay(endpoint: str, bodies: Sequence[bytes], arrived_ns: NDArray[np.int64]) -> tuple[list[Asked], float]:
    """Send requests at their moments; returns the outcome of each, and the share that was sent late."""
    found: list[Asked] = [(np.inf, None)] * len(bodies)
    late = 0
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
            except grpc.aio.AioRpcError as error:
                if error.code() not in TOO_LATE:
                    raise
                return
            found[i] = 1000 * (monotonic_s() - at), answer

        await asyncio.gather(*map(ask, range(len(bodies))))
    return found, late / len(bodies)


def request(ids: Sequence[int], output: str, slo_ms: float, **parameters: float) -> bytes:
    """A request of one row that times out at its SLO, because late answers are worth nothing, as in the simulator."""
    array = np.array([ids], np.int64)
    message = service_pb2.ModelInferRequest(model_name=NAME)
    for name, tensor in (("input_ids", array), ("attention_mask", np.ones_like(array))):
        message.inputs.add(name=name, datatype="INT64", shape=tensor.shape)
        message.raw_input_contents.append(tensor.tobytes())
    message.outputs.add(name=output)
    message.parameters["timeout"].int64_param = round(slo_ms * 1000)
    for name, value in parameters.items():
        message.parameters[name].double_param = value
    return bytes(message.SerializeToString())


def write_variant(work: Path, name: str, length: int, points: Iterable[tuple[int, float]], said: Any) -> str:
    """Write a repository of one emulated runtime with points (rows, ms); returns the TOML that names it."""
    latency = tuple(LatencyPoint(length=length, batch=rows, latency_us=round(1000 * ms)) for rows, ms in points)
    most = max(point.batch for point in latency)
    runtime = EmulatedRuntime(
        name=runtime_name(name, length), max_length=length, max_batch=most, dynamic=False, latency=latency
    )
    write_replayed_repository(work / name, model=name, runtimes=[runtime], logits=said)
    return f'[[flow.stage.variant]]\nrepository = "{name}"\n'


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage with the one length of its engines. Variants: name, accuracy, ms of one row and of the largest batch."""

    name: str
    length: int
    rows: int  # of the largest batch
    variants: tuple[tuple[str, float, tuple[int, int]], ...]


@dataclasses.dataclass(frozen=True)
class Shape:
    """A flow: its stages, edges as TOML, request lengths, drawn uniformly, and tokens of a piece by edge."""

    stages: tuple[Stage, ...]
    edges: str
    lengths: tuple[int, ...]
    pieces: tuple[int, ...] = ()

    def drawn(self, count: int) -> NDArray[np.int64]:
        """Tokens of the first `count` rows of a load."""
        return np.random.default_rng(count).choice(self.lengths, count)

    def traced(self, flow: Flow, count: int) -> Flow:
        """The flow whose simulated roots expand, one by one, like those of a load of `count` rows."""
        edges = list(flow.edges)
        for at, piece in enumerate(self.pieces):
            counts = pieces_of(self.drawn(count), piece)
            factor = (float(np.mean(counts)),)
            expand = dataclasses.replace(edges[at].expand, distribution="trace", counts=counts, factor=factor)
            edges[at] = dataclasses.replace(edges[at], expand=expand)
        return dataclasses.replace(flow, edges=tuple(edges))


def logits() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(0, 2, (RECORDS, 4)).astype(np.float32)


def pieces_of(lengths: Iterable[int], piece: int) -> tuple[int, ...]:
    """Pieces of `piece` tokens of each row, its first and last token left out."""
    return tuple(-(-(int(length) - 2) // piece) for length in lengths)


def cascade() -> Shape:
    """A cascade whose models of a stage all agree, so that the share of the exit is known."""
    e = np.exp(logits())
    ends = float(((e / e.sum(-1, keepdims=True)).max(-1) >= SURE).mean())
    stages = (
        Stage("topic", 32, 8, (("sure", 0.95, (160, 480)), ("quick", 0.85, (40, 120)))),
        Stage("tags", 32, 8, (("large", 0.95, (200, 600)), ("small", 0.8, (60, 180)))),
    )
    guard = f'{{score = "calibrated_max", at_least = {SURE}, share = {ends}}}'
    edges = f'[[flow.edge]]\nfrom = "topic"\nto = "exit"\nwhen = {guard}\n[[flow.edge]]\nfrom = "topic"\nto = "tags"\n'
    return Shape(stages, edges, (32,))


def tree() -> Shape:
    """A tree in which pieces of 16 tokens are cars and pieces of 128 tokens are faces."""
    lengths = range(162, 323, 16)
    pieces = {"cars": 16, "faces": 128}
    stages = (
        Stage("detect", 322, 8, (("fine", 0.95, (300, 900)), ("rough", 0.85, (100, 300)))),
        Stage("cars", 18, 16, (("car_large", 0.95, (60, 360)), ("car_small", 0.8, (30, 120)))),
        Stage("faces", 130, 8, (("face_large", 0.95, (80, 400)), ("face_small", 0.8, (40, 160)))),
    )
    edges = ""
    for head, piece in pieces.items():
        counts = list(pieces_of(lengths, piece))
        expand = f"window = {piece + 2}, stride = {piece}, factor = {np.mean(counts)}, counts = {counts}"
        edges += f'[[flow.edge]]\nfrom = "detect"\nto = "{head}"\nexpand = {{kind = "chunks", max = 20, {expand}}}\n'
    return Shape(stages, edges, tuple(lengths), tuple(pieces.values()))


SHAPES = {"cascade": cascade, "tree": tree}


class Pipeline:
    """A shape, served and simulated."""

    slo_ms, workers = SLO_MS, 6

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.visit_ms = self.request_ms = 0.0

    def write(self, work: Path) -> Mapping[str, Mapping[str, Any]]:
        text = f'[flow]\nname = "{NAME}"\nslo_ms = {SLO_MS}\nplan_period_s = 5\n'
        for stage in self.shape.stages:
            text += f'[[flow.stage]]\nname = "{stage.name}"\n'
            for name, accuracy, ms in stage.variants:
                points = zip((1, stage.rows), ms, strict=True)
                text += write_variant(work, name, stage.length, points, logits()) + f"accuracy = {accuracy}\n"
        (work / "flow.toml").write_text(text + self.shape.edges)
        self.flow = load_flow(work / "flow.toml")
        self.most = capacity(self.flow, self.workers)
        dispatch = {"batching": "deadline", "inflight_limit": 1}
        return {"model": {}, "pipeline": {"flow": str(work / "flow.toml")}, "dispatch": dispatch}

    def replay(self, endpoint: str, arrived: NDArray[np.int64]) -> tuple[NDArray[np.float64], list[Any], float]:
        """Times of the rows in ms, their answers, and the share sent late. The token after the first one is the record,
        also in a piece."""
        bodies = [
            request([CLS, i % RECORDS, *range(1, length - 2), SEP], "accuracy_expected", SLO_MS)
            for i, length in enumerate(self.shape.drawn(len(arrived)).tolist())
        ]
        found, late = asyncio.run(replay(endpoint, bodies, arrived))
        return np.array([ms for ms, _ in found]), [answer for _, answer in found], late

    def simulate(self, arrived: NDArray[np.int64], warmup_s: float, hop_ms: float) -> Result:
        flow = self.shape.traced(self.flow, len(arrived))
        return run(
            flows.scenario_of(
                flow, Listed(arrived), workers=self.workers, bundle="all", warmup_s=warmup_s,
                hop_out_ms=hop_ms, hop_back_ms=hop_ms,
                dispatch=Dispatch(batching="deadline", inflight_limit=1),
            )
        )  # fmt: skip

    def prepare(self, endpoint: str, http: int) -> Mapping[str, float]:
        """Overheads in ms of a visit, by the gateway's count of the first stage's most accurate variant, and of a
        request, measured with lone rows at a fiftieth of the capacity."""
        arrived = arrivals(0.02 * self.most, 60.0, 1)
        took, _, _ = self.replay(endpoint, arrived)
        lone = self.simulate(arrived, 0.0, 0.0)
        first = self.shape.stages[0]
        name, _, ms = first.variants[0]
        total, count = (
            sum(harness.metric(http, f"arlo_execute_duration_seconds_{what}", f'"{NAME}.{first.name}.{name}"'))
            for what in ("sum", "count")
        )
        self.visit_ms = max(1000 * total / count - ms[0], 0.0)
        deep = (
            lone.figures.more["rows"] / lone.requests if len(self.shape.stages) == 2 else 2
        )  # visits one behind the other
        mean_ms = float(took[np.isfinite(took)].mean())
        self.request_ms = max(mean_ms - lone.mean_ms - deep * self.visit_ms, 0.0)
        return {"most_rps": self.most, "visit_ms": self.visit_ms, "request_ms": self.request_ms}

    def compare(self, endpoint: str, load: float, seconds: float) -> tuple[Figures, Figures | None]:
        arrived = arrivals(load * self.most, seconds + WARM_S, round(100 * load))
        took, answers, late_sends = self.replay(endpoint, arrived)
        counted = arrived >= WARM_S * 1e9
        right = [
            np.frombuffer(answer.raw_output_contents[0], "<f4")[0]
            for answer, yes in zip(answers, counted, strict=True)
            if yes and answer is not None
        ]
        real = {
            "violations": float((took[counted] > SLO_MS).mean()),
            "accuracy": float(np.mean(right)),
            "mean_ms": float(took[counted & np.isfinite(took)].mean()),
            "late_sends": late_sends,
        }
        waits = np.linspace(0, self.flow.plan_period_s, PHASES, endpoint=False)
        phases = [self.simulate(arrived + round(wait * 1e9), WARM_S + float(wait), self.visit_ms / 2) for wait in waits]
        simulated: Figures = {}
        for name, each in (
            ("violations", [1 - one.kept for one in phases]),
            ("accuracy", [one.figures.accuracy or 0.0 for one in phases]),
            ("mean_ms", [one.mean_ms for one in phases]),
        ):
            simulated |= {name: float(np.mean(each)), f"{name}_sd": float(np.std(each))}
        simulated["mean_ms"] += self.request_ms
        return real, simulated


def arrivals(rate: float, seconds: float, seed: int) -> NDArray[np.int64]:
    """Poisson arrivals in ns."""
    gaps = np.random.default_rng(seed).exponential(1e9 / rate, round(rate * seconds))
    return np.asarray(np.cumsum(gaps).astype(np.int64))


class Tokens:
    """OTAS's queries; loads are ignored, as the stream is the paper's. Each task's queries have their own length, by
    which the pipeline knows their accuracy."""

    slo_ms, workers = 1000, 1

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.spec = at_capacity(load_tokens(EXAMPLE), SHOWN)

    def write(self, work: Path) -> Mapping[str, Mapping[str, Any]]:
        lengths = [SHORTEST + i for i in range(len(self.spec.accuracy))]
        slo_ms = max(query.slo_ms for query in self.spec.queries)
        text = f'[flow]\nname = "{NAME}"\nslo_ms = {slo_ms:g}\n[[flow.stage]]\nname = "tokens"\n'
        for at, variant in enumerate(self.spec.variants):
            right = [of[at] for of in self.spec.accuracy.values()]
            text += write_variant(work, f"t{at}", lengths[-1], variant.engines[-1][1], np.zeros((10, 2), np.float32))
            text += (
                f"tokens = {variant.tokens}\naccuracy = {np.mean(right)}\nbins = {lengths}\nbin_accuracy = {right}\n"
            )
        (work / "flow.toml").write_text(text)
        return {"model": {}, "pipeline": {"flow": str(work / "flow.toml"), "tokens": self.policy}}

    def prepare(self, endpoint: str, http: int) -> Mapping[str, float]:
        return {}

    def compare(self, endpoint: str, load: float, seconds: float) -> tuple[Figures, Figures | None]:
        spec, tasks = self.spec, list(self.spec.accuracy)
        arrived = synthetic(round(seconds) + WARM_S, 0)
        kind = kinds_of(spec, 0)(len(arrived))
        bodies = [
            request(
                [CLS, *range(1, SHORTEST - 1 + tasks.index(query.task)), SEP],
                "tokens",
                query.slo_ms,
                utility=query.utility,
            )
            for query in spec.queries
        ]
        found, late_sends = asyncio.run(replay(endpoint, [bodies[each] for each in kind], arrived))
        real = {"utility": 0.0, "accurate": 0.0, "late": 0.0, "evicted": 0.0, "late_sends": late_sends}
        counted = int((arrived >= WARM_S * 1e9).sum())
        for i in range(len(arrived) - counted, len(arrived)):
            query, (took, answer) = spec.queries[kind[i]], found[i]
            if answer is None:
                real["evicted"] += 1 / counted
            elif took > query.slo_ms:
                real["late"] += 1 / counted
            else:
                tokens = int(np.frombuffer(answer.raw_output_contents[0], "<i4")[0])
                right = spec.accuracy[query.task][spec.tokens.index(tokens)]
                real["utility"] += right * query.utility
                real["accurate"] += right / counted
        figures = run(scenario_of(spec, self.policy, Listed(arrived), warmup_s=WARM_S)).figures
        return real, {"utility": figures.utility, **figures.more["types"]}
