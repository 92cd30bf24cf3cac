"""The specification of one runtime, and the names of graphs between the steps."""

from __future__ import annotations

import dataclasses
from typing import Literal

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
