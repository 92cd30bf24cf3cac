"""
Arlo's core: the request scheduler that the gateway and the simulator share, and the allocation solver.
"""

import enum
from collections.abc import Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray

class Admission(enum.Enum):
    """What became of an arrival or a retry."""

    STARTED = 0
    """A START action was emitted."""

    QUEUED = 1
    """Bound to an instance, or waiting for late binding."""

    PARKED = 2
    """No active instance fits; waits for one to join."""

    TOO_LONG = 3
    """Longer than every runtime, or below 1: refused."""

    FULL = 4
    """max_queued reached: refused."""

    TOO_LATE = 5
    """Predicted to finish after its deadline: refused."""

class Verdict(enum.Enum):
    """How an execution ended."""

    ANSWERED = 0
    """With a good answer."""

    FAILED = 1
    """In any other way: the time it took says nothing."""

class ActionKind(enum.Enum):
    START = 0
    """Execute the request on the instance now."""

    EXPIRED = 1
    """
    It was waiting, and its deadline has come or cannot be met; the handle is gone.
    """

    LOST = 2
    """Its instance left; call retry or abandon."""

class RequestState(enum.Enum):
    GONE = 0

    WAITING = 1

    STARTED = 2

    LOST = 3

class InstanceState(enum.Enum):
    ACTIVE = 0

    DRAINING = 1

class Action:
    """A decision of the scheduler."""

    @property
    def kind(self) -> ActionKind: ...
    @property
    def handle(self) -> int: ...
    @property
    def tag(self) -> int:
        """The caller's name for the request."""

    @property
    def instance(self) -> int | None:
        """None for EXPIRED."""

    @property
    def level(self) -> int:
        """The level it runs on; the ideal level for EXPIRED."""

    @property
    def demoted(self) -> bool:
        """The level is above the ideal one."""

    @property
    def runtime(self) -> int | None:
        """START: that executes it."""

    @property
    def batch(self) -> int | None:
        """
        START: the same number for the rows of one batch, which come one after the other; None: alone.
        """

    @property
    def evicted(self) -> bool:
        """EXPIRED: what is worth more goes before it."""

    def __repr__(self) -> str: ...

