"""Arlo inside of Triton's own server library in a process of one's own: its C API, without HTTP and gRPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from arlo.catalog.logical import write_logical_model
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.paths import plugin_library
from tests.fakes.in_process import Phase, run

pytestmark = pytest.mark.integration

LENGTHS = (16, 64, 128)


def test_requests_of_any_length_in_one_process(tmp_path: Path) -> None:
    manifest = write_emulated_repository(
        tmp_path / "repository", model="m", max_lengths=LENGTHS, latency_ms=[1, 2, 4], max_batch=8, batch_growth=0.1
    )
    write_logical_model(tmp_path / "repository", manifest, library=plugin_library(), slo_ms=10_000)
    phases = [
        Phase(model="m", requests=400, clients=16, lengths=[[3], [60, 5], [16], [128, 1, 17, 64], [65]]),
        Phase(model="m_len64", requests=20, width=64, lengths=[[40], [64]]),  # an ordinary model, still
        Phase(model="m", requests=5, width=200, lengths=[[129]]),
    ]
    (any_length, direct, too_long), metrics = run(tmp_path / "repository", phases)
    assert (any_length["answered"], any_length["wrong"], any_length["errors"]) == (400, 0, {})
    assert (direct["answered"], direct["wrong"], direct["rows"]) == (20, 0, 0)
    assert too_long["answered"] == 0
    assert sum(too_long["errors"].values()) == 5
    assert "takes 1 to 128 tokens" in next(iter(too_long["errors"]))

    def of(family: str) -> dict[int, float]:
        return {n: metrics[f'arlo_plugin_{family}{{engine="m_len{n}",model="m"}}'] for n in LENGTHS}

    rows, batches = of("rows_total"), of("batches_total")
    assert sum(rows.values()) == any_length["rows"] == 400 // 5 * 9
    assert sum(batches.values()) < sum(rows.values()) / 2  # rows of different requests go together
    assert sum(of("computed_tokens_total").values()) == any_length["computed_tokens"]
    assert of("batch_rows_sum") == rows
    assert of("batch_rows_count") == batches
