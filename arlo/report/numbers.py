"""How numbers are written, on pages and on the terminal; what is not a number is a dash."""

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
    """Rounded to `count` digits, more than a plot shows; None, a gap, for what is not a number."""
    return float(f"{value:.{count}g}") if math.isfinite(value) else None
