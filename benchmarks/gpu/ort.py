"""Stage `ort`: the ONNX Runtime engine's session by shape, host to host; on CUDA without TF32, as CUDA graphs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from arlo.compile.cache import Cache, Hasher
from arlo.compile.options import CompileOptions
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.spec import GRAPH
from arlo.compile.steps.cleanup import cleanup_step
from arlo.compile.steps.export import export_step
from arlo.compile.steps.resolve import resolve
from arlo.templates.onnxruntime.session import CUDA, Session
from benchmarks.gpu import LENGTHS, SHAPES, Cell
from benchmarks.gpu.bench import EMBEDDING, POSITIONS, SEED, VOCABULARY, Bench

ROWS = (1, 8, 12, 32)


def graph(work: Path, bench: Bench, shape: str) -> Path:
    """The graph of a BERT with drawn weights, as `arlo compile` makes it."""
    from transformers import BertConfig, BertModel

    layers, width, heads = SHAPES[shape]
    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"vocab_size": VOCABULARY, "intermediate_size": 4 * width, "max_position_embeddings": POSITIONS}
    torch.manual_seed(SEED)
    config = BertConfig(**sizes)
    with known_noise_silenced():
        BertModel(config, add_pooling_layer=False).save_pretrained(str(work / "source"))
    hasher = Hasher()
    cache = Cache(work / "cache", hasher)
    model = resolve(CompileOptions(source=work / "source", out=work / "out", name=shape, task="embedding"), hasher)
    return cleanup_step(cache, export_step(cache, model, bench.precision)).folder / GRAPH  # type: ignore[arg-type]


def run(bench: Bench) -> None:
    """Write ort.json; if ONNX Runtime has no CUDA, the only cell is `skipped`, with the reason."""
    if not bench.dry and CUDA not in onnxruntime.get_available_providers():
        bench.found = [{"skipped": f"ONNX Runtime {onnxruntime.__version__} here has no {CUDA}"}]
        bench.save()
        return
    shape, lengths, counts = ("tiny", (16,), (1, 8)) if bench.dry else ("bert-base", LENGTHS, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path = graph(Path(folder), bench, shape)
        session: Session
        for length, rows in ((length, rows) for length in lengths for rows in counts):

            def measure(cell: Cell, length: int = length, rows: int = rows) -> None:
                nonlocal session
                if rows == counts[0]:
                    session = Session(path, device=bench.device, max_rows=counts[-1], lengths=(length,))
                ones = np.ones((rows, length), np.int64)
                tensors = {name: ones * (name != "token_type_ids") for name in session.inputs}
                cell["host_ms"] = bench.time_ms(lambda: session.run([EMBEDDING], tensors), clock=True)
                cell["note"] = session.note

            bench.cell("ort", {"shape": shape, "length": length, "rows": rows}, measure)
