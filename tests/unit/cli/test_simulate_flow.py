"""`arlo simulate FLOW.toml`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arlo.cli.app import main

FLOW = str(Path(__file__).resolve().parents[3] / "examples" / "simulate" / "loki_traffic.toml")
SHORT = ["--rate", "30", "--duration-s", "10"]


def test_one_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", FLOW, *SHORT, "--router", "price", "--drop", "slack", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"accuracy", "degraded", "utility", "slo_attainment", "workers_mean", "dropped", "rerouted"} <= found.keys()
    assert found["scenario"] == "loki_traffic"
    assert 200 < found["requests"] < 400
    assert found["rows"] > found["requests"]


def test_lists_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", FLOW, *SHORT, "--router", "maf,plan", "--drop", "last,none", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["varied"]["router"], run["varied"]["drop"]) for run in runs] == [
        ("maf", "last"), ("maf", "none"), ("plan", "last"), ("plan", "none"),
    ]  # fmt: skip
    assert all(run["workers_mean"] == 20 for run in runs), "the planner that serves lets none go"


def test_the_same_command_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert main(["simulate", FLOW, *SHORT, "--bundle", "all", "--workers", "8", "--seed", "3", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        del found["wall_s"]
        printed.append(found)
    assert printed[0] == printed[1]


def test_the_least_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", FLOW, *SHORT, "--find-workers", "--bundle", "all", "--attainment", "0.98"]
    least = {}
    for accuracy in ("0", "0.98"):
        assert main([*asked, "--least-accuracy", accuracy, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        kept = {
            one["workers"]: one["slo_attainment"] >= 0.98 and one["accuracy"] >= float(accuracy)
            for one in found["tried"]
        }
        least[accuracy] = found["workers"]
        assert kept[found["workers"]]
        assert not kept.get(found["workers"] - 1, False)
    assert least["0"] < least["0.98"], "accuracy is given up before workers are added"
    assert main([*asked, "--router", "price,maf"]) == 0
    assert capsys.readouterr().out.count("GPUs keep 98% on time") == 2


def test_no_number_of_workers_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", FLOW, *SHORT, "--find-workers", "--bundle", "all", "--slo-ms", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"] is None
    assert "no more with twice as many" in found["reason"]


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", FLOW, *SHORT]) == 0
    said = capsys.readouterr().out
    assert "accuracy" in said
    assert "visits: " in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FLOW, "--router", "mafia"], '--router must be "price" or "plan" or "maf"'),
        ([FLOW, "--policy", "rs"], "--policy does not go with cluster.serves"),
        ([FLOW, "--find-workers", "--workers", "3"], "--workers is left out with --find-workers"),
        ([FLOW, "--least-accuracy", "0.9"], "--least-accuracy belongs to --find-workers"),
        ([FLOW, "--find-workers", "--least-accuracy", "2"], "--least-accuracy must be at least 0, at most 1"),
        (["--router", "maf"], "--router goes with a flow"),
        ([FLOW, "--tokens", "price"], "--tokens does not go with a flow file"),
        ([FLOW, "--length", "tweets"], "the flow says what its rows are like"),
    ],
)
def test_what_does_not_go_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_flow_is_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the flags said is saved as a file that names the flow, and does the same; it has faults and a page, too."""
    saved, page = tmp_path / "scenario.toml", tmp_path / "page.json"
    asked = [*SHORT, "--bundle", "all", "--workers", "8", "--fail", "4:0:2", "--plot", str(page), "--json"]
    printed = []
    for words in ([FLOW, *asked, "--save", str(saved)], [str(saved), "--plot", str(page), "--json"]):
        assert main(["simulate", *words]) == 0
        printed.append(json.loads(capsys.readouterr().out) | {"wall_s": 0, "scenario": ""})
    assert printed[0] == printed[1]
    assert "serves = " in saved.read_text()
    assert json.loads(page.read_text())
