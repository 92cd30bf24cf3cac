"""The result on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from arlo.replay.outcomes import OUTCOMES, Outcome
from arlo.replay.result import ReplayResult
from arlo.replay.summary import Summary


def rows_of(summary: Summary) -> list[tuple[str, str]]:
    """The rows to show, label and value, in order; the report shows the same."""
    s = summary
    of = "" if s.requests == s.planned else f" of {s.planned} planned"
    rows = [
        ("requests", f"{s.requests}{of} in {s.duration_s:.1f} s ({s.arrival_rps:.1f} per second)"),
        ("outcomes", f"{_outcomes(s, OUTCOMES[:3])},\n{_outcomes(s, OUTCOMES[3:])}"),
    ]
    if s.latency is not None:
        at = s.latency
        values = (("mean", at.mean_ms), ("p50", at.p50_ms), ("p98", at.p98_ms), ("p99", at.p99_ms), ("max", at.max_ms))
        rows.append(("latency (ms)", ", ".join(f"{name} {ms:.2f}" for name, ms in values)))
    rows.append((f"SLO {s.slo_ms:g} ms", f"{s.slo_attainment:.2%} of all arrivals on time"))
    rows.append(("goodput", f"{s.goodput_rps:.1f} on-time answers per second"))
    if s.server.queue_ms is not None and s.server.execute_ms is not None:
        split = f"mean queue {s.server.queue_ms:.2f}, execution {s.server.execute_ms:.2f}"
        rows.append(
            ("server (ms)", split + (f", total {s.server.total_ms:.2f}" if s.server.total_ms is not None else ""))
        )
    for level in s.levels:
        name = f"level {level.level}" + (f" (max {level.max_length})" if level.max_length is not None else "")
        rows.append((name, f"{level.requests} requests, {level.demoted} of them demoted to it"))
    if s.padding is not None:
        p = s.padding
        rows.append(
            ("padding", f"{p.share:.1%} of computed tokens; {p.share_if_longest:.1%} if all padded to {p.longest}")
        )
        rows.append(
            ("computed tokens", f"{p.computed_tokens}, {p.computed_saved:.1%} fewer than padding to {p.longest}")
        )
    rows.append(
        (
            "late sends",
            f"{s.sends.late} by more than {s.sends.threshold_ms:g} ms"
            f" (p98 {s.sends.p98_delay_ms:.2f} ms, max {s.sends.max_delay_ms:.2f} ms)",
        )
    )
    rows.append(("sender", f"{s.sends.cpu_us_per_request:.0f} us of CPU per request"))
    return rows


def gaps(summary: Summary) -> list[str]:
    """Sentences on requests that were not sent or not awaited; the report shows the same."""
    lines = []
    if summary.interrupted:
        lines.append(f"Interrupted: {summary.planned - summary.requests} requests of the trace were not sent.")
    if summary.undrained:
        lines.append("Some requests were cancelled because their answers did not come in time.")
    return lines


def _outcomes(s: Summary, names: Sequence[Outcome]) -> str:
    return ", ".join(f"{name} {s.outcomes[name]}" for name in names)


def print_table(result: ReplayResult, console: Console | None = None) -> None:
    """Print the summary, and the distinct errors if there were any."""
    console = console if console is not None else Console()
    s = result.summary
    table = Table(
        title=f"{result.header['model']} at {result.header['target']}",
        box=box.SIMPLE,
        show_header=False,
        title_justify="left",
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows_of(s):
        table.add_row(label, value, style=_style(label, s))
    console.print(table)
    for line in gaps(s):
        console.print(line, style="yellow")
    for error in result.errors()[:5]:
        text = f"{error['count']} x {error['code']}: {error['message']}"
        console.print(text, style="red", markup=False, highlight=False)


def _style(label: str, s: Summary) -> str | None:
    if label == "outcomes" and s.outcomes["failed"]:
        return "red"
    if label == "late sends" and s.sends.late:
        return "yellow"
    return None
