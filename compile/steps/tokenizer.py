"""Step 2, tokenizer: one `tokenizer.json` that turns text into ids, without a length of its own.

Input: the source folder. Output: `tokenizer.json`, or none when the folder has no tokenizer (then clients send ids).
Cache key: the tokenizer files, whether the text is lower-cased first, this code. Check: it loads.

Truncation and padding stored in the file are dropped: the MiniLM folder, for one, would cut every text to 128 tokens
without a word. Cutting is the client's choice, padding the gateway's work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arlo.compile.cache import Cache, Entry, Hasher, code_version, tool_versions
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import CompileError

FILE_NAME = "tokenizer.json"
_PARTS = (FILE_NAME, "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt")


def tokenizer_step(cache: Cache, hasher: Hasher, model: SourceModel) -> Entry:
    """Entry whose folder holds `tokenizer.json`; its meta says {"found": False} when the source has none."""
    folder = model.tokenizer_folder
    files = {name: hasher.file(folder / name) for name in (*_PARTS, "spiece.model") if (folder / name).is_file()}
    parts = {
        "files": files,
        "lower_case": model.lower_case,
        "model_type": model.model_type,
        "tools": tool_versions("tokenizers", *(() if FILE_NAME in files else ("transformers",))),
        "code": code_version("steps/tokenizer"),
    }

    def make(out: Path) -> dict[str, Any]:
        if not files:
            return {"found": False}
        text = _load(folder)
        described = json.loads(text)
        described["truncation"] = described["padding"] = None
        if model.lower_case:
            normalizers = [{"type": "Lowercase"}]
            if described.get("normalizer"):
                normalizers.append(described["normalizer"])
            described["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
        (out / FILE_NAME).write_text(json.dumps(described, ensure_ascii=False) + "\n", encoding="utf-8")
        _check(out / FILE_NAME)
        return {"found": True}

    return cache.step("tokenizer", parts, make)


def _load(folder: Path) -> str:
    if (folder / FILE_NAME).is_file():
        return (folder / FILE_NAME).read_text(encoding="utf-8")
    with known_noise_silenced():
        from transformers import AutoTokenizer

        try:  # builds the fast tokenizer from vocab.txt and the like
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            return str(tokenizer.backend_tokenizer.to_str())
        except Exception as error:  # transformers raises many kinds, for the one reason that matters here
            raise CompileError(
                f"tokenizer: {folder} has no {FILE_NAME} and none can be made from its files ({error}): "
                "save the model with a fast tokenizer"
            ) from error


def _check(path: Path) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise CompileError(f"tokenizer: {path.name} does not load ({error}): copy the model folder again") from error
