"""Energy of stages, measured on real Triton workers, with a counter of a device that takes 50 W."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cli.fit import energy
from arlo.clock import monotonic_s
from arlo.errors import EnvironmentProblem
from tests.integration.gateway.replayed import LENGTHS, MS, write_cascade


class Steady:
    source = "50 W"

    def joules(self) -> float:
        return 50 * monotonic_s()


@pytest.mark.integration
def test_every_batch_of_every_stage_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cascade(tmp_path)
    monkeypatch.setattr(energy, "counter_of", Steady)
    for stage in CascadeManifest.load(tmp_path).stages:
        told = energy.stage_energy(stage.name, tmp_path / stage.repository, watts=None, threads=1, seconds=0.2)
        assert told["energy_source"] == "measured: 50 W"
        found = {(length, rows): mj for length, rows, mj in told["energy_mj"]}
        assert {rows for _, rows in found} == {1, 8}
        for length in LENGTHS:  # as long as the engine takes, and the way there
            assert found[length, 1] >= 50 * MS[stage.name] * (length // 32) * 0.99
            assert found[length, 8] >= 100 * MS[stage.name] * (length // 32) * 0.99


def test_a_counter_that_stands_still_says_nothing() -> None:
    class Still:
        source = "a counter"

        def joules(self) -> float:
            return 7.0

    with pytest.raises(EnvironmentProblem, match="counted nothing"):
        energy.batch_mj(lambda: None, Still(), 0.0, threading.Event())
