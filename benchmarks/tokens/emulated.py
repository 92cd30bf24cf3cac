"""OTAS's queries on a real Triton whose engines are emulated, beside the same arrivals simulated: Figure 9a by policy.

    python -m benchmarks.tokens.emulated [--seconds 60] [--policies price printed exact fixed:0 fixed:-15 fixed:2]

Times and accuracies are those of examples/simulate/otas.toml for a body that carries 430 queries a second with all
tokens, where the printed policy's gain is the paper's; the stream is the synthetic one, 200 to 700 queries a second.
Each policy is a cluster of its own, `arlo serve` with one worker that holds all counts, and gets the same stream. A
task's queries have a length of their own, by which the pipeline knows their accuracy. What an answer earns is its
query's utility times the accuracy of the count that it names, if it came in time by the client's clock.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.catalog.manifest import LatencyPoint
from arlo.clock import monotonic_s
from arlo.simulator.tokens.file import TokenSpec, load_tokens
from arlo.simulator.tokens.run import draw_kinds, run
from arlo.workers.emulated.repository import EmulatedRuntime, runtime_name
from benchmarks import harness
from benchmarks.batches_served import serving
from benchmarks.replayed import write_replayed_repository
from benchmarks.tokens.papers import EXAMPLE, SHOWN, at_capacity, synthetic

NAME, CLS, SEP = "otas", 101, 102
SHORTEST = 3  # tokens of a query of the first task; those of each further one have one more
POLICIES = ("price", "printed", "exact", "fixed:0", "fixed:-15", "fixed:2")
WARM_S = 10  # of the stream, sent and not counted


def write_flow(work: Path, spec: TokenSpec) -> Path:
    """A repository for each count, and the pipeline of them."""
    slo_ms = max(query.slo_ms for query in spec.queries)
    lengths = [SHORTEST + i for i in range(len(spec.accuracy))]
    text = f'[flow]\nname = "{NAME}"\nslo_ms = {slo_ms:g}\n[[flow.stage]]\nname = "tokens"\n'
    for at, variant in enumerate(spec.variants):
        points = tuple(
            LatencyPoint(length=lengths[-1], batch=rows, latency_us=round(1000 * ms)) for rows, ms in variant.latency
        )
        runtime = EmulatedRuntime(
            name=runtime_name(f"t{at}", lengths[-1]),
            max_length=lengths[-1],
            max_batch=spec.batch,
            dynamic=False,
            latency=points,
        )
        write_replayed_repository(
            work / f"t{at}", model=f"t{at}", runtimes=[runtime], logits=np.zeros((10, 2), np.float32)
        )
        right = [of[at] for of in spec.accuracy.values()]
        text += (
            f'[[flow.stage.variant]]\nrepository = "t{at}"\ntokens = {variant.tokens}\naccuracy = {np.mean(right)}\n'
            f"bins = {lengths}\nbin_accuracy = {right}\n"
        )
    (work / "flow.toml").write_text(text)
    return work / "flow.toml"


def requests(spec: TokenSpec) -> list[bytes]:
    """A message for each kind of query."""
    tasks = list(spec.accuracy)
    found = []
    for query in spec.queries:
        ids = np.array([[CLS, *range(1, SHORTEST - 1 + tasks.index(query.task)), SEP]], np.int64)
        message = service_pb2.ModelInferRequest(model_name=NAME)
        for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
            message.inputs.add(name=name, datatype="INT64", shape=array.shape)
            message.raw_input_contents.append(array.tobytes())
        message.outputs.add(name="tokens")
        message.parameters["timeout"].int64_param = round(query.slo_ms * 1000)
        message.parameters["utility"].double_param = query.utility
        found.append(bytes(message.SerializeToString()))
    return found


@dataclasses.dataclass
class Served:
    """What became of the queries after the warm-up."""

    queries: int = 0
    earned: float = 0.0
    late: int = 0
    refused: int = 0  # no answer, with a reason
    right: float = 0.0  # expected, of those in time
    late_sends: int = 0


async def replay(
    endpoint: str, spec: TokenSpec, arrived_ns: NDArray[np.int64], kind: NDArray[np.uint32], policy: str
) -> Served:
    """The stream at its moments, each query once."""
    bodies, served = requests(spec), Served()
    async with grpc.aio.insecure_channel(endpoint) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        begun = monotonic_s() + 0.2

        async def ask(i: int, at: float) -> None:
            query = spec.queries[kind[i]]
            counted = int(arrived_ns[i] >= WARM_S * 1e9)
            served.queries += counted
            served.late_sends += counted * (monotonic_s() - at > 0.01)
            try:
                answer = service_pb2.ModelInferResponse.FromString(await infer(bodies[kind[i]]))
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED):
                    raise
                served.refused += counted
                return
            tokens = int(np.frombuffer(answer.raw_output_contents[0], "<i4")[0])
            if policy.startswith("fixed:") and tokens != int(policy.partition(":")[2]):
                raise SystemExit(f"{policy} was answered with {tokens}")
            in_time = 1000 * (monotonic_s() - at) <= query.slo_ms
            served.late += counted * (not in_time)
            if counted and in_time:
                right = spec.accuracy[query.task][spec.tokens.index(tokens)]
                served.right += right
                served.earned += right * query.utility

        tasks = []
        for i, arrived in enumerate(arrived_ns):
            at = begun + arrived * 1e-9
            await asyncio.sleep(max(0.0, at - monotonic_s()))
            tasks.append(asyncio.create_task(ask(i, at)))
        await asyncio.gather(*tasks)
    return served


def main() -> int:
    """Serve, simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of the stream, beside its warm-up")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    args = parser.parse_args()
    spec = at_capacity(load_tokens(EXAMPLE), SHOWN)
    arrived = synthetic(args.seconds + WARM_S, 0)
    kind = draw_kinds(spec, len(arrived), 0)
    rows: dict[str, Any] = {}
    for policy in args.policies:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            settings: dict[str, dict[str, Any]] = {
                "model": {},
                "pipeline": {"flow": str(write_flow(work, spec)), "tokens": policy},
            }
            with serving(work, slo_ms=1000, settings=settings) as (_, endpoint, _http):
                served = asyncio.run(replay(endpoint, spec, arrived, kind, policy))
        twin = run(spec, policy, arrived, kind, warmup_s=WARM_S)
        figures = {
            "utility": served.earned,
            "right": served.right / max(1, served.queries),
            "late": served.late / max(1, served.queries),
            "evicted": served.refused / max(1, served.queries),
            "late_sends": served.late_sends / max(1, served.queries),
            "queries": served.queries,
        }
        off = served.earned / twin.utility - 1
        rows[policy] = {"served": figures, "simulated": twin.as_dict(), "off": off}
        print(
            f"{policy:10} utility {served.earned:8,.1f}, simulated {twin.utility:8,.1f} ({off:+.1%}); right in time "
            f"{figures['right']:.1%} ({twin.outcomes['accurate']:.1%}), late {figures['late']:.1%} "
            f"({twin.outcomes['late']:.1%}), evicted {figures['evicted']:.1%} ({twin.outcomes['evicted']:.1%}); "
            f"sent late {figures['late_sends']:.1%}",
            flush=True,
        )
    if (pets := rows.get("fixed:0")) is not None:
        for policy in rows:
            over = rows[policy]["served"]["utility"] / pets["served"]["utility"] - 1
            simulated = rows[policy]["simulated"]["utility"] / pets["simulated"]["utility"] - 1
            print(f"{policy:10} over PetS (fixed:0) {over:+.1%}, simulated {simulated:+.1%}")
    command = f"python -m benchmarks.tokens.emulated --seconds {args.seconds}"
    print(f"-> {harness.save('tokens_emulated', command, {'policies': rows})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
