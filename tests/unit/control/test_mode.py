"""What is served is decided once, and asked of the mode."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arlo.config import parse
from arlo.config.stages import cascade_manifest
from arlo.control.mode import Cascade, Models, Pipeline, ServingMode, mode_of
from arlo.control.serve import load_manifest
from arlo.planning.by_length import Lengths
from arlo.planning.cascade import Stages
from arlo.planning.flows.serving import Variants
from arlo.workers.emulated.repository import write_emulated_repository
from tests.integration.gateway.replayed import write_cascade

ROOT = Path(__file__).parents[3]
EDGE = 5
FLOW = """\
[flow]
name = "body"
slo_ms = 100
[[flow.stage]]
name = "tokens"
"""
VARIANT = """\
[[flow.stage.variant]]
repository = "m{n}"
tokens = {tokens}
accuracy = 0.8
max_lengths = [16]
latency = [[1, 2]]
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    for n in range(2):
        write_emulated_repository(tmp_path / f"m{n}", model=f"m{n}", max_lengths=[16], latency_ms=[2])
    variants = (VARIANT.format(n=n, tokens=tokens) for n, tokens in enumerate((0, -4)))
    (tmp_path / "flow.toml").write_text(FLOW + "".join(variants))
    return tmp_path


def made(folder: Path, text: str) -> ServingMode:
    config = parse(f'{text}\n[workers]\ncount = 2\nrun_dir = "run"\n', base=folder)
    return mode_of(config, load_manifest(config))


def test_a_pipeline_and_one_of_its_variants(pipeline: Path) -> None:
    whole = made(pipeline, '[pipeline]\nflow = "flow.toml"')
    assert isinstance(whole, Pipeline)
    assert (whole.name, whole.whole, whole.dedicated) == ("body", "body", False)
    assert isinstance(whole.planner().subject, Variants)
    assert whole.planner().subject.planned == [], "all workers hold all variants"
    assert whole.planner().subject.routing(2) is not None
    one = made(pipeline, '[pipeline]\nflow = "flow.toml"\ntokens = "fixed:-4"')
    assert (one.name, len(one.models)) == ("body", 1)
    assert isinstance(one.planner().subject, Lengths), "nothing is to be chosen among"


def test_a_cascade(tmp_path: Path) -> None:
    cascade_manifest.cache_clear()
    manifest = write_cascade(tmp_path)
    mode = made(tmp_path, '[cascade]\nmanifest = "."\nslo_ms = 70')
    assert isinstance(mode, Cascade)
    assert mode.name == manifest.name
    assert mode.slos_ms == [70]
    assert isinstance(mode.planner().subject, Stages)
    assert mode.text.startswith(f"cascade {manifest.name} is served, by ")


def test_models_of_their_own_workers(pipeline: Path) -> None:
    models = "".join(f'[[model]]\nname = "m{n}"\nrepository = "m{n}"\nslo_ms = 50\nworkers = 1\n' for n in range(2))
    mode = made(pipeline, models)
    assert isinstance(mode, Models)
    assert (mode.dedicated, mode.whole, mode.slos_ms) == (True, None, [50, 50])
    assert mode.first == {"m0_bundle": 1, "m1_bundle": 1}


def test_nothing_else_asks_the_configuration_what_it_serves() -> None:
    asks = re.compile(r"(?<!args\.)\b(cascade|pipeline) is (not )?None|isinstance\([\w.]*planner")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "arlo").rglob("*.py"))
        if path.parts[len(ROOT.parts) + 1] != "config"
        for line in path.read_text().splitlines()
        if asks.search(line)
    ]
    assert len(found) <= EDGE, "make it a method of ServingMode:\n" + "\n".join(found)
