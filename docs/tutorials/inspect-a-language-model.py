# %% [markdown]
# # Inspect a language model
#
# A small language model completes a name. Which heads does it use? In this tutorial you record its attention, make a
# hypothesis from the maps, and test the hypothesis. Three plausible tests give three different answers. It takes
# about twenty minutes to read and half a minute to run.
#
# The model is part of the package: four layers of eight heads, trained on speeches and *Moby-Dick*
# ([training](../training/language.md)).

# %%
# %matplotlib inline
import numpy as np
import torch

import regard
from regard import measure, plot
from regard.models import language_model
from regard.recording.patching import (
    mean_ablate,
    replace_weights,
    uniform_attention,
    zero_ablate,
)

model, tokenizer = language_model()
text = " Captain Ahab and Mr. Flask stood on the deck. The men looked at"
text += " Captain Ahab and Mr."
ids = torch.tensor([tokenizer.encode(text)])
tokens = tokenizer.token_texts(ids[0].tolist())

with torch.no_grad(), regard.record(model) as recording:
    logits = model(ids)
recording.tokens = tokens

values, best = logits[0, -1].softmax(-1).topk(3)
for token, probability in zip(best.tolist(), values.tolist(), strict=True):
    print(f"{probability:.2f} {tokenizer.token_texts([token])[0]!r}")

# %% [markdown]
# The model continues with "Flask", a name from the first sentence. `regard.record` does not change the model or its
# outputs. It stores queries, keys and values, and computes any weight from them when you ask for it. The same two
# lines work for a PyTorch model of your own and for a model of [Hugging Face](../how-to/huggingface.md), with [these
# attention functions](../recording.md#which-calls-are-recorded).
#
# ## Look at all heads
#
# A head table has a row for each head and a column for each metric. The induction score is the weight on tokens that
# followed an earlier occurrence of the same token.

# %% alt="A grid of four layers and eight heads. Seven of the eight heads of layer 1 have high induction scores"
table = recording.head_table()
plot.heads(table, "induction")

# %%
answer = tokens.index(" Flask")
for layer in range(4):
    weights = recording[layer].weights[0, :, -1, answer]
    print(f"layer {layer}:", *(f"{weight:.2f}" for weight in weights))

# %% [markdown]
# All eight heads of layer 1 put most of the weight of the last token on "Flask". Here is one of them. Each token of
# the second sentence that occurred before attends to the token *after* its earlier occurrence:

# %% cover=true alt="A lower triangle of weights. Captain, Ahab, and, Mr and the full stop attend to the tokens that followed them in the first sentence"
plot.weights(recording[1].weights[0, 6], tokens, title="Layer 1, head 6")

# %% [markdown]
# The hypothesis is clear: **the heads of layer 1 copy the name**. Olsson et al. (2022) describe such induction heads
# in many models. But the maps show only where the heads read, not what the model does with it.
#
# ## Test 1: remove a head
#
# A patch replaces the output of a head while the model runs. If large weights mean large importance, then removing
# the heads with the largest weights should hurt most.

# %%
target = int(ids[0, answer])
all_heads = [(layer, head) for layer in range(4) for head in range(8)]
copying = [(1, head) for head in range(8)]


def probability(patches, ids=ids):
    """Return the probability of " Flask" after the text, with patched heads."""
    with torch.no_grad(), regard.patch(model, patches):
        return float(model(ids)[0, -1].softmax(-1)[target])


unchanged = probability({})
without = {head: probability({head: zero_ablate}) for head in all_heads}
on_answer = {
    (layer, head): float(recording[layer].weights[0, head, -1, answer])
    for layer, head in all_heads
}
x = [on_answer[head] for head in all_heads]
y = [unchanged - without[head] for head in all_heads]
print(f"unchanged {unchanged:.2f}")
print(f"correlation of weight and effect: {np.corrcoef(x, y)[0, 1]:.2f}")
for head in [(1, 6), (1, 7), (0, 4), (0, 1)]:
    weight, result = on_answer[head], without[head]
    print(f"head {head}: weight {weight:.2f}, without it {result:.2f}")

# %% alt="32 heads as points: weight on the answer against loss of probability. Heads with a weight near 1 lose 0 to 0.3, and two heads with weight 0 lose 0.4 and 0.75"
points = [
    plot.Series("layer 0", x[:8], y[:8], "points"),
    plot.Series("layer 1", x[8:16], y[8:16], "points"),
    plot.Series("layers 2 and 3", x[16:], y[16:], "points"),
]
labels = ("Each head", "weight on ' Flask'", "probability lost without it")
plot.charts([plot.Panel(*labels, points)])

# %% [markdown]
# They are hardly related. Head (1, 7) has a weight of 0.64 on the name, and without it the probability *rises*. Head
# (0, 1) has no weight on the name, and the prediction needs it. There are several reasons:
#
# - Eight heads do the same, so one of them can be removed. Their weights do not show this redundancy.
# - A weight says how much of a *value* is read. The value and the output matrix decide what is written.
# - Heads of layer 0 prepare the keys that layer 1 finds. They matter without reading the answer.
#
# ## Test 2: remove all of them
#
# Redundancy is easy to handle: remove all eight heads together.

# %%
ablations = {
    "zero": zero_ablate,
    "mean": mean_ablate,
    "uniform": uniform_attention,
}
for name, ablation in ablations.items():
    print(f"{name:8} {probability(dict.fromkeys(copying, ablation)):.2f}")

# %% [markdown]
# The probability falls from 0.86 to 0.04 with zeros, and to 0.30 if the heads attend to all tokens equally. It is
# tempting to stop here. But a test needs a control: eight *other* heads, chosen at random among those with weights
# below 0.05 on the name.

