"""The stories in dispatch/, pipeline/ and simulate/ still lead to exactly what they say.

`pytest tests/golden --rewrite-golden` rewrites them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import pipeline_story, simulate_story, story
from tests.golden.story import Teller, retell

HERE = Path(__file__).parent
TELLERS: dict[str, Callable[[], Teller]] = {
    "dispatch": story.Story,
    "pipeline": pipeline_story.Story,
    "simulate": simulate_story.Story,
}
STORIES = sorted(path for folder in TELLERS for path in (HERE / folder).glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_story(path: Path, rewrite_golden: bool) -> None:
    told = path.read_text()
    now = retell(told, TELLERS[path.parent.name]())
    if rewrite_golden:
        path.write_text(now)
    else:
        assert now == told


def test_there_are_stories() -> None:
    assert len(STORIES) >= 50
    assert {path.parent.name for path in STORIES} == set(TELLERS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy rs\nlevel 128\narrive len=5\n", "no ---- follows"),
        ("arive len=5\n----\n", "line 1: unknown command"),
    ],
)
def test_a_story_that_cannot_be_told_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        retell(text, story.Story())
