"""ONNX files as the source: what is read from them, and what is refused with advice before anything is built."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from arlo.compile import CompileOptions
from arlo.compile.cache import Hasher
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.compile.steps.resolve_onnx import OPSETS
from arlo.errors import ConfigError
from tests.fakes.tiny_model import MAX_TOKENS, write_onnx, write_shell


def read(path: Path, **options: Any) -> SourceModel:
    return resolve(CompileOptions(**({"source": path, "out": Path("out"), "lengths": (16,)} | options)), Hasher())


def test_a_bare_file(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "my model.onnx")
    model = read(path)
    assert (model.onnx, model.name, model.source, model.folder) == (path, "my-model", path.name, tmp_path)
    assert (model.task, model.pooling, model.normalize, model.max_tokens) == ("embedding", ("mean",), False, None)
    assert [(t.name, t.datatype, t.role, t.pad_value) for t in model.inputs] == [
        ("input_ids", "INT64", "ids", 0),
        ("attention_mask", "INT64", "mask", 0),
    ]
    assert model.hashes.keys() == {path.name}
    assert len(model.notes) == 3
    assert any("no tokenizer" in note for note in model.notes)


def test_the_folder_around_it_is_read(tmp_path: Path) -> None:
    """As sentence-transformers saves it: the file in a folder `onnx`, all else above."""
    (tmp_path / "onnx").mkdir()
    path = write_onnx(tmp_path / "onnx" / "model.onnx", inputs=("token_type_ids", "attention_mask", "input_ids"))
    config = {"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": MAX_TOKENS + 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    kinds = {"Transformer": "", "Pooling": "1", "Normalize": "2"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.json").write_text('{"pooling_mode": "cls"}')
    model = read(path)
    assert (model.pooling, model.normalize, model.max_tokens) == (("cls",), True, MAX_TOKENS)
    assert (model.model_type, model.tokenizer_folder) == ("roberta", tmp_path)
    assert [(t.name, t.pad_value, t.optional) for t in model.inputs] == [
        ("input_ids", 1, False),
        ("attention_mask", 0, False),
        ("token_type_ids", 0, True),
    ]
    assert model.notes == ()
    with pytest.raises(ConfigError, match=f"positions for {MAX_TOKENS} tokens"):
        read(path, lengths=(MAX_TOKENS + 1,))
    with pytest.raises(ConfigError, match=f"max_length {MAX_TOKENS + 1} is longer"):
        read(path, lengths="auto", max_length=MAX_TOKENS + 1)
    (tmp_path / "other").mkdir()
    assert read(path, tokenizer=tmp_path / "other").tokenizer_folder == tmp_path  # it has none
    (tmp_path / "other" / "vocab.txt").write_text("")
    assert read(path, tokenizer=tmp_path / "other").tokenizer_folder == tmp_path / "other"
    with pytest.raises(ConfigError, match=r"tokenizer .* is not a folder"):
        read(path, tokenizer=tmp_path / "absent")


@pytest.mark.parametrize(
    ("outputs", "labels", "task", "pooling"),
    [
        (("last_hidden_state", "pooler_output"), 3, "embedding", ("mean",)),
        (("last_hidden_state", "sentence_embedding"), 3, "embedding", ()),
        (("logits",), 3, "sequence-classification", ()),
        (("logits",), 1, "reranker", ()),
        (("token_logits",), 3, "token-classification", ()),
    ],
)
def test_the_task_is_read_from_the_outputs(
    tmp_path: Path, outputs: tuple[str, ...], labels: int, task: str, pooling: tuple[str, ...]
) -> None:
    path = write_onnx(tmp_path / "model.onnx", outputs=outputs, labels=labels)
    assert (read(path).task, read(path).pooling) == (task, pooling)
    assert read(path, task=task).task == task


def test_a_task_that_the_outputs_do_not_answer(tmp_path: Path) -> None:
    hidden = write_onnx(tmp_path / "hidden.onnx")
    with pytest.raises(ConfigError, match="no output `logits`, only last_hidden_state: choose --task embedding"):
        read(hidden, task="reranker")
    with pytest.raises(ConfigError, match="are not those of token-classification"):
        read(write_onnx(tmp_path / "rows.onnx", outputs=("logits",)), task="token-classification")


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (("input_ids", "attention_mask", "past_key_values.0.key"), "graph of a decoder"),
        (("input_ids", "attention_mask", "decoder_input_ids"), "graph of a decoder"),
        (("input_ids", "attention_mask", "position_ids"), "takes position_ids, which the gateway cannot make"),
    ],
)
def test_inputs_that_cannot_be_made(tmp_path: Path, inputs: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(write_onnx(tmp_path / "model.onnx", inputs=inputs))


def test_a_mask_is_needed(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "model.onnx")
    proto = onnx.load(str(path))
    proto.graph.input[1].name = "mask_of_mine"
    onnx.save(proto, str(path))
    with pytest.raises(ConfigError, match="no input attention_mask, only input_ids, mask_of_mine"):
        read(path)


def test_fixed_axes_are_taken_only_as_they_are(tmp_path: Path) -> None:
    tokens = write_onnx(tmp_path / "tokens.onnx", axes=("batch", 24))
    for options in ({"lengths": (16, 24)}, {"lengths": (16,), "dynamic": False}, {"lengths": (24,)}):
        with pytest.raises(ConfigError, match=r"takes 24 tokens and no other number: .*--lengths 24 --no-dynamic"):
            read(tokens, **options)
    assert read(tokens, lengths=(24,), dynamic=False).max_tokens == 24
    rows = write_onnx(tmp_path / "rows.onnx", axes=(1, "sequence"))
    with pytest.raises(ConfigError, match=r"batches of 1 rows and no others: .*--max-batch 1"):
        read(rows, max_batch=4)
    assert read(rows).task == "embedding"


def test_the_precision_of_the_file(tmp_path: Path) -> None:
    full, half = write_onnx(tmp_path / "full.onnx"), write_onnx(tmp_path / "half.onnx", half=True)
    assert read(full, precision="fp16").onnx == full
    assert read(half, precision="fp16").onnx == half
    with pytest.raises(ConfigError, match="converted to fp16 only"):
        read(full, precision="bf16")
    with pytest.raises(ConfigError, match="computes in fp16: ask for --precision fp16"):
        read(half)


@pytest.mark.parametrize(
    ("opset", "says"),
    [(OPSETS.start - 1, r"convert it with onnx\.version_converter"), (OPSETS.stop, "export it again with an opset of")],
)
def test_opsets_that_the_engines_do_not_take(tmp_path: Path, opset: int, says: str) -> None:
    with pytest.raises(ConfigError, match=f"has opset {opset} and the engines take .*{says}"):
        read(write_onnx(tmp_path / "model.onnx", opset=opset))


def test_weights_must_be_there_and_whole(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "model.onnx", external=True)
    weights = tmp_path / "model.onnx.data"
    whole = weights.read_bytes()
    model = read(path)
    assert (model.hashes.keys(), model.weight_bytes) == ({path.name, weights.name}, len(whole))
    weights.write_bytes(whole[:-1])
    with pytest.raises(ConfigError, match=f"has {len(whole) - 1} bytes where {len(whole)} are named"):
        read(path)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"lacks its weights \(model\.onnx\.data\)"):
        read(path)
    proto = onnx.load(str(path), load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigError, match="weights outside its folder"):
        read(path)


def test_what_is_no_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content in (b"not a protobuf at all", b""):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="is not an ONNX"):
            read(path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for name in ("model_fp16.onnx", "model_quantized.onnx"):
        path.rename(tmp_path / name)
        path.write_bytes(b"")
    path.unlink()
    with pytest.raises(ConfigError, match=r"has no weights .*give the ONNX file itself, as .*model_fp16\.onnx"):
        read(tmp_path)


@pytest.mark.parametrize("place", ["onnx/model.onnx", "model.onnx", "onnx/only.onnx"])
def test_a_folder_is_its_onnx_file_where_its_weights_cannot_be_read(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shell(tmp_path / "bert", weights=False)
    (folder / "onnx").mkdir()
    path = write_onnx(folder / place)
    (folder / "vocab.txt").write_text("[PAD]")
    model = read(folder)
    assert (model.onnx, model.name, model.tokenizer_folder) == (path, "bert", folder)
    assert f"compiled from {place}: the folder has no other weights" in model.notes
    with pytest.raises(ConfigError, match="has no weights"):
        read(folder, engine="torch")
    write_shell(folder)
    assert read(folder).onnx is None
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert read(folder).onnx == path
    assert f"compiled from {place}: PyTorch is not installed" in read(folder).notes


def test_outputs_of_other_shapes(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "model.onnx")
    proto = onnx.load(str(path))
    del proto.graph.output[0].type.tensor_type.shape.dim[1:]
    proto.graph.node.append(onnx.helper.make_node("ReduceSum", ["last_hidden_state"], ["sum"], keepdims=0))
    proto.graph.output[0].name = "sum"
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(proto, str(path))
    with pytest.raises(ConfigError, match=r"no output of the shape \[rows, numbers\].*only sum"):
        read(path)
