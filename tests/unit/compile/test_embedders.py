"""Layers behind the pooling, decoders and encoders of T5 in torch, against sentence-transformers.

tests/integration/test_folder_matrix.py has them in ONNX Runtime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo.compile import CompileOptions
from arlo.compile.cache import Hasher
from arlo.compile.layers import NumpyLayers
from arlo.compile.pooling import pool_numpy
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.export_torch import export_torch
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.errors import ConfigError
from arlo.templates.torch.session import Session
from tests.fakes.embedders import MODELS, WIDTH, write_embedder
from tests.fakes.tiny_model import VOCABULARY

with known_noise_silenced():
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, LayerNorm, Normalize

LENGTHS = (1, 7, 12, 20)


def layers() -> list[Any]:
    torch.manual_seed(2)
    norm = LayerNorm(dimension=24)
    torch.nn.init.normal_(norm.norm.weight)
    return [
        Dense(in_features=2 * WIDTH, out_features=12, activation_function=torch.nn.GELU()),
        Normalize(),
        Dense(in_features=12, out_features=24, bias=False),
        norm,
        Dense(in_features=24, out_features=9, activation_function=torch.nn.Identity()),
        Normalize(),
    ]


def resolved(source: Path) -> SourceModel:
    return resolve(CompileOptions(source=source, out=source / "out", lengths=(20,)), Hasher())


def rows(model: SourceModel) -> tuple[list[NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
    """Rows, and the same padded on the right."""
    texts = [np.random.default_rng(length).integers(5, VOCABULARY, size=length) for length in LENGTHS]
    feed = {tensor.name: np.zeros((len(texts), max(LENGTHS) + 3), np.int64) for tensor in model.inputs}
    for row, text in enumerate(texts):
        feed["input_ids"][row, : len(text)] = text
        feed["attention_mask"][row, : len(text)] = 1
    return texts, feed


def theirs(source: Path, texts: list[NDArray[np.int64]]) -> list[dict[str, NDArray[np.float32]]]:
    with known_noise_silenced():
        model = SentenceTransformer(str(source), device="cpu")
    found = []
    for text in texts:
        ids = torch.from_numpy(text)[None]
        with torch.inference_mode():
            answer = model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        found.append({name: answer[name][0].numpy() for name in ("sentence_embedding", "token_embeddings")})
    return found


@pytest.mark.parametrize(
    ("name", "pooling", "kind"),
    [
        ("bert", ["mean", "cls"], "dynamic"),
        ("bert", ["mean", "cls"], "packed"),
        ("qwen3", "lasttoken", "dynamic"),
        ("t5", "mean", "dynamic"),
    ],
)
def test_embeddings_are_those_of_sentence_transformers(
    tmp_path: Path, name: str, pooling: str | list[str], kind: str
) -> None:
    behind = layers() if len(pooling) == 2 else [Dense(in_features=WIDTH, out_features=12), Normalize()]
    source = write_embedder(tmp_path / "m", name, pooling=pooling, layers=behind, padding_side="left")  # type: ignore[arg-type]
    model = resolved(source)
    texts, feed = rows(model)
    meta = export_torch(model, "fp32", tmp_path)
    assert tuple(meta["outputs"][0]["dims"]) == ((9,) if len(pooling) == 2 else (12,))
    (answers,) = Session(tmp_path, kinds=(kind,), max_rows=8).run(["sentence_embedding"], feed)
    reference = NumpyLayers(model.layers, normalize=model.normalize)
    for answer, each in zip(answers, theirs(source, texts), strict=True):
        np.testing.assert_allclose(answer, each["sentence_embedding"], atol=2e-6)
        ours = reference(pool_numpy(each["token_embeddings"], model.pooling))
        np.testing.assert_allclose(ours, each["sentence_embedding"], atol=2e-6)


def test_without_a_pooling_they_are_refused(tmp_path: Path) -> None:
    for name in MODELS:
        source = write_embedder(tmp_path / name, name)
        (source / "modules.json").unlink()
        if name in ("bert", "t5"):  # an encoder alone is one
            assert resolved(source).task == "embedding"
            continue
        with pytest.raises(ConfigError, match="decoder-only model"):
            resolved(source)


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        (
            "2_Dense/config.json",
            '{"in_features": 32, "out_features": 8, "activation_function": "my.Own"}',
            "activation",
        ),
        ("2_Dense/config.json", "[]", "no JSON object"),
        ("sentence_bert_config.json", '{"transformer_task": "fill-mask"}', "= .fill-mask. cannot be served"),
        ("sentence_bert_config.json", '{"modality_config": {"message": {}}}', "chat templates"),
        ("sentence_bert_config.json", '{"config_kwargs": {"is_causal": false}}', "config_kwargs"),
        ("config_sentence_transformers.json", '{"model_type": "SparseEncoder"}', "= .SparseEncoder. has answers"),
        ("modules.json", '[{"type": "custom_st.Transformer", "path": ""}]', "a module of its own code"),
        ("modules.json", '[{"type": "sentence_transformers.models.CNN", "path": ""}]', "a module CNN"),
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling", "path": "../x"}]', "outside the folder"),
        ("adapter_config.json", "{}", "adapter"),
        ("config.json", '{"model_type": "bert", "architectures": ["X"], "id2label": {"joy": 0}}', "id2label"),
    ],
)
def test_what_cannot_be_served_as_the_folder_says_is_refused(tmp_path: Path, path: str, text: str, says: str) -> None:
    source = write_embedder(tmp_path, "bert", layers=[Dense(in_features=WIDTH, out_features=12)])
    (source / path).write_text(text)
    options = CompileOptions(
        source=source, out=source / "out", lengths=(20,), task="sequence-classification" if "joy" in text else "auto"
    )
    with pytest.raises(ConfigError, match=says):
        resolve(options, Hasher())
