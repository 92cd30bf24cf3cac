"""Several [[model]] in one file, on the same real Triton workers, or each on its own, which move to where they are
needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cli import main
from arlo.client import AsyncClient
from arlo.client.errors import ClientError
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.processes import marked, until
from tests.fakes.serving import PORTS, Serving, arlo, serving

pytestmark = pytest.mark.integration

CONFIG = f"""\
[[model]]
name = "embedder"
repository = "embedder"
slo_ms = 500
share = 2
[[model]]
name = "reranker"
repository = "reranker"
slo_ms = 1000
[workers]
count = 2
{PORTS}"""


def configured(folder: Path, more: str = "", memory_mb: int | None = None) -> None:
    for name, lengths in (("embedder", (16, 64, 256)), ("reranker", (64, 512))):
        write_emulated_repository(
            folder / name,
            model=name,
            max_lengths=lengths,
            latency_ms=tuple(length / 50 for length in lengths),
            max_batch=8,
            memory_mb=memory_mb,
        )
    (folder / "serve.toml").write_text(CONFIG.replace("count = 2\n", f"count = 2\n{more}"))


async def answer(client: AsyncClient, length: int) -> None:
    ids = np.arange(1, length + 1)
    assert (await client.infer(ids))["embedding"].tolist() == [float(ids.sum())] * 4


async def load(client: AsyncClient, longest: int, stop: asyncio.Event) -> int:
    count, random = 0, np.random.default_rng(longest)
    while not stop.is_set():
        await answer(client, int(random.integers(1, longest + 1)))
        count += 1
    return count


@contextlib.asynccontextmanager
async def clients(served: Serving) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    at = served.ready["grpc"]
    async with AsyncClient(at, model="embedder") as one, AsyncClient(at, model="reranker") as two:
        yield one, two


async def test_two_models_of_one_file_share_the_workers(tmp_path: Path) -> None:
    configured(tmp_path)
    async with serving(tmp_path) as served, clients(served) as (one, two):
        assert served.ready["models"] == ["embedder", "reranker"]
        assert served.ready["runtimes"]["why"] == "2 models share the workers"
        for length in (1, 16, 17, 256):
            await asyncio.gather(answer(one, length), answer(two, length + 200))
        with pytest.raises(ClientError, match="a row has 300 tokens, the longest allowed is 256"):
            await answer(one, 300)
        admin = served.ready["admin"]
        for name, lengths, slo_ms in (("embedder", [16, 64, 256], 500), ("reranker", [64, 512], 1000)):
            told = json.loads(
                (await asyncio.to_thread(arlo, "top", "--once", "--admin", admin, "--model", name, "--json")).stdout
            )
            assert told["health"] == "ready"
            assert [level["max_length"] for level in told["stats"][name]["levels"]] == lengths
            assert [level["instances"] for level in told["stats"][name]["levels"]] == [2] * len(lengths)
            shown = (await asyncio.to_thread(arlo, "top", "--once", "--admin", admin, "--model", name)).stdout
            assert re.search(rf"^{name} +{slo_ms} ms ", shown, re.MULTILINE), shown
        # Asked of none of them, everything tells of both.
        shown = (await asyncio.to_thread(arlo, "top", "--once", "--admin", admin)).stdout
        words = ("top", "--once", "--control", served.ready["control"], "--interval", "0.3")
        both = (await asyncio.to_thread(arlo, *words)).stdout
        for name in ("embedder", "reranker"):
            assert name in shown
            assert len(re.findall(rf"^{name} ", both, re.MULTILINE)) >= 3, both  # it, and its lengths
        models = {model["name"]: model for model in (await asyncio.to_thread(control, served))["models"]}
        assert models["embedder"]["lengths"] == [16, 64, 256]
        assert models["reranker"]["lengths"] == [64, 512]

        # A worker dies under load of both: no row of either is lost.
        stop = asyncio.Event()
        jobs = [asyncio.create_task(load(*each, stop)) for each in ((one, 256), (one, 64), (two, 512), (two, 64))]

        async def seen() -> bool:
            models = {model["name"]: model for model in (await asyncio.to_thread(control, served))["models"]}
            return all(sum(models[name]["demand"]) > 0 for name in ("embedder", "reranker"))

        await until(seen, "demand for both")
        os.kill(tritons(served)[0], signal.SIGKILL)
        await until(lambda: served.events("worker_restarted"), "a restart")

        async def ready() -> bool:
            told = await asyncio.to_thread(arlo, "top", "--once", "--admin", admin, "--model", "reranker", "--json")
            return bool(json.loads(told.stdout)["health"] == "ready")

        await until(ready, "both workers", timeout_s=40)
        await asyncio.sleep(0.5)
        stop.set()
        assert min(await asyncio.gather(*jobs)) > 20
        await served.stop()


def tritons(served: Serving) -> list[int]:
    return [pid for pid, command in marked(served.mark).items() if command.split()[0].endswith("tritonserver")]


async def test_memory_chooses_what_is_held_of_all_models_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARLO_EMULATED_MEMORY_MB", "3500")  # Triton refuses to load more
    configured(tmp_path, "memory_mb = 3500\n", memory_mb=1000)
    async with serving(tmp_path) as served, clients(served) as (one, two):
        why = served.ready["runtimes"]["why"]
        assert "of 5 runtimes these 3 fit best, 3000 of 3500 MB" in why
        assert "embedder 1" in why
        for length in (1, 256):
            await asyncio.gather(answer(one, length), answer(two, 2 * length))
    checked = await asyncio.to_thread(arlo, "config", "check", str(tmp_path / "serve.toml"), "--json")
    assert json.loads(checked.stdout)["models"] == ["embedder", "reranker"]
    (tmp_path / "serve.toml").write_text((tmp_path / "serve.toml").read_text().replace("= 3500", "= 1500"))
    refused = await asyncio.to_thread(arlo, "serve", str(tmp_path / "serve.toml"))
    assert refused.returncode != 0
    assert "the longest runtimes of the 2 models take 2000 MB together, more than the 1500" in refused.stderr


async def test_two_models_with_a_runtime_of_one_name_are_refused(tmp_path: Path) -> None:
    configured(tmp_path)
    text = (tmp_path / "serve.toml").read_text().replace('repository = "reranker"', 'repository = "embedder"')
    (tmp_path / "serve.toml").write_text(text)
    refused = await asyncio.to_thread(arlo, "serve", str(tmp_path / "serve.toml"))
    assert refused.returncode != 0
    assert "both have a runtime embedder_len16" in refused.stderr


# --- workers of their own ---


def dedicated(folder: Path, more: str = "") -> None:
    configured(folder)
    path = folder / "serve.toml"
    text = path.read_text().replace("slo_ms = 500\n", "slo_ms = 500\nworkers = 2\n")
    text = text.replace("slo_ms = 1000\n", "slo_ms = 1000\nworkers = 1\n").replace("count = 2\n", "")
    path.write_text(text + more)


def control(served: Serving) -> dict[str, Any]:
    """What the control plane says."""
    with urllib.request.urlopen(f"http://{served.ready['control']}/status", timeout=10) as page:
        told: dict[str, Any] = json.load(page)
    return told


def placement(served: Serving) -> dict[str, str]:
    """Worker -> what it serves, by the control plane."""
    return {worker["id"]: worker["serving"] for worker in control(served)["workers"]}


async def of(served: Serving, model: str) -> list[str]:
    found = await asyncio.to_thread(placement, served)
    return sorted(worker for worker, runtime in found.items() if runtime == f"{model}_bundle")


async def test_workers_move_to_the_model_that_needs_them_and_none_is_ever_without(tmp_path: Path) -> None:
    dedicated(tmp_path)
    async with serving(tmp_path) as served, clients(served) as (one, two):
        assert served.ready["models"] == ["embedder", "reranker"]
        assert "each model has separate workers" in served.ready["runtimes"]["why"]
        assert [len(await of(served, model)) for model in ("embedder", "reranker")] == [2, 1]
        for length in (1, 16, 17, 256):
            await asyncio.gather(answer(one, length), answer(two, length + 200))

        # Much is asked of the reranker, little of the embedder: a worker moves, and no row of either fails.
        stop = asyncio.Event()
        jobs = [asyncio.create_task(load(two, 512, stop)) for _ in range(16)]
        jobs += [asyncio.create_task(load(one, 16, stop))]

        async def moved() -> bool:
            return len(await of(served, "reranker")) == 2

        await until(moved, "a worker that moves", timeout_s=60)
        assert len(await of(served, "embedder")) == 1
        await asyncio.sleep(0.5)
        stop.set()
        assert min(await asyncio.gather(*jobs)) > 5
        plans = [plan for plan in served.events("plan") if plan["moved"]]
        assert plans[-1]["after"] == [1, 2]
        asked = plans[-1]["demand_by_model"]
        assert list(asked) == ["embedder", "reranker"]
        assert min(asked.values()) > 0
        first, second = (await asyncio.to_thread(control, served))["models"]
        assert [first["runtimes"][0]["name"], second["runtimes"][0]["name"]] == ["embedder_bundle", "reranker_bundle"]

        # The only worker of the embedder dies: one of the reranker's stands in until it is back.
        alone = (await of(served, "embedder"))[0]
        pids = sorted(tritons(served))
        os.kill(pids[int(alone.removeprefix("w"))], signal.SIGKILL)
        await until(lambda: served.events("worker_restarted"), "a restart")
        await asyncio.wait_for(patient(one), 40)
        await asyncio.gather(answer(two, 300), answer(one, 30))
        await served.stop()


async def patient(client: AsyncClient) -> None:
    """An answer, of whoever serves."""
    while True:
        try:
            await answer(client, 16)
            return
        except Exception:  # refused while none serves, as the deadline of a request is 5 s
            await asyncio.sleep(0.1)


def test_what_each_gets_is_checked_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dedicated(tmp_path)
    check = ["config", "check", str(tmp_path / "serve.toml")]
    assert main([*check, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["workers"] == 3
    assert told["instances"] == {"embedder_bundle": 2, "reranker_bundle": 1}
    assert "on 2 workers, reranker" in told["serves"]
    text = (tmp_path / "serve.toml").read_text()
    endpoints = 'kind = "endpoints"\nendpoints = ["a:1", "b:1", "c:1"]\n'
    for accepted in (("[workers]\n", f"[workers]\n{endpoints}"), ("[control]\n", "[control]\nreallocate = false\n")):
        (tmp_path / "serve.toml").write_text(text.replace(*accepted))
        assert main(check) == 0
    assert "as configured" in capsys.readouterr().out
    for change, message in (
        (("slo_ms = 500\n", 'slo_ms = 500\nlengths = "nonsense"\n'), "lengths of model 'embedder': "),
        (("[workers]\n", "[deployment]\ndynamic = 1\n[workers]\n"), "deployment.dynamic goes with one model"),
        (("workers = 1\n", ""), "model.workers is missing: other models have workers of their own"),
        (("[workers]\n", "[workers]\ncount = 2\n"), "model.workers is 2 + 1 by model, but [workers] has 2 worker(s)"),
    ):
        (tmp_path / "serve.toml").write_text(text.replace(*change))
        assert main(check) == 2
        assert message in capsys.readouterr().err
