"""BERT-base and BERT-large on an RTX 3090 (TensorRT, FP32, batch 1), estimated from what the Arlo paper says.

Facts (sections 2.1, 2.2, 3.3, 5): BERT-base takes 4.86 ms at 512 tokens, 4.22 times its latency at 64; an input of 20
tokens would take 1 / 4.28 of it; latency rises in steps of 64 tokens and by less than 5 % inside one; BERT-large
takes 5.25 times its latency at 64. SLOs: 150 and 450 ms. They leave the following open, and these are our assumptions:

- Between 64 and 512 the ends of the steps lie on a line.
- Inside a step latency rises by 2.04 %, linearly: the rise from 20 tokens (4.86 / 4.28 = 1.136 ms) to 64 (4.86 / 4.22 =
  1.152 ms). Each step rises by the same share.
- A batch takes as long as one row of all its padded tokens would on the line, so batches are neither free nor
  worthless. The paper uses batch 1 only.
- BERT-large's absolute scale: at 384 tokens it takes 2.72 times what BERT-base takes, the median ratio in the published
  TensorRT tables (FP16, batch 1; A100, A30, L4, L40S, T4, V100).
"""

from __future__ import annotations

from arlo.simulator.profiles import inflation
from arlo.simulator.profiles.model import Point, Profile

LONGEST = 512
STEP = 64
BASE_512_MS = 4.86
BASE_SPAN = 4.22  # latency at 512 over that at 64
LARGE_SPAN = 5.25
LARGE_OVER_BASE, AT = 2.72, 384
SHORT_RATIO = 4.28  # latency at 512 over that of an input of 20 tokens
TILT = (1 - BASE_SPAN / SHORT_RATIO) * STEP / (STEP - 20)  # share by which latency rises inside a step: 2.04 %
_LARGEST_BATCH = 32


def bert_base(dynamic: str = inflation.DEFAULT) -> Profile:
    """BERT-base; `dynamic` names a model of inflation.DESCRIPTIONS."""
    why = "4.86 ms at 512 tokens, 4.22 times that at 64"
    return _profile(why, BASE_512_MS, BASE_SPAN, dynamic, name="bert-base", slo_ms=150.0)


def bert_large(dynamic: str = inflation.DEFAULT) -> Profile:
    """BERT-large."""
    longest_ms = LARGE_OVER_BASE * edge_ms(AT, BASE_512_MS, BASE_SPAN) / edge_ms(AT, 1.0, LARGE_SPAN)
    why = f"5.25 times the latency at 64 tokens at 512, which is {longest_ms:.2f} ms by the ratio in published tables"
    return _profile(why, longest_ms, LARGE_SPAN, dynamic, name="bert-large", slo_ms=450.0)


def _profile(why: str, longest_ms: float, span: float, dynamic: str, *, name: str, slo_ms: float) -> Profile:
    static = staircase(longest_ms, span)
    return Profile(
        name=name,
        kind="estimated",
        source=f"{name.replace('bert', 'BERT')} on RTX 3090, TensorRT FP32, estimated from the Arlo paper: {why}, "
        "steps of 64 on a line; batches above 1 by their tokens.",
        slo_ms=slo_ms,
        max_length=LONGEST,
        step=STEP,
        static=static,
        dynamic=inflation.inflate(static, dynamic, LONGEST),
        dynamic_source=inflation.source(dynamic),
    )


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
