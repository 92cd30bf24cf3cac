"""CPU of a request in a worker of the demo model, and how much of it a C++ backend could save at most.

Real Triton, ONNX Runtime on one thread, static lengths, requests straight to the worker. Per length it measures the CPU
of the server and of the backend's own process, for each request, with

    python     the demo model through the Python backend, as it ships
    graph      the same model code and tensors, but a graph that computes next to nothing: what the Python backend costs
    emulated   a C++ backend that copies no more than its answer, same tensors: what any C++ backend costs at least

and the CPU of the model's computation alone, in this process. No C++ backend for ONNX Runtime can cost less than
emulated + computation; the ratio of that to what the Python backend costs decides whether one is worth its code.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.catalog.manifest import LatencyPoint, Manifest
from arlo.compile.engines.interface import get_engine
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.compile.steps.resolve import DEMO_MODEL
from arlo.traces.lengths import parse_length_spec
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import POOLED_OUTPUT, EmulatedRuntime, checkable_outputs, config_pbtxt
from benchmarks import harness

LENGTHS = (16, 32, 64, 128, 256, 384, 512)
DEMO_LEVELS = (128, 256, 384, 512)  # of examples/demo.toml
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT, DIM = "sentence_embedding", 384
CONCURRENCY = (1, 4)
WAYS = ("python", "graph", "emulated")
HALF = 0.5  # of the CPU: the bar that a C++ backend must stay below


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Microseconds of CPU for one request of one length."""

    python: float
    graph: float
    emulated: float
    compute: float  # of the model's run, in this process
    graph_compute: float  # of the small graph's run

    @property
    def backend(self) -> float:
        """What the Python backend costs beside the run of the graph."""
        return self.graph - self.graph_compute

    @property
    def floor(self) -> float:
        """What a C++ backend for ONNX Runtime would cost at least."""
        return self.emulated + self.compute

    @property
    def ratio(self) -> float:
        """The floor over the Python backend with the same computation. From parts: where the computation takes a
        hundred times as long as the rest, its noise would drown the rest in a ratio of two whole requests."""
        return self.floor / (self.backend + self.compute)

    @property
    def ratio_measured(self) -> float:
        """The floor over the whole requests that were measured."""
        return self.floor / self.python

    def figures(self) -> dict[str, float]:
        named = {
            "python_us": self.python,
            "compute_us": self.compute,
            "python_backend_us": self.backend,
            "emulated_us": self.emulated,
            "floor_us": self.floor,
        }
        ratios = {
            "compute_share": self.compute / (self.backend + self.compute),
            "ratio": self.ratio,
            "ratio_measured": self.ratio_measured,
        }
        return {k: round(v, 1) for k, v in named.items()} | {k: round(v, 3) for k, v in ratios.items()}


def break_even_us(backend: float, emulated: float) -> float:
    """Computation, in microseconds, below which a C++ backend would cost less than half; 0 or less: never.

    From (emulated + c) / (backend + c) = 1/2.
    """
    return backend - 2 * emulated


def level_shares(lengths: NDArray[np.int32], levels: tuple[int, ...]) -> dict[int, float]:
    """The share of requests that each level serves, when each goes to the shortest that fits. lengths: int32[n]."""
    counts = np.bincount(np.searchsorted(levels, lengths), minlength=len(levels))
    return {level: float(count / len(lengths)) for level, count in zip(levels, counts, strict=True)}


