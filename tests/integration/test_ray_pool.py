"""RayPool on a real Ray cluster of several nodes on this machine, with real Triton servers (emulated engine)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import arlo
from arlo.catalog.manifest import Manifest
from arlo.client import AsyncClient
from arlo.client.errors import ClientError
from arlo.clock import monotonic_s
from arlo.control.gateway.admin import AdminClient
from arlo.errors import WorkerError
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.pool import WorkerInfo
from arlo.workers.ray.pool import RayPool
from tests.fakes import ray_driver
from tests.fakes.gateway import ACTIVE, gateway_of
from tests.fakes.processes import MARK, kill_marked, marked, until
from tests.fakes.serving import serving
from tests.fakes.triton_workers import Workers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed"),
]

RESOURCE = "accelerator"
LENGTHS = (16, 64)
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
ENVIRONMENT = {
    # Nodes on the loopback address, as many as are wanted.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A lost node is known to be lost after about 1.5 s, not after 15.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_kill_worker_timeout_milliseconds": "1000",
}


class Nodes:
    """A Ray cluster on this machine: a head with two GPUs (so it says), and nodes with two accelerators each."""

    def __init__(self, cluster: Any, mark: str) -> None:
        self.cluster = cluster
        self.mark = mark

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, count: int = 1, resource: str = RESOURCE) -> set[str]:
        """The ids of the new nodes."""
        made = [self.cluster.add_node(resources={resource: 2}, wait=False, **NODE) for _ in range(count)]
        self.cluster.wait_for_nodes()
        return {node.node_id for node in made}

    def kill(self, node_id: str) -> None:
        """SIGKILL to all processes of the node but its workers, which end with it."""
        node = next(node for node in self.cluster.worker_nodes if node.node_id == node_id)
        self.cluster.remove_node(node, allow_graceful=False)

    def node_of(self, pid: int) -> str:
        """The node that a process runs on: some ancestor of it is the node's raylet. Empty when either has ended."""
        raylets = {node.all_processes["raylet"][0].process.pid: node for node in self.cluster.worker_nodes}
        while pid > 1 and pid not in raylets:
            try:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                return ""
        return str(raylets[pid].node_id) if pid in raylets else ""

    def processes(self, program: str) -> dict[int, str]:
        return {pid: line for pid, line in marked(self.mark).items() if line.split() and program in line.split()[0]}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, MARK: mark}.items():
            patch.setenv(name, value)
        from ray._private import ray_constants
        from ray.cluster_utils import Cluster

        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # read from the environment at the first import
        handler = signal.getsignal(signal.SIGTERM)
        cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, "num_gpus": 2, **NODE})
        try:
            nodes = Nodes(cluster, mark)
            nodes.add(3)
            yield nodes
            assert nodes.processes("tritonserver") == {}
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call]
            signal.signal(signal.SIGTERM, handler)  # Cluster replaces it
            left = marked(mark)
            kill_marked(mark)
        assert left == {}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    write_emulated_repository(path, model="m", max_lengths=LENGTHS, latency_ms=(2, 5))
    return path


@pytest.fixture(scope="module")
def make(nodes: Nodes, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RayPool]:
    """make(workers=..., ...): a pool in a namespace of its own, not started."""
    run_dir = tmp_path_factory.mktemp("run")

    def make(**options: Any) -> RayPool:
        options = {
            "namespace": f"arlo-{uuid.uuid4().hex}",
            "run_dir": run_dir,
            "linger_s": 10,
            "exit_timeout_s": 5,
            **options,
        }
        options.setdefault("repository", repository)
        path = options.pop("repository")
        return RayPool(path, address=nodes.address, **{"resource": RESOURCE, **options})

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(make: Callable[..., RayPool]) -> AsyncIterator[RayPool]:
    """Four workers that the tests share; each leaves them ready."""
    async with make(workers=4, admin_key="secret") as pool:
        yield pool


async def workers(pool: RayPool) -> dict[str, WorkerInfo]:
    return {worker.id: worker for worker in await pool.workers()}


def actor(pool: RayPool, worker: str) -> dict[str, Any]:
    """What the worker's actor says of itself: its node and its process."""
    report = pool._workers[worker]._report
    assert report is not None
    return report


