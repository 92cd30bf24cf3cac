"""An encoder that merges tokens between attention and MLP of every layer, in torch, for one static length.

Token merging (ToMe, arXiv 2210.09461; OTAS, arXiv 2401.05031, sections II-C and III-B), with what text needs:

* padding goes first: two padding tokens are always the most alike, and a padding token never meets a real one, so a
  short row loses nothing while there is padding;
* the first token and the last one, which heads and the model read, are neither merged nor merged into;
* a token's answer is that of the token it was merged into (`Merging.unmerged`): each layer records where its tokens
  went, so that every token knows its place among the remaining ones;
* a token's size is the number of tokens it stands for, 0 for padding: attention adds its logarithm to the logits of the
  key (which also serves as the mask), and mean pooling weighs by it.

Shapes are static and operators plain (TopK, GatherElements, MatMul), so every engine takes the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from arlo.errors import CompileError

if TYPE_CHECKING:
    import torch

FAMILIES = ("bert", "roberta", "electra", "xlm-roberta", "camembert")  # absolute positions, layers alike
PROTECTED = 2  # the first token and the last
_ALIKE, _NEVER = 4.0, -4.0  # beyond every cosine
_TIE = 1e-6


class Step(NamedTuple):
    """Which tokens of a layer were merged: `source` [rows, merged] among the even ones, `target` among the odd ones."""

    source: torch.Tensor
    target: torch.Tensor

    def places(self, tokens: int) -> torch.Tensor:
        """The place of each of the layer's tokens after the merge, [rows, tokens]."""
        import torch

        even, merged = (tokens + 1) // 2, self.source.shape[1]
        left = even - merged  # even ones that stay, ahead of all odd ones
        at = torch.arange(even, device=self.source.device).reshape(1, -1, 1)
        source = self.source.unsqueeze(1)
        gone = (source == at).to(torch.int64)  # [rows, even, merged]
        stays = at.squeeze(-1) - (source < at).to(torch.int64).sum(-1)
        goes = (gone * (self.target.unsqueeze(1) + left)).sum(-1)
        is_gone = gone.sum(-1)
        first = is_gone * goes + (1 - is_gone) * stays
        second = (torch.arange(tokens // 2, device=first.device) + left).unsqueeze(0).expand(first.shape[0], -1)
        order = torch.tensor([p // 2 if p % 2 == 0 else even + p // 2 for p in range(tokens)], device=first.device)
        return torch.cat([first, second], 1)[:, order]


def merge_tokens(
    hidden: torch.Tensor, metric: torch.Tensor, size: torch.Tensor, kept: torch.Tensor, merged: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Step]:
    """Merge `merged` tokens of each row away.

    hidden: [rows, tokens, width]; metric: [rows, tokens, dim], the vectors compared; size: [rows, tokens], 0 for
    padding; kept: [rows, tokens], above 0 for tokens left alone. Returns hidden, size and kept for tokens - merged,
    remaining even tokens before odd ones, and the merge itself. Among equals, the token at the lower position goes.
    """
    import torch

    tokens, width = hidden.shape[1:]
    metric = torch.nn.functional.normalize(metric, dim=-1)
    even, odd = slice(0, None, 2), slice(1, None, 2)
    scores = metric[:, even] @ metric[:, odd].transpose(1, 2)
    padding = (size == 0).to(hidden.dtype)
    both = padding[:, even].unsqueeze(2) * padding[:, odd].unsqueeze(1)
    one = padding[:, even].unsqueeze(2) + padding[:, odd].unsqueeze(1) - 2 * both
    left = torch.clamp(kept[:, even].unsqueeze(2) + kept[:, odd].unsqueeze(1), max=1.0)
    never = torch.clamp(one + left, max=1.0)
    scores = scores * (1 - both) * (1 - never) + _ALIKE * both + _NEVER * never
    best, target = scores.max(-1)
    # Ties go by position, independent of an engine's TopK: so padding goes in order.
    ranked = best - _TIE * torch.arange(best.shape[1], device=hidden.device).to(hidden.dtype)
    order = torch.topk(ranked, ranked.shape[1], dim=-1).indices
    source, rest = order[:, :merged], order[:, merged:]
    rest = torch.topk(rest, rest.shape[1], dim=-1, largest=False).values
    target = torch.gather(target, 1, source)
    # [rows, odd tokens, merged]: a product with it adds each source to its target.
    places = torch.arange(tokens // 2, device=hidden.device).reshape(1, -1, 1)
    adds = (target.unsqueeze(1) == places).to(hidden.dtype)

    def pick(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.gather(values, 1, index.unsqueeze(-1).expand(-1, -1, width))

    weighted = hidden * size.unsqueeze(-1)
    total = size[:, odd] + (adds @ torch.gather(size[:, even], 1, source).unsqueeze(-1)).squeeze(-1)
    sums = weighted[:, odd] + adds @ pick(weighted[:, even], source)
    real = (total > 0).to(hidden.dtype).unsqueeze(-1)
    means = real * sums / torch.clamp(total, min=1.0).unsqueeze(-1) + (1 - real) * hidden[:, odd]
    return (
        torch.cat([pick(hidden[:, even], rest), means], 1),
        torch.cat([torch.gather(size[:, even], 1, rest), total], 1),
        torch.cat([torch.gather(kept[:, even], 1, rest), kept[:, odd]], 1),
        Step(source, target),
    )


def check_layers(body: Any, schedule: Sequence[int]) -> None:
    """Raise CompileError when the schedule has another number of layers."""
    layers = body.encoder.layer
    if len(layers) != len(schedule):
        raise CompileError(f"adapt: a schedule of {len(schedule)} layers for a model of {len(layers)}")


def merging_body(body: Any, schedule: Sequence[int]) -> Any:
    """A torch module from ids, mask and (where the body has them) types [rows, tokens] to `hidden` [rows, left, width]
    and `size` [rows, left].

    body: a loaded transformers encoder of one of FAMILIES. schedule: tokens that each layer merges away, [layers];
    with zeros only it computes what the body computes. CompileError when the schedule has another number of layers.
    """
    import torch

    check_layers(body, schedule)

    class Merging(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
            hidden, size, _ = self._run(*given, follow=False)
            return hidden, size

        def unmerged(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
            """`hidden` as from forward, and the place of each token in it, [rows, tokens]; see `spread`."""
            hidden, _, places = self._run(*given, follow=True)
            return hidden, places

        def _run(
            self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None = None, *, follow: bool
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            hidden = embedded(self.body, ids, types)
            size = mask.to(hidden.dtype)
            places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
            last = mask.sum(1, keepdim=True) - 1
            kept = ((places == 0) | (places == last)).to(hidden.dtype)
            at = places.expand(ids.shape[0], -1)  # of each token
            for layer, merged in zip(self.body.encoder.layer, schedule, strict=True):
                hidden, keys = attention(layer, hidden, size)
                if merged:
                    tokens = hidden.shape[1]
                    hidden, size, kept, step = merge_tokens(hidden, keys, size, kept, merged)
                    at = torch.gather(step.places(tokens), 1, at) if follow else at
                hidden = layer.output(layer.intermediate(hidden), hidden)
            return hidden, size, at

    return Merging().eval()


def spread(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Values of the remaining tokens, [rows, left, width], spread over all tokens: [rows, tokens, width]."""
    import torch

    return torch.gather(values, 1, places.unsqueeze(-1).expand(-1, -1, values.shape[2]))


def embedded(body: Any, ids: torch.Tensor, types: torch.Tensor | None) -> torch.Tensor:
    """Input of the first layer, [rows, tokens, width]."""
    hidden: torch.Tensor = body.embeddings(input_ids=ids, token_type_ids=types)
    return body.embeddings_project(hidden) if hasattr(body, "embeddings_project") else hidden


def attention(
    layer: Any, hidden: torch.Tensor, size: torch.Tensor, read: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention block of a layer: its output for the queries `hidden`, and the mean of its keys over the heads.

    read: [rows, keys, width], the source of keys and values; None: `hidden`. size: [rows, keys], the number of tokens
    that each of them stands for; 0: masked.
    """
    inside = layer.attention.self
    parts = (inside.query, inside.key, inside.value)
    context, keys = attend(parts, inside.attention_head_size, hidden, hidden if read is None else read, size)
    return layer.attention.output(context, hidden), keys


def attend(
    parts: Sequence[Any], head_size: int, hidden: torch.Tensor, read: torch.Tensor, size: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in which a token counts as often as it stands for: its context, and the mean of its keys over the
    heads. parts: the layers that make queries, keys and values."""
    import torch

    query, key, value = (
        part(values).view(*values.shape[:2], -1, head_size).transpose(1, 2)
        for part, values in zip(parts, (hidden, read, read), strict=True)
    )
    floor = torch.finfo(hidden.dtype).min
    bias = torch.log(torch.clamp(size, min=1.0)) + (size == 0).to(hidden.dtype) * floor
    logits = query @ key.transpose(2, 3) / math.sqrt(head_size) + bias[:, None, None, :]
    return (logits.softmax(-1) @ value).transpose(1, 2).reshape(hidden.shape), key.mean(1)


def pool_merged(hidden: torch.Tensor, size: torch.Tensor, modes: Sequence[str], *, normalize: bool) -> torch.Tensor:
    """Pool `hidden` [rows, left, width] to [rows, width * len(modes)], weighting each token by its size."""
    import torch

    pooled = []
    for mode in modes:
        if mode not in ("mean", "cls"):
            raise CompileError(f"adapt: pooling {mode!r} has no meaning for merged tokens: mean and cls have")
        weights = size.unsqueeze(-1)
        pooled.append((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9) if mode == "mean" else hidden[:, 0])
    result = torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0]
    return torch.nn.functional.normalize(result, p=2.0, dim=1) if normalize else result