# %%
others = [head for head in all_heads if on_answer[head] < 0.05]
generator = torch.Generator().manual_seed(0)
controls = [
    [others[i] for i in torch.randperm(len(others), generator=generator)[:8]]
    for _ in range(10)
]
for name, ablation in ablations.items():
    patches = [dict.fromkeys(control, ablation) for control in controls]
    results = sorted(map(probability, patches))
    print(f"{name:8}", *(f"{result:.2f}" for result in results))

# %% [markdown]
# Some controls do nothing, and some do as much damage as our eight heads. A small model may not survive the loss of a
# quarter of its heads, even of heads that do not read the name. So this test shows that the heads of layer 1 are
# *needed*, as other heads are. It does not show that they carry the name.
#
# ## Test 3: move the information
#
# Activation patching asks a sharper question. Take a second text with another name. Let some heads use their outputs
# from the first text, only at the last token. If these heads carry the name, the prediction changes to "Flask",
# although this word is not in the second text.

# %%
text_starbuck = text.replace("Flask", "Starbuck")
ids_starbuck = torch.tensor([tokenizer.encode(text_starbuck)])
outputs = {}


def store(key):
    return lambda head: outputs.setdefault(key, head.output)


def restore_last(key):
    def patch(head):
        output = head.output.clone()
        output[..., -1, :] = outputs[key][..., -1, :]
        return output

    return patch


probability({key: store(key) for key in all_heads})
print(f"text with Starbuck: {probability({}, ids_starbuck):.2f}")
for layer in range(4):
    patches = {(layer, head): restore_last((layer, head)) for head in range(8)}
    result = probability(patches, ids_starbuck)
    print(f"  outputs of layer {layer} from the other text: {result:.2f}")

# %% [markdown]
# Now the answer is specific. The outputs of layer 1 at one position raise "Flask" from 0.02 to 0.89. The same number
# of heads in any other layer changes nothing. The hypothesis survives, thanks to the third test and not to the maps.
#
# ## Weights alone are not explanations
#
# Jain and Wallace, [*Attention is not Explanation*](https://arxiv.org/abs/1902.10186) (2019), permuted the weights of
# text classifiers and often got the same predictions. Try it with the last row of one head, and of all eight:


# %%
def permuted(layer, head):
    """Return a patch that permutes the weights of the last token."""
    weights = recording[layer].weights[0, head].clone()
    weights[-1] = weights[-1, torch.randperm(len(tokens), generator=generator)]
    return replace_weights(weights)


for name, heads in {"one head": [(1, 6)], "eight heads": copying}.items():
    patches = [{head: permuted(*head) for head in heads} for _ in range(50)]
    results = list(map(probability, patches))
    print(f"{name:11} mean {np.mean(results):.2f}, largest {max(results):.2f}")

# %% [markdown]
# A head with a weight of 1.00 on the name can attend to other tokens, and the prediction hardly changes. In this
# sense its map explains nothing. If all eight heads are permuted, the prediction changes.
#
# Wiegreffe and Pinter, [*Attention is not not Explanation*](https://arxiv.org/abs/1908.04626) (2019), reply that
# other weights with the same prediction do not make the original weights meaningless. They propose tests instead,
# such as a comparison with uniform weights. Both papers are about classifiers with a single attention layer. The
# conclusion holds here too: a map is a hypothesis, and it needs a test with a control.
#
# ## Thousands of tokens
#
# The same works for long texts. Here 512 random tokens are repeated eight times. All weights of the 32 heads would
# take 2.1 GB. The recording stores none of them, and measures visit them in tiles.

# %%
generator = torch.Generator().manual_seed(0)
period = torch.randint(4096, (1, 512), generator=generator)
long_ids = period.repeat(1, 8)
with torch.no_grad(), regard.record(model) as long_recording:
    long_logits = model(long_ids)
long_recording.tokens = tokenizer.token_texts(long_ids[0].tolist())

losses = -long_logits[0, :-1].log_softmax(-1).gather(1, long_ids[0, 1:, None])
print("loss per token in each repetition")
print(*(f"{part.mean():.2f}" for part in losses.split(512)))

measures = (measure.entropy, measure.distance, measure.pooled_map(128, 128))
entropy, distance, pooled_map = long_recording[1].weights.measure(*measures)
for head in (0, 6):
    print(f"head {head}: mean entropy {entropy[0, head, 512:].mean():.2f} nats")
    print(f"        mean distance {distance[0, head, 512:].mean():.0f} tokens")

# %% alt="Two maps of 4096 tokens, mean and maximum of cells: seven parallel diagonals, 512 tokens apart"
one_head = pooled_map._replace(
    mean=pooled_map.mean[0, 6], max=pooled_map.max[0, 6]
)
plot.weights(one_head, scale="log", title="Layer 1, head 6: 4096 tokens")

# %% [markdown]
# Random tokens cannot be predicted, so the first period costs more than 10 nats per token, and its repetitions almost
# nothing. The diagonals are the head at work: each token attends to the token after each of its earlier occurrences.
# Its mean entropy is that of a choice between a few keys among thousands.
#
# ## Next
#
# - [Find heads, ablate them, measure the effect](../how-to/find-and-ablate-heads.md): the same tools in short.
# - [Recording attention](../recording.md): all metrics, gradients, relevance, encoder-decoder models.
# - `regard explore` shows the same maps in a browser: [a first look](../first-look.md).
#
# **References**: Olsson et al., [*In-context Learning and Induction Heads*](https://arxiv.org/abs/2209.11895) (2022);
# Meng et al., [*Locating and Editing Factual Associations in GPT*](https://arxiv.org/abs/2202.05262) (2022), which
# uses activation patching; Jain and Wallace (2019) and Wiegreffe and Pinter (2019), linked above.
