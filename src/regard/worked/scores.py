"""The stages of a score: how queries and keys become one number for each pair, before any rule."""

import torch
from torch import Tensor

from regard.spec.feature import Elu, Favor, Kernel, Relu
from regard.spec.score import Additive, Cosine, Metric, Multiplicative, ScaledDot, Score
from regard.worked.call import Call
from regard.worked.stage import KEYS, NUMBER, PAIRS, QUERIES, Sheet, Written
from regard.worked.words import SCORES

MATRIX = ("row", "feature")


def put_score(sheet: Sheet, call: Call, q: Written, k: Written) -> Written:
    """Writes down how the pairs are scored; the last stage is the score."""
    score = call.question.score
    if isinstance(score, Multiplicative):
        return _multiplicative(sheet, score, q, k)
    if isinstance(score, Cosine):
        return _cosine(sheet, score, q, k)
    if isinstance(score, Metric):
        return _metric(sheet, score, q, k) if score.m is None else _mahalanobis(sheet, score.m, q, k)
    if isinstance(score, Additive):
        return _additive(sheet, score, q, k)
    if isinstance(score, Kernel):
        return _likeness(sheet, score, q, k)
    if isinstance(score, ScaledDot):
        return _scaled_dot(sheet, score, q, k)
    if type(score) is Score:
        return _products(sheet, "products", q, k)
    return _given(sheet, call, q, k)


def _products(sheet: Sheet, said: str, q: Written, k: Written) -> Written:
    return sheet.put(SCORES[said], q.whole @ k.whole.mT, PAIRS, f"{q.name} @ {k.name}.mT")


def _scaled_dot(sheet: Sheet, score: ScaledDot, q: Written, k: Written) -> Written:
    products, width = _products(sheet, "products", q, k), q.whole.shape[-1]
    if score.scale is not None:
        return _scaled(sheet, score.scale, products)
    code = f"{products.name} / {width} ** 0.5"
    return sheet.put(SCORES["over the root"], products.whole / width**0.5, PAIRS, code, width=width)


def _scaled(sheet: Sheet, scale: float | Tensor, scores: Written) -> Written:
    """Times a number, or one of each head."""
    if not isinstance(scale, Tensor):
        return sheet.put(
            SCORES["scaled"], scores.whole * scale, PAIRS, f"{scores.name} * {scale!r}", scale=f"{scale:g}"
        )
    each = sheet.put(SCORES["scale"], _by_head(scale), NUMBER)
    whole = scores.whole * each.whole[..., None, None]
    return sheet.put(SCORES["scaled by head"], whole, PAIRS, f"{scores.name} * {each.name}")


def _by_head(parameter: Tensor) -> Tensor:
    """One number, or one a head, as (1, heads)."""
    return parameter.detach().double().reshape(1, -1)


def _multiplicative(sheet: Sheet, score: Multiplicative, q: Written, k: Written) -> Written:
    w = sheet.put(SCORES["W"], score.w.detach().double(), MATRIX)
    turned = sheet.put(SCORES["q W"], q.whole @ w.whole, QUERIES, f"{q.name} @ {w.name}")
    return _products(sheet, "products through W", turned, k)


def _cosine(sheet: Sheet, score: Cosine, q: Written, k: Written) -> Written:
    units = [_unit(sheet, "q", q, QUERIES), _unit(sheet, "k", k, KEYS)]
    cosines = _products(sheet, "cosines", units[0], units[1])
    is_plain = not isinstance(score.scale, Tensor) and score.scale == 1.0
    return cosines if is_plain else _scaled(sheet, score.scale, cosines)


def _unit(sheet: Sheet, letter: str, x: Written, axes: tuple[str, ...]) -> Written:
    length = x.whole.square().sum(-1).sqrt()
    code = f"{x.name}.square().sum(-1).sqrt()"
    long = sheet.put(SCORES["length"], length, axes[:1], code, letter=letter, kind=axes[0])
    whole = x.whole / length.clamp(min=1e-12).unsqueeze(-1)  # a zero vector stays one
    return sheet.put(SCORES["unit"], whole, axes, f"{x.name} / {long.name}.clamp(min=1e-12)[:, None]", letter=letter)


