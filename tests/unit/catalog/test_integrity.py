"""A repository that was changed after it was compiled is not served."""

from __future__ import annotations

from pathlib import Path

import pytest

from arlo.catalog.integrity import check_files
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
