"""Code shared by the benches: starting programs, their CPU time and memory, load, results.

Machines are noisy: contenders alternate within one run, and results are medians and ratios with the machine named.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, OutputTensor, Runtime
from arlo.clock import unix_s
from arlo.replay.plan import write_plan
from tests.fakes import gateway as fakes
from tests.fakes.gateway import Gateway, Instance, gateway_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BUILD = ROOT / "build" / "release"
INFLIGHT_LIMIT = 2  # rows at a worker of max_batch 1, as the control plane deploys it


def binary(name: str) -> Path:
    """A program of the release build or of this environment."""
    places = [BUILD / "src/gateway", BUILD / "src/loadgen", BUILD / "benchmarks/micro", Path(sys.executable).parent]
    for place in places:
        if (place / name).is_file():
            return place / name
    raise SystemExit(f"{name} is not built: run `make bench`")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """The process and its descendants that are still alive."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += [int(c) for c in (task / "children").read_text().split()]
    return found


def process_cpu_s(pid: int) -> float:
    """User and system time of one process, without its children, in seconds."""
    # Its clock, as clock_getcpuclockid() names it: /proc counts in steps of 10 ms, and a request takes 20 us.
    return time.clock_gettime(~pid << 3 | 2)


class Measured:
    """A process whose CPU time and memory are measured."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def pids(self) -> list[int]:
        """The process and its descendants (nginx has a worker process)."""
        return descendants(self.pid)

    def cpu_s(self) -> float:
        """User and system time so far, seconds."""
        return sum(process_cpu_s(pid) for pid in self.pids())

    def rss_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


class Program(Measured):
    """A measured process that is always ended."""

    def __init__(self, command: Sequence[object], *, log: Path) -> None:
        self.command = [str(c) for c in command]
        self._log = log.open("w")
        self.process = subprocess.Popen(self.command, stdout=self._log, stderr=subprocess.STDOUT)
        super().__init__(self.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


def wait_for_port(port: int, timeout_s: float = 20.0) -> None:
    grpc.channel_ready_future(channel := grpc.insecure_channel(f"127.0.0.1:{port}")).result(timeout_s)
    channel.close()


def payload(length: int, *, model: str = "bench", seed: int = 0) -> bytes:
    """A serialised ModelInferRequest of one row of `length` tokens; int64 ids and mask, raw."""
    ids = np.random.default_rng(seed).integers(1000, 30000, (1, length))
    mask = np.ones((1, length), np.int64)
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        request.raw_input_contents.append(np.ascontiguousarray(array, "<i8").tobytes())
    request.outputs.add(name="embedding")
    return bytes(request.SerializeToString())


def deployment(
    endpoint: str, runtime: str, max_length: int, *, dims: int, model: str = "bench", instances: int = 1
) -> Any:
    """An arlo.v1.Deployment of one runtime: inputs input_ids and attention_mask, output embedding FP32 [rows, dims]."""
    manifest = Manifest(
        model=model,
        task="emulated",
        source="",
        tokenizer=None,
        inputs=(
            InputTensor(name="input_ids", datatype="INT64", role="ids"),
            InputTensor(name="attention_mask", datatype="INT64", role="mask", optional=True),
        ),
        outputs=(OutputTensor(name="embedding", datatype="FP32", token_level=False, dims=(dims,)),),
        runtimes=(),
    )
    served = Runtime(
        name=runtime,
        max_length=max_length,
        max_batch=1,
        dynamic=False,
        engine="emulated",
        precision="",
        device="",
        latency=(LatencyPoint(length=max_length, batch=1, latency_us=1000),),
    )
    each = [Instance(f"i{k}", f"w{k}", endpoint, served, capacity=1000) for k in range(instances)]
    return fakes.deployment(manifest, each, slo_ms=1500, default_timeout_ms=60_000, inflight_limit=INFLIGHT_LIMIT)


@contextlib.contextmanager
def gateway(work: Path, wanted: Any, **settings: Any) -> Iterator[Gateway]:
    """A gateway that serves this deployment, with the default settings except for `settings`."""
    with asyncio.Runner() as runner:
        about = {"log_level": "warning", **settings}
        started = gateway_of(work, wanted, about, program=binary("arlo-gateway"))
        running = runner.run(started.__aenter__())
        try:
            yield running
        except BaseException:
            runner.run(started.__aexit__(*sys.exc_info()))
            raise
        runner.run(started.__aexit__(None, None, None))


@contextlib.contextmanager
def serving(
    work: Path, *, slo_ms: int, settings: Mapping[str, Mapping[str, Any]], workers: int = 1
) -> Iterator[tuple[Program, str, int]]:
    """`arlo serve` with workers of work/repository: its process, the data port, and the port of /metrics."""
    ports = {name: free_port() for name in ("grpc", "http", "admin", "status")}
    sections: dict[str, Mapping[str, object]] = {
        "model": {"repository": str(work / "repository"), "slo_ms": slo_ms},
        "workers": {"count": workers, "run_dir": str(work / "run")},
        "gateway": {f"{name}_address": f"127.0.0.1:{ports[name]}" for name in ("grpc", "http", "admin")},
        "control": {"http_address": f"127.0.0.1:{ports['status']}"},
        **settings,
    }
    config = work / "serve.toml"
    config.write_text(
        "".join(
            f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            for name, values in sections.items()
            if values
        )
    )
    with Program([binary("arlo"), "serve", config], log=work / "serve.log") as program:
        deadline_s = time.monotonic() + 120
        while not _ready(ports["http"]):
            if program.process.poll() is not None or time.monotonic() > deadline_s:
                logs = [work / "serve.log", *sorted((work / "run").rglob("*.log"))]
                said = "\n".join(f"-- {log.name}\n{log.read_text(errors='replace')[-12000:]}" for log in logs)
                raise SystemExit(f"arlo serve did not come up:\n{said}")
            time.sleep(0.2)
        yield program, f"127.0.0.1:{ports['grpc']}", ports["http"]


def _ready(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as page:
        return bool(page.status == 200)
    return False


def metric(port: int, name: str, label: str = "") -> list[float]:
    """Values of one of the gateway's metrics, for the series with `label` among their labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return [
        float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")) and label in line
    ]


