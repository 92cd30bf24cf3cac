"""The desired state on disk: kept whole, and not used for what it was not decided for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from arlo.catalog.manifest import Manifest
from arlo.control.mode import ServingMode, mode_of
from arlo.control.reconcile import state
from tests.fakes.placements import MANIFEST, configured


def mode(
    folder: Path, deployment: str = "allocation = {64 = 1}", more: str = "", manifest: Manifest = MANIFEST
) -> ServingMode:
    config = configured(deployment, more)
    return mode_of(dataclasses.replace(config, workers=dataclasses.replace(config.workers, run_dir=folder)), manifest)


PLACED = {"w0": "m_64"}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    ours = mode(tmp_path)
    assert state.load(ours) is None
    state.save(ours, PLACED, reason="period")
    assert state.load(ours) == PLACED
    state.save(ours, {"w0": "m_512"})
    (tmp_path / state.FILE_NAME).with_suffix(".tmp").write_text('{"format":')  # a write that was cut short
    assert state.load(ours) == {"w0": "m_512"}


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"fingerprint": ""}, {"placement": {"w0": 1}}, {"placement": ["w0"]}, {"placement": {"w0": "x"}}],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, change: dict[str, object]) -> None:
    ours = mode(tmp_path)
    state.save(ours, PLACED)
    path = tmp_path / state.FILE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert state.load(ours) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_another_file_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / state.FILE_NAME).write_text(text)
    assert state.load(mode(tmp_path)) is None


def test_another_fingerprint_for_whatever_matters(tmp_path: Path) -> None:
    state.save(mode(tmp_path), PLACED)
    others = [
        mode(tmp_path, "allocation = {64 = 2}"),
        mode(tmp_path, more="[control]\nreallocate = false"),
        mode(tmp_path, more="[workers]\ncount = 3"),
        mode(tmp_path, manifest=dataclasses.replace(MANIFEST, runtimes=MANIFEST.runtimes[:2])),
    ]
    assert len({state.fingerprint(other) for other in others}) == 4
    assert all(state.load(other) is None for other in others)
    # What may change without the placement losing its sense.
    assert state.load(mode(tmp_path, more="[dispatch]\ninflight_limit = 3")) == PLACED
