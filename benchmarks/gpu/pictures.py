"""Two pictures of a run, as SVG: latency over the length, and the rate of packed buckets."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gpu.report import PACKED_KINDS, Results

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
WIDTH, HEIGHT, LEFT, TOP = 560, 300, 60, 44
DRAWN = {("eager", "launched"), ("dynamic", "launched"), ("eager", "graph"), ("compiled", "graph"), ("static", "graph")}

Lines = dict[str, dict[float, float]]


def pictures(results: Results) -> dict[str, str]:
    """Name of the file -> its text; none where nothing was measured for it."""
    latency: Lines = {}
    rates: Lines = {}
    for cell in results.table:
        for how in ("launched", "graph"):
            time = cell.get(f"{how}_ms")
            if cell["shape"] == "bert-base" and cell.get("rows") in (1, 32) and (cell["kind"], how) in DRAWN and time:
                name = f"{cell['kind']} {how}, {cell['rows']} row{'s' * (cell['rows'] > 1)}"
                latency.setdefault(name, {})[cell["length"]] = time
        if cell["kind"] in PACKED_KINDS and cell.get("mix") == "mix" and "tflops" in cell:
            rates.setdefault(f"{cell['shape']} {cell['kind']}", {})[cell["tokens"]] = cell["tflops"]
    drawn = {
        "latency.svg": ("BERT-base fp16: a batch over the length", "tokens in a row; ms", latency),
        "packed.svg": ("Packed rows of `mix`: rate by bucket", "tokens in the bucket; TFLOP/s", rates),
    }
    return {name: svg(*picture) for name, picture in drawn.items() if picture[2]}


def svg(title: str, axes: str, lines: Mapping[str, Mapping[float, float]]) -> str:
    """A line for each name, over values that are spaced evenly."""
    at = sorted({x for line in lines.values() for x in line})
    top = max(y for line in lines.values() for y in line.values()) * 1.05 or 1.0
    place = {x: LEFT + WIDTH * index / max(1, len(at) - 1) for index, x in enumerate(at)}
    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 20}" height="{bottom + 44 + 16 * len(lines)}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="#333">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="20" font-size="14">{title}</text>',
        f'<text x="{right}" y="{bottom + 28}" text-anchor="end">{axes}</text>',
    ]
    for x in at:
        parts.append(f'<path d="M{place[x]:.0f} {TOP}v{HEIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{place[x]:.0f}" y="{bottom + 14}" text-anchor="middle">{x:,g}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - HEIGHT * share
        parts.append(f'<path d="M{LEFT} {y:.0f}h{WIDTH}" stroke="#eee"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y + 4:.0f}" text-anchor="end">{share * top:.3g}</text>')
    for index, (name, line) in enumerate(lines.items()):
        y, stroke = bottom + 40 + 16 * index, f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="1.8"'
        points = " ".join(f"{place[x]:.1f},{bottom - HEIGHT * value / top:.1f}" for x, value in sorted(line.items()))
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/><path d="M{LEFT} {y - 4}h24" {stroke}/>')
        parts.append(f'<text x="{LEFT + 30}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
