"""Triton model code: an encoder as an engine of TensorRT or TensorRT-RTX, on the GPU of the instance.

`session.py` and `model.plan` lie beside this file. Parameters of config.pbtxt: `package` (tensorrt, tensorrt-rtx),
`cuda_graphs` (shapes whose CUDA graph is kept, 0: none; default 128). Kernels that TensorRT-RTX compiles for this GPU
are kept below `$ARLO_CACHE`, else `~/.cache/arlo`. Inputs are INT64 [rows, tokens]; inputs that config.pbtxt calls
optional are zeros when a request leaves them out. Requests of one length are joined into one run; only outputs that are
asked for leave the GPU. A token id outside the vocabulary is not noticed: TensorRT does not check it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from .session import MAX_GRAPHS, PACKAGES, Session, kernels_folder

Tensors = dict[str, NDArray[np.int64]]  # input name -> [rows, tokens]
Member = tuple[int, Any, Tensors]  # place in the call, request, its inputs


class TritonPythonModel:
    """One instance. Triton calls `execute` from one thread at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the engine and run every usual shape, so that no request pays for what happens once."""
        config = json.loads(args["model_config"])
        self._inputs = [(entry["name"], bool(entry.get("optional"))) for entry in config["input"]]
        self._required = [name for name, optional in self._inputs if not optional]
        self._outputs = [entry["name"] for entry in config["output"]]
        path = Path(args["model_repository"]) / args["model_version"] / "model.plan"
        package, graphs = _parameters(config)
        try:
            self._session = Session(
                path,
                package,
                device_id=int(args.get("model_instance_device_id") or 0),
                max_graphs=graphs,
                kernels=kernels_folder(),
            )
            self._check(path)
            self._session.warm_up()
        except Exception as error:
            raise pb_utils.TritonModelException(f"{path} does not open in {package}: {error}") from error
        if self._session.note:
            pb_utils.Logger.log_info(f"{config.get('name')}: {self._session.note}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, in order; a request that fails gets an error of its own."""
        if len(requests) == 1:
            return [self._answer_one(requests[0])]
        responses: list[Any] = [None] * len(requests)
        groups: dict[int, list[Member]] = {}  # length -> what can run together
        for index, request in enumerate(requests):
            try:
                tensors = self._read(request)
            except ValueError as error:
                responses[index] = _failed(error)
                continue
            groups.setdefault(tensors[self._required[0]].shape[1], []).append((index, request, tensors))
        for members in groups.values():
            self._answer_group(members, responses)
        return responses

    def finalize(self) -> None:
        """Give the engine's memory back."""
        self._session.close()

    def _check(self, path: Path) -> None:
        for kind, named, has in (
            ("inputs", {name for name, _ in self._inputs}, set(self._session.inputs)),
            ("outputs", set(self._outputs), set(self._session.outputs)),
        ):
            if (named != has) if kind == "inputs" else not named <= has:
                raise RuntimeError(
                    f"config.pbtxt names the {kind} {sorted(named)}, the engine has {sorted(has)}: "
                    "build the repository again"
                )

    def _answer_one(self, request: Any) -> Any:
        try:
            return self._run(self._read(request), _wanted(request, self._outputs))
        except Exception as error:
            return _failed(error)

    def _answer_group(self, members: list[Member], responses: list[Any]) -> None:
        asked_by = [_wanted(request, self._outputs) for _, request, _ in members]
        wanted = [name for name in self._outputs if any(name in asked for asked in asked_by)]
        joined = {name: np.concatenate([tensors[name] for _, _, tensors in members]) for name, _ in self._inputs}
        try:
            answers = dict(zip(wanted, self._session.run(wanted, joined), strict=True))
        except Exception:
            # One bad request must not fail its neighbours.
            for index, request, _ in members:
                responses[index] = self._answer_one(request)
            return
        start = 0
        for (index, _, tensors), asked in zip(members, asked_by, strict=True):
            stop = start + len(tensors[self._required[0]])
            responses[index] = pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, answers[name][start:stop]) for name in asked]
            )
            start = stop

    def _run(self, tensors: Tensors, wanted: list[str]) -> Any:
        answers = self._session.run(wanted, tensors)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, answer) for name, answer in zip(wanted, answers, strict=True)]
        )

    def _read(self, request: Any) -> Tensors:
        tensors: Tensors = {}
        shape: tuple[int, ...] = ()
        for name, optional in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                if not optional:
                    raise ValueError(f"input {name} is missing: send {', '.join(self._required)}")
                continue
            tensors[name] = array = tensor.as_numpy()
            if not shape:
                shape = array.shape
            elif array.shape != shape:
                raise ValueError(f"input {name} has shape {list(array.shape)}, the others have {list(shape)}")
        for name, _ in self._inputs:
            if name not in tensors:
                tensors[name] = np.zeros(shape, np.int64)
        return tensors


def _wanted(request: Any, outputs: list[str]) -> list[str]:
    asked = request.requested_output_names()
    return [name for name in outputs if name in asked]


def _failed(error: Exception) -> Any:
    # The caller's mistake must not look like ours: a gateway retries one and not the other.
    code = pb_utils.TritonError.INVALID_ARG if isinstance(error, ValueError) else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def _parameters(config: dict[str, Any]) -> tuple[str, int]:
    """The package and the number of CUDA graphs that config.pbtxt asks for."""
    named = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
    package, graphs = named.get("package", ""), named.get("cuda_graphs", str(MAX_GRAPHS))
    if package not in PACKAGES:
        raise pb_utils.TritonModelException(
            f"the parameter package is {package!r}, not one of {', '.join(PACKAGES)}: build the repository again"
        )
    if not graphs.isdigit():
        raise pb_utils.TritonModelException(f"the parameter cuda_graphs is {graphs!r}, not a whole number")
    return package, int(graphs)
