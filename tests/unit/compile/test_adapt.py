"""`arlo adapt` on a tiny model: from labelled texts to verified files, what is written, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arlo.catalog.flow_file import load_flow
from arlo.catalog.manifest import Manifest
from arlo.cli.app import main
from arlo.config import load
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


@pytest.mark.long
def test_the_whole_way(tiny: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that agree with torch, accuracies, a repository that verifies, and a file that simulates."""
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    other = tmp_path / "other.jsonl"
    texts = [json.loads(line) for line in data.read_text().splitlines()]
    other.write_text("".join(json.dumps(one | {"label": "xyz"[i % 3]}) + "\n" for i, one in enumerate(texts)))
    words = ["adapt", str(tiny), "--merge", "0,3", "--length", "24", "--out", str(out)]
    words += ["--data", f"first={data}", "--data", f"second={other}"]
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
        assert list(manifest.labels) == ["first.a", "first.b", "second.x", "second.y", "second.z"]
    assert plain["by_task"]["first"] > 0.7  # the words tell; nothing tells the second task's labels
    flow = load_flow(out / "flow.toml")
    assert [variant.tokens for variant in flow.stages[0].variants] == [0, -3]
    assert load(out / "serve.toml").pipeline is not None
    # Up to 6 tokens there is padding to lose.
    assert plain["bins"][0] == merged["bins"][0]
    assert load_tokens(out / "tokens.toml").tokens == [-3, 0]
    assert main(["simulate", str(out / "tokens.toml"), "--tokens=price,fixed:0", "--rate", "20", "--json"]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--merge", "12", "--length", "24"], "24 tokens are too few to merge 12 away"),
        (["--merge", "-2"], "--merge must be whole numbers of tokens from 0"),
        (["--data", "same.jsonl"], "with several tasks, name each"),
        (["--merge", "0,x"], "--merge must be whole numbers of tokens from 0"),
        (["--prune", "0,2"], "--prune must be whole numbers of tokens from 1"),
        (["--prune", "40", "--length", "24"], "24 tokens are too few to drop 40"),
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


@pytest.mark.long
def test_a_token_classifier(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is answered, merged ones as what they were merged into; the repository verifies."""
    from tests.fakes.tiny_model import write_tiny

    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
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
def test_prompts(tiny: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained once, exported, verified, compiled; a second time they come out of the cache."""
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    words = ["adapt", str(tiny), "--merge", "0", "--prompts", "2", "--epochs", "3", "--length", "24", "--out", str(out)]
    assert main([*words, "--data", str(data), "--max-batch", "2", "--json"]) == 0
    plain, prompted = json.loads((out / "adapt.json").read_text())["variants"]
    assert (prompted["name"], prompted["tokens"]) == ("p2-24", 2)
    assert prompted["multiplications"] > plain["multiplications"]
    assert prompted["verified"]["agreement"] == 1
    manifest = Manifest.load(Path(prompted["repository"]))
    assert manifest.adaptation is not None
    assert (manifest.adaptation.kind, manifest.adaptation.per_layer) == ("prefix", (2, 2))
    assert [variant.tokens for variant in load_flow(out / "flow.toml").stages[0].variants] == [2, 0]
    assert len(list((tmp_path / "cache").glob("**/prompts.npz"))) == 1
    monkeypatch.setattr("arlo.compile.adapt.texts.train_prompts", None)
    assert main([*words, "--data", str(data), "--max-batch", "2", "--no-compile", "--json"]) == 0
    assert json.loads((out / "adapt.json").read_text())["variants"][1]["accuracy"] == prompted["accuracy"]
