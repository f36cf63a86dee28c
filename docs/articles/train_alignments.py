"""Train four recurrent translators that differ in the score of their attention; write alignments.json.

Run `.venv/bin/python docs/articles/train_alignments.py` in the root folder. It takes about ten minutes on one core.
All translators reverse the same words of 1 to 8 letters, from the task `bottleneck`, with three seeds each.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard import attention_with_weights, mask
from regard.mechanisms import ContextVectors
from regard.models import RecurrentTranslator
from regard.models.tasks import bottleneck as task

HERE = Path(__file__).parent
ALIGNMENTS = ("bahdanau", "luong_dot", "luong_general", "scaled_dot")
HIDDEN_SIZE, STEPS, BATCH_SIZE, LR = 64, 1200, 64, 4e-3
SEEDS = (0, 1, 2)
MAX_LETTERS = 8
TEST_LENGTHS = (4, 8)
EVAL_EVERY = 100


class ScaledDot(nn.Module):
    """Luong's dot score divided by √hidden_size: the default score of `regard.attention`."""

    def forward(self, state: Tensor, memory: Tensor, lengths: Tensor | None) -> ContextVectors:
        visible = None if lengths is None else mask.padding(lengths)
        return ContextVectors(attention_with_weights(state.unsqueeze(1), memory, memory, mask=visible))


def translator(alignment: str, seed: int) -> RecurrentTranslator:
    torch.manual_seed(seed)
    attention = "luong_dot" if alignment == "scaled_dot" else alignment
    model = RecurrentTranslator((task.VOCAB_SIZE, task.VOCAB_SIZE), hidden_size=HIDDEN_SIZE, attention=attention)
    if alignment == "scaled_dot":
        model.alignment = ScaledDot()
    return model


def train(alignment: str, seed: int) -> dict[str, object]:
    """Return the loss every `EVAL_EVERY` steps, and the results on held-out words after training."""
    model = translator(alignment, seed)
    optimizer = torch.optim.AdamW(model.parameters(), LR, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, STEPS, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    losses, curve = [], []
    for step in range(1, STEPS + 1):
        words = task.random_words(BATCH_SIZE, 1, MAX_LETTERS, generator, held_out=False)
        batch = task.make_batch(words, torch.full((len(words),), task.REVERSE))
        logits = model(batch.source, batch.target[:, :-1], lengths=batch.lengths)
        loss = cross_entropy(logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=task.PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % EVAL_EVERY == 0:
            curve.append(round(sum(losses[-EVAL_EVERY:]) / EVAL_EVERY, 4))
    batches = {length: task.held_out_batch(length, task.REVERSE) for length in TEST_LENGTHS}
    with torch.no_grad():
        exact = {str(n): round(task.exact_match(model, batch), 3) for n, batch in batches.items()}
        weight = task.mean_alignment_weight(model, batches[MAX_LETTERS])
    return {"curve": curve, "exact_match": exact, "alignment_weight": round(weight, 3)}


def main() -> None:
    runs = {}
    for alignment in ALIGNMENTS:
        parameters = sum(p.numel() for p in translator(alignment, 0).alignment.parameters())
        runs[alignment] = {"alignment_parameters": parameters, "runs": [train(alignment, seed) for seed in SEEDS]}
    settings = {"hidden_size": HIDDEN_SIZE, "steps": STEPS, "max_letters": MAX_LETTERS, "seeds": list(SEEDS)}
    (HERE / "alignments.json").write_text(json.dumps({**settings, "scores": runs}, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
