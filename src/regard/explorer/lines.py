"""Lines of torch that compute one weight from the tensors of a tape by plain formulas."""

import torch

from regard.spec.normaliser import Relu, Sigmoid, Softmax
from regard.spec.score import Cosine, Multiplicative, ScaledDot, Score
from regard.spec.spec import Question
from regard.spec.term import TRUE, Term
from regard.worked.lines import is_short, line, numbers

MANY = 256  # numbers of a captured tensor that are still written down


def code(question: Question, layer: int, batch: int, head: int, query: int, key: int) -> str:
    """Lines that reproduce the weight of a key for a query; by `regard.attend` where no plain formula is short."""
    start = question.start
    position = query if isinstance(start, torch.Tensor) and start.numel() > 1 else int(start) + query
    text = code_template(question, layer, batch, head)
    return text.replace("{query}", str(query)).replace("{key}", str(key)).replace("{position}", str(position))


def code_template(question: Question, layer: int, batch: int, head: int) -> str:
    """The same lines for any pair, with {query}, {key} and {position} for its numbers."""
    shared = f"{batch}, {head // question.spec.group}"
    lines = [
        f"take = tape.find_layer({layer}).take",
        f"q, k, v = (x.double() for x in (take.q[{batch}, {head}], take.k[{shared}], take.v[{shared}]))",
    ]
    plain = _plain(question, head)
    if plain is None:
        found = f"regard.attend(take.q, take.k, take.v, **take.options).weights[{batch}, {head}, {{query}}]"
        return "\n".join(["import regard", "", lines[0], f"weights = {found}", "weights[{key}]"])
    output = ["weights @ v  # the output of this query"] if question.relative_values is None else []
    return "\n".join(["import torch", "", *lines, *plain, "weights[{key}]  # the weight", *output])


def _plain(question: Question, head: int) -> list[str] | None:
    score, weighed = _score(question.score), _weighed(question)
    changed = _changed(question, head)
    if score is None or weighed is None or changed is None or question.weigh.features is not None:
        return None
    return [*score, *changed, *weighed]


def _score(score: Score) -> list[str] | None:
    if isinstance(score, ScaledDot) and not isinstance(score.scale, torch.Tensor):
        by = " / q.shape[-1] ** 0.5" if score.scale is None else f" * {score.scale!r}"
        return [f"s = k @ q[{{query}}]{by}"]
    if isinstance(score, Cosine) and not isinstance(score.scale, torch.Tensor):
        unit = "torch.nn.functional.normalize"
        return [f"s = {unit}(k, dim=-1) @ {unit}(q[{{query}}], dim=-1) * {score.scale!r}"]
    if isinstance(score, Multiplicative) and score.w.numel() <= MANY and score.w.dim() == 2:
        return [f"w = {numbers(score.w)}", "s = k @ (q[{query}] @ w)"]
    return ["s = k @ q[{query}]"] if type(score) is Score else None


def _changed(question: Question, head: int) -> list[str] | None:
    """The rule and the mask, as formulas of the places i, p and j."""
    spec = question.spec
    if spec.rule is None and spec.mask is TRUE:
        return []
    if isinstance(question.start, torch.Tensor) and question.start.numel() > 1:
        return None
    wanted = [term for term in (spec.rule, spec.mask) if term is not None and term is not TRUE]
    tensors = question.formula.resolved(spec.lengths, question.start, question.q.double())
    reads = sorted({n for term in wanted for n in term.reads})
    if any(tensors[n].numel() > MANY for n in reads) or not all(is_short(term) for term in wanted):
        return None
    names = list(question.formula.names)
    places = f"b, h, i, p, j = 0, {head}, {{query}}, {{position}}, torch.arange({spec.n_k})"
    captured = [f"{names[n]} = {numbers(tensors[n])}" for n in reads]
    lines = [places, *_lengths(wanted, question), *captured]
    if spec.rule is not None:
        lines.append(f"s = {line(spec.rule, names)}")
    if spec.mask is not TRUE:
        lines.append(f"s = torch.where({line(spec.mask, names)}, s, -torch.inf)")
    return lines


def _lengths(terms: list[Term], question: Question) -> list[str]:
    used = any(name in term.depends for term in terms for name in ("n_q", "n_k"))
    return [f"n_q, n_k = {question.spec.n_q}, {question.spec.n_k}"] if used else []


def _weighed(question: Question) -> list[str] | None:
    weigh = question.weigh
    if weigh.factor is not None or weigh.iterations > 1:
        return None
    if isinstance(weigh.normaliser, Softmax):
        return ["powers = torch.exp(s - s.max())", "weights = powers / powers.sum()"]
    if isinstance(weigh.normaliser, Sigmoid):
        return ["weights = torch.sigmoid(s)"]
    return ["weights = torch.relu(s)"] if isinstance(weigh.normaliser, Relu) else None
