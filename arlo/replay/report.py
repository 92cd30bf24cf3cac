"""The HTML report: one file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.replay.outcomes import OUTCOMES
from arlo.replay.plots import figures, outcome_color
from arlo.replay.result import ReplayResult
from arlo.replay.table import gaps, rows_of
from arlo.report import page
from arlo.report.numbers import ms, share
from arlo.report.table import facts


def write_report(result: ReplayResult, path: Path, more: Sequence[Any] = ()) -> None:
    """Write the report as one HTML file of about 5 MB (the plotting library is in it), with `more` figures first.

    EnvironmentProblem when plotly is not installed.
    """
    page.write(path, render(result, more))


def render(result: ReplayResult, more: Sequence[Any] = ()) -> str:
    """The whole page."""
    s = result.summary
    parts = [
        _cards(result),
        page.outcomes((name, s.outcomes[name], outcome_color(name)) for name in OUTCOMES),
        page.notes(result.header.get("notes", ())),
        page.warnings(_warnings(result)),
        page.plots([*more, *figures(result)]),
        "<h2>Summary</h2>",
        facts(rows_of(s)),
        _errors(result),
        "<h2>How it was measured</h2>",
        facts(_how(result)),
    ]
    title = f"Replay: {result.header['model']} at {result.header['target']}"
    return page.render(title, parts, what=[_head(result)])


def _head(result: ReplayResult) -> str:
    h, trace = result.header, result.trace
    machine = h["machine"]
    parts = [
        h["started_at"],
        f"{len(trace)} requests over {trace.duration_s:.1f} s",
        h["input"],
        f"{machine['cpu']}, {machine['cores']} cores",
    ]
    return " · ".join(parts)


def _cards(result: ReplayResult) -> str:
    s = result.summary
    shown = [(f"{s.requests:,}", "requests"), (share(s.slo_attainment), f"on time, SLO {s.slo_ms:g} ms")]
    shown.append((f"{s.goodput_rps:,.1f} /s", "goodput"))
    if s.latency is not None:
        shown += [
            (f"{ms(s.latency.mean_ms)} ms", "mean latency"),
            (f"{ms(s.latency.p50_ms)} ms", "p50 latency"),
            (f"{ms(s.latency.p98_ms)} ms", "p98 latency"),
        ]
    if s.padding is not None:
        what = f"padding; {s.padding.share_if_longest:.1%} if all padded to {s.padding.longest}"
        shown.append((f"{s.padding.share:.1%}", what))
    return page.cards(shown)


def _warnings(result: ReplayResult) -> list[str]:
    s = result.summary
    lines = gaps(s)
    if s.sends.late:
        lines.append(
            f"{s.sends.late} requests left more than {s.sends.threshold_ms:g} ms after their instant (at most "
            f"{s.sends.max_delay_ms:.1f} ms): the sender was short of CPU. Their wait is part of the latency shown."
        )
    if s.padding is not None and s.padding.told_by == "request":
        lines.append("The target does not say how many tokens it computed; the width of the requests sent is taken.")
    return lines


def _errors(result: ReplayResult) -> str:
    errors = result.errors()
    if not errors:
        return ""
    return "<h2>Errors</h2>" + facts((f"{e['count']} x {e['code']}", e["message"]) for e in errors[:20])


def _how(result: ReplayResult) -> list[tuple[str, str]]:
    h = result.header
    machine = h["machine"]
    return [
        ("command", h["command"]),
        ("target", f"{h['target']}, model {h['model']}"),
        ("date", h["started_at"]),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in h["versions"].items())),
        ("options", ", ".join(f"{name} {value}" for name, value in h["options"].items())),
        ("latency", "from the instant the trace gives, not from the instant of sending; over all answered requests"),
    ]
