"""[cascade] and [pipeline]: one model that several models answer, as a chain of rising cost or as a flow of stages."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

from arlo.config.field import FieldError, option, same, section


@section("cascade")
class CascadeConfig:
    """One model that several answer, from the cheapest to the best, instead of [model]. Its stages, and when a row goes
    on from one to the next, are in a file that `arlo fit` wrote."""

    manifest: Path = option(
        doc="`cascade.json`, or the folder that it is in. The repositories of the stages lie where it says."
    )
    slo_ms: int = option(
        doc="Latency target of a request, over all the stages that it runs on.",
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
        doc="A row whose time is over while it waits for a later stage, or runs on it: it ends with the answer so "
        "far, marked as degraded (`answer`), or with DEADLINE_EXCEEDED (`expire`).",
    )
    on_failure: Literal["answer", "error"] = option(
        default="answer", doc="The same of a row that a later stage's workers fail."
    )
    price: Literal["off", "auto"] = option(
        default="off",
        doc="`auto`: while the later stages cannot answer in time what is sent to them, rows have to be less sure to "
        "end earlier, step by step along the point's prices; back when there is room again.",
    )
    shadow_share: float = option(
        default=0.0,
        doc="Of the rows that end early by rule, the share that runs on the last stage as well, after the answer has "
        "gone, to see whether both still agree as often as when the cascade was searched; 0.01 is usual. Neither in "
        "latencies nor in demand. None while most of the last stage's instances are busy.",
        minimum=0,
        maximum=1,
    )
    drift: Literal["alarm", "raise", "off"] = option(
        default="alarm",
        doc="When those rows disagree more often than the operating point promises: say so (in the log, `arlo top` "
        "and `arlo_cascade_drift_alarm`), or also go to the next point that agrees more often.",
    )

    def check_relations(self) -> None:
        if self.default_timeout_ms is not None and self.default_timeout_ms < self.slo_ms:
            raise FieldError(
                "cascade",
                "default_timeout_ms",
                f"must be at least slo_ms ({self.slo_ms}), not {self.default_timeout_ms}",
            )
        if any(not isinstance(count, int) or not 1 <= count <= 1000 for count in self.workers):
            raise FieldError("cascade", "workers", f"are 1 to 1000 for each stage, not {list(self.workers)}")

    @property
    def timeout_ms(self) -> int:
        """default_timeout_ms, or its value when left out."""
        return self.default_timeout_ms if self.default_timeout_ms is not None else max(10 * self.slo_ms, 1000)


@section("pipeline")
class PipelineConfig:
    """One model that a flow of stages answers, instead of [model]. The stages, their variants and the edges between
    them are in a flow file (`arlo plan flow`); each variant names its repository there."""

    flow: Path = option(doc="The flow file: TOML with a [flow]. It says the SLO, too.")
    name: str | None = option(default=None, doc="Name that clients ask for.", left_out="`flow.name`")
    default_timeout_ms: int | None = same(
        CascadeConfig,
        "default_timeout_ms",
        default=None,
        left_out="10 x `flow.slo_ms`, but at least 1000 ms",
        relation="at least `flow.slo_ms`",
    )
    workers: tuple[int, ...] = option(
        default=(),
        doc="Workers of each variant's own at the start, in the order of the file: `[2, 0, 1]`, for each stage at "
        "least one. They move as the planner of the flow says.",
        left_out="every worker holds all variants",
    )
    window: int = option(
        default=0,
        doc="A client's row that is longer enters in pieces of at most so many tokens, each with the row's first and "
        "last token around it; 0: rows enter whole.",
        unit="tokens",
        minimum=0,
        maximum=1 << 20,
    )
    stride: int | None = option(
        default=None,
        doc="From the start of one piece to that of the next one.",
        left_out="window - 2: pieces do not overlap",
        unit="tokens",
        minimum=1,
        relation="at most window - 2",
    )
    tokens: str = option(
        default="price",
        doc="Where variants of one model differ by their number of tokens: which of them executes a batch is chosen "
        "when it begins, by utility, load and time left. `price` plans what waits for the most utility, with what is "
        "to come in view; `printed` is OTAS's rule; `fixed:N` always takes that number (`fixed:0`, `fixed:-8`).",
    )
    audit: float = option(
        default=0.001,
        doc="Of the rows answered otherwise than by the most accurate variants, or with fewer tokens, the share that "
        "these (or all tokens) answer, too, when there is time: how often both say the same is in `arlo top --once`, "
        "and `pipeline_audit` is logged when they differ more often than their accuracies allow. Classifiers alone.",
        minimum=0,
        maximum=1,
    )
    tenants: dict[str, float] = option(
        factory=dict,
        doc="Whose rows they are, by the parameter `tenant` of requests, and what share of the workers each has beside "
        "the others: `{search = 3, mail = 1}`. While there are too few workers for all, whoever takes more than that "
        "gets cheaper variants and waits less. Rows that name none have the least of the shares.",
    )
    pool: Literal["list", "mean"] = option(
        default="list",
        doc="What a client gets of a row that became several: the list of their answers, or their mean.",
    )
    max_bytes: int = option(
        default=1 << 20,
        doc="Token ids and tensors of one client row that may be kept, with all that it becomes; what needs more is "
        "refused.",
        unit="bytes",
        minimum=1024,
        maximum=1 << 32,
    )

    @property
    def fixed_tokens(self) -> int | None:
        """N of `fixed:N`."""
        rule, _, count = self.tokens.partition(":")
        return int(count) if rule == "fixed" else None

    def check_relations(self) -> None:
        if not re.fullmatch(r"price|printed|fixed:[+-]?\d+", self.tokens):
            raise FieldError(
                "pipeline",
                "tokens",
                f'must be "price", "printed" or "fixed:N", as "fixed:-8", not {self.tokens!r}',
            )
        if self.tokens == "printed" and self.workers:
            raise FieldError(
                "pipeline",
                "tokens",
                f"= {self.tokens!r} chooses for batches, of all variants on every worker: leave `workers` out",
            )
        if self.window and self.window < 3:
            raise FieldError("pipeline", "window", f"must be 0, or above 2, not {self.window}")
        if self.stride is not None and not 1 <= self.stride <= self.window - 2:
            raise FieldError("pipeline", "stride", f"must be 1 to window - 2 ({self.window - 2}), not {self.stride}")
        for name, part in self.tenants.items():
            if not name or not 0 < part < math.inf:
                raise FieldError("pipeline", "tenants", f"need a name and a share above 0, not {name!r} = {part}")
        if any(not isinstance(count, int) or not 0 <= count <= 1000 for count in self.workers):
            raise FieldError("pipeline", "workers", f"are 0 to 1000 for each variant, not {list(self.workers)}")