def payload(model: str, length: int) -> bytes:
    """A serialised ModelInferRequest: one full row for each input of the demo model, its pooled output wanted."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, row in rows(length).items():
        request.inputs.add(name=name, datatype="INT64", shape=row.shape)
        request.raw_input_contents.append(row.astype("<i8").tobytes())
    request.outputs.add(name=OUTPUT)
    return bytes(request.SerializeToString())


def rows(length: int) -> dict[str, NDArray[np.int64]]:
    """One row of `length` tokens: int64[1, length] for each input."""
    ids = np.random.default_rng(length).integers(1000, 30000, (1, length), dtype=np.int64)
    return dict(zip(INPUTS, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))


def write_small_graph(path: Path, length: int) -> None:
    """A graph with the demo model's inputs and pooled output that only adds its inputs up."""
    import onnx
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, length]) for name in INPUTS]
    outputs = [
        helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [1, DIM]),
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [1, length, DIM]),
    ]
    shapes = {"axes": [1], "row": [1, DIM], "hidden_axes": [2], "hidden": [1, length, DIM]}
    nodes = [
        helper.make_node("Sum", ["ids", "mask", "types"], ["sum"]),
        helper.make_node("ReduceSum", ["sum", "axes"], ["total"], keepdims=1),
        helper.make_node("Expand", ["total", "row"], [OUTPUT]),
        helper.make_node("Unsqueeze", ["sum", "hidden_axes"], ["column"]),
        helper.make_node("Expand", ["column", "hidden"], ["last_hidden_state"]),
    ]
    casts = [
        helper.make_node("Cast", [name], [cast], to=TensorProto.FLOAT)
        for name, cast in zip(INPUTS, ("ids", "mask", "types"), strict=True)
    ]
    constants = [helper.make_tensor(name, TensorProto.INT64, [len(value)], value) for name, value in shapes.items()]
    graph = helper.make_graph(casts + nodes, "small", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def write_models(repository: Path, built_at: Path, lengths: tuple[int, ...]) -> None:
    """`python_len{L}`, `graph_len{L}` and `emulated_len{L}` from the build of the demo model at `built_at`."""
    manifest = Manifest.load(built_at)
    static = {runtime.max_length: runtime.name for runtime in manifest.runtimes if not runtime.dynamic}
    missing = sorted(set(lengths) - static.keys())
    if missing or [tensor.name for tensor in manifest.inputs] != list(INPUTS):
        raise SystemExit(f"{built_at} is no build of the demo model with static runtimes of {missing or lengths}")
    for length in lengths:
        built = repository / f"python_len{length}"
        shutil.copytree(built_at / static[length], built, ignore=shutil.ignore_patterns("__pycache__"))
        text = (built / "config.pbtxt").read_text()
        (built / "config.pbtxt").write_text(text.replace(f'"{static[length]}"', f'"{built.name}"'))

        small = repository / f"graph_len{length}"
        shutil.copytree(built, small, ignore=shutil.ignore_patterns(GRAPH, WEIGHTS))
        text = (built / "config.pbtxt").read_text()
        (small / "config.pbtxt").write_text(text.replace(f'"{built.name}"', f'"{small.name}"'))
        write_small_graph(small / "1" / GRAPH, length)

        emulated = repository / f"emulated_len{length}"
        (emulated / "1").mkdir(parents=True)
        runtime = EmulatedRuntime(
            name=emulated.name,
            max_length=length,
            max_batch=1,
            dynamic=False,
            latency=(LatencyPoint(length=length, batch=1, latency_us=0),),
        )
        text = config_pbtxt(runtime, outputs=checkable_outputs(DIM, DIM)).replace(f'"{POOLED_OUTPUT}"', f'"{OUTPUT}"')
        more = f'input [ {{ name: "{INPUTS[2]}" data_type: TYPE_INT64 dims: [ {length} ] optional: true }} ]\n'
        (emulated / "config.pbtxt").write_text(text + more)


def build(out: Path, lengths: tuple[int, ...]) -> None:
    """The demo model as a user compiles it."""
    arlo = harness.binary("arlo")
    command = [str(arlo), "compile", DEMO_MODEL, "--out", str(out)]
    command += ["--engine", "onnxruntime", "--no-dynamic", "--beyond-limit", "--lengths", ",".join(map(str, lengths))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"arlo compile failed ({done.returncode}):\n{done.stderr[-2000:]}")


def tree_cpu_s(pid: int) -> float:
    """User and system time of a process and its descendants so far, seconds."""
    top = psutil.Process(pid)
    times = [process.cpu_times() for process in (top, *top.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def compute_us(folder: Path, length: int, seconds: float) -> float:
    """CPU of one run of the graph in `folder` here, one thread, in microseconds: the median."""
    spec = RuntimeSpec(name=folder.name, max_length=length, max_batch=1, shape="static")
    runner = get_engine("onnxruntime").open(folder / "1", spec, threads=1)
    inputs = rows(length)
    runner.run(inputs, [OUTPUT])  # the first run allocates
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 5:
        before = time.process_time()
        runner.run(inputs, [OUTPUT])
        times.append(time.process_time() - before)
    return statistics.median(times) * 1e6


async def request_us(work: Path, pool: LocalPool, model: str, length: int, seconds: float) -> dict[int, float]:
    """CPU of the worker for each request of `model`, by concurrency."""
    await pool.load("w0", model)
    [worker] = await pool.workers()
    assert worker.pid is not None
    port = int(worker.endpoint.rsplit(":", 1)[1])
    body = [payload(model, length)]
    found = {}
    try:
        for concurrency in CONCURRENCY:
            flags = ["--concurrency", str(concurrency), "--channels", "1", "--seconds"]
            await asyncio.to_thread(harness.load, work, port, body, *flags, str(min(0.5, seconds)))
            before = tree_cpu_s(worker.pid)
            report = await asyncio.to_thread(harness.load, work, port, body, *flags, str(seconds))
            used = tree_cpu_s(worker.pid) - before
            if set(report["codes"]) != {"0"}:
                raise SystemExit(f"requests failed: {report}")
            found[concurrency] = used / report["codes"]["0"] * 1e6
    finally:
        await pool.unload("w0", model)
    return found


async def run(args: argparse.Namespace) -> dict[int, dict[int, Parts]]:
    """Parts by length and concurrency: medians of the rounds."""
    found: dict[int, list[dict[str, Any]]] = {length: [] for length in args.lengths}
    with tempfile.TemporaryDirectory() as folder:
        work, repository = Path(folder), Path(folder) / "repository"
        built_at = args.repository or work / "built"
        if args.repository is None:
            build(built_at, tuple(args.lengths))
        write_models(repository, built_at, tuple(args.lengths))
        async with LocalPool(repository, workers=1, threads=1, run_dir=work / "run") as pool:
            for round_ in range(args.rounds):
                for length in args.lengths:
                    row: dict[str, Any] = {"compute": [], "graph_compute": []}
                    for way in WAYS:
                        row[way] = await request_us(work, pool, f"{way}_len{length}", length, args.seconds)
                        for name, model in (("compute", "python"), ("graph_compute", "graph")):
                            at = repository / f"{model}_len{length}"
                            row[name].append(await asyncio.to_thread(compute_us, at, length, args.seconds / 6))
                    found[length].append(row)
                    shown = "  ".join(f"{way} {'/'.join(f'{row[way][c]:.0f}' for c in CONCURRENCY)}" for way in WAYS)
                    compute = statistics.median(row["compute"])
                    print(f"round {round_ + 1} length {length:3}: {shown}  compute {compute:.0f} us", flush=True)
    return {
        length: {
            concurrency: Parts(
                **{way: statistics.median(row[way][concurrency] for row in each) for way in WAYS},
                compute=statistics.median(value for row in each for value in row["compute"]),
                graph_compute=statistics.median(value for row in each for value in row["graph_compute"]),
            )
            for concurrency in CONCURRENCY
        }
        for length, each in found.items()
    }


def summary(parts: dict[int, dict[int, Parts]], shares: dict[int, float]) -> dict[str, Any]:
    """The verdict: of each length, of the demo's traffic, and where it would be another."""
    figures: dict[str, Any] = {
        "lengths": {
            str(length): {f"concurrency_{c}": each.figures() for c, each in row.items()}
            for length, row in parts.items()
        }
    }
    for concurrency in CONCURRENCY:
        backend = statistics.median(row[concurrency].backend for row in parts.values())
        emulated = statistics.median(row[concurrency].emulated for row in parts.values())
        figures[f"concurrency_{concurrency}"] = {
            "python_backend_us": round(backend, 1),
            "emulated_us": round(emulated, 1),
            "halves_below_compute_us": round(break_even_us(backend, emulated), 1),
            "lengths_that_halve": [n for n, row in parts.items() if row[concurrency].ratio < HALF],
        }
        if shares.keys() <= parts.keys():
            floor = sum(share * parts[n][concurrency].floor for n, share in shares.items())
            python = sum(s * (parts[n][concurrency].backend + parts[n][concurrency].compute) for n, s in shares.items())
            figures[f"concurrency_{concurrency}"]["demo_traffic"] = {
                "shares": {str(n): round(share, 3) for n, share in shares.items()},
                "python_us": round(python, 1),
                "floor_us": round(floor, 1),
                "ratio": round(floor / python, 3),
            }
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="a build of the demo model with static runtimes of these lengths (default: it is compiled)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load for each figure (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s, nothing written")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 1, 1.0
    parts = asyncio.run(run(args))
    tweets = parse_length_spec("tweets", DEMO_LEVELS[-1]).tokens
    figures = summary(parts, level_shares(tweets, DEMO_LEVELS))
    for length, row in parts.items():
        for concurrency, each in row.items():
            print(
                f"length {length:3} concurrency {concurrency}: Python backend {each.backend:5.0f} us + computation "
                f"{each.compute:8.0f} us; C++ at best {each.floor:8.0f} us, ratio {each.ratio:.2f}"
            )
    for concurrency in CONCURRENCY:
        each = figures[f"concurrency_{concurrency}"]
        traffic = each.get("demo_traffic")
        print(
            f"concurrency {concurrency}: halves where the computation takes less than "
            f"{each['halves_below_compute_us']:.0f} us"
            + (f"; with the demo's traffic the ratio is {traffic['ratio']:.3f}" if traffic else "")
        )
    if not args.quick:
        print(harness.save("backend_cpu", "python -m benchmarks.backend_cpu " + " ".join(sys.argv[1:]), figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
