"""`arlo cascade energy` on real Triton workers, with a counter of a device that takes 50 W."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cli import main
from arlo.cli.cascade import energy
from arlo.clock import monotonic_s
from arlo.errors import EnvironmentProblem
from tests.integration.gateway.replayed import LENGTHS, MS, STAGES, write_cascade


class Steady:
    source = "50 W"

    def joules(self) -> float:
        return 50 * monotonic_s()


@pytest.mark.integration
def test_every_batch_of_every_stage_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cascade(tmp_path)
    monkeypatch.setattr(energy, "counter_of", lambda _: Steady())
    assert main(["cascade", "energy", str(tmp_path), "--seconds", "0.2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for stage, one in zip(CascadeManifest.load(tmp_path).stages, STAGES, strict=True):
        assert stage.energy_source == "measured: 50 W"
        found = {(length, rows): mj for length, rows, mj in stage.energy_mj}
        assert {rows for _, rows in found} == {1, 8}
        for length in LENGTHS:  # as long as the engine takes, and the way there
            assert found[length, 1] >= 50 * MS[one] * (length // 32) * 0.99
            assert found[length, 8] >= 100 * MS[one] * (length // 32) * 0.99
        assert told[one]["energy_mj"] == [list(point) for point in stage.energy_mj]


def test_a_counter_that_stands_still_says_nothing() -> None:
    class Still:
        source = "a counter"

        def joules(self) -> float:
            return 7.0

    with pytest.raises(EnvironmentProblem, match="counted nothing"):
        energy.batch_mj(lambda: None, Still(), 0.0, threading.Event())
