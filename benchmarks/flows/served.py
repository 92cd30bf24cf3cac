"""A pipeline of two stages on real Triton workers with emulated engines, beside the same arrivals simulated.

    python -m benchmarks.flows.served [--seconds 30] [--workers 6] [--loads 0.5 0.75 0.95] [--router plan]

`topic` (two variants) ends the rows that it is sure of, `tags` (two variants) answers the rest. Every worker holds all
of them; the planner of `arlo serve` measures demand and sets prices, as the simulated one does. Loads are shares of
what the flow can carry at all (the quickest variants, all of the capacity). What a visit takes beside executing, which
keeps the worker idle, and what a request takes once, between client and gateway, are measured before, at a fiftieth of
it, from rows of one and of two visits: the first is told to the simulator, the second is added to its mean.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.catalog.flow_file import load_flow
from arlo.catalog.manifest import LatencyPoint
from arlo.clock import monotonic_s
from arlo.planning.flows.curve import capacity
from arlo.simulator.flows import FlowResult, FlowRun, planner_of, run
from arlo.workers.emulated.replayed import write_replayed_repository
from arlo.workers.emulated.repository import EmulatedRuntime, runtime_name
from benchmarks import harness
from benchmarks.batches_served import serving

NAME, SLO_MS, LENGTH, CLS = "tree", 2600, 32, 101
SURE = 0.7
ROWS = (1, 8)
# model -> ms of one row, and of eight
ENGINES = {"sure": (160, 480), "quick": (40, 120), "large": (200, 600), "small": (60, 180)}
STAGES = {"topic": {"sure": 0.95, "quick": 0.85}, "tags": {"large": 0.95, "small": 0.8}}
BARS = {"accuracy": 0.005, "violations": 0.02, "mean": 0.05}  # the last one relative


def write_flow(work: Path, router: str) -> Path:
    """Repositories and a flow file; all models of a stage say the same, so that the share of the exit is known."""
    logits = np.random.default_rng(0).normal(0, 2, (1000, 4)).astype(np.float32)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    ends = float(((e / e.sum(-1, keepdims=True)).max(-1) >= SURE).mean())
    text = f'[flow]\nname = "{NAME}"\nslo_ms = {SLO_MS}\nplan_period_s = 5\nrouter = "{router}"\n'
    for stage, variants in STAGES.items():
        text += f'[[flow.stage]]\nname = "{stage}"\n'
        for name, accuracy in variants.items():
            points = tuple(
                LatencyPoint(length=LENGTH, batch=rows, latency_us=1000 * ms)
                for rows, ms in zip(ROWS, ENGINES[name], strict=True)
            )
            runtime = EmulatedRuntime(
                name=runtime_name(name, LENGTH), max_length=LENGTH, max_batch=ROWS[-1], dynamic=False, latency=points
            )
            write_replayed_repository(work / name, model=name, runtimes=[runtime], logits=logits)
            text += f'[[flow.stage.variant]]\nrepository = "{name}"\naccuracy = {accuracy}\n'
    guard = f'{{score = "calibrated_max", at_least = {SURE}, share = {ends}}}'
    text += f'[[flow.edge]]\nfrom = "topic"\nto = "exit"\nwhen = {guard}\n'
    text += '[[flow.edge]]\nfrom = "topic"\nto = "tags"\n'
    (work / "flow.toml").write_text(text)
    return work / "flow.toml"


def request(record: int) -> bytes:
    ids = np.array([[CLS, record, *([2000] * (LENGTH - 2))]], np.int64)
    message = service_pb2.ModelInferRequest(model_name=NAME)
    for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
        message.inputs.add(name=name, datatype="INT64", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    message.outputs.add(name="accuracy_expected")
    message.parameters["timeout"].int64_param = SLO_MS * 1000  # late is worth nothing, as to the simulator
    return bytes(message.SerializeToString())


async def replayed(
    endpoint: str, arrived_ns: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Rows at their moments: ms that each took, infinity for an error; its accuracy; share that was sent late."""
    bodies = [request(i % 1000) for i in range(len(arrived_ns))]
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


def beside_executing(took: NDArray[np.float64], accuracy: NDArray[np.float64]) -> tuple[float, float]:
    """ms of a visit, and of a request: medians of rows that were alone with the most accurate variants."""
    topic, tags = STAGES["topic"]["sure"], STAGES["tags"]["large"]
    one = float(np.median(took[np.isclose(accuracy, topic)])) - ENGINES["sure"][0]
    two = float(np.median(took[np.isclose(accuracy, topic * tags)])) - ENGINES["sure"][0] - ENGINES["large"][0]
    visit = max(two - one, 0.0)
    return visit, max(one - visit, 0.0)


def simulated(flow: Any, workers: int, arrived_ns: NDArray[np.int64], warmup_s: float, hop_ms: float) -> FlowResult:
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
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run, beside its warm-up")
    parser.add_argument("--warmup-s", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.75, 0.95])
    parser.add_argument("--router", choices=("price", "plan", "maf"), default="price")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        path = write_flow(work, args.router)
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

        with serving(work, slo_ms=SLO_MS, settings=settings, workers=args.workers) as (_, endpoint, _):
            took, accuracy, _ = asyncio.run(replayed(endpoint, arrivals(0.02 * most, 20.0, 1)))
            visit_ms, request_ms = beside_executing(took, accuracy)
            beside = {"visit_ms": visit_ms, "request_ms": request_ms}
            print(
                f"carries {most:.1f} rows/s at most; beside executing a visit takes {visit_ms:.1f} ms, and a request"
                f" {request_ms:.1f} ms",
                flush=True,
            )
            for seed, load in enumerate(args.loads, start=2):
                arrived = arrivals(load * most, args.seconds + args.warmup_s, seed)
                took, accuracy, late_sends = asyncio.run(replayed(endpoint, arrived))
                skip = int((arrived < args.warmup_s * 1e9).sum())
                real = figures(took[skip:], accuracy[skip:], late_sends)
                twin = simulated(flow, args.workers, arrived, args.warmup_s, visit_ms / 2)
                mean_ms = twin.mean_ms + request_ms
                off = {
                    "accuracy": real["accuracy"] - twin.accuracy,
                    "violations": real["violations"] - twin.violations,
                    "mean": real["mean_ms"] / mean_ms - 1,
                }
                kept = all(abs(off[name]) <= bar for name, bar in BARS.items())
                rows.append({"load": load, "real": real, "simulated": twin.as_dict(), "off": off, "kept": kept})
                print(
                    f"{load:.2f} {load * most:6.1f}/s accuracy {real['accuracy']:.4f} ({twin.accuracy:.4f}) violations "
                    f"{real['violations']:.3%} ({twin.violations:.3%}) mean {real['mean_ms']:.0f} ({mean_ms:.0f}) "
                    f"ms, {off['mean']:+.1%}; late sends {real['late_sends']:.1%}: {'kept' if kept else 'NOT KEPT'}",
                    flush=True,
                )
    command = (
        f"python -m benchmarks.flows.served --seconds {args.seconds:g} --workers {args.workers} --router {args.router}"
    )
    print(f"-> {harness.save(f'flows_served_{args.router}', command, {'most_rps': most, **beside, 'runs': rows})}")
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
