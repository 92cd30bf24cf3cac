"""What a build tells while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

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
    note: str = ""  # the result, for people
    warning: str = ""  # what people should know or do


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
            ended(entry.cached, note(entry), warn(entry))
        return entry

    @contextlib.contextmanager
    def timed(self, step: str, title: str) -> Iterator[Callable[[bool, str, str], None]]:
        """Report begin and end around a block, which may say how it ended."""
        self.began(step, title)
        start_s = monotonic_s()
        how = (False, "", "")

        def ended(cached: bool, note: str, warning: str) -> None:
            nonlocal how
            how = (cached, note, warning)

        yield ended
        cached, note, warning = how
        self.ended(step, title, seconds=monotonic_s() - start_s, cached=cached, note=note, warning=warning)

    def began(self, step: str, title: str) -> None:
        """A step begins; others may be under way."""
        self._report(Progress(step=step, title=title, number=self._number, total=self.total))

    def ended(self, step: str, title: str, *, seconds: float, cached: bool, note: str = "", warning: str = "") -> None:
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
                note=note,
                warning=warning,
            )
        )
