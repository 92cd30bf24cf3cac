"""What token counts cost by the multiplications of the layers: ViT-B/16, 197 tokens, as OTAS uses it.

python -m benchmarks.tokens.schedule
"""

from __future__ import annotations

from arlo.catalog.schedule import multiplications, tokens_after

TOKENS, LAYERS, WIDTH = 197, 12, 768
COUNTS = (-25, -20, -15, -10, -5, 0, 2, 4, 8, 16, 32)


def speed(count: int) -> float:
    """Rows a second beside those with all tokens."""
    return multiplications(TOKENS, LAYERS, 0, width=WIDTH) / multiplications(TOKENS, LAYERS, count, width=WIDTH)


def main() -> None:
    """Print the table."""
    print("tokens  after the last layer  10^9 multiply-adds  speed")
    for count in COUNTS:
        work = multiplications(TOKENS, LAYERS, count, width=WIDTH) / 1e9
        print(f"{count:6}  {tokens_after(TOKENS, LAYERS, count)[-1]:20}  {work:18.2f}  {speed(count):5.2f}")


if __name__ == "__main__":
    main()