async def when(pool: RayPool, condition: Callable[[dict[str, WorkerInfo]], Any], what: str, timeout_s: float) -> float:
    """Seconds until the pool's workers meet the condition. Asking never takes long."""
    asked_s = monotonic_s()
    seen: dict[str, WorkerInfo] = {}

    async def look() -> Any:
        nonlocal seen
        before_s = monotonic_s()
        seen = await workers(pool)
        assert monotonic_s() - before_s < 0.1
        return condition(seen)

    try:
        await until(look, what, timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; {seen}") from None
    return monotonic_s() - asked_s


def all_ready(seen: dict[str, WorkerInfo]) -> bool:
    return all(worker.state == "ready" for worker in seen.values())


def alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def infer(endpoint: str, runtime: str, length: int) -> None:
    """One request to a worker itself, its answer checked."""
    import tritonclient.grpc.aio as triton

    ids = np.arange(1, length + 1)[None]
    inputs = []
    for name, values in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
        inputs.append(triton.InferInput(name, values.shape, "INT64"))
        inputs[-1].set_data_from_numpy(values)
    async with triton.InferenceServerClient(endpoint) as client:
        answer = (await client.infer(runtime, inputs)).as_numpy("embedding")
    assert answer[0, 0] == ids.sum()


async def test_workers_on_all_nodes_load_infer_and_unload(nodes: Nodes, pool: RayPool) -> None:
    seen = await workers(pool)
    assert list(seen) == ["w0", "w1", "w2", "w3"]
    assert all_ready(seen)
    assert len({actor(pool, worker)["node"] for worker in seen}) == 3
    assert len({worker.endpoint for worker in seen.values()}) == 4
    await asyncio.gather(*(pool.load(worker, f"m_len{length}") for worker in seen for length in LENGTHS))
    async with asyncio.timeout(10):  # what was asked of an actor before the second load may be told after it
        while {worker.runtimes for worker in (await workers(pool)).values()} != {("m_len16", "m_len64")}:
            await asyncio.sleep(0.05)
    for worker in (await workers(pool)).values():
        assert worker.pid in nodes.processes("tritonserver")
        assert worker.restarts == 0
        assert worker.log is not None
        assert Path(worker.log.partition(":")[2]).is_file()
        await infer(worker.endpoint, "m_len64", 64)
    await asyncio.gather(*(pool.unload(worker, "m_len64") for worker in seen))
    assert {worker.runtimes for worker in (await workers(pool)).values()} == {("m_len16",)}


async def test_another_control_plane_is_kept_out(pool: RayPool, make: Callable[..., RayPool]) -> None:
    other = make(workers=4, namespace=pool._cluster.namespace)
    with pytest.raises(WorkerError, match="another control plane commands this worker"):
        await other.start()
    assert all_ready(await workers(pool))
    await pool.load("w0", "m_len16")


async def test_a_triton_that_dies_comes_back_in_place_with_its_runtimes(pool: RayPool) -> None:
    before = (await workers(pool))["w0"]
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    await when(pool, lambda seen: seen["w0"].restarts == 1 and all_ready(seen), "w0 restarted", 15)
    after = (await workers(pool))["w0"]
    assert (after.endpoint, after.runtimes) == (before.endpoint, before.runtimes)
    assert after.pid != before.pid


async def test_an_actor_that_dies_takes_its_triton_along_and_comes_back(pool: RayPool) -> None:
    before = (await workers(pool))["w1"]
    os.kill(actor(pool, "w1")["actor_pid"], signal.SIGKILL)
    await when(pool, lambda seen: seen["w1"].state != "ready", "the loss of w1 seen", 15)
    lost = (await workers(pool))["w1"]
    assert lost.runtimes == ()
    assert lost.error is not None
    await when(pool, lambda seen: seen["w1"].restarts == 1 and all_ready(seen), "w1 restarted", 30)
    await until(lambda: not alive(before.pid), "its Triton has ended")
    after = (await workers(pool))["w1"]
    assert after.runtimes == ()  # whoever had them loaded sees that they are gone
    await pool.load("w1", "m_len16")
    await infer(after.endpoint, "m_len16", 16)


async def test_an_actor_that_hangs_is_replaced(make: Callable[..., RayPool]) -> None:
    async with make(workers=1, hang_timeout_s=1) as pool:
        process = actor(pool, "w0")["actor_pid"]
        os.kill(process, signal.SIGSTOP)
        try:
            await when(pool, lambda seen: seen["w0"].restarts == 1 and all_ready(seen), "replaced", 40)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


async def test_add_and_remove(pool: RayPool, nodes: Nodes) -> None:
    added = await pool.add()
    assert (added.id, added.state) == ("w4", "ready")
    await pool.load("w4", "m_len64")
    await pool.remove("w4")
    assert list(await workers(pool)) == ["w0", "w1", "w2", "w3"]
    await until(lambda: not alive(added.pid), "its Triton has ended")
    again = await pool.add()
    assert again.id == "w5"  # no id is given twice
    await pool.remove("w5")


async def test_each_worker_sees_the_gpu_that_ray_gave_it(make: Callable[..., RayPool]) -> None:
    """On no real GPU: Ray believes what its nodes say they have."""
    async with make(workers=2, resource="GPU") as pool:
        seen = []
        for worker in await pool.workers():
            variables = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
            seen += [value for value in variables if value.startswith(b"CUDA_VISIBLE_DEVICES=")]
    assert sorted(seen) == [b"CUDA_VISIBLE_DEVICES=0", b"CUDA_VISIBLE_DEVICES=1"]


async def test_what_the_cluster_cannot_place_is_said_and_stopped_again(
    make: Callable[..., RayPool], pool: RayPool
) -> None:
    # Four of the six accelerators are taken: two of three new workers find a place.
    other = make(workers=3, start_timeout_s=4)
    with pytest.raises(WorkerError) as caught:
        await other.start()
    assert re.search(r"has not placed worker w\d within 4 s, which takes 1 accelerator of a node", str(caught.value))
    assert (
        "Ray has no free accelerator for it; the cluster has 6 accelerator on 3 of its 4 node(s) (2, 2, 2), 0 free"
        in (str(caught.value))
    )
    assert await other._cluster.named() == []
    large = make(workers=1, start_timeout_s=2, amount=3)
    with pytest.raises(WorkerError, match="no node of the Ray cluster has 3 accelerator"):
        await large.start()


async def test_a_node_without_the_repository_or_with_another_arlo_says_so(
    make: Callable[..., RayPool], tmp_path: Path, pool: RayPool
) -> None:
    write_emulated_repository(tmp_path / "here", model="m", max_lengths=LENGTHS, latency_ms=(2, 5))
    elsewhere = make(workers=1, repository=tmp_path / "here")
    elsewhere._spec = dataclasses.replace(elsewhere._spec, repository="/nowhere/repository")
    with pytest.raises(WorkerError, match=r"/nowhere/repository is not there: every node must see it under the same"):
        await elsewhere.start()
    stale = make(workers=1, repository=tmp_path / "here")
    (tmp_path / "here" / "arlo.json").write_text("{}")
    with pytest.raises(WorkerError, match=r"has another arlo.json than the control plane's"):
        await stale.start()
    other = make(workers=1)
    other._spec = dataclasses.replace(other._spec, version="0.0.1")
    with pytest.raises(WorkerError, match=rf"it has Arlo {arlo.__version__}, the control plane 0.0.1"):
        await other.start()


class Load:
    """Requests through a gateway, four at a time, until `stop`; every answer is checked."""

    def __init__(self, client: AsyncClient) -> None:
        self.answered = 0
        self.errors: list[ClientError] = []
        self._client = client
        self._stopped = False
        self._tasks = [asyncio.create_task(self._run(length)) for length in (3, 16, 40, 64)]

    async def _run(self, length: int) -> None:
        ids = np.arange(1, length + 1)
        while not self._stopped:
            try:
                answer = await self._client.infer(ids)
                assert answer["embedding"][0] == ids.sum()
                self.answered += 1
            except ClientError as error:
                self.errors.append(error)
                await asyncio.sleep(0.05)  # a client that is closed refuses at once

    async def more(self, count: int) -> None:
        goal = self.answered + count
        await until(lambda: self.answered >= goal, f"{count} more answers; errors: {self.errors[:3]}")

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)


