"""Random calls with their expected results: the direct formula in float64, and its error in the precision of the call.

A seed determines the call: score, modifiers, mask, normalizer, value, dropout, query_offset, dtype, shapes, strides and
the size of the scores. Captured tensors may differ by head or batch element.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import regard
from regard import normalizer as normalizers
from regard import score as scores
from tests.laws import cases, direct
from tests.random_tensors import normal

DTYPES = [torch.float32] * 5 + [torch.float64] * 2 + [torch.bfloat16, torch.float16]
LENGTHS = [0, 1, 1, 2, 3, 5, 8, 13, 24, 33, 70]
DIMS = [1, 2, 3, 4, 8, 16, 17, 32]
SCORE_SIZES = [0.3, 1.0, 1.0, 3.0, 10.0]  # with modifiers, 3 standard deviations of the largest are about 50

Factory = Callable[..., Any]


@dataclass
class Piece:
    """One option of a call: its constructors for the library and the direct formula, and their captured tensors."""

    name: str
    make: Factory
    make_direct: Factory
    tensors: list[Tensor] = field(default_factory=list)


@dataclass
class Call:
    """A random call. `leaves()` returns its tensors, q, k and v first."""

    seed: int
    problem: cases.Problem
    dtype: torch.dtype
    score: Piece
    modifiers: list[Piece]
    mask: tuple[Any, direct.Mask] | None
    normalizer: Piece
    value: Piece
    dropout: float
    query_offset: Any
    shared_keys: bool  # k and v have a batch of 1
    layout: str
    size: float

    def __str__(self) -> str:
        p = self.problem
        parts = [self.score.name, *(m.name for m in self.modifiers), self.normalizer.name, self.value.name]
        shape = f"{p.batch_size}x{p.num_heads}/{p.num_kv_heads} {p.n_q}x{p.n_k} {p.head_dim}/{p.value_dim}"
        mask = "" if self.mask is None else f" mask={self.mask[0]}"
        return (
            f"seed {self.seed}: {' + '.join(parts)} {shape} {str(self.dtype)[6:]} size {self.size} {self.layout}"
            f"{mask} dropout={self.dropout} query_offset={self.query_offset} shared={self.shared_keys}"
        )

    def leaves(self) -> list[Tensor]:
        q, k, v = self.problem.tensors()
        if self.shared_keys:
            k, v = k[:1], v[:1]
        captured = [t for piece in self.pieces() for t in piece.tensors]
        return [x.to(self.dtype) for x in (q * self.size, k, v, *captured)]

    def pieces(self) -> list[Piece]:
        return [self.score, *self.modifiers, self.normalizer, self.value]

    def split(self, captured: Sequence[Tensor]) -> list[list[Tensor]]:
        rest = iter(captured)
        return [[next(rest) for _ in piece.tensors] for piece in self.pieces()]

    def options(self, captured: Sequence[Tensor]) -> dict[str, Any]:
        """Return the keyword arguments of the call."""
        score, *modifiers, normalizer, value = self.split(captured)
        built_score = self.score.make(*score)
        for piece, tensors in zip(self.modifiers, modifiers, strict=True):
            built_score = (built_score or scores.scaled_dot()).then(piece.make(*tensors))
        return dict(
            score=built_score,
            mask=None if self.mask is None else self.mask[0],
            normalizer=self.normalizer.make(*normalizer),
            value=self.value.make(*value),
            dropout=self.dropout,
            seed=7 if self.dropout else None,
            query_offset=self.query_offset,
        )

    def formula(
        self, tensors: Sequence[Tensor], dtype: torch.dtype, dropout_mask: Tensor | None, noise: int = 0
    ) -> direct.Result:
        """Compute the call by the direct formula in a dtype; `noise` changes scores by a few float32 units."""
        q, k, v, *captured = (x.to(dtype) for x in tensors)
        score, *modifiers, normalizer, value = self.split(captured)
        direct_modifiers = [piece.make_direct(q, *t) for piece, t in zip(self.modifiers, modifiers, strict=True)]
        if noise:
            direct_modifiers.append(lambda s, at: s + 1e-5 * _largest(s) * normal(*s.shape, seed=noise))
        direct_value = self.value.make_direct(*value)
        relative = self.value.name == "shaw_values"
        return direct.attention(
            q, k, v,
            score=self.score.make_direct(*score),
            modifiers=direct_modifiers,
            mask=None if self.mask is None else self.mask[1],
            normalizer=self.normalizer.make_direct(*normalizer),
            value=None if relative else direct_value,
            pair_value=direct_value if relative else None,
            dropout_mask=None if dropout_mask is None else dropout_mask.to(dtype),
            query_offset=self.query_offset,
            dtype=dtype,
        )  # fmt: skip

    def to_layout(self, x: Tensor) -> Tensor:
        """Return a (batch, heads, length, dim) tensor in the layout of the call."""
        if self.layout == "2-D":
            return x[0, 0]
        if self.layout == "3-D":
            return x[:, 0]
        if self.layout == "5-D":
            return x.unflatten(0, (2, -1)) if x.shape[0] > 1 else x.unsqueeze(0)
        if self.layout == "heads last":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if self.layout == "strided":
            wide = x.new_zeros(*x.shape[:2], 2 * x.shape[2], x.shape[3] + 3)
            wide[:, :, ::2, 1:-2] = x
            return wide[:, :, ::2, 1:-2]
        return x


def random_call(seed: int) -> Call:
    r = random.Random(seed)
    num_kv_heads, group = r.choice([1, 1, 2, 3]), r.choice([1, 1, 2])
    layout = r.choice(["4-D"] * 4 + ["2-D", "3-D", "5-D", "heads last", "strided"])
    batch = r.choice([1, 2, 2, 3])
    if layout in ("2-D", "3-D"):
        num_kv_heads = group = 1
    batch = {"2-D": 1, "5-D": r.choice([2, 4])}.get(layout, batch)
    n_q, n_k = r.choice(LENGTHS), r.choice(LENGTHS)
    dim = r.choice(DIMS)
    problem = cases.Problem(
        batch, num_kv_heads * group, num_kv_heads, n_q, n_k, dim, r.choice(DIMS), seed=r.randrange(10**6)
    )
    kernel = r.random() < 0.05
    score = Piece("kernel", lambda: None, lambda: _kernel_score) if kernel else r.choice(_scores(problem, r))
    modifiers = [] if kernel else r.sample(_modifiers(problem, r), k=r.choice([0, 0, 1, 1, 2]))
    normalizer = Piece("kernel", normalizers.kernel, direct.softmax) if kernel else r.choice(_normalizers(problem, r))
    query_offset = r.choice([None, None, 0, 2, torch.arange(batch) + 1])
    return Call(
        seed=seed,
        problem=problem,
        dtype=r.choice(DTYPES),
        score=score,
        modifiers=modifiers,
        mask=_mask(problem, r) if r.random() < 0.6 else None,
        normalizer=normalizer,
        value=r.choice(_values(problem)),
        dropout=r.choice([0.0, 0.0, 0.0, 0.3]),
        query_offset=query_offset,
        shared_keys=layout == "4-D" and r.random() < 0.15,
        layout=layout,
        size=1.0 if kernel else r.choice(SCORE_SIZES),
    )


def _largest(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if len(finite) else 0.0


def _kernel_score(q: Tensor, k: Tensor) -> Tensor:
    elu = torch.nn.functional.elu
    return ((elu(q) + 1) @ (elu(k) + 1).mT).log()


def _scores(p: cases.Problem, r: random.Random) -> list[Piece]:
    w, root = p.head_dim, p.normal(p.head_dim, p.head_dim, salt=2) / p.head_dim**0.5
    heads, hidden = p.num_heads, 5
    by_head = (heads,) if r.random() < 0.5 else ()

    def spread(x: Tensor) -> Tensor:
        return x.view(-1, 1, 1) if x.dim() == 1 else x

    def additive(w_q: Tensor, w_k: Tensor, u: Tensor, bias: Tensor) -> direct.Score:
        def formula(q: Tensor, k: Tensor) -> Tensor:
            left = q @ w_q + (bias.unsqueeze(-2) if bias.dim() == 2 else bias)
            inside = torch.tanh(left.unsqueeze(-2) + (k @ w_k).unsqueeze(-3))
            return (inside * (u.view(-1, 1, 1, hidden) if u.dim() == 2 else u)).sum(-1)

        return formula

    return [
        Piece("scaled_dot", lambda: None, direct.scaled_dot),
        Piece("dot", scores.dot, direct.dot),
        Piece(
            "learned scale",
            lambda s: scores.scaled_dot(s),
            lambda s: direct.scaled_dot(spread(s)),
            [p.normal(*by_head).abs() + 0.2],
        ),
        Piece(
            "bilinear",
            lambda m: scores.bilinear(m),
            lambda m: direct.bilinear(m),
            [p.normal(*by_head, w, w, salt=3) / w],
        ),
        Piece(
            "cosine",
            lambda s: scores.cosine(s),
            lambda s: direct.cosine(spread(s)),
            [p.normal(*by_head, salt=4).abs() * 4 + 1],
        ),
        Piece(
            "gaussian",
            lambda s: scores.gaussian(s),
            lambda s: direct.gaussian(spread(s)),
            [p.normal(*by_head, salt=5).abs() + 1.5],
        ),
        Piece("mahalanobis", lambda m: scores.mahalanobis(m), lambda m: direct.mahalanobis(m), [root @ root.mT]),
        Piece(
            "additive",
            scores.additive,
            additive,
            [
                p.normal(w, hidden, salt=6),
                p.normal(w, hidden, salt=7),
                p.normal(*by_head, hidden, salt=8) * 2,
                p.normal(*by_head, hidden, salt=9),
            ],
        ),
        Piece(
            "custom",
            lambda m: scores.custom(lambda q, k: torch.tanh(q @ m.to(q.dtype)) @ k.mT),
            lambda m: lambda q, k: torch.tanh(q @ m) @ k.mT,
            [root],
        ),
    ]


def _modifiers(p: cases.Problem, r: random.Random) -> list[Piece]:
    """`make_direct` gets the queries first, which Shaw's keys need."""
    shape = r.choice(
        [
            (p.n_q, p.n_k),
            (p.num_heads, p.n_q, p.n_k),
            (p.batch_size, p.num_heads, p.n_q, p.n_k),
            (p.batch_size, 1, 1, p.n_k),
        ]
    )
    causal_buckets = r.random() < 0.5
    return [
        Piece("alibi", scores.alibi, lambda q, m: direct.alibi(m), [p.normal(p.num_heads, salt=11).abs() / 4]),
        Piece("softcap", lambda: scores.softcap(3.0), lambda q: direct.softcap(3.0)),
        Piece("bias", scores.bias, lambda q, t: direct.bias(t), [p.normal(*shape, salt=12)]),
        Piece(
            "t5_bias",
            lambda t: scores.t5_bias(t, bidirectional=not causal_buckets),
            lambda q, t: direct.t5_bias(t, not causal_buckets),
            [p.normal(8, p.num_heads, salt=13)],
        ),
        Piece("shaw_keys", scores.shaw_keys, lambda q, t: direct.shaw_keys(q, t), [p.normal(5, p.head_dim, salt=14)]),
        Piece(
            "lookup",
            lambda t: scores.modifier(lambda s, b, h, i, j: s * t[b, h] - abs(i - j) * 0.125),
            lambda q, t: lambda s, at: s * t[at.b, at.h] - (at.i - at.j).abs() * 0.125,
            [p.normal(p.batch_size, p.num_heads, salt=15).abs() + 0.1],
        ),
    ]


