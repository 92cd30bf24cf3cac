"""What a model folder says, and what is refused before torch is even imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arlo.compile import DEMO_MODEL, CompileOptions, demo_model_path
from arlo.compile.cache import Hasher
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.errors import ConfigError
from tests.fakes.tiny_model import MAX_TOKENS, write_shell


def read(folder: Path, **options: Any) -> SourceModel:
    return resolve(CompileOptions(**({"source": folder, "out": Path("out"), "lengths": (16,)} | options)), Hasher())


def test_the_demo_model() -> None:
    model = read(Path(DEMO_MODEL), lengths=(256,))
    assert (model.folder, model.name, model.task) == (demo_model_path(), DEMO_MODEL, "embedding")
    assert (model.pooling, model.normalize, model.max_tokens) == (("mean",), True, 256)
    assert [tensor.name for tensor in model.inputs] == ["input_ids", "attention_mask", "token_type_ids"]


def test_a_plain_folder_is_an_embedder_with_mean_pooling_and_says_so(tmp_path: Path) -> None:
    model = read(write_shell(tmp_path / "My model!"))
    assert (model.name, model.task, model.pooling, model.normalize) == ("My-model", "embedding", ("mean",), False)
    assert "no modules.json" in model.notes[0]
    assert read(write_shell(tmp_path / ("x" * 250))).name == "x" * 200


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForMaskedLM", "embedding"),
        ("BertForSequenceClassification", "sequence-classification"),
        ("RobertaForTokenClassification", "token-classification"),
    ],
)
def test_the_task_is_read_from_the_folder(tmp_path: Path, architecture: str, task: str) -> None:
    assert read(write_shell(tmp_path, architectures=[architecture])).task == task


def test_an_unknown_head_asks_for_the_task(tmp_path: Path) -> None:
    folder = write_shell(tmp_path, architectures=["BertForMultipleChoice"])
    with pytest.raises(ConfigError, match="say --task"):
        read(folder)
    assert read(folder, task="embedding").task == "embedding"


@pytest.mark.parametrize(
    ("config", "limit", "pad", "types"),
    [
        ({"pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 77}, MAX_TOKENS, 0, True),
        ({"model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1}, MAX_TOKENS - 2, 1, False),
        ({"model_type": "distilbert", "pad_token_id": None}, MAX_TOKENS, 0, False),
        ({"model_type": "deberta-v2", "type_vocab_size": 0}, MAX_TOKENS, 0, False),
    ],
)
def test_limits_and_inputs_by_family(tmp_path: Path, config: dict[str, Any], limit: int, pad: int, types: bool) -> None:
    folder = write_shell(tmp_path, **config)
    model = read(folder, lengths=(limit,))
    assert (model.max_tokens, model.inputs[0].pad_value, len(model.inputs) == 3) == (limit, pad, types)
    assert model.inputs[0].vocabulary == config.get("vocab_size", 0)
    with pytest.raises(ConfigError, match=f"length {limit + 1} .* positions for {limit} tokens"):
        read(folder, lengths=(16, limit + 1))


def test_what_is_no_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        read(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="has no weights"):
        read(write_shell(tmp_path / "bare", weights=False))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no model_type"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "decoder-only model .gpt2."),
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, "decoder-only"),
        ({"model_type": "brand-new", "architectures": ["BrandNewForCausalLM"]}, "decoder-only"),
        ({"is_decoder": True}, "decoder-only"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_models_that_generate_are_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(write_shell(tmp_path, **config))


def test_shards_must_all_be_there(tmp_path: Path) -> None:
    folder = write_shell(tmp_path, weights=False)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.bin", "b": "two.bin"}}')
    (folder / "one.bin").write_bytes(b"1")
    with pytest.raises(ConfigError, match=r"lacks weights \(two.bin\)"):
        read(folder)
    (folder / "two.bin").write_bytes(b"22")
    assert read(folder).weight_bytes > 3


def test_weights_that_are_not_whole(tmp_path: Path) -> None:
    folder = write_shell(tmp_path)
    weights = folder / "model.safetensors"
    header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert read(folder).weight_bytes == len(header) + 16
    for content in (weights.read_bytes()[:-1], weights.read_bytes()[:20], b"short", b"\x02" + bytes(7) + b"[]"):
        weights.write_bytes(content)
        with pytest.raises(ConfigError, match=r"not a whole safetensors file .*copy it again"):
            read(folder)
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 8\n")
    with pytest.raises(ConfigError, match=r"pointer of Git LFS.*git lfs pull"):
        read(folder)


def test_one_label_makes_a_reranker(tmp_path: Path) -> None:
    folder = write_shell(tmp_path, architectures=["BertForSequenceClassification"], id2label={"0": "LABEL_0"})
    assert read(folder).task == "reranker"
    assert read(folder, task="sequence-classification").task == "sequence-classification"
    write_shell(tmp_path, architectures=["BertForSequenceClassification"])  # two labels, as transformers has it
    with pytest.raises(ConfigError, match="has 2 labels and a reranker has one"):
        read(folder, task="reranker")


def test_lengths_chosen_later_are_bounded_now(tmp_path: Path) -> None:
    folder = write_shell(tmp_path)
    assert read(folder, lengths="auto").max_tokens == MAX_TOKENS
    assert read(folder, lengths="auto", max_length=MAX_TOKENS).max_tokens == MAX_TOKENS
    with pytest.raises(ConfigError, match=f"max_length {MAX_TOKENS + 1} is longer than the model can read"):
        read(folder, lengths="auto", max_length=MAX_TOKENS + 1)
    relative = write_shell(tmp_path, max_position_embeddings=-1)  # as some DeBERTa configurations have it
    assert read(relative, lengths=(4096,)).max_tokens is None


def test_texts_beyond_the_limit_are_for_who_asks(tmp_path: Path) -> None:
    folder = write_shell(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 20}')
    with pytest.raises(ConfigError, match=r"length 21 is longer than the model can read: .* up to 20"):
        read(folder, lengths=(21,))
    assert read(folder, lengths=(MAX_TOKENS,), beyond_limit=True).max_tokens == MAX_TOKENS


def test_prompts_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    folder = write_shell(tmp_path)
    file = folder / "config_sentence_transformers.json"
    told = {"prompts": {"query": "query: ", "document": "", "odd": None}, "default_prompt_name": "query"}
    file.write_text(json.dumps(told | {"truncate_dim": 8}))
    assert read(folder).prompts == {}, "without modules.json sentence-transformers does not read it"
    (folder / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.Transformer", "path": ""},'
        ' {"type": "sentence_transformers.models.Pooling", "path": "1"}]'
    )
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text("{}")
    model = read(folder)
    assert model.prompts == {"query": "query: ", "document": "", "odd": ""}
    assert (model.default_prompt, model.dimensions) == ("query", 8)
    file.write_text(json.dumps(told | {"default_prompt_name": "other"}))
    with pytest.raises(ConfigError, match='default_prompt_name = "other" is none of its prompts'):
        read(folder)
