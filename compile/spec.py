"""The specification of one runtime, and the names of graphs between the steps."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from arlo.catalog.manifest import Runtime

GRAPH = "model.onnx"
WEIGHTS = "weights.bin"
ROWS, TOKENS = "rows", "tokens"  # the free axes of an exported graph

Shape = Literal["static", "dynamic", "profiles"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec:
    """A runtime to build."""

    name: str  # the Triton model
    max_length: int
    max_batch: int
    shape: Shape  # profiles: one engine for all of `profiles`, its weights once
    profiles: tuple[int, ...] = ()  # maximum lengths, ascending, the last one max_length; of shape "profiles" only
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()  # inputs of a fixed size, and what a row of them is

    @classmethod
    def of(cls, runtime: Runtime) -> RuntimeSpec:
        """The specification that a runtime of a manifest was built from."""
        return cls(
            name=runtime.name,
            max_length=runtime.max_length,
            max_batch=runtime.max_batch,
            shape="profiles" if runtime.profiles else "dynamic" if runtime.dynamic else "static",
            profiles=runtime.profiles,
        )

    @property
    def dynamic(self) -> bool:
        """Whether it takes any length up to the longest."""
        return self.shape != "static"

    @property
    def title(self) -> str:
        """The name shown to people: `length 128`, `dynamic up to 512` or `profiles up to 512`."""
        return f"length {self.max_length}" if self.shape == "static" else f"{self.shape} up to {self.max_length}"

    @property
    def fixed(self) -> dict[str, int]:
        """Axes to fix. Rows stay free above one, so that a half-full batch costs only its rows."""
        if self.dynamic:
            return {}
        return {TOKENS: self.max_length} | ({ROWS: 1} if self.max_batch == 1 else {})


def axes_of(value: Any) -> list[int | str]:
    """The axes of an input or output of an ONNX graph: a number, or the name of a free axis."""
    return [
        axis.dim_value if axis.HasField("dim_value") and axis.dim_value > 0 else axis.dim_param
        for axis in value.type.tensor_type.shape.dim
    ]
