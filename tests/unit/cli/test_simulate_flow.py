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
    assert {"accuracy", "violations", "workers_mean", "dropped", "rerouted"} <= found.keys()
    assert found["run"] == {"router": "price", "drop": "slack", "rate": 30.0}
    assert 200 < found["roots"] < 400
    assert found["rows"] > found["roots"]


def test_lists_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", FLOW, *SHORT, "--router", "maf,plan", "--drop", "last,none", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["run"]["router"], run["run"]["drop"]) for run in runs] == [
        ("maf", "last"), ("maf", "none"), ("plan", "last"), ("plan", "none"),
    ]  # fmt: skip
    assert all(run["workers_mean"] < 20 for run in runs)


def test_the_same_command_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert main(["simulate", FLOW, *SHORT, "--hold", "all", "--workers", "8", "--seed", "3", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        del found["solve_ms_mean"]
        printed.append(found)
    assert printed[0] == printed[1]


def test_the_least_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", FLOW, *SHORT, "--find-workers", "--hold", "all", "--attainment", "0.98"]
    least = {}
    for accuracy in ("0", "0.98"):
        assert main([*asked, "--least-accuracy", accuracy, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        kept = {
            one["workers"]: one["violations"] <= 0.02 and one["accuracy"] >= float(accuracy) for one in found["tried"]
        }
        least[accuracy] = found["workers"]
        assert kept[found["workers"]]
        assert not kept.get(found["workers"] - 1, False)
    assert least["0"] < least["0.98"], "accuracy is given up before workers are added"
    assert main([*asked, "--router", "price,maf"]) == 0
    assert capsys.readouterr().out.count("workers keep 98% on time") == 2


def test_no_number_of_workers_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", FLOW, *SHORT, "--find-workers", "--hold", "all", "--slo-ms", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"] is None
    assert "no more with twice as many" in found["reason"]


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", FLOW, *SHORT]) == 0
    assert "violations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FLOW, "--router", "mafia"], "--router must be one of"),
        ([FLOW, "--policy", "rs"], "--policy does not go with a flow file"),
        ([FLOW, "--find-workers", "--workers", "3"], "leave --workers out"),
        ([FLOW, "--least-accuracy", "0.9"], "--least-accuracy is a share from 0 to 1 and belongs to --find-workers"),
        ([FLOW, "--find-workers", "--least-accuracy", "2"], "--least-accuracy is a share from 0 to 1"),
        ([FLOW, "--save", "x.toml"], "--save does not go with a flow file"),
        (["--router", "maf"], "--router goes with a flow file only"),
        (["--hold", "all"], "--hold goes with a flow file only"),
    ],
)
def test_what_does_not_go_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err
