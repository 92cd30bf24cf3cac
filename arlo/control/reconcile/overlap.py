"""Decides whether to try two engines on a worker at a time. No clock, no I/O.

A worker's memory limit is not computed but tried. A load that fails for memory means no for now, not for good: the
cause may have been a leak, another program, or this one pair of runtimes.
"""

from __future__ import annotations

import re

AGAIN_S = (600.0, 7200.0)  # first and longest wait before it is tried again

# Wordings of ONNX Runtime, CUDA, TensorRT, PyTorch, the C library, Triton and our emulated engine. The word "memory"
# alone also occurs in many errors that another order of loading would not fix.
_OUT_OF_MEMORY = re.compile(
    r"out[ _-]?of[ _-]?(\w+[ _])?memory|memory exhausted|(insufficient|not enough|no) (\w+ )?memory"
    r"|(cannot|can't|could not|failed to|unable to) allocate|bad[_ ]?alloc|alloc(ation)?[ _]failed|memory ?allocation"
    r"|available memory of \d+ is smaller|\boom\b",
    re.IGNORECASE,
)


def is_out_of_memory(error: str) -> bool:
    """Whether a load failed for lack of memory."""
    return _OUT_OF_MEMORY.search(error) is not None


class Overlap:
    """`wanted`: control.make_before_break. After a failure for memory it pauses, longer each time."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._pause_s = AGAIN_S[0]
        self._again_s = 0.0

    def allowed(self, now_s: float) -> bool:
        """Whether to load a runtime next to the one that serves."""
        return self._wanted and now_s >= self._again_s

    def no_room(self, now_s: float) -> float:
        """Record a failure for memory. Returns the seconds until the next try."""
        pause_s = self._pause_s
        self._again_s = now_s + pause_s
        self._pause_s = min(2 * pause_s, AGAIN_S[1])
        return pause_s

    def worked(self) -> None:
        """Record that two engines fitted."""
        self._pause_s = AGAIN_S[0]
