"""What the answers of a served cascade cost: windows, the model, and what is measured where."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arlo import proto
from arlo.cascade.energy import NvmlCounter
from arlo.config.cascade import CascadeConfig
from arlo.config.model import Config, DeploymentConfig, ModelConfig, WorkersConfig
from arlo.control.watch import energy
from arlo.control.watch.energy import EnergyMeter, EnergyWatch, ModelledCounter, TableCounter, counter_of
from arlo.errors import EnvironmentProblem
from arlo.workers.emulated.repository import write_emulated_repository


def stats(**busy_us: int) -> Any:
    """`w0_small=...`: of an instance, its worker before the underscore."""
    found = proto.message("Stats")()
    for name, value in busy_us.items():
        found.instances.add(id=name, worker=name.split("_")[0], busy_us=value)
    return found


def test_energy_of_a_window_is_over_the_rows_that_arrived() -> None:
    meter = EnergyMeter(window_s=10)
    assert meter.status("RAPL") is None
    for second in range(31):
        meter.add(float(second), 1000 + 50.0 * second, 20 * second)
    status = meter.status("RAPL")
    assert status is not None
    assert (status.joules, status.window_s, status.window_joules, status.window_rows) == (1500, 10, 500, 200)
    assert status.joules_per_request == 2.5
    for second in range(31, 45):  # nothing arrives: idle time costs, and is of no row
        meter.add(float(second), 1000 + 50.0 * second, 600)
    status = meter.status("RAPL")
    assert status is not None
    assert status.joules_per_request is None
    assert status.joules == 2200
    meter.add(45, 3300, 5)  # another gateway
    meter.add(46, 3400, 15)
    status = meter.status("RAPL")
    assert status is not None
    assert status.joules_per_request == 10


def test_energy_is_shared_out_among_stages_by_their_work() -> None:
    meter = EnergyMeter(window_s=10)
    meter.add(0, 100, 0, {"a": 50.0})
    status = meter.status("RAPL")
    assert status is not None
    assert status.by_stage == {}
    meter.add(1, 200, 10, {"a": 80.0, "b": 10.0})
    status = meter.status("RAPL")
    assert status is not None
    assert status.by_stage == pytest.approx({"a": 75, "b": 25})


def test_work_is_that_of_the_rows_that_a_stage_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, ms in (("s0", (2, 4)), ("s1", (10, 30))):
        write_emulated_repository(tmp_path / name, model=name, max_lengths=(32, 64), latency_ms=ms)
    stages = [SimpleNamespace(repository=name) for name in ("s0", "s1")]
    monkeypatch.setattr(energy, "cascade_manifest", lambda _: SimpleNamespace(stages=stages))
    monkeypatch.setattr(energy, "counter_of", lambda _: Measured())
    monkeypatch.setattr(energy, "cascade_name", lambda _: "c")
    cascade = SimpleNamespace(manifest=tmp_path)
    watch = EnergyWatch(SimpleNamespace(cascade=cascade), SimpleNamespace())  # type: ignore[arg-type]
    assert watch._work(cascade_stats({}, 0, 0)) == {}
    work = watch._work(cascade_stats({20: 30, 60: 10}, 40, 10))
    assert work == pytest.approx({"c.s0": 40 * 2.5, "c.s1": 10 * 15})


def test_the_model_counts_idle_workers_and_each_device_once() -> None:
    counter = ModelledCounter(100.0, 400.0)
    counter.see(10.0, 3, stats(w0_small=0, w0_large=0, w1_small=0))
    assert counter.joules() == 0
    # Of 2 s: w0 is busy 1.5 s with two stages, w1 half a second; the third worker has no instance.
    counter.see(12.0, 3, stats(w0_small=1_000_000, w0_large=500_000, w1_small=500_000))
    assert counter.joules() == pytest.approx(3 * 200 + 300 * (1.5 + 0.5))
    # More than there is of time is all of it; an instance that came back begins at 0.
    before = counter.joules()
    counter.see(13.0, 3, stats(w0_small=9_000_000, w0_large=400_000, w1_small=100_000))
    assert counter.joules() - before == pytest.approx(3 * 100 + 300 * (1 + 0.1))


def config(tmp_path: Path, *, watts: tuple[float, ...] = (), **workers: Any) -> Config:
    model = ModelConfig(repository=tmp_path, slo_ms=100)
    made = Config(model=model, deployment=DeploymentConfig(allocation={64: 1}), workers=WorkersConfig(**workers))
    cascade = CascadeConfig(manifest=tmp_path, slo_ms=100, worker_watts=watts)
    return dataclasses.replace(made, cascade=cascade)


class Measured:
    source = "measured"

    def joules(self) -> float:
        return 3.0


def test_what_is_measured_goes_before_what_is_modelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Any:
        raise EnvironmentProblem("none here")

    for name in ("gpus", "NvmlCounter", "RaplCounter"):
        monkeypatch.setattr(energy, name, nothing)
    tables: list[Any] = [((64, 1, 5.0),), ()]
    stages = [SimpleNamespace(name="s", energy_mj=table) for table in tables]
    monkeypatch.setattr(energy, "cascade_manifest", lambda _: SimpleNamespace(stages=stages))
    assert counter_of(config(tmp_path)) is None, "of one stage nothing is known"
    stages[1].energy_mj = ((64, 1, 9.0), (64, 8, 20.0))
    assert isinstance(counter_of(config(tmp_path)), TableCounter)
    modelled = counter_of(config(tmp_path, watts=(60.0, 400.0)))
    assert isinstance(modelled, ModelledCounter)
    assert (modelled.idle_w, modelled.max_w, modelled.source) == (60, 400, "modelled")
    monkeypatch.setattr(energy, "RaplCounter", Measured)
    assert isinstance(counter_of(config(tmp_path, watts=(60.0, 400.0))), Measured)
    # CPUs are no measure of what GPUs take.
    assert isinstance(counter_of(config(tmp_path, watts=(60.0, 400.0), gpus=("0",))), ModelledCounter)
    monkeypatch.setattr(energy, "gpus", lambda: 3)
    monkeypatch.setattr(energy, "NvmlCounter", lambda _: Measured())
    every, some = counter_of(config(tmp_path)), counter_of(config(tmp_path, gpus=("0", "1", "0")))
    assert every is not None
    assert some is not None
    assert (every.joules(), some.joules()) == (9, 6)


def test_a_part_of_a_gpu_has_no_counter() -> None:
    with pytest.raises(EnvironmentProblem, match="a part of a GPU"):
        NvmlCounter("MIG-1234")


def cascade_stats(lengths: dict[int, int], *visits: int) -> Any:
    message = proto.message("Stats")(arrivals_by_length=[lengths.get(n, 0) for n in range(65)])
    for number, count in enumerate(visits):
        message.stages.add(model=f"c.s{number}", visits=count)
    return message


def test_rows_by_the_table_of_their_stage() -> None:
    counter = TableCounter([(((1, 1, 100.0), (32, 1, 100.0), (33, 1, 300.0)), "s0"), (((64, 1, 2000.0),), "s1")])
    counter.see(0.0, 1, cascade_stats({20: 5}, 5, 1))
    assert counter.joules() == 0
    counter.see(1.0, 1, cascade_stats({20: 15, 60: 10}, 25, 6))  # half of the new rows are long
    assert counter.joules() == pytest.approx(20 * 0.2 + 5 * 2)
    counter.see(2.0, 1, cascade_stats({20: 15, 60: 10}, 25, 8))  # none came, two went on
    assert counter.joules() == pytest.approx(14 + 4)
    counter.see(3.0, 1, cascade_stats({20: 2}, 2, 0))  # another gateway
    assert counter.joules() == pytest.approx(18 + 2 * 0.1)
    assert counter.source.startswith("modelled")
