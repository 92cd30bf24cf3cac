"""`arlo fit --variants` on real Triton workers, and a flow that takes its accuracies from there."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from arlo.catalog.flow_file import load_flow
from arlo.catalog.flow_outcomes import Outcomes
from arlo.cli import main
from tests.fakes.tiny_model import write_tiny

pytestmark = [pytest.mark.integration, pytest.mark.long]

WORDS = ("the", "time", "of", "a", "long", "night", "was", "not", "with", "his", "own", "sea", "and", "little", "man")
FLOW = """
[flow]
name = "two"
slo_ms = 1000
records = "records"
[[flow.stage]]
name = "small"
variants = [{repository = "small", latency = [[16, 1, 2.0], [48, 1, 5.0]]}]
[[flow.stage]]
name = "large"
variants = [{repository = "large", latency = [[16, 1, 4.0], [48, 1, 10.0]]}]
[[flow.edge]]
from = "small"
to = "large"
"""


def test_what_variants_make_of_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "model", family="distilbert", head="ForSequenceClassification")
    assert main(["compile", str(tmp_path / "model"), "--out", str(tmp_path / "small"), "--lengths", "16,48"]) == 0
    shutil.copytree(tmp_path / "small", tmp_path / "large")  # wrong on the same rows
    rng = random.Random(1)
    lines = [{"text": " ".join(rng.choices(WORDS, k=rng.randint(2, 30))), "label": rng.randrange(3)} for _ in range(80)]
    data, out = tmp_path / "texts.jsonl", tmp_path / "records"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    command = ["fit", "--variants", *(str(tmp_path / each) for each in ("small", "large")), "--data", str(data)]
    command += ["--records", str(out)]
    assert main([*command, "--labels", "x,y,z", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = Outcomes.load(out)
    assert (said["rows"], [row["variant"] for row in said["variants"]]) == (80, ["small", "large"])
    assert "1,000 or more" in said["warning"]
    for row in said["variants"]:
        correct = found.variants[row["variant"]].correct
        assert row["accuracy"] == pytest.approx(correct.mean())
        assert sum(part["rows"] for part in row["bins"]) == 80
        assert row["interval"][0] < row["accuracy"] < row["interval"][1]
        one = found.variants[row["variant"]]
        assert (one.score > 1 / 3 - 1e-6).all()
        assert one.said is not None
        assert one.truth is not None
        np.testing.assert_allclose(one.said.sum(axis=1), 1, atol=2e-3)
        np.testing.assert_array_equal(one.said.argmax(axis=1) == one.truth, one.correct)
        assert one.labels == ("x", "y", "z")
        assert row["temperature"] == one.temperature == 1.0, "too few rows to fit one"

    (tmp_path / "flow.toml").write_text(FLOW)
    flow = load_flow(tmp_path / "flow.toml")
    assert flow.stages[0].variants[0].accuracy == found.accuracy("small", (16, 48))
    assert main(["plan", "flow", str(tmp_path / "flow.toml"), "--demand", "10", "--json"]) == 0
    once = float(np.mean(found.variants["small"].correct))
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(once), "counted: not the square of it"

    assert main([*command, "--labels", "x,y"]) == 2  # a label is 2
    assert "is none of" in capsys.readouterr().err
    (out / "outcomes.npz").write_bytes(b"no")
    assert main(["plan", "flow", str(tmp_path / "flow.toml"), "--demand", "10"]) == 2
    assert "is damaged" in capsys.readouterr().err
