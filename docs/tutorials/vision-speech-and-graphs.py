# %% [markdown]
# # Vision, speech and graphs
#
# In this tutorial you inspect four trained models: of handwritten digits, of spoken digits, and of two social
# networks. For each you draw what it attends to, and then test whether the prediction depends on it. The answers
# differ. It takes about twenty minutes to read and half a minute to run.
#
# The weights of the first two models are in the folder `trained` beside this notebook, so open it in a copy of the
# repository. `regard train digits` and `regard train speech` made them ([digits](../training/digits.md),
# [speech](../training/speech.md)).

# %%
# %matplotlib inline
import networkx
import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.functional import avg_pool2d, pad

import regard
from regard import models, plot
from regard.models.speech import subsampled_lengths
from regard.models.tasks import get_task
from regard.models.tasks.speech import (
    MARGIN_SAMPLES,
    as_float,
    spectrogram_batch,
)
from regard.recording.metrics.token_groups import patch_weights_to_image

# %% [markdown]
# ## Handwritten digits
#
# The vision transformer cuts an image of 8 by 8 pixels into 16 patches. A CLS token attends to the patches, and its
# last state is classified. The images are held out.

# %%
digits = get_task("digits").splits[1]
images, labels = digits.images.unsqueeze(1), digits.labels
vision = models.load_trained("trained/digits.safetensors").model
with torch.no_grad(), regard.record(vision) as recording:
    predicted = vision(images).argmax(-1)
print(f"{int((predicted == labels).sum())} of {len(labels)} images are correct")

# %% [markdown]
# In the recording, every layer has weights of shape (images, heads, 17, 17). The first row is the query of the CLS
# token. Take the mean over the heads of the last layer, and draw it over one image of each digit:

# %% cover=true alt="Ten images of digits with orange patches where the CLS token attends, mostly on and beside the strokes"
on_patches = recording[-1].weights[:, :, 0].mean(1)  # (images, 17)
on_pixels = patch_weights_to_image(on_patches, vision.grid_size, (8, 8))
chosen = [int((labels == digit).nonzero()[0]) for digit in range(10)]


def montage(pictures):
    """Return ten pictures as two rows of five, with a margin of one pixel."""
    padded = pad(pictures, (1, 1, 1, 1))
    return torch.cat([torch.cat(list(row), dim=1) for row in padded.split(5)])


figure = plot.overlay(
    montage(images[chosen, 0]), montage(on_pixels[chosen]), alpha=0.45
)
figure.set_size_inches(6.5, 2.7)
figure

# %% [markdown]
# The most orange patch of an image is often on a stroke. Do orange patches matter more than others? Erase the patches
# with the largest weights, and compare with random patches, and with the patches that have the most ink:


