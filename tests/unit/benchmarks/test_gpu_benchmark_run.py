"""The GPU benchmark for real, on the CPU: a tiny BERT through engines, torch and libraries; a bare checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import cli, subject
from benchmarks.gpu.contenders.base import Batch
from benchmarks.gpu.standalone import ROOT

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
CONTENDERS = "ort-cpu,torch-eager,transformers,sentence-transformers"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The work folder of a run whose BERT-base is tiny, and its results."""
    folder = tmp_path_factory.mktemp("gpu")
    patch = pytest.MonkeyPatch()
    patch.setitem(subject.CONFIGS, "bert-base", TINY)
    arguments = ["--models", "bert-base", "--precisions", "fp32", "--lengths", "16,64,128", "--batches", "1,2"]
    arguments += ["--contenders", CONTENDERS, "--cell-seconds", "0.001", "--no-end-to-end"]
    arguments += ["--work", str(folder / "work"), "--out", str(folder / "out"), "--json"]
    assert cli.main(arguments) == 0
    yield folder, arguments
    patch.undo()


def test_every_contender_answers_what_the_model_answers(tiny: Any) -> None:
    folder, _ = tiny
    result = json.loads((folder / "out" / "latency.json").read_text())
    assert len(result["cells"]) == 8 * 3 * 2
    for cell in result["cells"]:
        assert "error" not in cell, cell
        assert not cell["wrong"], cell
        assert 0 < cell["whole"]["p25_us"] <= cell["whole"]["median_us"] <= cell["whole"]["p75_us"]
    assert result["machine"]["kind"] == "cpu"
    assert result["machine"]["versions"]["torch"]
    assert (result["dropped"], result["interrupted"]) == ([], False)
    assert {"summary.md", "fig02.html", "fig02-bert-base-fp32.svg"} <= {p.name for p in (folder / "out").iterdir()}


def test_its_profile_is_one_for_the_simulator(tiny: Any) -> None:
    from arlo.simulator.profiles import load_profile

    profile = load_profile(tiny[0] / "out" / "profiles" / "bert-base-fp32-ort-cpu")
    assert profile.max_length == 128
    assert {length for length, _, _ in profile.static} == {16, 64, 128}
    assert {batch for _, batch, _ in profile.static} == {1, 2}


def test_a_second_run_measures_only_what_is_new(tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, arguments = tiny
    before = json.loads((folder / "out" / "latency.json").read_text())
    more = [argument if argument != "16,64,128" else "16,32,64,128" for argument in arguments]
    assert cli.main([*more, "--contenders", "torch-eager"]) == 0
    assert "4 cells to measure, 48 are there" in capsys.readouterr().err  # two contenders at one length, two batches
    after = json.loads((folder / "out" / "latency.json").read_text())
    assert all(cell in after["cells"] for cell in before["cells"])


def test_texts_have_exactly_the_tokens(tiny: Any) -> None:
    one = subject.Subject("bert-base", "fp32", device="cpu", work=tiny[0] / "work", longest=512, max_batch=4, threads=1)
    for length in (3, 16, 250, 512):
        batch = one.batch(length, 4)
        assert batch.ids.shape == (4, length)
        assert (batch.ids[:, 0] == 2).all()
        assert (batch.ids[:, -1] == 3).all()
        assert one.tokenizer(batch.texts)["input_ids"] == batch.ids.tolist()
        assert not (batch.ids == 1).any()  # no unknown word
    assert len({tuple(row) for row in one.batch(64, 4).ids.tolist()}) == 4


def test_rows_are_padded_behind_their_tokens() -> None:
    batch = Batch(2, np.array([[5, 6], [7, 8]]), ["a", "b"])
    rows = batch.padded(4)
    assert rows["input_ids"].tolist() == [[5, 6, 0, 0], [7, 8, 0, 0]]
    assert rows["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    with pytest.raises(ValueError, match="do not fit"):
        batch.padded(1)


BARE = """
import sys
from benchmarks.gpu.standalone import attach
assert attach() and not attach()
import arlo.compile, arlo.simulator, arlo.traces, arlo.templates.onnxruntime
try:
    import arlo._core
except ImportError:
    pass
else:
    raise SystemExit("arlo is installed here")
from benchmarks.gpu import cli, end_to_end, subject
assert "compiled part" in end_to_end.cannot(), end_to_end.cannot()
subject.CONFIGS["bert-base"] = {tiny}
raise SystemExit(cli.main({arguments}))
"""


def test_a_plain_checkout_runs_without_arlo_installed(tmp_path: Path) -> None:
    """-S: no .pth file is read, so the installed Arlo is not found, as on a machine that has only the packages."""
    arguments = ["--models", "bert-base", "--precisions", "fp32", "--lengths", "16,64", "--batches", "1"]
    arguments += ["--contenders", "torch-eager,transformers", "--cell-seconds", "0.001"]
    arguments += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", BARE.format(tiny=TINY, arguments=arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "out" / "latency.json").read_text())
    assert len(result["cells"]) == 8
    assert "compiled part" in result["end_to_end"]["skipped"]
    assert "Not run: Arlo's compiled part" in (tmp_path / "out" / "summary.md").read_text()


def test_the_command_lists_contenders_from_a_plain_checkout() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.gpu", "--list"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "torch-eager-dynamic" in done.stdout
    assert "runs here" in done.stdout