async def test_a_node_lost_under_load_fails_no_request(
    nodes: Nodes, pool: RayPool, repository: Path, tmp_path: Path
) -> None:
    """Its workers come back on the other nodes; when there is no room, as soon as there is."""
    await asyncio.gather(*(pool.load(f"w{i}", f"m_len{length}") for i in range(4) for length in LENGTHS))
    harness = Workers(pool, {"m": Manifest.load(repository)})  # type: ignore[arg-type]

    async def deployment(version: int) -> Any:
        endpoints = [worker.endpoint for worker in await pool.workers()]
        placement = [(0, 16), (1, 64), (2, 16), (3, 64)]
        return harness.deployment("m", placement, version=version, endpoints=endpoints)

    async with gateway_of(tmp_path, await deployment(1), max_attempts=5) as gateway:
        async with AsyncClient(gateway.grpc, model="m", retries=0) as client:
            load = Load(client)
            await load.more(100)
            before = await workers(pool)
            victim = actor(pool, "w0")["node"]
            lost = [worker for worker in before if actor(pool, worker)["node"] == victim]
            # First without room for the lost ones anywhere: fillers take what is free.
            free = 6 - 4
            fillers = [await pool.add() for _ in range(free)]
            lost += [filler.id for filler in fillers if actor(pool, filler.id)["node"] == victim]
            assert len(lost) == 2
            nodes.kill(victim)
            await when(pool, lambda seen: all(seen[w].state == "failed" for w in lost), "the loss seen", 60)
            reason = "is gone; Ray has no free accelerator for it; the cluster has 4 accelerator on 2 of its 3 node(s)"
            await when(pool, lambda seen: all(reason in (seen[w].error or "") for w in lost), "the reason given", 60)
            await load.more(100)
            # Then room on the nodes that are left. A lost filler is removed as any other.
            for filler in fillers:
                await pool.remove(filler.id)
            await when(pool, all_ready, "the lost ones on other nodes", 90)
            assert victim not in {actor(pool, worker)["node"] for worker in before}
            nodes.add()
            after = await workers(pool)
            for name, was in before.items():
                moved = name in lost
                assert (after[name].restarts > was.restarts) == moved
                assert (after[name].endpoint != was.endpoint) == moved
                assert after[name].runtimes == (() if moved else ("m_len16", "m_len64"))
            await asyncio.gather(*(pool.load(w, f"m_len{n}") for w in lost if w in before for n in LENGTHS))
            await gateway.apply(await deployment(2))
            await load.more(100)
            await load.stop()
            assert load.errors == []
        stats = await gateway.stats()
        assert [instance.state for instance in stats.instances] == [ACTIVE] * 4


