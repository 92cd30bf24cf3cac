"""What the gateway benches share: starting programs, their CPU time and memory, closed-loop load, results.

Machines are noisy: contenders alternate within one run, and results are medians and ratios with the machine named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from arlo import proto
from arlo.clock import unix_s
from arlo.config.gateway import gateway_json
from arlo.config.model import Config, DeploymentConfig, ModelConfig, WorkersConfig
from arlo.replay.plan import write_plan

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BUILD = ROOT / "build" / "release"
TICKS = os.sysconf("SC_CLK_TCK")
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
    """The process and its descendants, as far as they still live."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += [int(c) for c in (task / "children").read_text().split()]
    return found


class Program:
    """A process that is measured and surely ended."""

    def __init__(self, command: Sequence[str | Path], *, log: Path) -> None:
        self.command = [str(c) for c in command]
        self._log = log.open("w")
        self.process = subprocess.Popen(self.command, stdout=self._log, stderr=subprocess.STDOUT)

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

    def pids(self) -> list[int]:
        """The process and its descendants (nginx has a worker process)."""
        return descendants(self.process.pid)

    def cpu_s(self) -> float:
        """User and system time so far, seconds."""
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def rss_mb(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def wait_for_port(port: int, timeout_s: float = 20.0) -> None:
    grpc.channel_ready_future(channel := grpc.insecure_channel(f"127.0.0.1:{port}")).result(timeout_s)
    channel.close()


def payload(length: int, width: int | None = None, *, model: str = "bench", seed: int = 0) -> bytes:
    """A serialised ModelInferRequest of one row of `length` tokens in `width` columns; int64 ids and mask, raw."""
    width = width or length
    ids = np.random.default_rng(seed).integers(1000, 30000, (1, width))
    mask = (np.arange(width) < length).astype(np.int64)[None]
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        request.raw_input_contents.append(np.ascontiguousarray(array, "<i8").tobytes())
    request.outputs.add(name="embedding")
    return bytes(request.SerializeToString())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
    """One instance of the deployment under test."""

    endpoint: str
    runtime: str
    max_length: int
    latency_us: int = 1000
    capacity: int = 1000
    dynamic: bool = False
    points_us: tuple[tuple[int, int], ...] = ()  # (length, latency) of a dynamic runtime, instead of latency_us


def gateway_config(work: Path, *, policy: str | None = None, max_queued: int | None = None) -> Path:
    """The gateway's JSON: what ships, but for what is given, on free ports; ready.json is written beside it."""
    only = ModelConfig(repository=work, slo_ms=1500)
    shipped = Config(model=only, deployment=DeploymentConfig(allocation={64: 1}), workers=WorkersConfig(count=1))
    given = {"policy": policy, "max_queued": max_queued}
    config = dataclasses.replace(
        shipped,
        gateway=dataclasses.replace(
            shipped.gateway,
            grpc_address="127.0.0.1:0",
            http_address="127.0.0.1:0",
            admin_address="127.0.0.1:0",
            log_level="warning",
        ),
        dispatch=dataclasses.replace(shipped.dispatch, **{k: v for k, v in given.items() if v is not None}),
    )
    path = work / "gateway.json"
    path.write_text(gateway_json(config, ready_file=work / "ready.json"))
    return path


def deployment(
    backends: Sequence[Backend],
    *,
    dims: int,
    model: str = "bench",
    inflight_limit: int = INFLIGHT_LIMIT,
    slo_ms: int = 1500,
) -> Any:
    """An arlo.v1.Deployment: inputs input_ids and attention_mask, output embedding FP32 [rows, dims]."""
    runtimes: dict[str, Any] = {
        b.runtime: {
            "name": b.runtime,
            "max_length": b.max_length,
            "max_batch": 1,
            "dynamic": b.dynamic,
            "capacity": b.capacity,
            "latency": [
                {"length": length, "batch": 1, "latency_us": us}
                for length, us in b.points_us or ((b.max_length, b.latency_us),)
            ],
        }
        for b in backends
    }
    return json_format.ParseDict(
        {
            "version": 1,
            "model": {
                "name": model,
                "slo_ms": slo_ms,
                "default_timeout_ms": 60000,
                "inputs": [
                    {"name": "input_ids", "datatype": "INT64", "role": "ROLE_IDS"},
                    {"name": "attention_mask", "datatype": "INT64", "role": "ROLE_MASK", "optional": True},
                ],
                "outputs": [{"name": "embedding", "datatype": "FP32", "dims": [dims]}],
            },
            "runtimes": list(runtimes.values()),
            "instances": [
                {
                    "id": f"i{k}",
                    "worker": f"w{k}",
                    "endpoint": b.endpoint,
                    "runtime": b.runtime,
                    "inflight_limit": inflight_limit,
                }
                for k, b in enumerate(backends)
            ],
        },
        proto.message("Deployment")(),
    )


@contextlib.contextmanager
def gateway(
    work: Path,
    backends: Sequence[Backend],
    *,
    dims: int = 384,
    policy: str | None = None,
    model: str = "bench",
    inflight_limit: int = INFLIGHT_LIMIT,
    slo_ms: int = 1500,
) -> Iterator[tuple[Program, int]]:
    """A gateway serving these backends, with the settings that ship unless told otherwise: program and data port."""
    ready = work / "ready.json"
    ready.unlink(missing_ok=True)
    config = gateway_config(work, policy=policy)
    with Program([binary("arlo-gateway"), "--config", config], log=work / "gateway.log") as program:
        deadline = time.monotonic() + 20
        while not ready.exists():
            if time.monotonic() > deadline or program.process.poll() is not None:
                raise SystemExit(f"the gateway did not start:\n{(work / 'gateway.log').read_text()}")
            time.sleep(0.02)
        addresses = json.loads(ready.read_text())
        with grpc.insecure_channel(addresses["admin"]) as channel:
            call = channel.unary_unary(
                "/arlo.v1.Admin/Apply",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=proto.message("ApplyReply").FromString,
            )
            wanted = deployment(backends, dims=dims, model=model, inflight_limit=inflight_limit, slo_ms=slo_ms)
            call(proto.message("ApplyRequest")(deployment=wanted))
            stats = channel.unary_stream(
                "/arlo.v1.Admin/WatchStats",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=proto.message("Stats").FromString,
            )
            for update in stats(proto.message("WatchStatsRequest")(interval_ms=100)):
                if all(i.state == 2 for i in update.instances):
                    break
                if time.monotonic() > deadline:
                    raise SystemExit("the instances did not join")
        yield program, int(addresses["grpc"].rsplit(":", 1)[1])


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
