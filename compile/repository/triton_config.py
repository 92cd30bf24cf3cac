"""The Triton side of a runtime: config.pbtxt and the model code.

These rules of Triton's back-ends come from their sources and hold for the official container:

* Its own back-ends (`onnxruntime`, `tensorrt`) fix the number of rows: with a `max_batch_size` the engine's first axis
  must be free. An engine of one row is therefore served with `max_batch_size: 0` and that 1 as an explicit dimension;
  requests look the same.
* They refuse optional inputs. The gateway fills in inputs that a client omits, so its workers always get every input.
* Only TensorRT has CUDA graphs by `optimization.cuda`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import InputTensor, OutputTensor
from arlo.compile.engines.interface import Serving
from arlo.compile.spec import RuntimeSpec
from arlo.errors import EnvironmentProblem

_HEADER = "# Written by `arlo compile`; described in arlo.json. Built again, it is replaced.\n"
_THREADS = {"python": ("threads",), "onnxruntime": ("intra_op_thread_count", "inter_op_thread_count")}


def config_text(
    serving: Serving,
    spec: RuntimeSpec,
    *,
    inputs: Sequence[InputTensor],
    outputs: Sequence[OutputTensor],
    threads: int | None = None,
    batcher: bool = False,
) -> str:
    """Text of config.pbtxt for one runtime, written through Triton's own message class.

    threads: of one instance that computes on the CPU; None: one. batcher: Triton joins requests itself if a batch may
    have several rows. It is off by default: the gateway sends each batch as one request, and a request waiting in
    Triton cannot join another batch any more. Triton's own back-ends turn it on by themselves above one row, unless
    Triton is started with --disable-auto-complete-config, as our workers are. No queue policy: with one, a request that
    arrives before the previous one has released the instance does not wake Triton 2.51's batcher, which looks again
    only after 500 ms. No preferred batch sizes: without a delay the batcher takes all waiting requests.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as messages

    native = serving.backend != "python"
    one_row = native and spec.max_batch == 1 and not spec.dynamic
    config: Any = messages.ModelConfig(
        name=spec.name,
        backend=serving.backend,
        platform=serving.platform,
        default_model_filename=serving.model_file,
        max_batch_size=0 if one_row else spec.max_batch,
    )
    rows = [1] if one_row else []
    tokens = -1 if spec.dynamic else spec.max_length
    for tensor in inputs:
        config.input.add(
            name=tensor.name,
            data_type=messages.DataType.Value(f"TYPE_{tensor.datatype}"),
            dims=[*rows, *_dims(tensor, tokens)],
            optional=tensor.optional and not native,
        )
    for output in outputs:
        config.output.add(
            name=output.name,
            data_type=messages.DataType.Value(f"TYPE_{output.datatype}"),
            dims=[*rows, *([tokens] if output.token_level else []), *output.dims],
        )
    kind = messages.ModelInstanceGroup.KIND_GPU if serving.gpu else messages.ModelInstanceGroup.KIND_CPU
    config.instance_group.add(kind=kind, count=1, profile=serving.profiles)
    if batcher and spec.max_batch > 1:
        config.dynamic_batching.SetInParent()
    _optimization(config, serving, spec, inputs)
    if native:
        _warm_up(config, spec, inputs)
    for key, value in serving.parameters.items():
        config.parameters[key].string_value = value
    if native or threads is not None:
        for key, number in zip(_THREADS.get(serving.backend, ()), (threads or 1, 1), strict=False):
            config.parameters[key].string_value = str(number)
    return _HEADER + str(text_format.MessageToString(config))


def _dims(tensor: InputTensor, tokens: int) -> list[int]:
    """Dimensions of one row."""
    return list(tensor.dims) if tensor.role == "tensor" else [tokens]


def _optimization(config: Any, serving: Serving, spec: RuntimeSpec, inputs: Sequence[InputTensor]) -> None:
    if serving.accelerator:
        accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="cuda")
        accelerator.parameters.update(serving.accelerator)
    if serving.platform == "tensorrt_plan" and spec.shape == "static":
        # Each length would need its own graph, so only fixed lengths get graphs. Unless graphs are named, Triton
        # records those of one row and of max_batch only, and runs other batches without.
        cuda = config.optimization.cuda
        cuda.graphs = True
        for batch in graph_batches(config.max_batch_size):
            graph = cuda.graph_spec.add(batch_size=batch)
            for tensor in inputs:
                graph.input[tensor.name].dim.extend([1] * (batch == 0) + _dims(tensor, spec.max_length))


def graph_batches(max_batch_size: int) -> list[int]:
    """Numbers of rows worth a CUDA graph: all small ones, where launching the kernels takes longer than they run, the
    powers of two above, and the most. 0 is Triton's word for an engine without batching."""
    if max_batch_size == 0:
        return [0]
    usual = {*range(1, 9), *(1 << power for power in range(4, 11)), max_batch_size}
    return sorted(batch for batch in usual if batch <= max_batch_size)


def _warm_up(config: Any, spec: RuntimeSpec, inputs: Sequence[InputTensor]) -> None:
    """Requests that Triton's own back-ends run before the model is ready: one row, and as many as a batch takes.

    All zeros: the first word of any vocabulary, while random bytes would be words that none has. A zero mask does not
    change the time, since the computation has the same shape.

    The Python backend accepts such requests but gets none: our model code runs the same sizes itself before it is
    ready. Triton's requests ask for every output, and in that backend these pass through shared memory, which grows to
    the largest batch of token vectors and stays so (/dev/shm of a container has 64 MB by default). MiniLM of 384 tokens
    on a busy machine: loaded in 1.7 s without, 2.8 s with them; the first request after that took 0.3 s more without.
    """
    rows = [1] if config.max_batch_size == 0 else []
    for batch in sorted({1, spec.max_batch}):
        for tokens in sorted({*spec.profiles, spec.max_length}):
            sample = config.model_warmup.add(name=f"{batch}x{tokens}", batch_size=batch, count=1)
            for tensor in inputs:
                entry = sample.inputs[tensor.name]
                entry.data_type = next(known.data_type for known in config.input if known.name == tensor.name)
                entry.dims.extend([*rows, *_dims(tensor, tokens)])
                entry.zero_data = True


def model_code(template: str) -> tuple[Path, ...]:
    """The files that serve an engine by the Python backend: model.py and its imports. None if Triton's own back-end
    serves it (`template` is empty). They lie next to this package, installed or in a checkout."""
    if not template:
        return ()
    here = Path(__file__).resolve().parent.parent
    for folder in (here.parent / "triton_repo" / "templates", here.parent / "templates"):
        if (folder / template / "model.py").is_file():
            files = [*folder.glob("*.py"), *(folder / template).iterdir()]  # what all engines share, and its own
            return tuple(sorted((path for path in files if path.is_file()), key=lambda path: path.name))
    raise EnvironmentProblem(f"the model code {template} is missing beside {here}: install Arlo again")
