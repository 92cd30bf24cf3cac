"""`arlo fit --target`: the test split sent through a gateway that serves the cascade, compared with the records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.manifest import Point
    from arlo.cascade.records import Data
    from arlo.cascade.study import Study

ROWS = 16  # of a request; the soft rule counts them from 0
CLOSE = 1e-3  # confidences: engines round a row differently when it is batched with others


def compare(
    study: Study, data: Data, point: Point, *, target: str, model: str, tokenizer: Path, seed: int
) -> dict[str, Any]:
    """Compare the gateway's answers to the study's rows at a point, asked for by name: counts of rows as recorded, of
    others by their difference, and of rows reported as degraded. ClientError if it cannot be asked."""
    from arlo.cascade.decide import walk
    from arlo.client import Client

    rows = len(study.row)
    texts = [data.examples[row] for row in study.row]
    played = study.with_pruning(point.prune.alpha)
    wanted = walk(point.all_rules, played.said, study.length, row=np.arange(rows) % ROWS, seed=seed)
    labels = study.cascade.labels
    counts = {"rows": rows, "same": 0, "degraded": 0, "stage": 0, "answer": 0, "confidence": 0}
    with Client(target, model=model, tokenizer=tokenizer) as client:
        if client.model_info().labels != labels:
            raise ConfigError(f"{target} serves another cascade under the name {model!r}: it has other labels")
        for at in range(0, rows, ROWS):
            pairs = [
                each.text if each.text_pair is None else (each.text, each.text_pair) for each in texts[at : at + ROWS]
            ]
            said = client.classify(
                pairs, truncate=True, batch_rows=ROWS, parameters={"cascade": point.name, "cascade_seed": seed}
            )
            for i, one in enumerate(said, at):
                if one.degraded:
                    counts["degraded"] += 1
                elif one.stage != wanted.stage[i]:
                    counts["stage"] += 1
                elif one.label != labels[wanted.answer[i]]:
                    counts["answer"] += 1
                elif abs((one.confidence or 0.0) - wanted.confidence[i]) > CLOSE:
                    counts["confidence"] += 1
                else:
                    counts["same"] += 1
    return counts
