"""Draw dates.png: the curve of dates.json, and the cross-attention of the bundled translator."""

import torch
from panels import HERE, draw_loss_and_accuracy, read_json

from regard.models import date_translator
from regard.models.tasks.dates import BEGIN, encode
from regard.plot.style import PAGE_WIDTH_IN, apply_style, new_figure, save_for_page, sequential_colormap, set_title

WORDS = "on friday , the twenty first of march nineteen eighty six".split()
TARGET = "1986-03-21"


def largest_weights() -> torch.Tensor:
    """Return the largest cross-attention weights (target, source) over all heads and layers."""
    model = date_translator()
    source, _ = encode([WORDS], "source")
    target, _ = encode([[BEGIN, *TARGET[:-1]]], "target")
    with torch.no_grad():
        memory = model.transformer.encoder(model.source_embedding(source))
        layers = model.transformer.decoder.attention_with_weights(model.target_embedding(target), memory)
        cross = [layer.cross_attention for layer in layers if layer.cross_attention is not None]
        return torch.stack([result.weights[0] for result in cross]).amax((0, 1))


def main() -> None:
    run = read_json("dates.json")
    figure = new_figure(PAGE_WIDTH_IN, 6.6)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.6))
    draw_loss_and_accuracy(*above.subplots(1, 2), run)
    axes = below.subplots()
    image = axes.imshow(largest_weights().numpy(), cmap=sequential_colormap(), vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(WORDS)), WORDS, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(TARGET)), list(TARGET))
    axes.set(xlabel="word", ylabel="written character")
    results = run["results"]
    exact, count = results["exact_match"], results["num_tested"]
    title = f"{exact:.1%} of {count:,.0f} dates are exact: characters attend to their words"
    set_title(axes, title, 5.0)
    bar = below.colorbar(image, ax=axes, pad=0.02, label="largest cross-attention weight")
    bar.outline.set_visible(False)
    save_for_page(apply_style(figure), HERE / "dates.png")


if __name__ == "__main__":
    main()
