"""How a result looks: HTML, terminal, JSON. From hand-made records."""

from __future__ import annotations

import html
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from arlo.replay import LiveProgress, Progress, ReplayResult, print_table, write_report
from arlo.replay.outcomes import OUTCOMES
from arlo.replay.records import SENT, complete
from arlo.replay.report import document
from arlo.replay.result import SCHEMA, machine, versions
from arlo.replay.rows import make_rows
from arlo.replay.summary import summarize
from arlo.report.result import load
from arlo.traces import parse_lengths, poisson


def result(*, answered: bool = True, levels: bool = True, interrupted: bool = False) -> ReplayResult:
    trace = poisson(40, 5, parse_lengths("uniform:2:128"), 5)
    rng = np.random.default_rng(0)
    sent = np.zeros(len(trace), SENT)
    sent["index"] = np.arange(len(trace))
    sent["scheduled_us"] = trace.arrived_at_s * 1e6
    sent["sent_us"] = sent["scheduled_us"] + 100
    sent["done_us"] = sent["sent_us"] + rng.gamma(2, 5000, len(trace)).astype(np.int64)
    sent["level"] = (trace.length > 64) if levels else -1
    sent["computed_tokens"] = np.where(trace.length > 64, 128, 64) if levels else -1
    for column in ("queue_us", "execute_us", "total_us"):
        sent[column] = 900 if levels else -1
    sent["demoted"] = 1 if levels else -1
    if not answered:
        sent["code"], sent["error"] = 14, 1
    messages = {} if answered else {1: 'no <b>instance</b> & "nobody" there'}
    records = complete(sent, trace.length, trace.length, messages, 20_000)
    summary = summarize(
        records,
        planned=len(trace) + 3,
        longest=512,
        slo_ms=20,
        late_ms=1,
        interrupted=interrupted,
        undrained=interrupted,
    )
    header: dict[str, Any] = {
        "target": "127.0.0.1:1",
        "model": "<m>",
        "input": "random token ids",
        "started_at": "2024-08-12T10:00:00+00:00",
        "command": "arlo replay poisson --target '127.0.0.1:1' <x>",
        "machine": machine(),
        "versions": versions(),
        "options": {"slo_ms": 20},
    }
    return ReplayResult(
        summary=summary, records=records, messages=messages, responses={}, trace=trace, rows=make_rows(trace, None),
        header=header,
    )  # fmt: skip


def read(path: Path) -> str:
    """The page's text, without scripts."""
    return html.unescape(re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", path.read_text(), flags=re.S))


def test_the_report_says_what_was_measured_and_where(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    write_report(result(), tmp_path / "r.html")
    text = read(tmp_path / "r.html")
    for expected in (
        "<m> at 127.0.0.1:1",
        "2024-08-12T10:00:00",
        "arlo replay poisson",
        versions()["numpy"],
        "SLO 20 ms",
    ):
        assert expected in text
    found = {each["title"]: each for each in document(result())["charts"]}
    assert list(found) == [
        "Latency of all answered requests",
        "Outcomes",
        "Load over time",
        "In the system over time",
        "Requests per level",
        "Padding saved: tokens computed, by request length",
    ]
    tokens = [sum(each["y"]) for each in found["Padding saved: tokens computed, by request length"]["lines"]]
    assert sum(tokens) == pytest.approx(512 * len(result().records) / 1000, rel=1e-3)


@pytest.mark.parametrize("options", [{"answered": False}, {"levels": False}, {"interrupted": True}])
def test_the_report_holds_for_results_with_gaps(tmp_path: Path, options: dict[str, bool]) -> None:
    write_report(result(**options), tmp_path / "r.json")
    text = json.dumps(load(tmp_path / "r.json")[0])
    if "answered" in options:
        assert 'no <b>instance</b> & \\"nobody\\" there' in text
    if "levels" in options:
        assert "does not say how many tokens" in text
    if "interrupted" in options:
        assert "3 requests of the trace were not sent" in text


def shown(value: ReplayResult) -> str:
    out = StringIO()
    print_table(value, Console(file=out, width=120))
    return out.getvalue()


def test_the_table_has_what_people_ask_for() -> None:
    text = shown(result())
    for label in (
        *OUTCOMES,
        "p50",
        "p98",
        "SLO 20 ms",
        "goodput",
        "level 0 (max 64)",
        "demoted",
        "padding",
        "late sends",
    ):
        assert label in text
    assert "Interrupted" not in text
    assert "3 requests of the trace were not sent" in shown(result(interrupted=True))
    assert 'x UNAVAILABLE: no <b>instance</b> & "nobody" there' in shown(result(answered=False))


def test_the_json_form_is_versioned_and_plain(tmp_path: Path) -> None:
    value = result(answered=False)
    value.save(tmp_path / "out")
    raw = json.loads((tmp_path / "out" / "result.json").read_text())
    assert raw == json.loads(json.dumps(value.to_json()))
    assert raw["schema"] == SCHEMA == "arlo.replay/2"
    assert raw["summary"]["outcomes"]["failed"] == len(value.records)
    assert raw["errors"][0] | {"message": ""} == {"code": "UNAVAILABLE", "message": "", "count": len(value.records)}
    assert np.load(tmp_path / "out" / "records.npy").dtype == value.records.dtype
    assert (tmp_path / "out" / "trace.csv").read_text().startswith("arrived_at_s,length,text_id\n")


def state(t_s: float, **changes: Any) -> Progress:
    outcomes = dict.fromkeys(OUTCOMES, 0) | {"on_time": 7, "failed": 2}
    fields: dict[str, Any] = {
        "t_s": t_s, "total": 100, "sent": 12, "done": 9, "in_flight": 3, "outcomes": outcomes, "answered_per_s": 14.0,
        "p50_ms": 5.25, "p98_ms": 9.0, "late_sends": 1,
    }  # fmt: skip
    return Progress(**(fields | changes))


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    out = StringIO()
    with LiveProgress(Console(file=out, width=200)) as live:
        for tenth in range(0, 120, 5):
            live(state(tenth / 10))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    for expected in ("12/100 sent", "in flight 3", "p50 5.2 ms", "on_time 7", "failed 2", "late sends 1"):
        assert expected in lines[0]


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = StringIO()
    with LiveProgress(Console(file=out, width=200, force_terminal=True)) as live:
        live(state(1.0, p50_ms=None, p98_ms=None))
        live(state(2.0))
    assert "in flight 3" in out.getvalue()
