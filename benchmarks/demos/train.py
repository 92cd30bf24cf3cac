"""A ladder of classifiers: MiniLM cut after some of its layers and fine-tuned, for the stages of cascades.

    python -m benchmarks.demos.train [--data nouns] [--depths 1 2 3 6] [--rows 40000]

Every depth sees the same rows, so that the shallow ones do not starve the deep ones, which learn more slowly. A depth
costs 3 to 17 ms a row on one slow core. Depths are trained in parallel, one core each; a restart takes finished ones
from the cache. Each folder holds an ONNX file, its configuration and its tokenizer:
`arlo compile FOLDER/model.onnx --out repository`.

Recipe: one epoch, AdamW, linear decay after a short warm-up, batches of rows of like lengths; the embeddings, which are
half of the weights, stay as they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.clock import monotonic_s
from arlo.compile.cache import Cache, Entry, link_out, tool_versions
from arlo.compile.pooling import pool_torch
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.spec import ROWS as ROWS_AXIS
from arlo.compile.spec import TOKENS
from arlo.compile.steps.resolve import demo_model_path
from arlo.errors import ArloError
from benchmarks.demos.data import Example, cache_root, labels_of, open_cache, read_split

if TYPE_CHECKING:
    import torch

DEPTHS = (1, 2, 3, 6)
ROWS = 40_000
SEED = 7
# Part of the cache's key instead of the code's hash: raise it when a change alters the models. Training takes a quarter
# of an hour, and most changes here do not.
VERSION = 1
MAX_TOKENS = 128
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_BUCKET = 64  # batches whose rows are sorted by length together
_SAY_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The training parameters of a depth; part of the cache's key."""

    depth: int  # layers
    rows: int  # of the split `train`, from its start
    max_tokens: int = MAX_TOKENS  # texts are cut to this
    batch: int = 32
    encoder_rate: float
    head_rate: float = 1e-2
    warmup: float = 0.05  # share of the steps
    dropout: float = 0.0
    seed: int = SEED


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """The work of one process."""

    recipe: Recipe
    data: Path  # folder of the splits
    cache: Path


def train_step(cache: Cache, data: Path, recipe: Recipe, say: Callable[[str], None]) -> Entry:
    """Entry with the model folder; meta: `rows`, `seconds`, `accuracy` on the splits select and test.

    data: folder with the four splits. say: called with a line of progress every few seconds.
    """
    source = demo_model_path()
    parts = {
        "recipe": dataclasses.asdict(recipe),
        "data": {name: cache.hash(data / f"{name}.jsonl") for name in ("train", "select", "test")},
        "model": cache.hash(source / "model.safetensors"),
        "tools": tool_versions("torch", "transformers"),
        "version": VERSION,
    }
    return cache.step("cascade-model", parts, lambda folder: _train(source, data, recipe, folder, say))


