"""`arlo up`: a model folder becomes a service, whose other runtimes are built and taken up under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from arlo.compile import CompileOptions, compile_model
from arlo.compile.pooling import pool_numpy
from tests.fakes.tiny_model import write_onnx, write_shell, write_tiny, write_tokenizer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

WAIT_S = 270  # a build of the lowest priority, on a machine that others use; below pytest's own limit
WITHOUT = """
import importlib.metadata, importlib.util, sys

GONE = {gone}
find, version = importlib.util.find_spec, importlib.metadata.version


class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


def version_of(name):
    if name in GONE:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)


sys.meta_path.insert(0, Gone())
importlib.metadata.version = version_of
importlib.util.find_spec = lambda name, package=None: None if name in GONE else find(name, package)
"""
TEXT = "which library carries the colour of the sea"


class Up:
    """`arlo up MODEL` in a process of its own. `ready`: what it printed then; events go to the file `log`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process, self.log = process, log
        self.ready: dict[str, Any] = {}

    @classmethod
    async def start(cls, work: Path, model: Path, *words: str, env: Mapping[str, str] | None = None) -> Up:
        log = work / "log"
        command = ["-m", "arlo.cli", "up", str(model), "--port", "0", "--grpc-port", "0", "--workers", "1"]
        command += ["--alias", "text-embedding-3-small", *words]
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, "--cache", str(work / "cache"), "--json", "--log-json",
                env=os.environ | (env or {}), stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        up = cls(process, log)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), WAIT_S)
        assert line, log.read_text()
        up.ready = json.loads(line)
        return up

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [event for event in map(json.loads, lines) if event["event"] == name]

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return await asyncio.wait_for(self.process.wait(), 60)


def running_from(folder: Path) -> list[str]:
    """Command lines of the processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if int(entry.parent.name) != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


def without(work: Path, *packages: str) -> dict[str, str]:
    """The environment of a Python in which these packages are not installed."""
    folder = work / "-".join(("without", *packages))
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT.format(gone=packages))
    return {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


async def up_fails(work: Path, *words: str, env: Mapping[str, str] | None = None) -> tuple[int | None, bytes, str]:
    """Exit code, output and errors of an `arlo up` that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "arlo.cli", "up", *words, "--cache", str(work / "cache"), cwd=work,
        env=os.environ | (env or {}), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    return process.returncode, out, errors.decode()


