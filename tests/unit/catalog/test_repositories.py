"""Repositories: changed files are refused, the tokenizer is read as it is now, several models share a folder."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from arlo.catalog.files import MOST_BYTES, check_files, read_tokenizer
from arlo.catalog.joined import joined, link
from arlo.catalog.manifest import Manifest
from arlo.errors import ConfigError
from arlo.workers.emulated.repository import write_emulated_repository


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return write_emulated_repository(tmp_path, model="emu", max_lengths=(16, 64), latency_ms=(1, 2))


def test_what_was_compiled_is_served(tmp_path: Path, manifest: Manifest) -> None:
    check_files(tmp_path, manifest)


def test_a_changed_file_is_named(tmp_path: Path, manifest: Manifest) -> None:
    path = tmp_path / "emu_len64" / "config.pbtxt"
    path.write_text(path.read_text().replace("emu_len64", "emu_len65"))
    with pytest.raises(ConfigError, match=r"emu_len64/config.pbtxt has changed. Compile it again") as found:
        check_files(tmp_path, manifest)
    assert "emu_len16" not in str(found.value)


def test_a_missing_file_is_named_where_it_is_needed(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "emu_len16" / "config.pbtxt").unlink()
    with pytest.raises(ConfigError, match=r"emu_len16/config.pbtxt is missing"):
        check_files(tmp_path, manifest)
    check_files(tmp_path, manifest, must_exist=False)


def test_a_damaged_repository_is_named_in_a_few_words(tmp_path: Path) -> None:
    lengths = tuple(range(10, 90, 10))
    manifest = write_emulated_repository(tmp_path, model="emu", max_lengths=lengths, latency_ms=[1.0] * len(lengths))
    for length in lengths:
        (tmp_path / f"emu_len{length}" / "config.pbtxt").write_text("")
    with pytest.raises(ConfigError, match=r"and 3 more"):
        check_files(tmp_path, manifest)


def test_the_tokenizer_is_the_file_as_it_is_now(tmp_path: Path, manifest: Manifest) -> None:
    assert read_tokenizer(tmp_path, dataclasses.replace(manifest, tokenizer=None)) == b""
    named: Manifest = dataclasses.replace(manifest, tokenizer="tokenizer.json")
    assert read_tokenizer(tmp_path, named) == b""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{}")
    assert read_tokenizer(tmp_path, named) == b"{}"
    path.write_bytes(b"[]")
    os.utime(path, ns=(1, 1))
    assert read_tokenizer(tmp_path, named) == b"[]"


def test_a_tokenizer_that_would_not_fit_into_a_deployment_is_left_out(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b" " * (MOST_BYTES + 1))
    assert read_tokenizer(tmp_path, dataclasses.replace(manifest, tokenizer="tokenizer.json")) == b""


def test_the_first_model_keeps_its_tokenizer(tmp_path: Path) -> None:
    """Whose folder the joined one stands in for: it is asked for text by way of it."""
    repositories = [tmp_path / name for name in ("small", "large")]
    for repository in repositories:
        manifest = write_emulated_repository(repository, model=repository.name, max_lengths=(64,), latency_ms=(1,))
        (repository / "tokenizer.json").write_text(repository.name)
        dataclasses.replace(manifest, tokenizer="tokenizer.json").save(repository)
    whole = joined([Manifest.load(repository) for repository in repositories])
    folder = link(repositories, whole, tmp_path / "run")
    assert read_tokenizer(folder, whole.models[0]) == b"small"
    assert {path.name for path in folder.iterdir()} >= {"small_len64", "large_len64"}
    assert link(repositories, whole, tmp_path / "run") == folder
    (repositories[0] / "tokenizer.json").unlink()
    assert read_tokenizer(link(repositories, whole, tmp_path / "bare"), whole.models[0]) == b""
