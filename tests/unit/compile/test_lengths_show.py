"""The table and the JSON of a choice of lengths."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from arlo.compile.lengths.curve import assumed, from_points
from arlo.compile.lengths.show import BESIDE, as_dict, rows, sentences, short, table
from arlo.compile.steps.lengths import LengthChoice, choose_lengths
from arlo.traces.traffic import traffic

LINE = from_points([(n, 100.0 * n + 1000) for n in range(16, 129, 16)], "measured on cpu: test", ["a <note>"])


@pytest.fixture(scope="module")
def found() -> LengthChoice:
    return choose_lengths(LINE, traffic("tweets", 128), given=(48, 128))


@pytest.fixture(scope="module")
def guessed() -> LengthChoice:
    return choose_lengths(assumed(512, "no GPU here"), traffic("tweets", 512))


def test_rows_best_sets_first_then_what_to_compare(found: LengthChoice) -> None:
    best = [cells for style, cells in rows(found) if style != BESIDE]
    chosen = found.choice.runtimes
    assert [cells[0] for cells in best] == [f"{n + 1}{' <' * (n + 1 == chosen)}" for n in range(len(found.choice.rows))]
    assert best[0][1:5] == ["128", "13.80", "0.0%", ""]
    assert [cells[0] for style, cells in rows(found) if style == BESIDE] == [
        "2, as named", "2, every 64", f"{chosen}, equal", "any number",
    ]  # fmt: skip


def test_a_terminal_shows_all_of_it(found: LengthChoice, guessed: LengthChoice) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table(found))
    text = captured.get()
    assert "expected," in text
    assert f"{found.choice.runtimes} <" in text
    assert len(text.splitlines()) == len(rows(found)) + 2  # two lines of titles
    with console.capture() as captured:
        console.print(table(guessed))
    assert len(captured.get().splitlines()) == len(rows(guessed)) + 2  # no cell is folded
    assert rows(guessed)[0][1][2] == "100.0%"
    assert sentences(found) == [
        "requests: tweets, 125 tokens stretched to 128; median 37, p98 95, served up to 128 tokens",
        "latency: measured on cpu: test: a dynamic runtime at 8 lengths",
        f"chosen: {found.choice.why}",
    ]


def test_json_has_times_only_where_they_are_times(found: LengthChoice, guessed: LengthChoice) -> None:
    said = json.loads(json.dumps(as_dict(found)))
    assert said["lengths"] == [48, 128]
    assert said["named"]["lengths"] == [48, 128]
    assert said["why"] == "as named"
    assert said["chosen"] == list(found.choice.chosen.lengths)
    assert said["best"][0] == {
        "lengths": [128], "expected_us": 13_800.0, "saving": 0.0, "shares": [1.0], "further_saving": 0.0,
        "padded_share": pytest.approx(found.choice.rows[0].padded_share, abs=1e-6),
    }  # fmt: skip
    assert said["latency"]["points"] == [list(point) for point in LINE.curve.points]
    assert said["notes"] == ["a <note>"]
    relative = as_dict(guessed)
    assert relative["lengths"] == list(guessed.choice.chosen.lengths)
    assert {row["expected_us"] for row in relative["best"]} == {None}
    assert relative["bound"]["expected_us"] is None
    assert relative["best"][1]["saving"] > 0.3


def test_many_lengths_are_shortened() -> None:
    assert short((64, 128)) == "64,128"
    assert short(tuple(range(64, 8193, 64))) == "64,128, ... ,8192"
