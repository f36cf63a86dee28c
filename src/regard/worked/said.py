"""Masks, scores and weighings from text, such as "causal & window(256)". Nothing is evaluated: names are looked up in
lists, and all else must be numbers, words, lists of them, `&`, `|`, `~` and `.then(...)`."""

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from regard.errors import RegardError, SpecError
from regard.spec import feature, mask, score, weigh

LONGEST, LARGEST = 2000, 2**31  # letters, and numbers

_MASKS = "causal window dilated blocks strided fixed padding documents prefix tokens random_blocks longformer bigbird"
_SCORES = "dot scaled_dot multiplicative cosine metric mahalanobis additive alibi bias relative shaw_keys softcap"
_WEIGHINGS = "softmax sink sparsemax entmax top argmax gumbel sinkhorn kernel sigmoid relu"

Makers = Mapping[str, Callable[..., Any]]


def _boolean(rows: Any) -> Any:
    return mask.tensor(torch.as_tensor(rows) != 0)


MASKS: Makers = {**{name: getattr(mask, name) for name in _MASKS.split()}, "tensor": _boolean}
SCORES: Makers = {name: getattr(score, name) for name in _SCORES.split()}
WEIGHINGS: Makers = {name: getattr(weigh, name) for name in _WEIGHINGS.split()}
FEATURES: Makers = {name: getattr(feature, name) for name in ("elu", "relu", "cosformer", "favor")}


def said_mask(text: str) -> Any:
    """The mask that a text names.

    >>> print(said_mask("causal & ~window(2)"))
    j <= p and not (p - 2 < j and j < p + 2)
    """
    return _Reader("mask", MASKS, "causal & window(256)", text).read()


def said_score(text: str | None = None, *, scale: float | None = None, temperature: float | None = None) -> Any:
    """The score that a text names, scaled dot if there is none; `temperature` divides what comes of it.

    >>> said_score("cosine(10).then(alibi)").formula()
    'cos(q, k) · 10'
    """
    if text is not None and scale is not None:
        raise SpecError(f"a scale must stand alone or inside the score; got {text!r} and scale={scale:g}.")
    found = score.scaled_dot(scale) if text is None else _Reader("score", SCORES, "cosine(10).then(alibi)", text).read()
    if temperature is None:
        return found
    if not 0.0 < temperature < float("inf"):
        raise SpecError(f"temperature must be greater than 0 and finite; got {temperature:g}.")
    whole = found if isinstance(found, score.Score) else score.scaled_dot().then(found)
    return whole.then(score.rule(lambda s, b, h, i, j: s / temperature))


def said_weigh(text: str) -> Any:
    """The weighing that a text names.

    >>> said_weigh("entmax(1.5)").formula
    'entmax of 1.5'
    """
    return _Reader("weighing", WEIGHINGS, "entmax(1.5)", text).read()


class _Reader:
    """One text read with the names of one kind."""

    def __init__(self, kind: str, makers: Makers, example: str, text: str) -> None:
        self.kind, self.makers, self.example, self.text = kind, makers, example, text

    def read(self) -> Any:
        if len(self.text) > LONGEST:
            raise self._wrong(f"{len(self.text)} letters, where {LONGEST} are the most", "")
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._wrong("it cannot be read") from None
        return self._made(tree)

    def _made(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)) and self.kind == "mask":
            left, right = self._made(node.left), self._made(node.right)
            return left & right if isinstance(node.op, ast.BitAnd) else left | right
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert) and self.kind == "mask":
            return ~self._made(node.operand)
        if isinstance(node, ast.Name):
            return self._call(node.id, [], {})
        if isinstance(node, ast.Call):
            return self._called(node)
        raise self._wrong(f"{ast.unparse(node)!r} names none")

    def _called(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "then" and self.kind == "score":
            if len(node.args) != 1 or node.keywords:
                raise self._wrong(f"{ast.unparse(node)!r} must have one rule in its brackets")
            before = self._made(node.func.value)
            whole = before if isinstance(before, score.Score) else score.scaled_dot().then(before)
            return whole.then(self._made(node.args[0]))
        if not isinstance(node.func, ast.Name) or any(keyword.arg is None for keyword in node.keywords):
            raise self._wrong(f"{ast.unparse(node)!r} names none")
        given = [self._value(each) for each in node.args]
        options = {str(keyword.arg): self._value(keyword.value) for keyword in node.keywords}
        return self._call(node.func.id, given, options)

    def _call(self, name: str, given: list[Any], options: dict[str, Any]) -> Any:
        if name not in self.makers:
            raise self._wrong(f"{name!r} is none")
        make = self.makers[name]
        try:
            _check_fit(name, inspect.signature(make), given, options)
            return make(*given, **options)
        except RegardError:
            raise
        except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RuntimeError) as error:
            names = ", ".join(str(p).split(":")[0] for p in inspect.signature(make).parameters.values())
            raise SpecError(
                f"{name} must be given what it takes, {name}({names}); got {self.text!r}: {error}."
            ) from None

    def _value(self, node: ast.expr) -> Any:
        """A number, a word or a list of numbers; the features of a kernel."""
        if self.kind == "weighing" and isinstance(node, (ast.Name, ast.Call)):
            return _Reader("feature", FEATURES, "favor(64)", ast.unparse(node)).read()
        try:
            value = ast.literal_eval(node)
            if isinstance(value, (list, tuple)):
                value = _array(value, self.kind == "mask")
            elif not isinstance(value, (int, float, str, type(None))) or abs(_number(value)) > LARGEST:
                raise ValueError
        except (ValueError, TypeError, SyntaxError, RecursionError, OverflowError, RuntimeError):
            raise self._wrong(f"{ast.unparse(node)!r} is no number and no list of numbers") from None
        return value

    def _wrong(self, why: str, known: str | None = None) -> SpecError:
        names = f" Known are {', '.join(self.makers)}." if known is None else ""
        shown = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        return SpecError(f"a {self.kind} must be named as in {self.example!r}; got {shown!r}: {why}.{names}")


def _array(rows: Any, whole: bool) -> torch.Tensor:
    """Numbers as a tensor; masks take whole ones."""
    found = torch.tensor(rows, dtype=torch.float64)
    return found.long() if whole and torch.equal(found, found.round()) else found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _check_fit(name: str, signature: inspect.Signature, given: list[Any], options: dict[str, Any]) -> None:
    """Refuses values of a kind that a maker does not take, so that it need not be asked."""
    for parameter, value in signature.bind(*given, **options).arguments.items():
        taken, default = str(signature.parameters[parameter].annotation), signature.parameters[parameter].default
        kinds = {
            "a word": "str" in taken,
            "None": default is None,
            "True or False": "bool" in taken,
            "a whole number": "int" in taken or "float" in taken,
            "a number": "float" in taken,
            "a list of numbers": any(kind in taken for kind in ("Tensor", "Sequence", "Any")),
            "features": "FeatureMap" in taken,
        }
        if not kinds[_kind(value)]:
            wanted = " or ".join(kind for kind, takes in kinds.items() if takes)
            raise SpecError(f"{parameter} of {name} must be {wanted}; got {value!r}.")


def _kind(value: Any) -> str:
    kinds = ((str, "a word"), (type(None), "None"), (bool, "True or False"), (int, "a whole number"))
    more = ((float, "a number"), (torch.Tensor, "a list of numbers"))
    return next((word for kind, word in (*kinds, *more) if isinstance(value, kind)), "features")
