"""What one runtime shall be."""

from __future__ import annotations

import dataclasses

from arlo.compile.export import ROWS, TOKENS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec:
    """A runtime to build."""

    name: str  # the Triton model
    max_length: int
    max_batch: int
    dynamic: bool

    @property
    def title(self) -> str:
        """For people: `length 128` or `dynamic up to 512`."""
        return f"dynamic up to {self.max_length}" if self.dynamic else f"length {self.max_length}"

    @property
    def fixed(self) -> dict[str, int]:
        """Axes to fix. Rows stay free above one, so that a half-full batch costs only its rows."""
        if self.dynamic:
            return {}
        return {TOKENS: self.max_length} | ({ROWS: 1} if self.max_batch == 1 else {})
