"""The desired state, as values: configuration + manifest -> plan, and placement -> the gateway's Deployment. Pure,
except that it reads the tokenizers' files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arlo import proto
from arlo.catalog.files import read_tokenizer
from arlo.catalog.manifest import Manifest, Runtime
from arlo.config import Config, ModelConfig
from arlo.errors import ConfigError
from arlo.planning.allocation.curves import capacity
from arlo.planning.lengths.advice import dynamic_runtime

if TYPE_CHECKING:
    from arlo.control.mode import ServingMode


def plan_from_config(config: Config, manifest: Manifest) -> dict[str, int]:
    """The configured instances of each runtime, above 0, shortest first; ConfigError for a length that the manifest
    lacks."""
    static = {runtime.max_length: runtime for runtime in manifest.runtimes if not runtime.dynamic}
    dynamic = dynamic_runtime(manifest)
    wanted: list[tuple[Runtime, int]] = []
    for length, count in sorted(config.deployment.allocation.items()):
        if length not in static:
            known = ", ".join(str(known) for known in sorted(static)) or "none"
            raise ConfigError(
                f"deployment.allocation has max_length {length}, but {config.model.repository} has static runtimes "
                f"for: {known}. Use one of these, or compile that length too"
            )
        wanted.append((static[length], count))
    if config.deployment.dynamic:
        if dynamic is None:
            raise ConfigError(
                f"deployment.dynamic is {config.deployment.dynamic}, but {config.model.repository} has no dynamic "
                "runtime: compile one, or use deployment.allocation"
            )
        wanted.append((dynamic, config.deployment.dynamic))
    return {runtime.name: count for runtime, count in wanted if count}


def service_us(runtime: Runtime) -> float:
    """Time of one request at the runtime's max_length, run alone (or its share of the smallest measured batch)."""
    batch = runtime.table.batches()[0]
    return runtime.latency_ns(batch) / batch / 1000


def deployment_message(
    mode: ServingMode,
    instances: Sequence[tuple[str, str]],
    endpoints: Mapping[str, str],
    *,
    always: Collection[str] = (),
    version: int = 0,
    owner: str = "",
    more: Callable[[Any], None] = lambda _: None,
) -> Any:
    """The arlo.v1.Deployment of instances, (worker id, runtime name) each. `endpoints`: worker id -> host:port.

    It contains only placed runtimes and those named in `always`: each is a level of the multi-level queue, and a level
    that never has an instance would make every request for it count as demoted, and be peeked at in vain. `always` is
    for the longest one, so that a request that fits only it waits while that runtime is being moved.
    `more` adds the flow's settings from the mode.
    """
    config, manifest = mode.config, mode.manifest
    message = proto.message("Deployment")(version=version, owner=owner)
    for number, (model, one) in enumerate(zip(config.models, manifest.models, strict=True)):
        _fill_model(message.more_models.add() if number else message.model, model, one)
    more(message)
    placed = mode.listed({name for _, name in instances} | set(always))
    held = [runtime for runtime in manifest.runtimes if runtime.name in placed]
    pairs = list(zip(config.models, manifest.models, strict=True))
    slo_ms = {id(one): model.slo_ms for model, one in pairs}
    names = {id(one): model.name or one.model for model, one in pairs}
    for runtime in {part.name: part for whole in held for part in whole.parts}.values():
        item = message.runtimes.add(
            name=runtime.name,
            max_length=runtime.max_length,
            max_batch=runtime.max_batch,
            dynamic=runtime.dynamic,
            capacity=max(1, capacity(runtime, slo_ms[id(manifest.of(runtime))])),
        )
        if config.more_models:
            item.model = names[id(manifest.of(runtime))]
        for point in runtime.latency:
            item.latency.add(length=point.length, batch=point.batch, latency_us=point.latency_us)
    for runtime in held:
        if runtime.parts != (runtime,):
            message.bundles.add(name=runtime.name, runtimes=[part.name for part in runtime.parts])
    limit = config.dispatch.inflight_limit
    by_worker = config.dispatch.batching == "worker"
    rows = {runtime.name: runtime.rows_in_flight(limit) if by_worker else limit for runtime in manifest.runtimes}
    for worker, name in instances:
        message.instances.add(
            id=instance_id(worker, name),
            worker=worker,
            endpoint=endpoints[worker],
            runtime=name,
            inflight_limit=rows[name],
        )
    return message


def _fill_model(message: Any, model: ModelConfig, manifest: Manifest) -> None:
    message.name = model.name or manifest.model
    message.slo_ms = model.slo_ms
    message.default_timeout_ms = model.timeout_ms
    message.share = model.share
    message.tokenizer = read_tokenizer(model.repository, manifest)
    message.labels.extend(manifest.labels)
    for task, labels in manifest.tasks.items():
        message.tasks.add(name=task, labels=labels)
    for prompt, text in manifest.prompts.items():
        message.prompts.add(name=prompt, text=text)
    message.default_prompt = manifest.default_prompt if model.default_prompt is None else model.default_prompt
    if message.default_prompt and message.default_prompt not in manifest.prompts:
        known = ", ".join(manifest.prompts) or "none"
        raise ConfigError(
            f"model.default_prompt is {message.default_prompt!r}, and the prompts of {message.name} are: {known}"
        )
    message.dimensions = manifest.dimensions
    message.label_activation = manifest.label_activation
    message.score_activation = manifest.score_activation
    for tensor in manifest.inputs:
        role = f"ROLE_{tensor.role.upper()}"
        message.inputs.add(
            name=tensor.name,
            datatype=tensor.datatype,
            role=role,
            pad_value=tensor.pad_value,
            optional=tensor.optional,
            dims=tensor.dims,
        )
        if tensor.role == "ids":
            message.vocabulary = tensor.vocabulary
    for output in manifest.outputs:
        message.outputs.add(
            name=output.name,
            datatype=output.datatype,
            token_level=output.token_level,
            dims=output.dims,
            on_request=output.on_request,
            of_children=output.of_children,
        )
    message.counts = manifest.counts


def instance_id(worker: str, runtime: str) -> str:
    """The gateway's id for an instance."""
    return f"{worker}.{runtime}"


def same_content(left: Any, right: Any) -> bool:
    """Whether two Deployments differ only in version."""
    first, second = type(left)(), type(left)()
    first.CopyFrom(left)
    second.CopyFrom(right)
    first.version = second.version = 0
    return bool(first == second)
