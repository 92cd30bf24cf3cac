"""A replay as a result file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.replay.outcomes import OUTCOMES
from arlo.replay.records import Records, latency_us
from arlo.replay.result import ReplayResult
from arlo.replay.summary import ANSWERED, Summary, computed_tokens
from arlo.replay.table import gaps, rows_of
from arlo.report.figure import BLUE, GREEN, GREY, ORANGE, PALE
from arlo.report.numbers import ms, share
from arlo.report.result import Document, chart, line, report, save, table

_CDF_POINTS = 1500  # more would only make the file larger
_BINS, _SHORTEST_BIN_S = 120, 0.5


def write_report(result: ReplayResult, path: Path, more: Sequence[Document] = ()) -> None:
    """Write a page (.html), or a file for `arlo report` (.json), with `more` charts first."""
    save(path, [document(result, more)])


def document(result: ReplayResult, more: Sequence[Document] = ()) -> Document:
    """The document of a replay's results."""
    s, h, machine = result.summary, result.header, result.header["machine"]
    records = result.records
    answered = records[np.isin(records["outcome"], ANSWERED)]
    head = [h["started_at"], f"{len(result.trace)} requests over {result.trace.duration_s:.1f} s", h["input"]]
    head += [f"{machine['cpu']}, {machine['cores']} cores"]
    how = [
        ("command", h["command"]),
        ("target", f"{h['target']}, model {h['model']}"),
        ("date", h["started_at"]),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in h["versions"].items())),
        ("options", ", ".join(f"{name} {value}" for name, value in h["options"].items())),
        ("latency", "from the instant the trace gives, not from the instant of sending; over all answered requests"),
    ]
    errors = [(f"{each['count']} x {each['code']}", each["message"]) for each in result.errors()[:20]]
    return report(
        "replay",
        f"Replay: {h['model']} at {h['target']}",
        label=f"{h['model']} at {h['target']}",
        what=[" · ".join(head)],
        cards=_cards(s),
        notes=h.get("notes", ()),
        warnings=_warnings(s),
        charts=[
            *more,
            _cdf(answered, s),
            _outcomes(s),
            *_over_time(records, answered, s),
            _levels(s) if len(s.levels) != 1 else {},
            _padding(answered, s),
        ],
        tables=[
            table("Summary", (), rows_of(s)),
            table("Errors", (), errors) if errors else {},
            table("How it was measured", (), how),
        ],
    )


def _cards(s: Summary) -> list[tuple[str, str]]:
    shown = [(f"{s.requests:,}", "requests"), (share(s.slo_attainment), f"on time, SLO {s.slo_ms:g} ms")]
    shown.append((f"{s.goodput_rps:,.1f} /s", "goodput"))
    if s.latency is not None:
        values = (("mean", s.latency.mean_ms), ("p50", s.latency.p50_ms), ("p98", s.latency.p98_ms))
        shown += [(f"{ms(value)} ms", f"{name} latency") for name, value in values]
    if s.padding is not None:
        what = f"padding; {s.padding.share_if_longest:.1%} if all padded to {s.padding.longest}"
        shown.append((f"{s.padding.share:.1%}", what))
    return shown


def _warnings(s: Summary) -> list[str]:
    lines = gaps(s)
    if s.sends.late:
        lines.append(
            f"{s.sends.late} requests left more than {s.sends.threshold_ms:g} ms after their instant (at most "
            f"{s.sends.max_delay_ms:.1f} ms): the sender was short of CPU. Their wait is part of the latency shown."
        )
    if s.padding is not None and s.padding.told_by == "request":
        lines.append("The target does not say how many tokens it computed; the width of the requests sent is taken.")
    return lines


