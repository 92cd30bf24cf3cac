"""The papers' baselines and figures: each runs, its documents are those of its results, and HybridServe's Algorithm 3
is what an exhaustive search finds."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.papers.arlo import document
from benchmarks.papers.arlo.__main__ import EXPERIMENTS
from benchmarks.papers.hybridserve.packing import Device, Instance, PackingProblem, fits, pack, transfers
from benchmarks.papers.hybridserve.replicas import Line, StageNeeds, plan

# Every value that the paper's evaluation states, by the experiment that must set ours beside it.
STATED = {
    "fig06": [70.3, 23.7, 24.9, 66.7, 29.2, 39.3, 89.4, 25.9, 40.1],
    "fig10": [70.3, 24.1, 31.3, 98.1, 30.7, 41.7, 98.4, 26.0, 29.3],
    "fig08": [13.9, 19.3, 32.5, 330.41, 397.10, 404.12, 430.54],
    "fig11": [2.5, 14.16, 84.04, 14.45, 81.74],
    "tab4": [95.6, 92.5, 58.7, 55.8],
    "tab2": [156, 623, 2612],
    "fig09": [0.737, 150_000],
}


def ran(module: str, *words: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=harness.ROOT, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_results_have_every_number_of_the_paper_and_the_document_is_theirs() -> None:
    kept = document.kept()
    assert [each["title"] for each in kept] == [EXPERIMENTS[name].title for name in document.ORDER]
    papers = {name: [row["paper"] for row in each["rows"]] for name, each in zip(document.ORDER, kept, strict=True)}
    for name, values in STATED.items():
        for value in values:
            assert papers[name].count(value) >= values.count(value), f"{name} lacks {value}"
    page = document.page(kept)
    assert all(f"## {each['title']}\n" in page and each["command"] in page for each in kept)


@pytest.mark.long
def test_arlo_in_short(tmp_path: Path) -> None:
    ran("benchmarks.papers.arlo", "--short", "--jobs", "1", "--out", str(tmp_path))
    assert {path.stem for path in tmp_path.glob("*.json")} == set(document.ORDER)


@pytest.mark.long
def test_loki_in_short() -> None:
    said = ran("benchmarks.papers.loki", "--short", "--only", "plans,slo", "--flow", "traffic")
    assert "proven 100%" in said
    assert "== traffic: slo" in said


def test_otas_in_short(tmp_path: Path) -> None:
    out = tmp_path / "otas.json"
    ran("benchmarks.papers.otas.figures", "--seconds", "5", "--capacities", "430", "--out", str(out))
    found = json.loads(out.read_text())["by_capacity"]["430"]
    assert found["price"]["utility"] > found["PetS"]["utility"]


def test_tabi_and_hybridserve() -> None:
    from benchmarks.papers import cascades

    assert cascades.tabi("MNLI")["accuracy"] == pytest.approx(0.904, abs=0.005)
    assert cascades.hybridserve("T5")["at_most"] == pytest.approx(1 / 0.47)


def test_packing_is_brute_force() -> None:
    pytest.importorskip("highspy")
    rng = random.Random(5)
    packed = 0
    for _ in range(15):
        count, devices = rng.randint(2, 5), tuple(Device(rng.randint(8, 16), host=g // 2) for g in range(3))
        instances = tuple(Instance(rng.randrange(3), rng.randint(2, 7), rng.choice([0.2, 0.4])) for _ in range(count))
        flow = tuple(tuple(float(b == a + 1) * rng.random() for b in range(3)) for a in range(3))
        problem = PackingProblem(
            instances=instances,
            devices=devices,
            transfer=transfers(devices, near=1.0, far=12.0),
            flow=rng.choice([None, flow]),
        )
        good = [p for p in itertools.product(range(3), repeat=count) if problem.holds(p)]
        found = pack(problem)
        assert (found is None) == (not good)
        assert fits(problem) == bool(good)
        if found is not None:
            packed += 1
            assert problem.holds(found.device)
            assert found.transfer == pytest.approx(min(map(problem.value, good)), abs=1e-6)
    assert packed >= 5


def test_replicas_are_planned() -> None:
    pytest.importorskip("highspy")
    stages = [
        StageNeeds(reach=reach, ms=Line(ms, 1), memory_mb=Line(4, 0.5), max_batch=4)
        for reach, ms in ((1.0, 1.0), (0.5, 3.0))
    ]
    devices = (Device(14), Device(14))
    found = plan(stages, devices, rate=0.1, transfer=transfers(devices, near=1, far=1), batches=(1, 2, 4), most=2)
    assert found is not None
    assert found.rate >= 0.1
