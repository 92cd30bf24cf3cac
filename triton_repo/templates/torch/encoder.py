"""Transformer encoders in torch, over padded rows or over packed ones (rows laid end to end, without padding).

One module for the families BERT, RoBERTa/XLM-R, MPNet, DistilBERT, ELECTRA, ModernBERT and NomicBERT: `Architecture`
holds their differences. It lies next to model.py in a Triton model version and is `arlo.templates.torch.encoder` in the
package. It needs torch and safetensors only.

Packed attention (`varlen_attn` of torch, on CUDA) reads the rows' borders from offsets, as FlashAttention does; on the
CPU attention runs row by row. All other layers work on tokens, regardless of their row.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

FORMAT = 1
CONFIG, WEIGHTS = "model.json", "weights.safetensors"
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_ACTIVATIONS: dict[str, Any] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
_Start = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor, Tensor]]
_Finish = Callable[[Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes of an encoder and what its family does differently. Written to model.json."""

    family: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    intermediate: int
    positions: int  # the longest row
    embedding: int = 0  # width of the embeddings where it differs (ELECTRA); 0: `width`
    position_offset: int = 0  # of the learned positions: RoBERTa's and MPNet's begin behind the padding id
    pad: int = 0  # the padding id; where position_offset is above 0, such tokens are not counted as positions
    learned_positions: bool = True
    relative: bool = False  # a bias for each distance between two tokens (MPNet)
    types: int = 0  # token types; 0: none
    bias: bool = True  # of linear layers
    norm_bias: bool = True
    norm_eps: float = 1e-12
    pre_norm: bool = False  # norms lie before attention and MLP, and one after the last layer (ModernBERT)
    gated: bool = False  # the MLP multiplies its activation by a gate
    activation: str = "gelu"
    rotary: tuple[float, ...] = ()  # base of the rotary positions in each layer; empty: none
    windows: tuple[int, ...] = ()  # tokens that attention reaches to each side, in each layer; 0: all. Empty: all
    pooling: tuple[str, ...] = ()  # of embeddings: cls, mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken
    tail: tuple[str, ...] = ()  # layers behind the pooling, in float32, as `layer_of` reads them
    normalize: bool = False
    # Of a head: `pool` names how a row becomes one vector (cls, mean), or "" for an answer for each token; then layers,
    # each `linear:IN:OUT`, `norm` or an activation.
    head_pool: str = ""
    head: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("sentence_embedding", "last_hidden_state")
    precision: str = "fp32"  # of weights and activations: fp32, fp16 or bf16
    seed: int | None = None  # weights are drawn, as speed does not depend on them; None: from weights.safetensors

    @classmethod
    def read(cls, folder: Path) -> Architecture:
        """Read model.json in `folder`. ValueError if it has another format."""
        raw = json.loads((folder / CONFIG).read_text())
        if raw.pop("format", None) != FORMAT:
            raise ValueError(f"{folder / CONFIG} is not of format {FORMAT}: build the repository again")
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()
        }
        return cls(**fields)

    def write(self, folder: Path) -> None:
        """Write model.json into `folder`."""
        text = json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1)
        (folder / CONFIG).write_text(text + "\n")

    def by_token(self, output: str) -> bool:
        """Whether an output has an answer for each token, else one for each row."""
        spans = ("last_hidden_state", "start_logits", "end_logits")
        return output in spans or bool(self.head and not self.head_pool)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where rows lie in packed tokens."""

    offsets: Tensor  # int32 [rows + 1]; equal neighbours are rows without tokens
    longest: int  # no row has more tokens
    row: Tensor  # int64 [tokens]: the row of each; `rows` behind the last offset
    place: Tensor  # int64 [tokens]: the place of each in its row
    cuts: list[int] | None  # the offsets in Python, on the CPU


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Where tokens belong when rows are pooled."""

    row: Tensor  # int64 [tokens]: the row of each; padding belongs to row number `rows`
    place: Tensor  # int64 [tokens]: the place of each in its row
    first: Tensor  # int64 [rows]: the first token of each row
    last: Tensor  # int64 [rows]

    @classmethod
    def packed(cls, layout: Layout) -> Places:
        """The places of packed rows."""
        borders, last = layout.offsets.to(torch.int64), len(layout.row) - 1
        return cls(layout.row, layout.place, borders[:-1].clamp(max=last), (borders[1:] - 1).clamp(min=0))

    @classmethod
    def padded(cls, rows: int, tokens: int, mask: Tensor | None, device: torch.device) -> Places:
        """The places of rows padded to `tokens`; mask [rows, tokens]: 1 for tokens; None: no padding."""
        at = torch.arange(tokens, device=device)
        row = torch.arange(rows, device=device)[:, None].expand(rows, tokens)
        starts = row[:, 0] * tokens
        if mask is None:
            return cls(row.reshape(-1), at.expand(rows, tokens).reshape(-1), starts, starts + tokens - 1)
        first = mask.to(torch.int32).argmax(1, keepdim=True)
        last = (mask * at).amax(1)
        row = torch.where(mask.bool(), row, rows)
        return cls(row.reshape(-1), (at - first).reshape(-1), starts + first[:, 0], starts + last)


