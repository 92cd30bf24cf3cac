"""What the compile tests share: tiny models, and one build that the tests look at."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from arlo.catalog.manifest import Manifest
from arlo.compile import CompileOptions, Progress, compile_model
from arlo.compile.cache import Cache, Hasher
from arlo.compile.engines.interface import get_engine
from arlo.compile.job import Job
from arlo.compile.spec import RuntimeSpec
from arlo.compile.steps.resolve import SourceModel
from arlo.compile.texts import Texts
from arlo.profiler import How, LatencyProfile, Point, RuntimeProfile
from tests.fakes.tiny_graph import INPUTS, OUTPUTS, WORDS, write_graph
from tests.fakes.tiny_model import write_tiny

MAX_TOKENS = 48  # of the small graph


@pytest.fixture(scope="module", autouse=True)
def long_lived_objects_frozen() -> None:
    """Collections of garbage leave out what torch, transformers and the exporter keep for good."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of all builds that look at what is built, not at what the cache does: a model is exported once."""
    root = tmp_path_factory.getbasetemp()
    return (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "compile-cache"


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


def profile_of(
    static: dict[int, float], dynamic: dict[int, float], model: str = "tiny", *, batches: tuple[int, ...] = (1,)
) -> LatencyProfile:
    """A profile of static runtimes (length: microseconds of a row) and of a dynamic one; twice the rows take 1.5 times
    as long."""

    def runtime(name: str, us_of: dict[int, float], dynamic: bool) -> RuntimeProfile:
        points = [
            Point(length=length, batch=batch, mean_us=us, p50_us=us, p98_us=us, samples=9, half_width_us=0.0)
            for length, alone_us in us_of.items()
            for batch in batches
            for us in [alone_us * 1.5 ** (batch.bit_length() - 1)]
        ]
        longest = max(us_of)
        return RuntimeProfile(
            name=name, hash="", max_length=longest, max_batch=batches[-1], dynamic=dynamic, points=tuple(points)
        )

    return LatencyProfile(
        model=model,
        device="gpu: test",
        versions={},
        date="2026-01-01T00:00:00Z",
        provenance="measured",
        how=How(confidence=0.95, precision=0.05, max_seconds=1.0, threads=1, outputs=("x",)),
        runtimes=(
            *(runtime(f"m_len{length}", {length: us}, dynamic=False) for length, us in static.items()),
            *([runtime("m_dynamic", dynamic, dynamic=True)] if dynamic else []),
        ),
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A small graph, as the step gets it after the clean-up."""
    folder = tmp_path_factory.mktemp("lengths")
    options = CompileOptions(
        source=folder, out=folder / "out", lengths="auto", histogram="uniform:2:48", cache=folder / "cache"
    )
    cache = Cache(options.cache_root, Hasher())
    spec = RuntimeSpec(name="tiny", max_length=MAX_TOKENS, max_batch=1, shape="dynamic")

    def make(into: Path) -> dict[str, Any]:
        write_graph(into, spec)
        return {"found": False}

    return Job(
        options=options,
        cache=cache,
        engine=get_engine(options.engine, options.engine_settings),
        model=SourceModel(
            name="tiny",
            folder=folder,
            tokenizer_folder=folder,
            source="tiny",
            task="embedding",
            model_type="bert",
            inputs=INPUTS,
            pooling=(),
            normalize=False,
            lower_case=False,
            max_tokens=MAX_TOKENS,
            weight_bytes=0,
            hashes={},
            notes=(),
        ),
        tokenizer=cache.step("tokenizer", {}, lambda _: {"found": False}),
        graph=cache.step("cleanup", {}, make),
        outputs=OUTPUTS,
        texts=Texts(None, first_id=1, last_id=WORDS - 1),
    )
