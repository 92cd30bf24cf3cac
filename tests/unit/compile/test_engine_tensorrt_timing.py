"""The timing cache's file: kept, merged, refused. TensorRT-RTX has the calls and keeps nothing by them, which is enough
to see that the file is handled rightly; what TensorRT stores in it needs a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from arlo.compile.engines.tensorrt_timing import TimingCache
from arlo.templates.tensorrt.session import log_of

trt = pytest.importorskip("tensorrt_rtx_bindings", reason="the package of tensorrt-rtx is not installed")


@pytest.fixture(autouse=True)
def _deprecated() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TensorRT-RTX on its timing caches
        yield


@pytest.fixture
def builder() -> Any:
    return trt.Builder(log_of(trt))


def cache(folder: Path) -> TimingCache:
    return TimingCache(folder, version="11.4", gpu="NVIDIA RTX A6000 (48 GB)")


def test_the_file_is_of_one_version_and_gpu(tmp_path: Path) -> None:
    assert cache(tmp_path).path.name == "timing-11.4-NVIDIA-RTX-A6000-48-GB-.bin"


def test_what_one_build_kept_the_next_one_finds(tmp_path: Path, builder: Any) -> None:
    log, config = log_of(trt), builder.create_builder_config()
    first = cache(tmp_path)
    assert first.attach(config, log) == "new"
    assert not first.path.exists()
    first.save(config, log)
    content = first.path.read_bytes()
    assert content
    again = cache(tmp_path)
    # Without a GPU TensorRT-RTX refuses to read its own cache, which then counts as new; it is attached in any case.
    assert again.attach(builder.create_builder_config(), log) in {"reused", "new"}
    again.save(config, log)
    assert (
        sorted(path.name for path in tmp_path.iterdir())
        == [first.path.with_suffix(".lock").name, first.path.name][::-1]
    )
    assert log.take() == []


def test_a_broken_file_is_ignored_and_replaced(tmp_path: Path, builder: Any) -> None:
    log, config = log_of(trt), builder.create_builder_config()
    broken = cache(tmp_path)
    broken.path.write_bytes(b"broken" * 100)
    assert broken.attach(config, log) == "new"
    broken.save(config, log)
    assert not broken.path.read_bytes().startswith(b"broken")
    assert log.take() == []  # its complaints are not the build's


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path, builder: Any) -> None:
    log, config = log_of(trt), builder.create_builder_config()
    nowhere = cache(tmp_path / "missing")
    assert nowhere.attach(config, log) == "new"
    nowhere.save(config, log)
    assert list(tmp_path.iterdir()) == []


class Config:
    """A builder configuration whose caches can be read: a set of entries, each a byte."""

    def __init__(self) -> None:
        self.cache: Entries | None = None

    def create_timing_cache(self, content: bytes) -> Entries:
        return Entries(content)

    def set_timing_cache(self, cache: Entries, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return b"x" not in cache.entries  # as of another GPU


class Entries:
    def __init__(self, content: bytes) -> None:
        self.entries = {bytes([byte]) for byte in content}

    def combine(self, other: Entries, ignore_mismatch: bool) -> bool:
        self.entries |= other.entries
        return True

    def serialize(self) -> bytes:
        return b"".join(sorted(self.entries))


class Silent:
    @staticmethod
    def take() -> list[Any]:
        return []


def _measure(arguments: tuple[Path, int]) -> str:
    folder, entry = arguments
    config, mine = Config(), cache(folder)
    state = mine.attach(config, Silent)
    assert config.cache is not None
    config.cache.entries.add(bytes([entry]))
    mine.save(config, Silent)
    return state


def test_builds_side_by_side_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:  # the lock is of an open file, so threads are kept apart as processes are
        list(pool.map(_measure, [(tmp_path, entry) for entry in range(40)]))
    assert cache(tmp_path).path.read_bytes() == bytes(range(40))
    assert _measure((tmp_path, 41)) == "reused"


def test_a_cache_of_another_gpu_is_not_used(tmp_path: Path) -> None:
    cache(tmp_path).path.write_bytes(b"x")
    assert _measure((tmp_path, 1)) == "new"