def _normalizers(p: cases.Problem, r: random.Random) -> list[Piece]:
    by_head = (p.num_heads,) if r.random() < 0.5 else ()
    rows = (-1, 1, 1)
    return [
        Piece("softmax", lambda: None, direct.softmax),
        Piece("softmax", normalizers.softmax, direct.softmax),
        Piece("sink", normalizers.sink, direct.sink, [p.normal(*by_head, salt=21)]),
        Piece("sigmoid", normalizers.sigmoid, lambda b: direct.sigmoid(b.reshape(rows)), [p.normal(*by_head, salt=22)]),
        Piece("relu", normalizers.relu, lambda s: direct.relu(s.reshape(rows)), [p.normal(*by_head, salt=23).abs()]),
        Piece("relu / n", normalizers.relu, direct.relu),
        Piece("sparsemax", normalizers.sparsemax, direct.sparsemax),
        Piece("entmax 1.5", normalizers.entmax, lambda: direct.entmax(1.5)),
        Piece("entmax", normalizers.entmax, direct.entmax, [p.normal(*by_head, salt=24).abs().clamp(max=0.7) + 1.2]),
        Piece("topk", lambda: normalizers.topk(3), lambda: direct.topk(3)),
        Piece("hardmax", normalizers.hardmax, direct.hardmax),
    ]


