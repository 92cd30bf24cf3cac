"""Per-request records: one NumPy structured array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from arlo.replay.outcomes import classify

Records: TypeAlias = NDArray[np.void]

# What arlo-loadgen writes; src/loadgen/records.h has the same. Times are microseconds from the start of the replay; -1
# in the columns from the response's parameters means that the target does not say.
SENT = np.dtype(
    [
        ("index", "<u4"),  # of the request in the trace
        ("payload", "<u4"),
        ("scheduled_us", "<i8"),
        ("sent_us", "<i8"),
        ("done_us", "<i8"),
        ("code", "u1"),  # gRPC status code
        ("error", "u1"),  # 0, or key of the message
        ("demoted", "i1"),
        ("reserved", "i1"),
        ("level", "<i4"),
        ("queue_us", "<i8"),
        ("execute_us", "<i8"),
        ("total_us", "<i8"),
        ("computed_tokens", "<i8"),
        ("max_length", "<i4"),  # of the level
    ]
)

# What a replay hands out: the same, with what only Python knows.
RECORD = np.dtype(
    [
        *[(name, SENT[name]) for name in SENT.names or () if name not in ("payload", "reserved")],
        ("length", "<i4"),  # tokens of the request
        ("width", "<i4"),  # tokens of the request as it was sent, padding to a fixed input shape included
        ("outcome", "u1"),  # index of OUTCOMES
    ]
)


def complete(
    sent: NDArray[Any],
    length: NDArray[np.int32],
    width: NDArray[np.int32],
    messages: Mapping[int, str],
    slo_us: float,
) -> Records:
    """RECORD[n] from arlo-loadgen's SENT[n]; `length` and `width` are those of the whole trace, by index."""
    records = np.zeros(len(sent), RECORD)
    for name in RECORD.names or ():
        if name in (SENT.names or ()):
            records[name] = sent[name]
    records["length"] = length[sent["index"]]
    records["width"] = width[sent["index"]]
    records["outcome"] = classify(sent["code"], sent["error"], latency_us(sent), messages, slo_us)
    return records


def latency_us(records: NDArray[Any]) -> NDArray[np.int64]:
    """int64[n]: from the instant the trace says, not from the instant of sending."""
    return np.asarray(records["done_us"] - records["scheduled_us"], np.int64)


def delay_us(records: NDArray[Any]) -> NDArray[np.int64]:
    """int64[n]: how much later than scheduled each request left."""
    return np.asarray(records["sent_us"] - records["scheduled_us"], np.int64)
