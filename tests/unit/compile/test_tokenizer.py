"""The tokenizer of a build gives the ids of AutoTokenizer, whatever the files of the folder are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from arlo.client.tokenizer import Tokenizer as ClientTokenizer
from arlo.compile import CompileOptions
from arlo.compile.cache import Cache, Entry, Hasher
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import resolve
from arlo.compile.steps.tokenizer import tokenizer_step
from arlo.errors import CompileError
from tests.fakes.tiny_model import write_shell, write_tokenizer

with known_noise_silenced():
    from transformers import AutoTokenizer

SPECIAL = ("[PAD]", "[CLS]", "[UNK]", "[SEP]", "[MASK]")
TEXTS = ("Amber FJORD", "caf\u00e9 \u00e9lan", "\u4f60\u597d the cat", "the new word [MASK] here", "  spaces  ", "")
NAMED = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}


def write(folder: Path, config: dict[str, Any] | None, files: dict[str, Any]) -> Path:
    write_shell(folder)
    write_tokenizer(folder, SPECIAL)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | NAMED | config))
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def step(folder: Path, cache: Path) -> Entry:
    hasher = Hasher()
    return tokenizer_step(
        Cache(cache, hasher), hasher, resolve(CompileOptions(source=folder, out=cache, lengths=(16,)), hasher)
    )


def ids_of(folder: Path, cache: Path) -> list[list[int]]:
    ours = Tokenizer.from_file(str(step(folder, cache).folder / "tokenizer.json"))
    return [ours.encode(text).ids for text in TEXTS] + [ours.encode(TEXTS[0], text).ids for text in TEXTS[:-1]]


def theirs(folder: Path) -> list[list[int]]:
    with known_noise_silenced():
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    return ids + [tokenizer(TEXTS[0], text)["input_ids"] for text in TEXTS[:-1]]


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (None, {}),
        ({"do_lower_case": False}, {}),
        ({"do_lower_case": True, "strip_accents": False}, {}),
        ({"tokenize_chinese_chars": False}, {}),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}, {}),
        ({}, {"added_tokens.json": {"new word": 400}}),
        ({"additional_special_tokens": ["the new"]}, {}),
        ({}, {"special_tokens_map.json": NAMED | {"mask_token": "the"}}),
        ({"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}, {}),
    ],
)
def test_ids_are_those_of_auto_tokenizer(tmp_path: Path, config: dict[str, Any] | None, files: dict[str, Any]) -> None:
    folder = write(tmp_path / "model", config, files)
    try:
        wanted = theirs(folder)
    except Exception:
        with pytest.raises(CompileError, match="transformers makes none"):
            step(folder, tmp_path / "cache")
        return
    assert ids_of(folder, tmp_path / "cache") == wanted


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
def test_another_file_is_another_tokenizer(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "model", {}, {"added_tokens.json": {"new word": 400}})
    first = step(folder, tmp_path / "cache")
    assert step(folder, tmp_path / "cache").cached
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert step(folder, tmp_path / "cache").key != first.key


def test_sentence_transformers_lower_cases_before_the_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", {"do_lower_case": False}, {})
    listed = [("Transformer", ""), ("Pooling", "1")]
    modules = [{"name": path, "path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in listed]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text('{"embedding_dimension": 32}')
    cased = ids_of(folder, tmp_path / "cache")
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    lower = ids_of(folder, tmp_path / "cache")
    assert lower != cased == theirs(folder)
    assert lower[0] == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXTS[0]).ids[: len(lower[0])]


def test_a_folder_without_one_says_so_and_one_that_is_damaged_is_refused(tmp_path: Path) -> None:
    folder = write_shell(tmp_path / "model")
    options = CompileOptions(source=folder, out=tmp_path, lengths=(16,))
    assert step(folder, tmp_path / "cache").meta == {"found": False}
    assert any("has no tokenizer: only token ids are served" in note for note in resolve(options, Hasher()).notes)
    (folder / "sentencepiece.bpe.model").write_bytes(b"no model")  # found by its kind, whatever its name
    with pytest.raises(CompileError, match="hold no vocabulary for a BertTokenizer"):
        step(folder, tmp_path / "cache")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CompileError, match=r"transformers makes none from the files in .* fast tokenizer"):
        step(folder, tmp_path / "cache")


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_are_cut_on_the_side_that_the_folder_says(tmp_path: Path, side: str) -> None:
    folder = write(tmp_path / "model", {"truncation_side": side}, {})
    with known_noise_silenced():
        wanted = AutoTokenizer.from_pretrained(str(folder))(list(TEXTS), truncation=True, max_length=5)["input_ids"]
    ours = ClientTokenizer(step(folder, tmp_path / "cache").folder).encode(TEXTS, cut_to=5)
    assert [each.ids.tolist() for each in ours] == wanted
