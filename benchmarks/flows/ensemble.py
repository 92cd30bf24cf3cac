"""A flow whose rows become several: through Arlo's gateway, as a Triton BLS model, and as a Triton ensemble.

    python -m benchmarks.flows.ensemble [--seconds 15] [--loads 0.3 0.6] [--pieces 8]

The same engines, one worker (one Triton), the same arrivals: `topic` (whole texts) ends the rows that it is sure of,
`tags` answers the others in pieces of 32 tokens. `bls` and `ensemble` are what `benchmarks.flows.export` writes, with
--instances calls at a time; Arlo batches what is due first (--batching fill), one batch at a time. Loads are shares of
what the engines do at all in full batches. CPU is of all processes of a contender but its clients', per root, in which
the engines only sleep: that of `arlo serve` counts its control plane and its Triton, too.
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

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.catalog.manifest import LatencyPoint
from arlo.clock import monotonic_s
from arlo.workers.emulated.repository import EmulatedRuntime, runtime_name
from benchmarks import harness
from benchmarks.batches_served import serving
from benchmarks.flows.export import export
from benchmarks.plugin import served
from benchmarks.replayed import write_replayed_repository

NAME, CLS, SEP, WINDOW = "texts", 101, 102, 32
SLO_MS = 2000
SURE = 0.7
ROWS = (1, 16)
# model -> longest row, ms of one row and of sixteen
ENGINES = {"whole": (512, 20, 80), "piece": (WINDOW, 10, 30)}
CONTENDERS = ("arlo", "bls", "ensemble")


def write_flow(work: Path, pieces: int) -> tuple[Path, float]:
    """A flow file beside its repositories, and the rows per second that one worker does at most."""
    logits = np.random.default_rng(0).normal(0, 2, (1000, 4)).astype(np.float32)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    ends = float(((e / e.sum(-1, keepdims=True)).max(-1) >= SURE).mean())
    for name, (length, *ms) in ENGINES.items():
        points = tuple(
            LatencyPoint(length=length, batch=rows, latency_us=1000 * each) for rows, each in zip(ROWS, ms, strict=True)
        )
        runtime = EmulatedRuntime(
            name=runtime_name(name, length),
            max_length=length,
            max_batch=ROWS[-1],
            dynamic=False,
            latency=points,
            batcher=True,
        )
        write_replayed_repository(work / name, model=name, runtimes=[runtime], logits=logits)
    text = f"""[flow]
name = "{NAME}"
slo_ms = {SLO_MS}
[[flow.stage]]
name = "topic"
variants = [{{repository = "whole", accuracy = 0.9}}]
[[flow.stage]]
name = "tags"
variants = [{{repository = "piece", accuracy = 0.9}}]
[[flow.edge]]
from = "topic"
to = "exit"
when = {{score = "calibrated_max", at_least = {SURE}, share = {ends}}}
[[flow.edge]]
from = "topic"
to = "tags"
expand = {{kind = "chunks", window = {WINDOW}, factor = {pieces}}}
"""
    (work / "flow.toml").write_text(text)
    each_ms = ENGINES["whole"][2] / ROWS[-1] + (1 - ends) * pieces * ENGINES["piece"][2] / ROWS[-1]
    return work / "flow.toml", 1000 / each_ms


def request(model: str, record: int, pieces: int) -> bytes:
    content = [(record + i) % 1000 if j == 0 else 2000 for i in range(pieces) for j in range(WINDOW - 2)]
    ids = np.array([[CLS, *content, SEP]], np.int64)
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
        message.inputs.add(name=name, datatype="INT64", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return bytes(message.SerializeToString())


async def replayed(endpoint: str, model: str, arrived_ns: NDArray[np.int64], pieces: int) -> NDArray[np.float64]:
    """ms that each row took, at its moment; infinity for an error."""
    bodies = [request(model, i % 1000, pieces) for i in range(1000)]
    took = np.full(len(arrived_ns), np.inf)
    async with grpc.aio.insecure_channel(endpoint) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        begun = monotonic_s() + 0.2

        async def ask(i: int) -> None:
            at = begun + arrived_ns[i] * 1e-9
            await asyncio.sleep(max(0.0, at - monotonic_s()))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await infer(bodies[i % 1000], timeout=20)
                took[i] = 1000 * (monotonic_s() - at)

        await asyncio.gather(*map(ask, range(len(arrived_ns))))
    return took


@contextlib.contextmanager
def contender(
    work: Path, name: str, flow: Path, args: argparse.Namespace
) -> Iterator[tuple[harness.Measured, str, str]]:
    """Its processes, where it listens, and the model's name."""
    if name == "arlo":
        settings: dict[str, dict[str, Any]] = {
            "model": {},
            "pipeline": {"flow": str(flow)},
            "dispatch": {"batching": args.batching, "inflight_limit": args.inflight},
        }
        with serving(work, slo_ms=SLO_MS, settings=settings, workers=1) as (program, endpoint, _):
            yield program, endpoint, NAME
        return
    if not (work / "exported").exists():
        export(flow, work / "exported", instances=args.instances)
    with served(work / "exported") as (process, port):
        yield process, f"127.0.0.1:{port}", f"{NAME}_{name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6])
    parser.add_argument("--pieces", type=int, default=8, help="of a row that goes on")
    parser.add_argument("--instances", type=int, default=8, help="of the exported models")
    parser.add_argument("--batching", default="fill", help="of the gateway, as dispatch.batching")
    parser.add_argument("--inflight", type=int, default=1, help="the same, as dispatch.inflight_limit")
    parser.add_argument("--rounds", type=int, default=1, help="contenders alternate; figures are medians")
    args = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        flow, most = write_flow(work, args.pieces)
        for number in range(args.rounds):
            for name in CONTENDERS:
                with contender(work, name, flow, args) as (process, endpoint, model):
                    asyncio.run(replayed(endpoint, model, np.arange(8) * 100_000_000, args.pieces))  # warm
                    for load in args.loads:
                        rate = load * most
                        gaps = np.random.default_rng(number).exponential(1e9 / rate, round(rate * args.seconds))
                        before_s = process.cpu_s()
                        took = asyncio.run(replayed(endpoint, model, np.cumsum(gaps).astype(np.int64), args.pieces))
                        row = {
                            "roots": len(took),
                            "failed": float(np.isinf(took).mean()),
                            "p50_ms": float(np.percentile(took, 50)),
                            "p98_ms": float(np.percentile(took, 98)),
                            "cpu_ms": 1000 * (process.cpu_s() - before_s) / len(took),
                        }
                        found[name].setdefault(f"{load:g}", []).append(row)
    figures = {
        name: {
            load: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for load, rows in loads.items()
        }
        for name, loads in found.items()
    }
    print(f"{most:.1f} rows/s at most, {args.pieces} pieces of a row that goes on")
    for load in map("{:g}".format, args.loads):
        for name in CONTENDERS:
            row = figures[name][load]
            print(
                f"{load:5} {name:9} p50 {row['p50_ms']:7.1f} ms, p98 {row['p98_ms']:7.1f} ms,"
                f" CPU {row['cpu_ms']:.2f} ms a root, failed {row['failed']:.1%}"
            )
    command = (
        f"python -m benchmarks.flows.ensemble --seconds {args.seconds:g} --pieces {args.pieces} --rounds {args.rounds}"
    )
    print(f"-> {harness.save('flows_ensemble', command, {'most_rps': most, 'contenders': figures})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
