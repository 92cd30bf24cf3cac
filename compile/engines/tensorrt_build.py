"""From a graph to an engine file, by TensorRT or TensorRT-RTX: network, optimisation profiles, flags.

The network is always strongly typed: it computes in the types of the graph, which the export chose. That is the only
kind that TensorRT-RTX and TensorRT 11 have, and the exact one.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from arlo.clock import monotonic_s
from arlo.compile.cache import link_or_copy
from arlo.compile.engines.interface import EngineSettings
from arlo.compile.engines.tensorrt_timing import TimingCache
from arlo.compile.spec import GRAPH, ROWS, TOKENS, WEIGHTS, RuntimeSpec
from arlo.errors import CompileError

PLAN = "model.plan"

Shape = tuple[int, int]  # rows, tokens

_ERROR, _WARNING = 1, 2
_HARMLESS = re.compile(r"Make sure (in|out)put \S+ has Int64 binding")  # our inputs are INT64, which is what we mean
_MAX_PROBLEMS = 5


def build_plan(
    trt: Any,
    log: Any,
    graph: Path,
    weights: Path,
    spec: RuntimeSpec,
    *,
    folder: Path,
    package: str,
    settings: EngineSettings,
    timing: TimingCache | None,
) -> dict[str, Any]:
    """Write `model.plan` into `folder` and return the findings, see `engine.Engine.build`. CompileError when it cannot.

    trt, log: the module and its log, see `arlo.templates.tensorrt.session`. timing: None if nothing is measured.
    """
    start_s = monotonic_s()
    title = f"build: {spec.title}"
    product = f"{package} {trt.__version__}"
    opset = _check_opset(graph, title, product)
    log.take()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of members that go in one version or the other
        builder = trt.Builder(log)
        network = builder.create_network(_strongly_typed(trt))
        # The parser looks for weights next to the graph and accepts hard links. Inside `folder`: a kill leaves nothing.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".parse-") as beside:
            shutil.copyfile(graph, Path(beside) / GRAPH)
            link_or_copy(weights, Path(beside) / WEIGHTS)
            parser = trt.OnnxParser(network, log)  # must outlive the network: it owns its weights
            if not parser.parse_from_file(str(Path(beside) / GRAPH)):
                problems = [_describe(parser.get_error(index)) for index in range(parser.num_errors)]
                raise CompileError(
                    f"{title}: {product} does not take the graph (opset {opset}): {_listed(problems)}. "
                    "Serve this model with --engine onnxruntime, or try another version of the package"
                )
            notes = _notes(log)
            _check_inputs(trt, network, spec, title)
            config = _configure(trt, builder, network, spec, settings)
            state = timing.attach(config, log) if timing else "none"
            if not _write(trt, builder, network, config, folder / PLAN):
                problems = [text for severity, text in log.take() if severity <= _ERROR]
                raise CompileError(
                    f"{title}: {product} cannot build it: {_listed(problems or ['it gave no reason'])}. "
                    "Try another precision, or serve this model with --engine onnxruntime"
                )
            if timing:
                notes += _notes(log)
                timing.save(config, log)
    return {
        "format": product,
        "layers": network.num_layers,
        "bytes": (folder / PLAN).stat().st_size,
        "seconds": round(monotonic_s() - start_s, 3),
        "compute_capabilities": list(settings.compute_capabilities),
        "timing_cache": state,
        "notes": notes + _notes(log),
    }


def profile_shapes(spec: RuntimeSpec) -> list[tuple[Shape, Shape, Shape]]:
    """Least, usual and largest shape of all optimisation profiles. Usual is largest, where speed matters most."""
    if spec.shape == "static":
        bounds = [(spec.max_length, spec.max_length)]
    elif spec.shape == "dynamic":
        bounds = [(1, spec.max_length)]
    else:
        bounds = [(below + 1, length) for below, length in zip((0, *spec.profiles), spec.profiles, strict=False)]
    return [((1, least), (spec.max_batch, most), (spec.max_batch, most)) for least, most in bounds]


def _strongly_typed(trt: Any) -> int:
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)  # goes one day: TensorRT 11 needs it not
    return 0 if flag is None else 1 << int(flag)


def _configure(trt: Any, builder: Any, network: Any, spec: RuntimeSpec, settings: EngineSettings) -> Any:
    config = builder.create_builder_config()
    # Else float32 is multiplied with a precision of 10 bits.
    if hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)
    if settings.compute_capabilities:  # of TensorRT-RTX
        config.num_compute_capabilities = len(settings.compute_capabilities)
        for index, name in enumerate(settings.compute_capabilities):
            if not config.set_compute_capability(getattr(trt.ComputeCapability, name), index):
                raise CompileError(f"build: {trt.__name__} {trt.__version__} does not build for {name}: leave it out")
    own = dict(spec.tensors)  # the same size for every row
    for least, usual, most in profile_shapes(spec):
        ranges = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            name = network.get_input(index).name
            ranges.set_shape(name, *((shape[0], *own.get(name, shape[1:])) for shape in (least, usual, most)))
        if config.add_optimization_profile(ranges) < 0:
            raise CompileError(f"build: {spec.title}: the shapes {least} to {most} do not suit the graph")
    return config


def _write(trt: Any, builder: Any, network: Any, config: Any, path: Path) -> bool:
    """Build; False when TensorRT fails. Streamed if possible, so that the engine is never in memory as a whole."""
    with path.open("wb") as file:
        if hasattr(builder, "build_serialized_network_to_stream"):
            writer = _writer(trt, file)
            whole = bool(builder.build_serialized_network_to_stream(network, config, writer))
            if writer.error is not None:
                raise writer.error
            return whole
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            return False
        file.write(plan)
        return True


def _writer(trt: Any, file: BinaryIO) -> Any:
    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)
            self.error: OSError | None = None

        def write(self, data: bytes) -> int:
            try:
                return file.write(data)
            except OSError as error:  # must not cross the C++ code
                self.error = error
                return 0

    return Writer()


def _check_opset(graph: Path, title: str, product: str) -> int:
    """The graph's opset. Checked here: the parser takes any number, and reads the operators as it knows them."""
    import onnx

    proto = onnx.load(str(graph), load_external_data=False)
    opset = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise CompileError(
            f"{title}: the graph is of opset {opset}, newer than {newest}, the newest that onnx {onnx.__version__} "
            f"knows; {product} would read it by older definitions: export it with opset 18"
        )
    return int(opset)


