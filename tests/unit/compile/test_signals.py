"""Importance and confidence: in the graph, in whole builds, by the original model, by their laws."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from arlo.catalog.manifest import Importance, Manifest
from arlo.compile import CompileOptions, compile_model
from arlo.compile.options import parse_importance
from arlo.compile.signals.graph import IMPORTANCE, add_importance
from arlo.compile.signals.laws import ImportanceLaws
from arlo.compile.spec import GRAPH
from arlo.compile.steps.cleanup import Graph
from arlo.compile.tools.verify import verify_repository
from arlo.errors import CompileError, ConfigError
from tests.fakes.tiny_model import LABELS, write_onnx, write_tiny
from tests.unit.compile.conftest import FirstBuild

pytestmark = pytest.mark.long

HEADS = LAYERS = 2


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Manifest]:
    """The source, the repository and the manifest of a classifier with both signals."""
    folder = tmp_path_factory.mktemp("signals")
    source = write_tiny(folder / "tiny", head="ForSequenceClassification")
    options = CompileOptions(
        source=source,
        out=folder / "out",
        cache=folder / "cache",
        lengths=(16,),
        max_batch=3,
        importance="all",
        confidence=True,
    )
    return source, folder / "out", compile_model(options)


def run(path: Path, ids: NDArray[np.int64], mask: NDArray[np.int64], names: list[str]) -> list[NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(str(path))
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    answers: list[NDArray[np.float32]] = session.run(names, {i.name: feed[i.name] for i in session.get_inputs()})
    return answers


def rows(real: int, width: int, others: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A row of `real` tokens padded to `width`, and other rows below it."""
    ids = np.random.default_rng(5).integers(5, 300, (1 + others, 48))[:, :width]
    mask = np.ones_like(ids)
    mask[0, real:] = 0
    return np.where(mask == 1, ids, 0), mask


def test_the_manifest_tells_of_the_signals(classifier: tuple[Path, Path, Manifest]) -> None:
    _, repository, manifest = classifier
    assert Manifest.load(repository) == manifest
    assert [(o.name, o.token_level, o.dims, o.on_request) for o in manifest.outputs] == [
        ("logits", False, (LABELS,), False),
        ("confidence", False, (1,), True),
        ("importance", True, (), True),
    ]
    assert manifest.importance == Importance(layers=LAYERS, of_layers=LAYERS, heads=HEADS)
    assert manifest.labels == tuple(f"LABEL_{number}" for number in range(LABELS))
    assert manifest.words is not None
    for runtime in manifest.runtimes:
        found = runtime.verification
        assert found is not None
        assert found.importance_sum is not None
        assert found.importance_sum < 1e-5
        assert found.importance_padding is not None
        assert found.importance_padding < 1e-5


def test_importance_is_the_attention_that_torch_sums(classifier: tuple[Path, Path, Manifest]) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    source, repository, manifest = classifier
    original = AutoModelForSequenceClassification.from_pretrained(source, attn_implementation="eager").eval()
    ids, mask = rows(11, 16, others=2)
    with torch.inference_mode():
        answer = original(torch.tensor(ids), torch.tensor(mask), output_attentions=True)
    for runtime in manifest.runtimes:
        path = repository / runtime.name / "1" / GRAPH
        importance, confidence = run(path, ids, mask, ["importance", "confidence"])
        expected = sum(layer[0, :, :11].sum((0, 1)) for layer in answer.attentions).numpy()
        assert importance[0] == pytest.approx(expected, rel=1e-5)
        assert importance[0, 11:].tolist() == [0] * 5
        assert importance.sum(1) == pytest.approx(LAYERS * HEADS * mask.sum(1), rel=1e-5)
        assert confidence[:, 0] == pytest.approx(answer.logits.softmax(-1).max(-1).values.numpy(), rel=1e-5)


def test_padding_and_other_rows_change_nothing(classifier: tuple[Path, Path, Manifest]) -> None:
    _, repository, manifest = classifier
    dynamic = next(runtime.name for runtime in manifest.runtimes if runtime.dynamic)
    alone, wide, among = (
        run(repository / dynamic / "1" / GRAPH, *rows(*shape), [IMPORTANCE])[0][0, :7]
        for shape in ((7, 7), (7, 16), (7, 12, 2))
    )
    assert wide == pytest.approx(alone, rel=1e-5)
    assert among == pytest.approx(alone, rel=1e-5)


def test_the_repository_is_verified_again_by_the_same_laws(classifier: tuple[Path, Path, Manifest]) -> None:
    outcomes = verify_repository(classifier[1], threads=1)
    assert all(o.verification and o.verification.importance_sum is not None for o in outcomes), outcomes


