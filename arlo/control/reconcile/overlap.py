"""Whether two engines are tried on a worker at a time. No clock, no I/O.

What a worker's memory holds is not computed but tried. A load that fails for memory says no for now, not for good: the
cause may have been a leak, another program, or this one pair of runtimes.
"""

from __future__ import annotations

import re

AGAIN_S = (600.0, 7200.0)  # until it is tried again: first, longest

# As ONNX Runtime, CUDA, TensorRT, PyTorch, the C library, Triton and our emulated engine say it. The word "memory"
# alone stands in many an error that another order of loading would not help.
_OUT_OF_MEMORY = re.compile(
    r"out[ _-]?of[ _-]?(\w+[ _])?memory|memory exhausted|(insufficient|not enough|no) (\w+ )?memory"
    r"|(cannot|can't|could not|failed to|unable to) allocate|bad[_ ]?alloc|alloc(ation)?[ _]failed|memory ?allocation"
    r"|available memory of \d+ is smaller|\boom\b",
    re.IGNORECASE,
)


def is_out_of_memory(error: str) -> bool:
    """Whether the reason why something was not loaded is that memory is short."""
    return _OUT_OF_MEMORY.search(error) is not None


class Overlap:
    """`wanted`: as control.make_before_break says. After a failure for memory it pauses, longer each time."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._pause_s = AGAIN_S[0]
        self._again_s = 0.0

    def allowed(self, now_s: float) -> bool:
        """Whether to load a runtime beside the one that serves."""
        return self._wanted and now_s >= self._again_s

    def no_room(self, now_s: float) -> float:
        """It failed for memory. Returns the seconds until it is tried again."""
        pause_s = self._pause_s
        self._again_s = now_s + pause_s
        self._pause_s = min(2 * pause_s, AGAIN_S[1])
        return pause_s

    def worked(self) -> None:
        """Two engines had room."""
        self._pause_s = AGAIN_S[0]
