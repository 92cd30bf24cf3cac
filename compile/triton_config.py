"""The Triton side of a runtime: config.pbtxt and the model code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arlo.compile.job import Job
from arlo.compile.spec import RuntimeSpec
from arlo.errors import EnvironmentProblem

_HEADER = "# Written by `arlo compile`; described in arlo.json. Built again, it is replaced.\n"


def triton_config(job: Job, spec: RuntimeSpec) -> str:
    """Text of config.pbtxt for one runtime, written through Triton's own message class."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as messages

    tokens = -1 if spec.dynamic else spec.max_length
    config: Any = messages.ModelConfig(
        name=spec.name, backend=job.engine.serving(spec).backend, max_batch_size=spec.max_batch
    )
    for tensor in job.model.inputs:
        config.input.add(
            name=tensor.name,
            data_type=messages.DataType.Value(f"TYPE_{tensor.datatype}"),
            dims=[tokens],
            optional=tensor.optional,
        )
    for output in job.outputs:
        config.output.add(
            name=output.name,
            data_type=messages.DataType.Value(f"TYPE_{output.datatype}"),
            dims=([tokens] if output.token_level else []) + list(output.dims),
        )
    config.instance_group.add(kind=messages.ModelInstanceGroup.KIND_CPU, count=1)
    if spec.max_batch > 1:
        # Without a queue policy (max_queue_size, time-outs): with one, Triton 2.51's batcher is not woken by a request
        # that arrives before the one before has let go of the instance, and looks again only after 500 ms. Measured
        # with 5 ms a batch, max_batch 4, 1 to 12 clients that wait for their answers: 769 of 43,200 requests above
        # 400 ms, without a policy none; requests per second at 1, 4, 8, 12 clients: 128, 299, 316, 267, without 188,
        # 327, 485, 487. The price: up to two batches an instance are formed ahead of time and run even when they are
        # cancelled; dispatch.inflight_limit bounds that.
        config.dynamic_batching.SetInParent()
    if job.options.threads is not None:
        config.parameters["threads"].string_value = str(job.options.threads)
    return _HEADER + str(text_format.MessageToString(config))


def model_code(template: str) -> Path:
    """The model.py that serves the engine; it lies beside this package, installed or in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here.parent / "triton_repo" / "templates", here.parent / "templates"):
        path = folder / template / "model.py"
        if path.is_file():
            return path
    raise EnvironmentProblem(f"the model code {template} is missing beside {here}: install Arlo again")
