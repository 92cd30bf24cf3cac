"""`arlo plan flow`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arlo.catalog.flow_file import load_flow
from arlo.cli.app import main
from arlo.cli.flow.report import PLANNED, WHOLE
from arlo.planning.flows.check import check
from benchmarks.papers.loki.latencies import FAMILIES, variants
from tests.fakes.flow_outcomes import EXIT, FLOW, ONWARD, outcomes

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "simulate"
TOY = """
[flow]
name = "toy"
slo_ms = 1000
utilisation = 1
[[flow.stage]]
name = "A"
variants = [{name = "a1", accuracy = 1, latency = [[1, 100]]}, {name = "a2", accuracy = 0.8, latency = [[1, 25]]}]
[[flow.stage]]
name = "B"
variants = [{name = "b1", accuracy = 1, latency = [[1, 50]]}, {name = "b2", accuracy = 0.9, latency = [[1, 12.5]]}]
[[flow.edge]]
from = "A"
to = "B"
expand = {kind = "spans", factor = {a1 = 2, a2 = 1}}
"""


@pytest.fixture
def toy(tmp_path: Path) -> str:
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return str(path)


def test_a_plan_for_scripts(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "flow", toy, "--workers", "4", "--demand", "60", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["step"], plan["workers"], plan["optimal"]) == ("accuracy", 4, True)
    assert plan["accuracy"] == pytest.approx(0.78)
    assert [(p["variant"], p["instances"]) for p in plan["instances"]] == [("a1", 2), ("a2", 1), ("b2", 1)]
    assert plan["shares"]["A:a1>B:b2"] == pytest.approx(1 / 3)
    assert plan["feasible_paths"] == ["A:a1x1>B:b2x1", "A:a2x1>B:b2x1"]


def test_a_plan_for_people(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "flow", toy, "--workers", "4", "--demand", "100"]) == 0
    text = capsys.readouterr().out
    assert "overload scaling" in text
    assert "overload: 4 workers serve" in text


def test_the_window_of_a_plan_is_a_poisson_process_or_a_trace(
    toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(toy).read_text().replace("utilisation = 1", 'utilisation = "window"')
    Path(toy).write_text(text)

    def plan(*more: str) -> dict[str, Any]:
        assert main(["plan", "flow", toy, "--workers", "500", "--demand", "200", "--json", *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    def trace(name: str, *arrivals: str) -> str:
        made = str(tmp_path / name)
        assert main(["simulate", "trace", "make", made, "--rate", "200", "--duration-s", "150", *arrivals]) == 0
        capsys.readouterr()
        return made

    chance, even = plan(), plan("--trace", trace("even.csv", "--arrivals", "constant"))
    bursty = plan("--trace", trace("bursty.csv", "--arrivals", "mmpp", "--burst", "4", "--sojourn-ms", "3000"))
    assert even["utilisation"] >= chance["utilisation"] > bursty["utilisation"]
    assert even["workers"] <= chance["workers"] < bursty["workers"]
    assert f"utilisation {bursty['utilisation']:.3g}: " in bursty["note"]
    assert main(["plan", "flow", toy, "--workers", "500", "--demand", "200"]) == 0
    assert chance["note"] in capsys.readouterr().out
    short = plan("--trace", trace("short.csv", "--duration-s", "15"))
    assert short["utilisation"] == 0.8
    assert "are known" in short["note"]


def test_what_is_odd_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.toml"
    odd = TOY.replace(
        'name = "a2", accuracy = 0.8, latency = [[1, 25]]', 'name = "a2", accuracy = 0.8, latency = [[1, 125]]'
    )
    odd = odd.replace("{a1 = 2, a2 = 1}", "2").replace("[[1, 12.5]]", "[[1, 12.5], [2, 10], [4, 60]]")
    path.write_text(odd)
    assert main(["plan", "flow", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [text.split(":")[0] for text in found["warnings"]] == [
        "stage 'A'",
        "stage 'B', variant 'b2'",
        "stage 'B', variant 'b2'",
    ]
    assert "'a2' is dominated by 'a1'" in found["warnings"][0]
    assert "2 rows of 1 tokens take less time than 1" in found["warnings"][1]
    assert "batches up to 2 are enough" in found["warnings"][2]
    path.write_text(TOY.replace("slo_ms = 1000", "slo_ms = 70"))
    assert main(["plan", "flow", str(path)]) == 1
    assert "slo_below_latency(A>B): executing takes 37.5 ms at least" in capsys.readouterr().out


def test_a_report(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, flow = tmp_path / "flow.json", Path(toy)
    flow.write_text(flow.read_text().replace("utilisation = 1", ""))
    assert main(["plan", "flow", toy, "--workers", "4", "--report", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["capacity_most_accurate"] == pytest.approx(20, rel=0.01)
    assert said["capacity"] == pytest.approx(80, rel=0.01)
    assert set(said["curves"]) == {PLANNED, WHOLE}
    for whole, planned in zip(said["curves"][WHOLE], said["curves"][PLANNED], strict=True):
        assert whole["served"] >= planned["served"] - 1e-9
        assert whole["served"] > planned["served"] or whole["accuracy"] >= planned["accuracy"] - 1e-3
    text = out.read_text()
    assert "A plan leaves 20% of each stage" in text
    assert WHOLE in text
    assert "carried by the most accurate variants on 4 workers" in text
    assert "Instances at " in text


def test_a_report_plans_with_what_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `arlo plan flow --demand` does: the rows that leave early are those that the small model gets right."""
    mixed = '{ensemble = "weighted", weights = [1, 1]}'
    edges = EXIT.format(when='{score = "calibrated_max", at_least = 0.8}') + ONWARD.format(answer=mixed)
    path = tmp_path / "flow.toml"
    path.write_text(FLOW.format(edges=edges))
    outcomes().save(tmp_path / "records")
    asked = ["plan", "flow", str(path), "--workers", "4", "--json", "--demand", "100"]
    found = []
    for more in ([], ["--report", str(tmp_path / "page.json")]):
        assert main([*asked, *more]) == 0
        said = json.loads(capsys.readouterr().out)
        found.append(said["plan"] if more else said)
    assert found[0]["accuracy"] == found[1]["accuracy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml", "--demand", "1"], "none.toml does not exist"),
        (["TOY", "--demand", "-1"], "demand must be above 0"),
        (["TOY", "--demand", "1", "--workers", "0"], "workers must be at least 1"),
        (["TOY", "--demand", "1", "--within", "2"], "--within must be at least 0, at most 1"),
        (["TOY", "--demand", "1", "--trace", "t.csv"], 'for flows with utilisation = "window" only'),
    ],
)
def test_wrong_questions(toy: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "flow", *(toy if each == "TOY" else each for each in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_the_examples_hold_the_tables_that_are_derived() -> None:
    families = {"detect": "yolov5", "cars": "efficientnet", "faces": "vgg", "classify": "resnet", "caption": "clip"}
    assert set(families.values()) == set(FAMILIES)
    for name in ("loki_traffic", "loki_social"):
        flow = load_flow(EXAMPLES / f"{name}.toml")
        assert check(flow).problems == ()
        for stage in flow.stages:
            found = [
                (v.name, v.accuracy[0], [(rows, ns / 1e6) for _, rows, ns in v.table.points]) for v in stage.variants
            ]
            assert found == variants(families[stage.name])
