"""Makes the package's data file of published tables from a collection of them.

    python -m benchmarks.papers.arlo.published $ARLO_TRACES/latency/bert_tensorrt_demo.csv \\
        > simulator/data/bert_tensorrt_published.json
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

from arlo.errors import ConfigError
from arlo.simulator.profiles.tables import PUBLISHED, SLO_MS


def derive(path: Path) -> dict[str, Any]:
    """The data file's content from the collected table (columns gpu, model, precision, engine, batch, seq_len,
    latency_ms, source, note): the newest release of each GPU, model and precision without a note."""
    newest: dict[str, tuple[tuple[int, ...], dict[str, str], dict[int, dict[int, float]]]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["note"] or row["model"] not in SLO_MS:
                continue
            name = f"{row['model']} {row['gpu'].split('(')[0].removeprefix('NVIDIA')} {row['precision']}"
            name = "-".join(name.lower().split())
            match = re.search(r"release/([\d.]+)@", row["source"])
            if match is None:
                raise ConfigError(f"{path}: no release in the source {row['source']!r}")
            release = tuple(int(part) for part in match[1].split("."))
            if name not in newest or release > newest[name][0]:
                newest[name] = (release, row, {})
            if release == newest[name][0]:
                newest[name][2].setdefault(int(row["batch"]), {})[int(row["seq_len"])] = float(row["latency_ms"])
    return {
        "source": "demo/BERT/README.md of github.com/NVIDIA/TensorRT, lengths 128 and 384, milliseconds (mean)",
        "licence": "Apache-2.0, (c) NVIDIA CORPORATION",
        "tables": [
            {
                "name": name,
                "gpu": row["gpu"],
                "model": row["model"],
                "precision": row["precision"],
                "engine": row["engine"],
                "source": row["source"],
                "latency_ms": {
                    str(batch): [at[length] for length in PUBLISHED]
                    for batch, at in sorted(rows.items())
                    if set(at) >= set(PUBLISHED)
                },
            }
            for name, (_, row, rows) in sorted(newest.items())
        ],
    }


def to_json(content: dict[str, Any]) -> str:
    """The data file's text: one table a line, so that a change shows as one."""
    rows = ",\n".join("  " + json.dumps(table) for table in content["tables"])
    head = json.dumps({key: value for key, value in content.items() if key != "tables"})
    return f'{head[:-1]}, "tables": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    sys.stdout.write(to_json(derive(Path(sys.argv[1]))))
