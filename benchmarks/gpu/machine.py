"""What is measured on: the device, its clocks, versions, and what else the machine does."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from arlo.compile.engines.interface import EngineSettings
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine

_PACKAGES = (
    "torch", "triton", "transformers", "sentence-transformers", "onnxruntime", "onnxruntime-gpu", "onnx", "onnxscript",
    "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-rtx", "tensorrt-rtx-cu13-bindings", "numpy",
    "nvidia-pytriton",
)  # fmt: skip
_FACTS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "clocks.max.memory", "compute_cap",
          "persistence_mode", "compute_mode", "ecc.mode.current", "pcie.link.gen.max", "vbios_version")  # fmt: skip
_NOW = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "utilization.gpu", "memory.used", "pstate",
        "clocks_event_reasons.active")  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The device and the software."""

    kind: str  # gpu, cpu
    name: str
    facts: dict[str, str]
    versions: dict[str, str]

    @property
    def slug(self) -> str:
        """For a folder: `nvidia-h100-80gb-hbm3`, `cpu-intel-xeon`."""
        text = re.sub(r"\(r\)|\(tm\)|\bcpu\b|@.*|\bprocessor\b", " ", self.name.lower())
        text = re.sub(r"[^a-z0-9]+", "-", text).strip("-")
        return f"cpu-{text}" if self.kind == "cpu" else text


def this_machine(*, threads: int) -> Machine:
    """The first GPU that torch sees, else the CPU."""
    name = gpu_name()
    facts = {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "memory_gb": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f}",
        "cpu": OnnxRuntimeEngine(EngineSettings()).device().removeprefix("cpu: "),
    }
    if name:
        return Machine("gpu", name, facts | _cuda() | smi(_FACTS), package_versions())
    return Machine("cpu", facts["cpu"], facts | {"threads": str(threads)}, package_versions())


def gpu_name() -> str:
    """The first CUDA device of torch; empty without one."""
    try:
        import torch
    except ImportError:
        return ""
    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else ""


def _cuda() -> dict[str, str]:
    import torch

    shape = torch.cuda.get_device_properties(0)
    return {"cuda": str(torch.version.cuda), "multiprocessors": str(shape.multi_processor_count)}


def package_versions() -> dict[str, str]:
    """Of those packages that are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def smi(fields: tuple[str, ...], *, run: Any = subprocess.run) -> dict[str, str]:
    """These fields of the first GPU by nvidia-smi, with units; empty where there is none.

    A field that this driver does not know makes nvidia-smi refuse the whole question; then they are asked one by one.
    """

    def ask(names: tuple[str, ...]) -> dict[str, str]:
        command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader", "--id=0"]
        done = run(command, capture_output=True, text=True, timeout=20, check=True)
        values = [value.strip() for value in done.stdout.splitlines()[0].split(",")]
        return dict(zip(names, values, strict=True))

    try:
        return ask(fields)
    except OSError:
        return {}
    except (subprocess.SubprocessError, ValueError, IndexError):
        if len(fields) == 1:
            return {}
    found: dict[str, str] = {}
    for field in fields:
        found |= smi((field,), run=run)
    return found


def other_gpu_processes(*, run: Any = subprocess.run) -> int:
    """Programs beside this one that nvidia-smi sees on the GPU (in a container it may see none)."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader", "--id=0"]
    try:
        lines = run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.isdigit() and int(line) != os.getpid() for line in lines)


class Watch:
    """Load that others put on the CPU, and the GPU's clocks, between two looks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._before = _cpu_times()

    def look(self) -> dict[str, Any]:
        """Since the last look: `other_load` as a share of all cores, and of a GPU what nvidia-smi says now."""
        before, self._before = self._before, _cpu_times()
        total, busy, own = (now - then for now, then in zip(self._before, before, strict=True))
        found: dict[str, Any] = {}
        if total > 0.1:
            found["other_load"] = round(min(1.0, max(0.0, (busy - own) / total)), 3)
        if self._machine.kind == "gpu":
            found |= smi(_NOW)
            if others := other_gpu_processes():
                found["other_gpu_processes"] = others
        return found


def _cpu_times() -> tuple[float, float, float]:
    """Seconds so far: of all cores, of them busy or stolen, of this process and its ended children."""
    used = os.times()
    own = used.user + used.system + used.children_user + used.children_system
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:  # not Linux
        return 0.0, 0.0, own
    times = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
    idle = times[3] + times[4]
    return sum(times), sum(times) - idle, own
