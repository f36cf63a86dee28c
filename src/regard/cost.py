"""What attention and the layers around it cost, as exact formulas: whole numbers in, whole numbers out.

A FLOP is one multiplication or one addition, so the product of (m, k) and (k, n) costs 2mkn. `Flops` counts
products only; `softmax` and `additive_scores` give what is no product. Bytes are bytes, neither MB nor MiB.
In formulas: n tokens, m queries, D model width, H heads, G key heads, d a head's width, F feed-forward width.

    >>> from regard import cost
    >>> cost.attention(n_q=4096, n_k=4096, width=64, heads=8).total
    34359738368
    >>> model = 12 * cost.layer(1024, 768, heads=12) + cost.vocabulary(1024, 768, entries=50257)
    >>> cost.training(model).total
    874944921600
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from fractions import Fraction
from types import MappingProxyType

from regard.argument_types import check_types
from regard.errors import SpecError


@dataclass(frozen=True)
class Flops:
    """FLOPs by part. Costs add up (`layer(...) + vocabulary(...)`) and repeat (`12 * layer(...)`)."""

    projections: int = 0
    scores: int = 0
    values: int = 0
    feed_forward: int = 0
    vocabulary: int = 0

    @property
    def attention(self) -> int:
        """What grows with the pairs: scores and weighted values."""
        return self.scores + self.values

    @property
    def rest(self) -> int:
        """What grows with the tokens: 2 FLOPs a token for each entry of a matrix."""
        return self.projections + self.feed_forward + self.vocabulary

    @property
    def total(self) -> int:
        return self.attention + self.rest

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> "Flops":
        _check(0, times=times)
        return Flops(*(times * part for part in astuple(self)))

    __rmul__ = __mul__


# ---- forward -----------------------------------------------------------------------------------------------
def causal_pairs(n_q: int, n_k: int, *, start: int | None = None) -> int:
    """How many (query, key) pairs a causal head sees: n(n+1)/2 when square.

    Query i stands at `start + i`; `start` defaults to n_k - n_q, as in `regard.attention`.

    >>> causal_pairs(512, 512), causal_pairs(1, 512)
    (131328, 512)
    """
    _check(0, n_q=n_q, n_k=n_k)
    start = n_k - n_q if start is None else start
    _check(None, start=start)

    def seen_before(position: int) -> int:
        rising = min(max(position, 0), n_k)
        return rising * (rising + 1) // 2 + max(position - n_k, 0) * n_k

    return seen_before(start + n_q) - seen_before(start)


def attention(
    n_q: int,
    n_k: int,
    width: int,
    *,
    value_width: int | None = None,
    heads: int = 1,
    batch: int = 1,
    pairs: int | None = None,
) -> Flops:
    """QK' and AV for q of shape (batch, heads, n_q, width): 4mnd a head, causal 2n(n+1)d.

    `width` is one head's. `pairs` is how many one head sees: all of them, or say `causal_pairs(n_q, n_k)`.
    Key heads are not asked for: fewer of them save memory, not FLOPs.
    """
    _check(1, width=width)
    value_width = width if value_width is None else value_width
    _check(1, value_width=value_width)
    seen = _seen(n_q, n_k, heads, batch, pairs)
    return Flops(scores=2 * seen * width, values=2 * seen * value_width)


def softmax(n_q: int, n_k: int, *, heads: int = 1, batch: int = 1, pairs: int | None = None) -> int:
    """An estimate: 5 operations a pair (maximum, difference, exponential, sum, quotient)."""
    return 5 * _seen(n_q, n_k, heads, batch, pairs)


def additive_scores(
    n_q: int, n_k: int, hidden: int, *, heads: int = 1, batch: int = 1, pairs: int | None = None
) -> int:
    """u' tanh(a_i + b_j) over `hidden` numbers: 3 mn hidden (sum, product, sum); tanh is not counted."""
    _check(1, hidden=hidden)
    return 3 * _seen(n_q, n_k, heads, batch, pairs) * hidden