def test_an_onnx_file_gets_the_last_layers(first_build: FirstBuild, tmp_path: Path) -> None:
    """The file is one that a build without signals wrote: there is no torch model to compare with."""
    path = first_build.options.out / "tiny_dynamic" / "1" / GRAPH
    options = CompileOptions(
        source=path, tokenizer=first_build.options.source, out=tmp_path / "out", cache=tmp_path / "cache",
        lengths=(16,), dynamic=False, importance=1,
    )  # fmt: skip
    manifest = compile_model(options)
    assert manifest.importance == Importance(layers=1, of_layers=LAYERS, heads=HEADS)
    assert [output.name for output in manifest.outputs][-1] == IMPORTANCE
    found = manifest.runtimes[0].verification
    assert found is not None
    assert found.importance_sum is not None
    assert found.importance_sum < 1e-5


def test_half_precision_is_summed_in_fp32(classifier: tuple[Path, Path, Manifest], tmp_path: Path) -> None:
    options = CompileOptions(
        source=classifier[0], out=tmp_path / "out", cache=tmp_path / "cache",
        lengths=(8,), dynamic=False, precision="fp16", importance="all",
    )  # fmt: skip
    manifest = compile_model(options)
    found = manifest.runtimes[0].verification
    assert found is not None
    assert found.importance_sum is not None
    assert found.importance_sum < 1e-3
    assert manifest.outputs[-1].datatype == "FP32"


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_confidence_is_by_the_models_activation(tmp_path: Path, problem: str) -> None:
    source = write_tiny(tmp_path / "tiny", head="ForSequenceClassification")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"problem_type": problem}))
    options = CompileOptions(
        source=source, out=tmp_path / "out", cache=tmp_path / "cache", lengths=(16,), dynamic=False, confidence=True
    )
    if problem == "regression":
        with pytest.raises(ConfigError, match="'identity'"):
            compile_model(options)
        return
    name = compile_model(options).runtimes[0].name
    ids, mask = rows(16, 16)
    confidence, logits = run(tmp_path / "out" / name / "1" / GRAPH, ids, mask, ["confidence", "logits"])
    assert confidence[0, 0] == pytest.approx(1 / (1 + np.exp(-logits[0].max())), rel=1e-5)


def test_what_cannot_be_given_is_refused(first_build: FirstBuild, tmp_path: Path) -> None:
    options = dataclasses.replace(first_build.options, out=tmp_path / "out", lengths=(16,), dynamic=False)
    with pytest.raises(ConfigError, match="confidence is of sequence classifiers"):
        compile_model(dataclasses.replace(options, confidence=True))
    with pytest.raises(CompileError, match=f"the model has {LAYERS} layers of attention"):
        compile_model(dataclasses.replace(options, importance=LAYERS + 1))
    fused = dataclasses.replace(options, source=write_onnx(tmp_path / "no_attention.onnx"), importance="all")
    with pytest.raises(CompileError, match="no attention is to be seen"):
        compile_model(fused)
    with pytest.raises(ConfigError, match="importance must be at least 1"):
        dataclasses.replace(options, importance=0)


def test_a_graph_is_added_to_once(first_build: FirstBuild) -> None:
    graph = Graph(first_build.options.out / "tiny_dynamic" / "1" / GRAPH)
    before = len(graph.model.graph)
    assert add_importance(graph.model, last=None) == (LAYERS, LAYERS)
    assert len(graph.model.graph) - before < 10  # two products, and what makes rows of them


@pytest.mark.parametrize(("text", "meant"), [("all", "all"), ("last:3", 3)])
def test_layers_are_named(text: str, meant: Any) -> None:
    assert parse_importance(text) == meant


@pytest.mark.parametrize("text", ["", "last", "last:0", "last:-1", "first:2", "3"])
def test_other_layers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write all, or last:K"):
        parse_importance(text)


def test_the_laws_find_padding_that_counts() -> None:
    laws = ImportanceLaws(Importance(layers=2, of_layers=6, heads=3), "fp32")
    row = np.array([20, 2, 2, 0], np.float32)
    laws.answer(row, "row 0")
    laws.surroundings(row, row * np.float32(1 + 5e-6), "row 0")
    assert laws.missed() == []
    laws.answer(row * np.float32(9 / 4), "row 1")  # five padded queries were counted
    laws.surroundings(row, row + np.array([0, 1e-3, 0, 0], np.float32), "row 2, padded further")
    sums, changes = laws.missed()
    assert "does not sum to 6 a token, by a share of 1.2" in sums
    assert sums.endswith("row 1")
    assert changes.endswith("row 2, padded further")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_the_laws_refuse_what_is_no_importance(bad: float) -> None:
    laws = ImportanceLaws(Importance(layers=1, of_layers=1, heads=1), "bf16")
    laws.answer(np.array([bad, 2 - bad], np.float32), "row 0")
    assert laws.missed()
