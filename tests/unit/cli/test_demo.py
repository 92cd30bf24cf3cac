"""The demo's own parts: its check and its configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arlo import config
from arlo.cli.demo.check import LIMIT, Difference, compare
from arlo.cli.demo.command import demo_config, for_demo


class Constant:
    """Stands where DirectModel does: the embedding is the length of the row."""

    def embed(self, row: str) -> np.ndarray:
        return np.full(3, len(row), np.float32)


def found(*served: tuple[str, list[float]]) -> Difference:
    return compare([(row, np.array(values, np.float32)) for row, values in served], Constant())  # type: ignore[arg-type]


def test_the_largest_component_of_all_texts_counts() -> None:
    difference = found(("ab", [2, 2, 2]), ("abc", [3, 3, 2.5]), ("a", [1, 1.25, 1]))
    assert difference == Difference(texts=3, largest=0.5)
    assert not difference.ok


@pytest.mark.parametrize(("offset", "ok"), [(0.0, True), (0.5 * LIMIT, True), (2 * LIMIT, False), (np.nan, False)])
def test_the_limit(offset: float, ok: bool) -> None:
    assert found(("a", [1, 1, 1 + offset])).ok is ok


def test_nothing_compared_is_not_well() -> None:
    assert not found().ok


def test_demo_configuration_is_that_of_the_checkout_and_moves_to_free_ports(tmp_path: Path) -> None:
    loaded = config.load(demo_config())
    assert loaded.gateway.grpc_address == "127.0.0.1:8001"
    assert loaded.gateway.http_address == "127.0.0.1:8002"
    assert loaded.model.name == "minilm"
    assert loaded.worker_count == 4
    moved = for_demo(loaded, tmp_path)
    assert {moved.gateway.grpc_address, moved.gateway.http_address, moved.gateway.admin_address} == {"127.0.0.1:0"}
    assert moved.workers.run_dir == tmp_path / "run"
