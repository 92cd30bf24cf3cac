"""The desired state on disk: kept whole, and not used for what it was not decided for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from arlo.catalog.manifest import Manifest
from arlo.control.mode import mode_of
from arlo.control.reconcile import state
from tests.fakes.placements import MANIFEST, configured


def mark(deployment: str, more: str = "", manifest: Manifest = MANIFEST) -> str:
    return state.fingerprint(mode_of(configured(deployment, more), manifest))


MARK = mark("allocation = {64 = 1}")
STATE = state.DesiredState(placement={"w0": "m_64"}, reason="period", at_ms=5, fingerprint=MARK)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert state.load(tmp_path, expected=MARK) is None
    state.save(tmp_path, STATE)
    assert state.load(tmp_path, expected=MARK) == STATE
    again = dataclasses.replace(STATE, placement={"w0": "m_512"})
    state.save(tmp_path, again)
    assert state.load(tmp_path, expected=MARK) == again
    assert [path.name for path in tmp_path.iterdir()] == [state.FILE_NAME]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        json.dumps({"format": 1, "fingerprint": MARK}),
        json.dumps({"format": 2, **dataclasses.asdict(STATE)}),
        json.dumps({"format": 1, **dataclasses.asdict(STATE), "placement": {"w0": 1}}),
        json.dumps({"format": 1, **dataclasses.asdict(STATE), "placement": ["w0"]}),
        json.dumps({"format": 1, **dataclasses.asdict(STATE), "more": 1}),
    ],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / state.FILE_NAME).write_text(text)
    assert state.load(tmp_path, expected=MARK) is None


def test_a_write_that_was_cut_short_leaves_the_old_state(tmp_path: Path) -> None:
    state.save(tmp_path, STATE)
    (tmp_path / state.FILE_NAME).with_suffix(".tmp").write_text('{"format":')
    assert state.load(tmp_path, expected=MARK) == STATE


def test_another_fingerprint_for_whatever_matters(tmp_path: Path) -> None:
    state.save(tmp_path, STATE)
    others = [
        mark("allocation = {64 = 2}"),
        mark("allocation = {64 = 1}", "[control]\nreallocate = false"),
        mark("allocation = {64 = 1}", "[workers]\ncount = 3"),
        mark("allocation = {64 = 1}", manifest=dataclasses.replace(MANIFEST, runtimes=MANIFEST.runtimes[:2])),
    ]
    assert len({MARK, *others}) == 5
    assert all(state.load(tmp_path, expected=other) is None for other in others)
    # What may change without the placement losing its sense.
    assert mark("allocation = {64 = 1}", "[dispatch]\ninflight_limit = 3") == MARK