def _cdf(answered: Records, s: Summary) -> Document:
    shown = [("latency", latency_us(answered), BLUE)]
    shown.append(("time in the server", answered["total_us"][answered["total_us"] >= 0], GREY))
    lines = []
    for name, us, color in shown:
        if len(us):
            percent = np.linspace(0, 100, min(_CDF_POINTS, max(len(us), 2)))
            lines.append(line(name, np.percentile(us, percent) / 1000, percent, color=color))
    return chart(
        "Latency of all answered requests",
        "latency (ms), from the scheduled instant",
        "share of requests (%)",
        lines,
        x_log=True,
        y_range=[0, 101],
        marks=[{"x": s.slo_ms, "text": f"SLO {s.slo_ms:g} ms"}],
        empty="nothing was answered",
    )


def _outcomes(s: Summary) -> Document:
    shares = [100 * s.outcomes[name] / max(s.requests, 1) for name in OUTCOMES]
    counts = [f"{s.outcomes[name]:,}" for name in OUTCOMES]
    return chart("Outcomes", "", "share of the requests (%)", [line("requests", OUTCOMES, shares, "bars", text=counts)])


def _over_time(records: Records, answered: Records, s: Summary) -> list[Document]:
    if len(records) == 0 or s.duration_s <= 0:
        return []
    bins = int(np.clip(s.duration_s / _SHORTEST_BIN_S, 1, _BINS))
    edges, width_s = np.linspace(0, s.duration_s, bins + 1), s.duration_s / bins
    middle = (edges[:-1] + edges[1:]) / 2
    came, went = (
        np.histogram(part[column] / 1e6, edges)[0] / width_s
        for column, part in (("scheduled_us", records), ("done_us", answered))
    )
    moments = (edges[:-1, None] + np.arange(1, 11) / 10 * width_s) * 1e6
    lines = [line("arrivals", middle, came, color=BLUE), line("answers", middle, went, color=GREEN)]
    most = line("most at once", middle, _in_flight(records, moments).max(axis=1), color=ORANGE)
    return [
        chart("Load over time", "time (s)", "requests per second", lines),
        chart("In the system over time", "time (s)", "requests waiting or running", [most]),
    ]


def _in_flight(records: Records, at_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many requests had been scheduled but not finished at each instant; the shape of `at_us`."""
    came = np.searchsorted(np.sort(records["scheduled_us"]), at_us, side="right")
    went = np.searchsorted(np.sort(records["done_us"]), at_us, side="right")
    return np.asarray(came - went, np.int64)


def _levels(s: Summary) -> Document:
    names = [f"{v.level} ({v.max_length})" if v.max_length is not None else str(v.level) for v in s.levels]
    ideal, demoted = [v.requests - v.demoted for v in s.levels], [v.demoted for v in s.levels]
    bars = [
        line("at their ideal level", names, ideal, "bars", color=BLUE),
        line("demoted from a shorter one", names, demoted, "bars", color=ORANGE),
    ]
    title, empty = "Requests per level", "the target does not say at which level a request ran"
    axes = ("level (its max length in tokens)", "answered requests")
    return chart(title, *axes, bars if names else [], stacked=True, empty=empty)


def _padding(answered: Records, s: Summary) -> Document:
    title = "Padding saved: tokens computed, by request length"
    axes = ("length of the requests (tokens)", "tokens (thousands)")
    if s.padding is None:
        return chart(title, *axes, [], empty="nothing was answered")
    longest = s.padding.longest
    edges = np.arange(0, int(answered["length"].max()) + max(longest // 16, 1), max(longest // 16, 1))
    names = [f"{a + 1}-{b}" for a, b in itertools.pairwise(edges)]
    where = np.clip((answered["length"] - 1) // max(longest // 16, 1), 0, len(names) - 1)
    tokens, computed, if_longest = (
        np.bincount(where, weights, len(names)) / 1000
        for weights in (answered["length"], computed_tokens(answered), np.full(len(answered), longest))
    )
    bars = [
        line("tokens of the requests", names, tokens, "bars", color=GREEN),
        line("padding", names, computed - tokens, "bars", color=ORANGE),
        line(f"saved against padding all to {longest}", names, if_longest - computed, "bars", color=PALE),
    ]
    return chart(title, *axes, bars, stacked=True)
