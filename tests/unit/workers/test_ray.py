"""The Ray pool without a cluster: what a worker asks for, what is refused, how Ray's errors read."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

import pytest

from arlo.config import Config, DeploymentConfig, ModelConfig, WorkersConfig
from arlo.control.pool import make_pool, ray_namespace
from arlo.errors import ConfigError, EnvironmentProblem, WorkerError
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.ray.actor import ActorSpec, private_folder
from arlo.workers.ray.cluster import Need, RayCluster, View
from arlo.workers.ray.pool import RayPool
from arlo.workers.ray.worker import lost_because

SPEC = ActorSpec(
    id="w0",
    version="1",
    namespace="arlo-x",
    repository="/models",
    manifest="digest",
    run_dir="/run",
    threads=1,
    metrics=True,
    admin_key="key",
    start_timeout_s=60,
    exit_timeout_s=10,
    hang_timeout_s=30,
    backoff_first_s=0.2,
    linger_s=30,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_emulated_repository(tmp_path / "repository", model="m", max_lengths=[16], latency_ms=[1])
    return tmp_path / "repository"


def config(repository: Path, run_dir: Path, **workers: object) -> Config:
    return Config(
        model=ModelConfig(repository=repository, slo_ms=100),
        deployment=DeploymentConfig(allocation={16: 2}),
        workers=WorkersConfig(kind="ray", run_dir=run_dir, **workers),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("need", "options"),
    [
        (Need(resource="GPU", amount=1), {"num_cpus": 0, "num_gpus": 1}),
        (Need(resource="GPU", amount=0.5), {"num_cpus": 0, "num_gpus": 0.5}),
        (Need(resource="accelerator", amount=2), {"num_cpus": 0, "resources": {"accelerator": 2}}),
        (Need(resource="CPU", amount=4), {"num_cpus": 4}),
    ],
)
def test_what_a_worker_takes_of_its_node(need: Need, options: dict[str, object]) -> None:
    assert need.options() == options


def test_actors_that_serve_alike_have_one_fingerprint() -> None:
    for same in ({"id": "w7"}, {"admin_key": None}, {"start_timeout_s": 1.0}, {"run_dir": "/elsewhere"}):
        assert dataclasses.replace(SPEC, **same).fingerprint == SPEC.fingerprint
    for other in ({"repository": "/other"}, {"manifest": "new"}, {"threads": 2}, {"linger_s": 0.0}):
        assert dataclasses.replace(SPEC, **other).fingerprint != SPEC.fingerprint


def test_the_cluster_in_words() -> None:
    cluster = RayCluster(None, "arlo-x", Need(resource="GPU", amount=1))
    view = View(alive=frozenset(), nodes=(("10.0.0.1", 0), ("10.0.0.2", 4), ("10.0.0.3", 2)), free=1)
    assert cluster.describe(view) == "the cluster has 6 GPU on 2 of its 3 node(s) (4, 2), 1 free"
    none = View(alive=frozenset(), nodes=(("10.0.0.1", 0),), free=0)
    assert cluster.describe(none) == "the cluster has 0 GPU on 0 of its 1 node(s), 0 free"


# As Ray 2.60 says it.
FAILED_IMPORT = """\
The actor died because of an error raised in its creation task, ray::TritonActor.__init__() (pid=1, ip=10.0.0.2)
  File "/usr/lib/python3.11/concurrent/futures/_base.py", line 449, in result
RuntimeError: The actor with name TritonActor failed to import on the worker. This may be because needed library \
dependencies are not installed in the worker environment:

ray::TritonActor.__init__() (pid=1, ip=10.0.0.2)
ModuleNotFoundError: No module named 'arlo'"""
KILLED = """\
The actor died unexpectedly before finishing this task.
\tclass_name: TritonActor
\tnamespace: arlo-x
The actor is dead because it was killed by `ray.kill`."""


def test_rays_errors_in_one_line() -> None:
    assert lost_because(RuntimeError(FAILED_IMPORT)) == (
        "Arlo is not installed on its node: install the same version on every node of the Ray cluster"
    )
    assert lost_because(RuntimeError(KILLED)) == "The actor is dead because it was killed by `ray.kill`."
    assert lost_because(RuntimeError("")) == "RuntimeError"


async def test_without_the_package(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    pool = make_pool(config(repository, tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"pip install 'arlo-serve\[ray\]', here and on every node"):
        await pool.start()
    assert await pool.workers() == []
    await pool.stop()


async def test_nothing_at_the_address(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    pool = make_pool(config(repository, tmp_path, ray_address="127.0.0.1:1"))
    with pytest.raises(WorkerError, match=r"nothing answers at workers.ray_address = '127.0.0.1:1'"):
        await pool.start()


async def test_before_the_start(repository: Path, tmp_path: Path) -> None:
    pool = make_pool(config(repository, tmp_path))
    assert pool.resizable
    with pytest.raises(WorkerError, match="there are: none, the pool is not started"):
        await pool.load("w0", "m_len16")
    with pytest.raises(WorkerError, match="the pool is not started"):
        await pool.add()
    await pool.stop()


def test_bad_arguments(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder: build it with `arlo compile`"):
        RayPool(tmp_path / "nowhere", workers=1, run_dir=tmp_path, namespace="arlo-x")
    with pytest.raises(ConfigError, match="at least one worker"):
        RayPool(repository, workers=0, run_dir=tmp_path, namespace="arlo-x")
    with pytest.raises(ConfigError, match=r"must be a whole number for Ray, not 1\.5"):
        RayPool(repository, workers=1, run_dir=tmp_path, namespace="arlo-x", amount=1.5)


def test_the_namespace_is_that_of_the_repository_and_the_run_folder(repository: Path, tmp_path: Path) -> None:
    name = ray_namespace(config(repository, tmp_path))
    assert name == ray_namespace(config(repository, tmp_path, linger_s=5))
    assert name != ray_namespace(config(repository, tmp_path / "other"))


@pytest.mark.parametrize("found", ["nothing", "ours", "open to others", "a link", "a file"])
def test_a_folder_in_the_temporary_one_is_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    named = tmp_path / "temporary" / f"arlo-{os.getuid()}"
    if found in {"ours", "open to others"}:
        named.mkdir(mode=0o700)
        named.chmod(0o700 if found == "ours" else 0o777)
    elif found == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        named.symlink_to(tmp_path / "elsewhere")
    elif found == "a file":
        named.touch()
    folder = private_folder("arlo")
    assert (folder == named) == (found in {"nothing", "ours"})
    assert folder.parent == named.parent
    assert folder.is_dir()
    assert not folder.is_symlink()
    assert folder.stat().st_mode & 0o777 == 0o700
