"""Times and outcomes as the stories of the simulator write them."""

from __future__ import annotations

OUTCOMES = ("on time", "late", "rejected", "expired", "failed")


def ns(text: str) -> int:
    """Of `5ms`."""
    return round(float(text.removesuffix("ms")) * 1_000_000)


def ms(value: int) -> str:
    """As `5ms`."""
    return f"{value / 1_000_000:g}ms"
