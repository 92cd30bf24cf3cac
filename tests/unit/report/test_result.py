"""Result files and their pages: one, and several over each other."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from arlo.cli import main
from arlo.errors import ConfigError
from arlo.report.result import SCHEMA, chart, line, load, merged, report, save, table


def result(label: str, values: tuple[float, ...] = (1, 2, float("nan"), 8), *, layers: int = 2) -> dict[str, Any]:
    return report(
        "replay",
        f"Replay: {label}",
        label=label,
        what=["of <today>"],
        cards=[(f"{len(values)}", "requests"), *([("2 ms", "mean")] if layers > 1 else [])],
        warnings=["mind the <gap>"],
        charts=[
            chart("Latency", "ms", "%", [line(label, range(4), values)], x_log=True, marks=[{"x": 3.0, "text": "SLO"}]),
            chart("Load", "s", "1/s", [line(label, [0, 1], [5, 5])]),
            chart(
                "Levels", "level", "rows", [line("ideal", ["64"], [3], "bars"), line("demoted", ["64"], [1], "bars")]
            ),
            chart("Instances", "s", "n", [line(f"r{n}", [0, 1], [1, 1], "area") for n in range(layers)]),
            chart("Nothing", "s", "n", [], empty="nothing was answered"),
            {},
        ],
        tables=[table("How", (), [("a", "<b>")]), table("Sets", ("x", "y"), [("1", "2"), ("3", "4")], marked=[1]), {}],
    )


class Loads(HTMLParser):
    """Collects what a page would load, and its policy."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{tag} {v}" for k, v in attrs if k in {"src", "href", "data", "action", "poster"} and v]
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs).get("content") or ""


def test_a_file_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    path = tmp_path / "deep" / "a.json"
    save(path, [result("a<m>")])
    (found,) = load(path)
    assert found == result("a<m>")
    assert found["charts"][0]["lines"][0]["y"] == [1, 2, None, 8]
    assert main(["report", str(path)]) == 0
    assert f"wrote {tmp_path / 'deep' / 'a.html'}" in capsys.readouterr().err
    text = (tmp_path / "deep" / "a.html").read_text()
    body = text.split("</head>")[1]
    page = Loads()
    page.feed(text)
    assert page.loaded == []
    # The browser refuses what is left in the plotting library (map tiles, fonts): nothing but inline code and data.
    assert page.policy.startswith("default-src 'none'")
    assert "http" not in page.policy
    assert len(text) < 6_000_000
    for expected in (
        "<h1>Replay: a&lt;m&gt;</h1>",
        "of &lt;today&gt;",
        "mind the &lt;gap&gt;",
        "<code>&lt;b&gt;</code>",
    ):
        assert expected in body
    assert '<tr class="chosen"><td>3</td>' in body
    assert "nothing was answered" in body
    assert body.count("Plotly.newPlot") == 5
    assert "<m>" not in re.sub(r"<script.*?</script>", "", body, flags=re.S)


def test_marks_on_logarithmic_axes_stand_where_their_lines_are() -> None:
    pytest.importorskip("plotly")
    from arlo.report.draw import figure_of

    both = [{"x": 100.0, "text": "SLO"}, {"y": 10.0, "text": "Poisson"}]
    for log in (False, True):
        drawn = figure_of(chart("t", "x", "y", [line("l", [1, 1000], [1, 100])], x_log=log, y_log=log, marks=both))
        slo, poisson = drawn.layout.annotations
        assert (slo.x, poisson.y) == ((2, 1) if log else (100, 10))
        assert next(shape.x0 for shape in drawn.layout.shapes) == 100
        assert drawn.layout.xaxis.type == ("log" if log else None)


def test_several_are_laid_over_each_other() -> None:
    one, two = result("one"), result("two", (1, 2, 3, 4), layers=1)
    both = merged([one, two, result("one")])
    charts = {each["title"]: each for each in both["charts"]}
    assert [each["name"] for each in charts["Latency"]["lines"]] == ["one (1) and others alike", "two"]
    assert charts["Latency"]["marks"] == [{"x": 3.0, "text": "SLO"}]
    assert len(charts["Load"]["lines"]) == 1  # all alike
    assert [each["name"] for each in charts["Levels"]["lines"]][:2] == [
        "one (1): ideal and others alike",
        "one (1): demoted and others alike",
    ]
    assert "Instances: one (1)" in charts
    assert "Instances: two" not in charts  # it has one layer
    figures = both["tables"][0]
    assert figures["head"] == ["", "requests", "mean"]
    assert figures["rows"] == [["one (1)", "4", "2 ms"], ["two", "4", "-"], ["one (3)", "4", "2 ms"]]
    assert "Sets: two" in [each["title"] for each in both["tables"]]
    assert merged([one]) is one


def test_results_of_several_files_are_told_apart_by_the_files(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    save(tmp_path / "monday" / "report.json", [result("minilm")])
    save(tmp_path / "tuesday" / "report.json", [result("minilm", (1, 2, 3))])
    save(tmp_path / "many.json", [result("rs", (1, 2)), result("late", (1, 3))])
    files = [str(tmp_path / name) for name in ("monday/report.json", "tuesday/report.json", "many.json")]
    assert main(["report", *files, "--out", str(tmp_path / "all.html")]) == 0
    text = (tmp_path / "all.html").read_text()
    for name in ("monday", "tuesday", "many: rs", "many: late"):
        assert f"<td>{name}</td>" in text


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a report is a page, \.html, or a file for `arlo report`, \.json"):
        save(tmp_path / "a.pdf", [result("a")])
    (tmp_path / "other.json").write_text('{"schema": "arlo.replay/1"}')
    with pytest.raises(ConfigError, match=r"other.json is no result file \(arlo.report/1\)"):
        load(tmp_path / "other.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.json")
    for results in ("", ', "results": []', ', "results": {"a": 1}', ', "results": [1]'):
        (tmp_path / "empty.json").write_text(f'{{"schema": "arlo.report/1"{results}}}')
        with pytest.raises(ConfigError, match=r"empty\.json has no results"):
            load(tmp_path / "empty.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        save(tmp_path / "file" / "a.json", [result("a")])


@pytest.mark.parametrize(
    "damage", [{"charts": None}, {"charts": [{}]}, {"cards": ["x"]}, {"tables": [{"title": 1}]}, {"title": 3}]
)
@pytest.mark.parametrize("times", [1, 2])
def test_damaged_results_are_no_fault_of_arlos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, object], times: int
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": SCHEMA, "results": [result("a") | damage] * times}))
    assert main(["report", str(path)]) == 2 or not damage.keys() & {"charts", "cards", "tables"}
    said = capsys.readouterr().err
    assert "a fault of Arlo's" not in said
    assert f"{path}: a result is damaged" in said or said.startswith("wrote ")
