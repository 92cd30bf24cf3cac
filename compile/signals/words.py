"""Which ids of a tokenizer begin a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from arlo.catalog.words import Words


def words_of(tokenizer: Path | None) -> Words | None:
    """The word rule of a `tokenizer.json`: WordPiece, byte-level BPE, or SentencePiece (BPE or Unigram with Metaspace).
    None without a file, and for other tokenizers, whose ids do not show where words begin."""
    if tokenizer is None:
        return None
    from tokenizers import Tokenizer

    described = json.loads(tokenizer.read_text(encoding="utf-8"))
    model = described["model"]
    vocabulary = Tokenizer.from_file(str(tokenizer)).get_vocab(with_added_tokens=True)
    if model.get("type") == "WordPiece":
        kind, prefix = "wordpiece", model.get("continuing_subword_prefix") or "##"
        begins = {number: not token.startswith(prefix) for token, number in vocabulary.items()}
    else:
        marks = {"ByteLevel": ("byte-level", "Ġ"), "Metaspace": ("metaspace", "▁")}
        found = next((marks[name] for name in _kinds(described) if name in marks), None)
        if found is None:
            return None
        kind, mark = found
        begins = {number: token.startswith(mark) for token, number in vocabulary.items()}
    unknown = _unknown(model)  # an unknown word is a word
    special = {token["id"] for token in described.get("added_tokens", ()) if token["special"]}
    special.discard(vocabulary.get(unknown or "", -1))
    starts = np.zeros(max(vocabulary.values(), default=-1) + 1, np.bool_)
    for number, begin in begins.items():
        starts[number] = begin and number not in special
    if kind != "wordpiece" and unknown in vocabulary:
        starts[vocabulary[unknown]] = False  # it may stand for a part of a word
    return Words.of(kind, starts, sorted(special))


def _kinds(described: dict[str, Any]) -> list[str]:
    """The types of pre-tokenizer and decoder, also within sequences: older files name Metaspace in one of them."""
    parts = []
    for part in (described.get("pre_tokenizer"), described.get("decoder")):
        parts += [part, *(part or {}).get("pretokenizers", ()), *(part or {}).get("decoders", ())]
    return [part["type"] for part in parts if part]


def _unknown(model: dict[str, Any]) -> str | None:
    """The unknown token; Unigram gives its index."""
    place = model.get("unk_id")
    return model.get("unk_token") if place is None else str(model["vocab"][place][0])
