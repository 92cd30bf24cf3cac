"""The tokenizer of a build; tests/integration/test_folder_matrix.py compares its ids with those of AutoTokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arlo.compile import CompileOptions
from arlo.compile.cache import Cache, Entry, Hasher
from arlo.compile.steps.resolve import resolve
from arlo.compile.steps.tokenizer import tokenizer_step
from arlo.errors import CompileError
from tests.fakes.tiny_model import write_shell, write_tokenizer

SPECIAL = ("[PAD]", "[CLS]", "[UNK]", "[SEP]", "[MASK]")
NAMED = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}


def step(folder: Path, cache: Path) -> Entry:
    hasher = Hasher()
    return tokenizer_step(
        Cache(cache, hasher), hasher, resolve(CompileOptions(source=folder, out=cache, lengths=(16,)), hasher)
    )


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
def test_another_file_is_another_tokenizer(tmp_path: Path, name: str) -> None:
    folder = write_shell(tmp_path / "model")
    write_tokenizer(folder, SPECIAL)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | NAMED))
    (folder / "added_tokens.json").write_text('{"new word": 400}')
    first = step(folder, tmp_path / "cache")
    assert step(folder, tmp_path / "cache").cached
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert step(folder, tmp_path / "cache").key != first.key


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
