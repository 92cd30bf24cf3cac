"""BERT-base and BERT-large on an RTX 3090 (TensorRT, FP32, batch 1), estimated from what the Arlo paper says.

Facts (sections 2.1, 2.2, 3.3, 5): BERT-base takes 4.86 ms at 512 tokens, 4.22 times its latency at 64; an input of 20
tokens would take 1 / 4.28 of it; latency rises in steps of 64 tokens and by less than 5 % inside one; BERT-large
takes 5.25 times its latency at 64. SLOs: 150 and 450 ms. They leave the following open, and these are our assumptions:

- Between 64 and 512 the ends of the steps lie on a line.
- Inside a step latency rises by 2.04 %, linearly: the rise from 20 tokens (4.86 / 4.28 = 1.136 ms) to 64 (4.86 / 4.22 =
  1.152 ms). Each step rises by the same share.
- A batch takes as long as one row of all its padded tokens would on the line, so batches are neither free nor
  worthless. The paper uses batch 1 only.
- BERT-large's absolute scale: SCALES.
"""

from __future__ import annotations

from arlo.config.load import nearest
from arlo.errors import ConfigError
from arlo.simulator.profiles import inflation
from arlo.simulator.profiles.model import Point, Profile

LONGEST = 512
STEP = 64
BASE_512_MS = 4.86
BASE_SPAN = 4.22  # latency at 512 over that at 64
LARGE_SPAN = 5.25
SHORT_RATIO = 4.28  # latency at 512 over that of an input of 20 tokens
TILT = (1 - BASE_SPAN / SHORT_RATIO) * STEP / (STEP - 20)  # share by which latency rises inside a step: 2.04 %
_LARGEST_BATCH = 32

# BERT-large over BERT-base at some length: name -> (ratio, tokens, why). docs/profiles.md compares them.
SCALES: dict[str, tuple[float, int, str]] = {
    "tables": (
        2.72,
        384,
        "the median ratio of BERT-large to BERT-base in the published TensorRT tables (FP16, batch 1, 384 tokens; "
        "A100, A30, L4, L40S, T4, V100)",
    ),
    "flops": (3.47, 512, "the ratio of floating-point operations at 512 tokens"),
    "layers": (2.0, 64, "the ratio of layers at 64 tokens, as if each kernel took the same time there"),
}


def bert_base(dynamic: str = inflation.DEFAULT) -> Profile:
    """BERT-base; `dynamic` names a model of inflation.DESCRIPTIONS."""
    static = staircase(BASE_512_MS, BASE_SPAN)
    return Profile(
        name="bert-base",
        kind="estimated",
        source="BERT-base on RTX 3090, TensorRT FP32, estimated from the Arlo paper: 4.86 ms at 512 tokens, 4.22 times "
        "that at 64, steps of 64 on a line; batches above 1 by their tokens.",
        slo_ms=150.0,
        max_length=LONGEST,
        step=STEP,
        static=static,
        dynamic=inflation.inflate(static, dynamic, LONGEST),
        dynamic_source=dynamic_source(dynamic),
    )


def bert_large(dynamic: str = inflation.DEFAULT, scale: str | float = "tables") -> Profile:
    """BERT-large; `scale` is a name of SCALES, or its milliseconds at 512 tokens."""
    longest_ms = large_512_ms(scale)
    static = staircase(longest_ms, LARGE_SPAN)
    why = f"as given ({longest_ms:g} ms)" if not isinstance(scale, str) else f"{longest_ms:.2f} ms, {SCALES[scale][2]}"
    return Profile(
        name="bert-large",
        kind="estimated",
        source="BERT-large on RTX 3090, TensorRT FP32, estimated from the Arlo paper: 5.25 times the latency at 64 "
        f"tokens at 512, steps of 64 on a line, batches above 1 by their tokens; at 512 tokens {why}.",
        slo_ms=450.0,
        max_length=LONGEST,
        step=STEP,
        static=static,
        dynamic=inflation.inflate(static, dynamic, LONGEST),
        dynamic_source=dynamic_source(dynamic),
    )


def large_512_ms(scale: str | float = "tables") -> float:
    """BERT-large's latency at 512 tokens under a scale of SCALES; a number is that latency itself."""
    if not isinstance(scale, str):
        if not 0 < scale < 3_600_000:
            raise ConfigError(f"the latency of BERT-large at 512 tokens is above 0 ms, not {scale:g}")
        return float(scale)
    if scale not in SCALES:
        raise ConfigError(f"no scale of BERT-large is called {scale!r}{nearest(scale, SCALES)}")
    ratio, at, _ = SCALES[scale]
    share = edge_ms(at, 1.0, LARGE_SPAN)  # of the latency at 512
    return ratio * edge_ms(at, BASE_512_MS, BASE_SPAN) / share


def edge_ms(tokens: float, longest_ms: float, span: float) -> float:
    """The line through the ends of the steps: longest_ms at 512 tokens, longest_ms / span at 64."""
    least = longest_ms / span
    return least + (longest_ms - least) * (tokens - STEP) / (LONGEST - STEP)


def staircase(longest_ms: float, span: float) -> tuple[Point, ...]:
    """Static latencies at the first and the last length of each step, for batches of 1 and 32.

    They are linear in the batch, so these two suffice.
    """
    points = []
    for batch in (1, _LARGEST_BATCH):
        for edge in range(STEP, LONGEST + 1, STEP):
            end_ms = edge_ms(edge * batch, longest_ms, span)
            begin = edge - STEP + 1
            points.append((begin, batch, end_ms * (1 - TILT * (edge - begin) / STEP)))
            points.append((edge, batch, end_ms))
    return tuple(points)


def dynamic_source(variant: str) -> str:
    """The sentence of a profile whose dynamic latencies come from a model."""
    return f"Dynamic shapes by the model '{variant}': {inflation.DESCRIPTIONS[variant]}."
