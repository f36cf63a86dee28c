"""Parse masks, scores and normalizers from text, such as "causal & sliding_window(256)".

The text is not evaluated as Python. Names are looked up in fixed lists. The rest must be numbers, strings, lists of
numbers, `&`, `|`, `~` and `.then(...)`.
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, get_type_hints

import torch

from regard import feature_map, mask, normalizer, score
from regard.errors import ArgumentError, RegardError
from regard.expr.score_modifier import ScoreModifier
from regard.expr.serialize import text_constructors

__all__ = ["parse_mask", "parse_normalizer", "parse_score"]

MAX_OPTION_CHARACTERS, MAX_OPTION_NUMBER = 2000, 2**31  # length of the text, and magnitude of a number in it

Constructors = Mapping[str, Callable[..., Any]]


def _public_constructors(module: ModuleType, *result_types: type) -> Constructors:
    """The public constructors of a module that can be written as text and return one of these types."""
    constructors = text_constructors(module.__name__.rpartition(".")[2])
    return {
        name: getattr(module, name)
        for name, constructor in constructors.items()
        if name in module.__all__ and get_type_hints(constructor)["return"] in result_types
    }


def _mask_from_rows(rows: Any) -> mask.Mask:
    return mask.tensor(torch.as_tensor(rows) != 0)


_MASKS = {name: constructor for name, constructor in _public_constructors(mask, mask.Mask).items() if name != "tensor"}
MASK_CONSTRUCTORS: Constructors = {**_MASKS, "tensor": _mask_from_rows}
SCORE_CONSTRUCTORS: Constructors = _public_constructors(score, score.Score, ScoreModifier)
NORMALIZER_CONSTRUCTORS: Constructors = _public_constructors(normalizer, normalizer.Normalizer)
FEATURE_MAP_CONSTRUCTORS: Constructors = _public_constructors(feature_map, feature_map.FeatureMap)


def parse_mask(text: str) -> mask.Mask:
    """Return the mask that a text describes.

    >>> print(parse_mask("causal & ~sliding_window(2)"))
    j <= p and not (p - 2 < j and j < p + 2)
    """
    parsed: mask.Mask = _OptionParser("mask", MASK_CONSTRUCTORS, "causal & sliding_window(256)", text).parse()
    return parsed


def parse_score(
    text: str | None = None, *, scale: float | None = None, temperature: float | None = None
) -> score.ScoreLike:
    """Return the score that a text describes, `scaled_dot(scale)` for None, divided by `temperature`.

    >>> parse_score("cosine(10).then(alibi)").formula()
    'cos(q, k) · 10'
    """
    if text is not None and scale is not None:
        raise ArgumentError(
            f"scale must be given alone or inside the score, not both; got {text!r} and scale={scale:g}."
        )
    parsed = (
        score.scaled_dot(scale)
        if text is None
        else _OptionParser("score", SCORE_CONSTRUCTORS, "cosine(10).then(alibi)", text).parse()
    )
    if temperature is None:
        return parsed
    if not 0.0 < temperature < float("inf"):
        raise ArgumentError(f"temperature must be greater than 0 and finite; got {temperature:g}.")
    base = parsed if isinstance(parsed, score.Score) else score.scaled_dot().then(parsed)
    return base.then(score.modifier(lambda s, b, h, i, j: s / temperature))


def parse_normalizer(text: str) -> normalizer.Normalizer:
    """Return the normalizer that a text describes.

    >>> parse_normalizer("entmax(1.5)").formula
    '1.5-entmax'
    """
    parsed: normalizer.Normalizer = _OptionParser("normalizer", NORMALIZER_CONSTRUCTORS, "entmax(1.5)", text).parse()
    return parsed


class _OptionParser:
    """Parses one text of one kind: a mask, a score, a normalizer or a feature map."""

    def __init__(self, kind: str, constructors: Constructors, example: str, text: str) -> None:
        self.kind, self.constructors, self.example, self.text = kind, constructors, example, text

    def parse(self) -> Any:
        if len(self.text) > MAX_OPTION_CHARACTERS:
            raise self._parse_error(f"it has {len(self.text)} characters, more than {MAX_OPTION_CHARACTERS}", False)
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._parse_error("it cannot be parsed") from None
        return self._build(tree)

    def _build(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)) and self.kind == "mask":
            left, right = self._build(node.left), self._build(node.right)
            return left & right if isinstance(node.op, ast.BitAnd) else left | right
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert) and self.kind == "mask":
            return ~self._build(node.operand)
        if isinstance(node, ast.Name):
            return self._call_constructor(node.id, [], {})
        if isinstance(node, ast.Call):
            return self._build_call(node)
        raise self._parse_error(f"{ast.unparse(node)!r} is not a {self.kind}")

    def _build_call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "then" and self.kind == "score":
            if len(node.args) != 1 or node.keywords:
                raise self._parse_error(f"{ast.unparse(node)!r} must have one score modifier in its parentheses")
            before = self._build(node.func.value)
            base = before if isinstance(before, score.Score) else score.scaled_dot().then(before)
            return base.then(self._build(node.args[0]))
        if not isinstance(node.func, ast.Name) or any(keyword.arg is None for keyword in node.keywords):
            raise self._parse_error(f"{ast.unparse(node)!r} is not a {self.kind}")
        args = [self._literal(arg) for arg in node.args]
        options = {str(keyword.arg): self._literal(keyword.value) for keyword in node.keywords}
        return self._call_constructor(node.func.id, args, options)

    def _call_constructor(self, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        if name not in self.constructors:
            raise self._parse_error(f"{name!r} is not a {self.kind}")
        constructor = self.constructors[name]
        try:
            _check_argument_types(name, inspect.signature(constructor), args, options)
            return constructor(*args, **options)
        except RegardError:
            raise
        except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RuntimeError) as error:
            names = ", ".join(str(p).split(":")[0] for p in inspect.signature(constructor).parameters.values())
            raise ArgumentError(f"{name} has the arguments {name}({names}); got {self.text!r}: {error}.") from None

    def _literal(self, node: ast.expr) -> Any:
        """Return the value of an argument: a number, a string, a list of numbers, or a feature map of a kernel."""
        if self.kind == "normalizer" and isinstance(node, (ast.Name, ast.Call)):
            return _OptionParser("feature map", FEATURE_MAP_CONSTRUCTORS, "favor(64)", ast.unparse(node)).parse()
        try:
            value = ast.literal_eval(node)
            if isinstance(value, (list, tuple)):
                value = _number_tensor(value, self.kind == "mask")
            elif not isinstance(value, (int, float, str, type(None))) or abs(_magnitude(value)) > MAX_OPTION_NUMBER:
                raise ValueError
        except (ValueError, TypeError, SyntaxError, RecursionError, OverflowError, RuntimeError):
            raise self._parse_error(f"{ast.unparse(node)!r} is neither a number nor a list of numbers") from None
        return value

    def _parse_error(self, reason: str, list_names: bool = True) -> ArgumentError:
        names = f" Use {', '.join(self.constructors)}." if list_names else ""
        text = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        return ArgumentError(f"a {self.kind} must be written as in {self.example!r}; got {text!r}: {reason}.{names}")


def _number_tensor(rows: Any, as_integers: bool) -> torch.Tensor:
    """Convert nested lists of numbers to a float64 tensor, or to an int64 tensor for masks."""
    values = torch.tensor(rows, dtype=torch.float64)
    return values.long() if as_integers and torch.equal(values, values.round()) else values


def _magnitude(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _check_argument_types(name: str, signature: inspect.Signature, args: list[Any], options: dict[str, Any]) -> None:
    """Raise `ArgumentError` for a value whose type the constructor does not accept."""
    for parameter, value in signature.bind(*args, **options).arguments.items():
        annotation, default = str(signature.parameters[parameter].annotation), signature.parameters[parameter].default
        kinds = {
            "a string": "str" in annotation,
            "None": default is None,
            "True or False": "bool" in annotation,
            "an integer": "int" in annotation or "float" in annotation,
            "a number": "float" in annotation,
            "a list of numbers": any(kind in annotation for kind in ("Tensor", "Sequence", "Any")),
            "a feature map": "FeatureMap" in annotation,
        }
        if not kinds[_type_name(value)]:
            accepted = " or ".join(kind for kind, is_accepted in kinds.items() if is_accepted)
            raise ArgumentError(f"{parameter} of {name} must be {accepted}; got {value!r}.")


def _type_name(value: Any) -> str:
    names: dict[type, str] = {
        str: "a string",
        type(None): "None",
        bool: "True or False",  # before int, because bool is a subclass of int
        int: "an integer",
        float: "a number",
        torch.Tensor: "a list of numbers",
    }
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a feature map")
