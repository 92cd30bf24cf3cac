"""TensorRT and TensorRT-RTX by one code path.

`tensorrt-rtx` builds ahead of time, on a machine without a GPU, for the compute capabilities that are named; its
engines are finished on the GPU when they are opened. Triton serves them by our model code in the Python backend, as its
own tensorrt backend takes engines of TensorRT only. `tensorrt` builds on the GPU that it builds for; its engines are
served by Triton's own backend of the same TensorRT version (native), or by our model code.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from arlo.compile.cache import code_version
from arlo.compile.engines.interface import EngineSettings, Serving, SessionRunner, check_runs
from arlo.compile.engines.tensorrt_build import PLAN, build_plan
from arlo.compile.engines.tensorrt_gpu import CURRENT, find_gpu, gpu_memory_used, known_capabilities, parse_capabilities
from arlo.compile.engines.tensorrt_timing import TimingCache
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.errors import CompileError, ConfigError, EnvironmentProblem

RTX = "tensorrt-rtx"
_CODE = tuple(f"engines/tensorrt{part}" for part in ("", "_build", "_gpu", "_timing"))
_LEAST_VERSION = {"tensorrt": (10, 0), RTX: (1, 2)}


class TensorRtEngine:
    """See `interface.Engine`."""

    graph, weights = GRAPH, WEIGHTS

    def __init__(self, name: str, settings: EngineSettings) -> None:
        """name: tensorrt or tensorrt-rtx. ConfigError when the settings do not suit it."""
        self.name = name
        capabilities: tuple[str, ...] = ()
        if name == RTX:
            if settings.backend == "native":
                raise ConfigError(
                    "Triton's own tensorrt backend takes engines of TensorRT, not of TensorRT-RTX: "
                    "leave the backend to `python`, or use --engine tensorrt on a machine with the GPU"
                )
            try:
                trt = _module(name)
            except EnvironmentProblem:  # `versions` says so; the names are checked as far as they can be
                capabilities = parse_capabilities(settings.compute_capabilities, (), version="")
            else:
                known = known_capabilities(trt)
                capabilities = parse_capabilities(settings.compute_capabilities, known, version=trt.__version__)
        self.settings = dataclasses.replace(settings, device="cuda", compute_capabilities=capabilities)

    def versions(self) -> dict[str, str]:
        """The package's version, under the engine's name. EnvironmentProblem when it is missing or too old."""
        version = _module(self.name).__version__
        least = _LEAST_VERSION[self.name]
        if tuple(int(part) for part in version.split(".")[:2]) < least:
            raise EnvironmentProblem(
                f"{self.name} {version} is too old: {'.'.join(map(str, least))} or newer is needed, "
                f"pip install --upgrade 'arlo-serve[{self.name}]'"
            )
        return {self.name: version}

    def device(self) -> str:
        """The first GPU, as `gpu: NVIDIA L4 (SM89)`, or `gpu: none`."""
        gpu = find_gpu()
        return "gpu: none" if gpu.problem else f"gpu: {gpu.name} ({gpu.capability})"

    def cannot_run(self) -> str:
        """Why this machine cannot run the engine; empty when it can."""
        gpu = find_gpu()
        if gpu.problem:
            return gpu.problem
        built = self.settings.compute_capabilities
        if built and CURRENT not in built and gpu.capability not in built:
            return f"the GPU here is of {gpu.capability} ({gpu.name}), and the engines are built for {', '.join(built)}"
        try:
            self.versions()
        except EnvironmentProblem as error:
            return str(error)
        return ""

    def key(self) -> dict[str, Any]:
        """All settings except the way of serving; for an engine built for one GPU only, also that GPU."""
        bound = self.name != RTX or CURRENT in self.settings.compute_capabilities
        return {
            "precision": self.settings.precision,
            "compute_capabilities": list(self.settings.compute_capabilities),
            "gpu": self.device() if bound else "",
            "code": code_version(*_CODE),
        }

    def build_memory(self, weight_bytes: int) -> int:
        """Bytes that a build takes at most.

        TensorRT-RTX 1.7 as measured, see docs/engines.md: 0.4 GB and twice the weights, here with a margin. TensorRT
        also loads its kernels to try them; its part is an estimate.
        """
        if self.name == RTX:
            return (640 << 20) + 5 * weight_bytes // 2
        return (3 << 30) + 4 * weight_bytes

    def build(self, graph: Path, weights: Path, spec: RuntimeSpec, folder: Path, *, scratch: Path) -> dict[str, Any]:
        """Write `model.plan`. Meta: `format`, `layers` of the network, `bytes`, `seconds`, `compute_capabilities`,
        `timing_cache` (reused, new, none) and `notes`, TensorRT's warnings. CompileError when it cannot."""
        self.versions()
        trt, timing = _module(self.name), None
        if self.name != RTX:
            gpu = find_gpu()
            if gpu.problem:
                raise CompileError(
                    f"build: {spec.title}: tensorrt builds on the GPU that it builds for, and {gpu.problem}; "
                    "--engine tensorrt-rtx builds without one"
                )
            timing = TimingCache(scratch, version=trt.__version__, gpu=gpu.name)
        from arlo.templates.tensorrt.session import log_of

        return build_plan(
            trt,
            log_of(trt),
            graph,
            weights,
            spec,
            folder=folder,
            package=self.name,
            settings=self.settings,
            timing=timing,
        )

    def open(self, folder: Path, spec: RuntimeSpec, *, threads: int) -> SessionRunner:
        """Open `model.plan` on the first GPU and run its usual shapes once. CompileError when this machine cannot."""
        check_runs(self, spec)
        from arlo.templates.tensorrt.session import Session, kernels_folder

        try:
            session = Session(folder / PLAN, self.name, kernels=kernels_folder())
            session.warm_up()
        except (ImportError, RuntimeError) as error:
            raise CompileError(f"{spec.title} does not run here: {error}") from error
        return SessionRunner(session)

    def memory_used(self) -> int | None:
        """Bytes of the first GPU in use by all processes; None if CUDA does not report them."""
        return gpu_memory_used()

    def serving(self, spec: RuntimeSpec) -> Serving:
        """The way Triton serves the engine; several profiles are listed by number."""
        if self.settings.backend == "native":
            return Serving(
                backend="tensorrt",
                platform="tensorrt_plan",
                gpu=True,
                model_file=PLAN,
                profiles=tuple(str(index) for index in range(len(spec.profiles))),
            )
        return Serving(backend="python", gpu=True, template="tensorrt", parameters={"package": self.name})


def _module(name: str) -> Any:
    from arlo.templates.tensorrt.session import import_tensorrt

    try:
        return import_tensorrt(name)
    except ImportError as error:
        raise EnvironmentProblem(str(error)) from None
