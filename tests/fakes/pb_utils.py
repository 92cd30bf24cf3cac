"""What the model code for Triton uses of `triton_python_backend_utils`, which exists only inside Triton."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


class TritonModelException(Exception):  # noqa: N818  # Triton's name
    pass


class TritonError:
    INTERNAL, INVALID_ARG = "INTERNAL", "INVALID_ARG"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self.message, self.code = message, code


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array

    def as_numpy(self) -> Any:
        return self.array


@dataclasses.dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = dataclasses.field(default_factory=list)
    error: TritonError | None = None


@dataclasses.dataclass
class InferenceRequest:
    inputs: dict[str, Any]
    outputs: list[str]

    def requested_output_names(self) -> list[str]:
        return self.outputs


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return Tensor(name, request.inputs[name]) if name in request.inputs else None


def request(
    tokens: int, *, rows: int = 1, outputs: tuple[str, ...] = ("sentence_embedding",), **change: Any
) -> InferenceRequest:
    """A request of so many rows; change: other inputs, None: without that one."""
    ids = np.random.default_rng([tokens, rows]).integers(5, 100, (rows, tokens))
    inputs = {"input_ids": ids, "attention_mask": np.ones((rows, tokens), np.int64)} | change
    return InferenceRequest({name: value for name, value in inputs.items() if value is not None}, list(outputs))


def arrays(response: Any) -> dict[str, Any]:
    """The answers of a response without an error."""
    assert response.error is None
    return {tensor.name: tensor.as_numpy() for tensor in response.output_tensors}