def _train(source: Path, data: Path, recipe: Recipe, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    import torch

    start_s = monotonic_s()
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    everything = read_split(data / "train.jsonl")
    examples, labels = everything[: recipe.rows], labels_of(everything)  # few rows, and the same classes
    model = cut(source, recipe.depth, len(labels), recipe.dropout)
    rows = encode(source, examples, labels, recipe.max_tokens)
    batches = list(batches_of(rows, recipe.batch, seed=recipe.seed))
    optimizer, schedule = optimizer_of(model, recipe, len(batches))
    model.train()
    begun_s = said_s = monotonic_s()
    seen, smooth = 0, 0.0
    for number, batch in enumerate(batches):
        loss = torch.nn.functional.cross_entropy(model(*tensors(batch)), _classes(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        seen += len(batch)
        smooth = loss.item() if number == 0 else 0.98 * smooth + 0.02 * loss.item()
        now_s = monotonic_s()
        if now_s - said_s > _SAY_S:
            said_s = now_s
            left_s = (now_s - begun_s) * (len(rows) / seen - 1)
            say(f"{seen:,} of {len(rows):,} rows, loss {smooth:.3f}, {left_s:.0f} s left")
    accuracy = {}
    for split in ("select", "test"):
        found = encode(source, read_split(data / f"{split}.jsonl"), labels, recipe.max_tokens)
        accuracy[split] = _accuracy(model, found)
    write_model(model, source, labels, folder)
    meta = {"rows": len(rows), "seconds": round(monotonic_s() - start_s, 1), "accuracy": accuracy}
    (folder / "training.json").write_text(json.dumps({"recipe": dataclasses.asdict(recipe)} | meta, indent=2) + "\n")
    return meta


def cut(source: Path, depth: int, classes: int, dropout: float) -> Any:
    """The first layers of MiniLM, the mean of what they give for the real tokens, and a linear layer: a torch module
    from ids and mask [rows, tokens] to logits [rows, classes].

    Not BertForSequenceClassification, which reads the first token: that one learns slowly to gather a whole text in one
    or two layers. With 5,000 rows, one layer reads 45 % of the nouns right in that way and 70 % in this one.
    """
    with known_noise_silenced():
        import torch
        from transformers import BertModel

        bert = BertModel.from_pretrained(
            str(source),
            num_hidden_layers=depth,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            add_pooling_layer=False,
            local_files_only=True,
        )

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert
            self.head = torch.nn.Linear(bert.config.hidden_size, classes)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            logits: torch.Tensor = self.head(pool_torch(hidden, attention_mask, ("mean",), normalize=False))
            return logits

    bert.embeddings.requires_grad_(False)
    return Classifier()


def write_model(model: Any, source: Path, labels: Sequence[str], folder: Path) -> None:
    """Write `model.onnx`, with plain attention, and the configuration and tokenizer that `arlo compile` reads."""
    with known_noise_silenced():
        import torch

        model.eval()
        model.bert.set_attn_implementation("eager")
        config = model.bert.config
        axes: dict[int, Any] = {0: torch.export.Dim(ROWS_AXIS)}
        axes[1] = torch.export.Dim(TOKENS, max=config.max_position_embeddings)
        ids = torch.full((2, 9), 1000)
        program = torch.onnx.export(
            model,
            (ids, torch.ones_like(ids)),
            dynamo=True,
            opset_version=18,
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_shapes=(axes, axes),
            verbose=False,
        )
        assert program is not None
        program.save(str(folder / "model.onnx"), external_data=False)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        config.save_pretrained(str(folder))
    for name in _TOKENIZER:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def optimizer_of(model: Any, recipe: Recipe, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    import torch

    encoder = [weight for weight in model.bert.encoder.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": encoder, "lr": recipe.encoder_rate},
            {"params": model.head.parameters(), "lr": recipe.head_rate},
        ],
        weight_decay=0.01,
    )
    warm = max(1, round(steps * recipe.warmup))

    def rate(step: int) -> float:
        return min((step + 1) / warm, (steps - step) / max(1, steps - warm))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


Encoded = tuple[list[int], int]
"""Token ids, and the number of the class."""


def encode(source: Path, examples: Sequence[Example], labels: Sequence[str], max_tokens: int) -> list[Encoded]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=max_tokens)
    number = {label: index for index, label in enumerate(labels)}
    found = tokenizer.encode_batch([example.text for example in examples])
    return [(each.ids, number.get(example.label, -1)) for each, example in zip(found, examples, strict=True)]


def batches_of(rows: Sequence[Encoded], size: int, *, seed: int) -> Iterator[list[Encoded]]:
    """All rows once, in batches of like lengths: little padding, and an order that is random still."""
    shuffle = random.Random(seed)
    order = list(rows)
    shuffle.shuffle(order)
    for start in range(0, len(order), size * _BUCKET):
        bucket = sorted(order[start : start + size * _BUCKET], key=lambda row: len(row[0]))
        batches = [bucket[at : at + size] for at in range(0, len(bucket), size)]
        shuffle.shuffle(batches)
        yield from batches


def tensors(batch: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [rows, tokens]."""
    import torch

    width = max(len(ids) for ids, _ in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for index, (row, _) in enumerate(batch):
        ids[index, : len(row)], mask[index, : len(row)] = torch.tensor(row), 1
    return ids, mask


def _classes(batch: Sequence[Encoded]) -> torch.Tensor:
    import torch

    return torch.tensor([label for _, label in batch])


def _accuracy(model: Any, rows: Sequence[Encoded], *, size: int = 64) -> float:
    import torch

    model.eval()
    ordered = sorted(rows, key=lambda row: len(row[0]))
    right = 0
    with torch.inference_mode():
        for start in range(0, len(ordered), size):
            batch = ordered[start : start + size]
            right += int((model(*tensors(batch)).argmax(-1) == _classes(batch)).sum())
    return right / len(rows)


def _encoder_rate(depth: int) -> float:
    """The learning rate. In a trial with 5,000 rows, one layer gained 2.5 points by 3e-4 over 1.5e-4."""
    return 3e-4 if depth <= 2 else 2e-4


def train_one(job: Job) -> Entry:
    """Train or find one depth; progress goes to standard error."""
    name = f"{job.recipe.depth} layer{'s' if job.recipe.depth > 1 else ''}"

    def say(text: str) -> None:
        print(f"cascade: {name}: {text}", file=sys.stderr, flush=True)

    return train_step(open_cache(job.cache), job.data, job.recipe, say)


def main() -> int:
    """Train the ladder, link the folders out, print the accuracy of each depth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="nouns", help="data set in <cache>/cascade (default: nouns)")
    parser.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS), help="layers (default: 1 2 3 6)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"to train on (default: {ROWS:,})")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help=f"default: {MAX_TOKENS}")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="depths at a time")
    parser.add_argument("--cache", type=Path, default=cache_root(), help="default: $ARLO_CACHE, or ~/.cache/arlo")
    args = parser.parse_args()
    data = args.cache / "cascade" / args.data
    jobs = [
        Job(
            Recipe(depth=depth, rows=args.rows, max_tokens=args.max_tokens, encoder_rate=_encoder_rate(depth)),
            data,
            args.cache,
        )
        for depth in sorted(set(args.depths), reverse=True)  # the longest first, so that no core waits at the end
    ]
    try:
        read_split(data / "train.jsonl", rows=1)
        # Not forked: torch's threads do not survive that.
        with ProcessPoolExecutor(min(args.jobs, len(jobs)), multiprocessing.get_context("spawn")) as pool:
            entries = list(pool.map(train_one, jobs))
    except ArloError as error:
        print(f"cascade: {error}", file=sys.stderr)
        return 1
    for job, entry in sorted(zip(jobs, entries, strict=True), key=lambda pair: pair[0].recipe.depth):
        suffix = "" if args.rows == ROWS else f"-{args.rows}"
        folder = link_out(entry, args.cache / "cascade" / f"{args.data}-l{job.recipe.depth}{suffix}")
        accuracy = ", ".join(f"{split} {share:.1%}" for split, share in entry.meta["accuracy"].items())
        took = "cached" if entry.cached else f"{entry.meta['seconds']:.0f} s"
        print(f"{args.data}-l{job.recipe.depth}: {entry.meta['rows']:,} rows, {accuracy}, {took} -> {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
