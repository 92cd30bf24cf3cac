"""What token counts cost by the multiplications of the layers: ViT-B/16, 197 tokens, as OTAS uses it; and what merging
padding away gives back to short texts in a runtime of 128 tokens (MiniLM, 6 layers).

python -m benchmarks.tokens.schedule
"""

from __future__ import annotations

from arlo.catalog.schedule import multiplications, tokens_after

TOKENS, LAYERS, WIDTH = 197, 12, 768
COUNTS = (-25, -20, -15, -10, -5, 0, 2, 4, 8, 16, 32)


LENGTH, TEXT_LAYERS, TEXT_WIDTH = 128, 6, 384
ROWS = (32, 64, 96, 104, 112, 116, 120, 124)


def lossless(tokens: int) -> int:
    """The most that each layer can merge of a row of so many tokens that loses padding only."""
    return max(merged for merged in range(LENGTH - tokens + 1) if _padding_only(tokens, merged))


def _padding_only(tokens: int, merged: int) -> bool:
    padding = [at >= tokens for at in range(LENGTH)]
    for _ in range(TEXT_LAYERS if merged else 0):
        even, odd = padding[::2], padding[1::2]
        if sum(even) < merged or not any(odd):
            return False
        gone = [at for at, pad in enumerate(even) if pad][:merged]  # of equals the first ones
        padding = [pad for at, pad in enumerate(even) if at not in gone] + odd
    return True


def speed(count: int) -> float:
    """Rows a second beside those with all tokens."""
    return multiplications(TOKENS, LAYERS, 0, width=WIDTH) / multiplications(TOKENS, LAYERS, count, width=WIDTH)


def main() -> None:
    """Print the table."""
    print("tokens  after the last layer  10^9 multiply-adds  speed")
    for count in COUNTS:
        work = multiplications(TOKENS, LAYERS, count, width=WIDTH) / 1e9
        print(f"{count:6}  {tokens_after(TOKENS, LAYERS, count)[-1]:20}  {work:18.2f}  {speed(count):5.2f}")
    plain = multiplications(LENGTH, TEXT_LAYERS, 0, width=TEXT_WIDTH)
    print(f"\ntokens of {LENGTH}  merged, padding only  work of all {LENGTH}  of a dynamic runtime")
    for tokens in ROWS:
        work = multiplications(LENGTH, TEXT_LAYERS, -lossless(tokens), width=TEXT_WIDTH, protected=2)
        dynamic = multiplications(tokens, TEXT_LAYERS, 0, width=TEXT_WIDTH)
        print(f"{tokens:13}  {lossless(tokens):20}  {work / plain:16.2f}  {work / dynamic:20.2f}")


if __name__ == "__main__":
    main()
