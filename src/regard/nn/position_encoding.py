"""Position encodings, which apply in one of three places:

    SinusoidalPositionalEmbedding, LearnedPositionalEmbedding     added to the embeddings
    RotaryEmbedding                                               rotates q and k; q·k then depends on their distance
    ALiBi, T5Bias                                                 modify the scores

A stack calls all three methods of a `PositionEncoding`; by default they leave their inputs unchanged.
"""

import torch
from torch import Tensor, nn

from regard import checks
from regard.errors import ArgumentError
from regard.expr.score_modifier import ScoreModifier, alibi, alibi_slopes, t5_bias
from regard.nn import input_checks
from regard.nn.rope_scaling import ROPE_SCALINGS, RopeScaling, check_base, inverse_frequencies
from regard.tensors.rotary import apply_rotary

MAX_HEADS = 2**16


class PositionEncoding(nn.Module):
    """Base class of position encodings. `position_ids` are the positions of the tokens, (n,) or (batch, n).

    >>> q, k = torch.randn(2, 1, 4, 10, 64)
    >>> PositionEncoding().apply_to_qk(q, k, torch.arange(10))[0] is q
    True
    """

    def apply_to_embeddings(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Return the embeddings x (batch, n, embed_dim) with positions encoded."""
        return x

    def apply_to_qk(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries q and keys k, (batch, heads, n, head_dim), with positions encoded.

        `position_ids` are (n,) or (batch, n).
        """
        return q, k

    def score_modifier(self) -> ScoreModifier | None:
        """Return a score modifier for `regard.attention`, or None."""
        return None


def check_position_encoding(value: PositionEncoding | None) -> None:
    """Raise unless `value` is a position encoding or None."""
    if value is not None:
        expected = "a PositionEncoding, such as regard.nn.RotaryEmbedding(64), or None"
        checks.instance(value, "position_encoding", PositionEncoding, expected)


class SinusoidalPositionalEmbedding(PositionEncoding):
    """The sinusoidal embedding: feature 2m is sin(p / base^(2m/embed_dim)), feature 2m + 1 the cosine.

    >>> SinusoidalPositionalEmbedding(4).apply_to_embeddings(torch.zeros(1, 2, 4), torch.arange(2))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    def __init__(self, embed_dim: int, *, base: float = 10000.0) -> None:
        super().__init__()
        if checks.size(embed_dim, "embed_dim") % 2:
            raise ArgumentError(f"embed_dim of SinusoidalPositionalEmbedding must be even; got {embed_dim}.")
        self.embed_dim, self.base = embed_dim, check_base(base)

    def apply_to_embeddings(self, x: Tensor, position_ids: Tensor) -> Tensor:
        input_checks.check_hidden_states(x, "x", self.embed_dim)
        input_checks.check_position_ids(position_ids, x.shape[0], x.shape[1])
        return x + self.encode(position_ids).to(x)

    def encode(self, position_ids: Tensor) -> Tensor:
        """Return the embeddings (..., embed_dim) of positions (...), in float64."""
        checks.tensor(position_ids, "position_ids", dtype_kind="integers")
        angle = position_ids.double().unsqueeze(-1) * inverse_frequencies(self.embed_dim, self.base).to(
            position_ids.device
        )
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


class LearnedPositionalEmbedding(PositionEncoding):
    """A learned vector for each of `max_len` positions, added to the embeddings.

    >>> LearnedPositionalEmbedding(128, 16).apply_to_embeddings(torch.zeros(1, 2, 16), torch.arange(2)).shape
    torch.Size([1, 2, 16])
    """

    def __init__(self, max_len: int, embed_dim: int) -> None:
        super().__init__()
        checks.parameter_size("weight", checks.size(max_len, "max_len"), checks.size(embed_dim, "embed_dim"))
        self.weight = nn.Parameter(0.02 * torch.randn(max_len, embed_dim))

    def apply_to_embeddings(self, x: Tensor, position_ids: Tensor) -> Tensor:
        max_len, embed_dim = self.weight.shape
        input_checks.check_hidden_states(x, "x", embed_dim)
        input_checks.check_position_ids(position_ids, x.shape[0], x.shape[1])
        input_checks.check_range(position_ids, "position_ids", max_len - 1)
        return x + nn.functional.embedding(input_checks.check_token_ids(position_ids, "position_ids"), self.weight)


class RotaryEmbedding(PositionEncoding):
    """Rotary position embedding (RoPE): rotates pairs of features by angles proportional to the position.

    Each pair has its own frequency (Su et al., 2021). `rope_dim` is the number of features that rotate, usually the
    head dimension. `layout="half"` pairs feature m with feature m + rope_dim / 2, as in Llama; "interleaved" pairs
    features 2m and 2m + 1. `scaling` rescales the frequencies for texts longer than those in training.

    >>> q, k = torch.randn(2, 1, 4, 10, 64)
    >>> rotary = RotaryEmbedding(64)
    >>> near, far = (rotary.apply_to_qk(q, k, torch.arange(10) + first) for first in (0, 5000))
    >>> torch.allclose(near[0] @ near[1].mT, far[0] @ far[1].mT, atol=1e-4)
    True
    """

    def __init__(
        self, rope_dim: int, *, base: float = 10000.0, layout: str = "half", scaling: RopeScaling | None = None
    ) -> None:
        super().__init__()
        self.layout = checks.choice(layout, "layout", ("half", "interleaved"))
        if checks.size(rope_dim, "rope_dim") % 2:
            raise ArgumentError(f"rope_dim of RotaryEmbedding must be even; got {rope_dim}.")
        if scaling is not None:
            names = ", ".join(kind.__name__ for kind in ROPE_SCALINGS)
            checks.instance(scaling, "scaling", ROPE_SCALINGS, f"one of {names}")
        inv_freq = inverse_frequencies(rope_dim, check_base(base))
        # not a buffer, which `model.half()` would convert
        self.inv_freq = inv_freq if scaling is None else scaling.scale_frequencies(inv_freq, base)
        self.attention_factor = 1.0 if scaling is None else scaling.attention_factor()
        self._cos_sin_cache: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(2, 0, rope_dim // 2))

    def apply_to_qk(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        checks.tensor(q, "q", shape=("batch", "heads", "n", "head_dim"), dtype_kind="floats")
        checks.tensor(k, "k", shape=("batch", "heads", "n", "head_dim"), dtype_kind="floats")
        input_checks.check_position_ids(position_ids, q.shape[0], q.shape[2])
        if k.shape[2] != q.shape[2] or k.shape[0] != q.shape[0]:
            raise ArgumentError(
                f"k must have the batch size and length of q, {q.shape[0]} and {q.shape[2]}; got shape "
                f"{tuple(k.shape)}."
            )
        rope_dim, head_dim = 2 * len(self.inv_freq), min(q.shape[3], k.shape[3])
        if rope_dim > head_dim:
            raise ArgumentError(
                f"rope_dim must be at most the head dimension of q and k; got rope_dim={rope_dim}, head_dim={head_dim}."
            )
        cosine, sine = self._cos_sin(position_ids, torch.float64 if q.dtype == torch.float64 else torch.float32)
        if position_ids.dim() == 2:
            cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
        return apply_rotary(q, cosine, sine, self.layout), apply_rotary(k, cosine, sine, self.layout)

    def _cos_sin(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, (..., n, pairs) each; they are cached, since all layers share them."""
        cached_ids, cached = self._cos_sin_cache
        if torch.compiler.is_compiling():  # comparing positions would break the graph
            return self._compute_cos_sin(position_ids, dtype).unbind(0)  # type: ignore[return-value]  # two tensors
        same_layout = (
            cached_ids.shape == position_ids.shape
            and cached_ids.device == position_ids.device
            and cached.dtype == dtype
        )
        if not same_layout or not torch.equal(cached_ids, position_ids):
            with torch.inference_mode(False):  # inference tensors could not be used in training later
                cached = self._compute_cos_sin(position_ids.clone(), dtype)
                self._cos_sin_cache = (position_ids.clone(), cached)
        return cached[0], cached[1]

    def _compute_cos_sin(self, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        # float64: at position 100,000 a float32 angle has an error of 0.004
        angle = position_ids.double().unsqueeze(-1) * self.inv_freq.to(position_ids.device)
        return torch.stack((angle.cos(), angle.sin())).mul(self.attention_factor).to(dtype)


class ALiBi(PositionEncoding):
    """ALiBi: subtracts slopes[h] · |i - j| from the score of query i and key j (Press et al., 2021).

    >>> from regard.nn import BlockConfig, Decoder
    >>> Decoder(BlockConfig(16, num_heads=2), 1, position_encoding=ALiBi(2))(torch.randn(1, 5, 16)).shape
    torch.Size([1, 5, 16])
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self._score_modifier = alibi(
            alibi_slopes(checks.integer(num_heads, "num_heads", at_least=1, at_most=MAX_HEADS))
        )

    def score_modifier(self) -> ScoreModifier:
        return self._score_modifier


class T5Bias(PositionEncoding):
    """T5's relative position bias: a learned number for each head and each bucket of distances, added to the score.

    `bidirectional=False` is for decoders: all `num_buckets` buckets are for keys before the query. Distances from
    `max_distance` on share a bucket. T5 does not divide scores by √d: use
    `MultiHeadAttention(..., score=regard.score.dot())`.

    >>> T5Bias(num_heads=4).weight.shape
    torch.Size([32, 4])
    """

    def __init__(
        self, num_heads: int, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        checks.parameter_size("weight", checks.size(num_buckets, "num_buckets"), checks.size(num_heads, "num_heads"))
        self.weight = nn.Parameter(0.02 * torch.randn(num_buckets, num_heads))
        self.max_distance = checks.size(max_distance, "max_distance")
        self.bidirectional = checks.flag(bidirectional, "bidirectional")
        self._score_modifier: tuple[Tensor, ScoreModifier] | None = None

    def score_modifier(self) -> ScoreModifier:
        # traced again only if loading or sharding replaced the parameter
        if self._score_modifier is None or self._score_modifier[0] is not self.weight:
            modifier = t5_bias(self.weight, bidirectional=self.bidirectional, max_distance=self.max_distance)
            if torch.compiler.is_compiling():
                return modifier
            self._score_modifier = (self.weight, modifier)
        return self._score_modifier[1]
