"""The vocabulary shared by placement, replacement and scaling."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Planning's view of one worker."""

    id: str
    usable: bool = True  # False: gone, failed or hanging; it cannot carry an instance now
    loaded: tuple[str, ...] = ()  # runtimes in its memory
    serving: str | None = None  # the runtime that the gateway sends to
    busy: float = 0.0  # share of the last window with a request in flight, 0 to 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeView:
    """Planning's view of one runtime."""

    name: str
    max_length: int
    capacity: int  # M: requests within the SLO
