"""`arlo serve` and the recommendation: real Triton workers (emulated engine), the real gateway, several lengths."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.catalog.manifest import LatencyPoint, Manifest
from arlo.cli.recommend import recommended
from arlo.client import Client
from arlo.workers.emulated.repository import EmulatedRuntime, write_runtimes
from tests.fakes.serving import arlo, served

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """\
[model]
repository = "repository"
slo_ms = 500
[workers]
count = 2
[deployment]
runtimes = "{runtimes}"
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
drain_timeout_ms = 5000
[control]
http_address = "127.0.0.1:0"
"""
LENGTHS = (16, 64)


def write(folder: Path) -> Manifest:
    """Static runtimes of 16 and 64 tokens, as quick as the dynamic one: nothing is gained by padding to them."""

    def runtime(name: str, max_length: int, *, dynamic: bool) -> EmulatedRuntime:
        points = tuple(LatencyPoint(length=at, batch=1, latency_us=at * 200) for at in LENGTHS if at <= max_length)
        return EmulatedRuntime(
            name=name, max_length=max_length, max_batch=1, dynamic=dynamic, latency=points if dynamic else points[-1:]
        )

    runtimes = [runtime("emu_len16", 16, dynamic=False), runtime("emu_len64", 64, dynamic=False)]
    manifest = write_runtimes(folder, model="emu", runtimes=[*runtimes, runtime("emu_dynamic", 64, dynamic=True)])
    manifest = recommended(manifest)
    manifest.save(folder)
    return manifest


def status(ready: dict[str, Any]) -> Any:
    """What the gateway serves."""
    return json.loads(arlo("top", "--once", "--admin", ready["admin"], "--json").stdout)


@pytest.mark.parametrize(
    ("runtimes", "kind", "placed"),
    [
        ("recommended", "dynamic", {"emu_dynamic"}),
        ("static", "static", {"emu_len16", "emu_len64"}),
    ],
)
def test_what_is_recommended_is_served_unless_told_otherwise(
    tmp_path: Path, runtimes: str, kind: str, placed: set[str]
) -> None:
    manifest = write(tmp_path / "repository")
    assert manifest.recommendation is not None
    assert manifest.recommendation.serve == "dynamic"
    (tmp_path / "serve.toml").write_text(CONFIG.format(runtimes=runtimes))
    with served(tmp_path) as ready:
        assert ready["runtimes"]["serve"] == kind
        with Client(ready["grpc"], model="emu") as client:
            for length in (1, 7, 16, 17, 40, 64):
                ids = np.arange(1, length + 1)
                assert client.infer(ids)["embedding"].tolist() == [float(ids.sum())] * 4  # the emulated engine sums
        instances = status(ready)["deployment"]["instances"]
        assert len(instances) == 2
        assert {instance["runtime"] for instance in instances} <= placed
        if kind == "dynamic":
            times = status(ready)["deployment"]["runtimes"][0]["latency"]
            assert [(point["length"], point["latency_us"]) for point in times] == [(16, 3200), (64, 12800)]


def test_what_nobody_measured_is_measured_first(tmp_path: Path) -> None:
    """As after a build on a machine that cannot run the engines."""
    repository = tmp_path / "repository"
    manifest = write(repository)
    runtimes = tuple(dataclasses.replace(runtime, latency=(), device="") for runtime in manifest.runtimes)
    dataclasses.replace(manifest, runtimes=runtimes, recommendation=None).save(repository)
    (tmp_path / "serve.toml").write_text(CONFIG.format(runtimes="recommended"))
    for arguments in (
        ("serve", tmp_path / "serve.toml"),
        ("config", "check", tmp_path / "serve.toml"),
        ("plan", "--repository", repository, "--workers", "2", "--slo-ms", "100", "--demand", "1,1"),
        ("simulate", "--profile", repository, "--duration-s", "1"),
    ):
        done = arlo(*arguments)
        assert done.returncode == 2, done.stderr
        assert "`arlo compile profile" in done.stderr
    out = tmp_path / "latency.json"
    done = arlo("compile", "profile", repository, "--out", out, "--update", "--precision", "0.2", "--max-seconds", "1")
    assert done.returncode == 0, done.stderr
    assert "recommended here: " in done.stdout
    measured = Manifest.load(repository)
    assert all(runtime.latency for runtime in measured.runtimes)
    assert measured.recommendation is not None
    assert measured.recommendation.device == "emulated"
    assert arlo("config", "check", tmp_path / "serve.toml").stdout.splitlines()[1].startswith("  serving ")
