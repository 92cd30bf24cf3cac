"""Facets of Debian packages (debtags) as a task, and one body with a head for all of them.

What a program's interface is, and what it is for, stands in the `Tag` field of the lists that
benchmarks/cascade/sections.py reads. Only packages with one tag of a facet count for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arlo.compile.cache import Cache, Entry, tool_versions
from arlo.compile.steps.resolve import demo_model_path
from arlo.errors import ConfigError
from benchmarks.cascade.cached import open_cache
from benchmarks.cascade.examples import Example, split_of
from benchmarks.cascade.sections import lists_of, read_sections, stanzas, text_of
from benchmarks.cascade.train import Recipe, batches_of, cut, encode, optimizer_of, tensors, write_model

NAME = "facets"
INTERFACE = {
    "x11": "graphical", "graphical": "graphical", "3d": "graphical", "commandline": "commandline", "daemon": "daemon",
    "text-mode": "text-mode", "web": "web",
}  # fmt: skip
USES = (
    "analysing", "checking", "configuring", "converting", "editing", "gameplaying", "learning", "monitor", "organizing",
    "playing", "searching", "storing", "viewing",
)  # fmt: skip
# Sections of programs, of which the facets are told.
SECTIONS = (
    "admin", "comm", "database", "editors", "electronics", "games", "gnome", "graphics", "hamradio", "kde", "mail",
    "math", "net", "news", "science", "sound", "text", "utils", "video", "web", "x11",
)  # fmt: skip
LABELS = tuple(sorted({f"interface::{name}" for name in INTERFACE.values()} | {f"use::{name}" for name in USES}))
FACETS = ("interface", "use")
VERSION = 1  # of the data and the training, in the cache's key
WORDS = 60  # of a text that is told: at most 128 tokens but for a few, which are cut shorter


def slices() -> dict[str, tuple[int, int]]:
    """Where the labels of each facet stand among all: [from, to)."""
    found = {}
    for facet in FACETS:
        mine = [n for n, label in enumerate(LABELS) if label.startswith(f"{facet}::")]
        found[facet] = (mine[0], mine[-1] + 1)
    return found


def facets_of(tags: str) -> dict[str, str]:
    """The one tag of each facet, `facet::tag`; a facet with several is left out.

    tags: the field `Tag`: `facet::tag, ...`."""
    pairs = [tag.strip().split("::", 1) for tag in tags.replace("\n", " ").split(",") if "::" in tag]
    said: dict[str, set[str]] = {facet: set() for facet in FACETS}
    for facet, name in pairs:
        if facet == "interface" and name in INTERFACE:
            said[facet].add(INTERFACE[name])
        elif facet == "use" and name in USES:
            said[facet].add(name)
    return {facet: f"{facet}::{min(names)}" for facet, names in said.items() if len(names) == 1}


def data_step(root: Path) -> Entry:
    """Entry with `SPLIT.jsonl`: {"text", "label" (the section), "group", "facets"} of every package of `sections`."""
    cache = open_cache(root)
    lists = lists_of(root / "cascade" / "archives" / "lists", refresh=False)
    hashes = [cache.hash(path) for path in lists]

    def make(folder: Path) -> dict[str, Any]:
        packages, translations = map(text_of, lists)
        tags: dict[str, str] = {}
        for each in stanzas(packages):
            tags.setdefault((each.get("Source") or each["Package"]).partition(" ")[0], each.get("Tag", ""))
        rows: dict[str, list[str]] = {name: [] for name in ("train", "fit", "select", "test")}
        for example in read_sections(packages, translations):
            one = {
                "text": " ".join(example.text.split()[:WORDS]),
                "label": example.label,
                "group": example.group,
                "facets": facets_of(tags.get(example.group, "")),
            }
            rows[split_of(example.group)].append(json.dumps(one))
        for name, lines in rows.items():
            (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in sorted(lines, key=hash_of)))
        return {"rows": {name: len(lines) for name, lines in rows.items()}}

    parts = {"lists": hashes, "version": VERSION, "labels": LABELS, "words": WORDS}
    return cache.step("flow-facets", parts, make)


def hash_of(line: str) -> str:
    """Of a line: an order that is a sample of the whole from its start."""
    import hashlib

    return hashlib.sha256(line.encode()).hexdigest()


def read(entry: Entry, split: str) -> list[dict[str, Any]]:
    """The rows of a split."""
    return [json.loads(line) for line in (entry.folder / f"{split}.jsonl").read_text().splitlines()]


def model_step(cache: Cache, data: Entry, depth: int, say: Callable[[str], None]) -> Entry:
    """Entry with a model folder; meta: `accuracy` of each facet on the split select, `rows` that it was trained on."""
    recipe = Recipe(depth=depth, rows=0, max_tokens=128, encoder_rate=3e-4)
    source = demo_model_path()
    parts = {
        "data": data.key,
        "depth": depth,
        "model": cache.hash(source / "model.safetensors"),
        "tools": tool_versions("torch", "transformers"),
        "version": VERSION,
    }

    def make(folder: Path) -> dict[str, Any]:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(recipe.seed)
        train = [one for one in read(data, "train") if one["facets"]]
        model = cut(source, depth, len(LABELS), recipe.dropout)
        batches = list(batches_of(_encoded(source, train, recipe.max_tokens), recipe.batch, seed=recipe.seed))
        optimizer, schedule = optimizer_of(model, recipe, len(batches))
        model.train()
        for number, batch in enumerate(batches):
            _loss(model(*tensors(batch)), [train[at]["facets"] for _, at in batch]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            if number % 20 == 0:
                say(f"batch {number} of {len(batches)}")
        accuracy = _accuracy(model, source, read(data, "select"), recipe.max_tokens)
        write_model(model, source, LABELS, folder)
        return {"accuracy": accuracy, "rows": len(train)}

    return cache.step("flow-facets-model", parts, make)


def _encoded(source: Path, rows: Sequence[dict[str, Any]], max_tokens: int) -> list[tuple[list[int], int]]:
    """Token ids, and the number of the row."""
    texts = [Example(one["text"], str(at), "") for at, one in enumerate(rows)]
    return encode(source, texts, [str(at) for at in range(len(rows))], max_tokens)


def _loss(logits: Any, facets: Sequence[dict[str, str]]) -> Any:
    """Of each facet over its own labels, of the rows that have it."""
    import torch

    losses = []
    for facet, (start, end) in slices().items():
        mine = [i for i, one in enumerate(facets) if facet in one]
        if mine:
            wanted = torch.tensor([LABELS.index(facets[i][facet]) - start for i in mine])
            losses.append(torch.nn.functional.cross_entropy(logits[mine, start:end], wanted))
    return torch.stack(losses).sum()


def _accuracy(model: Any, source: Path, rows: Sequence[dict[str, Any]], max_tokens: int) -> dict[str, float]:
    import torch

    model.eval()
    known = [one for one in rows if one["facets"]]
    right, all_ = Counter[str](), Counter[str]()
    encoded = _encoded(source, known, max_tokens)
    with torch.inference_mode():
        for start in range(0, len(encoded), 64):
            batch = encoded[start : start + 64]
            for logits, (_, at) in zip(model(*tensors(batch)).numpy(), batch, strict=True):
                for facet, good in told_right(logits, known[at]["facets"]).items():
                    right[facet] += good
                    all_[facet] += 1
    if not all_:
        raise ConfigError("the lists of packages have no tags: facets cannot be learned from them")
    return {facet: right[facet] / all_[facet] for facet in FACETS}


def told_right(logits: Any, facets: dict[str, str]) -> dict[str, bool]:
    """Of each facet that a package has one tag of, whether the head's best label is that one."""
    found = {}
    for facet, wanted in facets.items():
        start, end = slices()[facet]
        found[facet] = LABELS[start + int(logits[start:end].argmax())] == wanted
    return found
