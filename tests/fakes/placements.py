"""A manifest of four runtimes, and configurations for it."""

from __future__ import annotations

from pathlib import Path

from arlo import config
from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, OutputTensor, Runtime


def runtime(length: int, latency_us: int, *, dynamic: bool = False) -> Runtime:
    points: tuple[LatencyPoint, ...] = (LatencyPoint(length=length, batch=1, latency_us=latency_us),)
    if dynamic:
        points = (LatencyPoint(length=16, batch=1, latency_us=latency_us // 10), *points)
    name = f"m_dyn{length}" if dynamic else f"m_{length}"
    return Runtime(
        name=name,
        max_length=length,
        max_batch=1,
        dynamic=dynamic,
        engine="emulated",
        precision="fp16",
        device="table",
        latency=points,
    )


MANIFEST = Manifest(
    model="m",
    task="embedding",
    source="made up",
    tokenizer=None,
    inputs=(
        InputTensor(name="input_ids", datatype="INT64", role="ids", vocabulary=30_522),
        InputTensor(name="attention_mask", datatype="INT64", role="mask", optional=True),
        InputTensor(name="token_type_ids", datatype="INT64", role="other", pad_value=1, optional=True),
    ),
    outputs=(OutputTensor(name="embedding", datatype="FP32", token_level=False, dims=(384,)),),
    runtimes=(runtime(64, 1150), runtime(128, 1700), runtime(512, 5200), runtime(512, 6000, dynamic=True)),
)


def configured(deployment: str, more: str = "") -> config.Config:
    text = f'[model]\nrepository = "r"\nslo_ms = 150\n[deployment]\n{deployment}\n{more}'
    return config.parse(text, base=Path("/srv"))