# %%
def erase_patches(order, count):
    """Return the images without the first `count` patches of each order."""
    erased = images.clone()
    for image, patches in zip(erased, order.tolist(), strict=True):
        for patch in patches[:count]:
            row, column = divmod(patch, vision.grid_size[1])
            image[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0
    return erased


def accuracy(images):
    with torch.no_grad():
        return float((vision(images).argmax(-1) == labels).float().mean())


generator = torch.Generator().manual_seed(0)
ink = avg_pool2d(images, 2).flatten(1)
strongest = on_patches[:, 1:].argmax(-1, keepdim=True)
print(f"mean ink: all patches {ink.mean():.2f}, ", end="")
print(f"patch with the largest weight {ink.gather(1, strongest).mean():.2f}")
orders = {
    "largest weight": on_patches[:, 1:].argsort(descending=True),
    "most ink": ink.argsort(descending=True),
    "random": torch.rand(ink.shape, generator=generator).argsort(),
    "smallest weight": on_patches[:, 1:].argsort(),
}
COUNTS = (0, 1, 2, 3, 4, 6)
print(f"{'erased patches':16}", *(f"{count:5}" for count in COUNTS))
for name, order in orders.items():
    results = [accuracy(erase_patches(order, count)) for count in COUNTS]
    print(f"{name:16}", *(f"{result:5.2f}" for result in results))

# %% [markdown]
# Erasing the patches with the largest weights hurts more than erasing random ones. So the weights do point to patches
# that matter. But a rule as simple as *most ink* finds such patches better. And the patches with the smallest weights
# matter as much as random ones.
#
# ## Spoken digits
#
# The speech model reads log-mel frames: the power in 40 bands of frequency, every 10 ms. Convolutions make a token
# for every four frames. Here are thirty clips of three synthetic voices that are not in the training data.

# %%
speech = models.load_trained("trained/speech.safetensors").model
with np.load("trained/spoken-digits.npz") as file:
    names = list(file)
    waveforms = [as_float(torch.from_numpy(file[name])) for name in names]
spoken = torch.tensor([int(name[-1]) for name in names])
margin = (MARGIN_SAMPLES, MARGIN_SAMPLES)
frames, lengths = spectrogram_batch([pad(wave, margin) for wave in waveforms])
with torch.no_grad(), regard.record(speech) as recording:
    predicted = speech(frames, lengths=lengths).argmax(-1)
for voice in ("f1", "zac", "RicishayMax"):
    is_voice = torch.tensor([name.startswith(voice) for name in names])
    num_correct = int((predicted == spoken)[is_voice].sum())
    print(f"{voice:12} {num_correct} of 10 digits")

# %% [markdown]
# RicishayMax has an echo. Now look at a "seven" of the first voice: the frames, and the weights of the CLS token of
# each head over time.

# %% alt="Left: the spectrogram of the word seven. Right: weights of twelve heads over time; each head prefers a different part of the word"
clip = names.index("f1_7")
num_frames, num_tokens = (
    int(lengths[clip]),
    int(subsampled_lengths(lengths)[clip]),
)
by_head = torch.cat(
    [layer.weights[clip, :, 0, 1 : num_tokens + 1] for layer in recording]
)
bands = frames[clip, :num_frames].mT.flip(0)
axis_labels = ("Frames of “seven”", "frame", "mel band, from high to low")
left = plot.ImagePanel(*axis_labels, bands)
axis_labels = ("Weights of the CLS token", "token", "head, from layer 0 to 2")
right = plot.ImagePanel(*axis_labels, by_head)
plot.charts([left, right])

# %% [markdown]
# Heads divide the word among them. Head 4 attends to the *s*, others to the first vowel, to the *v*, or to the end.
# Repeat the test. A token is silenced by setting its frames to the quietest value of the clip.

# %%
on_tokens = torch.stack(
    [layer.weights[:, :, 0, 1:] for layer in recording]
).mean((0, 2))
num_tokens = subsampled_lengths(lengths).tolist()


def accuracy_without(scores, count):
    """Return the accuracy without the `count` tokens with the largest scores."""
    silenced = frames.clone()
    for i, n in enumerate(num_tokens):
        for token in scores[i, :n].topk(count).indices.tolist():
            of_token = slice(4 * token, 4 * token + 7)
            silenced[i, of_token] = frames[i, : lengths[i]].min()
    with torch.no_grad():
        is_correct = speech(silenced, lengths=lengths).argmax(-1) == spoken
    return float(is_correct.float().mean())


generator = torch.Generator().manual_seed(0)
draws = [torch.rand(on_tokens.shape, generator=generator) for _ in range(5)]
COUNTS = (0, 1, 2, 3, 4)
print(f"{'silenced tokens':16}", *(f"{count:5}" for count in COUNTS))
choices = {
    "largest weight": [on_tokens],
    "random": draws,
    "smallest weight": [-on_tokens],
}
for name, scores in choices.items():
    results = [[accuracy_without(s, count) for s in scores] for count in COUNTS]
    print(f"{name:16}", *(f"{np.mean(result):5.2f}" for result in results))

# %% [markdown]
# Here, tokens with large weights matter no more than random ones. Only the tokens with the smallest weights matter
# less. So the weights show what can be left out, and not what decides. Thirty clips are a small sample: the standard
# error of each number is up to 0.09.
#
# ## Two graphs
#
# A graph attention network computes the state of a node from its neighbors, with weights that depend on both. The
# members of a karate club split into two groups; the network is trained on the labels of the two leaders only
# ([karate](../training/karate.md)). The second graph has characters of *Les Misérables* in five communities, with a
# fifth of the labels ([miserables](../training/miserables.md)). Both train in a second or two:

# %%
trainers = {
    name: models.Trainer(get_task(name)) for name in ("karate", "miserables")
}
for name, trainer in trainers.items():
    while not trainer.is_done:
        trainer.advance()
    results = trainer.test()
    print(
        f"{name:11} attention {results['accuracy']:.2f}, label propagation {results['label_propagation']:.2f}"
    )

# %% alt="The karate club: two groups of nodes, blue and orange. Edges are wider where the weight is larger; many of the widest lead to 33"
graph, network = trainers["karate"].task.graph, trainers["karate"].model.eval()
with torch.no_grad():
    last = network.attention_weights(graph.features, graph.edge_index)[-1][0]
    groups = network(graph.features, graph.edge_index).argmax(-1)

strongest = last.clone().fill_diagonal_(0).argmax(-1).tolist()
num_leader = sum(friend in (0, 33) for friend in strongest)
print(f"{num_leader} of 34 members attend most to a leader, themselves apart")

club = networkx.karate_club_graph()
places = networkx.spring_layout(club, seed=3, weight=None)
figure = Figure(figsize=(6.5, 4.2), layout="constrained")
axes = figure.subplots()
widths = [6 * float(max(last[a, b], last[b, a])) for a, b in club.edges]
is_wrong = (groups != graph.labels).tolist()
networkx.draw_networkx(
    club,
    places,
    ax=axes,
    width=widths,
    edge_color="#a8a8a2",
    node_color=[
        "#86bfe2" if group == 0 else "#f0a860" for group in groups.tolist()
    ],
    edgecolors=["#b02020" if wrong else "#ffffff" for wrong in is_wrong],
    linewidths=2,
    node_size=260,
    font_size=8,
)
axes.axis("off")
figure

# %% [markdown]
# Colors are predicted groups, and a red ring marks a wrong one. An edge is as wide as the larger of its two weights
# in the last layer. Of 34 members, 13 attend most to one of the leaders, 0 and 33. But a member with few friends has
# large weights in any case. So compare with uniform weights, and then replace the learned weights by uniform ones. In
# GAT, the scores are 0 if the vectors `a` are 0.


# %%
def uniform(trainer):
    """Return the model with equal weights for all neighbors."""
    model = trainer.task.untrained_model().eval()
    state = trainer.model.state_dict()
    for name in state:
        if ".a_" in name:
            state[name] = torch.zeros_like(state[name])
    model.load_state_dict(state)
    return model


def share_moved(weights, others):
    """Return the share of the weight of a row that is on other keys."""
    return float((weights - others).abs().sum(-1).mean() / 2)


for name, trainer in trainers.items():
    graph = trainer.task.graph
    inputs, is_test = (graph.features, graph.edge_index), ~graph.train_mask
    learned, equal = trainer.model.eval(), uniform(trainer)
    with torch.no_grad():
        weights = [
            model.attention_weights(*inputs) for model in (learned, equal)
        ]
        groups = [model(*inputs).argmax(-1) for model in (learned, equal)]
    moved = [share_moved(*layer) for layer in zip(*weights, strict=True)]
    correct = [
        (group == graph.labels)[is_test].float().mean() for group in groups
    ]
    print(name)
    print("  weight moved from uniform:", *(f"{share:.2f}" for share in moved))
    print(f"  accuracy: learned {correct[0]:.2f}, uniform {correct[1]:.2f}")

# %% [markdown]
# Both networks move less than a fifth of the weight away from uniform. In the karate club the rest is enough to
# matter: without it, four more of 32 members are wrong. In *Les Misérables* nothing changes. There, the edges decide,
# and attention is a mean over neighbors. (A network that is trained with uniform weights from the start might do
# better than both.)
#
# ## What to remember
#
# The same four steps worked for images, sound and graphs: record, draw, state a claim, and test it against a control.
# The results were different each time: a map that is useful, a map that shows only what does not matter, and a map
# that hardly differs from a mean. The maps alone do not show which case it is.
#
# ## Next
#
# - [Trained models](../training.md): the data, recipes and results of all eight tasks, and how to train them.
# - [Recording attention](../recording.md): a vision transformer, a translator and a sentence encoder.
# - [Inspect a language model](inspect-a-language-model.ipynb): patching, the sharper test.
#
# **References**: Dosovitskiy et al., [*An Image is Worth 16x16 Words*](https://arxiv.org/abs/2010.11929) (2021);
# Veličković et al., [*Graph Attention Networks*](https://arxiv.org/abs/1710.10903) (2018); Brody et al., [*How
# Attentive are Graph Attention Networks?*](https://arxiv.org/abs/2105.14491) (2022).