async def test_it_answers_while_it_builds_and_then_from_the_cache(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny", pooling={"pooling_mode_mean_tokens": True})
    up = await Up.start(tmp_path, model)
    answers = []
    async with httpx.AsyncClient(base_url=f"http://{up.ready['api']}", timeout=30) as client:

        async def ask() -> list[float]:
            answer = await client.post("/v1/embeddings", json={"model": "tiny", "input": TEXT})
            assert answer.status_code == 200, answer.text
            vector: list[float] = answer.json()["data"][0]["embedding"]
            return vector

        async with asyncio.timeout(WAIT_S):
            while not up.events("built"):
                assert not up.events("build_failed") + up.events("change_failed"), up.log.read_text()
                answers += await asyncio.gather(*(ask() for _ in range(4)))
                await asyncio.sleep(0.1)
            answers += [await ask() for _ in range(20)]
        known = await client.post("/v1/embeddings", json={"model": "text-embedding-3-small", "input": TEXT})
        answers.append(known.json()["data"][0]["embedding"])
    for answer in answers:
        np.testing.assert_allclose(answer, answers[0], atol=1e-5)
    assert len(up.events("changed")) == 1
    kept = Path(up.ready["config"]).read_text()
    assert tomllib.loads(kept)["workers"]["threads"] == len(os.sched_getaffinity(0))  # it is the only worker
    code, out, errors = await up_fails(tmp_path, str(model), "--port", "0", "--grpc-port", "0", "--slo-ms", "7")
    assert (code, out) == (2, b"")
    assert "another `arlo up` has this model" in errors
    assert Path(up.ready["config"]).read_text() == kept
    assert await up.stop() == 0
    assert running_from(tmp_path) == []

    # A finished build is served where nothing could be compiled; what is not built is refused.
    env = without(tmp_path, "torch", "transformers", "onnx", "onnxscript")
    again = await Up.start(tmp_path, model, env=env)
    assert again.ready["config"] == up.ready["config"]
    async with httpx.AsyncClient(base_url=f"http://{again.ready['api']}", timeout=30) as client:
        once_more = await client.post("/v1/embeddings", json={"model": "tiny", "input": TEXT})
    np.testing.assert_allclose(once_more.json()["data"][0]["embedding"], answers[0], atol=1e-5)
    assert "compiling" not in again.log.read_text()
    assert await again.stop() == 0
    assert running_from(tmp_path) == []
    code, out, errors = await up_fails(
        tmp_path, str(model), "--name", "other", "--port", "0", "--grpc-port", "0", env=env
    )
    assert (code, out) == (3, b"")
    assert "lacks torch, transformers, onnx, onnxscript: pip install" in errors

    # What is damaged is built again, although the cache of steps holds the same file and its time is the old one.
    weights = next((Path(up.ready["config"]).parent / "repository").glob("*/1/weights.bin"))
    before = weights.stat()
    with weights.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"damaged!" * 8)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    mended = await Up.start(tmp_path, model)
    assert "the build of tiny that was kept is damaged" in mended.log.read_text()
    async with httpx.AsyncClient(base_url=f"http://{mended.ready['api']}", timeout=30) as client:
        once_more = await client.post("/v1/embeddings", json={"model": "tiny", "input": TEXT})
    np.testing.assert_allclose(once_more.json()["data"][0]["embedding"], answers[0], atol=1e-5)
    assert await mended.stop() == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-package-here"], 3, "pip install no-such-package-here"),
        (["./nowhere"], 2, "give the folder of a Hugging Face model"),
        (["./nowhere", "--workers", "0"], 2, "--workers must be at least 1, at most 256"),
        (["./nowhere", "--threads", "0"], 2, "--threads must be at least 1"),
        (["./nowhere", "--slo-ms", "-5"], 2, "--slo-ms must be at least 1"),
        ([""], 2, "MODEL is empty"),
        (["./nowhere", "--alias", ""], 2, "--alias is empty"),
        (["./nowhere", "--port", "70000"], 2, "--port must be at least 0, at most 65535"),
    ],
)
async def test_what_is_wrong_is_said_with_what_to_do(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    code_, out, errors = await up_fails(tmp_path, *words)
    assert (code_, out) == (code, b"")
    assert said in errors
    assert "Traceback" not in errors


async def test_with_torch_one_runtime_is_all_that_is_built(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny", pooling={"pooling_mode_mean_tokens": True})
    vectors = {}
    for engine in ("onnxruntime", "torch"):
        up = await Up.start(tmp_path, model, "--engine", engine)
        async with httpx.AsyncClient(base_url=f"http://{up.ready['api']}", timeout=30) as client:
            answer = await client.post("/v1/embeddings", json={"model": "tiny", "input": [TEXT, f"{TEXT} {TEXT}"]})
        assert answer.status_code == 200, answer.text
        vectors[engine] = np.array([each["embedding"] for each in answer.json()["data"]])
        assert await up.stop() == 0
    np.testing.assert_allclose(vectors["torch"], vectors["onnxruntime"], atol=1e-5)
    assert up.events("built") == []  # nothing is built behind it
    code, _, errors = await up_fails(tmp_path, str(model), "--engine", "torch", "--precision", "fp8")
    assert code == 2
    assert "fp8" in errors


async def test_what_was_compiled_elsewhere_is_served_as_it_is(tmp_path: Path) -> None:
    """Nothing is built and no file of it changes, so that several pods can share a claim."""
    graph = write_onnx(write_shell(tmp_path / "tiny", weights=False) / "model.onnx")
    write_tokenizer(graph.parent)
    repository = tmp_path / "repository"
    compile_model(
        CompileOptions(source=graph.parent, out=repository, lengths=(48,), static=False, cache=tmp_path / "built")
    )
    files = sorted(path for path in repository.rglob("*") if path.is_file())
    kept = {path: path.stat().st_mtime_ns for path in files}
    env = without(tmp_path, "torch", "transformers", "onnx", "onnxscript")
    ups, answers = [], []
    for work in (tmp_path / "first", tmp_path / "second"):
        work.mkdir()
        ups.append(await Up.start(work, repository, "--name", "mine", env=env))
    for up in ups:
        async with httpx.AsyncClient(base_url=f"http://{up.ready['api']}", timeout=30) as client:
            answer = await client.post("/v1/embeddings", json={"model": "mine", "input": TEXT})
        assert answer.status_code == 200, answer.text
        answers.append(answer.json()["data"][0]["embedding"])
        assert "compiling" not in up.log.read_text()
        assert await up.stop() == 0
    assert answers[0] == answers[1]
    assert {path: path.stat().st_mtime_ns for path in files} == kept


async def test_an_onnx_folder_is_served_without_torch(tmp_path: Path) -> None:
    """As optimum and sentence-transformers export it: onnx/model.onnx in the folder of the model, which is pooled."""
    folder = write_tiny(tmp_path / "tiny", pooling={"pooling_mode_mean_tokens": True})
    (folder / "onnx").mkdir()
    graph = write_onnx(folder / "onnx" / "model.onnx")
    env = without(tmp_path, "torch")
    up = await Up.start(tmp_path, folder, env=env)
    async with httpx.AsyncClient(base_url=f"http://{up.ready['api']}", timeout=30) as client:
        async with asyncio.timeout(WAIT_S):
            while not up.events("built"):
                assert not up.events("build_failed") + up.events("change_failed"), up.log.read_text()
                answer = await client.post("/v1/embeddings", json={"model": "tiny", "input": TEXT})
                assert answer.status_code == 200, answer.text
                await asyncio.sleep(0.1)  # the build has the cores
    assert await up.stop() == 0
    assert f"compiling tiny from {graph}" in up.log.read_text()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = np.array([tokenizer.encode(TEXT).ids])
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    (hidden,) = session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    wanted = pool_numpy(hidden[0], ("mean",), normalize=True)
    np.testing.assert_allclose(answer.json()["data"][0]["embedding"], wanted, atol=1e-5)
    # Of weights alone PyTorch makes a graph; what brings it is named.
    graph.unlink()
    code, out, errors = await up_fails(tmp_path, str(folder), "--port", "0", "--grpc-port", "0", env=env)
    assert (code, out) == (3, b"")
    assert "lacks torch: pip install 'arlo-serve[up,compile]' --extra-index-url" in errors
