"""The replay against a plain Triton: a peer without Arlo in front, with a static shape that the sender must fill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from arlo.replay import ReplayOptions, run_replay
from arlo.traces import parse_lengths, poisson
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import POOLED_OUTPUT, TOKEN_OUTPUT, write_emulated_repository

pytestmark = pytest.mark.integration


async def test_replay_against_a_plain_triton(tmp_path: Path) -> None:
    write_emulated_repository(tmp_path / "models", model="m", max_lengths=[128], latency_ms=[1.0])
    async with LocalPool(tmp_path / "models", workers=1, run_dir=tmp_path / "run", metrics=False) as pool:
        await pool.load("w0", "m_len128")
        endpoint = (await pool.workers())[0].endpoint
        trace = poisson(100, 2, parse_lengths("uniform:2:128"), 3)
        options = ReplayOptions(endpoint=endpoint, model="m_len128", keep_responses=1, slo_ms=5000)
        result = await asyncio.to_thread(run_replay, trace, options)
        assert result.summary.outcomes["on_time"] == len(trace) == len(result.responses)
        for index, outputs in result.responses.items():
            ids = result.rows.of(index).ids
            assert set(outputs[POOLED_OUTPUT].tolist()) == {np.float32(ids.sum())}
            assert outputs[TOKEN_OUTPUT][:, 0].tolist() == ids.tolist()
        padding = result.summary.padding
        assert padding is not None
        # Triton does not tell what it computed; the static shape does.
        assert (padding.computed_tokens, padding.longest, padding.told_by) == (128 * len(trace), 128, "request")
        assert result.summary.levels == ()
        assert result.summary.latency is not None
        assert result.summary.latency.p50_ms >= 1.0
