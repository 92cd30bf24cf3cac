"""The whole system on this device: engines of `arlo compile`, real Triton workers, the gateway, a replayed trace.

Schemes: ST (every worker has the longest static runtime), DT (every worker has the dynamic one), Arlo (static runtimes,
allocated by the planner for the lengths and the rate, requests dispatched by length). All see the same requests. The
rates come from the repository's own measured latencies: `light` keeps ST at half load, `heavy` would keep the workers
70 % busy if each request ran on its shortest runtime, which is more than ST can do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arlo.compile.engines.interface import EngineSettings, get_engine
from arlo.errors import ArloError
from benchmarks.gpu.options import Options
from benchmarks.gpu.subject import model_folder

LENGTHS = tuple(range(64, 513, 64))
SCHEMES = {"st": "ST", "dt": "DT", "arlo": "Arlo"}
LOADS = {"light": 0.5, "heavy": 0.7}
TIMEOUT_MS = 60_000


def cannot() -> str:
    """Why the whole system cannot run here; empty when it can."""
    for module, what in (
        ("arlo._core", "Arlo's compiled part (pip install .)"),
        ("grpc", "grpcio"),
        ("tritonclient", "tritonclient"),
        ("psutil", "psutil"),
    ):
        try:
            missing = importlib.util.find_spec(module) is None
        except ImportError:
            missing = True
        if missing:
            return f"{what} is not installed"
    try:
        from arlo.workers.triton.server import find_triton
    except ImportError as error:
        return f"Arlo's serving part cannot be imported ({error})"
    try:
        find_triton()
        from benchmarks.harness import binary

        binary("arlo-gateway"), binary("arlo-loadgen")
    except (ArloError, SystemExit) as error:
        return str(error)
    return ""


def engine_here(precision: str) -> tuple[str, str]:
    """The engine and device that is served: TensorRT where it runs, else ONNX Runtime on the GPU, else on the CPU."""
    for name in ("tensorrt", "tensorrt-rtx"):
        try:
            engine = get_engine(name, EngineSettings(precision=precision, device="cuda"))  # type: ignore[arg-type]
            engine.versions()
            if not engine.cannot_run():
                return name, "cuda"
        except (ArloError, ImportError, OSError):
            continue
    import onnxruntime

    cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    return "onnxruntime", "cuda" if cuda and shutil.which("nvidia-smi") else "cpu"


def run(options: Options, model: str, precision: str, work: Path, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Build the repository and replay against each scheme. What failed is in `skipped` or in a run's `problems`."""
    if why := cannot():
        return {"skipped": why}
    try:
        return asyncio.run(_all(options, model, precision, work, say))
    except ArloError as error:
        return {"skipped": f"{type(error).__name__}: {error}"}


