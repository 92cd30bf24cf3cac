"""The GPU that TensorRT would run on here, and the compute capabilities that engines are built for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from arlo.errors import ConfigError

CURRENT = "CURRENT"  # the GPU that is here
_WRITTEN = re.compile(r"(?:SM_?)?(\d{2,3})|(\d{1,2})\.(\d)", re.IGNORECASE)
_NOT_OF_RTX = {  # data centre GPUs, for which there is TensorRT only
    "SM70": "Volta",
    "SM90": "Hopper",
    "SM100": "Blackwell of data centres",
    "SM103": "Blackwell Ultra",
    "SM110": "Jetson Thor",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU, or why there is none: `problem` is empty when it can be used."""

    problem: str = ""
    name: str = ""
    capability: str = ""  # as SM86


def find_gpu() -> Gpu:
    """Ask CUDA for the first GPU that this process may use. Never raises."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return Gpu("CUDA for Python is missing: pip install cuda-bindings")
    try:
        return _ask(runtime)
    except Exception as error:  # of loading CUDA's libraries
        return Gpu(f"CUDA does not open: {error}")


def _ask(runtime: Any) -> Gpu:
    _, driver = runtime.cudaDriverGetVersion()
    code, count = runtime.cudaGetDeviceCount()
    if not driver:
        return Gpu("there is no NVIDIA GPU driver here")
    if int(code) != 0:
        _, text = runtime.cudaGetErrorString(code)
        _, needed = runtime.cudaRuntimeGetVersion()
        text = text.decode() if isinstance(text, bytes) else text
        return Gpu(
            f"the NVIDIA driver offers CUDA {_version(driver)}, cuda-bindings is of CUDA {_version(needed)} ({text}): "
            "update the driver, or install a cuda-bindings of its version"
        )
    if not count:
        return Gpu("there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it")
    code, properties = runtime.cudaGetDeviceProperties(0)
    if int(code) != 0:
        return Gpu(f"the first GPU does not answer (CUDA error {int(code)})")
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    return Gpu(name=name.rstrip("\0"), capability=f"SM{properties.major}{properties.minor}")


def gpu_memory_used() -> int | None:
    """Bytes of the current GPU's memory that are in use, by all processes; None where CUDA does not tell. Never raises.

    The first call makes this process's CUDA context, which therefore is in every answer.
    """
    try:
        from cuda.bindings import runtime

        code, free, total = runtime.cudaMemGetInfo()
        return int(total) - int(free) if int(code) == 0 else None
    except Exception:  # no CUDA for Python, or no driver
        return None


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def parse_capabilities(texts: Sequence[str], known: Sequence[str], *, version: str) -> tuple[str, ...]:
    """`SM86`, `sm_86`, `86`, `8.6` or `current` as the names of TensorRT-RTX; ConfigError with the list of those known.

    known: of this version of TensorRT-RTX, as SM86; empty where that cannot be asked, then all are taken.
    """
    if not texts:
        raise ConfigError(f"no compute capability is named: choose from {', '.join((*known, 'current'))}")
    found: dict[str, None] = {}
    for text in texts:
        name = _normal(text)
        if name in _NOT_OF_RTX and name not in known:
            raise ConfigError(
                f"tensorrt-rtx does not build for {name} ({_NOT_OF_RTX[name]}): use --engine tensorrt on a machine "
                f"with that GPU; tensorrt-rtx {version} builds for {', '.join(known)}"
            )
        if name != CURRENT and known and name not in known:
            raise ConfigError(
                f"the compute capability {text!r} is unknown to tensorrt-rtx {version}: choose from "
                f"{', '.join(known)}, or `current` on a machine with the GPU"
            )
        found[name] = None
    if CURRENT in found:
        if len(found) > 1:
            raise ConfigError("the compute capability `current` goes alone: name either it or the others")
        gpu = find_gpu()
        if gpu.problem:
            raise ConfigError(f"the compute capability `current` needs the GPU, and {gpu.problem}: name it, as SM86")
        if known and gpu.capability not in known:
            raise ConfigError(
                f"the GPU here is of {gpu.capability} ({gpu.name}), which tensorrt-rtx {version} does not build for: "
                "use --engine tensorrt"
            )
    return tuple(found)


def _normal(text: str) -> str:
    if text.upper() == CURRENT:
        return CURRENT
    match = _WRITTEN.fullmatch(text.strip())
    return f"SM{match[1] or match[2] + match[3]}" if match else text


def known_capabilities(trt: Any) -> tuple[str, ...]:
    """Those of this version of TensorRT-RTX, ascending; empty for TensorRT, which builds for the GPU that is here."""
    kinds = getattr(trt, "ComputeCapability", None)
    names = [name for name in getattr(kinds, "__members__", {}) if re.fullmatch(r"SM\d+", name)]
    return tuple(sorted(names, key=lambda name: int(name[2:])))
