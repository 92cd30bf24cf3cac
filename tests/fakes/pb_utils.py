"""What the model code for Triton uses of `triton_python_backend_utils`, which exists only inside Triton."""

from __future__ import annotations

import dataclasses
from typing import Any


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
