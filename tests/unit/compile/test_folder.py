"""JSON files of model folders: every value that is read may be of any type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arlo.compile import CompileOptions
from arlo.compile.cache import Hasher
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.folder import Kind, Settings, read_folder
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.errors import ConfigError
from tests.fakes.tiny_model import DIM, write_onnx, write_shell, write_tiny

with known_noise_silenced():
    from sentence_transformers import SentenceTransformer

SCALARS = (None, True, 0, -1, 1.5, 10**30, "", "abc", "2")
WRONG = (*SCALARS, [], [None], ["a"], [[]], {}, {"a": 5}, {"a": ["b"]}, {"0": None})
LABELS = '{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": {'
FULL = {"type_vocab_size": 2, "vocab_size": 400, "pad_token_id": 0, "num_attention_heads": 2}


def read(source: Path) -> SourceModel:
    return resolve(CompileOptions(source=source, out=Path("out"), lengths=None), Hasher())


def embedder(folder: Path) -> Path:
    write_shell(folder, **FULL)
    kinds = {
        "Transformer": {},
        "Pooling": {"pooling_mode": "mean", "include_prompt": True},
        "Dense": {"in_features": DIM, "out_features": 8, "bias": True, "use_residual": False},
        "LayerNorm": {"dimension": 8},
        "Normalize": {},
    }
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": "" if kind == "Transformer" else kind}
        for kind in kinds
    ]
    for module, config in zip(listed, kinds.values(), strict=True):
        (folder / module["path"]).mkdir(exist_ok=True)
        if config:
            (folder / module["path"] / "config.json").write_text(json.dumps(config))
            (folder / module["path"] / "model.safetensors").write_bytes(b"")
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 20, "do_lower_case": true, "tokenizer_args": {}}'
    )
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "ask: "}}')
    return folder


def classifier(folder: Path) -> Path:
    write_shell(folder, architectures=["BertForSequenceClassification"], id2label={"0": "x", "1": "y"}, **FULL)
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 20}')
    return folder


def pictures(folder: Path) -> Path:
    sizes = {"image_size": 16, "patch_size": 8, "num_channels": 3}
    return write_shell(folder, model_type="vit", architectures=["ViTForImageClassification"], **FULL, **sizes)


def graph(folder: Path) -> Path:
    write_shell(folder, **FULL)
    return write_onnx(folder / "model.onnx")


@pytest.mark.parametrize("make", [embedder, classifier, pictures, graph])
def test_any_value_is_read_or_refused_by_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path]
) -> None:
    source = make(tmp_path / "m")
    asked: dict[tuple[Path, str], Kind[Any]] = {}

    def watched(self: Settings, key: str, kind: Kind[Any], default: Any) -> Any:
        asked[self.path, key] = kind
        return original(self, key, kind, default)

    original = Settings.read
    monkeypatch.setattr(Settings, "read", watched)
    read(source)
    monkeypatch.undo()
    table: dict[tuple[Path, str], Kind[Any] | None] = {
        **{(path, key): None for path in tmp_path.rglob("*.json") for key in written(path)},
        **{(path, key): kind for (path, key), kind in asked.items() if path.is_relative_to(tmp_path)},
    }
    assert len(asked) > 5
    for (path, key), kind in table.items():
        before = path.read_bytes() if path.is_file() else None
        for value in WRONG:
            path.write_text(changed(before, key, value))
            said = refusal(source)
            if kind is not None and value is not None and not kind.fits(value):
                assert said is not None, (path, key, value)
                assert path.name in said, (key, value)
                assert key in said, (path, value)
        path.unlink() if before is None else path.write_bytes(before)


def refusal(source: Path) -> str | None:
    """Why it is not served; any error but ConfigError is a fault."""
    try:
        read(source)
    except ConfigError as error:
        return str(error)
    return None


def written(path: Path) -> set[str]:
    """Keys of a JSON file, or of the objects that it lists."""
    found = json.loads(path.read_bytes())
    return {key for each in (found if isinstance(found, list) else [found]) for key in each}


def changed(text: bytes | None, key: str, value: Any) -> str:
    found = json.loads(text or b"{}")
    for each in found if isinstance(found, list) else [found]:
        each[key] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("config.json", '{"model_type": "bert", "architectures": "BertModel"}', 'architectures = "BertModel" is not a'),
        ("config.json", '{"model_type": "\\ud800"}', "surrogates not allowed"),
        ("config.json", LABELS + '"0": "x", "2": "y"}}', "id2label = .* does not name the labels from 0 on"),
        ("config.json", LABELS + '"0": "x", "1": null}}', "id2label = .* does not name"),
        ("config.json", LABELS + '"0": "x", "one": "y"}}', "id2label = .* does not name"),
        ("Pooling/config.json", '{"pooling_mode": []}', r"pooling_mode = \[\] names no mode: use cls, max"),
        ("Pooling/config.json", '{"pooling_mode": "median"}', "pooling 'median' is unknown"),
        ("sentence_bert_config.json", '{"query_length": 32}', "query_length = 32 cannot be served: remove it"),
        ("sentence_bert_config.json", '{"document_length": 32}', "document_length = 32 cannot"),
        ("sentence_bert_config.json", '{"query_expansion": {"strategy": "fixed"}}', "query_expansion = "),
        ("sentence_bert_config.json", '{"model_args": {"variant": "fp16"}}', 'model_args = {"variant": "fp16"} cannot'),
        ("sentence_bert_config.json", '{"model_kwargs": {"use_safetensors": false}}', "model_kwargs = "),
        ("sentence_bert_config.json", '{"tokenizer_name_or_path": "x"}', 'tokenizer_name_or_path = "x" cannot'),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "max_seq_length = 0 is not a whole number above 0"),
    ],
)
def test_the_words_name_what_is_wrong(tmp_path: Path, file: str, text: str, says: str) -> None:
    folder = classifier(tmp_path) if LABELS in text else embedder(tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(ConfigError, match=f"{file}.*{says}"):
        read(folder)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ((0, 1, 1), "two modules Pooling: keep one"),
        ((1, 0), "lists Pooling, Transformer, .* one Transformer, as the first"),
        ((0, 0, 1), "lists Transformer, Transformer, Pooling, "),
        ((1,), "lists Pooling, "),
        ((), "lists no modules"),
    ],
)
def test_modules_stand_in_the_order_in_which_they_run(tmp_path: Path, order: tuple[int, ...], says: str) -> None:
    file = embedder(tmp_path) / "modules.json"
    listed = json.loads(file.read_text())
    file.write_text(json.dumps([listed[number] for number in order]))
    with pytest.raises(ConfigError, match=says):
        read(tmp_path)


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        ({"max_seq_length": 1e30}, None),
        ({"max_seq_length": 9, "tokenizer_args": {"model_max_length": None}}, None),
        ({"max_seq_length": 9, "tokenizer_args": {"max_len": 7}}, 9),
        ({"tokenizer_args": {"max_len": 7}}, 20),
        ({"tokenizer_args": {"model_max_length": 11}, "processor_kwargs": {"model_max_length": 12}}, 11),
        ({"tokenizer_args": {}, "processor_kwargs": {"model_max_length": 12}}, 20),
        ({"model_args": {"trust_remote_code": True}, "processor_kwargs": {"subfolder": "x", "revision": "y"}}, 20),
        ({"query_length": None, "query_expansion": None, "unpad_inputs": False}, 20),
    ],
)
def test_options_of_the_tokenizer_are_those_of_sentence_transformers(
    tmp_path: Path, said: dict[str, Any], limit: int | None
) -> None:
    folder = write_tiny(tmp_path, pooling={})
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 20}')
    (folder / "sentence_bert_config.json").write_text(json.dumps(said))
    with known_noise_silenced():
        theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True).max_seq_length
    found = read_folder(folder)
    assert (found.longest, theirs if limit else None) == (limit, limit)
    assert theirs == limit or theirs > 10**20
    assert not {"subfolder", "revision"} & found.tokenizer_options.keys()