class InstanceView:
    """An instance as the scheduler sees it."""

    @property
    def runtime(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def state(self) -> InstanceState: ...
    @property
    def in_flight(self) -> int:
        """Batches started, not finished."""

    @property
    def queued(self) -> int:
        """Requests bound to it, not started."""

def tokens_printed(
    now: int, batches: Sequence[tuple[Sequence[tuple[int, float, int]], float]]
) -> tuple[list[int], float, float, int]:
    """
    OTAS, Algorithm 2: (option of each batch or -1, utility, bound, end in ns); see src/solve/tokens/plan.h.

    `batches` by deadline, each (options, mean utility of its rows); an option is (time, utility, deadline), times
    in ns.
    """

def tokens_manual(
    now: int, batches: Sequence[tuple[Sequence[tuple[int, float, int]], float]], usual: int, kappa: float = 0.8
) -> tuple[list[int], float, float, int]:
    """
    OTAS, Algorithm 3, with the answer of tokens_printed; `usual` is the option that the rate asks for.
    """

def tokens_exact(
    now: int, batches: Sequence[tuple[Sequence[tuple[int, float, int]], float]], labels: int = 256
) -> tuple[list[int], float, float, int]:
    """
    The plan of the most utility, with the answer of tokens_printed. Options may differ in number and deadline.
    """

def tokens_batch(
    queries: Sequence[tuple[int, int, float]], delta: int, most: int, eta: int, mu: float
) -> list[list[int]]:
    """
    OTAS, Algorithm 1: the numbers of the queries in each batch. `queries` by arrival: (arrival, deadline,
    utility), times in ns.
    """

class TokenCounts:
    """
    Variants of one network at several token counts, by which rules one of them gets a batch, and how accurate each
    is for each kind of rows (src/solve/tokens/chooser.h). Times in ns.
    """

    def __init__(
        self,
        variants: Sequence[int],
        accuracy: Sequence[Sequence[float]],
        *,
        policy: str = "price",
        fixed: int = 0,
        delta: int,
        most: int,
        eta: int,
        mu: float,
        beta: int = 5,
        initial: int = 2000000000,
        kappa: float = 0.8,
        window: int,
        horizon: int,
        share: float = 1.0,
        looked_at: int = 32,
        energy: Sequence[float] = [],
    ) -> None: ...

class Scheduler:
    """
    The request scheduler of section 3.4. Times are integers in ns from any fixed origin and never go back.

    Not thread-safe. `max_queued` bounds the requests that wait; `lambda_`, `alpha` and `max_peek` are those of
    Algorithm 1 and used by `rs` only. ValueError for values out of range.
    """

    def __init__(
        self,
        policy: str = "rs",
        *,
        lambda_: float = 0.85,
        alpha: float = 0.9,
        max_peek: int = 6,
        max_queued: int = 4096,
        batching: str = "one",
    ) -> None: ...
    def add_runtime(
        self,
        max_length: int,
        capacity: int,
        latency: Sequence[tuple[int, int, int]],
        *,
        max_batch: int = 1,
        dynamic: bool = False,
        variant: int = 0,
    ) -> int:
        """
        Adds a runtime and returns its id. `max_length` in tokens, `capacity` is M (requests within the SLO),
        `latency` the measured points (length in tokens, batch in rows, ns); `variant`: the network that it runs.
        """

    def add_bundle(self, runtimes: Sequence[int]) -> int:
        """
        Runtimes that a worker holds together; its id stands where a runtime's does.
        """

    def join(self, runtime: int, inflight_limit: int, now: int) -> tuple[int, list[Action]]:
        """A new instance; its id is the smallest one free."""

    def drain(self, instance: int, now: int) -> tuple[bool, list[Action]]:
        """No further requests for it. True when it is gone already."""

    def leave(self, instance: int, now: int) -> list[Action]:
        """Gone at once; what it executed comes back as LOST."""

    def arrive(
        self,
        tag: int,
        length: int,
        now: int,
        deadline: int | None = None,
        *,
        due: int | None = None,
        client: int = 0,
        bulk: bool = False,
        variant: int = 0,
        utility: float = 1.0,
        kind: int = 0,
    ) -> tuple[Admission, int | None, list[Action]]:
        """
        A request of `length` tokens. The handle is None when it is refused.

        `due`: an answer after it is late; `deadline`: after it it is worth nothing; `client`: who asks (0: unnamed);
        `bulk`: of the class that fills what others leave; `variant`: the network that it is for; `utility`, `kind`:
        of a body's (set_tokens).
        """

    def finish(self, handle: int, now: int, verdict: Verdict = Verdict.ANSWERED) -> list[Action]:
        """The worker is through with a started request."""

    def cancel(self, handle: int, tag: int, now: int) -> tuple[bool, list[Action]]:
        """True: it was waiting and is gone. False: it was not waiting."""

    def retry(self, handle: int, avoid: int | None, now: int) -> tuple[Admission, list[Action]]:
        """Schedules a failed or lost request again, ahead of what waits."""

    def abandon(self, handle: int) -> None:
        """A lost request is given up."""

    def expire(self, now: int) -> list[Action]:
        """Ends the waiting requests whose deadline is at or before `now`."""

    def next_deadline(self) -> int | None:
        """
        Earliest deadline of a waiting request, in ns; None when there is none. May be early, never late.
        """

    def levels(self) -> int: ...
    def level_max_length(self, level: int) -> int:
        """In tokens; 0 for no such level."""

    def ideal_level(self, length: int, variant: int = 0) -> int:
        """-1 when no level is long enough."""

    def set_tokens(self, counts: TokenCounts) -> None:
        """
        Variants that are a body: a batch gets one of them when it starts; under `late` with batches.
        """

    def clear_tokens(self, variant: int) -> None:
        """By its first variant: it is no body any more."""

    def set_share(self, variant: int, share: float) -> None:
        """
        What a variant may count on of the workers that it shares, above 0; 1 unless it is said.
        """

    def queued(self) -> int:
        """Requests that wait, parked ones included."""

    def parked(self) -> int:
        """Requests that wait and that no active instance fits."""

    def overdue(self) -> int:
        """Requests that wait and can no longer be on time."""

    def in_flight(self) -> int:
        """Requests that are executing."""

    def instances(self) -> int:
        """Instances present, draining ones included."""

    def fits_any(self, length: int, variant: int = 0) -> bool:
        """Some active instance is long enough."""

    def present(self, instance: int) -> bool: ...
    def view(self, instance: int) -> InstanceView: ...
    def state(self, handle: int) -> RequestState: ...
    def hold(self) -> None:
        """Until release(), requests that arrive only wait: they come together."""

    def release(self, now: int) -> list[Action]:
        """What came together starts as batches."""

    def forecast(self, lengths: Sequence[int], now: int, variant: int = 0) -> tuple[int | None, int | None]:
        """
        Time in ns until all rows of a request that is to come are answered: alone, and behind all that waits. None:
        no active instance fits one of them.
        """

    def cost(self, runtime: int, length: int, batch: int = 1) -> int:
        """Predicted time in ns of `batch` rows of `length` tokens."""

def allocate_exact(
    workers: int, runtimes: Sequence[tuple[Sequence[tuple[int, float]], int, int, float]], max_states: int
) -> tuple[list[int], float, bool, int]:
    """
    The allocation that minimises Eq. 1 subject to Eq. 2-7: (instances, objective, optimal, states).

    `runtimes` by ascending max_length, each (latency, capacity, lower, demand): latency as [(rows, ms of the
    batch)] with rows ascending from 1, capacity M, lower the least N, demand Q in requests per SLO period. The
    objective is in ms x requests. `optimal` is False when `max_states` partial allocations were looked at: then
    it is the best one found. Of equally good ones: the most instances on the longest runtime, then on the next.
    No instances when the lower bounds add up to more than `workers`. ValueError for values out of range.
    """

def allocate_separable(
    workers: int, cost: Sequence[Sequence[float]], lower: Sequence[int]
) -> tuple[list[int], float, bool, int]:
    """
    The allocation that minimises the sum of cost[i][N_i], N_i >= lower[i], with the answer of allocate_exact.

    `cost[i]` has an entry for 0 to `workers` instances, in any unit; infinity forbids. Always optimal; no
    instances when nothing is allowed. Ties as for allocate_exact.
    """

def plan_flow(
    workers: int,
    stages: Sequence[
        tuple[
            int,
            int,
            float,
            float,
            Sequence[float],
            Sequence[float],
            Sequence[float],
            Sequence[tuple[int, float, float, float]],
        ]
    ],
    served: float,
    served_only: bool,
    single_batch: bool,
    target: float,
    gap: float,
    max_nodes: int,
    held: Sequence[Sequence[int]] = [],
    unserved: float = 1000.0,
) -> tuple[list[list[int]], list[tuple[list[int], float]], float, float, float, float, float, bool, int]:
    """
    The plan of greatest value for a flow: (instances by stage and option, [(option of each stage, share)],
    value, served, relaxed, bound, price, optimal, nodes); see src/solve/flow/problem.h.

    `stages`, parents first: (parent, variants, weight, limit in s, factor by the parent's variant, exit share by
    variant, accuracy by the variants from the root, options [(variant, workers per row/s, latency in s, what the
    energy of one row/s is worth)]). The root's factor is [roots per second]. `served`: share of the demand to
    plan for; `served_only`: how much can be served, whatever its value; `single_batch`: one batch cap for each
    variant; `target`: the first plan of this value will do (infinity: the best one); `gap`: what the best one may
    be better by; after `max_nodes` the best one found; `held`: the most instances by stage and variant, empty:
    any number; `unserved`: what a share of the demand is worth beside its value. ValueError when wrong.
    """

class CascadeRules:
    """What a cascade decides by: arlo.cascade.spec.Rules."""

    def __init__(
        self,
        prices: Sequence[Sequence[tuple[str, Sequence[tuple[int, float]], float, float]]],
        *,
        skip: Sequence[Sequence[float]] = [],
        alpha: float = 0.0,
        mean_over: str = "words",
        to_level: bool = True,
        min_words: int = 4,
        alpha_max: float = 0.0,
        most_removed: float = 0.5,
        ensemble: str = "none",
        start: int = 0,
    ) -> None:
        """
        `prices`: [price][stage but the last] of (kind, [(tokens up to, threshold)], c, k).
        """

class CascadeStage:
    """How confidence comes from what a stage answers."""

    def __init__(
        self,
        *,
        kind: str = "temperature",
        t: float = 1.0,
        by_length: Sequence[tuple[int, float]] = [],
        scale: Sequence[float] = [],
        bias: Sequence[float] = [],
        curve: Sequence[tuple[float, float]] = [],
        score: str = "max",
        over: str = "min",
        squared: bool = False,
        label_order: Sequence[int] = [],
    ) -> None: ...
    def confidence(
        self,
        logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        length: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """
        Of float32 logits [rows, labels] of rows of int32 tokens [rows]: float64 [rows].
        """

def cascade_decide(
    rules: CascadeRules,
    stage: int,
    confidence: NDArray[numpy.float64],
    length: NDArray[numpy.int32],
    *,
    seed: int = 0,
    price: int = 0,
    last: int = 7,
    least: float = -1.0,
    present: int = 255,
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """
    Where rows 0, 1, ... go from a stage: (next stage, -1 for exit; reason, -1 for none), int64 [rows].
    """

def cascade_prune(
    rules: CascadeRules,
    word_start: NDArray[numpy.uint8],
    special: Sequence[int],
    keep: Sequence[int],
    ids: NDArray[numpy.int64],
    importance: NDArray[numpy.float32],
    levels: Sequence[int],
    onto: tuple[NDArray[numpy.uint8], Sequence[int], NDArray[numpy.int64]] | None = None,
    under: int = 0,
) -> NDArray[numpy.int64]:
    """
    Places of the tokens of a row that are kept; `word_start`: a bit for each id. `onto`: what they are places of.
    """

def cascade_drift(epsilon: float, alpha: float, differs: NDArray[numpy.uint8]) -> int:
    """The shadow row whose answer raised the alarm; -1: none did."""

def cascade_hash01(seed: int, row: int, stage: int) -> float:
    """u in [0, 1) of a row at a stage."""

class Pipeline:
    """A pipeline as data: src/flow/pipeline/spec.h."""

    def __init__(
        self,
        stages: Sequence[Sequence[tuple[int, float, int, float]]],
        edges: Sequence[tuple[int, int, Sequence[float], int]],
        *,
        accuracy: Sequence[float] = [],
        router: str = "price",
        drop: str = "slack",
        on_drop: str = "fail",
        max_open: int = 65536,
        falls_back: Sequence[int] = [],
        follows_load: bool = False,
        energy: Sequence[float] = [],
        joins: Sequence[tuple[int, int]] = [],
    ) -> None:
        """
        `stages`: of each, parents first, variants (id, accuracy, least ns, worker-seconds of a row). `edges`: (from,
        to, factor by variant, hop ns). `accuracy`: of each prefix, stage by stage; empty: products.
        `falls_back`: edges whose head answers anew; `follows_load`: some exit depends on the price;
        `energy`: utility of a worker-second of each variant beyond its price, stage by stage; empty: none;
        `joins`: (edge, stage) of edges that join what comes of one row of that stage.
        """

class PipelinePlan:
    """What a planner says of a pipeline: src/flow/pipeline/spec.h."""

    def __init__(
        self,
        *,
        demand: float,
        price: float = 0.0,
        share: Sequence[float] = [],
        feasible: Sequence[int] = [],
        rate: Sequence[float] = [],
        budget: Sequence[int] = [],
        time: Sequence[int] = [],
    ) -> None:
        """
        `share`, `feasible`: of each prefix, stage by stage; `rate` (rows/s of an instance), `budget`, `time` (ns): of
        each variant.
        """

def pipeline_table(pipeline: Pipeline, plan: PipelinePlan, capacity: Sequence[float]) -> list[float]:
    """
    Part of each prefix within its block, by the pipeline's router; `capacity`: rows/s of each variant's pool.
    """

class Simulation:
    """
    The simulator's event loop: the scheduler of this module, workers that execute, and arrivals.

    All times are integers in ns from the start. Between calls of advance() the caller plans: it adds, replaces and
    removes workers. Outcomes, the order of events at equal times and what a latency consists of stand in
    src/simulate/engine.h. Not thread-safe. ValueError for values out of range and for unknown ids.
    """

    def __init__(
        self,
        policy: str = "rs",
        *,
        slo: int,
        lambda_: float = 0.85,
        alpha: float = 0.9,
        max_peek: int = 6,
        max_queued: int = 4096,
        timeout: int | None = None,
        overhead: int = 0,
        hop_out: int = 0,
        hop_back: int = 0,
        retries: int = 2,
        seed: int = 0,
        warmup: int = 0,
        record: bool = False,
        batching: str = "one",
        bulk_share: float = 0.0,
        noise: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> None:
        """
        `noise`: float64 quantiles, evenly spaced, of the factor on each execution time.
        """

    def add_runtime(
        self,
        max_length: int,
        capacity: int,
        latency: Sequence[tuple[int, int, int]],
        *,
        max_batch: int = 1,
        dynamic: bool = False,
        inflight_limit: int = 1,
        truth: Sequence[tuple[int, int, int]] | None = None,
        variant: int = 0,
    ) -> int:
        """
        A runtime, as Scheduler.add_runtime; returns its id. `truth`: what execution takes, where it is not what
        the scheduler believes.
        """

    def add_bundle(self, runtimes: Sequence[int], *, inflight_limit: int = 1) -> int:
        """
        Runtimes that a worker holds together, `inflight_limit` batches at a time; its id stands where a runtime's does.
        """

    def set_variant(self, variant: int, *, slo: int, timeout: int | None = None, share: float = 1.0) -> None:
        """
        The time limits of the requests of a variant, and its share of the workers; before the first request.
        """

    def set_tokens(self, counts: TokenCounts, queries: Sequence[tuple[float, int]], bins: Sequence[int] = []) -> None:
        """
        Every request is one of `queries`, (utility, kind of accuracy), which its variant names; before the first.
        bins: ends of length bins in tokens, ascending, the last open above: a row of bin b is of kind + b.
        """

    def set_cascade(
        self,
        variants: Sequence[int],
        rules: CascadeRules,
        confidence: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        *,
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
        seed: int = 0,
        margin: int = 0,
        auto_price: bool = False,
    ) -> None:
        """
        Every request is a row of a cascade, before the first one: row n says what entry n modulo rows of
        `confidence` (float64 [rows * stages], by row) says, and is sent to a stage with the tokens of `tokens`
        (int32 [rows * stages]; None, or 0: all of them).
        """

    @property
    def price(self) -> int:
        """Of going on, of a cascade."""

    def add_worker(self, runtime: int, at: int) -> int:
        """A worker that serves from `at` on; its id."""

    def replace(self, worker: int, runtime: int, delay: int) -> None:
        """
        Drains the worker; when it is empty it loads `runtime`, which takes `delay`.
        """

    def remove(self, worker: int) -> None:
        """Drains the worker; it is gone when it is empty."""

    def fail(self, worker: int, restart: int | None = None) -> None:
        """
        The worker dies, and serves again after `restart`. None: it is gone for good.
        """

    def slow(self, worker: int, factor: float) -> None:
        """Executions that begin from now on take `factor` times as long."""

    def feed(
        self,
        arrived: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        length: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        variant: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> None:
        """
        Requests to come: int64 ns [n], ascending, int32 tokens [n], and uint16 variants [n]; None: all of the first.
        """

    def advance(self, until: int) -> None:
        """
        Handles everything due before `until`; arrivals must be fed up to there.
        """

    def finish(self) -> None:
        """
        No more arrivals: handles everything. What cannot be served any more is failed.
        """

    @property
    def now(self) -> int: ...
    @property
    def queued(self) -> int:
        """Requests that wait at the scheduler."""

    @property
    def in_flight(self) -> int:
        """Requests that have been started on a worker."""

    def totals(self, variant: int | None = None) -> dict[str, float]:
        """
        Sums over the requests that arrived after the warm-up, or over those of one variant.
        """

    def quantiles_ns(
        self,
        q: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        variant: int | None = None,
    ) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """Latencies at the quantiles float64 [n], exact to 1 part in 1024."""

    def histogram(self) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint64]]:
        """
        Latencies counted: least ns of each bucket int64 [n], requests uint64 [n].
        """

    def take_recent(self) -> tuple[dict[str, float], NDArray[numpy.uint64]]:
        """
        What happened since the last call: a dict of counts, and latencies uint64 [n] by recent bucket.
        """

    @staticmethod
    def recent_bucket_ns(n: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """Least ns of each of the first n recent buckets."""

    def arrivals_by_length(self, variant: int | None = None) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        Arrivals since the start, int64 [longest + 1], or visits of a variant of a pipeline.
        """

    def workers(self) -> dict[str, NDArray[numpy.int64]]:
        """Columns, one row per worker: int64 arrays."""

    def runtimes(self) -> dict[str, NDArray[numpy.int64]]:
        """Columns, one row per runtime: int64 arrays."""

    def columns(self) -> dict[str, NDArray[Any]]:
        """
        One row per arrival, when recorded. `outcome`: on_time, late, rejected, expired, failed. Of a pipeline
        `accuracy`: expected, and `reason`: of the first drop; -1: none. Of a cascade `stage`:
        whose answer it got, and `reason`: why (flow::Reason); -1: none.
        """

    def set_pipeline(
        self,
        pipeline: Pipeline,
        edges: Sequence[tuple[str, Sequence[float], Sequence[float], Sequence[int], int, Sequence[tuple[int, float]]]],
        *,
        exits: Sequence[Sequence[float]] = [],
        deadline: int | None = None,
        rows: tuple[
            int,
            Sequence[int],
            Sequence[
                tuple[
                    Sequence[tuple[int, str, float, float, Sequence[Sequence[tuple[float, float]]], Sequence[int]]],
                    bool,
                    Sequence[float],
                    Sequence[int],
                ]
            ],
        ]
        | None = None,
    ) -> None:
        """
        Every request is a root of this pipeline. `edges`: what each makes of a row: (constant | ceil | poisson |
        empirical | trace, share that takes it by variant, mean children by variant, counts, most, (tokens, share) of
        its rows: none, as the parent has). `exits`:
        share of the rows of [stage][variant] that end there. `deadline`: ns from a root's arrival.
        `rows`: recorded ones, of which each root is one: (count, right [prefixes, rows], of each stage (guards, first,
        scores [guards, variants, rows])); a guard: (edge or -1, fixed | price | planned, at_least, below, gain by
        variant: points (score, gain)). A stage without guards goes by shares.
        """

    def plan(self, plan: PipelinePlan) -> None:
        """A plan for the pipeline, in force from now on."""

    def pipeline_price(self, variant: int) -> float:
        """Utility that a worker-second of this variant costs now."""

    def pipeline_totals(self) -> dict[str, Any]:
        """
        Sums over the roots that arrived after the warm-up, and over their visits. `made`: of all roots, by variant,
        visits answered, of these without children, and children by edge.
        """

class Tokenizer:
    """The gateway's tokenizer: WordPiece, equal to the `tokenizers` package."""

    def __init__(self, json: str) -> None:
        """
        `json`: what stands in a tokenizer.json. Raises ValueError for one that is not known here.
        """

    def encode(
        self,
        text: str,
        second: str | None = None,
        most_tokens: int = 0,
        keep_end: bool = False,
        add_special: bool = True,
    ) -> tuple[list[int], list[int], bool]:
        """
        Ids, type ids, and whether there was more text than `most_tokens` (0: any number).
        """

    def places(self, text: str) -> list[tuple[int, int]]:
        """
        Of each token of a text the characters that it stands for, from and to; 0 and 0: it was added.
        """

    def special_tokens(self, pair: bool) -> int:
        """Special tokens that a text or a pair gets."""

    @property
    def vocabulary_size(self) -> int: ...
