"""Live progress: the load generator's reports while it runs, and their display on a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from rich.text import Text

from arlo.replay.outcomes import OUTCOMES, Outcome, outcome_of_error
from arlo.report.progress import LiveBar

PLAIN_EVERY_S = 5.0  # without a terminal: one line this often


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a replay. The percentiles are of the answers since the last one, None where there were none."""

    t_s: float
    total: int
    sent: int
    done: int
    in_flight: int
    outcomes: dict[Outcome, int]
    answered_per_s: float
    p50_ms: float | None
    p98_ms: float | None
    late_sends: int


ProgressHook: TypeAlias = Callable[[Progress], None]


def of_line(line: dict[str, Any]) -> Progress:
    """The state that a line of arlo-loadgen gives (src/loadgen/report.h)."""
    codes = {int(code): int(count) for code, count in line["codes"].items()}
    outcomes: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
    outcomes["on_time"] = line["on_time"]
    outcomes["late"] = codes.pop(0, 0) - line["on_time"]
    for code, count in codes.items():
        outcomes[outcome_of_error(code, "")] += count
    done = sum(outcomes.values())
    answered = float(line["recent"]["answered_per_s"])
    return Progress(
        t_s=line["t_s"],
        total=line["total"],
        sent=line["sent"],
        done=done,
        in_flight=line["sent"] - done,
        outcomes=outcomes,
        answered_per_s=answered,
        p50_ms=line["recent"]["p50_us"] / 1000 if answered > 0 else None,
        p98_ms=line["recent"]["p98_us"] / 1000 if answered > 0 else None,
        late_sends=line["late_sends"],
    )


_STYLE: dict[Outcome, str] = {
    "on_time": "green",
    "late": "yellow",
    "rejected": "magenta",
    "expired": "magenta",
    "cancelled": "blue",
    "failed": "bold red",
}


def describe(p: Progress) -> Text:
    """One line: counts, rate, percentiles, outcomes."""
    line = Text(f"{p.sent}/{p.total} sent  {p.answered_per_s:.0f} req/s  in flight {p.in_flight}")
    if p.p50_ms is not None and p.p98_ms is not None:
        line.append(f"  p50 {p.p50_ms:.1f} ms  p98 {p.p98_ms:.1f} ms")
    for outcome in OUTCOMES:
        if p.outcomes[outcome]:
            line.append(f"  {outcome} {p.outcomes[outcome]}", style=_STYLE[outcome])
    if p.late_sends:
        line.append(f"  late sends {p.late_sends}", style="yellow")
    return line


class LiveProgress(LiveBar):
    """A bar that follows a replay; without a terminal, a line now and then. A context manager and a ProgressHook."""

    _printed_s = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show this state."""
        if self.live:
            self.show(progress.done, progress.total, describe(progress))
        elif progress.t_s - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = progress.t_s
            self.console.print(f"{progress.t_s:6.1f} s  {describe(progress).plain}", highlight=False, soft_wrap=True)
