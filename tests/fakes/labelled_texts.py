"""Labelled texts of two classes that their words tell apart, as `arlo adapt` and `arlo adapt task add` take them."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = (["red", "house", "tree"], ["seven", "run", "fast"])


def write_labelled_texts(file: Path, *, texts: int, words: int) -> Path:
    """JSON lines of so many texts, labelled `a` and `b` in turn, of one to `words` words."""
    said = [" ".join(WORDS[i % 2][(i + j) % 3] for j in range(1 + i % words)) for i in range(texts)]
    lines = [{"text": text, "label": "ab"[i % 2], "group": str(i)} for i, text in enumerate(said)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