def _metric(sheet: Sheet, score: Metric, q: Written, k: Written) -> Written:
    apart = q.whole.unsqueeze(-2) - k.whole.unsqueeze(-3)
    code = f"({q.name}[:, None] - {k.name}[None]).square().sum(-1)"
    squared = sheet.put(SCORES["squared distances"], apart.square().sum(-1), PAIRS, code)
    sigma = sheet.put(SCORES["sigma"], _by_head(torch.as_tensor(score.sigma, dtype=torch.float64)), NUMBER)
    whole = -squared.whole / (2.0 * sigma.whole[..., None, None] ** 2)
    return sheet.put(SCORES["nearness"], whole, PAIRS, f"-{squared.name} / (2.0 * {sigma.name} ** 2)")


def _mahalanobis(sheet: Sheet, m: Tensor, q: Written, k: Written) -> Written:
    matrix = sheet.put(SCORES["M"], m.detach().double(), MATRIX)
    apart = q.whole.unsqueeze(-2) - k.whole.unsqueeze(-3)
    whole = (apart @ matrix.whole.unsqueeze(2) * apart).sum(-1)
    between = f"({q.name}[:, None] - {k.name}[None])"
    code = f"({between} @ {matrix.name} * {between}).sum(-1)"
    squared = sheet.put(SCORES["squared distances by M"], whole, PAIRS, code)
    return sheet.put(SCORES["nearness by M"], -squared.whole / 2, PAIRS, f"-{squared.name} / 2")


def _additive(sheet: Sheet, score: Additive, q: Written, k: Written) -> Written:
    turned_q = _hidden(sheet, "q", q, score.w_q, score.bias)
    turned_k = _hidden(sheet, "k", k, score.w_k, None)
    u = sheet.put(SCORES["u"], score.u.detach().double(), ("hidden",))
    inside = turned_q.whole.unsqueeze(-2) + turned_k.whole.unsqueeze(-3)
    code = f"torch.tanh({turned_q.name}[:, None] + {turned_k.name}[None])"
    tanh = sheet.put(SCORES["tanh"], torch.tanh(inside), ("query", "key", "hidden"), code)
    whole = (tanh.whole * u.whole[:, :, None, None]).sum(-1)
    return sheet.put(SCORES["additive"], whole, PAIRS, f"{tanh.name} @ {u.name}")


def _hidden(sheet: Sheet, letter: str, x: Written, w: Tensor, bias: Tensor | None) -> Written:
    """W x, and a bias if there is one."""
    kind, heads = ("query" if letter == "q" else "key"), x.whole.shape[1]
    w = w.detach().double()
    if w.dim() == 3 and w.shape[0] not in (1, heads):  # one of each head of keys is shared in groups
        w = w.repeat_interleave(heads // w.shape[0], dim=0)
    matrix = sheet.put(SCORES["additive matrix"], w, ("row", "hidden"), letter=letter, kind=kind)
    whole, code, formula = x.whole @ matrix.whole, f"{x.name} @ {matrix.name}", f"W_{letter} {letter}"
    if bias is not None:
        added = sheet.put(SCORES["bias"], bias.detach().double(), ("hidden",))
        whole, code, formula = whole + added.whole.unsqueeze(-2), f"{code} + {added.name}", f"{formula} + b"
    return sheet.put(SCORES["turned"], whole, (kind, "hidden"), code, letter=letter, kind=kind, formula=formula)


def _likeness(sheet: Sheet, score: Kernel, q: Written, k: Written) -> Written:
    """Products of features, the scores of `weigh.kernel`."""
    phi = score.features
    line = {Elu: "torch.nn.functional.elu({}) + 1.0", Relu: "torch.relu({})"}.get(type(phi), "")
    cancels = ", up to a factor of each row that cancels" if isinstance(phi, Favor) else ""
    found = []
    for letter, x, kind, of, more in (("q", q, "query", phi.of_queries, cancels), ("k", k, "key", phi.of_keys, "")):
        axes, code = (kind, "hidden"), line.format(x.name)
        said = dict(letter=letter, kind=kind, more=more, formula=phi.formula)
        found.append(sheet.put(SCORES["features"], of(x.whole).double(), axes, code, **said))
    return _products(sheet, "likeness", found[0], found[1])


def _given(sheet: Sheet, call: Call, q: Written, k: Written) -> Written:
    """A function of one's own: what it gives, number by number."""
    question = call.question
    inputs = question.inputs(torch.float64)
    if inputs.function is not None:
        whole = inputs.function(q.whole, k.whole, *inputs.parameters)
    else:
        keys = inputs.k.double().repeat_interleave(q.whole.shape[1] // inputs.k.shape[1], dim=1)
        whole = (inputs.q.double() * question.spec.scale) @ keys.mT
    return sheet.put(SCORES["given"], whole.detach().double(), PAIRS, formula=question.score.formula())
