"""Repositories for the emulated engine: Triton models that take as long as a latency profile says.

Outputs can be checked: `last_hidden_state` holds each token's id as a float, repeated over the last dimension;
`embedding` holds the sum of the ids whose mask is 1, repeated over its dimension.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, OutputTensor, Runtime, check
from arlo.catalog.pbtxt import config_text, tensor
from arlo.errors import ConfigError

BACKEND = "arlo_emulated"
TOKEN_OUTPUT = "last_hidden_state"
POOLED_OUTPUT = "embedding"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedRuntime:
    """One emulated runtime. `latency` is the time of a whole batch; between its points it is linear."""

    name: str
    max_length: int
    max_batch: int
    dynamic: bool
    latency: tuple[LatencyPoint, ...]
    jitter: float = 0.0  # each time is multiplied by a factor drawn evenly from [1 - jitter, 1 + jitter]
    seed: int = 0
    load_delay_ms: int = 0  # how long loading takes
    unload_delay_ms: int = 0  # how long unloading takes
    fail_load: str | None = None  # loading fails with this message
    memory_mb: int = 0  # taken while loaded, out of ARLO_EMULATED_MEMORY_MB of the worker's environment
    batcher: bool = False  # Triton joins requests that wait, up to max_batch rows


def runtime_name(model: str, max_length: int) -> str:
    """The Triton model name of a runtime."""
    return f"{model}_len{max_length}"


def emulated(runtime: Runtime, *, model: str, slower: float = 1.0, **options: Any) -> EmulatedRuntime:
    """One that takes the time of a runtime, `slower` times; `options` as in EmulatedRuntime."""
    return EmulatedRuntime(
        name=runtime_name(model, runtime.max_length),
        max_length=runtime.max_length,
        max_batch=runtime.max_batch,
        dynamic=runtime.dynamic,
        latency=tuple(
            dataclasses.replace(point, latency_us=round(slower * point.latency_us)) for point in runtime.latency
        ),
        **options,
    )


def write_emulated_repository(
    path: Path,
    *,
    model: str,
    max_lengths: Sequence[int],
    latency_ms: Sequence[float],
    max_batch: int = 1,
    batch_growth: float = 1.0,
    dynamic: bool = False,
    token_dims: int = 4,
    pooled_dims: int = 4,
    jitter: float = 0.0,
    seed: int = 0,
    load_delay_ms: int = 0,
    fail_load: str | None = None,
    memory_mb: int = 0,
    batcher: bool = False,
) -> Manifest:
    """Write a Triton repository of emulated runtimes `{model}_len{L}`, one per maximum length, and its manifest.

    latency_ms[i] is the latency of one row at max_lengths[i]; 0 answers at once. A batch of b rows takes
    latency * (1 + batch_growth * (b - 1)): 1.0 means that batching gains nothing, 0.0 that further rows are free.
    With `dynamic`, each runtime accepts any length up to its own and takes the time of the longest row of the batch,
    linear between the given points; otherwise its input shape is static. Each runtime takes `memory_mb` while it is
    loaded; a worker with ARLO_EMULATED_MEMORY_MB in its environment loads no more than that. `batcher`: Triton's own
    joins requests that wait.

    Inputs: input_ids, attention_mask (INT64 [rows, tokens]). Outputs: last_hidden_state (FP32
    [rows, tokens, token_dims]), embedding (FP32 [rows, pooled_dims]). ConfigError for values that make no sense.
    """
    if not max_lengths or len(max_lengths) != len(latency_ms):
        raise ConfigError("give as many latencies as maximum lengths, and at least one")
    if list(max_lengths) != sorted(set(max_lengths)) or max_lengths[0] < 1:
        raise ConfigError(f"maximum lengths must ascend and be at least 1: {list(max_lengths)}")
    if not (all(0 <= ms < math.inf for ms in latency_ms) and 0 <= batch_growth < math.inf and max_batch >= 1):
        raise ConfigError("latency_ms and batch_growth must be finite and at least 0, max_batch at least 1")
    if not 0 <= jitter <= 1:
        raise ConfigError(f"jitter must be from 0 to 1: {jitter}")
    runtimes = []
    for index, max_length in enumerate(max_lengths):
        first = 0 if dynamic else index
        points = [
            LatencyPoint(length=length, batch=batch, latency_us=round(ms * 1000 * (1 + batch_growth * (batch - 1))))
            for length, ms in zip(max_lengths[first : index + 1], latency_ms[first : index + 1], strict=True)
            for batch in sorted({1, max_batch})
        ]
        runtimes.append(
            EmulatedRuntime(
                name=runtime_name(model, max_length),
                max_length=max_length,
                max_batch=max_batch,
                dynamic=dynamic,
                latency=tuple(points),
                jitter=jitter,
                seed=seed,
                load_delay_ms=load_delay_ms,
                fail_load=fail_load,
                memory_mb=memory_mb,
                batcher=batcher,
            )
        )
    return write_runtimes(path, model=model, runtimes=runtimes, token_dims=token_dims, pooled_dims=pooled_dims)


def checkable_outputs(token_dims: int = 4, pooled_dims: int = 4) -> tuple[OutputTensor, OutputTensor]:
    """What tells which row was computed, and which of its tokens."""
    return (
        OutputTensor(name=TOKEN_OUTPUT, datatype="FP32", token_level=True, dims=(token_dims,)),
        OutputTensor(name=POOLED_OUTPUT, datatype="FP32", token_level=False, dims=(pooled_dims,)),
    )


def write_runtimes(
    path: Path,
    *,
    model: str,
    runtimes: Sequence[EmulatedRuntime],
    token_dims: int = 4,
    pooled_dims: int = 4,
    outputs: Sequence[OutputTensor] = (),
    records: Path | None = None,
) -> Manifest:
    """Write a Triton repository of exactly these emulated runtimes, and its manifest. `outputs`: instead of those that
    can be checked, with the `records` that they are of (tests.fakes.replayed)."""
    outputs = tuple(outputs) or checkable_outputs(token_dims, pooled_dims)
    texts = {runtime.name: config_pbtxt(runtime, outputs=outputs, records=records) for runtime in runtimes}
    files = {name: {f"{name}/config.pbtxt": hashlib.sha256(text.encode()).hexdigest()} for name, text in texts.items()}
    manifest = Manifest(
        model=model,
        task="emulated",
        source="latency profile",
        tokenizer=None,
        inputs=(
            InputTensor(name="input_ids", datatype="INT64", role="ids"),
            InputTensor(name="attention_mask", datatype="INT64", role="mask"),
        ),
        outputs=tuple(outputs),
        runtimes=tuple(
            Runtime(
                name=runtime.name,
                max_length=runtime.max_length,
                max_batch=runtime.max_batch,
                dynamic=runtime.dynamic,
                engine="emulated",
                precision="fp32",
                device="emulated",
                latency=runtime.latency,
                memory_mb=runtime.memory_mb or None,
                load_ms=runtime.load_delay_ms or None,
                files=files[runtime.name],
            )
            for runtime in sorted(runtimes, key=lambda r: r.max_length)
        ),
    )
    check(manifest)
    for name, text in texts.items():
        (path / name / "1").mkdir(parents=True, exist_ok=True)
        (path / name / "config.pbtxt").write_text(text)
    path.mkdir(parents=True, exist_ok=True)
    manifest.save(path)
    return manifest


def config_pbtxt(
    runtime: EmulatedRuntime, *, outputs: Sequence[OutputTensor] | None = None, records: Path | None = None
) -> str:
    """The Triton model configuration of an emulated runtime; its outputs as in write_runtimes()."""
    tokens = -1 if runtime.dynamic else runtime.max_length
    table = ",".join(f"{p.length}:{p.batch}:{p.latency_us}" for p in runtime.latency)
    parameters = {
        "latency_us": table,
        "dynamic": "true" if runtime.dynamic else "false",
        "jitter": repr(runtime.jitter),
        "seed": runtime.seed,
        "load_delay_ms": runtime.load_delay_ms,
        "unload_delay_ms": runtime.unload_delay_ms or None,
        "fail_load": runtime.fail_load,
        "records": records,
        "memory_mb": runtime.memory_mb or None,
    }
    return config_text(
        runtime.name,
        BACKEND,
        runtime.max_batch,
        inputs=[tensor(name, "INT64", [tokens]) for name in ("input_ids", "attention_mask")],
        outputs=[
            tensor(each.name, "FP32", [tokens] * each.token_level + list(each.dims))
            for each in outputs or checkable_outputs()
        ],
        parameters={key: value for key, value in parameters.items() if value is not None},
        # Without a queue policy: with one Triton 2.51 now and then misses a request and looks again only after 500 ms,
        # see compile/repository/triton_config.py.
        more=["dynamic_batching { }"] if runtime.batcher else [],
    )
