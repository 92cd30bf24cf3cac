"""Triton model code: an encoder in ONNX Runtime, on the CPU or (instance groups of KIND_GPU) on a GPU.

`session.py`, `model.onnx` and `weights.bin` lie beside this file. Threads: the environment variable ARLO_THREADS, else
the model parameter `threads`, else 1. Inputs are INT64 [rows, tokens]; inputs that config.pbtxt calls optional are
zeros when a request leaves them out. Requests of one length are joined into one run; only outputs that are asked for
are sent back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from .session import Session

Tensors = dict[str, NDArray[np.int64]]  # input name -> [rows, tokens]
Member = tuple[int, Any, Tensors]  # place in the call, request, its inputs


class TritonPythonModel:
    """One instance. Triton calls `execute` from one thread at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and run it, so that the first requests do not pay for allocations."""
        config = json.loads(args["model_config"])
        self._inputs = [(entry["name"], bool(entry.get("optional"))) for entry in config["input"]]
        self._required = [name for name, optional in self._inputs if not optional]
        self._outputs = [entry["name"] for entry in config["output"]]
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        max_rows = max(1, int(config.get("max_batch_size") or 1))
        threads = _threads(config)
        gpu = args.get("model_instance_kind") == "GPU"
        try:
            self._session = Session(
                path,
                threads=threads,
                device="cuda" if gpu else "cpu",
                device_id=int(args.get("model_instance_device_id") or 0) if gpu else 0,
                max_rows=max_rows,
                record=int(config["input"][0]["dims"][-1]) > 0,
            )
        except Exception as error:
            raise pb_utils.TritonModelException(f"{path} does not open in ONNX Runtime: {error}") from error
        if self._session.note:
            pb_utils.Logger.log_info(f"{config.get('name')}: {self._session.note}")
        known = set(self._session.inputs)
        if known != {name for name, _ in self._inputs}:
            raise pb_utils.TritonModelException(
                f"config.pbtxt names the inputs {[name for name, _ in self._inputs]}, the engine has {sorted(known)}: "
                "build the repository again"
            )
        self._session.warm_up(max_rows, free_tokens=16)

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
        self._session = None

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
            # One bad request (an id outside the vocabulary, say) must not fail its neighbours.
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
    ours = not isinstance(error, (ValueError, InvalidArgument))
    code = pb_utils.TritonError.INTERNAL if ours else pb_utils.TritonError.INVALID_ARG
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def _threads(config: dict[str, Any]) -> int:
    text = os.environ.get("ARLO_THREADS") or config.get("parameters", {}).get("threads", {}).get("string_value") or "1"
    if not text.isdigit() or int(text) < 1:
        raise pb_utils.TritonModelException(f"threads {text!r} must be a whole number of 1 or more: see ARLO_THREADS")
    return int(text)
