"""A vision transformer from a folder to answers: `arlo compile`, `arlo serve`, real Triton; and, adapted, at several
token counts as one model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray

from arlo.client import AsyncClient, Client, InvalidRequestError
from arlo.workers.ports import free_port
from tests.fakes.serving import PORTS, arlo, serving

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.integration, pytest.mark.long]

SIDE = 56
SHAPE = (3, SIDE, SIDE)
SERVE = PORTS


def pictures(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Noise on one of two grounds, which is the class."""
    draws = np.random.default_rng(seed)
    classes = draws.integers(0, 2, count)
    noise = draws.standard_normal((count, *SHAPE), np.float32)
    return noise + (2.0 * classes - 1)[:, None, None, None].astype(np.float32), classes


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A small ViT of random weights, and the repository that was compiled from its folder."""
    root = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(3)
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=SIDE,
        patch_size=14, id2label={0: "night", 1: "day", 2: "neither"},
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(root / "vit")
    done = arlo("compile", root / "vit", "--out", root / "repo", "--name", "vit", "--max-batch", "4")
    assert done.returncode == 0, done.stderr
    return model, root / "repo"


async def test_a_classifier_of_pictures(classifier: tuple[Any, Path], tmp_path: Path) -> None:
    model, repository = classifier
    manifest = json.loads((repository / "arlo.json").read_text())
    assert manifest["inputs"][0]["length_rule"] == "patches:14"
    assert [runtime["max_length"] for runtime in manifest["runtimes"]] == [(SIDE // 14) ** 2 + 1]
    rows, _ = pictures(9, 1)
    with torch.inference_mode():
        wanted = model(pixel_values=torch.from_numpy(rows)).logits.numpy()
    port = free_port("127.0.0.1")
    (tmp_path / "serve.toml").write_text(
        f'[model]\nrepository = "{repository}"\nslo_ms = 2000\n[workers]\ncount = 1\nrun_dir = "run"\n'
        + SERVE.replace("[gateway]", f'[gateway]\napi_address = "127.0.0.1:{port}"')
    )
    async with serving(tmp_path) as served:
        address = served.ready["grpc"]
        await asyncio.to_thread(check_clients, address, rows, wanted)
        await asyncio.to_thread(check_bad, address)
        body = {
            "inputs": [{"name": "pixel_values", "shape": [1, *SHAPE], "datatype": "FP32", "data": rows[0].tolist()}]
        }
        http = f"http://127.0.0.1:{port}"
        answer = httpx.post(f"{http}/v2/models/vit/infer", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["outputs"][0]["data"], wanted[0], rtol=1e-3, atol=1e-4)
        texts = httpx.post(f"{http}/v1/embeddings", json={"model": "vit", "input": [[1, 2]]}, timeout=30)
        assert texts.status_code in (400, 422), texts.text
        await check_many(address, rows, wanted)


def check_clients(address: str, rows: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    """Unchanged tritonclient, and the SDK."""
    with triton.InferenceServerClient(address) as client:
        described = client.get_model_metadata("vit").inputs[0]
        assert (described.datatype, list(described.shape)) == ("FP32", [-1, *SHAPE])
        given = triton.InferInput("pixel_values", list(rows.shape), "FP32")
        given.set_data_from_numpy(rows)
        said = client.infer("vit", [given]).as_numpy("logits")
    np.testing.assert_allclose(said, wanted, rtol=1e-3, atol=1e-4)
    with Client(address, model="vit") as client:
        np.testing.assert_allclose(client.infer(rows[3])["logits"], wanted[3], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(client.infer_batch(rows)["logits"], wanted, rtol=1e-3, atol=1e-4)
        named = client.infer({"pixel_values": rows[2].astype(np.float64)})["logits"]
        np.testing.assert_allclose(named, wanted[2], rtol=1e-3, atol=1e-4)
        with pytest.raises(InvalidRequestError, match="must be of shape"):
            client.infer(rows[:2])
        with pytest.raises(InvalidRequestError, match="must be of shape"):
            client.infer("a text")
        with pytest.raises(InvalidRequestError, match="truncate"):
            client.infer(rows[0], truncate=True)


def check_bad(address: str) -> None:
    """Requests that are wrong are refused by the gateway, with the reason."""
    wrong = {
        "input 'pixel_values' has shape [1, 3, 56]": ("pixel_values", np.zeros((1, 3, 56), np.float32)),
        "input 'pixel_values' has datatype 'FP64'": ("pixel_values", np.zeros((1, *SHAPE), np.float64)),
        "input 'pixel_values' of model 'vit' is missing": ("input_ids", np.zeros((1, 4), np.int64)),
    }
    kinds = {np.float32: "FP32", np.float64: "FP64", np.int64: "INT64"}
    with triton.InferenceServerClient(address) as client:
        for message, (name, array) in wrong.items():
            given = triton.InferInput(name, list(array.shape), kinds[array.dtype.type])
            given.set_data_from_numpy(array)
            with pytest.raises(Exception, match="INVALID_ARGUMENT") as raised:
                client.infer("vit", [given])
            assert message in str(raised.value)


async def check_many(address: str, rows: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    """Rows of many clients share batches, and each gets its own answer; who leaves harms nobody."""
    async with AsyncClient(address, model="vit") as client:
        leaving = [asyncio.create_task(client.infer(rows[0])) for _ in range(8)]
        most = 1
        while most == 1:  # on a busy machine a client may be slower than the worker
            asked = [asyncio.create_task(client.infer(rows[n % len(rows)])) for n in range(60)]
            for each in leaving:
                each.cancel()
            said = await asyncio.gather(*asked)
            for number, answer in enumerate(said):
                np.testing.assert_allclose(answer["logits"], wanted[number % len(rows)], rtol=1e-3, atol=1e-4)
            most = max(answer.timing.batch_rows or 1 for answer in said)
        await asyncio.gather(*leaving, return_exceptions=True)
