"""Tasks on one body from labelled texts to answers on a real Triton: in one batch, by every client, by its own labels;
and a further one while it serves."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray

from arlo.catalog.tasks import NO_CLASS
from arlo.cli.adapted import SERVE, read_adapted, write_adapted
from arlo.client import AsyncClient, Client, InvalidRequestError
from arlo.workers.ports import free_port
from tests.fakes.serving import Serving, arlo, serving
from tests.fakes.tiny_model import write_tiny

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

pytestmark = [pytest.mark.integration, pytest.mark.long]

WORDS = {"a": ["red", "house", "tree"], "b": ["seven", "run", "fast"]}
TEXTS = [
    " ".join(WORDS["ab"[i % 2]][(i + j) % 3] for j in range(3 + i % 12)) + (" it was" if i % 3 else " they are")
    for i in range(120)
]
SOME = ["red", "tree", "house", "run", "fast", "seven"]  # so short that merging takes padding only
TASKS = {"topic": "ab", "tone": "xyz"}  # labels of a text in turn
FURTHER = "pq"
ENDS = (12, 24)  # of length bins, tokens
LONG = TEXTS[2]  # of the second one


def write_data(file: Path, labels: str) -> Path:
    lines = [{"text": text, "label": labels[i % len(labels)], "group": str(i)} for i, text in enumerate(TEXTS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


async def run(*words: str | Path) -> str:
    done = await asyncio.to_thread(arlo, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model")


async def test_tasks_and_a_further_one(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    out, port = tmp_path / "out", free_port("127.0.0.1")
    files = [f"{task}={write_data(tmp_path / f'{task}.jsonl', labels)}" for task, labels in TASKS.items()]
    words = ["adapt", source, "--merge", "0,3", "--length", "24", "--max-batch", "4"]
    words += ["--slo-ms", "2000", "--out", out]
    await run(*words, *(word for file in files for word in ("--data", file)))
    result = read_adapted(out)
    for each in result["variants"]:  # as if merging cost one task much, and helped the other
        fewer = each["tokens"] < 0
        each["by_task"] = {"topic": 0.9 if fewer else 0.4, "tone": 0.4 if fewer else 0.9}
        # And long rows of the former, too.
        by_length = {"topic": (0.9, 0.3) if fewer else (0.4, 0.8), "tone": (0.4, 0.4) if fewer else (0.9, 0.9)}
        each["bins_by_task"] = {
            task: [{"max_length": end, "rows": 10**9, "accuracy": one} for end, one in zip(ENDS, right, strict=True)]
            for task, right in by_length.items()
        }
    write_adapted(result, out)
    config = re.sub(r":800[123]", ":0", SERVE) + f'api_address = "127.0.0.1:{port}"\n'
    (out / "serve.toml").write_text(config + '[control]\nhttp_address = "127.0.0.1:0"\n')
    async with serving(out) as served:
        address, http = served.ready["grpc"], f"http://127.0.0.1:{port}"
        wanted = await asyncio.to_thread(check_clients, address)
        await asyncio.to_thread(check_counts, address)
        check_http(http)
        stop = asyncio.Event()
        stream = asyncio.create_task(keep_asking(address, wanted, stop))
        data = write_data(tmp_path / "mood.jsonl", FURTHER)
        await run("adapt", "task", "add", "mood", out, "--data", data)
        await until_known(served, address)
        await asyncio.to_thread(check_further, address, wanted)
        stop.set()
        assert await stream > 0
        answer = httpx.post(f"{http}/predict", json={"inputs": TEXTS[0], "task": "mood"}, timeout=30)
        assert {each["label"] for each in answer.json()} == set(FURTHER), answer.text
        said = await run("top", "--once", "--model", "model", "--admin", served.ready["admin"], "--json")
        outcomes = json.loads(said)["stats"]["model"]
        assert served.events("tasks_failed") == []
        assert served.events("tasks_added")[0]["tasks"] == ["mood"]
    by_task = {each["of"]: each for each in outcomes["by_task"]}
    assert list(by_task) == ["topic", "tone", "mood"]
    assert all(int(each["in_time"]) + int(each["late"]) > 0 for each in by_task.values())


def check_clients(address: str) -> dict[str, NDArray[np.float32]]:
    """By parameter, by names, by numbers: the same logits for a task; what each task says of the texts comes back."""
    found: dict[str, NDArray[np.float32]] = {}
    some = SOME
    with Client(address, model="model") as client:
        assert dict(client.model_info().tasks) == {task: tuple(labels) for task, labels in TASKS.items()}
        with triton.InferenceServerClient(address) as other:
            for task, labels in TASKS.items():
                found[task] = by_name(other, some, task)
                assert found[task].shape == (6, 32)
                assert (found[task][:, len(labels) :] == NO_CLASS).all()
            assert np.abs(found["topic"][:, :2] - found["tone"][:, :2]).max() > 1e-3
            turns = ["topic", "tone", "tone", "topic", "tone", "topic"]
            mixed = by_names(other, some, turns)
            for row, task in enumerate(turns):
                np.testing.assert_allclose(mixed[row], found[task][row], atol=1e-4)
            for parameters, says in (
                ({"task": "mood"}, "unknown task 'mood' of model 'model'; it has topic, tone"),
                ({}, "model 'model' needs the parameter task, or an input 'task': one of topic, tone"),
            ):
                with pytest.raises(Exception, match=says):
                    by_name(other, some, **parameters)
        rows = [{"input_ids": [1, 20 + i, 30, 3], "task": task} for i, task in enumerate(turns)]
        labels = client.classify(rows)
        assert all(each.label in TASKS[task] for each, task in zip(labels, turns, strict=True))
        alone = [client.classify([row["input_ids"]], parameters={"task": row["task"]})[0] for row in rows]
        assert [each.label for each in alone] == [each.label for each in labels]
        with pytest.raises(InvalidRequestError, match="unknown task 'mood'; there are topic, tone"):
            client.infer({"input_ids": [1, 3], "task": "mood"})
    return found


def check_counts(address: str) -> None:
    """Where nothing presses, a row gets the tokens that its own task is most accurate with, at its own length."""
    outputs = [triton.InferRequestedOutput(name) for name in ("tokens", "accuracy_expected")]
    with triton.InferenceServerClient(address) as client:
        for task, text, tokens, right in (
            ("topic", SOME[0], -3, 0.9),
            ("topic", LONG, 0, 0.8),
            ("tone", SOME[0], 0, 0.9),
            ("tone", LONG, 0, 0.9),
        ):
            answer = client.infer("model", [texts([text])], outputs=outputs, parameters={"task": task})
            assert answer.as_numpy("tokens").tolist() == [tokens], (task, text)
            assert answer.as_numpy("accuracy_expected").tolist() == pytest.approx([right], abs=1e-4)


def texts(some: list[str]) -> triton.InferInput:
    given = triton.InferInput("text", [len(some), 1], "BYTES")
    given.set_data_from_numpy(np.array(some, np.object_)[:, None])
    return given


def by_name(client: triton.InferenceServerClient, some: list[str], task: str | None = None) -> NDArray[np.float32]:
    """All rows of one task."""
    answer = client.infer("model", [texts(some)], parameters={"task": task} if task else None)
    return np.asarray(answer.as_numpy("logits"))


def by_names(client: triton.InferenceServerClient, some: list[str], tasks: list[str]) -> NDArray[np.float32]:
    named = triton.InferInput("task", [len(some), 1], "BYTES")
    named.set_data_from_numpy(np.array(tasks, np.object_)[:, None])
    return np.asarray(client.infer("model", [texts(some), named]).as_numpy("logits"))


def check_http(http: str) -> None:
    """Each task's labels, and no others; what is no task is refused by name."""
    for task, labels in TASKS.items():
        answer = httpx.post(f"{http}/predict", json={"inputs": TEXTS[0], "task": task}, timeout=30)
        assert {each["label"] for each in answer.json()} == set(labels), answer.text
        assert sum(each["score"] for each in answer.json()) == pytest.approx(1)
        answer = httpx.post(f"{http}/classify", json={"model": "model", "input": TEXTS[:2], "task": task}, timeout=30)
        assert [each["num_classes"] for each in answer.json()["data"]] == [len(labels)] * 2, answer.text
        assert all(each["label"] in labels for each in answer.json()["data"])
    for body, says in (({"task": "mood"}, "unknown task 'mood'"), ({}, "needs the parameter task")):
        answer = httpx.post(f"{http}/predict", json={"inputs": TEXTS[0], **body}, timeout=30)
        assert answer.status_code == 422
        assert says in answer.text
        assert "topic, tone" in answer.text
    body = {"inputs": TEXTS[0], "task": "topic"}
    good = httpx.post(f"{http}/predict", json={**body, "utility": 2.5, "min_accuracy": 0}, timeout=30)
    assert good.status_code == 200
    for field, wrong in (("utility", -1), ("utility", "2"), ("min_accuracy", 1.5), ("pin", 3)):
        answer = httpx.post(f"{http}/predict", json={**body, field: wrong}, timeout=30)
        assert (answer.status_code, f"{field} must be" in answer.text) == (422, True), answer.text


