"""Step 2, tokenizer: one `tokenizer.json` that turns text into ids, without a length limit.

Input: the source folder. Output: `tokenizer.json`, or none when the folder has no tokenizer (then clients send ids).
Cache key: all files of the folder but weights, options, this code. Check: on odd texts and pairs it gives the ids of
AutoTokenizer.

The tokenizer is the one that AutoTokenizer makes of the folder: tokenizer_config.json, added_tokens.json and
special_tokens_map.json override tokenizer.json. Padding is dropped, because the gateway pads. The truncation length is
dropped as well (the MiniLM folder would silently cut each text to 128 tokens); the truncation side remains if it is
left.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from arlo.compile.cache import Cache, Entry, Hasher, code_version, tool_versions
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.folder import has_tokenizer, small_files
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import CompileError

FILE_NAME = "tokenizer.json"
# A length that no text reaches: the file states the side on which texts are cut, not the limit.
_LEFT = {"direction": "Left", "max_length": 2**31 - 1, "strategy": "LongestFirst", "stride": 0}
_BARE = 2  # tokens that a vocabulary made of nothing has besides the special ones
_TEXTS = (
    "Plain words, a number 1234.5 and punctuation!?",
    "  Two  spaces,\ttabs\nand a line ",
    "\u00c9t\u00e9 na\u00efve co\u00f6perate e\u0301 \u0130stanbul Stra\u00dfe",
    "\u4f60\u597d \u4e16\u754c, \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600 \ufb01ne \u00bd \u200b zero\u00adwidth \ufffd\x07 control",
    "CamelCase ALLCAPS don't can\u2019t http://example.com/a_b?c=d#e",
    "",
)


def tokenizer_step(cache: Cache, hasher: Hasher, model: SourceModel) -> Entry:
    """Entry whose folder holds `tokenizer.json`; its meta is {"found": False} if the source has none.
    CompileError if AutoTokenizer makes none that `tokenizers` can run."""
    folder = model.tokenizer_folder
    found = has_tokenizer(folder) and model.row_length is None
    parts = {
        "files": small_files(folder, hasher) if found else {},
        "lower_case": model.lower_case,
        "options": model.tokenizer_options,
        "tools": tool_versions("tokenizers", "transformers") if found else {},
        "code": code_version("steps/tokenizer"),
    }

    def make(out: Path) -> dict[str, Any]:
        if not found:
            return {"found": False}
        with known_noise_silenced():
            tokenizer = _load(folder, model)
            described = json.loads(tokenizer.backend_tokenizer.to_str())
            described["padding"] = None
            described["truncation"] = _LEFT if tokenizer.truncation_side == "left" else None
            (out / FILE_NAME).write_text(json.dumps(described, ensure_ascii=False) + "\n", encoding="utf-8")
            _check(tokenizer, out / FILE_NAME)
        return {"found": True}

    return cache.step("tokenizer", parts, make)


def _load(folder: Path, model: SourceModel) -> Any:
    """The tokenizer of transformers, which lower-cases where sentence-transformers does."""
    from tokenizers.normalizers import Lowercase, Sequence
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), **{"trust_remote_code": False, **model.tokenizer_options, "local_files_only": True}
        )
    except Exception as error:  # transformers raises many kinds, for the one reason that matters here
        lacks = any(folder.glob("*.model")) and importlib.util.find_spec("sentencepiece") is None
        raise CompileError(
            f"tokenizer: transformers makes none from the files in {folder} ({type(error).__name__}: {error}): "
            + ("pip install sentencepiece, or " if lacks else "")
            + f"save the model with a fast tokenizer ({FILE_NAME})"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None) if tokenizer.is_fast else None
    if backend is None:
        raise CompileError(
            f"tokenizer: {folder} has a slow tokenizer only ({type(tokenizer).__name__}), which the gateway cannot "
            f"run: save the model with a fast one ({FILE_NAME})"
        )
    if backend.get_vocab_size() <= len(tokenizer.added_tokens_encoder) + _BARE:  # transformers makes do without
        raise CompileError(
            f"tokenizer: the files in {folder} hold no vocabulary for a {type(tokenizer).__name__}: copy the whole "
            f"model folder, or save the model with a fast tokenizer ({FILE_NAME})"
        )
    known = backend.normalizer
    # Its stub lacks __iter__.
    parts = list(cast(Iterable[Any], known)) if isinstance(known, Sequence) else [known] * (known is not None)
    if model.lower_case and not any(isinstance(each, Lowercase) for each in parts):
        backend.normalizer = Sequence([Lowercase(), *parts])
    return tokenizer


def _check(tokenizer: Any, path: Path) -> None:
    """Raise CompileError if the file's ids differ from those of transformers, whose code may also change the text."""
    from tokenizers import Tokenizer

    try:
        saved = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise CompileError(f"tokenizer: {path.name} does not load ({error}): copy the model folder again") from error
    marks = [str(token) for token in (*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder)]
    texts = [*_TEXTS, "a".join(f" {mark} {mark}" for mark in marks[:64]), "word" * 200]
    for text in texts:
        if saved.encode(text).ids != tokenizer(text)["input_ids"]:
            break
        pair = tokenizer(text, "and another one")
        encoded = saved.encode(text, "and another one")
        if encoded.ids != pair["input_ids"] or encoded.type_ids != pair.get("token_type_ids", encoded.type_ids):
            break
    else:
        return
    raise CompileError(
        f"tokenizer: {type(tokenizer).__name__} gives other ids than its own {FILE_NAME} for {text[:40]!r}: it does "
        "more than `tokenizers` can run; save the model with a PreTrainedTokenizerFast"
    )
