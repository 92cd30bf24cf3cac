"""The machine of a measurement, and its other load meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

from arlo.catalog.manifest import Manifest
from arlo.errors import ConfigError

_QUERY = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")


def describe_device(repository: Path, manifest: Manifest, *, threads: int) -> str:
    """The GPU that the runtimes run on, or the CPU and the threads of a worker."""
    if all(runtime.engine == "emulated" for runtime in manifest.runtimes):
        return "emulated"
    if _wants_gpu(repository, manifest):
        names = gpu_names()
        if names:
            return f"gpu: {names[0]}"
    return f"cpu: {cpu_name()}, {threads} thread{'s' if threads > 1 else ''}"


def _wants_gpu(repository: Path, manifest: Manifest) -> bool:
    """Whether a runtime's configuration puts it on a GPU."""
    for runtime in manifest.runtimes:
        try:
            text = (repository / runtime.name / "config.pbtxt").read_text()
        except OSError as error:
            raise ConfigError(
                f"runtime {runtime.name} of the manifest has no config.pbtxt in {repository} ({error.strerror}): "
                "build the repository again"
            ) from None
        if "KIND_GPU" in text:
            return True
    return False


def gpu_names() -> list[str]:
    """The GPUs that nvidia-smi lists; none where there is no nvidia-smi."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def cpu_name() -> str:
    """The processor's name as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown processor"


def engine_versions(manifest: Manifest) -> dict[str, str]:
    """Version of each engine in the manifest: the package installed here, else the one that built it."""
    found = {}
    for engine in sorted({runtime.engine for runtime in manifest.runtimes}):
        try:
            found[engine] = importlib.metadata.version(engine)
        except importlib.metadata.PackageNotFoundError:
            if engine in manifest.tools:
                found[engine] = manifest.tools[engine]
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds so far: the machine's total, those spent on work or stolen by a hypervisor, and those spent by us."""

    total_s: float
    busy_s: float
    ours_s: float

    @classmethod
    def read(cls, pid: int | None) -> CpuTimes:
        """`ours` is this process, and process `pid` with its children (a worker; or this process, with all of them),
        those that have ended included.
        """
        times = psutil.cpu_times()
        # Guest time is counted in user time already.
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        work = ("user", "nice", "system", "irq", "softirq", "steal")
        busy_s = sum(getattr(times, name, 0.0) for name in work)
        return cls(busy_s + idle_s, busy_s, sum(_cpu_s(process) for process in _ours(pid)))

    def other_load(self, later: CpuTimes) -> float | None:
        """Share of the machine's CPU time between the two that others took, 0 to 1; None for too short a time."""
        total_s = later.total_s - self.total_s
        if total_s < 0.1:  # the kernel counts in steps of 10 ms
            return None
        others_s = (later.busy_s - self.busy_s) - (later.ours_s - self.ours_s)
        return min(1.0, max(0.0, others_s / total_s))


def _ours(pid: int | None) -> Iterable[psutil.Process]:
    ours = {psutil.Process()}
    with contextlib.suppress(psutil.Error):
        if pid is not None:
            worker = psutil.Process(pid)
            ours |= {worker, *worker.children(recursive=True)}
    return ours


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
