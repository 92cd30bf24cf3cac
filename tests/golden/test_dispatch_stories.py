"""Each story in dispatch/ leads to exactly the decisions it tells.

`pytest tests/golden --rewrite-golden` retells them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.story import retell, stories

FOLDER = Path(__file__).parent / "dispatch"


@pytest.mark.parametrize("path", stories(FOLDER), ids=lambda path: path.stem)
def test_story(path: Path, rewrite_golden: bool) -> None:
    told = path.read_text()
    now = retell(told)
    if rewrite_golden:
        path.write_text(now)
    else:
        assert now == told


def test_there_are_stories() -> None:
    assert len(stories(FOLDER)) >= 15


def test_a_story_that_is_not_told_to_the_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="no ---- follows"):
        retell("policy rs\nlevel 128\narrive len=5\n")


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 1: unknown command"):
        retell("arive len=5\n----\n")
