"""What an attack is told, and the list of all attacks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from tests.fakes.attacks.offender import Notes, Offender

LINGER_S = 1.0  # how long an attack that is through waits for what the other side makes of it


@dataclasses.dataclass
class Hit:
    """`small` and `wide`: requests (ModelInferRequest) that are good; the answer to the wide one is of 256 KB or more.

    An attack goes round and round until `seconds` have passed, at least once; `scale` makes a round smaller.
    """

    address: tuple[str, int]
    small: bytes
    wide: bytes
    seconds: float
    scale: float
    notes: Notes = dataclasses.field(default_factory=Notes)
    _began_s: float = dataclasses.field(default_factory=time.monotonic)

    def open(self, **how: Any) -> Offender:
        # Where the other side takes nothing, a round may last as long again.
        return Offender(self.address, self.notes, self._began_s + 2 * self.seconds + 1, **how)

    def count(self, count: int) -> int:
        """So many, at this scale."""
        return max(1, round(count * self.scale))

    def left_s(self) -> float:
        return self._began_s + self.seconds - time.monotonic()

    def goes_on(self) -> bool:
        return self.left_s() > 0


@dataclasses.dataclass(frozen=True)
class Attack:
    """`refused`: it must be told no, by an error of its calls or the end of its connections.

    `descriptors`: how many the other side has for it, where that matters. `control`: what asks the same work of the
    workers and is no attack; what others see of that is nobody's fault.
    """

    run: Callable[[Hit], None]
    refused: bool
    descriptors: int | None
    control: str | None

    @property
    def what(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]


ATTACKS: dict[str, Attack] = {}


def attack(
    *, refused: bool = False, descriptors: int | None = None, control: Callable[[Hit], None] | None = None
) -> Callable[[Callable[[Hit], None]], Callable[[Hit], None]]:
    """Puts a function on the list by its name."""

    def put(run: Callable[[Hit], None]) -> Callable[[Hit], None]:
        ATTACKS[run.__name__] = Attack(run, refused, descriptors, control.__name__ if control else None)
        return run

    return put


def was_refused(report: dict[str, Any]) -> bool:
    """By an attack's report: some call or connection was ended for what it did."""
    ended = any(how != "still open" for how in report["ends"])
    return ended or any(how != "grpc-status 0" for how in report["answers"])
