"""What `arlo up` makes of a model folder: its lengths, and a key that follows every file that is read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from arlo.cli.up.source import Source, attention_bytes, find_source, lengths_up_to
from arlo.errors import ConfigError
from tests.fakes.tiny_model import write_shell, write_tokenizer

ENGINE = ("onnxruntime", "cpu", "fp32")


def source(folder: Path, **options: Any) -> Source:
    return find_source(str(folder), name=None, install=False, engine=ENGINE, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sentence-transformers folder that reads 2,048 tokens and has positions for 4,096."""
    model = write_shell(tmp_path / "model", max_position_embeddings=4096, num_attention_heads=2)
    write_tokenizer(model)
    dense = {"in_features": 32, "out_features": 8, "activation_function": "torch.nn.modules.linear.Identity"}
    files: dict[str, Any] = {
        "tokenizer_config.json": {"model_max_length": 2048},
        "config_sentence_transformers.json": {"prompts": {"query": "query: "}},
        "1_Pooling/config.json": {"embedding_dimension": 32, "pooling_mode": "mean"},
        "2_Dense/config.json": dense,
        "modules.json": [
            {"type": f"sentence_transformers.models.{kind}", "path": path}
            for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
        ],
    }
    for name, content in files.items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(json.dumps(content))
    (model / "2_Dense" / "model.safetensors").write_bytes(b"weights")
    return model


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("1_Pooling/config.json", '{"embedding_dimension": 32, "pooling_mode": "cls"}'),
        ("2_Dense/config.json", '{"in_features": 32, "out_features": 8}'),
        ("2_Dense/model.safetensors", "other weights"),
        ("modules.json", None),
        ("config_sentence_transformers.json", '{"prompts": {"query": ""}}'),
        ("config_sentence_transformers.json", '{"prompts": {"query": "query: "}, "truncate_dim": 4}'),
        ("sentence_bert_config.json", '{"do_lower_case": true}'),
        ("sentence_bert_config.json", '{"max_seq_length": 100}'),
        ("tokenizer_config.json", '{"model_max_length": 2048, "do_lower_case": false}'),
        ("added_tokens.json", '{"new": 400}'),
        ("tokenizer.json", "{}"),
    ],
)
def test_another_file_is_another_build(folder: Path, name: str, text: str | None) -> None:
    before = source(folder)
    assert source(folder).key == before.key
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    assert source(folder).key != before.key


def test_the_key_does_not_depend_on_where_the_folder_lies(folder: Path) -> None:
    before = source(folder)
    moved = folder.parent / "elsewhere" / folder.name
    moved.parent.mkdir()
    folder.rename(moved)
    assert source(moved).key == before.key


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [
        (100, (64, 100)),
        (256, (64, 128, 192, 256)),
        (512, tuple(range(64, 513, 64))),
        (2048, (*range(64, 513, 64), 1024, 2048)),
        (3000, (*range(64, 513, 64), 1024, 2048, 3000)),
        (8192, (*range(64, 513, 64), 1024, 2048, 4096, 8192)),
    ],
)
def test_long_texts_need_few_lengths(longest: int, lengths: tuple[int, ...]) -> None:
    assert lengths_up_to(longest) == lengths


def test_the_longest_text_is_what_the_model_reads_as_far_as_memory_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source(folder)
    assert (found.lengths[-1], found.said) == (2048, "texts of up to 2048 tokens, all that the model reads")
    assert source(folder, max_length=700).lengths[-1] == 700
    assert source(folder, beyond_limit=True).lengths[-1] == 4096
    with pytest.raises(ConfigError, match=r"max_length 2049 .* model_max_length is 2048; name lengths up to 2048"):
        source(folder, max_length=2049)
    room = attention_bytes(SimpleNamespace(heads=2), 1024) * 8  # type: ignore[arg-type]
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=room))
    found = source(folder)
    assert found.lengths[-1] == 1024
    assert found.said.endswith("the model reads 2048: --max-length N for longer ones")
    assert source(folder, max_length=2048).lengths[-1] == 2048
