"""Families of models and their tasks from the folder to an engine, in each precision.

Small models of real configurations with random weights go through export, clean-up and specialise. ONNX Runtime then
answers padded rows and is compared with torch on the bare ones, and tensorrt_rtx builds an engine from the same graph.
One family of each kind runs here, with ARLO_ALL_FAMILIES=1 every one in every precision; docs/models.md says what
was seen.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from arlo.compile import CompileOptions
from arlo.compile.cache import Cache, Hasher, link_or_copy
from arlo.compile.engines.interface import EngineSettings, Precision, get_engine
from arlo.compile.original import load_original
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.compile.steps.cleanup import cleanup_step
from arlo.compile.steps.export import export_step, outputs_of
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.compile.steps.specialise import specialise
from tests.fakes.tiny_model import FAMILIES, LABELS, MAX_TOKENS, VOCABULARY, write_tiny

LENGTH = 24
TEXTS = (LENGTH, 17, 9, 3)  # tokens of the rows
HEADS = {
    "embedding": "",
    "sequence-classification": "ForSequenceClassification",
    "reranker": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
}
# Largest difference in units of the largest answer. Half precision has 11 bits, and errors of all layers add up.
TOLERANCE = {"fp32": 1e-5, "fp16": 4e-3}

CHOSEN: list[tuple[str, str, Precision]] = [
    ("distilbert", "reranker", "fp32"),
    ("modernbert", "token-classification", "fp32"),
    ("deberta-v2", "embedding", "fp16"),
    ("electra", "token-classification", "fp16"),
    ("albert", "sequence-classification", "bf16"),
    ("xlm-roberta", "embedding", "bf16"),
]
REFUSED = ("convbert", "fnet", "longformer")
TASKS = tuple(HEADS)
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
EVERY: list[tuple[str, str, Precision]] = [
    (family, TASKS[(number + shift) % len(TASKS)], precision)
    for number, family in enumerate(name for name in FAMILIES if name not in REFUSED)
    for shift, precision in enumerate(PRECISIONS)
]


@pytest.mark.long
@pytest.mark.parametrize(("family", "task", "precision"), EVERY if os.environ.get("ARLO_ALL_FAMILIES") else CHOSEN)
def test_a_family_from_folder_to_engine(tmp_path: Path, family: str, task: str, precision: Precision) -> None:
    source = write_tiny(tmp_path / "model", family=family, head=HEADS[task], labels=1 if task == "reranker" else LABELS)
    hasher = Hasher()
    model = resolve(CompileOptions(source=source, out=tmp_path / "out", lengths=(LENGTH, MAX_TOKENS)), hasher)
    assert (model.task, model.max_tokens) == (task, MAX_TOKENS)
    cache = Cache(tmp_path / "cache", hasher)
    exported = export_step(cache, model, precision)
    cleaned = cleanup_step(cache, exported)
    assert cleaned.meta["nodes_after"] <= cleaned.meta["nodes_before"]
    assert exported.meta["notes"] == []
    folder = tmp_path / "static"
    folder.mkdir()
    specialise(cleaned.folder, {"tokens": LENGTH, "rows": 1}, folder)
    link_or_copy(cleaned.folder / WEIGHTS, folder / WEIGHTS)

    kinds = {node.op_type for node in onnx.load(str(folder / GRAPH), load_external_data=False).graph.node}
    assert not kinds & {"Shape", "Range", "ConstantOfShape", "If", "Loop"}, "shape arithmetic is left"
    assert model.weight_bytes * (1.1 if precision == "fp32" else 0.65) > (cleaned.folder / WEIGHTS).stat().st_size
    if precision != "bf16":  # ONNX Runtime has no kernels for it on a CPU
        texts = [np.random.default_rng(5).integers(5, VOCABULARY, size=tokens) for tokens in TEXTS]
        expected = _torch(model, texts)
        largest = max(float(np.abs(answer).max()) for answer in expected)
        for opened, rows, width in ((cleaned.folder, 4, MAX_TOKENS), (cleaned.folder, 4, LENGTH), (folder, 1, LENGTH)):
            answers = _onnxruntime(model, opened / GRAPH, outputs_of(exported)[0].name, texts, rows=rows, width=width)
            for got, wanted in zip(answers, expected, strict=True):
                real = got[: len(wanted)] if wanted.ndim == 2 else got
                assert np.abs(real - wanted).max() <= TOLERANCE[precision] * largest, f"padded to {width}"

    engine = get_engine("tensorrt-rtx", EngineSettings(precision=precision, compute_capabilities=("SM86",)))
    spec = RuntimeSpec(name="tiny", max_length=LENGTH, max_batch=1, shape="static")
    (tmp_path / "engine").mkdir()
    (tmp_path / "scratch").mkdir()
    engine.build(folder / GRAPH, folder / WEIGHTS, spec, tmp_path / "engine", scratch=tmp_path / "scratch")
    assert sum(path.stat().st_size for path in (tmp_path / "engine").iterdir()) > 100_000


def _onnxruntime(model: SourceModel, graph: Path, output: str, texts: list[Any], *, rows: int, width: int) -> list[Any]:
    """Answers to texts that are padded to `width`, `rows` of them at a time."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    answers: list[Any] = []
    for start in range(0, len(texts), rows):
        answers.extend(session.run([output], _padded(model, texts[start : start + rows], width))[0])
    return answers


def _torch(model: SourceModel, texts: list[Any]) -> list[Any]:
    with known_noise_silenced():
        import torch

        original = load_original(model)
    answers = []
    for text in texts:
        ids = torch.tensor(text).unsqueeze(0)
        with torch.inference_mode():
            answer = original(input_ids=ids, attention_mask=torch.ones_like(ids))
        answers.append((answer.last_hidden_state.mean(1) if model.task == "embedding" else answer.logits)[0].numpy())
    return answers


def _padded(model: SourceModel, texts: list[Any], width: int) -> dict[str, Any]:
    feed = {tensor.name: np.full((len(texts), width), tensor.pad_value, np.int64) for tensor in model.inputs}
    for row, text in enumerate(texts):
        feed["input_ids"][row, : len(text)] = text
        feed["attention_mask"][row, : len(text)] = 1
    return feed