def _check_inputs(trt: Any, network: Any, spec: RuntimeSpec, title: str) -> None:
    own = dict(spec.tensors)
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        expected = (spec.fixed.get(ROWS, -1), *own.get(tensor.name, (spec.fixed.get(TOKENS, -1),)))
        if tensor.dtype != trt.DataType.INT64 or tuple(tensor.shape) != expected:
            raise CompileError(
                f"{title}: the input {tensor.name} is {tensor.dtype.name} {list(tensor.shape)}, "
                f"not INT64 {list(expected)}"
            )
    for index in range(network.num_outputs):
        tensor = network.get_output(index)
        if tensor.dtype != trt.DataType.FLOAT:
            raise CompileError(f"{title}: the output {tensor.name} is {tensor.dtype.name}: let the graph end in FP32")


def _describe(error: Any) -> str:
    """A parser error for people."""
    node = f"node {error.node()}"
    if error.node_name():
        node += f" ({error.node_name()})"
    operator = error.node_operator()
    text = error.desc().strip()
    if text in ("", "false"):  # the message for an operator without an implementation
        text = "this operator is not supported"
    return f"{node}, operator {operator}: {text}" if operator else text


def _listed(problems: Sequence[str]) -> str:
    shown = "; ".join(dict.fromkeys(problems[:_MAX_PROBLEMS]))
    left = len(problems) - _MAX_PROBLEMS
    return f"{shown}; and {left} more" if left > 0 else shown


def _notes(log: Any) -> list[str]:
    texts = [text for _, text in log.take() if not _HARMLESS.search(text)]
    return list(dict.fromkeys(texts))
