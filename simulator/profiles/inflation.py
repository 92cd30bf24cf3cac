"""How much slower a dynamic-shape runtime is than a static one of the very length: models, since the paper gives two
numbers (section 2.2: "the minimum latency inflation is 1.22x and the maximum can be up to 3.56x", over all lengths of
BERT-base and BERT-large) and not where they occur.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from arlo.config.load import nearest
from arlo.errors import ConfigError
from arlo.simulator.profiles.model import Point, latency_ms

LEAST = 1.22
MOST = 3.56
# Latency of the published dynamic-shape engine at 505 tokens over that at 61, batch 1 (Txxx926/torch2tensorrt,
# DistilBERT, distillbert_onnx_all_seqlen.json): the ends of the last and the first step of 64 tokens.
PUBLISHED_SPAN = 3.633 / 1.165

DEFAULT = "added"
DESCRIPTIONS = {
    "added": "the same time is added at every length: 22 % of the longest's static latency, so 1.22x there",
    "published": "1.22x at the longest, and so much more at shorter ones that the dynamic curve has the published "
    "DistilBERT engine's span from 64 to 512 tokens (3.12x), linear in the static latency in between",
    "least": "1.22x at every length, the paper's least",
    "most": "3.56x at every length, the paper's most",
    "none": "as fast as static runtimes: a bound, not a model",
}
_CONSTANT = {"added": 1.0, "least": LEAST, "most": MOST, "none": 1.0}


def source(variant: str) -> str:
    """The sentence of a profile whose dynamic latencies come from a model."""
    return f"Dynamic shapes by the model '{variant}': {DESCRIPTIONS[variant]}."


def inflate(static: Sequence[Point], variant: str, max_length: int, first: int = 64) -> tuple[Point, ...]:
    """Dynamic-shape latencies at the points of a static table, by a model of DESCRIPTIONS.

    The factor of a point is that of the end of its step of `first` tokens, so steps stay steps. For larger batches it
    is the same; `added` adds its time to a batch once, since it stands for the work of starting kernels.
    """
    if variant not in DESCRIPTIONS:
        raise ConfigError(f"no model of dynamic shapes is called {variant!r}{nearest(variant, DESCRIPTIONS)}")
    high_ms = latency_ms(static, max_length)
    if variant in _CONSTANT:
        added = (LEAST - 1) * high_ms if variant == "added" else 0.0
        return tuple((length, batch, ms * _CONSTANT[variant] + added) for length, batch, ms in static)
    low_ms = latency_ms(static, min(first, max_length))
    begin = max(LEAST * high_ms / low_ms / PUBLISHED_SPAN, 1.0)

    # A line in the latency and not in the factor: with both ends far apart, the latter would make the dynamic runtime
    # slower at middle lengths than at the longest.
    def factor(length: int) -> float:
        static_ms = latency_ms(static, min(math.ceil(length / first) * first, max_length))
        share = (static_ms - low_ms) / (high_ms - low_ms) if high_ms > low_ms else 1.0
        return (begin * low_ms * (1 - share) + LEAST * high_ms * share) / static_ms

    return tuple((length, batch, ms * factor(length)) for length, batch, ms in static)
