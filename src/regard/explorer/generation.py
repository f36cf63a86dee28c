"""A model goes on with a text: every new token with the row that chose it, and what else was likely."""

from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer
from regard.explorer.shown import Shown, Told
from regard.explorer.sources import Writing, check_length
from regard.nn.generate import Sample

MOST = 256  # tokens at a time
OTHERS = 5  # likely tokens that are named beside the chosen one


def generate(explorer: Explorer, asked: Asked) -> Answer:
    """Lets the model write on, and shows the longer text."""
    shown = explorer.find(asked)
    count = asked.whole("count", 1, MOST, 20)
    temperature = asked.number("temperature", 0.0, 10.0, 0.0)
    seed = asked.whole("seed", 0, 2**31 - 1, 0)
    model = explorer.writer(shown)
    if model is None or shown.ids is None:
        raise SpecError(f"a text can be continued where its model writes; {shown.model or 'a recording'} does not.")
    check_length(model.name, len(shown.ids) + count, model.limit)
    with explorer.running:
        made = written(model, shown, count, temperature, seed, explorer.tell(asked))
    return Answer({"id": explorer.add(made), "first": len(shown.ids)})


def written(model: Writing, shown: Shown, count: int, temperature: float, seed: int, tell: Told) -> Shown:
    """The text with `count` tokens more, each with its probability and others that were likely."""
    assert shown.ids is not None
    ids, new = list(shown.ids), list(shown.ids)
    begun = model.begun()
    steps: list[dict[str, Any]] = []
    sample = Sample(temperature=temperature or 1.0, seed=seed)
    with torch.no_grad():
        for place in range(count):
            tell(f"token {place + 1} of {count}", place / count)
            scores = begun.scores(new)
            chosen = int(sample(scores[None])[0]) if temperature else int(scores.argmax())
            shares = sample.probabilities(scores[None])[0]
            steps.append({"position": len(ids), **_said(model, shares, chosen)})
            ids, new = [*ids, chosen], [chosen]
    tell("the model reads what it wrote", None)
    continued = model.read(ids, _continued(model, shown, ids))
    labels = continued.texts[0].labels
    for step in steps:
        step["text"] = labels[step["position"]]
    continued.generated = {"first": len(shown.ids), "steps": steps}
    return continued


def _continued(model: Writing, shown: Shown, ids: list[int]) -> str:
    """The text that was typed with the new tokens after it, decoded together: one character may span several tokens."""
    assert shown.ids is not None
    before, whole = model.decode(shown.ids), model.decode(ids)
    if shown.text is None or not whole.startswith(before):
        return whole
    return shown.text + whole[len(before) :]


def _said(model: Writing, shares: Tensor, chosen: int) -> dict[str, Any]:
    likely = shares.topk(min(OTHERS, len(shares)))
    names = [model.spelled([token]).names[0] for token in likely.indices.tolist()]
    return {
        "probability": float(shares[chosen]),
        "others": [[name, share] for name, share in zip(names, likely.values.tolist(), strict=True)],
    }