def _values(p: cases.Problem) -> list[Piece]:
    return [
        *[Piece("v", lambda: None, lambda: None)] * 4,
        Piece("v W", lambda w: lambda v: v @ w, lambda w: lambda v: v @ w, [p.normal(p.value_dim, 3, salt=31)]),
        Piece("shaw_values", scores.shaw_values, direct.shaw_values, [p.normal(3, p.value_dim, salt=32)]),
    ]


def _mask(p: cases.Problem, r: random.Random) -> tuple[Any, direct.Mask]:
    simple = cases.simple_masks(p)
    mask, formula = r.choice(simple)
    for _ in range(r.choice([0, 0, 1, 2])):
        other, other_formula = r.choice(simple)
        operation = r.choice(["and", "or", "not"])
        previous = formula
        if operation == "and":
            mask, formula = mask & other, lambda at, a=previous, b=other_formula: a(at) & b(at)
        elif operation == "or":
            mask, formula = mask | other, lambda at, a=previous, b=other_formula: a(at) | b(at)
        else:
            mask, formula = ~mask, lambda at, a=previous: ~a(at)
    return mask, formula


def dropout_factors(call: Call) -> Tensor | None:
    """Return the dropout factors (batch, heads, n_q, n_k), read from a call with equal weights."""
    if not call.dropout:
        return None
    p = call.problem
    q, k = torch.zeros(p.batch_size, p.num_heads, p.n_q, 1), torch.zeros(p.batch_size, p.num_heads, p.n_k, 1)
    v = torch.eye(p.n_k).expand(p.batch_size, p.num_heads, p.n_k, p.n_k)
    output = regard.attention(q, k, v, dropout=call.dropout, seed=7, backend="reference")
    return (output != 0).double() / (1 - call.dropout)


def rms(x: Tensor) -> float:
    return math.sqrt(float(x.double().square().mean())) if x.numel() else 0.0
