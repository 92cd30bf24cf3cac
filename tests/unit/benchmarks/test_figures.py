"""The paper's evaluation: every number has a row, the document is that of the results, and a short run works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks.figures import cells, document, plots, report, runner
from benchmarks.figures.compare import Part
from benchmarks.figures.experiment import Outcome, Row, Target, plain, reduction, verdict
from benchmarks.figures.registry import experiments

# Every value that the paper's evaluation states, by the experiment that must set ours beside it.
STATED = {
    "fig06": [70.3, 23.7, 24.9, 66.7, 29.2, 39.3, 89.4, 25.9, 40.1],
    "fig10": [70.3, 24.1, 31.3, 98.1, 30.7, 41.7, 98.4, 26.0, 29.3],
    "fig08": [5.49, 6.38, 6.80, 8.13, 330.41, 397.10, 404.12, 430.54],
    "fig11": [2.5, 14.16, 84.04, 14.45, 81.74],
    "tab4": [95.6, 92.5, 58.7, 55.8],
    "tab2": [0.156, 0.623, 2.612],
    "fig09": [0.737, 150_000],
    "cluster": [4.3, 2.6, 1.0],
    "facts": [4.86, 4.22, 5.25, 4.28, 1.22, 3.56, 80.6, 21, 72, 58],
}


def target(paper: float | None, aim: str, unit: str = "ms") -> dict[str, Any]:
    made = plain(Target(quantity="q", paper=paper, unit=unit, where="5", aim=aim))  # type: ignore[arg-type]
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize("name", STATED)
def test_every_number_of_the_paper_has_a_row(name: str) -> None:
    papers = [one.paper for one in experiments()[name].PAPER.values()]
    for value in STATED[name]:
        assert papers.count(value) >= STATED[name].count(value), f"{name} lacks {value}"


@pytest.mark.parametrize(
    ("paper", "aim", "unit", "ours", "expected"),
    [
        (70.3, "at_least", "% less", 71.0, "reached"),
        (70.3, "at_least", "% less", 52.6, "short"),
        (70.3, "at_least", "% less", 95.0, "beyond"),
        (0.0, "at_least", "% less", 95.0, "reached"),
        (5.49, "at_most", "GPUs", 5.40, "reached"),
        (5.49, "at_most", "GPUs", 5.60, "short"),
        (14.0, "near", "ms", 15.0, "reached"),
        (14.0, "near", "ms", 16.0, "short"),
        (None, "fact", "ms", 1.0, "fact"),
        (4.3, "at_most", "%", None, "missing"),
    ],
)
def test_verdict(paper: float | None, aim: str, unit: str, ours: float | None, expected: str) -> None:
    assert verdict(target(paper, aim, unit), {"ours": ours}) == expected


def test_short_of_the_paper_but_not_as_shipped() -> None:
    assert verdict(target(14.16, "at_most"), {"ours": 300.0, "better": 14.0}) == "shipped"
    assert verdict(target(14.16, "at_most"), {"ours": 300.0, "better": 15.0}) == "short"


def test_numbers_as_they_stand_in_tables() -> None:
    assert document.number(52.64, "% less") == "-52.6 %"
    assert document.number(-15.2, "% less") == "+15.2 %"
    assert document.number(0.0531, "ms") == "0.0531 ms"
    assert document.number(61037.4, "ms") == "61,037 ms"
    assert document.number(11_864_200.0, "req/s") == "11.86 M req/s"
    assert document.number(5.09e-5, "s") == "0.0509 ms"
    assert document.number(None, "ms") == "-"
    assert reduction(25.0, 100.0) == 75.0


def test_plain_values_are_json_and_keep_what_is_known() -> None:
    found = plain(Row(target="a", ours=np.float64(1.23456789), note="", low=float("inf")))
    assert found["ours"] == 1.23457
    assert found["low"] is None
    assert json.loads(json.dumps(found)) == found


def test_parts_of_a_stream_are_shares_of_it() -> None:
    """A balancer that deals in turns gives each worker every n-th request, across the chunks too."""
    cluster = cells.Cluster(model="bert-base", arrivals="twitter-stable", rate=500, workers=4, duration_s=12)
    whole = np.concatenate([arrived for arrived, _ in cluster.workload().chunks()])
    turns = np.concatenate([a for a, _ in Part(whole=cluster.workload(), of=4, random=False).chunks()])
    assert (turns == whole[::4]).all()
    dealt = np.concatenate([a for a, _ in Part(whole=cluster.workload(), of=4, random=True).chunks()])
    assert abs(len(dealt) - len(whole) / 4) < 5 * np.sqrt(len(whole) * 3 / 16)


def test_the_bound_without_queueing() -> None:
    """Mean ideal latency lies between the shortest and the longest runtime's, and fewer runtimes mean more padding."""
    cluster = cells.Cluster(model="bert-base", arrivals="twitter-stable", rate=500, workers=4, duration_s=12)
    eight, dynamic = cluster.ideal_ms()
    two, _ = cluster.ideal_ms((256, 512))
    assert 1.15 < eight < two < 4.86
    assert eight < dynamic
    assert sum(cluster.demand()) == pytest.approx(1.0)


