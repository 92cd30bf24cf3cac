"""Plots of a result: our Fig. 2 and a heat map of batches as one HTML page (plotly), and Fig. 2 as SVG files.

The SVG is written here, as pictures for Markdown need neither a browser nor a plotting library that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from arlo.report import figure as frame
from arlo.report import page as report
from benchmarks.gpu.plan import Shape
from benchmarks.gpu.results import Group, Results, at_batch

PAGE = "fig02.html"
COLOURS: dict[Shape, str] = {
    "static": frame.GREEN, "dynamic": frame.ORANGE, "padded": frame.INK, "profiles": frame.VIOLET, "user": frame.PINK,
}  # fmt: skip
_DASH: dict[Shape, str] = {"static": "", "dynamic": "2 3", "padded": "6 4", "profiles": "8 3 2 3", "user": ""}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 330, 220, 46, 30, 52
_LEGEND = 24
Lines = dict[Shape, dict[int, float]]  # length -> microseconds, by shape


def lines(results: Results, group: Group, *, compute: bool = True, batch: int = 1) -> Lines:
    """What is drawn of one back-end."""
    return {shape: at for shape in group.names if (at := at_batch(results.of(group, shape, compute=compute), batch))}


def write_plots(results: Results, folder: Path) -> tuple[list[Path], str]:
    """fig02-<model>-<precision>.svg for each, and the page; the second value says what could not be drawn."""
    written = []
    for model, precision in dict.fromkeys((g.model, g.precision) for g in results.groups()):
        panels = {
            group.backend: found
            for group in results.groups()
            if (group.model, group.precision) == (model, precision) and (found := lines(results, group))
        }
        if panels:
            path = folder / f"fig02-{model}-{precision}.svg"
            path.write_text(svg(f"{model} {precision}, batch 1, {results.header['machine']['name']}", panels))
            written.append(path)
    try:
        import plotly  # noqa: F401
    except ImportError:
        return (
            written,
            f"{PAGE} was not written, as plotly is not installed: `python -m benchmarks.gpu --report FOLDER`",
        )
    report.write(folder / PAGE, page(results))
    return [*written, folder / PAGE], ""


def svg(title: str, panels: Mapping[str, Lines]) -> str:
    """Milliseconds over tokens, a panel for each back-end, all with the same axes."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    width = columns * (_WIDTH + _GAP) + _LEFT
    height = rows * (_HEIGHT + _GAP) + _TOP + _LEGEND + 16
    top_ms = max(us for panel in panels.values() for line in panel.values() for us in line.values()) / 1000 * 1.05
    longest = max(length for panel in panels.values() for line in panel.values() for length in line)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, 18, title, size=14),
    ]
    parts += _legend(dict.fromkeys(shape for panel in panels.values() for shape in panel))
    for index, (name, panel) in enumerate(panels.items()):
        left = _LEFT + (index % columns) * (_WIDTH + _GAP)
        top = _TOP + _LEGEND + (index // columns) * (_HEIGHT + _GAP) + 12
        parts += _panel(name, panel, (left, top), longest, top_ms)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, panel: Lines, corner: tuple[int, int], longest: int, top_ms: float) -> list[str]:
    left, top = corner

    def x(length: float) -> float:
        return round(left + _WIDTH * length / longest, 1)

    def y(ms: float) -> float:
        return round(top + _HEIGHT * (1 - ms / top_ms), 1)

    parts = [_text(left, top - 6, name, size=12)]
    for length in range(0, longest + 1, 128 if longest > 256 else 64):
        parts.append(f'<path d="M{x(length)} {top}V{top + _HEIGHT}" stroke="#eee"/>')
        parts.append(_text(x(length), top + _HEIGHT + 14, f"{length}", anchor="middle"))
    for tick in _ticks(top_ms):
        parts.append(f'<path d="M{left} {y(tick)}H{left + _WIDTH}" stroke="#eee"/>')
        parts.append(_text(left - 4, y(tick) + 4, f"{tick:g}", anchor="end"))
    parts.append(_text(left + _WIDTH, top + _HEIGHT + 28, "tokens; ms", anchor="end"))
    for shape, line in panel.items():
        points = " ".join(f"{x(length)},{y(us / 1000)}" for length, us in sorted(line.items()))
        dash = f' stroke-dasharray="{_DASH[shape]}"' if _DASH[shape] else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[shape]}" stroke-width="1.8"{dash}/>')
        if len(line) == 1:
            ((length, us),) = line.items()
            parts.append(f'<circle cx="{x(length)}" cy="{y(us / 1000)}" r="3" fill="{COLOURS[shape]}"/>')
    return parts


