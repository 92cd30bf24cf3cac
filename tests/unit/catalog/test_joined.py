"""Several models in one folder: nothing of the first one is lost, whose folder it stands in for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from arlo.catalog.joined import joined, link
from arlo.catalog.manifest import Manifest
from arlo.catalog.tokenizer import read_tokenizer
from arlo.workers.emulated.repository import write_emulated_repository


def test_the_first_model_keeps_its_tokenizer(tmp_path: Path) -> None:
    """It is asked for text by way of the joined folder."""
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