def layout_of(offsets: Tensor, tokens: int, longest: int) -> Layout:
    """The layout of `tokens` tokens; those behind the last offset belong to no row."""
    at = torch.arange(tokens, device=offsets.device)
    row = torch.searchsorted(offsets[1:], at.to(offsets.dtype), right=True)
    place = at - offsets.to(torch.int64)[row]
    return Layout(offsets, longest, row, place, offsets.tolist() if offsets.device.type == "cpu" else None)


class Layer(nn.Module):
    """One layer: `start` up to queries, keys and values; attention by the caller; `finish` the rest."""

    def __init__(self, arch: Architecture, first: bool) -> None:
        super().__init__()
        a, width = arch, arch.width
        self.arch = arch
        self.qkv = nn.Linear(width, 3 * width, bias=a.bias)
        self.out = nn.Linear(width, width, bias=a.bias)
        self.up = nn.Linear(width, a.intermediate * (2 if a.gated else 1), bias=a.bias)
        self.down = nn.Linear(a.intermediate, width, bias=a.bias)
        self.norm1 = nn.Identity() if a.pre_norm and first else _norm(a)
        self.norm2 = _norm(a)
        self.activate: Any = _ACTIVATIONS[a.activation]

    def start(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [..., heads, size] of `x` [..., width]; rotated where `cos` and `sin` are given."""
        qkv = self.qkv(self.norm1(x) if self.arch.pre_norm else x)
        q, k, v = qkv.view(*x.shape[:-1], 3, self.arch.heads, -1).unbind(-3)
        if cos is not None and sin is not None:
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        return q, k, v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [..., width] from its input and the attention's output."""
        x = x + self.out(attended)
        if self.arch.pre_norm:
            return x + self._mlp(self.norm2(x))
        x = self.norm1(x)
        return cast(Tensor, self.norm2(x + self._mlp(x)))

    def _mlp(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if not self.arch.gated:
            return cast(Tensor, self.down(self.activate(x)))
        activated, gate = x.chunk(2, dim=-1)
        return cast(Tensor, self.down(self.activate(activated) * gate))


class Prepacked(nn.Module):
    """A linear layer on the CPU whose float32 weights oneDNN has laid out for itself, with its activation, if any.

    On an AMD EPYC it took 0.44 times as long as torch's own, which calls MKL. oneDNN keeps megabytes for each number of
    tokens that it meets, so it gets CHUNK at a time, and the remainder is padded to a multiple of STEP.
    """

    CHUNK, STEP = 256, 8

    FUSED: Mapping[str, tuple[str, str]] = {
        "": ("none", ""),
        "gelu": ("gelu", "none"),
        "gelu_tanh": ("gelu", "tanh"),
        "relu": ("relu", ""),
        "silu": ("swish", ""),
        "tanh": ("tanh", ""),
    }

    def __init__(self, linear: nn.Linear, activation: str = "") -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = linear.bias
        self._fused = self.FUSED[activation]

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for part in torch.split(x.reshape(-1, x.shape[-1]), self.CHUNK):
            tokens = len(part)
            filled = functional.pad(part, (0, 0, 0, -tokens % self.STEP)) if tokens % self.STEP else part
            parts.append(self._run(filled)[:tokens])
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).view(*x.shape[:-1], -1)

    def _run(self, x: Tensor) -> Tensor:
        kind, algorithm = self._fused
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, kind, [], algorithm))


