# %% [markdown]
# # Attention from scratch
#
# In this tutorial you write attention yourself: a function with masks and heads, its gradient by hand, a version with
# little memory, and a layer. Each part is compared with PyTorch and with `regard`. It takes about half an hour to read
# with the code, and a few seconds to run.
#
# You need NumPy and a little PyTorch. The page [Attention, step by step](../guide/attention-step-by-step.md) explains
# queries, keys, values and the softmax.

# %%
# %matplotlib inline
import numpy as np
import torch
from torch.nn import Parameter
from torch.nn.functional import linear, scaled_dot_product_attention

import regard
from regard import mask, nn, plot
from regard.theory import check_causality

rng = np.random.default_rng(0)
torch.manual_seed(0)


def difference(x, y):
    """Return the largest difference of two arrays or tensors."""
    error = (torch.as_tensor(x) - torch.as_tensor(y)).detach().abs().max()
    return f"{error:.0e}"


# %% [markdown]
# ## A function of three arrays
#
# Queries, keys and values have the shape (batch, heads, length, dimension). NumPy's `@` multiplies the last two
# dimensions, and all others are independent. So the code is the same for one head and for a hundred.


# %%
def softmax(scores):
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def attention(q, k, v, visible=True):
    """Return the output and the weights; True in `visible` allows a pair."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = softmax(np.where(visible, scores, -np.inf))
    return weights @ v, weights


batch, num_heads, n_q, n_k, head_dim = 2, 4, 4, 6, 16
q = rng.standard_normal((batch, num_heads, n_q, head_dim))
k, v = rng.standard_normal((2, batch, num_heads, n_k, head_dim))
output, weights = attention(q, k, v)
print("output ", output.shape)
print("weights", weights.shape)

# %% [markdown]
# The output has a row for each query, and the weights have a row for each query and a column for each key. Now
# compare the output with two libraries:

# %%
q_, k_, v_ = (torch.from_numpy(x) for x in (q, k, v))
print("torch ", difference(output, scaled_dot_product_attention(q_, k_, v_)))
print("regard", difference(output, regard.attention(q, k, v)))

# %% [markdown]
# The differences are rounding errors of float64. `regard.attention` takes NumPy arrays and torch tensors.
#
# ## Masks, and the query at the end
#
# A causal mask hides later keys. With four queries and six keys, which keys are later? In a language model with a
# cache, the queries are the newest tokens, so the *last* query belongs to the *last* key. Query i then has position i
# + 2:


# %%
def causal(n_q, n_k):
    positions = np.arange(n_q)[:, None] + n_k - n_q
    return np.arange(n_k) <= positions


output, weights = attention(q, k, v, causal(n_q, n_k))
by_regard = regard.attention(q, k, v, mask=mask.causal())
by_torch = scaled_dot_product_attention(q_, k_, v_, is_causal=True)
print("regard", difference(output, by_regard))
print("torch ", difference(output, by_torch))

# %% [markdown]
# PyTorch's `is_causal` aligns the *first* query with the first key, so its result is different. Both are valid, but
# mixing them is a common bug. The two alignments agree if there are as many queries as keys.

# %% cover=true alt="Two maps of four queries and six keys. On the left, all keys are visible to the last query; on the right, only four"
first_aligned = np.tril(np.ones((n_q, n_k), dtype=bool))
maps = np.stack([weights[0, 0], attention(q, k, v, first_aligned)[1][0, 0]])
titles = ["last query at the last key", "first query at the first key"]
plot.weights(maps, titles=titles)

# %% [markdown]
# ### A query with no visible key
#
# Padding can hide all keys of a query. The largest score of such a row is -∞, and -∞ - (-∞) is not a number:

# %%
one_empty_row = causal(n_q, n_k)
one_empty_row[1] = False
with np.errstate(invalid="ignore"):
    print("ours  ", attention(q, k, v, one_empty_row)[0][0, 0, 1, :3])
by_regard = regard.attention(q, k, v, mask=torch.from_numpy(one_empty_row))
print("regard", by_regard[0, 0, 1, :3])

# %% [markdown]
# A NaN spreads to all tokens in the next layer. The output of such a query is 0 in `regard`: a sum over no keys. Two
# changes repair our softmax. The maximum is replaced by a finite number, and a sum of 0 is not used as a divisor:


# %%
def softmax(scores):
    largest = scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = exps.sum(axis=-1, keepdims=True)
    return exps / np.where(total == 0, 1, total)


output, weights = attention(q, k, v, one_empty_row)
print("row 1 ", output[0, 0, 1, :3])
print("regard", difference(output, by_regard))

# %% [markdown]
# ## The gradient by hand
#
# Training needs the gradient of a loss with respect to q, k and v. Let A be the weights and dO the gradient of the
# loss with respect to the output. The chain rule, read backwards through `attention`, gives three steps:
#
# | step forward | step backward |
# |---|---|
# | O = A V | dV = Aᵀ dO, and dA = dO Vᵀ |
# | A = softmax(S) | dS = A ∘ (dA - the sum of A ∘ dA over the row) |
# | S = Q Kᵀ / √d | dQ = dS K / √d, and dK = dSᵀ Q / √d |
#
# The sign ∘ multiplies entry by entry. In one row of the softmax, a weight depends on every score: the derivative of
# a_j with respect to s_l is a_j (1 - a_l) if j = l, and -a_j a_l otherwise, in short a_j (1[j = l] - a_l). By the chain
# rule, entry l of the row of dS is Σ_j dA_j a_j (1[j = l] - a_l) = a_l (dA_l - Σ_j a_j dA_j): the second step.


# %%
def attention_gradient(q, k, v, d_output, visible=True):
    """Return the gradients with respect to q, k, v and the scores."""
    _, weights = attention(q, k, v, visible)
    scale = 1 / np.sqrt(q.shape[-1])
    d_weights = d_output @ v.swapaxes(-1, -2)
    row_sums = (weights * d_weights).sum(axis=-1, keepdims=True)
    d_scores = weights * (d_weights - row_sums)
    d_q = d_scores @ k * scale
    d_k = d_scores.swapaxes(-1, -2) @ q * scale
    d_v = weights.swapaxes(-1, -2) @ d_output
    return d_q, d_k, d_v, d_scores


d_output = rng.standard_normal(output.shape)
*by_hand, d_scores = attention_gradient(q, k, v, d_output, one_empty_row)
inputs = [x.requires_grad_() for x in (q_, k_, v_)]
result = regard.attention(*inputs, mask=torch.from_numpy(one_empty_row))
by_autograd = torch.autograd.grad(result, inputs, torch.from_numpy(d_output))
for name, hand, auto in zip("qkv", by_hand, by_autograd, strict=True):
    print(f"d{name}", difference(hand, auto))

# %% [markdown]
# The gradients agree. Two formulas can share a mistake, so check one entry against the definition of a derivative as
# well:


# %%
def loss(q):
    return (attention(q, k, v, one_empty_row)[0] * d_output).sum()


step = np.zeros_like(q)
step[1, 2, 2, 7] = 1e-5
print(f"finite difference {(loss(q + step) - loss(q - step)) / 2e-5:.8f}")
print(f"by hand           {by_hand[0][1, 2, 2, 7]:.8f}")

# %% [markdown]
# Every row of dS sums to 0, because the softmax only moves weight from one key to another. Hidden keys have gradient
# 0. The gradient is small where the weight is small, so a head that ignores a key learns slowly to use it.

# %% alt="Left: weights of four queries. Right: gradients of the scores in red and blue, 0 for hidden keys and for the hidden row"
print(f"largest sum of a row: {np.abs(d_scores.sum(axis=-1)).max():.0e}")
left = plot.ImagePanel("Weights", "key", "query", weights[0, 0])
labels = ("Gradient of the scores", "key", "query")
right = plot.ImagePanel(*labels, d_scores[0, 0], signed=True)
plot.charts([left, right])

# %% [markdown]
# ## Less memory: blocks of keys
#
# The scores of n tokens are n² numbers. *Online softmax* (Milakov and Gimelshein, 2018) avoids storing them. It reads
# the keys in blocks and stores three things per query: the largest score so far, the sum of exps, and the weighted sum
# of values. If the maximum rises from m to m', both sums are multiplied by exp(m - m'). This is the idea behind
# FlashAttention, and `regard` uses it on every backend but `reference`.


# %%
def attention_in_blocks(q, k, v, block=64):
    """Return the output and the logarithm of the sums; no array has all pairs."""
    n_q, head_dim = q.shape[-2:]
    largest = np.full((*q.shape[:-2], n_q, 1), -np.inf)
    total = np.zeros_like(largest)
    output = np.zeros((*q.shape[:-1], v.shape[-1]))
    for start in range(0, k.shape[-2], block):
        keys = k[..., start : start + block, :]
        values = v[..., start : start + block, :]
        scores = q @ keys.swapaxes(-1, -2) / np.sqrt(head_dim)
        new_largest = np.maximum(largest, scores.max(axis=-1, keepdims=True))
        rescale = np.exp(largest - new_largest)
        exps = np.exp(scores - new_largest)
        total = total * rescale + exps.sum(axis=-1, keepdims=True)
        output = output * rescale + exps @ values
        largest = new_largest
    return output / total, (largest + np.log(total)).squeeze(-1)


long_q, long_k, long_v = rng.standard_normal((3, 1, 1, 2048, 64))
expected, all_weights = attention(long_q, long_k, long_v)
long_output, lse = attention_in_blocks(long_q, long_k, long_v)
print("all pairs at once", difference(long_output, expected))
result = regard.attention_with_weights(long_q, long_k, long_v)
print("regard, output   ", difference(long_output, result.output))
print("regard, lse      ", difference(lse, result.lse))

# %% [markdown]
# The result is exact. The second output, called `lse`, is worth keeping: with it, any single weight follows from one
# query and one key. So the backward pass can compute the weights again, block by block, and `regard` can show weights
# that it never stored. In the code, 8 is √64, the root of the head dimension:

# %%
i, j = 1234, 567
print(f"{np.exp(long_q[0, 0, i] @ long_k[0, 0, j] / 8 - lse[0, 0, i]):.8f}")
print(f"{all_weights[0, 0, i, j]:.8f}")
print(f"{result.weights[0, 0, i, j]:.8f}")

# %% alt="Bytes by length on logarithmic axes: all scores grow as n squared, the scores of a block as n"
lengths = np.array([512, 2048, 8192, 32768, 131072])
curves = {"all scores": 8.0 * lengths**2, "a block of 64": 8.0 * 64 * lengths}
plot.growth(lengths, curves, unit="bytes per head")

# %% [markdown]
# At 131,072 tokens, all scores of one head in float64 take 137 GB, and the scores of a block of 64 keys 67 MB.
#
# ## A layer
#
# A layer adds what is learned: the matrices that make queries, keys and values, and the matrix that mixes the heads.
# It is written in PyTorch, so that autograd does the work of the section above. The names and shapes of the
# parameters are those of `torch.nn.MultiheadAttention`.


# %%
class SelfAttention(torch.nn.Module):
    """Causal self-attention, with an optional cache of keys and values."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim)
        torch.nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x, cache=None):
        q, k, v = self.project(x)
        if cache is not None:
            if "k" in cache:
                k = torch.cat((cache["k"], k), dim=2)
                v = torch.cat((cache["v"], v), dim=2)
            cache["k"], cache["v"] = k, v
        return self.out_proj(self.merge_heads(self.attend(q, k, v)))

    def project(self, x):
        """Return q, k and v, each (batch, heads, n, head_dim)."""
        projected = linear(x, self.in_proj_weight, self.in_proj_bias)
        return (self.split_heads(part) for part in projected.chunk(3, dim=-1))

    def split_heads(self, x):
        """Reshape (batch, n, embed_dim) to (batch, heads, n, head_dim)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge_heads(self, x):
        return x.transpose(1, 2).flatten(2)

    def attend(self, q, k, v):
        n_q, n_k = q.shape[2], k.shape[2]
        # the last query has the position of the last key
        positions = torch.arange(n_k - n_q, n_k)[:, None]
        is_later = torch.arange(n_k) > positions
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(is_later, -torch.inf).softmax(-1) @ v


layer = SelfAttention(embed_dim=64, num_heads=8).double()

# %% [markdown]
# Copy its parameters into the layers of two libraries, and compare outputs and gradients:

# %%
x = torch.randn(2, 10, 64, dtype=torch.float64, requires_grad=True)
torch_layer = torch.nn.MultiheadAttention(64, 8, batch_first=True).double()
regard_layer = nn.MultiHeadAttention(64, num_heads=8).double()
torch_layer.load_state_dict(layer.state_dict())
regard_layer.load_state_dict(layer.state_dict())

is_hidden = torch.ones(10, 10, dtype=torch.bool).triu(1)
ours = layer(x)
theirs = {  # in a mask of torch's layer, True means hidden
    "torch": torch_layer(x, x, x, attn_mask=is_hidden, need_weights=False)[0],
    "regard": regard_layer(x, mask=mask.causal()),
}
(gradient,) = torch.autograd.grad(ours.square().sum(), x)
for name, y in theirs.items():
    (other,) = torch.autograd.grad(y.square().sum(), x)
    errors = difference(ours, y), difference(gradient, other)
    print(f"{name:6} output {errors[0]}, gradient {errors[1]}")

# %% [markdown]
# ### Two more tests
#
# The tests above do not find a layer that is wrong only at some lengths, or only with a cache. Two properties find
# such bugs. The first is causality: no output changes if a later input changes. `check_causality` tests 14 lengths:

# %%
print(check_causality(layer, embed_dim=64))

# %% [markdown]
# The second is consistency: decoding token by token with a cache gives the same outputs as one pass over all tokens.


# %%
def decode(layer, x):
    cache = {}
    with torch.no_grad():
        outputs = [layer(token, cache) for token in x.split(1, dim=1)]
    return torch.cat(outputs, dim=1)


print("cache", difference(decode(layer, x), layer(x)))

# %% [markdown]
# Now make a common mistake: align the mask with the first query. The layer still passes the first test, and fails the
# second:


# %%
class WrongAlignment(SelfAttention):
    def attend(self, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        is_later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(is_later, -torch.inf).softmax(-1) @ v


wrong = WrongAlignment(64, 8).double()
wrong.load_state_dict(layer.state_dict())
print("causality holds:", check_causality(wrong, embed_dim=64).holds)
print("cache", difference(decode(wrong, x), wrong(x)))

# %% [markdown]
# With a cache there is one query, and with the wrong mask only the first key is visible to it. Training is not
# affected. So the loss is good, and the generated text is bad.
#
# ## Next
#
# - [Design a new attention](design-a-new-attention.ipynb): change the score, the mask and the normalizer.
# - [Is my attention layer correct?](../how-to/check-a-layer.md): more checks, and the bugs that they find.
# - [Without the matrix](../guide/attention-step-by-step.md#without-the-matrix-optional): online softmax, one key at a time.
#
# **References**: Vaswani et al., [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762) (2017); Milakov and
# Gimelshein, [*Online normalizer calculation for softmax*](https://arxiv.org/abs/1805.02867) (2018); Dao et al.,
# [*FlashAttention*](https://arxiv.org/abs/2205.14135) (2022).