async def _all(options: Options, model: str, precision: str, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
    from arlo.compile import CompileOptions, compile_model
    from benchmarks.testbed.schemes import Bed

    engine, device = engine_here(precision)
    repository = work / "repositories" / f"{model}-{precision}-{engine}"
    say(f"end to end: {model} {precision}, {engine} on {device}: building")
    await asyncio.to_thread(
        compile_model,
        CompileOptions(
            source=model_folder(model, work),
            out=repository,
            name=model,
            task="embedding",
            lengths=LENGTHS,
            dynamic=True,
            engine=engine,
            precision=precision,  # type: ignore[arg-type]  # checked by Options
            device=device,  # type: ignore[arg-type]
            threads=options.threads if device == "cpu" else None,
            cache=work / "compile",
        ),
    )
    bed = Bed(model=str(repository), stretch=1.0, workers=options.workers)
    rates = {"light": LOADS["light"] * bed.workers / (bed.static[-1].points[-1][2] / 1000)}
    rates["heavy"] = LOADS["heavy"] * bed.full_rate_rps
    runs = []
    for load, rate in rates.items():
        for scheme, title in SCHEMES.items():
            say(f"end to end: {title} at {rate:.1f} requests/s for {options.end_to_end_s:.0f} s")
            runs.append({"load": load, "scheme": title, **await _serve(options, repository, bed, scheme, rate)})
    return {
        "about": (
            f"{model} {precision} by {engine} on {device}, {options.workers} Triton workers, lengths "
            f"{', '.join(map(str, LENGTHS))} and dynamic; tweets stretched to 512 tokens, "
            f"{options.end_to_end_s:.0f} s, SLO {bed.slo_ms:.0f} ms, open loop. Light: ST half busy. Heavy: "
            f"{100 * LOADS['heavy']:.0f} % of what the workers could do if no request were padded beyond its runtime."
            + (" All workers share one GPU." if device == "cuda" and options.workers > 1 else "")
        ),
        "engine": engine,
        "device": device,
        "workers": options.workers,
        "slo_ms": bed.slo_ms,
        "runs": runs,
    }


async def _serve(options: Options, repository: Path, bed: Any, scheme: str, rate_rps: float) -> dict[str, Any]:
    from arlo import config as configuration
    from arlo.catalog.manifest import Manifest
    from arlo.control.plane import Cluster
    from arlo.control.pool import make_pool
    from arlo.control.serve import running
    from arlo.replay import ReplayOptions, run_replay
    from arlo.traces import make_workload, materialise
    from benchmarks.testbed.cluster import LATE_MS
    from benchmarks.testbed.scaled import events_kept

    cluster = bed.cluster(scheme, rate_rps)
    trace = materialise(
        make_workload(
            arrivals="poisson", rate=rate_rps, duration_s=options.end_to_end_s, length="tweets", rescale=512, seed=1
        )
    )
    with tempfile.TemporaryDirectory(prefix="arlo-gpu-") as folder:
        text = _config(repository, Path(folder), cluster, options)
        config = configuration.parse(text, base=Path(folder))
        control = Cluster(config, Manifest.load(repository), make_pool(config))
        with events_kept():
            async with running(control, asyncio.Event()) as up:
                assert up
                assert control.addresses is not None
                replay = ReplayOptions(
                    endpoint=control.addresses.grpc,
                    model=bed_name(repository),
                    slo_ms=cluster.slo_ms,
                    timeout_ms=TIMEOUT_MS,
                    late_ms=LATE_MS,
                )
                result = await asyncio.to_thread(run_replay, trace, replay)
    placed = {r.max_length: n for r, n in zip(cluster.runtimes, cluster.instances, strict=True) if n}
    return {"rate_rps": rate_rps, **_figures(result, len(trace), cluster.slo_ms), "placed": _placed(scheme, placed)}


def _placed(scheme: str, placed: dict[int, int]) -> str:
    return ", ".join(f"{n} x {'dynamic' if scheme == 'dt' else length}" for length, n in placed.items())


def bed_name(repository: Path) -> str:
    """The model's name in its manifest."""
    from arlo.catalog.manifest import Manifest

    return Manifest.load(repository).model


def _figures(result: Any, arrivals: int, slo_ms: float) -> dict[str, Any]:
    import numpy as np

    from arlo.replay.records import latency_us
    from benchmarks.testbed.cluster import LATE_MS
    from benchmarks.testbed.compare import figures

    records, sends = result.records, result.summary.sends
    latency_ms = np.where(records["code"] == 0, latency_us(records) / 1000, np.nan)
    problems = []
    outcomes = result.summary.outcomes
    if outcomes.get("failed"):
        problems.append(f"{outcomes['failed']} requests failed: {result.errors()[0]['message']}")
    if len(records) != arrivals:
        problems.append(f"{len(records)} of {arrivals} requests were recorded")
    if sends.p98_delay_ms > LATE_MS:
        problems.append(f"the load generator lagged: p98 {sends.p98_delay_ms:.1f} ms")
    return {
        **figures(latency_ms, slo_ms),
        "outcomes": {name: count for name, count in outcomes.items() if count},
        "problems": problems,
    }


def _config(repository: Path, folder: Path, cluster: Any, options: Options) -> str:
    """A configuration that stays as it is placed; the planner's part was done before."""
    pairs = zip(cluster.runtimes, cluster.instances, strict=True)
    static = ", ".join(f"{r.max_length} = {n}" for r, n in pairs if n and not r.dynamic)
    placed = f"allocation = {{{static}}}" if static else f"dynamic = {options.workers}"
    return f"""[model]
repository = "{repository}"
slo_ms = {max(1, round(cluster.slo_ms))}
default_timeout_ms = {max(TIMEOUT_MS, round(cluster.slo_ms))}
[workers]
run_dir = "{folder / "run"}"
linger_s = 0
threads = {options.threads}
[deployment]
{placed}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
log_level = "warning"
[dispatch]
policy = "{cluster.policy}"
[control]
http_address = "127.0.0.1:0"
reallocate = false
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Which model and precision is served end to end."""

    model: str
    precision: str

    @classmethod
    def of(cls, options: Options, *, gpu: bool) -> Choice:
        """The first model of the run; on a GPU its first precision, on a CPU float32."""
        return cls(options.models[0], options.precisions[0] if gpu else "fp32")