async def keep_asking(address: str, wanted: dict[str, NDArray[np.float32]], stop: asyncio.Event) -> int:
    """The old tasks, one request after another of each, until `stop`: all are answered, and as before."""
    asked = 0
    async with AsyncClient(address, model="model", timeout_s=60) as client:

        async def of(task: str) -> None:
            nonlocal asked
            while not stop.is_set():
                row = {"input_ids": [1, 20, 30, 40, 3], "task": task}
                result = await client.infer(row, outputs=["logits"])
                assert result["logits"].shape == wanted[task][0].shape
                assert (result["logits"] > NO_CLASS / 2).sum() == len(TASKS[task])
                asked += 1

        await asyncio.gather(*(of(task) for task in TASKS for _ in range(2)))
    return asked


async def until_known(served: Serving, address: str) -> None:
    """Until the gateway knows the further task."""
    async with asyncio.timeout(120):
        while True:
            with Client(address, model="model") as client:
                if "mood" in await asyncio.to_thread(lambda: client.model_info().tasks):
                    return
            assert served.process.returncode is None
            await asyncio.sleep(0.2)


def check_further(address: str, wanted: dict[str, NDArray[np.float32]]) -> None:
    """It has its own labels, by the number behind the others; those say what they said."""
    with triton.InferenceServerClient(address) as client:
        said = by_name(client, SOME, "mood")
        assert ((said > NO_CLASS / 2).sum(1) == len(FURTHER)).all()
        for task, before in wanted.items():
            np.testing.assert_allclose(by_name(client, SOME, task), before, atol=1e-4)
