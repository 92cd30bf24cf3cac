"""HybridServe's packing of a cascade's stages, from its repositories and records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.papers.hybridserve import plan

from .conftest import Made, fit


@pytest.mark.long
def test_stages_on_workers(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(strengths=(2.2, 3.2))
    texts = str(path.parent / "texts.jsonl")
    fit(path)

    def packed(memory_mb: int, *more: str, code: int = 0) -> Any:
        capsys.readouterr()
        load = ("--workers", "3", "--slo-ms", "100", "--rate", "50", "--memory-mb", str(memory_mb))
        assert plan.main([str(path), "--data", texts, *load, *more]) == code
        return json.loads(capsys.readouterr().out)

    # Two lengths of 100 MB a stage: both stages on a worker, or one.
    for memory_mb, all_fit in ((400, True), (399, False)):
        found = packed(memory_mb)
        assert found["all_fit"] == all_fit
        assert sum(found["replicas"]) == sum(map(len, found["workers"]))
        assert {name for held in found["workers"] for name in held} == {"s0", "s1"}
        assert all(200 * len(held) <= memory_mb for held in found["workers"])
        assert found["ms"] <= 100
        assert found["stages"][1]["rows"] == pytest.approx(found["batch"] * found["stages"][1]["reach"])
        assert (found["transfer"] > 0) == (not all_fit or len(found["workers"][0]) < 2)
    assert packed(399, "--transfer", "paper")["transfer"] >= found["transfer"]  # every pair counts
    spread = packed(150, "--workers", "4", "--span", "2")
    assert spread["spans"] == [2, 2]  # none fits a worker whole
    assert {name for held in spread["workers"] for name in held} == {"s0 1/2", "s0 2/2", "s1 1/2", "s1 2/2"}
    assert packed(150, code=1)["replicas"] is None