def projections(
    n_q: int,
    n_k: int,
    width: int,
    *,
    heads: int = 1,
    key_heads: int | None = None,
    head_width: int | None = None,
    output: bool = True,
    batch: int = 1,
) -> Flops:
    """q from n_q tokens, k and v from n_k tokens (in self-attention the same), and the output projection.

    Self-attention 8nD², without the output 6nD², grouped 4nD² + 4nDGd. `width` is that of the model.
    """
    _check_flag(output=output)
    _check(0, n_q=n_q, n_k=n_k, batch=batch)
    query_columns, key_columns = _columns(width, heads, key_heads, head_width)
    products = n_q * query_columns * (2 if output else 1) + 2 * n_k * key_columns
    return Flops(projections=2 * batch * width * products)


def feed_forward(
    length: int, width: int, feed_forward: int | None = None, *, gated: bool = False, batch: int = 1
) -> Flops:
    """Two matrices, 4nDF, or three when gated, 6nDF. F is 4 * width by default; 0 means no such part."""
    _check_flag(gated=gated)
    _check(1, width=width)
    feed_forward = 4 * width if feed_forward is None else feed_forward
    _check(0, length=length, feed_forward=feed_forward, batch=batch)
    return Flops(feed_forward=(6 if gated else 4) * batch * length * width * feed_forward)


def vocabulary(length: int, width: int, entries: int, *, one_hot_input: bool = False, batch: int = 1) -> Flops:
    """The output head, 2nDV. Embedding is a look-up and free; `one_hot_input=True` counts it as a product,
    as published tables do that print 12nDV for training."""
    _check_flag(one_hot_input=one_hot_input)
    _check(0, length=length, entries=entries, batch=batch)
    _check(1, width=width)
    return Flops(vocabulary=(4 if one_hot_input else 2) * batch * length * width * entries)


_feed_forward = feed_forward  # `layer` has an argument of that name


def layer(
    length: int,
    width: int,
    *,
    heads: int = 1,
    key_heads: int | None = None,
    head_width: int | None = None,
    feed_forward: int | None = None,
    gated: bool = False,
    pairs: int | None = None,
    batch: int = 1,
) -> Flops:
    """Self-attention with its four projections, and a feed-forward part.

    For a decoder's cross-attention add `projections(m, n, ...) + attention(m, n, ...)`.

    >>> layer(1024, 768).total, layer(1024, 768, pairs=causal_pairs(1024, 1024)).total
    (17716740096, 16107700224)
    """
    _check_flag(gated=gated)
    _check(0, length=length)
    each = _columns(width, heads, key_heads, head_width)[0] // heads
    return (
        projections(length, length, width, heads=heads, key_heads=key_heads, head_width=each, batch=batch)
        + attention(length, length, each, heads=heads, batch=batch, pairs=pairs)
        + _feed_forward(length, width, feed_forward, gated=gated, batch=batch)
    )


@check_types
def crossing(forward: Flops, length: int) -> Fraction:
    """The length at which attention costs as much as the rest, from the cost at any one length.

    Attention grows as n², the rest as n; the seen part of the pairs is taken to stay what it is. Half of them
    is causal in the limit; causal exactly, with its diagonal, crosses one token earlier.

    >>> crossing(layer(1024, 768), 1024) / 768, crossing(layer(1024, 768, pairs=1024**2 // 2), 1024) / 768
    (Fraction(6, 1), Fraction(12, 1))
    """
    _check(1, length=length)
    _must(forward.attention > 0, f"forward must contain attention; got {forward}. Add attention(...) to it.")
    return Fraction(length * forward.rest, forward.attention)


# ---- training ----------------------------------------------------------------------------------------------
@check_types
def backward(forward: Flops, *, recompute: bool = False) -> Flops:
    """Twice the forward: a product for the gradient of each factor. `recompute=True` computes the scores once
    more, as engines in linear memory do: attention costs 10n²D instead of 8n²D."""
    return 2 * forward + Flops(scores=forward.scores if recompute else 0)


@check_types
def training(forward: Flops, *, recompute: bool = False) -> Flops:
    """Forward and backward: attention 12n²D, projections 24nD², feed-forward 12nDF or 18nDF, head 6nDV."""
    return forward + backward(forward, recompute=recompute)