@contextlib.asynccontextmanager
async def driver(nodes: Nodes, repository: Path, run_dir: Path, namespace: str, linger_s: float) -> AsyncIterator[Any]:
    """A control plane in a process of its own with one worker; yields the process and the worker."""
    options = {
        "repository": str(repository),
        "run_dir": str(run_dir),
        "namespace": namespace,
        "address": nodes.address,
        "resource": RESOURCE,
        "workers": 1,
        "linger_s": linger_s,
        "load": "m_len16",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, ray_driver.__file__, json.dumps(options)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            (worker,) = json.loads(await process.stdout.readline())
        yield process, worker
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_killed_control_plane_s_workers_are_adopted(
    nodes: Nodes, pool: RayPool, make: Callable[..., RayPool], repository: Path, tmp_path: Path
) -> None:
    namespace = f"arlo-{uuid.uuid4().hex}"
    async with driver(nodes, repository, tmp_path, namespace, 30) as (process, left):
        process.kill()
    await infer(left["endpoint"], "m_len16", 16)
    async with make(workers=1, namespace=namespace, linger_s=30, exit_timeout_s=10) as adopted:
        (worker,) = await adopted.workers()
        assert (worker.endpoint, worker.pid, worker.runtimes) == (left["endpoint"], left["pid"], ("m_len16",))
        await adopted.load("w0", "m_len64")
    await until(lambda: not alive(left["pid"]), "its Triton has ended")


@pytest.mark.parametrize("linger_s", [0, 2])
async def test_a_killed_control_plane_that_stays_away_leaves_nothing(
    nodes: Nodes, pool: RayPool, repository: Path, tmp_path: Path, linger_s: float
) -> None:
    namespace = f"arlo-{uuid.uuid4().hex}"
    async with driver(nodes, repository, tmp_path, namespace, linger_s) as (process, left):
        process.kill()
    await until(lambda: not alive(left["pid"]), "its Triton has ended", timeout_s=linger_s + 15)

    async def gone() -> bool:
        import ray

        return namespace not in {a["namespace"] for a in ray.util.list_named_actors(all_namespaces=True)}

    await until(gone, "its actor has ended")


SERVE = """\
[model]
repository = "{repository}"
slo_ms = 500
[workers]
kind = "ray"
ray_address = "{address}"
ray_resource = "slot"
run_dir = "run"
linger_s = 20
[deployment]
allocation = {{64 = 2}}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
reallocate = false
http_address = "127.0.0.1:0"
"""


async def test_arlo_serve_survives_its_own_death_and_that_of_a_node(
    nodes: Nodes, repository: Path, tmp_path: Path
) -> None:
    """Both under load, without a failed request. The lost worker comes back on the other node, and serves."""
    own = nodes.add(2, "slot")  # only its workers run there; the others' may come and go
    (tmp_path / "serve.toml").write_text(SERVE.format(repository=repository, address=nodes.address))

    def tritons() -> set[str]:
        """The nodes of its Tritons."""
        return {node for pid in nodes.processes("tritonserver") if (node := nodes.node_of(pid)) in own}

    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(tmp_path))
        client = await stack.enter_async_context(AsyncClient(first.ready["grpc"], model="m", retries=0))
        load = Load(client)
        stack.push_async_callback(load.stop)
        await load.more(50)
        first.process.kill()
        await first.process.wait()
        await load.more(50)
        second = await stack.enter_async_context(serving(tmp_path))
        assert second.ready["grpc"] == first.ready["grpc"]
        assert tritons() == own
        nodes.kill(min(own))
        async with AdminClient(second.ready["admin"]) as admin, asyncio.timeout(90):
            lost = False
            async for stats in admin.watch_stats(interval_ms=100):
                whole = [instance.state for instance in stats.instances] == [ACTIVE, ACTIVE]
                lost = lost or not whole
                if lost and whole:
                    break
        await load.more(50)
        await load.stop()
        assert load.errors == []
        second.process.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
    await until(lambda: not tritons(), "its workers have ended")
