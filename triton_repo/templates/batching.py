"""What every model here does with Triton's requests, whatever runs its engine.

Inputs are INT64 [rows, tokens], or tensors of a size of their own; those that config.pbtxt calls optional are zeros
when a request leaves them out.
Requests of one length are joined into one run; only outputs that are asked for are computed and sent back. This file is
copied beside each engine's model.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from .tensors import from_triton, to_triton

Tensors = dict[str, NDArray[Any]]  # input name -> [rows, tokens], or [rows, ...]
_KINDS: dict[str, Any] = {
    "TYPE_INT32": np.int32,
    "TYPE_UINT8": np.uint8,
    "TYPE_FP32": np.float32,
    "TYPE_FP16": np.float16,
}
Member = tuple[int, Any, Tensors]  # place in the call, request, its inputs


class Encoder:
    """One instance. Triton calls `execute` from one thread at a time. `_session.run(outputs, inputs)` is the engine."""

    _session: Any
    # The caller's mistakes, which must not look like ours: a gateway retries one and not the other.
    mistakes: tuple[type[Exception], ...] = (ValueError,)

    def configure(self, config: dict[str, Any]) -> None:
        """Take the names of inputs and outputs from config.pbtxt."""
        self._inputs = [(entry["name"], bool(entry.get("optional"))) for entry in config["input"]]
        self._required = [name for name, optional in self._inputs if not optional]
        rows = 0 if int(config.get("max_batch_size", 0)) else 1  # without batches of Triton's the dims begin with them
        dims = {entry["name"]: [int(size) for size in entry["dims"][rows:]] for entry in config["input"]}
        flat = [size for size in dims.values() if len(size) == 1]
        tokens = min(flat, key=lambda size: size[0] >= 0, default=[-1])  # the free one, where there is one
        # Of a size of their own; the others all have one shape, [rows, tokens].
        self._sizes = {name: tuple(size) for name, size in dims.items() if size != tokens}
        self._kinds = {entry["name"]: _KINDS.get(entry.get("data_type", ""), np.int64) for entry in config["input"]}
        self._outputs = [entry["name"] for entry in config["output"]]

    def check(self) -> None:
        """RuntimeError where config.pbtxt names other tensors than the engine has."""
        named, has = {name for name, _ in self._inputs}, set(self._session.inputs)
        if named != has:
            raise RuntimeError(_differ("inputs", named, has))
        named, has = set(self._outputs), set(self._session.outputs)
        if not named <= has:
            raise RuntimeError(_differ("outputs", named, has))

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
                responses[index] = self._failed(error)
                continue
            groups.setdefault(tensors[self._required[0]].shape[1], []).append((index, request, tensors))
        for members in groups.values():
            self._answer_group(members, responses)
        return responses

    def _answer_one(self, request: Any) -> Any:
        try:
            return self._run(self._read(request), _wanted(request, self._outputs))
        except Exception as error:
            return self._failed(error)

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
                [to_triton(name, answers[name][start:stop]) for name in asked]
            )
            start = stop

    def _run(self, tensors: Tensors, wanted: list[str]) -> Any:
        answers = self._session.run(wanted, tensors)
        return pb_utils.InferenceResponse(
            [to_triton(name, answer) for name, answer in zip(wanted, answers, strict=True)]
        )

    def _read(self, request: Any) -> Tensors:
        tensors: Tensors = {}
        shape: tuple[int, ...] = ()
        rows = 0
        for name, optional in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                if not optional:
                    raise ValueError(f"input {name} is missing: send {', '.join(self._required)}")
                continue
            tensors[name] = array = from_triton(tensor)
            rows = rows or len(array)
            if name in self._sizes:
                if array.shape != (rows, *self._sizes[name]):
                    needed = [rows, *self._sizes[name]]
                    raise ValueError(f"input {name} has shape {list(array.shape)}, {needed} is needed")
            elif not shape:
                shape = (rows, *array.shape[1:])
            if name not in self._sizes and array.shape != shape:
                raise ValueError(f"input {name} has shape {list(array.shape)}, the others have {list(shape)}")
        for name, _ in self._inputs:
            if name not in tensors:
                size = self._sizes.get(name)
                tensors[name] = np.zeros(shape if size is None else (rows, *size), self._kinds[name])
        return tensors

    def _failed(self, error: Exception) -> Any:
        ours = not isinstance(error, self.mistakes)
        code = pb_utils.TritonError.INTERNAL if ours else pb_utils.TritonError.INVALID_ARG
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def _wanted(request: Any, outputs: list[str]) -> list[str]:
    asked = request.requested_output_names()
    return [name for name in outputs if name in asked]


def _differ(kind: str, named: set[str], has: set[str]) -> str:
    return f"config.pbtxt names the {kind} {sorted(named)}, the engine has {sorted(has)}: build the repository again"
