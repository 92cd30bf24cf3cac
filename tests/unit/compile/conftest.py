"""What the compile tests share: tiny models, and one build that the tests look at."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from arlo.catalog.manifest import Manifest
from arlo.compile import CompileOptions, Progress, compile_model
from tests.fakes.tiny_model import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder: BERT, mean pooling, normalised."""
    return write_tiny(tmp_path_factory.mktemp("source") / "tiny", pooling={"pooling_mode_mean_tokens": True})


@dataclasses.dataclass(frozen=True)
class FirstBuild:
    """A build of `tiny` from an empty cache: two static lengths and a dynamic runtime."""

    options: CompileOptions
    manifest: Manifest
    events: list[Progress]


@pytest.fixture(scope="session")
def first_build(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> FirstBuild:
    """Its repository and its cache are looked at, and not changed, by the tests."""
    folder = tmp_path_factory.mktemp("first")
    options = CompileOptions(source=tiny, out=folder / "out", lengths=(16, 32), dynamic=True, cache=folder / "cache")
    events: list[Progress] = []
    return FirstBuild(options, compile_model(options, events.append), events)


@pytest.fixture
def tiny_options(first_build: FirstBuild, tmp_path: Path) -> CompileOptions:
    """Options for a build of one's own, with a copy of the cache that the first build left."""
    assert first_build.options.cache is not None
    shutil.copytree(first_build.options.cache, tmp_path / "cache")
    return dataclasses.replace(first_build.options, out=tmp_path / "out", cache=tmp_path / "cache")
