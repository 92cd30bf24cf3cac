"""The picture of README.md: python tools/latency_picture.py docs/latency.svg. Latency over length, and what arrives."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from arlo.report.figure import BLUE, GREEN, INK, ORANGE, PALE, SLATE
from arlo.simulator.profiles import load_profile
from arlo.traces.make import make_workload
from arlo.traces.workloads import materialise

PROFILE, LONGEST, STEP = "bert-base", 512, 64
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 330, 46, 58, 150, 44
BAR = 16  # tokens


def picture() -> str:
    """Milliseconds of one request over its tokens, padded, dynamic and with an engine per length, as SVG."""
    profile = load_profile(PROFILE)
    top_ms = profile.dynamic_ms(LONGEST) * 1.04
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(tokens: float) -> float:
        return round(LEFT + across * tokens / LONGEST, 1)

    def y(ms: float) -> float:
        return round(TOP + down * (1 - ms / top_ms), 1)

    def text(at: tuple[float, float], words: str, color: str = SLATE, *, size: int = 12, anchor: str = "start") -> str:
        return (
            f'<text x="{at[0]}" y="{at[1]}" font-size="{size}" text-anchor="{anchor}" fill="{color}">'
            f"{escape(words)}</text>"
        )

    def line(points: list[tuple[float, float]], color: str, dash: str = "") -> str:
        path = " ".join(f"{x(tokens)},{y(ms)}" for tokens, ms in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.4"{dashed}/>'

    lengths = materialise(make_workload(rate=1000, duration_s=60, seed=0)).length
    counts, _ = np.histogram(lengths, np.arange(1, LONGEST + BAR, BAR))
    share = counts / len(lengths)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text((LEFT, 22), "What a request costs, by its length", INK, size=16),
        text((LEFT, 42), "BERT-base, RTX 3090, TensorRT FP32, estimated from the paper; bars: lengths that arrive"),
    ]
    for index, part in enumerate(share.tolist()):
        height = round(part / share.max() * down * 0.5, 1)
        wide = round(across * BAR / LONGEST - 1, 1)
        parts.append(
            f'<rect x="{x(index * BAR)}" y="{round(TOP + down - height, 1)}" width="{wide}" height="{height}" '
            f'fill="{PALE}"/>'
        )
    for tokens in range(0, LONGEST + 1, STEP):
        parts.append(text((x(tokens), HEIGHT - BOTTOM + 18), f"{tokens}", anchor="middle"))
    parts.append(text((LEFT + across / 2, HEIGHT - 8), "tokens", anchor="middle"))
    for ms in range(int(top_ms) + 1):
        parts.append(f'<path d="M{LEFT} {y(ms)}H{LEFT + across}" stroke="{PALE}" stroke-width="0.6"/>')
        parts.append(text((LEFT - 8, y(ms) + 4), f"{ms}", anchor="end"))
    parts.append(text((LEFT - 8, TOP - 2), "ms", anchor="end"))
    tokens = list(range(1, LONGEST + 1))
    stairs = [(float(n), profile.static_ms(-(-n // STEP) * STEP)) for n in tokens]
    parts += [
        line([(1, profile.static_ms(LONGEST)), (LONGEST, profile.static_ms(LONGEST))], INK, "6 4"),
        line([(float(n), profile.dynamic_ms(n)) for n in tokens], ORANGE, "2 3"),
        line(stairs, GREEN),
    ]
    # Names at the left, where the lines are apart; the request that the headline is about is the median one.
    median = int(np.median(lengths))
    parts += [
        text((x(8), y(profile.static_ms(LONGEST)) - 7), "padded to one static shape", INK),
        text((x(STEP) + 6, y(profile.dynamic_ms(3 * STEP)) - 16), "one dynamic shape", ORANGE),
        text((LEFT + across + 10, y(stairs[-1][1]) + 18), "Arlo: an engine", GREEN),
        text((LEFT + across + 10, y(stairs[-1][1]) + 34), "for each 64 tokens", GREEN),
        f'<circle cx="{x(median)}" cy="{y(stairs[median - 1][1])}" r="4" fill="{BLUE}"/>',
        text(
            (x(median) + 8, y(stairs[median - 1][1]) + 16), f"half of the requests have {median} tokens or less", BLUE
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> int:
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