def six_n_d(parameters: int, tokens: int, *, layers: int = 0, width: int = 0, keys_seen: int = 0) -> int:
    """Training by the rule 6 N tokens, corrected by attention's 12 layers D keys_seen a token.

    N counts entries of matrices: the output head, not the looked-up embedding (`rest // 2` of a model's cost
    at length 1). `keys_seen` is how many keys a token sees on average: the length, or half of it when causal.

    >>> six_n_d(124_000_000, 10**9), six_n_d(124_000_000, 10**9, layers=12, width=768, keys_seen=1024)
    (744000000000000000, 857246208000000000)
    """
    _check(0, parameters=parameters, tokens=tokens, layers=layers, width=width, keys_seen=keys_seen)
    return tokens * (6 * parameters + 12 * layers * width * keys_seen)


# ---- memory ------------------------------------------------------------------------------------------------
def stored_weights(
    n_q: int, n_k: int, *, heads: int = 1, layers: int = 1, batch: int = 1, bytes_per_number: int = 4
) -> int:
    """Bytes of all weight matrices where they are kept: batch layers H mn bytes. Linear memory keeps none.

    >>> stored_weights(512, 512, heads=12, layers=12) == 144 * 2**20
    True
    """
    _check(0, layers=layers)
    _check(1, bytes_per_number=bytes_per_number)
    return layers * bytes_per_number * _seen(n_q, n_k, heads, batch, None)


def activations(
    length: int, width: int, heads: int, *, layers: int = 1, batch: int = 1, recompute: bool = False
) -> int:
    """An estimate of the bytes training keeps: layers batch n (34D + 5Hn) (Korthikanti et al., 2205.05198).

    For 16-bit numbers, dropout, and a plain feed-forward part of 4D. `recompute=True` leaves out 5Hn.
    """
    _check_flag(recompute=recompute)
    _check(0, length=length, layers=layers, batch=batch)
    _check(1, width=width, heads=heads)
    return layers * batch * length * (34 * width + (0 if recompute else 5 * heads * length))


def cache(
    length: int, *, layers: int, key_heads: int, head_width: int, batch: int = 1, bytes_per_number: int = 2
) -> int:
    """Bytes of the keys and values kept while generating: 2 layers G d n batch bytes.

    >>> cache(4096, layers=32, key_heads=8, head_width=128) == 512 * 2**20
    True
    """
    _check(0, length=length, layers=layers, batch=batch)
    _check(1, key_heads=key_heads, head_width=head_width, bytes_per_number=bytes_per_number)
    return 2 * layers * key_heads * head_width * length * batch * bytes_per_number


def decode_intensity(heads: int, key_heads: int, *, bytes_per_number: int = 2) -> Fraction:
    """FLOPs of attention for a byte of cache read when generating: H/G · 2/bytes, whatever the length."""
    _columns(heads, heads, key_heads, None)
    read = cache(1, layers=1, key_heads=key_heads, head_width=1, bytes_per_number=bytes_per_number)
    return Fraction(attention(1, 1, 1, heads=heads).total, read)


# ---- parameters --------------------------------------------------------------------------------------------
def block_parameters(width: int, feed_forward: int | None = None) -> int:
    """One layer with its biases and two norms: 4D² + 4D + 2DF + F + D + 4D; F is 4 * width by default."""
    _check(1, width=width)
    hidden = 4 * width if feed_forward is None else feed_forward
    _check(1, feed_forward=hidden)
    return 4 * width**2 + 4 * width + 2 * width * hidden + hidden + width + 4 * width


@check_types
def gpt2_parameters(*, layers: int = 12, width: int = 768, vocabulary: int = 50257, length: int = 1024) -> int:
    """Token table (also the output head), positions, blocks, last norm: 124,439,808 for GPT-2 small."""
    _check(0, layers=layers, vocabulary=vocabulary, length=length)
    return (vocabulary + length) * width + layers * block_parameters(width) + 2 * width


