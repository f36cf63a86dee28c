# %% [markdown]
# # Design a new attention
#
# In this tutorial you design an attention of your own: a score with a learned decay, a mask, and a normalizer. You
# check it, measure its cost, put it into a layer, and train it against two baselines. The result is mixed, as in most
# experiments. It takes about twenty minutes to read and half a minute to run.
#
# The task decides the design. Here it is *the most recent value*: a sequence has pairs of a key and a value, and keys
# occur many times. For each pair, predict the value of the most recent earlier pair with the same key.
#
# ```text
# key      a  b  a  c  b  a
# value    3  7  5  1  2  8
# predict  -  -  3  -  7  5
# ```
#
# A head must match the key, and among the matches prefer the nearest. So the score needs the distance.

# %%
# %matplotlib inline
import torch
from torch.nn.functional import cross_entropy, softplus

import regard
from regard import mask, nn, plot, score
from regard.theory import check_batch_independence, check_causality


def rounded(x):
    return [round(number, 2) for number in x.tolist()]


# %% [markdown]
# ## The score
#
# ALiBi (Press et al., 2022) subtracts a number proportional to the distance. The penalties of the distances 1000 and
# 1001 differ as much as those of 1 and 2. In the steepest of four heads, the penalty of the distance 1000 is 250,
# which no score of a match makes up for.
#
# The idea: subtract the *logarithm* of the distance, times a learned number per head. A weight then decays as a power
# of the distance, and not exponentially. A modifier is a function of the score `s`, the batch element `b`, the head
# `h`, the query position `i` and the key position `j`:

# %%
torch.manual_seed(0)
num_heads = 4
power = torch.ones(num_heads, requires_grad=True)


def power_decay(s, b, h, i, j):
    return s - power[h] * torch.log(1 + abs(i - j))


q, k, v = torch.randn(3, 1, num_heads, 128, 16)
output = regard.attention(q, k, v, score=power_decay)
output.square().sum().backward()
print("output", tuple(output.shape))
print("gradient of the powers", rounded(power.grad))

# %% [markdown]
# The function runs once, with symbols instead of numbers, and becomes a formula that every backend computes. Tensors
# that it indexes are parameters and get gradients.
#
# ## The mask
#
# A pair must not attend to itself, or it could copy the value that it should predict. The causal mask includes the
# diagonal, so write another one. True means that the query may attend to the key:

# %%
earlier = mask.from_function(lambda b, h, i, j: j < i)
decays = {"alibi": score.alibi(), "power decay": power_decay}
# all products are 0, so the weights show the decay alone
x = torch.zeros(1, num_heads, 96, 16)


def first_head(q, k, v, f):
    """Return the weights of the first head with the score f."""
    result = regard.attention_with_weights(q, k, v, score=f, mask=earlier)
    return result.weights[0, 0].detach()


# %% cover=true alt="Two maps of 96 positions on a logarithmic scale. ALiBi: a band along the diagonal. Power decay: all positions below the diagonal are visible"
maps = torch.stack([first_head(x, x, x, f) for f in decays.values()])
plot.weights(maps, titles=list(decays), scale="log")

# %% [markdown]
# The scale is logarithmic. With ALiBi's steepest head, on the left, weights fall below 1/10,000 after about 30
# positions. The power decay keeps some weight at every distance. The first query has no visible key, and its output
# is exactly 0.
#
# ## The normalizer
#
# Softmax is exp of the score, divided by the sum of the row. Any positive function g can take the place of exp. The
# weights g(s) over their sum are the softmax of log g(s), so a second modifier defines them. Take the squared
# softplus, log(1 + exp(s))². For large scores it grows only as s². For negative scores it falls as exp(2s), faster
# than exp.


# %%
def squared_softplus(s, b, h, i, j):
    return 2 * torch.log(softplus(s))


ours = score.scaled_dot().then(power_decay)
squashed = ours.then(squared_softplus)
for name, f in {"softmax": ours, "softplus": squashed}.items():
    last_row = first_head(q, k, v, f)[-1]
    print(f"{name:8} largest {last_row.max():.3f}, sum {last_row.sum():.3f}")

# %% [markdown]
# A normalizer that is not a quotient of this kind needs a class: see [how to write a custom
# normalizer](../how-to/custom-normalizer.md).
#
# ## Checks
#
# Compare with the formula, written out directly in float64:


# %%
def by_formula(q, k, v, power):
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    decay = power[:, None, None] * torch.log(1.0 + (i - j).abs())
    scores = q @ k.mT / q.shape[-1] ** 0.5 - decay
    weights = scores.masked_fill(j >= i, -torch.inf).softmax(-1)
    return weights.nan_to_num(0.0) @ v  # no key is visible to the first query


with torch.no_grad():
    double = [x.double() for x in (q, k, v)]
    output = regard.attention(*double, score=ours, mask=earlier)
    error = (output - by_formula(*double, power.double())).abs().max()
    print(f"largest error in float64: {error:.0e}")

