"""The screens of `arlo top`, whole. `pytest tests/golden --rewrite-golden` writes them again."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.segment import Segment

from arlo.cli.top.screen import Screen
from arlo.cli.top.view import History, Sample, View
from arlo.control.gateway.messages import to_dict
from tests.fakes.control_status import (
    CASCADE,
    FLOW,
    cascade_deployment,
    cascade_stats,
    cascade_status,
    control_status,
    flow_deployment,
    flow_stats,
    gateway_deployment,
    gateway_stats,
    several_deployment,
    several_stats,
    several_status,
)

FOLDER = Path(__file__).parent / "top"
P98_MS = (38, 41, 40, 44, 52, 61, 96, 139, 171, 122, 70, 45, 41, 40, 41)


def both(*, control: bool = True, gateway: bool = True) -> View:
    """Fifteen samples, 2 s apart."""
    history, shown = History(), None
    for step, p98_ms in enumerate(P98_MS, start=1):
        stats = to_dict(gateway_stats(step=step))
        stats["total"]["p98_us"] = 1000 * p98_ms
        shown = history.add(
            Sample(
                at_s=2.0 * step,
                control=control_status() if control else None,
                control_error="" if control else "no control plane answers at 127.0.0.1:8004",
                gateway=stats if gateway else None,
                gateway_error="" if gateway else "no gateway answers at the admin address 127.0.0.1:8003",
                deployment=to_dict(gateway_deployment()) if gateway else None,
            )
        )
    assert shown is not None
    return shown


def many_workers() -> View:
    """More workers than lines: those on the move and in trouble are shown."""
    shown = both()
    steady = shown.workers[0]
    shown.workers = [dataclasses.replace(steady, id=f"w{index}", error="") for index in range(20)]
    shown.workers[17] = dataclasses.replace(steady, id="w17", step="failed", trouble=True, error="no space on the GPU")
    return shown


def lines(shown: View, width: int, height: int | None, *, ascii_only: bool = False) -> list[str]:
    """The lines for a terminal of this size; without a height, as they are printed to a file. Nothing is cropped."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    console = Console(file=out, width=width, height=height, force_terminal=True, legacy_windows=False)
    segments = console.render(Screen(shown), console.options.update(width=width, height=height))
    return ["".join(segment.text for segment in line).rstrip() for line in Segment.split_lines(segments)]


def text(shown: View, width: int, height: int | None, *, ascii_only: bool = False) -> str:
    """The same as a file."""
    return "".join(f"{line}\n" for line in lines(shown, width, height, ascii_only=ascii_only))


def several(*, dedicated: bool, chosen: str = "", control: bool = True) -> View:
    """Two models on the same workers, or on workers of their own."""
    history, shown = History(), None
    for step in range(1, len(P98_MS) + 1):
        stats = {model: to_dict(several_stats(model, step=step)) for model in ("embedder", "reranker")}
        shown = history.add(
            Sample(
                at_s=2.0 * step,
                control=several_status(dedicated=dedicated) if control else None,
                control_error="" if control else "no control plane answers at 127.0.0.1:8004",
                gateway=stats[chosen or "embedder"],
                deployment=to_dict(several_deployment()),
                several=stats,
                chosen=chosen,
            )
        )
    assert shown is not None
    return shown


def cascade(*, chosen: str = "", control: bool = True) -> View:
    """A cascade of two stages."""
    history, shown = History(), None
    for step in range(1, len(P98_MS) + 1):
        stats = {model: to_dict(cascade_stats(model, step=step)) for model in CASCADE}
        shown = history.add(
            Sample(
                at_s=2.0 * step,
                control=cascade_status() if control else None,
                gateway=stats[chosen or CASCADE[1]],
                deployment=to_dict(cascade_deployment()),
                several=stats,
                chosen=chosen,
            )
        )
    assert shown is not None
    return shown


def flow(*, chosen: str = "") -> View:
    """A pipeline of two stages, without a control plane."""
    history, shown = History(), None
    for step in range(1, len(P98_MS) + 1):
        stats = {model: to_dict(flow_stats(model, step=step)) for model in FLOW}
        shown = history.add(
            Sample(
                at_s=2.0 * step,
                gateway=stats[chosen or FLOW[1]],
                deployment=to_dict(flow_deployment()),
                several=stats,
                chosen=chosen,
            )
        )
    assert shown is not None
    return shown


SCREENS = {
    "terminal_80x24": lambda: text(both(), 80, 24),
    "terminal_140x40": lambda: text(both(), 140, 40),
    "file_80": lambda: text(both(), 80, None),
    "file_ascii_80": lambda: text(both(), 80, None, ascii_only=True),
    "narrow_60x16": lambda: text(both(), 60, 16),
    "gateway_only_80x24": lambda: text(both(control=False), 80, 24),
    "control_only_80x24": lambda: text(both(gateway=False), 80, 24),
    "many_workers_80x24": lambda: text(many_workers(), 80, 24),
    "models_80": lambda: text(several(dedicated=True), 80, None),
    "models_shared_140x40": lambda: text(several(dedicated=False), 140, 40),
    "models_one_80x24": lambda: text(several(dedicated=False, chosen="reranker"), 80, 24),
    "cascade_80": lambda: text(cascade(), 80, None),
    "cascade_140x40": lambda: text(cascade(chosen="kinds"), 140, 40),
    "cascade_gateway_only_60x16": lambda: text(cascade(control=False), 60, 16),
    "flow_80": lambda: text(flow(), 80, None),
    "flow_140x40": lambda: text(flow(chosen="tree"), 140, 40),
    "flow_60x16": lambda: text(flow(), 60, 16),
    "models_gateway_only_80x24": lambda: text(several(dedicated=False, control=False), 80, 24),
}


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str, rewrite_golden: bool) -> None:
    got, path = SCREENS[name](), FOLDER / f"{name}.txt"
    width = int(name.rpartition("_")[2].partition("x")[0])
    assert max(map(len, got.splitlines())) <= width
    if rewrite_golden:
        path.write_text(got)
    assert got == path.read_text()


def test_the_page_shows_the_screen(rewrite_golden: bool) -> None:
    page = Path(__file__).parents[2] / "docs" / "top.md"
    for first, name, lines in (
        ("minilm", "file_80", None),
        ("embedder,", "models_80", 17),
        ("kinds ", "cascade_80", 13),
        ("tree ", "flow_80", 13),
    ):
        before, _, rest = page.read_text().partition(f"```\n{first}")
        shown = "".join(SCREENS[name]().splitlines(keepends=True)[:lines])
        whole = f"{before}```\n{shown}```{rest.partition('```')[2]}"
        if rewrite_golden:
            page.write_text(whole)
        assert page.read_text() == whole


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 16), (140, 40), (200, 60), (40, 10), (131, 12)])
def test_no_screen_is_larger_than_the_terminal(width: int, height: int) -> None:
    for shown in (
        both(),
        both(control=False),
        both(gateway=False),
        many_workers(),
        several(dedicated=True),
        cascade(),
        flow(),
    ):
        got = lines(shown, width, height)
        assert 5 <= len(got) <= height
        assert max(map(len, got)) <= width
