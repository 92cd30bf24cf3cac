"""The emulated engine inside a real Triton server: answers, batches, time, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tritonclient.utils import InferenceServerException

from arlo.catalog.manifest import LatencyPoint
from arlo.clock import monotonic_s
from arlo.errors import WorkerError
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import (
    EmulatedRuntime,
    checkable_outputs,
    config_pbtxt,
    write_emulated_repository,
)

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

MS = 1_000_000  # nanoseconds


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    write_emulated_repository(
        path, model="batch", max_lengths=[16], latency_ms=[50], max_batch=4, batch_growth=0.5, batcher=True
    )
    write_emulated_repository(path, model="dyn", max_lengths=[64, 128], latency_ms=[10, 30], dynamic=True, max_batch=4)
    write_emulated_repository(path, model="jitter", max_lengths=[16], latency_ms=[10], jitter=0.5, seed=7)
    write_emulated_repository(path, model="m", max_lengths=[64, 128], latency_ms=[0, 15], token_dims=3, pooled_dims=5)
    runtime = EmulatedRuntime(
        name="broken",
        max_length=64,
        max_batch=1,
        dynamic=False,
        latency=(LatencyPoint(length=64, batch=1, latency_us=1150),),
    )
    good = config_pbtxt(runtime, outputs=checkable_outputs(1, 1))
    assert '"jitter"' in good
    (path / "broken" / "1").mkdir(parents=True)
    (path / "broken" / "config.pbtxt").write_text(good.replace('"jitter"', '"colour"'))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalPool]:
    async with LocalPool(repository, workers=1, run_dir=tmp_path_factory.mktemp("run"), metrics=False) as pool:
        for runtime in ("m_len64", "m_len128", "batch_len16", "dyn_len128", "jitter_len16"):
            await pool.load("w0", runtime)
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(pool: LocalPool) -> str:
    return (await pool.workers())[0].endpoint


async def test_answers_can_be_checked(endpoint: str, caller: Any) -> None:
    random = np.random.default_rng(1)
    ids = random.integers(0, 30_000, (1, 64))
    mask = np.zeros_like(ids)
    mask[0, :17] = 1
    answer = await caller.infer(endpoint, "m_len64", ids, mask)
    assert answer["last_hidden_state"].dtype == np.float32
    np.testing.assert_array_equal(answer["last_hidden_state"], np.repeat(ids[..., None], 3, axis=2))
    np.testing.assert_array_equal(answer["embedding"], np.full((1, 5), ids[0, :17].sum(), np.float32))


async def test_each_request_takes_the_time_of_the_profile(endpoint: str, caller: Any) -> None:
    ids = np.ones((1, 128), np.int64)
    sent_s = monotonic_s()
    await asyncio.gather(*(caller.infer(endpoint, "m_len128", ids) for _ in range(4)))
    assert monotonic_s() - sent_s >= 4 * 0.015  # one at a time, as on a GPU
    statistics = await caller.statistics(endpoint, "m_len128", requests=4)
    assert statistics.execution_count == 4
    assert statistics.inference_stats.compute_infer.ns >= 4 * 15 * MS


async def test_a_batch_costs_one_wait(endpoint: str, caller: Any) -> None:
    """Rows of one request, and requests that Triton's dynamic batcher put together; each gets its own answer."""
    rows = np.arange(4 * 16, dtype=np.int64).reshape(4, 16)
    answer = await caller.infer(endpoint, "batch_len16", rows)
    np.testing.assert_array_equal(answer["embedding"][:, 0], rows.sum(axis=1))
    statistics = await caller.statistics(endpoint, "batch_len16", requests=1)
    assert statistics.inference_stats.compute_infer.ns >= 50 * (1 + 0.5 * 3) * MS

    batch = [np.full((1, 16), number, np.int64) for number in range(12)]
    answers = await asyncio.gather(*(caller.infer(endpoint, "batch_len16", ids) for ids in batch))
    for number, each in enumerate(answers):
        np.testing.assert_array_equal(each["embedding"], np.full((1, 4), 16 * number))
        np.testing.assert_array_equal(each["last_hidden_state"], np.full((1, 16, 4), number))
    after = await caller.statistics(endpoint, "batch_len16", requests=13)
    assert after.inference_count == 16
    assert after.execution_count < 13


async def test_a_dynamic_runtime_takes_the_time_of_the_longest_row(endpoint: str, caller: Any) -> None:
    async def compute_ns(length: int) -> int:
        before = await caller.statistics(endpoint, "dyn_len128")
        answer = await caller.infer(endpoint, "dyn_len128", np.ones((1, length), np.int64))
        assert answer["last_hidden_state"].shape == (1, length, 4)
        after = await caller.statistics(endpoint, "dyn_len128", requests=before.inference_stats.success.count + 1)
        return int(after.inference_stats.compute_infer.ns - before.inference_stats.compute_infer.ns)

    assert await compute_ns(5) >= 10 * MS  # below the first point: its latency
    assert await compute_ns(96) >= 20 * MS  # halfway between the points
    assert await compute_ns(128) >= 30 * MS


async def test_jitter_stays_within_its_bounds(endpoint: str, caller: Any) -> None:
    ids = np.ones((1, 16), np.int64)
    times = []
    for _ in range(8):
        before = await caller.statistics(endpoint, "jitter_len16")
        await caller.infer(endpoint, "jitter_len16", ids)
        after = await caller.statistics(endpoint, "jitter_len16", requests=before.inference_stats.success.count + 1)
        times.append(after.inference_stats.compute_infer.ns - before.inference_stats.compute_infer.ns)
    assert min(times) >= 5 * MS
    assert max(times) - min(times) > MS  # with this seed


async def test_a_request_with_an_error_leaves_others_alone(endpoint: str, caller: Any) -> None:
    with pytest.raises(InferenceServerException, match="attention_mask has not the shape of input_ids"):
        await caller.infer(endpoint, "dyn_len128", np.ones((1, 8), np.int64), np.ones((1, 9), np.int64))
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        await caller.infer(endpoint, "m_len64", np.ones((1, 65), np.int64))
    statistics = await caller.statistics(endpoint, "dyn_len128")
    assert statistics.inference_stats.fail.count >= 1
    assert (await caller.infer(endpoint, "dyn_len128", np.ones((1, 8), np.int64)))["embedding"][0, 0] == 8


async def test_a_wrong_configuration_is_refused(pool: LocalPool) -> None:
    with pytest.raises(WorkerError, match="unknown parameter colour"):
        await pool.load("w0", "broken")
