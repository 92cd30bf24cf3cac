"""The GPU kit: what encoders and Arlo do on one GPU, measured in minutes on a machine without a network.

    benchmarks/gpu/offline/run.sh 560 --out DIR       every stage in turn: facts, table, mixes, serve, ort
    python -m benchmarks.gpu table --out DIR          one stage
    python -m benchmarks.gpu report DIR               summary, pictures and profiles from the stages' results

Each stage writes DIR/STAGE.json after every cell, so a run that is cut short keeps what it measured.
"""

from typing import Any

Cell = dict[str, Any]  # one measurement: its subject, and figures or an `error`

# layers, width, heads
SHAPES = {"bert-base": (12, 768, 12), "bert-large": (24, 1024, 16), "minilm-l6": (6, 384, 12), "tiny": (2, 64, 4)}
SHAPES["bert-base-4"] = (4, 768, 12)  # whose answers are checked
LENGTHS, ROWS = (16, 32, 64, 128, 192, 256, 384, 512), (1, 8, 32)  # of padded batches
BUCKETS = (256, 512, 1024, 2048, 4096, 8192, 16384)  # tokens of packed ones
MIXES = ("tweets", "rag", "mix")