class Encoder(nn.Module):
    """An encoder with its pooling or head. Use it in inference mode; `packs` says whether rows may be packed."""

    packs = True
    _steps: list[tuple[_Start, _Finish]]

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        width = arch.embedding or arch.width
        self.word = nn.Embedding(arch.vocabulary, width)
        self.position = nn.Embedding(arch.positions + arch.position_offset, width) if arch.learned_positions else None
        self.token_type = nn.Embedding(arch.types, width) if arch.types else None
        self.norm = nn.LayerNorm(width, eps=arch.norm_eps, bias=arch.norm_bias)
        self.project = nn.Linear(width, arch.width) if width != arch.width else nn.Identity()
        self.distance = nn.Embedding(2 * arch.positions - 1, arch.heads) if arch.relative else None
        # To torch the items are just modules.
        self.layers = cast(Sequence[Layer], nn.ModuleList(Layer(arch, index == 0) for index in range(arch.layers)))
        self.last_norm = _norm(arch) if arch.pre_norm else nn.Identity()
        self.head = nn.ModuleList(layer_of(text, arch) for text in arch.head)
        self.tail = nn.Sequential(*map(layer_of, arch.tail))
        self.uncompile_layers()
        self._tables: dict[tuple[torch.device, torch.dtype], dict[float, tuple[Tensor, Tensor]]] = {}

    def compile_layers(self, *, dynamic: bool = True) -> None:
        """Compile each layer's two parts by inductor. Layers are equal, so that one build serves them all."""
        torch._dynamo.config.recompile_limit = 512
        self._steps = [
            (
                torch.compile(layer.start, dynamic=dynamic) if self.arch.rotary or self.arch.pre_norm else layer.start,
                torch.compile(layer.finish, dynamic=dynamic),
            )
            for layer in self.layers
        ]

    def prepack(self) -> None:
        """Lay the weights of linear layers out for this CPU. Only in float32, and where torch has oneDNN."""
        there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if not there or self.word.weight.dtype != torch.float32:
            return
        for layer in self.layers:
            for name in ("qkv", "out", "up", "down"):
                fused = self.arch.activation if name == "up" and not self.arch.gated else ""
                setattr(layer, name, Prepacked(getattr(layer, name), fused))
            if not self.arch.gated:
                layer.activate = _unchanged

    def uncompile_layers(self) -> None:
        """Run the layers as they are written."""
        self._steps = [(layer.start, layer.finish) for layer in self.layers]

    def padded(self, ids: Tensor, mask: Tensor | None, types: Tensor | None = None) -> Tensor:
        """Hidden states [rows, tokens, width] of `ids` [rows, tokens]. mask: 1 for tokens, 0 for padding; None: no
        padding."""
        rows, tokens = ids.shape
        place = torch.arange(tokens, device=ids.device)
        x = self._embed(ids, self._positions(ids, place, None), types)
        biases, rotary = self._biases(tokens, mask, x), self._rotary(x, place)
        for index, (start, finish) in enumerate(self._steps):
            q, k, v = (tensor.transpose(1, 2) for tensor in start(x, *rotary[index]))
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=biases[self._window(index)])
            x = finish(x, attended.transpose(1, 2).reshape(rows, tokens, -1))
        return cast(Tensor, self.last_norm(x))

    def packed(self, ids: Tensor, layout: Layout, types: Tensor | None = None) -> Tensor:
        """Hidden states [tokens, width] of packed `ids` [tokens]; undefined for tokens behind the last offset."""
        place = layout.place.clamp(max=self.arch.positions - 1)
        x = self._embed(ids, self._positions(ids, place, layout), types)
        rotary = self._rotary(x, place)
        for index, (start, finish) in enumerate(self._steps):
            attended = self._attend(*start(x, *rotary[index]), layout, self._window(index))
            x = finish(x, attended.reshape(len(ids), -1))
        return cast(Tensor, self.last_norm(x))

    def answers_padded(self, hidden: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """The outputs by name, float32, of `hidden` [rows, tokens, width]."""
        rows, tokens = hidden.shape[:2]
        places = Places.padded(rows, tokens, mask, hidden.device)
        answers = self._answers(hidden.reshape(rows * tokens, -1), places)
        return {
            name: answer.reshape(rows, tokens, *answer.shape[1:]) if self.arch.by_token(name) else answer
            for name, answer in answers.items()
        }

    def answers_packed(self, hidden: Tensor, layout: Layout, *, tokens: bool = True) -> dict[str, Tensor]:
        """The outputs by name, float32, of `hidden` [tokens, width]: [rows, dims], token-level ones [tokens, dims].
        tokens: False leaves the hidden states themselves out."""
        return self._answers(hidden, Places.packed(layout), tokens=tokens)

    def _answers(self, flat: Tensor, places: Places, *, tokens: bool = True) -> dict[str, Tensor]:
        arch = self.arch
        if not arch.head:
            return embedding(arch, flat, places, self.tail) | ({"last_hidden_state": _wide(flat)} if tokens else {})
        x = pool(arch.head_pool, flat, places).to(flat.dtype) if arch.head_pool else flat
        for layer in self.head:
            x = layer(x)
        x = _wide(x)
        return {name: x if len(arch.outputs) == 1 else x[:, index] for index, name in enumerate(arch.outputs)}

    def _embed(self, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        x = self.word(ids)
        if self.token_type is not None:
            x = x + (self.token_type.weight[0] if types is None else self.token_type(types))
        if self.position is not None:
            x = x + self.position(positions)
        return cast(Tensor, self.project(self.norm(x)))

    def _positions(self, ids: Tensor, place: Tensor, layout: Layout | None) -> Tensor:
        """Indices of the learned positions. With an offset, tokens with the padding id are not counted (RoBERTa)."""
        if not self.arch.position_offset:
            return place
        real = (ids != self.arch.pad).to(torch.int64)
        counted = real.cumsum(-1)
        if layout is not None:
            start = (torch.arange(len(ids), device=ids.device) - layout.place).clamp(min=0)
            counted = counted - (counted - real)[start]
        return (counted.clamp(max=self.arch.positions) * real) + self.arch.position_offset - 1

    def _window(self, index: int) -> int:
        return self.arch.windows[index] if self.arch.windows else 0

    def _biases(self, tokens: int, mask: Tensor | None, x: Tensor) -> dict[int, Tensor | None]:
        """The result of `_bias` for each window."""
        return {
            window: self._bias(tokens, mask, window, x.device)
            for window in {self._window(index) for index in range(self.arch.layers)}
        }

    def _bias(self, tokens: int, mask: Tensor | None, window: int, device: torch.device) -> Tensor | None:
        """Which tokens of a row attend to which, as scaled_dot_product_attention takes it; None: all to all."""
        near = None if mask is None else mask.bool()[:, None, None, :]
        if 0 < window < tokens:
            band = self._band(tokens, window, device)
            # Padding beyond the window of all tokens attends to itself: a row of a softmax without entries is NaN.
            near = band if near is None else band & (near | torch.eye(tokens, dtype=torch.bool, device=device))
        if self.distance is None:
            return near
        bias = self._distances(tokens)
        return bias[None] if near is None else bias.masked_fill(~near, float("-inf"))

    @staticmethod
    def _band(tokens: int, window: int, device: torch.device) -> Tensor:
        at = torch.arange(tokens, device=device)
        return (at[:, None] - at).abs() <= window

    def _distances(self, tokens: int) -> Tensor:
        """The bias [heads, tokens, tokens] of each query for each key."""
        assert self.distance is not None
        at = torch.arange(tokens, device=self.distance.weight.device)
        return self.distance.weight[at - at[:, None] + self.arch.positions - 1].permute(2, 0, 1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, window: int) -> Tensor:
        """Attention within rows, [tokens, heads, size]."""
        if q.is_cuda:
            packs = self.distance is None and q.dtype in (torch.float16, torch.bfloat16)
            return _varlen(q, k, v, layout, window) if packs else self._attend_padded(q, k, v, layout, window)
        assert layout.cuts is not None
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for begin, end in zip(layout.cuts[:-1], layout.cuts[1:], strict=True):
            if end == begin:
                continue
            bias = self._bias(end - begin, None, window, q.device)
            row_q, row_k, row_v = (tensor[begin:end].transpose(0, 1)[None] for tensor in (q, k, v))
            attended = functional.scaled_dot_product_attention(row_q, row_k, row_v, attn_mask=bias)
            out[begin:end] = attended[0].transpose(0, 1)
        return out

    def _attend_padded(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, window: int) -> Tensor:
        """Attention that no packed kernel computes (with biases, in fp32): tokens are spread to rows of equal length,
        and gathered again."""
        tokens, borders = len(q), layout.offsets.to(torch.int64)
        at = torch.arange(layout.longest, device=q.device)
        there = (borders[:-1, None] + at).clamp(max=tokens - 1)
        real = (at < (borders[1:] - borders[:-1])[:, None]).to(torch.int64)
        real[:, 0] = 1  # a row without tokens attends to something
        bias = self._bias(layout.longest, real, window, q.device)
        rows_q, rows_k, rows_v = (tensor[there].transpose(1, 2) for tensor in (q, k, v))
        answer = functional.scaled_dot_product_attention(rows_q, rows_k, rows_v, attn_mask=bias).transpose(1, 2)
        flat = answer.reshape(-1, *q.shape[1:])
        return flat[(layout.row * layout.longest + layout.place).clamp(max=len(flat) - 1)]

    def _rotary(self, x: Tensor, place: Tensor) -> list[tuple[Tensor | None, Tensor | None]]:
        """Cosines and sines that rotate queries and keys at `place`, by layer; None if nothing is rotated."""
        if not self.arch.rotary:
            return [(None, None)] * self.arch.layers
        kind = (x.device, x.dtype)
        if kind not in self._tables:
            self._tables[kind] = {base: self._table(base, x) for base in set(self.arch.rotary)}
        at = {
            base: (cos[place][..., None, :], sin[place][..., None, :])
            for base, (cos, sin) in self._tables[kind].items()
        }
        return [at[base] for base in self.arch.rotary]

    def _table(self, base: float, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        size = self.arch.width // self.arch.heads
        rates = 1.0 / base ** (torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size)
        angles = torch.arange(self.arch.positions, device=x.device, dtype=torch.float32)[:, None] * rates
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(wide), both.sin().to(wide)


def embedding(arch: Architecture, flat: Tensor, places: Places, tail: nn.Module) -> dict[str, Tensor]:
    """The embedding of each row, [rows, dim], of hidden states [tokens, width]."""
    pooled = tail(torch.cat([pool(mode, flat, places) for mode in arch.pooling], dim=-1))
    return {"sentence_embedding": functional.normalize(pooled, p=2.0, dim=1) if arch.normalize else pooled}


def pool(mode: str, flat: Tensor, places: Places) -> Tensor:
    """One vector [rows, width] for each row of hidden states [tokens, width], float32 of fp16 and bf16."""
    if mode in ("cls", "lasttoken"):
        return _wide(flat[places.first if mode == "cls" else places.last])
    row, rows, values = places.row, len(places.first), _wide(flat)
    if mode == "max":
        lowest = values.new_full((rows + 1, values.shape[1]), float("-inf"))
        return lowest.scatter_reduce_(0, row[:, None].expand_as(values), values, "amax")[:rows]
    weights = (
        (places.place + 1).to(values.dtype) if mode == "weightedmean" else torch.ones_like(row, dtype=values.dtype)
    )
    count = values.new_zeros(rows + 1).index_add_(0, row, weights)[:rows].clamp(min=1e-9)
    weighted = values if mode != "weightedmean" else values * weights[:, None]
    total = values.new_zeros(rows + 1, values.shape[1]).index_add_(0, row, weighted)[:rows]
    return total / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)[:, None]


def random_encoder(arch: Architecture, *, seed: int, device: str = "cpu", precision: str = "fp32") -> Encoder:
    """An encoder with random weights, on `device`."""
    torch.manual_seed(seed)
    with torch.device(device):
        model = Encoder(arch)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "norm" not in name:
                nn.init.normal_(parameter, std=0.02 if name.startswith(("word", "position", "token_type")) else 0.05)
    return model.to(DTYPES[precision]).eval()


def load(folder: Path, *, device: str = "cpu", precision: str = "") -> Encoder:
    """The encoder of a model folder, in evaluation mode. ValueError if the weights do not match model.json. precision:
    empty for that of model.json."""
    arch = Architecture.read(folder)
    precision = precision or arch.precision
    if arch.seed is not None:
        return random_encoder(arch, seed=arch.seed, device=device, precision=precision)
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = Encoder(arch)
    try:
        model.load_state_dict(load_file(folder / WEIGHTS, device=device), assign=True)
    except RuntimeError as error:
        raise ValueError(f"the weights are not those of {CONFIG}: {error}") from error
    model = model.requires_grad_(False).eval().to(device, DTYPES[precision])
    model.tail.float()
    return model


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout, window: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    wide: dict[str, Any] = {} if not window else {"window_size": (window, window)}
    return cast(Tensor, varlen_attn(q, k, v, layout.offsets, layout.offsets, layout.longest, layout.longest, **wide))


def _norm(arch: Architecture) -> nn.LayerNorm:
    return nn.LayerNorm(arch.width, eps=arch.norm_eps, bias=arch.norm_bias)


def layer_of(text: str, arch: Architecture | None = None) -> nn.Module:
    """A layer of a head or a tail; `norm` is one of a head."""
    kind, _, sizes = text.partition(":")
    if kind == "linear":
        width, out, *bias = sizes.split(":")
        return nn.Linear(int(width), int(out), bias=not bias)
    if kind == "layernorm":
        return nn.LayerNorm(int(sizes))
    if arch is not None and kind == "norm":
        return _norm(arch)
    return _Activation(functional.normalize if kind == "normalize" else _ACTIVATIONS[kind])


class _Activation(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.function(x))


def _unchanged(x: Tensor) -> Tensor:
    return x


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
