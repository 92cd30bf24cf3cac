"""ONNX Runtime: the graph is the engine, the weights are one file shared by all lengths.

On the CPU, or on a GPU (`onnxruntime-gpu`), where sessions of fixed shape replay CUDA graphs. Triton serves the files
by our model code in its Python backend, or by its own onnxruntime backend (native), which makes its own session and has
no CUDA graphs: it binds other memory for every request, and a CUDA graph of ONNX Runtime records addresses.

Tried and dropped: saving graphs that ONNX Runtime has optimised offline. They load 10 ms sooner (of 40) and run no
faster, because the same optimisations run when a session opens.
"""

from __future__ import annotations

import contextlib
import shutil
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.compile.cache import link_or_copy, tool_versions
from arlo.compile.engines.interface import EngineSettings, HostEngine, Serving, SessionRunner, check_runs
from arlo.compile.spec import GRAPH, ROWS, TOKENS, WEIGHTS, RuntimeSpec, axes_of
from arlo.errors import CompileError, ConfigError

if TYPE_CHECKING:
    from arlo.templates.onnxruntime.session import Session

_CUDA = "CUDAExecutionProvider"
_FP16_ON_CPU = (
    "ONNX Runtime computes fp16 in fp32 on the CPU: it is less exact there, no faster, and saves only disk space"
)
_BF16_UNCHECKED = "not opened here: ONNX Runtime runs bf16 on a GPU only"


class OnnxRuntimeEngine(HostEngine):
    """See `interface.Engine`."""

    name = package = "onnxruntime"
    graph, weights = GRAPH, WEIGHTS

    def __init__(self, settings: EngineSettings) -> None:
        if settings.device == "cpu" and settings.precision == "bf16":
            raise ConfigError(
                "onnxruntime cannot run bf16 on the CPU, it has no kernels for it: "
                "use --precision fp32, or --device cuda for a GPU"
            )
        self.settings = settings

    def versions(self) -> dict[str, str]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return {"onnxruntime-gpu": metadata.version("onnxruntime-gpu")}
        return tool_versions("onnxruntime")

    def lacks_cuda(self) -> str:
        import onnxruntime

        if _CUDA in onnxruntime.get_available_providers():
            return ""
        return (
            "the package onnxruntime has no CUDA support: "
            "pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )

    def key(self) -> dict[str, Any]:
        # The files are the same for all; the findings from opening them are not.
        return {
            "device": self.settings.device,
            "checked_on": self._check_device(),
            "precision": self.settings.precision,
        }

    def build_memory(self, weight_bytes: int) -> int:
        # Measured with 387 MB of float32 weights: 42 MB to open them, as they are mapped, and 439 MB as fp16, of which
        # the CPU makes float32 again.
        return (256 << 20) + weight_bytes * 5 // 4

    def serving(self, spec: RuntimeSpec) -> Serving:
        gpu = self.settings.device == "cuda"
        if self.settings.backend == "python":
            lengths = ",".join(map(str, spec.profiles))
            parameters = {"lengths": lengths} if lengths else {}
            return Serving(backend="python", gpu=gpu, template="onnxruntime", parameters=parameters)
        # As in session.py: no TF32 in float32, and no more memory than is needed, as several runtimes share a GPU.
        return Serving(
            backend="onnxruntime",
            platform="onnxruntime_onnx",
            gpu=gpu,
            parameters={"arena_extend_strategy": "1"} if gpu else {},
            accelerator={"use_tf32": "0"} if gpu else {},
        )

    def build(self, graph: Path, weights: Path, spec: RuntimeSpec, folder: Path, *, scratch: Path) -> dict[str, Any]:
        """Link graph and weights together and check that ONNX Runtime opens them with the promised shapes.

        ONNX Runtime checks where external weights lie (it rejects links that leave the folder), so a hard link is tried
        first; if it is rejected, the weights are copied. Without a GPU the check for one is made on the CPU.
        Meta: `share`; `checked_on` (cpu, cuda, or nothing); `notes`, a list for people.
        """
        shutil.copyfile(graph, folder / GRAPH)
        linked = link_or_copy(weights, folder / WEIGHTS)
        device = self._check_device()
        _check_shapes(graph, spec)
        if not device:
            return {"share": linked, "checked_on": "", "notes": [_BF16_UNCHECKED]}
        while True:
            try:
                session = _session(folder, spec, device=device)
                break
            except Exception as error:
                if not linked:
                    raise CompileError(f"build: ONNX Runtime does not open {spec.title} ({error})") from error
                (folder / WEIGHTS).unlink()
                shutil.copyfile(weights, folder / WEIGHTS)
                linked = False
        notes = [session.note] if session.note else []
        if self.settings.device == "cpu" and self.settings.precision == "fp16":
            notes.append(_FP16_ON_CPU)
        return {"share": linked, "checked_on": device, "notes": notes}

    def open(self, folder: Path, spec: RuntimeSpec, *, threads: int) -> SessionRunner:
        check_runs(self, spec)
        return SessionRunner(_session(folder, spec, device=self.settings.device, threads=threads))

    def _check_device(self) -> str:
        """The device that opens the built files: the CPU replaces a missing GPU, except for bf16."""
        if self.settings.device == "cpu" or not self.cannot_run():
            return self.settings.device
        return "" if self.settings.precision == "bf16" else "cpu"


def _session(folder: Path, spec: RuntimeSpec, *, device: str, threads: int = 1) -> Session:
    from arlo.templates.onnxruntime.session import Session

    return Session(
        folder / GRAPH,
        threads=threads,
        device=device,
        max_rows=spec.max_batch,
        record=not spec.dynamic or bool(spec.profiles),
        lengths=spec.profiles,
    )


def _check_shapes(graph: Path, spec: RuntimeSpec) -> None:
    import onnx

    expected = [spec.fixed.get(ROWS, ROWS), spec.fixed.get(TOKENS, TOKENS)]
    tensors = {name: [expected[0], *dims] for name, dims in spec.tensors}
    for value in onnx.load(str(graph), load_external_data=False).graph.input:
        shape, wanted = axes_of(value), tensors.get(value.name, expected)
        if shape != wanted:
            raise CompileError(f"build: {spec.title}: {value.name} has shape {shape}, not {wanted}")
