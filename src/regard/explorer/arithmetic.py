"""One weight worked through: every number on the way from q and k to the output, in the order of the mathematics."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.engine.dense import block, parameter_of, positions_of
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.head import Head
from regard.explorer.lines import code, code_template
from regard.explorer.packing import Answer, numbers
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.finite import all_finite
from regard.spec.read import read
from regard.spec.spec import Inputs, Question
from regard.spec.term import TRUE
from regard.spec.text import latex, text


def cell(explorer: Explorer, asked: Asked) -> Answer:
    """Everything of one weight."""
    shown = explorer.find(asked)
    layer, head = asked.whole("layer", 0, 10**6), asked.whole("head", 0, 10**6)
    hidden = asked.wholes("hide", 0, 10**9, ())
    own = shown.head(layer, head, hidden)
    n_q, n_k = own.shape
    row = Row(own, asked.whole("query", 0, n_q - 1))
    key = asked.whole("key", 0, n_k - 1)
    take = shown.taken(layer, hidden)
    whole = read(take.q, take.k, take.v, **take.options)
    values = {**row.score(key), **_words(whole), **row.weighed(key), **row.taken(key)}
    place = shown.layer(layer).heads.index(head)
    lines = code(whole, layer, shown.batch, place, row.query, key)
    return Answer({"layer": layer, "head": head, "query": row.query, "key": key, **values, "code": lines})


def head_vectors(explorer: Explorer, asked: Asked) -> Answer:
    """A head's vectors, from which a page computes any cell itself: q, k and v, and which pairs are visible.

    Scores are included where a rule changes them. `supported` is False where a page cannot compute the weights: other
    scores than products, and other normalizers than softmax.
    """
    shown = explorer.find(asked)
    layer, head = asked.whole("layer", 0, 10**6), asked.whole("head", 0, 10**6)
    row, take = Row(shown.head(layer, head), 0), shown.taken(layer)
    own, spec = row.question, row.question.spec
    is_softmax = spec.normaliser.name == "softmax" and own.weigh.iterations == 1 and own.weigh.factor is None
    if spec.score != "dot" or not is_softmax or own.relative_values is not None or own.weigh.features is not None:
        return Answer({"supported": False})
    whole = read(take.q, take.k, take.v, **take.options)
    values = {"supported": True, "scale": spec.scale, "weighing": own.weigh.formula, **_words(whole)}
    lines = code_template(whole, layer, shown.batch, shown.layer(layer).heads.index(head))
    start = 0 if isinstance(own.start, Tensor) and own.start.numel() > 1 else int(own.start)
    arrays = {"q": row.inputs.q[0, row.head.place], "k": row.inputs.k[0, row.keys.start], "v": row.values}
    packed = {name: numbers(x) for name, x in arrays.items()}
    packed["visible"] = (row.all_scores() > -torch.inf).numpy().astype(np.uint8)
    if spec.rule is not None:
        packed["scores"] = numbers(row.all_after_rule())
    return Answer({**values, "code": lines, "start": start}, packed)


def _words(question: Question) -> dict[str, Any]:
    """What a layer was asked, as it was written, before single heads were taken out."""
    spec, names = question.spec, question.formula.names
    rule = None if spec.rule is None else {"text": text(spec.rule, names), "latex": latex(spec.rule, names)}
    mask = None if spec.mask is TRUE else {"text": text(spec.mask, names), "latex": latex(spec.mask, names)}
    return {"formula": {"text": spec.formula, "latex": _latex(question)}, "rule": rule, "mask": mask}


def _latex(question: Question) -> str:
    width = question.q.shape[-1]
    if question.spec.score == "dot" and question.weigh.formula == "softmax" and question.spec.rule is None:
        return (
            r"a_{ij} = \frac{\exp(s_{ij} - m_i)}{\sum_l \exp(s_{il} - m_i)}, \quad "
            rf"s_{{ij}} = \frac{{q_i \cdot k_j}}{{\sqrt{{{width}}}}}, \quad m_i = \max_l s_{{il}}"
        )
    return rf"\text{{{question.spec.formula}}}"


@dataclass(eq=False)
class Row:
    """The numbers of one query of a head, in float64."""

    head: Head
    query: int

    @cached_property
    def question(self) -> Question:
        take = self.head.take
        return read(take.q, take.k, take.v, **take.options)

    @cached_property
    def inputs(self) -> Inputs:
        with torch.no_grad():
            return self.question.inputs(torch.float64)

    @property
    def keys(self) -> slice:
        """The head of keys that this head of queries looks at."""
        first = self.head.place // self.question.spec.group
        return slice(first, first + 1)

    def positions(self, j: range) -> Positions:
        place, i = self.head.place, self.query
        return positions_of(self.question.spec, self.inputs, range(1), range(place, place + 1), range(i, i + 1), j)

    def scores_of(self, j: range) -> Tensor:
        """The scores of some keys, -inf where hidden."""
        q, k = self.q[None, None, None], self.inputs.k[:1, self.keys, j.start : j.stop]
        return block(self.question.spec, self.inputs, self.positions(j), q, k, all_finite(q, k)).scores[0, 0, 0]

    @property
    def q(self) -> Tensor:
        return self.inputs.q[0, self.head.place, self.query]

    @cached_property
    def scores(self) -> Tensor:
        return self.scores_of(range(self.question.spec.n_k))

    def all_scores(self) -> Tensor:
        """The scores of every query and key of the head, -inf where hidden."""
        q, k, positions = self._whole()
        with torch.no_grad():
            return block(self.question.spec, self.inputs, positions, q, k, all_finite(q, k)).scores[0, 0]

    def all_after_rule(self) -> Tensor:
        """The scores of every query and key after the rule, of hidden pairs too."""
        q, k, positions = self._whole()
        rule = self.question.spec.rule
        assert rule is not None
        scaled = q @ k.mT * self.question.spec.scale
        after = Evaluation(self.inputs.tensors, positions, scaled, torch.float64).number(rule)
        return after.expand(scaled.shape)[0, 0]

    def _whole(self) -> tuple[Tensor, Tensor, Positions]:
        """All queries and keys of the head, and their positions."""
        spec, place = self.question.spec, self.head.place
        heads, i, j = range(place, place + 1), range(spec.n_q), range(spec.n_k)
        positions = positions_of(spec, self.inputs, range(1), heads, i, j)
        return self.inputs.q[:1, place : place + 1], self.inputs.k[:1, self.keys], positions

    @property
    def values(self) -> Tensor:
        """The values that this head takes from, (n_k, width)."""
        return self.inputs.v[0, self.head.place // (self.question.spec.heads // self.inputs.v.shape[1])]

    def score(self, key: int) -> dict[str, Any]:
        """From q and k to the score that is weighed."""
        spec = self.question.spec
        k = self.inputs.k[0, self.keys.start, key]
        found: dict[str, Any] = {"q": self.q, "k": k, "scale": spec.scale, "kind": spec.score}
        if spec.score == "dot":
            found |= {"products": self.q * k, "dot": (self.q * k).sum(), "scaled": (self.q * k).sum() * spec.scale}
        elif spec.score == "additive":
            u = self.inputs.parameters[0]
            hidden = torch.tanh(self.q + k) * (u if u.dim() == 1 else u[self.head.place])
            found |= {"products": hidden, "dot": hidden.sum(), "scaled": hidden.sum()}
        after = None
        if spec.rule is not None and "scaled" in found:
            there = Evaluation(self.inputs.tensors, self.positions(range(key, key + 1)), found["scaled"], torch.float64)
            after = float(there.number(spec.rule).flatten()[0])
        score = float(self.scores[key])
        return {**_listed(found), "after_rule": after, "seen": score != -torch.inf, "score": score}

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor | None]:
        """The weights of the row and its statistic."""
        spec, question = self.question.spec, self.question
        if question.weigh.iterations > 1:  # they depend on the other rows
            return self.head.weights([self.query], slice(None))[0].double(), None
        parameter = parameter_of(spec, self.inputs, self.positions(range(1)), torch.float64)
        row = self.scores[None, None, None]
        given = () if parameter is None else (parameter.detach(),)
        weights, statistic = spec.normaliser.dense(row, *given)
        return weights[0, 0, 0].detach() * self.factor(statistic), None if statistic is None else statistic[0, 0, 0]

    def factor(self, statistic: Tensor | None) -> Tensor | float:
        """By how much the weighing shrinks the row."""
        factor = self.question.weigh.factor
        if factor is None:
            return 1.0
        heads = self.question.spec.heads
        rows = None if statistic is None else statistic.reshape(1, 1, 1).expand(1, heads, 1)
        share = torch.as_tensor(factor(rows, self.question.spec.n_k)).detach().double()
        return share[0, self.head.place, 0] if share.dim() == 3 else share

    def weighed(self, key: int) -> dict[str, Any]:
        """From the score to the weight; the maximum, the exponent and the sum are softmax's."""
        weights, statistic = self.weights
        normaliser, is_one = self.question.spec.normaliser, self.question.weigh.iterations == 1
        values: dict[str, Any] = {"weighing": self.question.weigh.formula, "weight": float(weights[key])}
        values["row_sum"] = float(weights.sum())
        if statistic is not None:
            values["statistic"] = {"name": normaliser.statistic, "value": float(statistic)}
            values["factor"] = float(self.factor(statistic))
        if normaliser.name == "softmax" and is_one and bool((self.scores > -torch.inf).any()):
            top = self.scores.max()
            powers = torch.exp(self.scores - top)
            values |= {"maximum": float(top), "exponent": float(self.scores[key] - top)}
            values |= {
                "power": float(powers[key]),
                "total": float(powers.sum()),
                "lse": float(top + powers.sum().log()),
            }
            values |= {"maximum_at": int(self.scores.argmax()), "keys_seen": int((self.scores > -torch.inf).sum())}
        return values

    def taken(self, key: int) -> dict[str, Any]:
        """What the weight takes from the value, and the output that all of them make together."""
        weights, _ = self.weights
        v = self.values
        output = weights @ torch.where(weights[:, None] > 0, v, 0.0)
        if self.question.relative_values is not None:
            output = self.head.attended.output[0, self.head.place, self.query].double()
        return _listed({"v": v[key], "taken": weights[key] * v[key], "output": output})


def _listed(found: dict[str, Any]) -> dict[str, Any]:
    return {name: x.tolist() if isinstance(x, Tensor) else x for name, x in found.items()}