# %% [markdown]
# Then compare first and second derivatives with finite differences, with respect to the queries and to the powers.
# Small inputs suffice:

# %%
small_q, small_k, small_v = torch.randn(3, 1, 2, 5, 2, dtype=torch.float64)
small_power = torch.rand(2, dtype=torch.float64, requires_grad=True)


def call(q, power):
    def decay(s, b, h, i, j):
        return s - power[h] * torch.log(1 + abs(i - j))

    return regard.attention(q, small_k, small_v, score=decay, mask=earlier)


inputs = (small_q.requires_grad_(), small_power)
print("first derivatives: ", torch.autograd.gradcheck(call, inputs))
print("second derivatives:", torch.autograd.gradgradcheck(call, inputs))

# %% [markdown]
# ## What runs, and at what cost
#
# `explain` computes nothing. It returns the formula as the library reads it, the backend, and the cost. These are
# some of its lines ([all of them](../reference/explain.md)):

# %% varies=true
shape = (1, num_heads, 2048, 64)
plan = regard.explain(shape, shape, shape, score=ours, mask=earlier)
for line in str(plan).splitlines():
    if line.startswith(("formula", "shape", "tiles")):
        print(line.partition(", float32")[0])
print(f"cost     {plan.cost.flops / 1e9:.1f} GFLOP")

# %% [markdown]
# Tiles above the diagonal, about half of them, are skipped. Now measure the time, and the memory beyond the inputs,
# against the formula in eager PyTorch:

# %% varies=true
big_q, big_k, big_v = torch.randn(3, 1, num_heads, 2048, 64)
formula = ("formula", lambda q, k, v: by_formula(q, k, v, power))
library = ("regard", {"score": ours, "mask": earlier})
comparison = regard.compare(big_q, big_k, big_v, formula, library)
for side in (comparison.a, comparison.b):
    milliseconds, mebibytes = 1000 * side.seconds, side.memory_bytes / 2**20
    print(f"{side.name:8} {milliseconds:.0f} ms, {mebibytes:.1f} MiB")

# %% [markdown]
# The memory of the formula grows with the square of the length. The times are those of the machine that made this
# page, with one thread.
#
# ## A layer
#
# Layers of `regard.nn` take a score, mask or normalizer. One with learned parameters is a module that returns it:


# %%
class PowerDecay(torch.nn.Module):
    """s - power[head] · log(1 + distance), then another modifier if given."""

    def __init__(self, num_heads, then=None):
        super().__init__()
        self.power = torch.nn.Parameter(torch.ones(num_heads))
        self.then = then

    def forward(self):
        power = self.power
        decay = score.scaled_dot().then(
            lambda s, b, h, i, j: s - power[h] * torch.log(1 + abs(i - j))
        )
        return decay if self.then is None else decay.then(self.then)


layer = nn.MultiHeadAttention(64, num_heads, score=PowerDecay(num_heads))
layer = layer.double()
print(*(name for name, _ in layer.named_parameters()))
print(check_causality(lambda x: layer(x, mask=earlier), embed_dim=64))
print(check_batch_independence(lambda x: layer(x, mask=earlier), embed_dim=64))

# %% [markdown]
# ## The experiment
#
# The model is one layer. A query is the embedding of a key; the layer attends to pairs of a key and a value. All
# variants have the same sizes, data, seeds and number of steps. They train on 64 pairs with equally frequent keys.

# %%
NUM_KEYS, NUM_VALUES, EMBED_DIM = 16, 16, 32


def sample(n, batch_size, generator, exponent=0.0):
    """Return keys, values, and the position of the most recent equal key.

    Each has shape (batch_size, n). A position is -1 if there is no such key.
    Key m has a frequency proportional to 1 / m^exponent.
    """
    frequency = torch.arange(1, NUM_KEYS + 1.0) ** -exponent
    keys = torch.multinomial(
        frequency.expand(batch_size, -1),
        n,
        replacement=True,
        generator=generator,
    )
    values = torch.randint(NUM_VALUES, (batch_size, n), generator=generator)
    is_match = (keys[:, :, None] == keys[:, None, :]).tril(-1)
    return keys, values, torch.where(is_match, torch.arange(n), -1).amax(-1)


class MostRecentValue(torch.nn.Module):
    def __init__(self, score):
        super().__init__()
        self.key_embedding = torch.nn.Embedding(NUM_KEYS, EMBED_DIM)
        self.value_embedding = torch.nn.Embedding(NUM_VALUES, EMBED_DIM)
        dim = 2 * EMBED_DIM
        self.attention = nn.MultiHeadAttention(dim, num_heads, score=score)
        self.output = torch.nn.Linear(dim, NUM_VALUES)

    def forward(self, keys, values):
        embedded = self.key_embedding(keys)
        query = torch.cat((embedded, torch.zeros_like(embedded)), -1)
        memory = torch.cat((embedded, self.value_embedding(values)), -1)
        return self.output(self.attention(query, memory, mask=earlier))