def _legend(shapes: Mapping[Shape, Any]) -> list[str]:
    parts, left = [], _LEFT
    for shape in shapes:
        dash = f' stroke-dasharray="{_DASH[shape]}"' if _DASH[shape] else ""
        parts.append(f'<path d="M{left} {_TOP + 6}h24" stroke="{COLOURS[shape]}" stroke-width="2"{dash}/>')
        parts.append(_text(left + 28, _TOP + 10, "library" if shape == "user" else shape))
        left += 100
    return parts


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#333">{escape(text)}</text>'


def _ticks(top: float) -> list[float]:
    """Four to eight round values from 0 to `top`."""
    step = 10.0**-6
    while top / step > 8:
        for factor in (2, 2.5, 2):
            step *= factor
            if top / step <= 8:
                break
    return [round(index * step, 9) for index in range(int(top / step) + 1)]


def page(results: Results) -> str:
    """All back-ends as lines, and how the ratio of dynamic to static goes with length and batch."""
    pictures = []
    for model, precision in dict.fromkeys((g.model, g.precision) for g in results.groups()):
        groups = [g for g in results.groups() if (g.model, g.precision) == (model, precision)]
        pictures.append(_latency(results, groups, f"{model} {precision}: latency over the length, batch 1"))
        pictures += [heat for group in groups if (heat := _heat(results, group)) is not None]
    return report.render(results.header["machine"]["name"], [report.plots([picture]) for picture in pictures])


def _latency(results: Results, groups: Sequence[Group], title: str) -> Any:
    figure = frame.figure(title, "tokens", "ms")
    figure.update_layout(height=520, hovermode="closest")
    dashes = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
    for index, group in enumerate(groups):
        for shape, line in lines(results, group).items():
            figure.add_scatter(
                x=list(line),
                y=[us / 1000 for us in line.values()],
                name=group.names[shape],
                mode="lines+markers",
                marker={"size": 4},
                line={"color": COLOURS[shape], "dash": dashes[index % len(dashes)]},
            )
    figure.update_yaxes(rangemode="tozero")
    return figure


def _heat(results: Results, group: Group) -> Any:
    """Dynamic over static by length and batch; None where less than two batches were measured."""
    static, dynamic = (results.of(group, shape, compute=True) for shape in ("static", "dynamic"))
    both = static.keys() & dynamic.keys()
    lengths, batches = sorted({length for length, _ in both}), sorted({batch for _, batch in both})
    if len(batches) < 2:
        return None
    import plotly.graph_objects as go

    values = [
        [dynamic[at] / static[at] if (at := (length, batch)) in both else None for length in lengths]
        for batch in batches
    ]
    figure = go.Figure(
        go.Heatmap(
            x=[str(length) for length in lengths],
            y=[str(batch) for batch in batches],
            z=values,
            colorscale="RdBu_r",
            zmid=1,
            texttemplate="%{z:.2f}" if len(lengths) <= 12 else None,
            colorbar={"title": "times"},
        )
    )
    title = f"{group.title}: dynamic over static"
    return frame.framed(figure, title, height=340, xaxis_title="tokens", yaxis_title="rows")
