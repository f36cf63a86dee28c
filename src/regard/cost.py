"""FLOPs, bytes and parameters of attention and transformer layers, as exact integer formulas.

A FLOP is one multiplication or one addition, so the product of (m, k) and (k, n) matrices costs 2mkn. `Flops` counts
matrix products; `softmax` and `additive_scores` count elementwise operations. Bytes are bytes, neither MB nor MiB.
Symbols: n tokens, m queries, D embed_dim, H num_heads, G num_kv_heads, d head_dim, F ffn_dim, V vocab_size,
B batch_size.

>>> from regard import cost
>>> cost.attention(n_q=4096, n_k=4096, head_dim=64, num_heads=8).total
34359738368
>>> model = 12 * cost.layer(1024, 768, num_heads=12) + cost.lm_head(1024, 768, vocab_size=50257)
>>> cost.training(model).total
874944921600
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from fractions import Fraction
from types import MappingProxyType

from regard.argument_types import check_types
from regard.errors import ArgumentError

__all__ = [
    "COMPLEXITIES",
    "Complexity",
    "Flops",
    "activation_bytes",
    "additive_scores",
    "attention",
    "attention_weights_bytes",
    "backward",
    "causal_pairs",
    "crossover_length",
    "decode_intensity",
    "feed_forward",
    "gpt2_parameters",
    "kv_cache_bytes",
    "layer",
    "layer_parameters",
    "lm_head",
    "projections",
    "six_n_d",
    "softmax",
    "training",
    "vit_parameters",
]


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclass(frozen=True)
class Flops:
    """FLOPs by part of the model. Costs add up (`layer(...) + lm_head(...)`) and repeat (`12 * layer(...)`).

    >>> 2 * Flops(scores=10, values=10) + Flops(feed_forward=5)
    Flops(projections=0, scores=20, values=20, feed_forward=5, lm_head=0)
    """

    projections: int = 0
    scores: int = 0
    values: int = 0
    feed_forward: int = 0
    lm_head: int = 0

    @property
    def attention(self) -> int:
        """The part proportional to the number of pairs: scores and weighted values."""
        return self.scores + self.values

    @property
    def non_attention(self) -> int:
        """The part proportional to the number of tokens: 2 FLOPs per token and matrix entry."""
        return self.projections + self.feed_forward + self.lm_head

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.attention + self.non_attention

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, count: int) -> "Flops":
        _check_ints(0, count=count)
        return Flops(*(count * part for part in astuple(self)))

    __rmul__ = __mul__


# ---- forward -----------------------------------------------------------------------------------------------
def causal_pairs(n_q: int, n_k: int, *, query_offset: int | None = None) -> int:
    """Return the number of (query, key) pairs that a causal mask allows: n(n+1)/2 for n_q = n_k = n.

    Query i is at position query_offset + i; `query_offset` defaults to n_k - n_q, as in `regard.attention`.

    >>> causal_pairs(512, 512), causal_pairs(1, 512)
    (131328, 512)
    """
    _check_ints(0, n_q=n_q, n_k=n_k)
    query_offset = n_k - n_q if query_offset is None else query_offset
    _check_ints(None, query_offset=query_offset)

    def pairs_before(position: int) -> int:
        triangle = min(max(position, 0), n_k)
        return triangle * (triangle + 1) // 2 + max(position - n_k, 0) * n_k

    return pairs_before(query_offset + n_q) - pairs_before(query_offset)


def attention(
    n_q: int,
    n_k: int,
    head_dim: int,
    *,
    v_head_dim: int | None = None,
    num_heads: int = 1,
    batch_size: int = 1,
    pairs: int | None = None,
) -> Flops:
    """Return the FLOPs of QKᵀ and AV: 4mnd per head, or 2n(n+1)d with a causal mask.

    The number of key heads has no effect: grouped-query attention saves memory, not FLOPs.

    Args:
        n_q: Number of queries.
        n_k: Number of keys.
        head_dim: Dimension of each query and key head.
        v_head_dim: Dimension of each value head. Default: head_dim.
        num_heads: Number of query heads. Default: 1.
        batch_size: Default: 1.
        pairs: Number of (query, key) pairs per head that the mask allows, such as `causal_pairs(n_q, n_k)`.
            Default: n_q * n_k.

    >>> attention(1024, 1024, 64, num_heads=12, pairs=causal_pairs(1024, 1024)).total
    1612185600
    """
    _check_ints(1, head_dim=head_dim)
    v_head_dim = head_dim if v_head_dim is None else v_head_dim
    _check_ints(1, v_head_dim=v_head_dim)
    total_pairs = _total_pairs(n_q, n_k, num_heads, batch_size, pairs)
    return Flops(scores=2 * total_pairs * head_dim, values=2 * total_pairs * v_head_dim)


def softmax(n_q: int, n_k: int, *, num_heads: int = 1, batch_size: int = 1, pairs: int | None = None) -> int:
    """Return an estimate of the operations of softmax: 5 per pair (maximum, difference, exponential, sum, quotient).

    `n_q`, `n_k`, `num_heads`, `batch_size` (default 1) and `pairs` (default n_q * n_k) are those of `attention`.

    >>> softmax(1024, 1024, num_heads=12)
    62914560
    """
    return 5 * _total_pairs(n_q, n_k, num_heads, batch_size, pairs)


def additive_scores(
    n_q: int, n_k: int, hidden_dim: int, *, num_heads: int = 1, batch_size: int = 1, pairs: int | None = None
) -> int:
    """Return the operations of Bahdanau's score uᵀ tanh(a_i + b_j): 3mn · hidden_dim, not counting tanh.

    m and n are the numbers of queries `n_q` and keys `n_k`; `hidden_dim` is the dimension of u. `num_heads`,
    `batch_size` (default 1) and `pairs` (default mn) are those of `attention`.

    >>> additive_scores(10, 20, 64)
    38400
    """
    _check_ints(1, hidden_dim=hidden_dim)
    return 3 * _total_pairs(n_q, n_k, num_heads, batch_size, pairs) * hidden_dim


def projections(
    n_q: int,
    n_k: int,
    embed_dim: int,
    *,
    num_heads: int = 1,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    has_output_projection: bool = True,
    batch_size: int = 1,
) -> Flops:
    """Return the FLOPs of the projections of q (n_q tokens), k and v (n_k tokens) and the output.

    Self-attention costs 8nD², without the output projection 6nD², with grouped key heads 4nD² + 4nDGd.

    Args:
        n_q: Number of query tokens.
        n_k: Number of key tokens; n_q in self-attention.
        embed_dim: Dimension of the model.
        num_heads: Number of query heads. Default: 1.
        num_kv_heads: Number of key heads. Default: num_heads.
        head_dim: Dimension of each head. Default: embed_dim / num_heads.
        has_output_projection: Whether to count the output projection. Default: True.
        batch_size: Default: 1.

    >>> projections(1024, 1024, 768).total == 8 * 1024 * 768**2
    True
    """
    _check_bools(has_output_projection=has_output_projection)
    _check_ints(0, n_q=n_q, n_k=n_k, batch_size=batch_size)
    query_columns, key_columns = _projection_columns(embed_dim, num_heads, num_kv_heads, head_dim)
    products = n_q * query_columns * (2 if has_output_projection else 1) + 2 * n_k * key_columns
    return Flops(projections=2 * batch_size * embed_dim * products)


def feed_forward(
    seq_len: int, embed_dim: int, ffn_dim: int | None = None, *, gated: bool = False, batch_size: int = 1
) -> Flops:
    """Return the FLOPs of a feed-forward layer: 4nDF for two matrices, 6nDF for three (`gated=True`).

    `seq_len` is the number of tokens n of each of `batch_size` sequences. `ffn_dim` defaults to 4 * embed_dim; 0 means
    no feed-forward layer.

    >>> feed_forward(1024, 768).total == 4 * 1024 * 768 * 3072
    True
    """
    _check_bools(gated=gated)
    _check_ints(1, embed_dim=embed_dim)
    ffn_dim = 4 * embed_dim if ffn_dim is None else ffn_dim
    _check_ints(0, seq_len=seq_len, ffn_dim=ffn_dim, batch_size=batch_size)
    return Flops(feed_forward=(6 if gated else 4) * batch_size * seq_len * embed_dim * ffn_dim)


def lm_head(
    seq_len: int, embed_dim: int, vocab_size: int, *, one_hot_input: bool = False, batch_size: int = 1
) -> Flops:
    """Return the FLOPs of the output head: 2nDV, for `seq_len` tokens n, `embed_dim` D and `vocab_size` V.

    `batch_size` (default 1) multiplies the result. The input embedding is a lookup and costs nothing.
    `one_hot_input=True` counts it as a product, for comparison with published tables that give 12nDV for training.

    >>> lm_head(1024, 768, 50257).total == 2 * 1024 * 768 * 50257
    True
    """
    _check_bools(one_hot_input=one_hot_input)
    _check_ints(0, seq_len=seq_len, vocab_size=vocab_size, batch_size=batch_size)
    _check_ints(1, embed_dim=embed_dim)
    return Flops(lm_head=(4 if one_hot_input else 2) * batch_size * seq_len * embed_dim * vocab_size)


def layer(
    seq_len: int,
    embed_dim: int,
    *,
    num_heads: int = 1,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn_dim: int | None = None,
    gated: bool = False,
    pairs: int | None = None,
    batch_size: int = 1,
) -> Flops:
    """Return the FLOPs of a transformer layer: projections, self-attention and a feed-forward layer.

    For the cross-attention of a decoder add `projections(m, n, ...) + attention(m, n, ...)`.

    Args:
        seq_len: Number of tokens of each sequence.
        embed_dim: Dimension of the model.
        num_heads: Number of query heads. Default: 1.
        num_kv_heads: Number of key heads. Default: num_heads.
        head_dim: Dimension of each head. Default: embed_dim / num_heads.
        ffn_dim: Hidden dimension of the feed-forward layer. Default: 4 * embed_dim; 0 means no feed-forward layer.
        gated: Whether the feed-forward layer has a third matrix. Default: False.
        pairs: Number of (query, key) pairs per head that the mask allows. Default: seq_len².
        batch_size: Default: 1.

    >>> layer(1024, 768).total, layer(1024, 768, pairs=causal_pairs(1024, 1024)).total
    (17716740096, 16107700224)
    """
    _check_bools(gated=gated)
    _check_ints(0, seq_len=seq_len)
    head_dim = _projection_columns(embed_dim, num_heads, num_kv_heads, head_dim)[0] // num_heads
    return (
        projections(
            seq_len,
            seq_len,
            embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            batch_size=batch_size,
        )
        + attention(seq_len, seq_len, head_dim, num_heads=num_heads, batch_size=batch_size, pairs=pairs)
        + feed_forward(seq_len, embed_dim, ffn_dim, gated=gated, batch_size=batch_size)
    )


@check_types
def crossover_length(forward: Flops, seq_len: int) -> Fraction:
    """Return the sequence length at which attention costs as much as the rest of the model.

    `forward` is the cost at any length `seq_len`. Attention grows as n² and the rest as n, if the mask allows the same
    fraction of pairs at every length. A causal mask allows half of the pairs in the limit; its exact count, with the
    diagonal, crosses one token earlier.

    >>> crossover_length(layer(1024, 768), 1024) / 768
    Fraction(6, 1)
    >>> crossover_length(layer(1024, 768, pairs=1024**2 // 2), 1024) / 768
    Fraction(12, 1)
    """
    _check_ints(1, seq_len=seq_len)
    _raise_unless(forward.attention > 0, f"forward must contain attention; got {forward}. Add attention(...) to it.")
    return Fraction(seq_len * forward.non_attention, forward.attention)


# ---- training ----------------------------------------------------------------------------------------------
@check_types
def backward(forward: Flops, *, recompute: bool = False) -> Flops:
    """Return the FLOPs of the backward pass: twice the forward pass, one product for the gradient of each factor.

    `recompute=True` counts the scores once more, as attention in linear memory does: 10n²D instead of 8n²D.

    >>> backward(Flops(scores=10, values=10), recompute=True).total
    50
    """
    return 2 * forward + Flops(scores=forward.scores if recompute else 0)


@check_types
def training(forward: Flops, *, recompute: bool = False) -> Flops:
    """Return the FLOPs of a forward and a backward pass.

    `forward` are the FLOPs of the forward pass. The backward pass costs twice as much, and `recompute` is that of
    `backward`. Attention costs 12n²D, projections 24nD², a feed-forward layer 12nDF (gated 18nDF) and the output head
    6nDV.

    >>> training(Flops(scores=10, values=10)).total
    60
    """
    return forward + backward(forward, recompute=recompute)


def six_n_d(
    num_parameters: int, num_tokens: int, *, num_layers: int = 0, embed_dim: int = 0, keys_per_query: int = 0
) -> int:
    """Return the training FLOPs by the rule 6N per token, plus 12 · num_layers · D · keys_per_query for attention.

    Args:
        num_parameters: N, the entries of all matrices: with the output head, without the input embedding. It is
            `non_attention // 2` of the cost of a model at length 1.
        num_tokens: Number of training tokens.
        num_layers: Number of layers, for the attention term. Default: 0, no attention term.
        embed_dim: Dimension of the model, for the attention term.
        keys_per_query: Average number of visible keys of a token: the length, or half of it with a causal mask.

    >>> six_n_d(124_000_000, 10**9), six_n_d(124_000_000, 10**9, num_layers=12, embed_dim=768, keys_per_query=1024)
    (744000000000000000, 857246208000000000)
    """
    _check_ints(
        0,
        num_parameters=num_parameters,
        num_tokens=num_tokens,
        num_layers=num_layers,
        embed_dim=embed_dim,
        keys_per_query=keys_per_query,
    )
    return num_tokens * (6 * num_parameters + 12 * num_layers * embed_dim * keys_per_query)


# ---- memory ------------------------------------------------------------------------------------------------
def attention_weights_bytes(
    n_q: int, n_k: int, *, num_heads: int = 1, num_layers: int = 1, batch_size: int = 1, bytes_per_element: int = 4
) -> int:
    """Return the bytes of all attention matrices if they are stored: B · num_layers · H · mn · bytes_per_element.

    `n_q` and `n_k` are the numbers of queries and keys. Attention in linear memory stores none of these matrices.

    >>> attention_weights_bytes(512, 512, num_heads=12, num_layers=12) == 144 * 2**20
    True
    """
    _check_ints(0, num_layers=num_layers)
    _check_ints(1, bytes_per_element=bytes_per_element)
    return num_layers * bytes_per_element * _total_pairs(n_q, n_k, num_heads, batch_size, None)


def activation_bytes(
    seq_len: int, embed_dim: int, num_heads: int, *, num_layers: int = 1, batch_size: int = 1, recompute: bool = False
) -> int:
    """Return an estimate of the activation bytes of training: num_layers · B · n (34D + 5Hn).

    B is `batch_size`, n is `seq_len`, D is `embed_dim` and H is `num_heads`; `num_layers` and `batch_size` default to
    1. The formula is that of Korthikanti et al. (2022). It assumes 16-bit activations, dropout and ffn_dim = 4D.
    `recompute=True` omits 5Hn, the attention matrices.

    >>> activation_bytes(1024, 768, 12, num_layers=12)
    1075838976
    """
    _check_bools(recompute=recompute)
    _check_ints(0, seq_len=seq_len, num_layers=num_layers, batch_size=batch_size)
    _check_ints(1, embed_dim=embed_dim, num_heads=num_heads)
    return num_layers * batch_size * seq_len * (34 * embed_dim + (0 if recompute else 5 * num_heads * seq_len))


def kv_cache_bytes(
    seq_len: int, *, num_layers: int, num_kv_heads: int, head_dim: int, batch_size: int = 1, bytes_per_element: int = 2
) -> int:
    """Return the bytes of the KV cache: 2 · num_layers · G · d · n · B · bytes_per_element.

    `seq_len` is the number of cached tokens n, `num_kv_heads` is G, `head_dim` is d and `batch_size` is B.

    >>> kv_cache_bytes(4096, num_layers=32, num_kv_heads=8, head_dim=128) == 512 * 2**20
    True
    """
    _check_ints(0, seq_len=seq_len, num_layers=num_layers, batch_size=batch_size)
    _check_ints(1, num_kv_heads=num_kv_heads, head_dim=head_dim, bytes_per_element=bytes_per_element)
    return 2 * num_layers * num_kv_heads * head_dim * seq_len * batch_size * bytes_per_element


def decode_intensity(num_heads: int, num_kv_heads: int, *, bytes_per_element: int = 2) -> Fraction:
    """Return the arithmetic intensity of decoding: FLOPs of attention per byte of KV cache, H/G · 2/bytes_per_element.

    `num_heads` is H and `num_kv_heads` is G. The intensity does not depend on the length.

    >>> decode_intensity(32, 8)
    Fraction(4, 1)
    """
    _projection_columns(num_heads, num_heads, num_kv_heads, None)
    cache_bytes = kv_cache_bytes(
        1, num_layers=1, num_kv_heads=num_kv_heads, head_dim=1, bytes_per_element=bytes_per_element
    )
    return Fraction(attention(1, 1, 1, num_heads=num_heads).total, cache_bytes)


# ---- parameters --------------------------------------------------------------------------------------------
def layer_parameters(embed_dim: int, ffn_dim: int | None = None) -> int:
    """Return the parameters of a layer with biases and two layer norms: 4D² + 4D + 2DF + F + D + 4D.

    `ffn_dim` defaults to 4 * embed_dim.

    >>> layer_parameters(768)
    7087872
    """
    _check_ints(1, embed_dim=embed_dim)
    ffn_dim = 4 * embed_dim if ffn_dim is None else ffn_dim
    _check_ints(1, ffn_dim=ffn_dim)
    return 4 * embed_dim**2 + 4 * embed_dim + 2 * embed_dim * ffn_dim + ffn_dim + embed_dim + 4 * embed_dim


@check_types
def gpt2_parameters(*, num_layers: int = 12, embed_dim: int = 768, vocab_size: int = 50257, max_len: int = 1024) -> int:
    """Return the parameters of GPT-2: token embedding (shared with the output head), positions, layers, last norm.

    `embed_dim` is the dimension of the model and of `num_layers` layers, `vocab_size` the number of tokens, and
    `max_len` the number of learned positions. The defaults are those of GPT-2 small.

    >>> gpt2_parameters()
    124439808
    """
    _check_ints(0, num_layers=num_layers, vocab_size=vocab_size, max_len=max_len)
    return (vocab_size + max_len) * embed_dim + num_layers * layer_parameters(embed_dim) + 2 * embed_dim


@check_types
def vit_parameters(
    *, num_layers: int = 12, embed_dim: int = 768, image_size: int = 224, patch_size: int = 16, num_classes: int = 1000
) -> int:
    """Return the parameters of a ViT: patch projection, class token, positions, layers, last norm, classifier.

    `embed_dim` is the dimension of the model and of `num_layers` layers. Images and patches are squares with sides of
    `image_size` and `patch_size` pixels. `num_classes` is the number of outputs. The defaults are those of ViT-B/16.

    >>> vit_parameters()
    86567656
    """
    _check_ints(0, num_layers=num_layers, num_classes=num_classes)
    _check_ints(1, image_size=image_size, patch_size=patch_size)
    _raise_unless(
        image_size % patch_size == 0,
        f"image_size must be a multiple of patch_size; got image_size={image_size}, patch_size={patch_size}. "
        "Resize the image.",
    )
    num_tokens = (image_size // patch_size) ** 2 + 1
    embedding = 3 * patch_size**2 * embed_dim + embed_dim + embed_dim + num_tokens * embed_dim
    return embedding + num_layers * layer_parameters(embed_dim) + 2 * embed_dim + (embed_dim + 1) * num_classes


# ---- growth ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Complexity:
    """The complexity of one head in the parallel form of its paper.

    Attributes:
        time: Operations.
        memory: Numbers stored beyond inputs and outputs.
        sequential_operations: Operations that must follow one another, if the papers give them.
        max_path_length: Longest path between two tokens, if the papers give it.
    """

    time: str
    memory: str
    sequential_operations: str | None = None
    max_path_length: str | None = None


COMPLEXITIES: Mapping[str, Complexity] = MappingProxyType(
    {
        "self-attention": Complexity("O(n² d)", "O(n²)", "O(1)", "O(1)"),
        "self-attention, streamed": Complexity("O(n² d)", "O(n)", "O(1)", "O(1)"),
        "cross-attention": Complexity("O(n_q n_k d)", "O(n_q n_k)", "O(1)", "O(1)"),
        "additive": Complexity("O(n² a)", "O(n² a)", "O(1)", "O(1)"),
        "recurrent": Complexity("O(n d²)", "O(d)", "O(n)", "O(n)"),
        "convolution": Complexity("O(w n d²)", "O(1)", "O(1)", "O(log_w n)"),
        "window": Complexity("O(n w d)", "O(n w)", "O(1)", "O(n/w)"),
        "longformer": Complexity("O(n w d)", "O(n w)"),
        "sparse transformer": Complexity("O(n √n d)", "O(n √n)"),
        "routing": Complexity("O(n √n d)", "O(n √n)"),
        "reformer": Complexity("O(n log n d r)", "O(n log n r)"),
        "linformer": Complexity("O(n m d)", "O(n m + m d)"),
        "performer": Complexity("O(n m d)", "O(n m + m d)"),
        "nystromformer": Complexity("O(n m d + m³)", "O(n m + m²)"),
        "linear": Complexity("O(n d²)", "O(n d + d²)"),
    }
)
"""Time and memory of each kind of layer, by its name.

n tokens, d head_dim, w window or kernel size, m landmarks, features or compressed length, a hidden_dim of additive
scores, r hashing rounds.
"""


def _total_pairs(n_q: int, n_k: int, num_heads: int, batch_size: int, pairs: int | None) -> int:
    """Return the number of visible pairs of all heads and batch elements."""
    _check_ints(0, n_q=n_q, n_k=n_k, batch_size=batch_size)
    _check_ints(1, num_heads=num_heads)
    pairs = n_q * n_k if pairs is None else pairs
    _check_ints(0, pairs=pairs)
    _raise_unless(
        pairs <= n_q * n_k,
        f"pairs must be at most n_q * n_k = {n_q * n_k}; got pairs={pairs}. Count the pairs of one head.",
    )
    return batch_size * num_heads * pairs


def _projection_columns(
    embed_dim: int, num_heads: int, num_kv_heads: int | None, head_dim: int | None
) -> tuple[int, int]:
    """Return the columns of the query projection, H d, and of the key projection, G d."""
    _check_ints(1, embed_dim=embed_dim, num_heads=num_heads)
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    _check_ints(1, num_kv_heads=num_kv_heads)
    _raise_unless(
        num_heads % num_kv_heads == 0,
        f"num_heads must be a multiple of num_kv_heads; got num_heads={num_heads}, num_kv_heads={num_kv_heads}. "
        "Change either.",
    )
    _raise_unless(
        head_dim is not None or embed_dim % num_heads == 0,
        f"embed_dim must be a multiple of num_heads; got embed_dim={embed_dim}, num_heads={num_heads}. "
        "Otherwise pass head_dim.",
    )
    head_dim = embed_dim // num_heads if head_dim is None else head_dim
    _check_ints(1, head_dim=head_dim)
    return num_heads * head_dim, num_kv_heads * head_dim


def _check_ints(minimum: int | None, **numbers: object) -> None:
    """Require Python ints: a float would round large counts, and a NumPy integer would overflow."""
    for name, number in numbers.items():
        bound = "" if minimum is None else f" of at least {minimum}"
        _raise_unless(
            isinstance(number, int) and not isinstance(number, bool) and (minimum is None or number >= minimum),
            f"{name} must be an integer{bound}; got {name}={number!r}. Pass a Python int.",
        )


def _raise_unless(condition: bool, message: str) -> None:
    if not condition:
        raise ArgumentError(message)


def _check_bools(**flags: object) -> None:
    for name, flag in flags.items():
        _raise_unless(isinstance(flag, bool), f"{name} must be True or False; got {name}={flag!r}. Pass a Python bool.")