def port_of(gateway: Gateway) -> int:
    """The number of the gateway's data port."""
    return int(gateway.grpc.rsplit(":", 1)[1])


def load(work: Path, port: int, payloads: Sequence[bytes], *flags: str) -> dict[str, Any]:
    """Closed-loop load by arlo-loadgen; its final report."""
    plan = work / "plan.bin"
    write_plan(plan, payloads)
    return _loadgen("closed", work, port, plan, *flags)


def paced_load(
    work: Path, port: int, payloads: Sequence[bytes], *flags: str, rate: float, seconds: float
) -> dict[str, Any]:
    """Open-loop load by arlo-loadgen, Poisson at `rate` requests a second; its final report."""
    plan = work / "plan.bin"
    random = np.random.default_rng(1)
    at = np.cumsum(random.exponential(1e6 / rate, int(rate * seconds))).astype(np.int64)
    write_plan(plan, payloads, at, random.integers(0, len(payloads), len(at)).astype(np.uint32))
    return _loadgen("open", work, port, plan, *flags)


def _loadgen(mode: str, work: Path, port: int, plan: Path, *flags: str) -> dict[str, Any]:
    command = [binary("arlo-loadgen"), mode, "--target", f"127.0.0.1:{port}", "--plan", plan]
    command += ["--records", work / "records.npy", "--progress-s", "60", *flags]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"arlo-loadgen failed ({done.returncode}): {done.stdout[-500:]}{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


def save(name: str, command: str, figures: dict[str, Any]) -> Path:
    """Write benchmarks/results/<name>.json: figures with the command that made them and the machine."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    at = time.strftime("%Y-%m-%d", time.gmtime(unix_s()))
    path.write_text(json.dumps({"command": command, "date": at, "machine": machine(), **figures}, indent=2) + "\n")
    return path


def need(program: str, how: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        raise SystemExit(f"{program} is needed for this bench: {how}")
    return found
