"""docs/top.md shows what the program prints. `pytest tests/golden --rewrite-golden` writes it again."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.segment import Segment

from arlo.cli.top.screen import Screen
from arlo.cli.top.tables import Document
from tests.fakes.samples import after, cascade, one, pipeline, several

STEPS = range(1, 16)


def lines(shown: Document, width: int, height: int | None, *, ascii_only: bool = False) -> list[str]:
    """The lines for a terminal of this size; without a height, as they are printed to a file. Nothing is cropped."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    console = Console(file=out, width=width, height=height, force_terminal=True, legacy_windows=False)
    segments = console.render(Screen(shown), console.options.update(width=width, height=height))
    return ["".join(segment.text for segment in line).rstrip() for line in Segment.split_lines(segments)]


def test_the_page_shows_the_screens(rewrite_golden: bool) -> None:
    page = Path(__file__).parents[2] / "docs" / "top.md"
    for mark, make, parts in (
        ("one", one, ()),
        ("several", several, ("models", "lengths ")),
        ("cascade", cascade, ("models", "stages")),
        ("pipeline", pipeline, ("models", "stages")),
    ):
        found, shown = lines(after(make, *STEPS), 80, None), []
        if parts:  # those sections alone
            keep = False
            for line in found:
                keep = line.startswith(parts) if line.endswith(" ─") or "──" in line else keep
                shown += [line] if keep else []
        text = "\n".join(shown or found)
        before, _, rest = page.read_text().partition(f"<!-- screen: {mark} -->\n```\n")
        whole = f"{before}<!-- screen: {mark} -->\n```\n{text}\n```{rest.partition('```')[2]}"
        if rewrite_golden:
            page.write_text(whole)
        assert page.read_text() == whole


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 16), (140, 40), (40, 10), (131, 12), (80, 3)])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_screen_is_larger_than_the_terminal(width: int, height: int, ascii_only: bool) -> None:
    for make in (one, several, cascade, pipeline):
        got = lines(after(make, *STEPS), width, height, ascii_only=ascii_only)
        assert min(height - 2, 5) <= len(got) <= height
        assert max(map(len, got)) <= width
        assert not ascii_only or "".join(got).isascii()


def test_without_room_workers_in_trouble_stay() -> None:
    shown = after(one, *STEPS)
    steady = shown["now"]["workers"][1]
    shown["now"]["workers"] = [
        dict(steady, id="w17", step="failed 4 s"),
        *(dict(steady, id=f"w{n}") for n in range(17)),
    ]
    assert any(line.startswith("w17") for line in lines(shown, 80, 24))
