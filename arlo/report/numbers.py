"""Formatting of numbers on pages and on the terminal; NaN and infinity are shown as a dash."""

from __future__ import annotations

import math


def ms(value: float) -> str:
    """Milliseconds, to what matters: 0.52, 12.35, 1,234."""
    return "-" if not math.isfinite(value) else f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def share(value: float) -> str:
    """A share in percent; 100 % only where it is all."""
    if not math.isfinite(value):
        return "-"
    text = f"{value:.2%}"
    return "99.99+%" if text == "100.00%" and value < 1 else text


def number(value: object) -> str:
    """Five digits of a float, all of an integer, anything else as text."""
    if isinstance(value, float):
        return f"{value:,.5g}" if math.isfinite(value) else "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def digits(value: float, count: int = 5) -> float | None:
    """The value rounded to `count` digits, more than a plot shows; None, a gap, if it is not finite."""
    return float(f"{value:.{count}g}") if math.isfinite(value) else None


def seconds(value: float) -> str:
    """A length of time: 0.4 s, 45 s, 2m 05s, 1h 02m, 3d 04h."""
    if value < 60:
        return f"{value:.1f} s" if value < 9.95 else f"{int(value)} s"
    whole = int(value)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02}h"
