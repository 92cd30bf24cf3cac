import enum
from collections.abc import Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray

class Admission(enum.Enum):
    STARTED = 0

    QUEUED = 1

    PARKED = 2

    TOO_LONG = 3

    FULL = 4

    TOO_LATE = 5

class Verdict(enum.Enum):
    ANSWERED = 0

    FAILED = 1

class ActionKind(enum.Enum):
    START = 0

    EXPIRED = 1

    LOST = 2

class RequestState(enum.Enum):
    GONE = 0

    WAITING = 1

    STARTED = 2

    LOST = 3

class InstanceState(enum.Enum):
    ACTIVE = 0

    DRAINING = 1

class Action:
    @property
    def kind(self) -> ActionKind: ...
    @property
    def handle(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def instance(self) -> int | None: ...
    @property
    def level(self) -> int: ...
    @property
    def demoted(self) -> bool: ...
    @property
    def runtime(self) -> int | None: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def evicted(self) -> bool: ...
    def __repr__(self) -> str: ...

class InstanceView:
    @property
    def runtime(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def state(self) -> InstanceState: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def queued(self) -> int: ...

def tokens_printed(
    now: int, batches: Sequence[tuple[Sequence[tuple[int, float, int]], float]]
) -> tuple[list[int], float, float, int]: ...
def tokens_manual(
    now: int, batches: Sequence[tuple[Sequence[tuple[int, float, int]], float]], usual: int, kappa: float = 0.8
) -> tuple[list[int], float, float, int]: ...
def tokens_exact(
    now: int, batches: Sequence[tuple[Sequence[tuple[int, float, int]], float]], labels: int = 256
) -> tuple[list[int], float, float, int]: ...
def tokens_batch(
    queries: Sequence[tuple[int, int, float]], delta: int, most: int, eta: int, mu: float
) -> list[list[int]]: ...

class TokenCounts:
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
    ) -> int: ...
    def add_bundle(self, runtimes: Sequence[int]) -> int: ...
    def join(self, runtime: int, inflight_limit: int, now: int) -> tuple[int, list[Action]]: ...
    def drain(self, instance: int, now: int) -> tuple[bool, list[Action]]: ...
    def leave(self, instance: int, now: int) -> list[Action]: ...
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
    ) -> tuple[Admission, int | None, list[Action]]: ...
    def finish(self, handle: int, now: int, verdict: Verdict = Verdict.ANSWERED) -> list[Action]: ...
    def cancel(self, handle: int, tag: int, now: int) -> tuple[bool, list[Action]]: ...
    def retry(self, handle: int, avoid: int | None, now: int) -> tuple[Admission, list[Action]]: ...
    def abandon(self, handle: int) -> None: ...
    def expire(self, now: int) -> list[Action]: ...
    def next_deadline(self) -> int | None: ...
    def level_max_length(self, level: int) -> int: ...
    def ideal_level(self, length: int, variant: int = 0) -> int: ...
    def set_tokens(self, counts: TokenCounts) -> None: ...
    def clear_tokens(self, variant: int) -> None: ...
    def queued(self) -> int: ...
    def parked(self) -> int: ...
    def overdue(self) -> int: ...
    def in_flight(self) -> int: ...
    def instances(self) -> int: ...
    def present(self, instance: int) -> bool: ...
    def view(self, instance: int) -> InstanceView: ...
    def state(self, handle: int) -> RequestState: ...
    def hold(self) -> None: ...
    def release(self, now: int) -> list[Action]: ...
    def forecast(self, lengths: Sequence[int], now: int, variant: int = 0) -> tuple[int | None, int | None]: ...
    def cost(self, runtime: int, length: int, batch: int = 1) -> int: ...

def allocate_exact(
    workers: int, runtimes: Sequence[tuple[Sequence[tuple[int, float]], int, int, float]], max_states: int
) -> tuple[list[int], float, bool, int]: ...
def allocate_separable(
    workers: int, cost: Sequence[Sequence[float]], lower: Sequence[int]
) -> tuple[list[int], float, bool, int]: ...
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
) -> tuple[list[list[int]], list[tuple[list[int], float]], float, float, float, float, float, bool, int]: ...

class CascadeRules:
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
    ) -> None: ...

class CascadeStage:
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
    ) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

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
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]: ...
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
) -> NDArray[numpy.int64]: ...
def cascade_drift(epsilon: float, alpha: float, differs: NDArray[numpy.uint8]) -> int: ...
def cascade_hash01(seed: int, row: int, stage: int) -> float: ...

class Pipeline:
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
    ) -> None: ...

class PipelinePlan:
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
    ) -> None: ...

def pipeline_table(pipeline: Pipeline, plan: PipelinePlan, capacity: Sequence[float]) -> list[float]: ...

class Simulation:
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
    ) -> None: ...
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
    ) -> int: ...
    def add_bundle(self, runtimes: Sequence[int], *, inflight_limit: int = 1) -> int: ...
    def set_variant(self, variant: int, *, slo: int, timeout: int | None = None, share: float = 1.0) -> None: ...
    def set_tokens(
        self, counts: TokenCounts, queries: Sequence[tuple[float, int]], bins: Sequence[int] = []
    ) -> None: ...
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
    ) -> None: ...
    @property
    def price(self) -> int: ...
    def add_worker(self, runtime: int, at: int) -> int: ...
    def replace(self, worker: int, runtime: int, delay: int) -> None: ...
    def remove(self, worker: int) -> None: ...
    def fail(self, worker: int, restart: int | None = None) -> None: ...
    def slow(self, worker: int, factor: float) -> None: ...
    def feed(
        self,
        arrived: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        length: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        variant: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> None: ...
    def advance(self, until: int) -> None: ...
    def finish(self) -> None: ...
    @property
    def now(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    def totals(self, variant: int | None = None) -> dict[str, float]: ...
    def quantiles_ns(
        self,
        q: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        variant: int | None = None,
    ) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...
    def histogram(self) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint64]]: ...
    def take_recent(self) -> tuple[dict[str, float], NDArray[numpy.uint64]]: ...
    @staticmethod
    def recent_bucket_ns(n: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...
    def arrivals_by_length(
        self, variant: int | None = None
    ) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...
    def workers(self) -> dict[str, NDArray[numpy.int64]]: ...
    def runtimes(self) -> dict[str, NDArray[numpy.int64]]: ...
    def columns(self) -> dict[str, NDArray[Any]]: ...
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
    ) -> None: ...
    def plan(self, plan: PipelinePlan) -> None: ...
    def pipeline_totals(self) -> dict[str, Any]: ...

class Tokenizer:
    def __init__(self, json: str) -> None: ...
    def encode(
        self,
        text: str,
        second: str | None = None,
        most_tokens: int = 0,
        keep_end: bool = False,
        add_special: bool = True,
    ) -> tuple[list[int], list[int], bool]: ...
    def places(self, text: str) -> list[tuple[int, int]]: ...
    def special_tokens(self, pair: bool) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
