"""The energy of answers: from power samples, from counters, or from a model if neither exists.

The energy of a request is that of a window, idle time included, over the requests that *arrived* in it (HybridServe
section VI-C, which prints mWh: x 3.6 is joules). A stage's energy depends on the length, like its time.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.decide import Floats
from arlo.errors import ConfigError, EnvironmentProblem

_RAPL = Path("/sys/class/powercap")


def per_request(joules: float, arrivals: int) -> float:
    """Joules of a request; nan where none arrived."""
    return joules / arrivals if arrivals else float("nan")


def energy_mj(points: Sequence[tuple[int, int, float]], tokens: ArrayLike, stage: str) -> Floats:
    """mJ of single rows of so many tokens [rows], linear between the (tokens, rows, mJ) that were measured for one row.
    ConfigError, which names the stage, if none were measured."""
    single = sorted((length, mj) for length, rows, mj in points if rows == 1)
    if not single:
        raise ConfigError(f"stage {stage!r} has no energy_mj for one row: the objective energy needs it of every stage")
    return np.interp(np.asarray(tokens, np.float64), *np.asarray(single, np.float64).T)


def stairs(points: Sequence[tuple[int, int, float]]) -> tuple[tuple[int, int, float], ...]:
    """Energy steps of static runtimes, from (max_length, rows, mJ) of each. A row costs as much as the shortest runtime
    that takes it, so each step has both ends. Of several with one length and batch, the cheapest counts."""
    least: dict[tuple[int, int], float] = {}
    for length, rows, mj in points:
        least[rows, length] = min(mj, least.get((rows, length), mj))
    found, before = [], (0, 0)
    for rows, length in sorted(least):
        start = before[1] + 1 if before[0] == rows else 1
        found += [(at, rows, least[rows, length]) for at in dict.fromkeys((start, length))]
        before = (rows, length)
    return tuple(found)


class Counter(Protocol):
    """Joules since some moment."""

    source: str

    def joules(self) -> float:
        """The joules so far; the value never falls."""


class NvmlCounter:
    """A GPU's own counter of mJ (Volta and later)."""

    source = "NVML total energy counter"

    def __init__(self, gpu: int | str = 0) -> None:
        """`gpu`: its number in PCI order, or its UUID. EnvironmentProblem without a driver, the GPU or a counter."""
        if not str(gpu).isdecimal() and not str(gpu).startswith("GPU-"):
            raise EnvironmentProblem(f"{gpu} is a part of a GPU, or none: a counter is of a whole one")
        self._library = _nvml()
        self._device = ctypes.c_void_p()
        failed = (
            self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(gpu)), ctypes.byref(self._device))
            if str(gpu).isdecimal()
            else self._library.nvmlDeviceGetHandleByUUID(str(gpu).encode(), ctypes.byref(self._device))
        )
        if failed:
            raise EnvironmentProblem(f"NVML does not know GPU {gpu}")
        self.joules()

    def joules(self) -> float:
        """The joules since the driver was loaded."""
        value = ctypes.c_ulonglong()
        if self._library.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(value)):
            raise EnvironmentProblem("this GPU counts no energy: sample its power instead")
        return value.value / 1000


def gpus() -> int:
    """The number of GPUs of this machine; EnvironmentProblem without a driver."""
    count = ctypes.c_uint()
    if _nvml().nvmlDeviceGetCount_v2(ctypes.byref(count)):
        raise EnvironmentProblem("NVML does not say how many GPUs there are")
    return count.value


def _nvml() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise EnvironmentProblem("no NVIDIA driver here: energy can be modelled, not measured") from None
    if library.nvmlInit_v2():
        raise EnvironmentProblem("the NVIDIA driver here does not answer: energy can be modelled, not measured")
    return library


@dataclasses.dataclass(slots=True)
class RaplCounter:
    """The energy counters of CPU packages. They wrap around at a maximum; frequent reads detect each wrap."""

    folder: Path = _RAPL
    source: str = "RAPL"
    _last: dict[Path, int] = dataclasses.field(default_factory=dict)
    _sum_uj: int = 0

    def __post_init__(self) -> None:
        """Find the counters; EnvironmentProblem if none can be read."""
        for zone in sorted(self.folder.glob("intel-rapl:[0-9]*")):
            if zone.name.count(":") == 1:
                try:
                    self._last[zone] = int((zone / "energy_uj").read_text())
                except (OSError, ValueError):
                    continue
        if not self._last:
            raise EnvironmentProblem(
                f"no counter under {self.folder} can be read: energy can be modelled, not measured"
            )

    def joules(self) -> float:
        """The joules since this counter was created."""
        for zone, before in self._last.items():
            now = int((zone / "energy_uj").read_text())
            if now < before:
                self._sum_uj += int((zone / "max_energy_range_uj").read_text())
            self._sum_uj += now - before
            self._last[zone] = now
        return self._sum_uj / 1e6
