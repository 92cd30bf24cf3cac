"""`arlo cascade`, from repositories and records to a checked cascade."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cli import main

from .conftest import Made, repository


def run(path: Path, action: str, *more: str) -> int:
    return main(["cascade", action, str(path), "--data", str(path.parent / "texts.jsonl"), *more])


def answer(capsys: pytest.CaptureFixture[str], path: Path, action: str, *more: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert run(path, action, *more, "--json") == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_the_whole_way(made: Made, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = made(strengths=(2.2, 3.2))
    assert CascadeManifest.load(path).stages[0].importance is not None
    fitted = answer(capsys, path, "calibrate")
    for stage in fitted["stages"]:
        assert stage["calibrator"]["t"] > 1.2
        assert stage["after"]["ece15"] < max(0.8 * stage["before"]["ece15"], 0.02)  # some 700 rows
    found = answer(capsys, path, "search", "--tolerance", "0.01", "--epsilon", "0.1")
    points = {point["name"]: point for point in found["points"]}
    assert set(points) == {"ap", "eo", "safe"}
    assert points["ap"]["mean_ms"] < 3.5
    assert points["ap"]["reach"][1] < 0.9
    cascade = CascadeManifest.load(path)
    assert cascade.default_point == "ap"
    assert len(cascade.point("ap").rules) > 1  # prices
    assert cascade.point("safe").guarantee is not None
    rows = tmp_path / "rows.jsonl"
    checked = answer(capsys, path, "check", "--tolerance", "0.05", "--rows", str(rows))
    ap = next(each for each in checked["points"] if each["name"] == "ap")
    assert ap["accuracy"]["mean"] == pytest.approx(points["ap"]["accuracy"][0])
    assert ap["mean_of_last"] < 0.9
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(lines) == 3 * checked["rows"]
    assert {line["reason"] for line in lines} == {"confident", "final"}
    page = tmp_path / "page.html"
    assert answer(capsys, path, "report", "--out", str(page))["accuracy_is"] == "accuracy"
    text = page.read_text()
    for words in ("Ways to answer", "Reliability of s0", "s1 alone", "eo"):
        assert words in text
    load = ("--workers", "3", "--slo-ms", "100")
    planned = answer(capsys, path, "plan", *load, "--rate", "50", "--divided")
    assert planned["chosen"]["meets_slo"]
    assert {row["workers"] for row in planned["points"]} >= {"all stages on every worker", "all of the last stage"}
    assert all(sum(row["exits"]) == pytest.approx(1) for row in planned["points"])
    texts = str(path.parent / "texts.jsonl")
    assert main(["plan", "--cascade", str(path), "--data", texts, *load, "--rate", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["meets_slo"]
    assert main(["plan", "--cascade", str(path), *load, "--rate", "50"]) != 0
    assert "--cascade needs --data" in capsys.readouterr().err
    assert answer(capsys, path, "plan", *load, "--rate", "100000", code=1)["chosen"] is None
    for accuracy, code in ((planned["chosen"]["accuracy"] - 0.03, 0), (1.0, 1)):
        most = ("--workers", "40", "--slo-ms", "100", "--rate", "900", "--accuracy", str(accuracy))
        fewest = answer(capsys, path, "plan", *most, code=code)
        assert (fewest["chosen"] is None) == bool(code)
        assert all(1 <= row["count"] <= 40 for row in fewest["points"])
    fewest = answer(capsys, path, "plan", *most[:-1], "0")
    count = fewest["chosen"]["count"]
    assert count == min(row["count"] for row in fewest["points"])
    less = answer(capsys, path, "plan", "--workers", str(count - 1), *most[2:6], code=1)
    assert 1 < count < 40
    assert less["chosen"] is None  # one less, and no point meets it
    assert run(path, "plan", *most, "--divided") == 2
    assert "leave out --divided" in capsys.readouterr().err
    assert run(path, "check", "--seed", "3") == 2
    assert "calibrated with another" in capsys.readouterr().err
    assert run(path, "search", "--tolerance", "0.01") == 0
    assert "of last" in capsys.readouterr().out


def test_pruning_is_taken_where_it_pays(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made()
    run(path, "calibrate")
    ap = answer(capsys, path, "search", "--tolerance", "0.03")["points"][0]
    assert ap["prune"]["alpha"] == 0.8
    whole = answer(capsys, path, "search", "--tolerance", "0.03", "--plain")["points"][0]
    assert whole["prune"]["alpha"] == 0
    assert ap["mean_ms"] < whole["mean_ms"]


def test_energy_that_is_modelled_decides_a_search(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made()
    run(path, "calibrate")
    assert main(["cascade", "energy", str(path), "--watts", "100", "--stages", "s0", "--json"]) == 0
    assert "energy_mj" in says_of(capsys, run(path, "search", "--objective", "energy"))
    assert main(["cascade", "energy", str(path), "--watts", "500"]) == 0
    assert "s1: 1 tokens 500 mJ, 32 tokens 500 mJ, 33 tokens 1e+03 mJ" in capsys.readouterr().out
    stages = CascadeManifest.load(path).stages
    assert stages[0].energy_source == "modelled: 500 W for as long as a batch takes"
    found = answer(capsys, path, "search", "--objective", "energy", "--tolerance", "0.02")
    assert found["points"][0]["objective"] == "energy"
    tokens = {length for length, rows, _ in stages[0].energy_mj if rows == 1}
    assert tokens == {1, 32, 33, 64}
    assert main(["cascade", "energy", str(path), "--stages", "x"]) == 2
    assert "--stages names 'x'" in capsys.readouterr().err


def says_of(capsys: pytest.CaptureFixture[str], code: int) -> str:
    assert code == 2
    return capsys.readouterr().err


def test_the_last_stage_alone_wins_where_a_cascade_does_not_pay(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """A first stage that guesses only adds its own time."""
    path = made(strengths=(0.02, 3.2))
    run(path, "calibrate")
    found = answer(capsys, path, "search", "--plain", "--epsilon", "0.0001")
    usual = CascadeManifest.load(path).point()
    assert (usual.start, usual.reach, usual.agreement) == (1, (0.0, 1.0), 1.0)
    assert any("s1 answers alone" in line for line in found["warnings"])
    checked = answer(capsys, path, "check")
    by_name = {each["name"]: each for each in checked["points"]}
    assert by_name[usual.name]["mean_of_last"] == pytest.approx(1.0)
    assert all(each["mean_of_last"] <= 1.0 + 1e-9 for each in by_name.values())


def test_a_point_with_a_guarantee_is_held_to_it(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """Not to the accuracy, which a guarantee of another risk allows to fall."""
    path = made(strengths=(1.0, 3.2))
    run(path, "calibrate")
    answer(capsys, path, "search", "--plain", "--epsilon", "0.3", "--tolerance", "0.02")
    cascade = CascadeManifest.load(path)
    safe = cascade.point("safe")
    assert safe.guarantee is not None
    assert answer(capsys, path, "check", "--point", "safe")["points"][0]["against_last"]["low"] < -0.05
    strict = dataclasses.replace(safe, guarantee=dataclasses.replace(safe.guarantee, epsilon=0.01))
    dataclasses.replace(cascade, points=(strict,), default_point="safe").save(path)
    (point,) = answer(capsys, path, "check", code=1)["points"]
    assert "its disagreement is" in point["failed"][0]
    assert "1.00% is promised" in point["failed"][0]


def test_three_stages_with_skips_and_lengths(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(strengths=(1.2, 1.4, 3.2), pruned=False)
    run(path, "calibrate", "--by-length", "32,64")
    found = answer(capsys, path, "search", "--tolerance", "0.02", "--by-length", "32,64", "--accuracy", "0.5")
    assert [point["name"] for point in found["points"]] == ["ap", "eo", "target"]
    assert len(found["points"][0]["reach_by_bin"]) == 2
    assert any("s1 does not pay" in line or "s0 does not pay" in line for line in found["warnings"]) or any(
        any(point["skip"]) for point in found["points"]
    )
    assert run(path, "check", "--tolerance", "0.08") == 0


def test_without_labels_accuracy_is_agreement(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(labelled=False)
    assert run(path, "calibrate") == 2
    assert "needs labels" in capsys.readouterr().err
    found = answer(capsys, path, "search", "--tolerance", "0.05")
    assert found["accuracy_is"] == "agreement"
    assert found["points"][0]["accuracy"] is None
    assert found["points"][0]["agreement"] > 0.8


def test_mistakes_say_what_to_do(made: Made, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = made(rows=300)

    def says(code: int) -> str:
        assert code == 2
        return capsys.readouterr().err

    assert "energy_mj" in says(run(path, "search", "--objective", "energy"))
    assert "three shares" in says(run(path, "search", "--split", "0.5,0.5"))
    assert "no operating points yet" in says(run(path, "check"))
    assert "200 are needed" in says(run(path, "calibrate"))
    assert "--stages names 'x'" in says(run(path, "record", "--stages", "x"))
    assert "goes on where it ended" in says(run(path, "search", "--records", str(tmp_path / "none")))
    stage = f"a={tmp_path / 's0'}"
    init = ["cascade", "init", "--out", str(tmp_path / "c.json"), "--stage"]
    assert "2 to 8 stages" in says(main([*init, stage]))
    assert "must be NAME=VALUE" in says(main([*init, "a"]))
    assert "has 4 labels, and the cascade 2" in says(
        main([*init, stage, "--stage", "b=" + stage[2:], "--labels", "x,y"])
    )
    two = [*init, stage, "--stage", "b=" + stage[2:]]
    assert "the label 'x' is named twice" in says(main([*two, "--labels", "x,x,y,z"]))
    scores = tmp_path / "scores"
    shutil.copytree(tmp_path / "s0", scores)
    one = json.loads((scores / "arlo.json").read_text())
    one["outputs"][0]["dims"][-1] = 1
    (scores / "arlo.json").write_text(json.dumps(one))
    assert "says nothing of how sure it is" in says(main([*init, stage, "--stage", f"b={scores}"]))
    moods = shutil.copytree(stage[2:], tmp_path / "moods")
    described = json.loads((moods / "arlo.json").read_text())
    (moods / "arlo.json").write_text(json.dumps(described | {"label_activation": "sigmoid"}))
    assert "each label a value of its own (sigmoid" in says(main([*init, stage, "--stage", f"b={moods}"]))
    assert "cannot be called 'a/b'" in says(main([*init, "a/b=" + stage[2:]]))
    for action, *options in (
        ("search", "--tolerance", "nan"),
        ("search", "--accuracy", "2"),
        ("search", "--slo-ms", "inf"),
        ("search", "--by-length", "inf"),
        ("search", "--split", "1,2,nan"),
        ("calibrate", "--seed", "-1"),
        ("check", "--tolerance", "-1"),
        ("record", "--alphas", "-1"),
        ("plan", "--rate", "nan", "--workers", "1", "--slo-ms", "1"),
    ):
        said = says(run(path, action, *options))
        assert options[0] in said
        assert "must be" in said
    (tmp_path / "odd.jsonl").write_text('{"text": "x", "label": "zoo"}\n')
    assert "the label 'zoo' is none of the cascade's" in says(
        main(["cascade", "record", str(path), "--data", str(tmp_path / "odd.jsonl"), "--records", str(tmp_path / "o")])
    )
    repository(tmp_path, "s0").joinpath("arlo.json").write_text("{}")
    assert "has changed since" in says(run(path, "check"))
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "x", "label": 0}\n')
    assert main(["cascade", "search", str(path), "--data", str(other)]) == 2


def test_nothing_is_recorded_twice(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(rows=20)
    assert answer(capsys, path, "record") == {"texts": 20, "recorded": {"s0": 20, "s1": 20}}


def test_labels_of_a_stage_in_another_order(made: Made, tmp_path: Path) -> None:
    made(rows=20)
    out = tmp_path / "turned.json"
    stages = ["--stage", f"a={tmp_path / 's0'}", "--stage", f"b={tmp_path / 's1'}", "--labels", "games,mail,web,net"]
    assert main(["cascade", "init", *stages, "--order", "b=net,games,mail,web", "--out", str(out)]) == 0
    assert CascadeManifest.load(out).stages[1].label_order == (3, 0, 1, 2)
