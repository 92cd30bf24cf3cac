"""`arlo adapt` on a tiny model: from labelled texts to verified files, what is written, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.catalog.flow_file import load_flow
from arlo.catalog.manifest import Manifest
from arlo.catalog.tasks import NO_CLASS, task_input
from arlo.cli import task
from arlo.cli.adapted import length_bins
from arlo.cli.app import build_parsers, main
from arlo.compile.adapt.measure import open_session
from arlo.config import load
from arlo.errors import ConfigError
from arlo.simulator.tokens.file import load_tokens

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 texts of two classes that words tell apart, of three to twenty words."""
    file = tmp_path_factory.mktemp("data") / "labelled.jsonl"
    words = (["red", "house", "tree"], ["seven", "run", "fast"])
    lines = [
        {
            "text": " ".join(words[i % 2][(i + j) % 3] for j in range(3 + i % 18)) + f" {i}",
            "label": "ab"[i % 2],
            "group": str(i),
        }
        for i in range(120)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One for all tests here: the same variant is exported once."""
    monkeypatch.setenv("ARLO_CACHE", str(shared_cache))
    return shared_cache


def trained(cache: Path) -> set[Path]:
    """Prompts that there are."""
    return set(cache.glob("compile/prompts/*/entry.json"))


def write_other(folder: Path, data: Path, labels: int = 3) -> Path:
    """The same texts, labelled for another task."""
    file, texts = folder / f"other-{labels}.jsonl", [json.loads(line) for line in data.read_text().splitlines()]
    file.write_text("".join(json.dumps(one | {"label": f"x{i % labels}"}) + "\n" for i, one in enumerate(texts)))
    return file


def of_task(number: int, rows: int) -> dict[str, Any]:
    """The input that assigns all rows to this task."""
    return {"task": np.full((rows, 1), number, np.int64)}


def given_ids() -> dict[str, Any]:
    """Four rows of up to 24 tokens, one without padding."""
    ids = np.random.default_rng(1).integers(5, 90, (4, 24))
    mask = (np.arange(24) < np.array([[24], [23], [10], [2]])).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": 0 * ids}


@pytest.mark.long
def test_the_whole_way(tiny: Path, data: Path, tmp_path: Path) -> None:
    """Files that agree with torch, accuracies, a repository that verifies, and a file that simulates."""
    out = tmp_path / "out"
    words = ["adapt", str(tiny), "--merge", "0,3", "--length", "24", "--out", str(out)]
    words += ["--data", f"first={data}", "--data", f"second={write_other(tmp_path, data)}"]
    assert main([*words, "--max-batch", "4", "--json"]) == 0
    found = json.loads((out / "adapt.json").read_text())
    plain, merged = found["variants"]
    assert (plain["tokens"], merged["tokens"]) == (0, -3)
    assert set(merged["schedule"]) == {3}
    assert merged["multiplications"] < plain["multiplications"]
    for each in found["variants"]:
        assert each["verified"]["agreement"] == 1
        assert each["verified"]["max_abs_diff"] < 1e-3
        assert sum(part["rows"] for part in each["bins"]) == found["rows"]["measured"]
        manifest = Manifest.load(Path(each["repository"]))
        assert [(runtime.max_length, runtime.max_batch) for runtime in manifest.runtimes] == [(24, 4)]
        assert manifest.tasks == {"first": ("a", "b"), "second": ("x0", "x1", "x2")}
        assert (manifest.inputs[-1], manifest.labels) == (task_input(2), ())
    check_rows_of_both(out, found)
    assert plain["by_task"]["first"] > 0.7  # the words tell; nothing tells the second task's labels
    flow = load_flow(out / "flow.toml")
    assert [variant.tokens for variant in flow.stages[0].variants] == [0, -3]
    assert load(out / "serve.toml").pipeline is not None
    # Up to 6 tokens there is padding to lose.
    assert plain["bins"][0] == merged["bins"][0]
    assert load_tokens(out / "tokens.toml").tokens == [-3, 0]
    assert main(["simulate", str(out / "tokens.toml"), "--tokens=price,fixed:0", "--rate", "20", "--json"]) == 0


def check_rows_of_both(out: Path, found: dict[str, Any]) -> None:
    """In one batch each row gets the logits of its own task, as in a batch of that task alone."""
    draws = np.random.default_rng(1)
    for each in found["variants"]:
        session = open_session(out / "models" / each["name"] / "model.onnx", 1)
        ids = draws.integers(5, 90, (6, 24))
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (alone, other) = (session.run(None, given | of_task(task, 6))[0] for task in (0, 1))
        turns = np.array([[0], [1], [1], [0], [1], [0]])
        mixed = session.run(None, given | {"task": turns})[0]
        np.testing.assert_allclose(mixed, np.where(turns == 0, alone, other), atol=1e-5)
        assert alone.shape == (6, 32)
        assert (alone[:, 2:] == NO_CLASS).all()
        assert (other[:, 3:] == NO_CLASS).all()
        assert (other[:, :3] > NO_CLASS / 2).all()
        assert np.abs(alone[:, :2] - other[:, :2]).max() > 1e-3


@pytest.mark.long
def test_a_further_task(tiny: Path, data: Path, tmp_path: Path) -> None:
    """What there was stays, number by number and answer by answer, prompts too, and it gets its own prompts; one with
    too many classes is refused."""
    out = tmp_path / "out"
    words = ["adapt", str(tiny), "--merge", "0", "--prompts", "3", "--prompt-way", "accumulate", "--epochs", "2"]
    words += ["--length", "24", "--out", str(out), "--max-batch", "2", "--data", f"first={data}", "--json"]
    assert main(words) == 0
    before = json.loads((out / "adapt.json").read_text())

    def said(name: str, task: int) -> Any:
        return open_session(out / "models" / name / "model.onnx", 1).run(None, given_ids() | of_task(task, 4))[0]

    old = {each["name"]: said(each["name"], 0) for each in before["variants"]}
    other = write_other(tmp_path, data)
    assert main(["adapt", "task", "add", "second", str(out), "--data", str(other), "--json"]) == 0
    after = json.loads((out / "adapt.json").read_text())
    assert after["labels"] == {"first": ["a", "b"], "second": ["x0", "x1", "x2"]}
    assert [each["name"] for each in after["variants"]] == ["m0-24", "p3-24"]
    for was, each in zip(before["variants"], after["variants"], strict=True):
        np.testing.assert_allclose(said(each["name"], 0), old[each["name"]], atol=1e-5)
        assert (said(each["name"], 1)[:, :3] > NO_CLASS / 2).all()
        manifest = Manifest.load(out / each["name"])
        assert manifest.tasks == {"first": ("a", "b"), "second": ("x0", "x1", "x2")}
        assert each["by_task"]["first"] == was["by_task"]["first"]
        rows = (before["rows"]["measured"], after["rows"]["measured"] - before["rows"]["measured"])
        right = was["accuracy"] * rows[0] + each["by_task"]["second"] * rows[1]
        assert each["accuracy"] == pytest.approx(right / sum(rows))
        assert sum(part["rows"] for part in each["bins"]) == sum(rows)
    variant = load_flow(out / "flow.toml").stages[0].variants[0]
    assert [task for task, _ in variant.task_accuracy] == ["first", "second"]
    assert variant.bins == ()  # of too few rows
    with pytest.raises(ConfigError, match="room for 32 classes of a task, and 40 are needed"):
        run_task(["task", "add", "third", str(out), "--data", str(write_other(tmp_path, data, labels=40))])
    with pytest.raises(ConfigError, match="has a task 'second' already"):
        run_task(["task", "add", "second", str(out), "--data", str(other)])
    assert json.loads((out / "adapt.json").read_text()) == after


@pytest.mark.long
def test_engines_for_a_gpu(tiny: Path, data: Path, tmp_path: Path) -> None:
    """TensorRT for RTX builds merging of a named task for real. What it takes is measured where it runs, and served
    after that."""
    pytest.importorskip("tensorrt_rtx_bindings", reason="the package of tensorrt-rtx is not installed")
    out = tmp_path / "out"
    words = ["adapt", str(tiny), "--merge", "3", "--length", "24", "--max-batch", "2", "--data", f"first={data}"]
    assert main([*words, "--engine", "tensorrt-rtx", "--out", str(out), "--json"]) == 0
    manifest = Manifest.load(out / "m3-24")
    assert (manifest.runtimes[0].engine, manifest.tasks) == ("tensorrt-rtx", {"first": ("a", "b")})
    assert manifest.adaptation is not None
    (plan,) = (out / "m3-24").rglob("model.plan")
    assert plan.stat().st_size > 50_000
    with pytest.raises(ConfigError, match="has no latencies yet: measure them with `arlo compile profile"):
        load_flow(out / "flow.toml")


def measured(*bins: tuple[int, int, float]) -> list[dict[str, Any]]:
    return [{"max_length": end, "rows": rows, "accuracy": right} for end, rows, right in bins]


def test_length_bins() -> None:
    """Bins of few rows go with their neighbours, and what is left is drawn to the accuracy of all lengths."""
    by_task = {"first": 0.8, "second": 0.6}
    first = measured((32, 30, 1.0), (64, 170, 0.9), (127, 200, 0.7), (128, 50, 0.5))
    second = measured((64, 400, 0.7), (128, 200, 0.4))
    ends, accuracy = length_bins({"first": first, "second": second}, by_task)
    assert ends == [64, 128]
    assert accuracy["first"] == pytest.approx([(30 + 153 + 160) / 400, (140 + 25 + 160) / 450])
    assert accuracy["second"] == pytest.approx([(280 + 120) / 600, (80 + 120) / 400])
    assert length_bins({"first": measured((64, 90, 1.0), (128, 90, 0.5))}, {"first": 0.8}) == ([], {})
    assert length_bins({"first": first}, by_task) == ([], {})
    assert length_bins({}, by_task) == ([], {})  # of an adapt.json that does not have them


def run_task(words: list[str]) -> None:
    args = build_parsers("adapt task").top.parse_args(words)
    task.run(args)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--merge", "12", "--length", "24"], "24 tokens are too few to merge 12 away"),
        (["--merge", "-2"], "--merge must be at least 0"),
        (["--data", "same.jsonl"], "with several tasks, name each"),
        (["--merge", "0,x"], "--merge must be a whole number"),
        (["--prompts", "0,2"], "--prompts must be at least 1"),
    ],
)
def test_refused(tiny: Path, data: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    """Wrong flags are said before any work."""
    assert (
        main(
            ["adapt", str(tiny), f"--data={data}", f"--out={data.parent / 'out'}", f"{words[0]}={words[1]}", *words[2:]]
        )
        != 0
    )
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("head", ["ForTokenClassification", "ForSequenceClassification"])
def test_prompts_need_an_embedding(head: str, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is made in their place."""
    from tests.fakes.tiny_model import write_tiny

    source = write_tiny(tmp_path / "source", head=head)
    words = ["adapt", str(source), "--merge", "0", "--prompts", "2", "--length", "24", f"--out={tmp_path / 'out'}"]
    assert main([*words, "--data", str(data), "--no-compile"]) != 0
    assert "--prompts are trained on a body that gives embeddings" in capsys.readouterr().err


@pytest.mark.long
def test_a_token_classifier(tmp_path: Path, data: Path) -> None:
    """Every token is answered, merged ones as what they were merged into; the repository verifies."""
    from tests.fakes.tiny_model import write_tiny

    source = write_tiny(tmp_path / "tagger", head="ForTokenClassification")
    words = ["adapt", str(source), "--merge", "0,2", "--length", "24", "--out", str(tmp_path / "out")]
    assert main([*words, "--data", str(data), "--rows", "40", "--max-batch", "2", "--json"]) == 0
    plain, merged = json.loads((tmp_path / "out" / "adapt.json").read_text())["variants"]
    assert plain["accuracy"] == 1.0  # it is the model
    assert merged["bins"][0]["accuracy"] == 1.0  # up to 6 tokens there is padding to lose
    assert merged["verified"]["agreement"] >= 0.99
    manifest = Manifest.load(Path(merged["repository"]))
    assert [(output.name, output.token_level) for output in manifest.outputs] == [("logits", True)]
    assert manifest.adaptation is not None
    assert (manifest.adaptation.kind, set(manifest.adaptation.per_layer)) == ("merge", {2})


@pytest.mark.long
def test_prompts(tiny: Path, data: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained once, exported, verified, compiled; a second time they come out of the cache."""
    before = trained(cache)
    out = tmp_path / "out"
    words = ["adapt", str(tiny), "--merge", "0", "--prompts", "2", "--epochs", "3", "--length", "24", "--out", str(out)]
    words += ["--data", f"first={data}", "--max-batch", "2", "--json"]
    assert main(words) == 0
    plain, prompted = json.loads((out / "adapt.json").read_text())["variants"]
    assert (prompted["name"], prompted["tokens"]) == ("p2-24", 2)
    assert prompted["multiplications"] > plain["multiplications"]
    assert prompted["verified"]["agreement"] == 1
    manifest = Manifest.load(Path(prompted["repository"]))
    assert manifest.adaptation is not None
    assert (manifest.adaptation.kind, manifest.adaptation.per_layer) == ("prefix", (2, 2))
    assert [variant.tokens for variant in load_flow(out / "flow.toml").stages[0].variants] == [2, 0]
    assert len(trained(cache) - before) == 1
    monkeypatch.setattr("arlo.compile.adapt.texts.train_prompts", None)
    assert main([*words, "--no-compile"]) == 0
    assert json.loads((out / "adapt.json").read_text())["variants"][1]["accuracy"] == prompted["accuracy"]
