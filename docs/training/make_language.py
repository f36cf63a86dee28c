"""Draw language.png: the curve of language.json, the induction scores, and the weights of the best induction head."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from regard.models.bundled import language_model
from regard.models.tasks.language import CURRICULUM, induction_scores

HERE = Path(__file__).parent
TEXT = " The captain saw the white whale and the boats went down. The captain saw the white whale and the boats"


def main() -> None:
    curve = json.loads((HERE / "language.json").read_text(encoding="utf8"))
    steps, losses, _ = zip(*curve["curve"], strict=True)
    model, tokenizer = language_model()
    scores = torch.stack(induction_scores(model))
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    ids = tokenizer.encode(TEXT)
    with torch.no_grad():
        layers = model.decoder.attention_with_weights(model.embedding(torch.tensor([ids])))
        weights = layers[layer].self_attention.weights[0, head]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained", width_ratios=(3, 3, 4))
    left.plot(steps, losses, color="#0b7285")
    for stage in CURRICULUM[:-1]:  # stages of the curriculum
        left.axvline(stage.end_step, color="#bbbbbb", linewidth=0.8, zorder=0)
    left.set_xlabel("step")
    left.set_ylabel("loss per token")
    image = middle.imshow(scores, cmap="Blues", vmin=0, vmax=1)
    middle.set_xlabel("head")
    middle.set_ylabel("layer")
    middle.set_yticks(range(len(scores)))
    middle.set_title("induction scores on random tokens", fontsize=10)
    figure.colorbar(image, ax=middle, shrink=0.6)
    names = tokenizer.token_texts(ids)
    right.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    right.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    right.set_yticks(range(len(names)), names, fontsize=7)
    right.set_title(f"layer {layer}, head {head}: a repeated sentence", fontsize=10)
    figure.savefig(HERE / "language.png", dpi=100)


if __name__ == "__main__":
    main()
