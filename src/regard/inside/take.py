"""One recorded call of attention: copies of q, k and v, and what was asked about them, ready to be asked again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import attend
from regard.errors import SpecError
from regard.heard import unheard
from regard.result import Attended
from regard.spec.array import as_tensor, over_pairs
from regard.spec.finite import shielded
from regard.spec.formula import Formula
from regard.spec.mask import Mask, as_mask
from regard.spec.mask import from_term as mask_from
from regard.spec.named import Named, Unspeakable, read_options, spell
from regard.spec.rule import from_term as rule_from
from regard.spec.score import ScaledDot, Score, scaled_dot
from regard.spec.term import Term, apply, constant, lookup, substitute, variable

OPTIONS = ("score", "mask", "weigh", "value", "start")


@dataclass(frozen=True)
class Spelled:
    """The options of a call as text, with the tensors and whole numbers it speaks of."""

    text: str
    tensors: tuple[Tensor, ...]
    numbers: tuple[int, ...]

    def options(self) -> dict[str, Any]:
        return read_options(self.text, self.tensors, self.numbers, OPTIONS)


@dataclass(eq=False)
class Take:
    """q (batch, heads, n_q, width), k and v (batch, key heads, n_k, ...) of one call, and how they are asked.

    `spelled` is None where the call has something that has no name, such as a score of one's own; then it cannot be
    saved. `gradient` is that of the loss in the answer, (batch, heads, n_q, value width), once it is known.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    spelled: Spelled | None
    source: str
    gradient: Tensor | None = None

    @property
    def plain_scale(self) -> float | None:
        """What products are multiplied by, where that is all there is to a score; None elsewhere."""
        chosen = self.options["score"]
        if chosen is None:
            chosen = scaled_dot()
        if type(chosen) is not ScaledDot or chosen.rule is not None or isinstance(chosen.scale, Tensor):
            return None
        return float(self.q.shape[-1] ** -0.5 if chosen.scale is None else chosen.scale)

    @cached_property
    def attended(self) -> Attended:
        """The answer again, kept open."""
        with torch.no_grad(), unheard():
            return attend(self.q, self.k, self.v, **self.options)

    def widened(self) -> "Take":
        """The same call in floats, where it is in half precision: that cannot count to 300, and an answer would have
        three digits, where weights have seven."""
        if self.q.dtype not in (torch.bfloat16, torch.float16):
            return self
        return replace(self, q=self.q.float(), k=self.k.float(), v=self.v.float())

    def rewritten(self, places: dict[str, list[int] | Tensor | int]) -> dict[str, Any]:
        """The options of a call in which number n of a variable b, h, i or j is `places[variable][n]` of this one; a
        whole number stands for all of them."""
        options = dict(self.options)
        if options["mask"] is not None:
            options["mask"] = self._moved(options["mask"], places)
        if options["score"] is not None and options["score"].rule is not None:
            chosen, rule = options["score"], self._moved(options["score"].rule, places)
            is_plain = type(chosen) is ScaledDot  # which then knows its name
            options["score"] = scaled_dot(chosen.scale).then(rule) if is_plain else replace(chosen, rule=rule)
        if "i" in places:
            options["start"] = 0
        return options

    @property
    def start(self) -> int | Tensor:
        """Where the first query stands among the keys."""
        given = self.options["start"]
        return self.k.shape[2] - self.q.shape[2] if given is None else given

    def _moved(self, formula: Formula, places: dict[str, list[int] | Tensor | int]) -> Formula:
        lengths = (*self.q.shape[:3], self.k.shape[2])
        tensors = list(formula.resolved(lengths, self.start, self.q))
        new: dict[Term, Term] = {}
        for name, numbers in places.items():
            if isinstance(numbers, int):
                new[variable(name)] = constant(numbers)
            else:
                new[variable(name)] = lookup(len(tensors), (variable(name),), "int")
                tensors.append(torch.as_tensor(numbers, device=self.q.device))
        if "i" in places:
            if isinstance(self.start, Tensor):
                raise SpecError(
                    "queries must all begin at one place to be put in another order; got one for each text."
                )
            new[variable("p")] = apply("add", new[variable("i")], constant(self.start))
        make = mask_from if isinstance(formula, Mask) else rule_from
        names = [*formula.names, *(f"place{n}" for n in range(len(tensors) - len(formula.names)))]
        return make(substitute(formula.term, new), tensors, names)


def taken(asked: dict[str, Any], heads: Sequence[int] | None, keep: Callable[[Tensor], Tensor], source: str) -> Take:
    """A call, copied; of some heads alone where they are named."""
    q, k, v, options = four_dimensional(asked)
    if heads is not None:
        q, k, v, options = _of_heads(q, k, v, options, list(heads))
    tensors: list[Tensor] = []
    numbers: list[int] = []
    spelled = None
    try:
        text = '{"list": [' + ", ".join(spell(options[name], tensors, numbers) for name in OPTIONS) + "]}"
    except Unspeakable:
        pass
    else:
        spelled = Spelled(text, tuple(keep(t) for t in tensors), tuple(numbers))
        options = spelled.options()
    q, k, v = (x.detach().clone(memory_format=torch.contiguous_format) for x in (q, k, v))
    return Take(q, k, v, options, spelled, source)


def four_dimensional(asked: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """q, k and v with batch and heads, and options in which functions were read and tensors fit."""
    q, k, v = (as_tensor(asked[name], name) for name in "qkv")
    options = {name: asked.get(name) for name in OPTIONS}
    value = options["value"]
    if callable(value) and not isinstance(value, Named):
        v, options["value"] = shielded(lambda x: (value(x),), v)[0].to(v.dtype), None
    leading = tuple(q.shape[:-2])
    for name, read in (("mask", as_mask), ("score", _as_score)):
        given = options[name]
        if isinstance(given, (Tensor, np.ndarray)) and given.ndim == q.dim():
            given = over_pairs(as_tensor(given, name), leading)
        options[name] = None if given is None else read(given)
    if q.dim() == 2:
        q, k, v = (x[None, None] for x in (q, k, v))
    elif q.dim() == 3:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    elif q.dim() > 4:
        q, k, v = (x.flatten(0, -4) for x in (q, k, v))
    return q, k, v, options


def _as_score(given: Any) -> Any:
    """A score that knows its name, from a score or a rule."""
    return given if isinstance(given, Score) else scaled_dot().then(given)


def _of_heads(
    q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], heads: list[int]
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """The same call of some heads alone."""
    many = q.shape[1]
    if any(not 0 <= head < many for head in heads):
        raise SpecError(f"heads must be from 0 to {many - 1}; got {heads}.")
    chosen = options["score"]
    score_fits = chosen is None or (type(chosen) is ScaledDot and not isinstance(chosen.scale, Tensor))
    if options["weigh"] is not None or options["value"] is not None or not score_fits:
        raise SpecError(
            "heads can be picked where softmax weighs a scaled product with any rule and mask; this call has another "
            "score, weighing or value, which may have numbers for each head. Leave out heads=."
        )
    of_keys = [head // (many // k.shape[1]) for head in heads]
    whole = Take(q, k, v, options, None, "")
    changed = whole.rewritten({"h": heads})
    return q[:, heads], k[:, of_keys], v[:, of_keys], changed
