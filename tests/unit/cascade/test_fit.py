"""`arlo fit`, from repositories and records to a checked cascade."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cli import main

from .conftest import LABELS, Made, fit, repository


def answer(capsys: pytest.CaptureFixture[str], path: Path, *more: str, code: int = 0) -> Any:
    capsys.readouterr()
    fit(path, *more, "--json", code=code)
    return json.loads(capsys.readouterr().out)


def by_name(found: Any) -> dict[str, Any]:
    return {each["name"]: each for each in found}


@pytest.mark.long
def test_the_whole_way(made: Made, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = made(strengths=(2.2, 3.2))
    page = tmp_path / "page.html"
    options = ("--tolerance", "0.04", "--guarantee", "disagreement=0.1", "--report", str(page))
    found = answer(capsys, path, *options)
    assert found["accuracy_is"] == "accuracy"
    for stage in found["stages"]:
        assert stage["calibrator"]["t"] > 1.2
        before, after = stage["calibrator"]["ece15"]
        assert after < max(0.8 * before, 0.02)  # some 700 rows
    points = by_name(found["points"])
    assert set(points) == {"ap", "eo", "safe"}
    assert points["ap"]["mean_ms"] < 3.5
    assert points["ap"]["reach"][1] < 0.9
    assert points["ap"]["mean_of_last"] < 0.9
    cascade = CascadeManifest.load(path)
    assert cascade.default_point == "ap"
    assert cascade.point("ap").accuracy is not None
    assert points["ap"]["accuracy"]["mean"] == pytest.approx(cascade.point("ap").accuracy[0])
    assert len(cascade.point("ap").rules) > 1  # prices
    assert cascade.point("safe").guarantee is not None
    text = page.read_text()
    for words in ("Ways to answer", "Reliability of s0", "s1 alone", "eo"):
        assert words in text
    fit(path, *options)
    told = capsys.readouterr()
    assert "of last" in told.out


def test_steps_are_repeated_only_where_their_inputs_changed(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made()
    whole = answer(capsys, path, "--tolerance", "0.05")
    fit(path, "--tolerance", "0.05", "--json")
    told = capsys.readouterr()
    assert told.err.count("unchanged") == 4, "two stages' records, calibration, search"
    assert json.loads(told.out) == whole
    fit(path, "--tolerance", "0.06")
    told = capsys.readouterr()
    assert "fit: calibrate: unchanged" in told.err
    assert "fit: search: done" in told.err
    path.with_suffix(".fit.json").write_text("no")
    fit(path, "--tolerance", "0.06")
    assert "fit: search: done" in capsys.readouterr().err


def test_options_are_those_of_the_last_time(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """A report, or a look at a gateway, does not change what is served."""
    path = made()
    fit(path, "--tolerance", "0.05", "--plain")
    points = CascadeManifest.load(path).points
    capsys.readouterr()
    fit(path)
    assert "search: unchanged" in capsys.readouterr().err
    assert CascadeManifest.load(path).points == points
    fit(path, "--accuracy", "0.5")
    assert [point.name for point in CascadeManifest.load(path).points] == ["ap", "eo", "target"]
    assert all(point.prune.alpha == 0 for point in CascadeManifest.load(path).points), "still plain"


def test_points_of_before_are_kept_while_calibrators_are_the_same(made: Made) -> None:
    path = made()
    fit(path, "--tolerance", "0.05")
    cascade = CascadeManifest.load(path)
    own = dataclasses.replace(cascade.points[0], name="own")
    dataclasses.replace(cascade, points=(*cascade.points, own)).save(path)
    fit(path)
    assert {point.name for point in CascadeManifest.load(path).points} == {"ap", "eo", "own"}
    fit(path, "--calibrator", "vector", "--tolerance", "0.1")
    assert {point.name for point in CascadeManifest.load(path).points} == {"ap", "eo"}


def test_pruning_is_taken_where_it_pays(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made()
    ap = by_name(answer(capsys, path, "--tolerance", "0.05")["points"])["ap"]
    assert ap["as_written"]["prune"]["alpha"] == 0.8
    whole = by_name(answer(capsys, path, "--tolerance", "0.05", "--plain")["points"])["ap"]
    assert whole["as_written"]["prune"]["alpha"] == 0
    assert ap["mean_ms"] < whole["mean_ms"]


def test_energy_that_is_modelled_decides_a_search(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made()
    options = ("--objective", "energy", "--watts", "500", "--tolerance", "0.05")
    found = by_name(answer(capsys, path, *options)["points"])["ap"]
    assert found["as_written"]["objective"] == "energy"
    first, second = CascadeManifest.load(path).stages
    assert first.energy_source == "modelled: 500 W for as long as a batch takes"
    single = {length: mj for length, rows, mj in second.energy_mj if rows == 1}
    assert single == {1: 500, 32: 500, 33: 1000, 64: 1000}
    fit(path, "--objective", "mean")
    assert CascadeManifest.load(path).stages[1].energy_mj == second.energy_mj, "kept for simulations"


def test_the_last_stage_alone_wins_where_a_cascade_does_not_pay(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """A first stage that guesses only adds its own time."""
    path = made(strengths=(0.02, 3.2))
    found = answer(capsys, path, "--plain", "--guarantee", "disagreement=0.0001")
    usual = CascadeManifest.load(path).point()
    assert (usual.start, usual.reach, usual.agreement) == (1, (0.0, 1.0), 1.0)
    assert any("s1 answers alone" in line for line in found["warnings"])
    points = by_name(found["points"])
    assert points[usual.name]["mean_of_last"] == pytest.approx(1.0)
    assert all(each["mean_of_last"] <= 1.0 + 1e-9 for each in points.values())


def test_a_point_with_a_guarantee_is_held_to_it(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """Not to the accuracy, which a guarantee of another risk allows to fall."""
    path = made(strengths=(1.0, 3.2))
    options = ("--plain", "--tolerance", "0.04")
    safe = by_name(answer(capsys, path, *options, "--guarantee", "disagreement=0.3:0.1")["points"])["safe"]
    assert safe["against_last"]["low"] < -0.05
    assert not safe["failed"]
    cascade = CascadeManifest.load(path)
    kept = cascade.point("safe")
    assert kept.guarantee is not None
    promise = dataclasses.replace(kept.guarantee, epsilon=0.01)
    strict = dataclasses.replace(kept, name="strict", guarantee=promise)
    dataclasses.replace(cascade, points=(strict,), default_point="strict").save(path)
    found = answer(capsys, path, code=1)
    assert found["failed"] == by_name(found["points"])["strict"]["failed"]
    assert "its disagreement is" in found["failed"][0]
    assert "1.00% is promised" in found["failed"][0]


def test_three_stages_with_skips_and_lengths(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(strengths=(1.2, 1.4, 3.2), pruned=False)
    found = answer(capsys, path, "--tolerance", "0.02", "--by-length", "32,64", "--accuracy", "0.5", code=1)
    assert "at the low end of its interval; -2.00% is allowed" in found["points"][0]["failed"][0]
    assert [point["name"] for point in found["points"]] == ["ap", "eo", "target"]
    assert len(found["points"][0]["as_written"]["reach_by_bin"]) == 2
    assert any("s1 does not pay" in line or "s0 does not pay" in line for line in found["warnings"]) or any(
        any(point["as_written"]["skip"]) for point in found["points"]
    )


def test_without_labels_accuracy_is_agreement(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(labelled=False)
    fit(path, "--tolerance", "0.05", "--json")
    told = capsys.readouterr()
    assert "calibrate: left out" in told.err
    found = json.loads(told.out)
    assert found["accuracy_is"] == "agreement"
    assert found["points"][0]["as_written"]["accuracy"] is None
    assert found["points"][0]["agreement"] > 0.8


def test_mistakes_say_what_to_do(made: Made, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = made(rows=300)
    texts = ["--data", str(tmp_path / "texts.jsonl")]

    def says(*words: str) -> str:
        assert main(["fit", *words]) == 2
        return capsys.readouterr().err

    assert "200 are needed" in says(str(path), *texts)
    assert "--data is missing" in says(str(path))
    a = f"a={tmp_path / 's0'}"
    two = [a, "b=" + a[2:], *texts, "--out", str(tmp_path / "c.json")]
    assert "2 to 8 stages" in says(a, *two[2:])
    assert "two stages have one name" in says(a[2:], a[2:], *two[2:])
    assert "has 4 labels, and the cascade 2" in says(*two, "--labels", "x,y")
    assert "the label 'x' is named twice" in says(*two, "--labels", "x,x,y,z")
    assert "no stage: a, b" in says(*two, "--order", "c=" + ",".join(LABELS))
    scores = tmp_path / "scores"
    shutil.copytree(tmp_path / "s0", scores)
    one = json.loads((scores / "arlo.json").read_text())
    one["outputs"][0]["dims"][-1] = 1
    (scores / "arlo.json").write_text(json.dumps(one))
    assert "says nothing of how sure it is" in says(a, f"b={scores}", *two[2:])
    moods = shutil.copytree(a[2:], tmp_path / "moods")
    described = json.loads((moods / "arlo.json").read_text())
    (moods / "arlo.json").write_text(json.dumps(described | {"label_activation": "sigmoid"}))
    assert "each label a value of its own (sigmoid" in says(a, f"b={moods}", *two[2:])
    assert "cannot be called 'a/b'" in says("a/b=" + a[2:], *two[1:])
    for options in (
        ("--tolerance", "nan"),
        ("--accuracy", "2"),
        ("--slo-ms", "inf"),
        ("--by-length", "inf"),
        ("--tolerance", "-1"),
        ("--alphas", "-1"),
        ("--threads", "0"),
        ("--guarantee", "harm=2"),
    ):
        said = says(str(path), *texts, *options)
        assert options[0] in said
        assert "must be" in said
    assert "--guarantee is RISK=F[:DELTA]" in says(str(path), *texts, "--guarantee", "luck=0.1")
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"text": "x", "label": "zoo"}\n')
    assert "the label 'zoo' is none of the cascade's" in says(
        str(path), "--data", str(odd), "--records", str(odd) + ".d"
    )
    odd.write_text('{"text": "x", "label": 0}\n')
    assert "records of other data" in says(str(path), "--data", str(odd))
    repository(tmp_path, "s0").joinpath("arlo.json").write_text("{}")
    assert "arlo.json" in says(str(path), *texts)


def test_labels_of_a_stage_in_another_order(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(rows=20)
    out = tmp_path / "turned.json"
    stages = [f"a={tmp_path / 's0'}", f"b={tmp_path / 's1'}", "--labels", "games,mail,web,net", "--out", str(out)]
    texts = ["--data", str(tmp_path / "texts.jsonl")]
    for more in (["--order", "b=net,games,mail,web"], []):
        assert main(["fit", *(stages if more else [str(out)]), *more, *texts]) == 2  # no tokenizer here
        assert "has no tokenizer" in capsys.readouterr().err
        assert CascadeManifest.load(out).stages[1].label_order == (3, 0, 1, 2)