class Fake:
    """An experiment that counts how often it ran."""

    NAME, TITLE, TEXT = "fake", "A fake", "For the runner."
    PAPER: ClassVar = {"a": Target(quantity="q", paper=1.0, unit="ms", where="5", aim="at_most")}
    COLLECTED: tuple[str, ...] = ()
    __file__ = __file__
    runs = 0
    rows = (Row(target="a", ours=0.5, note=""),)

    def run(self, context: cells.Context) -> Outcome:
        self.runs += 1
        return Outcome(rows=self.rows)


def perform(fake: Fake, context: cells.Context, store: runner.Store) -> None:
    runner.perform(fake, context, store, command="a command", stamp=runner.fingerprint(fake, short=False))


def test_a_result_is_current_until_its_inputs_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected = tmp_path / "collected.json"
    collected.write_text("1")
    fake, store = Fake(), runner.Store(short=False, folder=tmp_path / "results")
    fake.COLLECTED = (str(collected),)
    assert not store.is_current(fake)
    with cells.Context() as context:
        perform(fake, context, store)
        assert store.is_current(fake)
        kept = store.kept("fake")
        assert kept is not None
        assert kept["rows"][0]["ours"] == 0.5
        collected.write_text("2")
        assert not store.is_current(fake)
        perform(fake, context, store)
        assert store.is_current(fake)
        # A clone has the results but did not make them.
        next(store.folder.glob("*.stamp")).unlink()
        assert not store.is_current(fake)
        fake.rows = ()
        with pytest.raises(RuntimeError, match=r"no row for \['a'\]"):
            perform(fake, context, store)


def test_the_results_are_of_the_experiments_as_they_are() -> None:
    kept = runner.Store(short=False).all_kept()
    assert set(kept) == set(experiments()), "run `make figures`"
    for name, experiment in experiments().items():
        assert kept[name]["targets"] == plain(experiment.PAPER), f"run `make figures FIGURES_ARGS={name}`"
        assert not kept[name]["short"]
        for row in kept[name]["rows"]:
            found = verdict(kept[name]["targets"][row["target"]], row)
            assert row["note"] or found in {"reached", "fact"}, f"{name}: {row['target']} is {found} without a reason"


def test_the_documents_are_those_of_the_results() -> None:
    kept = runner.Store(short=False).all_kept()
    for page, text in document.pages(list(kept.values())).items():
        assert page.read_text() == text, "run `make figures`, or `python -m benchmarks.figures --report-only`"


@pytest.mark.long
def test_a_short_run_of_everything(tmp_path: Path) -> None:
    """As `make figures SHORT=1`: every experiment runs, and the report has every row and loads nothing."""
    page = tmp_path / "report.html"
    command = [sys.executable, "-m", "benchmarks.figures", "--short", "--jobs", "1"]
    command += ["--results", str(tmp_path), "--out", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=runner.ROOT, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = runner.Store(short=True, folder=tmp_path).all_kept()
    assert set(kept) == set(experiments())
    text = page.read_text()
    head, body = text.split("</head>")
    assert "A short run" in body
    assert not re.search(r"""<(script|link|img)[^>]+(src|href)=["']?http""", text)
    assert "default-src 'none'" in head
    for result in kept.values():
        for one in result["targets"].values():
            assert f"<td>{one['quantity']}<br>".replace("'", "&#x27;") in body
        assert body.count('class="plotly-graph-div"') >= sum(len(r["plots"]) for r in kept.values())
    again = subprocess.run(command, capture_output=True, text=True, check=False, cwd=runner.ROOT, timeout=240)
    assert again.stderr.count("up to date") == len(kept)


def test_unknown_experiments_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.figures", "fig99"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=runner.ROOT)
    assert done.returncode == 2
    assert "no experiment 'fig99': there are fig06" in done.stderr


def test_schemes_keep_their_colour() -> None:
    kept = runner.Store(short=False).all_kept()
    for result in kept.values():
        for plot in result["plots"]:
            drawn = plots.draw(plot)
            for trace, series in zip(drawn.data, plot["series"], strict=True):
                if series["scheme"] and plot["kind"] != "bars":
                    assert trace.line.color == plots.COLORS[series["scheme"]], plot["title"]


def test_a_report_says_what_is_missing() -> None:
    result = {
        **plain(Outcome(rows=(Row(target="a", ours=None, note="Not <measured> yet."),))),
        "name": "x", "title": "X", "text": "T", "short": False, "wall_s": 1.0, "simulated_requests": 0,
        "command": "c", "date": "d", "machine": {"cpu": "m", "cores": 2}, "targets": {"a": target(4.3, "at_most")},
    }  # fmt: skip
    page = report.render([result])
    assert "Not &lt;measured&gt; yet." in page
    assert "not measured" in page
    assert SimpleNamespace(**result).name in page