def train(make_score, seed, steps=300):
    torch.manual_seed(seed)
    model = MostRecentValue(make_score())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        keys, values, recent = sample(64, 32, generator)
        target = values.gather(1, recent.clamp(min=0))
        target[recent < 0] = -100  # ignored by the loss
        loss = cross_entropy(model(keys, values).mT, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


variants = {
    "no distance": lambda: None,
    "ALiBi": score.alibi,
    "power decay": lambda: PowerDecay(num_heads),
    "power decay, softplus": lambda: PowerDecay(num_heads, squared_softplus),
}
models = {
    name: [train(make_score, seed) for seed in (0, 1)]
    for name, make_score in variants.items()
}

# %% [markdown]
# The test is harder than the training: 1024 pairs, and keys of very different frequency, so that some keys recur
# after hundreds of pairs. Accuracy is reported by the distance to the most recent occurrence.

# %%
BINS = [(1, 4), (4, 16), (16, 64), (64, 256), (256, 1024)]
generator = torch.Generator().manual_seed(99)
keys, values, recent = sample(1024, 8, generator, exponent=2.0)
answers = values.gather(1, recent.clamp(min=0))
distance = torch.arange(1024) - recent


def accuracies(model):
    """Return the accuracy in each bin of distances."""
    with torch.no_grad():
        is_correct = model(keys, values).argmax(-1) == answers
    by_bin = []
    for low, high in BINS:
        selected = (recent >= 0) & (distance >= low) & (distance < high)
        by_bin.append(is_correct[selected].float().mean())
    return torch.stack(by_bin)


results = {
    name: torch.stack([accuracies(model) for model in pair])
    for name, pair in models.items()
}
print(f"{'distance':24}", *(f"{f'{low}-{high - 1}':>9}" for low, high in BINS))
for name, accuracy in results.items():
    print(f"{name:24}", *(f"{a:.2f}/{b:.2f}".rjust(9) for a, b in accuracy.T))

# %% alt="Accuracy by distance. ALiBi is best from 16 to 63 and falls to nearly 0 beyond; the power decay falls slowly"
centers = [(low * high) ** 0.5 for low, high in BINS]
series = [
    plot.Series(name, centers, accuracy.mean(0))
    for name, accuracy in results.items()
]
labels = ("The most recent value", "distance", "accuracy, mean of two seeds")
plot.charts([plot.Panel(*labels, series, log_x=True)])

# %% [markdown]
# Each row has the accuracies of both seeds. What can be concluded?
#
# - Without the distance, the layer cannot know which match is recent. Keys that recur after hundreds of pairs have
#   few matches, so guessing among them is right more often.
# - **ALiBi is best from 16 to 63 and mostly wrong beyond.** Distances in training were at most 63. A probable reason:
#   at larger distances, the decay outweighs the match.
# - **The power decay is better than ALiBi for the nearest pairs and beyond 63.** From 16 to 63 it is worse: two
#   matches at distances of 40 and 50 differ by a factor of (51 / 41)^power only. Beyond 255, even a layer without
#   distances is better.
# - The squared softplus improves the score up to 63 and loses what the power decay gains beyond. For negative scores
#   it falls as exp(2s), which doubles the power.
#
# This is one task, one layer, two seeds, and no tuning. A study would also try learned slopes for ALiBi. A search
# would find that this score is known: with one more parameter it is the logarithmic variant of KERPLE (Chi et al.,
# 2022). Look for your idea in [the gallery](../gallery/index.md) and in the literature first.
#
# ## What did it learn?

# %% alt="The weights of four heads on 48 pairs after training; each row has one or a few dark cells, at earlier pairs with the same key"
model = models["power decay"][0]
print("powers", rounded(model.attention.score.power))
keys, values, recent = sample(48, 1, torch.Generator().manual_seed(3))
with torch.no_grad(), regard.record(model) as recording:
    model(keys, values)
weights = recording[0].weights[0]
has_match = recent[0] >= 0
on_recent = weights[:, has_match, recent[0][has_match]].mean(-1)
print("mean weight on the most recent match", rounded(on_recent))
plot.head_maps(weights[None])

# %% [markdown]
# ## Next
#
# - [Write a custom score](../how-to/custom-score.md) and [a custom normalizer](../how-to/custom-normalizer.md):
#   all levels, up to arbitrary functions.
# - [Is my attention layer correct?](../how-to/check-a-layer.md), and [the cost of a model](../how-to/cost.md) before
#   it runs.
# - [Train a small transformer](train-a-small-transformer.ipynb), with this layer or another.
#
# **References**: Press et al., [*Train Short, Test Long*](https://arxiv.org/abs/2108.12409) (2022); Chi et al.,
# [*KERPLE*](https://arxiv.org/abs/2205.09921) (2022).
