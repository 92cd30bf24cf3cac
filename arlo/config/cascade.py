"""[cascade]: one model that several models of rising cost answer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from arlo.config.field import FieldError, option, section


@section("cascade")
class CascadeConfig:
    """One model that several answer, from the cheapest to the best, instead of [model]. Its stages, and when a row goes
    on from one to the next, are in a file that `arlo fit` wrote."""

    manifest: Path = option(
        doc="`cascade.json`, or the folder that it is in. The repositories of the stages lie where it says."
    )
    slo_ms: int = option(
        doc="Latency that a request should be answered within, whatever stages it runs on.",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    name: str | None = option(default=None, doc="Name that clients ask for.", left_out="the name in `cascade.json`")
    default_timeout_ms: int | None = option(
        default=None,
        doc="As `model.default_timeout_ms`.",
        left_out="10 x slo_ms, but at least 1000 ms",
        unit="ms",
        minimum=1,
        maximum=36_000_000,
        relation="at least slo_ms",
    )
    point: str | None = option(
        default=None,
        doc="Operating point: how much is spent for how much accuracy (`arlo fit --report` shows the choice).",
        left_out="the default one of `cascade.json`",
    )
    workers: tuple[int, ...] = option(
        default=(),
        doc="Workers of each stage's own at the start, cheapest first: `[2, 1]`. They move to the stage that needs "
        "them more; each keeps one.",
        left_out="every worker holds all stages",
    )
    on_deadline: Literal["answer", "expire"] = option(
        default="answer",
        doc="A row whose time is over while it waits for a later stage, or runs on it: it ends with the answer that it "
        "has, which says so, or without one.",
    )
    on_failure: Literal["answer", "error"] = option(
        default="answer", doc="The same of a row that a later stage's workers fail."
    )
    answer_margin_ms: int = option(
        default=2,
        doc="How long before its deadline a row ends with the answer that it has.",
        unit="ms",
        minimum=0,
        maximum=60_000,
        relation="below default_timeout_ms",
    )
    price: Literal["off", "auto"] = option(
        default="off",
        doc="`auto`: while the later stages cannot answer in time what is sent to them, rows have to be less sure to "
        "end earlier, step by step along the point's prices; back when there is room again.",
    )
    price_floor_point: str | None = option(
        default=None,
        doc='With `price = "auto"`: another operating point, and at no price a row has to be less sure than at this '
        "other one.",
        left_out="as far as the prices of the point go, which `arlo fit` found",
    )
    shadow_share: float = option(
        default=0.0,
        doc="Of the rows that end early by rule, the share that runs on the last stage as well, after the answer has "
        "gone, to see whether both still agree as often as when the cascade was searched; 0.01 is usual. Neither in "
        "latencies nor in demand.",
        minimum=0,
        maximum=1,
    )
    shadow_max_busy: float = option(
        default=0.7,
        doc="No such rows while a larger share of the last stage's instances is busy.",
        minimum=0,
        maximum=1,
    )
    drift: Literal["alarm", "raise", "off"] = option(
        default="alarm",
        doc="When those rows disagree more often than the operating point promises: say so (in the log, `arlo top` "
        "and `arlo_cascade_drift_alarm`), or also go to the next point that agrees more often.",
    )
    seed: int = option(
        default=0,
        doc="Of the soft rule, which lets a row go on by chance.",
        minimum=0,
        maximum=2**63 - 1,
    )

    def check_relations(self) -> None:
        if self.default_timeout_ms is not None and self.default_timeout_ms < self.slo_ms:
            raise FieldError(
                "cascade",
                "default_timeout_ms",
                f"must be at least slo_ms ({self.slo_ms}), not {self.default_timeout_ms}",
            )
        if self.answer_margin_ms >= self.timeout_ms:
            raise FieldError(
                "cascade",
                "answer_margin_ms",
                f"must be below default_timeout_ms ({self.timeout_ms}), or no row ever goes on",
            )
        if any(not isinstance(count, int) or not 1 <= count <= 1000 for count in self.workers):
            raise FieldError("cascade", "workers", f"are 1 to 1000 for each stage, not {list(self.workers)}")

    @property
    def timeout_ms(self) -> int:
        """default_timeout_ms, or its value when left out."""
        return self.default_timeout_ms if self.default_timeout_ms is not None else max(10 * self.slo_ms, 1000)
