"""Draw language.png: the curve of language.json, the induction scores, and the weights of the best induction head."""

import torch
from panels import HERE, draw_curve, read_json

from regard.models import language_model
from regard.models.tasks.language import CURRICULUM, induction_scores
from regard.plot.style import (
    MUTED_COLOR,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    save_for_page,
    sequential_colormap,
    set_title,
)

TEXT = " The captain saw the white whale and the boats went down. The captain saw the white whale and the boats"
MIN_INDUCTION_SCORE = 0.5


def main() -> None:
    run = read_json("language.json")
    model, tokenizer = language_model()
    scores = torch.stack(induction_scores(model))
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    ids = tokenizer.encode(TEXT)
    with torch.no_grad():
        layers = model.decoder.attention_with_weights(model.embedding(torch.tensor([ids])))
        weights = layers[layer].self_attention.weights[0, head]
    figure = new_figure(PAGE_WIDTH_IN, 8.0)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.9))
    curve, heads = above.subplots(1, 2)
    draw_curve(
        curve, run, 1, "loss per token", f"The loss falls to {run['curve'][-1][1]:.1f} in {len(CURRICULUM)} stages"
    )
    for stage in CURRICULUM[:-1]:
        curve.axvline(stage.end_step, color=MUTED_COLOR, linewidth=1, linestyle=(0, (3, 2)), zorder=0)
    image = heads.imshow(scores.numpy(), cmap=sequential_colormap(), vmin=0, vmax=1, aspect="auto")
    heads.set(xlabel="head", ylabel="layer", yticks=range(len(scores)), xticks=range(scores.shape[1]))
    count = int((scores > MIN_INDUCTION_SCORE).sum())
    set_title(heads, f"{count} of {scores.numel()} heads continue repeated random tokens", 2.2)
    above.colorbar(image, ax=heads, pad=0.02, label="induction score").outline.set_visible(False)
    draw_weights(below.subplots(), weights, tokenizer.token_texts(ids), f"layer {layer}, head {head}")
    save_for_page(apply_style(figure), HERE / "language.png")


def draw_weights(axes, weights, tokens, name):
    image = axes.imshow(weights.numpy(), cmap=sequential_colormap(), vmin=0, vmax=1)
    labels = [token.replace(" ", "␣") for token in tokens]
    axes.set_xticks(range(len(labels)), labels, rotation=90)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlabel="key", ylabel="query")
    repeated = [n for n, token in enumerate(tokens) if token in tokens[:n]]
    followed = [n for n in repeated if tokens[int(weights[n].argmax()) - 1] == tokens[n]]
    title = (
        f"{name.capitalize()}: {len(followed)} of {len(repeated)} repeated tokens attend to what followed them before"
    )
    set_title(axes, title, 4.4)
    axes.figure.colorbar(image, ax=axes, pad=0.02, shrink=0.8, label="weight").outline.set_visible(False)


if __name__ == "__main__":
    main()
