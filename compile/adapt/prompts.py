"""Prompts: tokens that are not in the text, trained for a task while the body stays as it is (VPT, arXiv 2203.12119;
OTAS, arXiv 2401.05031, section III-B). They cost time and may gain accuracy.

Two ways: `accumulate` adds `count` prompts before each layer, where they stay, so that the last one computes layers x
count more tokens; this fits OTAS's figures. `prefix` gives each layer keys and values only, which only attention
reads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.schedule import multiplications
from arlo.compile.adapt.measure import padded
from arlo.compile.adapt.merge import attention, embedded, pool_merged
from arlo.compile.adapt.variant import Head
from arlo.compile.original import load_original
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import SourceModel

if TYPE_CHECKING:
    import torch

Way = Literal["prefix", "accumulate"]
WAYS: tuple[Way, ...] = get_args(Way)
BATCH, RATE = 32, 2e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Prompts:
    """Trained prompts [layers, count, width], and the head trained with them."""

    values: NDArray[np.float32]
    head: Head


def prompted_work(length: int, layers: int, count: int, way: Way, *, width: int) -> float:
    """Multiply-adds of the layers for one row; keys and values of a prefix are constants."""
    if way == "accumulate":
        return multiplications(length, layers, count, width=width)
    each = 12 * length * width**2 + 2 * length * (length + count) * width
    return float(layers * each)


def prompted_body(body: Any, values: Any, way: Way) -> Any:
    """A torch module from ids, mask and (where the body has them) types [rows, tokens], and `task` [rows, 1], to
    `hidden` [rows, tokens, width] and `size` [rows, tokens], the mask: of the row's own tokens alone.

    body: a loaded transformers encoder of one of merge.FAMILIES. values: a parameter [tasks, layers, count, width];
    without `task` all rows are of the first.
    """
    import torch

    class Prompted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body
            self.values = values

        def forward(
            self,
            ids: torch.Tensor,
            mask: torch.Tensor,
            types: torch.Tensor | None = None,
            task: torch.Tensor | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = embedded(self.body, ids, types)
            own, size = ids.shape[1], mask.to(hidden.dtype)
            more = torch.ones_like(size[:, :1]).expand(-1, self.values.shape[2])
            for number, layer in enumerate(self.body.encoder.layer):
                of_layer = self.values[:, number]
                prompts = of_layer[:1].expand(hidden.shape[0], -1, -1) if task is None else of_layer[task[:, 0]]
                read, seen = torch.cat([hidden, prompts], 1), torch.cat([size, more], 1)
                if way == "accumulate":
                    hidden, size = read, seen
                hidden, _ = attention(layer, hidden, seen, read)
                hidden = layer.output(layer.intermediate(hidden), hidden)
            return hidden[:, :own], size[:, :own]

    return Prompted().eval()


def train_prompts(
    model: SourceModel,
    rows: Sequence[tuple[int, ...]],
    classes: NDArray[np.int64],
    head: Head,
    *,
    count: int,
    way: Way,
    epochs: int,
    seed: int = 0,
) -> Prompts:
    """Prompts and head for labelled rows, the body frozen: AdamW, batches of 32 rows of like lengths.

    head: its initial weights; prompts start uniform, as in VPT.
    """
    with known_noise_silenced():
        import torch

        original = load_original(model, attention="eager")
    body = getattr(original, original.base_model_prefix, original)
    for parameter in body.parameters():
        parameter.requires_grad_(False)
    generator, width = torch.Generator().manual_seed(seed), int(body.config.hidden_size)
    bound = math.sqrt(6 / (2 * width))
    drawn = torch.rand(1, len(body.encoder.layer), count, width, generator=generator)  # of this one task
    values = torch.nn.Parameter((2 * drawn - 1) * bound)
    linear = torch.nn.Linear(head.weight.shape[1], head.weight.shape[0])
    linear.weight.data, linear.bias.data = torch.from_numpy(head.weight.copy()), torch.from_numpy(head.bias.copy())
    prompted = prompted_body(body, values, way)
    optimizer = torch.optim.AdamW([values, *linear.parameters()], lr=RATE)
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    steps = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs * len(batches))
    for _ in range(epochs):
        for number in torch.randperm(len(batches), generator=generator).tolist():
            chosen = batches[number]
            given = padded(model.inputs, [rows[at] for at in chosen], max(len(rows[at]) for at in chosen))
            named = {name: torch.from_numpy(array) for name, array in given.items()}
            hidden, size = prompted(named["input_ids"], named["attention_mask"], named.get("token_type_ids"))
            pooled = pool_merged(hidden, size, model.pooling, normalize=model.normalize)
            loss = torch.nn.functional.cross_entropy(linear(pooled), torch.from_numpy(classes[chosen]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps.step()
    trained = Head(head.labels, linear.weight.detach().numpy().copy(), linear.bias.detach().numpy().copy())
    return Prompts(values.detach().numpy()[0].copy(), trained)
