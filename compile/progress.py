"""Progress reports of a running build."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from arlo.clock import monotonic_s
from arlo.compile.cache import Entry


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A step began, or ended when `done`."""

    step: str
    title: str  # what it works on: the model's name, or `length 128`
    number: int  # steps finished before this one
    total: int
    done: bool = False
    cached: bool = False
    seconds: float = 0.0
    took: float = 0.0  # seconds, when it was made where it is cached; 0: not known
    note: str = ""  # the result, for people
    warning: str = ""  # what people should know or do


class TimeLeft:
    """Estimates the remaining time of steps: each takes as long as the known steps of its kind, on average."""

    def __init__(self, steps: Iterable[str]) -> None:
        self._open = Counter(steps)
        self._seconds: dict[str, list[float]] = {}

    def done(self, step: str, seconds: float) -> None:
        """Record a finished step and its seconds, spent now or before; 0: not known."""
        self._open[step] -= 1
        if seconds > 0:
            self._seconds.setdefault(step, []).append(seconds)

    @property
    def seconds(self) -> float:
        """Estimated seconds left for the steps of known kinds."""
        return sum(self._open[step] * statistics.fmean(each) for step, each in self._seconds.items())

    def __str__(self) -> str:
        """The estimate for people; `over` if steps of unknown kinds remain."""
        more = any(count and step not in self._seconds for step, count in self._open.items())
        return f"{'over' if more else 'about'} {self.seconds:.0f} s left"


class Reporter:
    """Numbers the steps and passes them on. Used by one thread."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report
        self._number = 0
        self.total = 0

    def run(
        self,
        step: str,
        title: str,
        work: Callable[[], Entry],
        note: Callable[[Entry], str] = lambda _: "",
        warn: Callable[[Entry], str] = lambda _: "",
    ) -> Entry:
        """Run a step between its two reports."""
        with self.timed(step, title) as ended:
            entry = work()
            ended(entry.cached, note(entry), warn(entry), took=entry.seconds)
        return entry

    @contextlib.contextmanager
    def timed(self, step: str, title: str) -> Iterator[Callable[..., None]]:
        """Report begin and end around a block, which may call the function that it gets with fields of `Progress`."""
        self.began(step, title)
        start_s = monotonic_s()
        how: dict[str, Any] = {}

        def ended(cached: bool, note: str = "", warning: str = "", *, took: float = 0.0) -> None:
            how.update(cached=cached, note=note, warning=warning, took=took)

        yield ended
        self.ended(step, title, seconds=monotonic_s() - start_s, **how)

    def began(self, step: str, title: str) -> None:
        """A step begins; others may be under way."""
        self._report(Progress(step=step, title=title, number=self._number, total=self.total))

    def ended(
        self,
        step: str,
        title: str,
        *,
        seconds: float,
        cached: bool = False,
        note: str = "",
        warning: str = "",
        took: float = 0.0,
    ) -> None:
        """A step that began is over."""
        self._number += 1
        self._report(
            Progress(
                step=step,
                title=title,
                number=self._number,
                total=self.total,
                done=True,
                cached=cached,
                seconds=seconds,
                took=took or (0.0 if cached else seconds),
                note=note,
                warning=warning,
            )
        )