@check_types
def vit_parameters(
    *, layers: int = 12, width: int = 768, image: int = 224, patch: int = 16, classes: int = 1000
) -> int:
    """Patch projection, class token, positions, blocks, last norm, classifier: 86,567,656 for ViT-B/16."""
    _check(0, layers=layers, classes=classes)
    _check(1, image=image, patch=patch)
    _must(
        image % patch == 0,
        f"image must be a multiple of patch; got image={image}, patch={patch}. Resize the image.",
    )
    tokens = (image // patch) ** 2 + 1
    embedding = 3 * patch**2 * width + width + width + tokens * width
    return embedding + layers * block_parameters(width) + 2 * width + (width + 1) * classes


# ---- growth ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Growth:
    """How one head's time grows, and what it holds beyond inputs and outputs, in its paper's parallel form;
    `steps` that must follow one another and the longest `path` between two tokens, where the papers say."""

    time: str
    memory: str
    steps: str | None = None
    path: str | None = None


# n tokens, d width, w window or kernel, m landmarks, features or compressed length, a additive hidden width,
# r hashing rounds
GROWTH: Mapping[str, Growth] = MappingProxyType(
    {
        "self-attention": Growth("O(n² d)", "O(n²)", "O(1)", "O(1)"),
        "self-attention, streamed": Growth("O(n² d)", "O(n)", "O(1)", "O(1)"),
        "cross-attention": Growth("O(n_q n_k d)", "O(n_q n_k)", "O(1)", "O(1)"),
        "additive": Growth("O(n² a)", "O(n² a)", "O(1)", "O(1)"),
        "recurrent": Growth("O(n d²)", "O(d)", "O(n)", "O(n)"),
        "convolution": Growth("O(w n d²)", "O(1)", "O(1)", "O(log_w n)"),
        "window": Growth("O(n w d)", "O(n w)", "O(1)", "O(n/w)"),
        "longformer": Growth("O(n w d)", "O(n w)"),
        "sparse transformer": Growth("O(n √n d)", "O(n √n)"),
        "routing": Growth("O(n √n d)", "O(n √n)"),
        "reformer": Growth("O(n log n d r)", "O(n log n r)"),
        "linformer": Growth("O(n m d)", "O(n m + m d)"),
        "performer": Growth("O(n m d)", "O(n m + m d)"),
        "nystromformer": Growth("O(n m d + m³)", "O(n m + m²)"),
        "linear": Growth("O(n d²)", "O(n d + d²)"),
    }
)


def _seen(n_q: int, n_k: int, heads: int, batch: int, pairs: int | None) -> int:
    """Pairs that all heads of the batch see together."""
    _check(0, n_q=n_q, n_k=n_k, batch=batch)
    _check(1, heads=heads)
    pairs = n_q * n_k if pairs is None else pairs
    _check(0, pairs=pairs)
    _must(
        pairs <= n_q * n_k,
        f"pairs must be at most n_q * n_k = {n_q * n_k}; got pairs={pairs}. Count those of one head.",
    )
    return batch * heads * pairs


def _columns(width: int, heads: int, key_heads: int | None, head_width: int | None) -> tuple[int, int]:
    """Columns of the query projection, H d, and of the key projection, G d."""
    _check(1, width=width, heads=heads)
    key_heads = heads if key_heads is None else key_heads
    _check(1, key_heads=key_heads)
    _must(
        heads % key_heads == 0,
        f"heads must be a multiple of key_heads; got heads={heads}, key_heads={key_heads}. Change either.",
    )
    _must(
        head_width is not None or width % heads == 0,
        f"width must be a multiple of heads; got width={width}, heads={heads}. Otherwise give head_width.",
    )
    head_width = width // heads if head_width is None else head_width
    _check(1, head_width=head_width)
    return heads * head_width, key_heads * head_width


def _check(least: int | None, **numbers: object) -> None:
    """Python ints only: a float would round large counts, and a NumPy integer would overflow."""
    for name, number in numbers.items():
        bound = "" if least is None else f" of at least {least}"
        _must(
            isinstance(number, int) and not isinstance(number, bool) and (least is None or number >= least),
            f"{name} must be a whole number{bound}; got {name}={number!r}. Give it as a Python int.",
        )


def _must(holds: bool, message: str) -> None:
    if not holds:
        raise SpecError(message)


def _check_flag(**flags: object) -> None:
    for name, flag in flags.items():
        _must(isinstance(flag, bool), f"{name} must be True or False; got {name}={flag!r}. Give it as a Python bool.")
