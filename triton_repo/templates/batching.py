"""How every model here batches Triton's requests, independent of its engine.

Inputs are INT64 [rows, tokens], or tensors of a fixed size; those that config.pbtxt calls optional are zeros when a
request omits them.
Requests of one length are joined into one run; only requested outputs are computed and sent back. This file is copied
next to each engine's model.py.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import os
from pathlib import Path
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


@dataclasses.dataclass(frozen=True)
class Instance:
    """Triton's description of the instance to open."""

    folder: Path  # of the model's version
    device: str  # cpu or cuda
    device_id: int
    max_rows: int
    fixed: bool  # the length is
    parameters: dict[str, str]  # of config.pbtxt

    @property
    def threads(self) -> int:
        """Threads from the environment variable ARLO_THREADS, else from the parameter `threads`, else 1."""
        return self.whole("threads", os.environ.get("ARLO_THREADS") or self.parameters.get("threads") or "1")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The recorded lengths."""
        return tuple(self.whole("lengths", text) for text in self.parameters.get("lengths", "").split(",") if text)

    @classmethod
    def of(cls, args: dict[str, str], config: dict[str, Any]) -> Instance:
        """Read the arguments of `initialize`, with the config.pbtxt in them."""
        return cls(
            folder=Path(args["model_repository"]) / args["model_version"],
            device="cuda" if args.get("model_instance_kind") == "GPU" else "cpu",
            device_id=int(args.get("model_instance_device_id") or 0),
            max_rows=max(1, int(config.get("max_batch_size") or 1)),
            fixed=int(config["input"][0]["dims"][-1]) > 0,
            parameters={name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()},
        )

    @staticmethod
    def whole(name: str, text: str, *, least: int = 1) -> int:
        """The whole number in `text`. ValueError if it is not one, or below `least`."""
        if not text.isdigit() or int(text) < least:
            raise ValueError(f"{name} {text!r} must be a whole number of {least} or more")
        return int(text)


class Encoder(abc.ABC):
    """One instance. Triton calls `execute` from one thread at a time. `_session.run(outputs, inputs)` is the engine."""

    _session: Any
    # Errors of the caller, kept apart from ours: a gateway retries only ours.
    mistakes: tuple[type[Exception], ...] = (ValueError,)

    @abc.abstractmethod
    def open(self, instance: Instance) -> Any:
        """Open the session; any error explains why it failed."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and run the usual shapes, so that no request pays for one-time work."""
        config = json.loads(args["model_config"])
        self.configure(config)
        instance = Instance.of(args, config)
        try:
            self._session = self.open(instance)
            _check({name for name, _ in self._inputs}, set(self._outputs), self._session)
            self._session.warm_up()
        except Exception as error:
            raise pb_utils.TritonModelException(f"{instance.folder} does not open: {error}") from error
        if self._session.note:
            pb_utils.Logger.log_info(f"{config.get('name')}: {self._session.note}")

    def finalize(self) -> None:
        """Give the engine's memory back."""
        self._session = None

    def configure(self, config: dict[str, Any]) -> None:
        """Take the names of inputs and outputs from config.pbtxt."""
        self._inputs = [(entry["name"], bool(entry.get("optional"))) for entry in config["input"]]
        self._required = [name for name, optional in self._inputs if not optional]
        rows = 0 if int(config.get("max_batch_size", 0)) else 1  # without batches of Triton's the dims begin with them
        dims = {entry["name"]: [int(size) for size in entry["dims"][rows:]] for entry in config["input"]}
        flat = [size for size in dims.values() if len(size) == 1]
        tokens = min(flat, key=lambda size: size[0] >= 0, default=[-1])  # the free one, where there is one
        # Inputs of a fixed size; the others all have one shape, [rows, tokens].
        self._sizes = {name: tuple(size) for name, size in dims.items() if size != tokens}
        self._kinds = {entry["name"]: _KINDS.get(entry.get("data_type", ""), np.int64) for entry in config["input"]}
        self._outputs = [entry["name"] for entry in config["output"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, in order; each failed request gets its own error."""
        if len(requests) == 1:
            return [self._answer_one(requests[0])]
        responses: list[Any] = [None] * len(requests)
        groups: dict[int, list[Member]] = {}  # length -> requests that can run together
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
            wanted = _wanted(request, self._outputs)
            return _response(dict(zip(wanted, self._session.run(wanted, self._read(request)), strict=True)))
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
            responses[index] = _response({name: answers[name][start:stop] for name in asked})
            start = stop

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


def _response(answers: Tensors) -> Any:
    return pb_utils.InferenceResponse([to_triton(name, answer) for name, answer in answers.items()])


def _check(inputs: set[str], outputs: set[str], session: Any) -> None:
    """Raise RuntimeError if config.pbtxt names tensors that the engine lacks."""
    for kind, named, has in (("inputs", inputs, set(session.inputs)), ("outputs", outputs, set(session.outputs))):
        if named - has or (kind == "inputs" and has != named):
            raise RuntimeError(
                f"config.pbtxt names the {kind} {sorted(named)}, the engine has {sorted(has)}: build the repository "
                "again"
            )
