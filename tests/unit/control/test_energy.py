"""What the answers of a served cascade cost: windows, and what is measured where."""

from __future__ import annotations

from typing import Any

import pytest

from arlo import proto
from arlo.cascade.energy import NvmlCounter
from arlo.config.model import WorkersConfig
from arlo.control.watch import energy
from arlo.control.watch.energy import EnergyWatch, counter_of
from arlo.control.watch.feed import Snapshot
from arlo.errors import EnvironmentProblem


class Measured:
    source = "measured"

    def __init__(self) -> None:
        self.value = 3.0

    def joules(self) -> float:
        return self.value


async def test_energy_of_a_minute_is_over_the_rows_that_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, now_s = Measured(), [0.0]
    monkeypatch.setattr(energy, "counter_of", lambda _: counter)
    monkeypatch.setattr(energy, "monotonic_s", lambda: now_s[0])
    watch = EnergyWatch(WorkersConfig())

    async def look(at_s: float, joules: float, rows: int) -> tuple[float, float | None]:
        now_s[0], counter.value = at_s, joules
        await watch.on_stats(Snapshot((), proto.message("Stats")(arrivals_by_length=[0, rows])))
        assert watch.status is not None
        return watch.status.joules, watch.status.joules_per_request

    await watch.on_stats(Snapshot(()))
    assert watch.status is None, "the cascade has not told yet"
    for second in range(91):
        told = await look(float(second), 1000 + 50.0 * second, 20 * second)
    assert told == (4500, 2.5)
    for second in range(91, 160):  # nothing arrives: idle time costs, and is of no row
        told = await look(float(second), 1000 + 50.0 * second, 1800)
    assert told == (7950, None)
    await look(160, 9050, 5)  # another gateway
    assert (await look(161, 9150, 15))[1] == 10


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Any:
        raise EnvironmentProblem("none here")

    for name in ("gpus", "NvmlCounter", "RaplCounter"):
        monkeypatch.setattr(energy, name, nothing)
    assert counter_of(WorkersConfig()) is None
    monkeypatch.setattr(energy, "RaplCounter", Measured)
    assert isinstance(counter_of(WorkersConfig()), Measured)
    assert counter_of(WorkersConfig(gpus=("0",))) is None, "CPUs are no measure of what GPUs take"
    monkeypatch.setattr(energy, "gpus", lambda: 3)
    monkeypatch.setattr(energy, "NvmlCounter", lambda _: Measured())
    every, some = counter_of(WorkersConfig()), counter_of(WorkersConfig(gpus=("0", "1", "0")))
    assert every is not None
    assert some is not None
    assert (every.joules(), some.joules()) == (9, 6)


def test_a_part_of_a_gpu_has_no_counter() -> None:
    with pytest.raises(EnvironmentProblem, match="a part of a GPU"):
        NvmlCounter("MIG-1234")
