"""The sections of a scenario file: every key, its default and what it means. docs/scenario.md and the flags of
`arlo simulate` are written from this.

A key that `arlo serve` has too is taken over from its declaration in arlo/config/model.py (`same`). Where its default
or range differs here, `but` gives the reason.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from arlo.catalog.flow import DropName, RouterName
from arlo.config.field import FieldError, Flag, option, same, section
from arlo.config.keeping import ControlConfig, Objective, ScalingConfig
from arlo.config.model import DispatchConfig, Policy
from arlo.simulator.scenario.scenario import Allocate, Scale, Scenario
from arlo.traces.make import ArrivalsName

# Defaults live in arlo/config/model.py; those that a simulation does not share with `arlo serve` are in scenario.py.
# What depends on the scheme is left out here and set by it.
_ALLOCATE, _SCALE = Allocate(), Scale()
_RUN = {field.name: field.default for field in dataclasses.fields(Scenario)}

SchemeName = Literal["arlo", "paper", "st", "dt", "infaas"]
DEFAULT_DURATION_S = 120.0
MOST_WORKERS = 100_000
# What a trace brings along itself.
TRACE_EXCLUDES = ("arrivals", "length", "drift", "burst", "sojourn_ms", "counts", "segment")
MOST_MS = 1_000_000_000  # eleven days: nanoseconds of anything longer do not fit the event loop's integers


@section("run")
class RunSection:
    """One run: its name, seed and warm-up."""

    name: str = option(default="", doc="Name in tables and plots.", left_out="the scheme, the workers and the rate")
    seed: int = option(
        default=_RUN["seed"],
        doc="Seed of arrivals, lengths and noise. The same seed gives the same result, to the last bit.",
        minimum=0,
        maximum=2**63 - 1,
        flag=Flag("N", "of all that is random", sweep=True),
    )
    warmup_s: float = option(
        default=_RUN["warmup_s"],
        doc="Requests that arrive before are served but not counted.",
        unit="s",
        minimum=0,
        relation="below workload.duration_s",
        flag=Flag("S", "requests before are not counted"),
    )


@section("workload")
class WorkloadSection:
    """The requests: their arrivals and lengths. Set either `trace`, or how to draw them; the settings are those of
    arlo.traces.make_workload, which traces/README.md describes at length."""

    arrivals: ArrivalsName | None = option(
        default=None,
        doc="`twitter-stable` and `twitter-bursty` as in the paper: inside a second Poisson, or Markov-modulated "
        "Poisson. `poisson`, `mmpp` (Markov-modulated throughout), `gamma`, `constant`.",
        left_out="`twitter-bursty`",
        relation="not with trace",
        flag=Flag("NAME", "when requests arrive", sweep=True),
    )
    rate: float | str | None = option(
        default=None,
        doc="Mean requests per second, or one that changes: `steps:0=100,60=200`, `ramp:100:500`, "
        "`sine:MEAN:DEPTH:PERIOD_S`. With `counts`, `segment` or `trace`: the mean that these are brought to.",
        left_out="1,000, or theirs",
        unit="1/s",
        above=0,
        maximum=100_000_000,
        flag=Flag("RPS", "mean requests per second, or ramp:A:B, ...", sweep=True),
    )
    duration_s: float | None = option(
        default=None,
        doc="How long requests arrive.",
        left_out="120, or that of `trace`, `counts` or `segment`",
        unit="s",
        above=0,
        maximum=10_000_000,
        flag=Flag("S", "how long they arrive"),
    )
    length: str | None = option(
        default=None,
        doc="Lengths in tokens: `paper` (the quantiles of the paper, stretched to 512), `tweets`, `fixed:N`, "
        "`uniform:MIN:MAX`, `lognormal:MEDIAN:P98:MAX`, `bimodal:A:B:SHARE_OF_B`, `file:PATH`, "
        "`mixture:SHARE*SPEC+SHARE*SPEC`.",
        left_out="`paper`",
        relation="not with trace",
        flag=Flag("SPEC", "lengths: paper, tweets, fixed:N, ..."),
    )
    rescale: int | None = option(
        default=None,
        doc="Stretch lengths so that 125 tokens become so many, and cut what is longer to it.",
        unit="tokens",
        minimum=1,
        maximum=1_000_000,
        flag=Flag("MAX", "stretch lengths so that 125 tokens become MAX"),
    )
    drift: str | None = option(
        default=None,
        doc="How lengths drift over minutes: `none`, `weak`, `paper` (as Fig. 1), `SPREAD[:TAU_S[:MEDIAN]]`.",
        left_out="`paper` for twitter arrivals, else `none`",
        relation="not with trace",
        flag=Flag("NAME", "of lengths over minutes: none, weak, paper, SPREAD[:TAU_S]"),
    )
    burst: float | None = option(
        default=None,
        doc="mmpp, twitter-bursty: rate while busy over that while quiet.",
        left_out="3",
        minimum=1,
        maximum=1_000_000,
        flag=Flag("X", "busy over quiet rate, of twitter-bursty and mmpp"),
    )
    sojourn_ms: float | str | None = option(
        default=None,
        doc="mmpp, twitter-bursty: mean time in a state, or `BUSY:QUIET`.",
        left_out="100",
        unit="ms",
        above=0,
        flag=Flag("MS", "mean time busy, and quiet"),
    )
    counts: Path | None = option(
        default=None,
        doc="A file of arrivals per second or minute, whose course the rate follows.",
        left_out="none",
        flag=Flag("FILE", "the rate follows arrivals counted per second or minute"),
    )
    segment: str | None = option(
        default=None,
        doc="The window of `counts`, or without it a load that is shipped.",
        left_out="none",
        flag=Flag("NAME", "the rate follows a load that is shipped"),
    )
    bulk_share: float = option(
        default=_RUN["bulk_share"],
        doc="Share of the requests, drawn one by one, that are of the class bulk: they have no SLO and fill what the "
        "others leave (docs/batches.md). They are in no latency and counted by themselves.",
        minimum=0,
        maximum=1,
    )
    trace: Path | None = option(
        default=None,
        doc="A trace file (CSV) with arrived_at_s and length.",
        left_out="drawn",
        flag=Flag("FILE", "the requests of a trace (CSV)"),
    )

    @property
    def drawn(self) -> bool:
        """Whether the requests are drawn, so that the scenario must set their duration."""
        return self.trace is None and self.counts is None and self.segment is None

    def check_relations(self) -> None:
        if self.trace is not None:
            for key in TRACE_EXCLUDES:
                if getattr(self, key) is not None:
                    raise FieldError("workload", key, "is of drawn requests; leave it out with trace")


@section("cluster")
class ClusterSection:
    """The workers and what they can run."""

    workers: int = option(
        default=10,
        doc="GPUs at the start.",
        minimum=1,
        maximum=MOST_WORKERS,
        flag=Flag("N", "GPUs; 8,10,12 or 8-12 compares", sweep=True),
    )
    scheme: SchemeName = option(
        default="arlo",
        doc="`arlo`: as it is shipped. `paper`: as it is published (Algorithm 1, Eq. 1). Its rivals: `st` pads "
        "everything to the longest, `dt` has one dynamic-shape runtime, `infaas` packs requests onto variants. Each "
        "sets the defaults of [dispatch], [allocation] and [scaling]; docs/profiles.md says how.",
        flag=Flag("NAME", "arlo as it ships, paper as it is published, or a rival: st, dt, infaas", sweep=True),
    )
    profile: str | None = option(
        default=None,
        doc="Latencies of the runtimes: a name that `arlo simulate --profiles` lists, a repository with `arlo.json`, "
        "or what `arlo compile profile` wrote.",
        left_out="`bert-base`",
        relation="not with [[runtime]]",
        flag=Flag("NAME", "latencies: the name of a latency profile, or a repository"),
    )
    serves: Path | None = option(
        default=None,
        doc="A flow file, a fitted cascade.json, or a file of token counts: what the workers hold, and how long it "
        "takes. `arlo simulate FILE` takes each by itself, too.",
        left_out="one model, or several",
        relation="in place of profile and [[runtime]]",
    )
    texts: Path | None = option(
        default=None,
        doc="The texts that a cascade was fitted on. The test split of its records is simulated, with their lengths.",
        relation="with a cascade in serves",
        flag=Flag("FILE", "of a cascade: the texts that it was fitted on"),
    )
    max_lengths: tuple[int, ...] = option(
        default=(),
        doc="Maximum lengths of the runtimes.",
        left_out="the repository's, else all steps of the latency profile",
        unit="tokens",
        minimum=1,
        relation="with profile",
    )
    max_batch: int | None = option(
        default=None,
        doc="Rows that a runtime executes at once.",
        left_out="as the repository has them, else 1",
        unit="rows",
        minimum=1,
        maximum=4096,
        relation="with profile",
        flag=Flag("ROWS", "rows at once"),
    )
    bundle: Literal["one", "all"] = option(
        default=_RUN["bundle"],
        doc="What a worker holds: `one` runtime, as the paper has it, or `all` of them, any of which may run next. "
        "With `all` there is nothing to allocate. Of a flow, `one`: all runtimes of one variant.",
        relation="all: not with scaling, nor with st, dt and infaas",
        flag=Flag("NAME", "what a worker holds: one runtime, or all", sweep=True),
    )
    dynamic: str | None = option(
        default=None,
        doc="Model of the latency of dynamic shapes; docs/profiles.md has them.",
        left_out="what was measured; `added` for profiles that are not measured",
        relation="with profile",
        flag=Flag("NAME", "model of the latency of dynamic shapes, for dt"),
    )
    slo_ms: float | None = option(
        default=None,
        doc="Latency within which an answer is on time.",
        left_out="that of the latency profile (bert-base 150, bert-large 450), else 150",
        unit="ms",
        above=0,
        maximum=MOST_MS,
        flag=Flag("MS", "the SLO"),
    )
    overhead_ms: float = option(
        default=_RUN["overhead_ms"],
        doc="Added to each request's latency; occupies nothing. The paper's value (section 5.2.1).",
        unit="ms",
        minimum=0,
        maximum=MOST_MS,
        flag=Flag("MS", "added to each request"),
    )
    hop_ms: float = option(
        default=_RUN["hop_out_ms"],
        doc="From the request scheduler to a worker, and back; the scheduler learns of an end so much later.",
        unit="ms",
        minimum=0,
        maximum=MOST_MS,
    )
    timeout_ms: float | None = option(
        default=_RUN["timeout_ms"],
        doc="After this the client gives up: `expired`.",
        left_out="never",
        unit="ms",
        above=0,
        maximum=MOST_MS,
        flag=Flag("MS", "clients give up after this"),
    )
    noise: float = option(
        default=_RUN["noise_cv"],
        doc="Coefficient of variation of execution times (lognormal, mean 1, as 4,096 values, widened "
        "so that the coefficient is met); the scheduler does not know it.",
        minimum=0,
        maximum=10,
        flag=Flag("CV", "variation of execution times"),
    )


@section("runtime")
class RuntimeSection:
    """One runtime, in place of `cluster.profile`; ascending max_length."""

    max_length: int = option(doc="Longest request it takes.", unit="tokens", minimum=1, maximum=1_000_000)
    latency_ms: float | None = option(
        default=None, doc="Time of one request, whatever its length.", unit="ms", above=0, relation="or points"
    )
    points: tuple[tuple[float, ...], ...] = option(
        default=(),
        doc="Measured latencies, `[[length, batch, ms], ...]`; linear between them.",
        relation="or latency_ms",
    )
    max_batch: int = option(default=1, doc="Rows that it executes at once.", unit="rows", minimum=1, maximum=4096)
    dynamic: bool = option(default=False, doc="Takes each length as it is instead of padding to max_length.")
    truth: tuple[tuple[float, ...], ...] = option(
        default=(), doc="What execution really takes, as `points`, where the scheduler believes something else."
    )

    def check_relations(self) -> None:
        if (self.latency_ms is None) == (not self.points):
            raise FieldError("runtime", "latency_ms", "or points is needed: one of them, not both")
        for key in ("points", "truth"):
            for point in getattr(self, key):
                whole = len(point) == 3 and point[0] == int(point[0]) and point[1] == int(point[1])
                if not whole or point[0] < 1 or point[1] < 1 or point[2] <= 0:
                    raise FieldError(
                        "runtime", key, f"has {list(point)}: a point is [length >= 1, batch >= 1, ms above 0]"
                    )
                if point[0] > self.max_length or point[1] > self.max_batch:
                    raise FieldError(
                        "runtime",
                        key,
                        f"has {list(point)}, beyond max_length {self.max_length} or max_batch {self.max_batch}",
                    )


@section("dispatch")
class DispatchSection:
    """The request scheduler."""

    policy: Policy | None = same(
        DispatchConfig,
        "policy",
        default=None,
        left_out="that of the scheme, `late` for arlo",
        flag=Flag("NAME", "how an instance is chosen", sweep=True),
    )
    batching: Literal["worker", "one", "fill", "deadline", "fifo"] | None = option(
        default=None,
        doc="Who forms batches, of up to max_batch rows. `worker`: it joins the rows that have arrived, as Triton's "
        "batcher does. `one`: each row is executed alone. `fill`: the scheduler, of what waits and fits together. "
        "`deadline`: the same, as far as every row can be on time. `fifo`: batches in order of arrival, padded to "
        "their longest, on one dynamic runtime as quick as the static ones: what servers do that know no lengths.",
        left_out="`worker`; of a flow `deadline` with drop = slack, else `fill`",
        relation="fifo: not with bundle = all",
        flag=Flag("NAME", "who forms batches: worker, one, fill, deadline, or the rival fifo", sweep=True),
    )
    router: RouterName | None = option(
        default=None,
        doc="Which variants the rows of a flow go to.",
        left_out="the flow's",
        flag=Flag("NAME", "of a flow: price, plan or maf", sweep=True),
    )
    drop: DropName | None = option(
        default=None,
        doc="Which rows of a flow are given up.",
        left_out="the flow's",
        flag=Flag("NAME", "of a flow: slack, reroute, per_task, last or none", sweep=True),
    )
    tokens: str | None = option(
        default=None,
        doc="What chooses token counts: `price`, `printed`, `fixed:N`.",
        left_out="`price`",
        flag=Flag("NAME", "of token counts: price, printed, fixed:N", sweep=True),
    )
    point: str | None = option(
        default=None,
        doc="Operating point of a cascade; `first` or `last`: one stage alone.",
        left_out="the cascade's default one",
        flag=Flag("NAME", "of a cascade: an operating point, first or last", sweep=True),
    )
    price: Literal["off", "auto"] | None = option(
        default=None,
        doc="`auto`: under load, rows of a cascade have to be less sure to end earlier.",
        left_out="`off`",
    )


@section("allocation")
class AllocationSection:
    """How many instances of each runtime, and when that is decided."""

    kind: Literal["periodic", "even", "global", "oracle", "fixed"] | None = option(
        default=None,
        doc="`periodic`: every period, for the demand seen. `even`: as equal as possible, the longest first. `global`: "
        "once, for the demand of the whole workload. `oracle`: every period, for the demand that is to come. `fixed`: "
        "`instances`.",
        left_out="`fixed` where instances are given, else that of the scheme, `periodic` for arlo",
        flag=Flag("KIND", "when instances are allocated", name="allocation", sweep=True),
    )
    instances: tuple[int, ...] = option(
        default=(),
        doc="Instances of each runtime, ascending max_length: for good (kind fixed), or at the start. Of a cascade: "
        "workers of each stage, which else hold all.",
        minimum=0,
        relation="their sum is cluster.workers",
        flag=Flag("N,N,...", "instances of each runtime, fixed"),
    )
    period_s: float | None = same(
        ControlConfig,
        "period_s",
        default=None,
        left_out=f"{_ALLOCATE.period_s:g}; of a flow its plan_period_s",
        flag=Flag("S", "between two allocations"),
    )
    objective: Objective | None = same(
        ControlConfig,
        "objective",
        default=None,
        left_out="that of the scheme, `queueing` for arlo",
        flag=Flag("NAME", "what an allocation minimises"),
    )
    replacement_s: float | None = option(
        default=_ALLOCATE.replacement_s,
        doc="How long a worker is away while it loads another runtime.",
        left_out="what the profile says of the runtime, else 1 s, as in the paper",
        unit="s",
        minimum=0,
    )
    shift: bool = same(
        ControlConfig,
        "early",
        default=_ALLOCATE.shift,
        but="`arlo serve` calls it `early`, and has it on; the paper plans by the period only.",
    )

    def check_relations(self) -> None:
        if self.kind == "fixed" and not self.instances:
            raise FieldError("allocation", "instances", 'is needed with kind = "fixed": one number for each runtime')


@section("scaling")
class ScalingSection:
    """How the number of workers follows the load."""

    kind: Literal["none", "target", "headroom", "plan", "scheme"] = same(
        ScalingConfig,
        "policy",
        default=_SCALE.kind,
        but="`scheme`: that of cluster.scheme, `target` for arlo and paper, `headroom` for the others.",
        relation="plan: of a flow",
        flag=Flag("KIND", "how the number of GPUs follows the load", name="scaling", sweep=True),
    )
    min_workers: int = same(
        ScalingConfig,
        "min_workers",
        default=_SCALE.min_workers,
        maximum=MOST_WORKERS,
        but="A simulated cluster may be larger than one that is served.",
        flag=Flag("N", "never fewer GPUs"),
    )
    max_workers: int = same(
        ScalingConfig,
        "max_workers",
        default=_SCALE.max_workers,
        maximum=MOST_WORKERS,
        left_out=None,
        but="A simulation has no count of its own that would be the limit.",
        flag=Flag("N", "never more GPUs"),
    )
    start_s: float = option(
        default=_SCALE.start_s, doc="From asking for a worker to its first request.", unit="s", minimum=0
    )

    def check_relations(self) -> None:
        if self.max_workers < self.min_workers:
            raise FieldError("scaling", "max_workers", f"must be at least min_workers ({self.min_workers})")


@section("fault")
class FaultSection:
    """Something that happens to a worker; as often as wanted."""

    at_s: float = option(doc="When.", unit="s", minimum=0)
    worker: int = option(doc="Which, from 0; workers are numbered by ascending max_length at the start.", minimum=0)
    kind: Literal["fail", "slow"] = option(default="fail", doc="It dies, or it becomes slow.")
    restart_s: float | None = option(
        default=None, doc="fail: it serves again after this.", left_out="it is gone for good", unit="s", minimum=0
    )
    factor: float = option(default=2.0, doc="slow: execution takes so many times as long from then on.", above=0)
