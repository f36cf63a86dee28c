"""Masks and normalizers as JSON that an exported page evaluates without Python.

The stages of a normalizer are trees: numbers, names of variables, and `[operation, *arguments]`. The page evaluates
them with frontend/offline/stage-interpreter.js, and masks and score modifiers with expr-interpreter.js.
"""

import ast
import math
from typing import Any, TypeAlias

from torch import Tensor

from regard.expr.ir import Expr
from regard.expr.node_list import to_nodes
from regard.normalizer import Normalizer
from regard.stage_spec import StageSpec, variable_name

Operators: TypeAlias = dict[type[ast.AST], str]

ARITHMETIC: Operators = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}
COMPARISONS: Operators = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
LOGIC: Operators = {ast.BitAnd: "and", ast.BitOr: "or", ast.Invert: "not"}
OPERATORS: Operators = {**ARITHMETIC, **COMPARISONS, **LOGIC, ast.USub: "neg"}
FUNCTIONS = "exp exp2 expm1 log log1p log2 sqrt tanh sigmoid sin cos abs sign floor ceil trunc minimum maximum where"
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin"})
STAGE_FUNCTIONS = frozenset({"entmax_threshold", "topk_threshold"})  # functions that stage specs refer to

# the operations of expr-interpreter.js, and of stage-interpreter.js
EXPR_OPERATIONS = frozenset({*OPERATORS.values(), *FUNCTIONS.split(), "floordiv", "mod", "xor"})
STAGE_OPERATIONS = (
    EXPR_OPERATIONS | REDUCTIONS | STAGE_FUNCTIONS | {"relu", "square", "isnan", "clamp", "double", "column"}
)


class UnsupportedOffline(Exception):
    """An operation that a page cannot compute without Python. Internal: the page does not offer the option."""


def normalizer_to_json(normalizer: Normalizer) -> dict[str, Any]:
    """Return the constants, the score modifier and the stages of a normalizer; raise `UnsupportedOffline`."""
    parameter, specs, modifier = normalizer.row_normalizer.parameter, normalizer.stage_specs, normalizer.score_mod
    if not specs or normalizer.feature_map is not None or normalizer.parameter is not None:
        raise UnsupportedOffline(normalizer.formula)
    constants = {name: _number(value) for name, value in normalizer.fields.items() if not isinstance(value, Expr)}
    return {
        "constants": constants | ({} if parameter is None else {"parameter": parameter.value}),
        "modifier": modifier and {"name": modifier.stage.name, "nodes": expr_to_json(modifier.expr)},
        "stage_specs": [
            {"name": spec.name, "variable": variable_name(spec.name), "tree": _spec_to_json(spec)} for spec in specs
        ],
    }


def expr_to_json(expr: Expr) -> list[Any]:
    """Return the nodes of a mask or a score modifier; raise `UnsupportedOffline`."""
    nodes = to_nodes(expr)
    for operation, *content in nodes:
        if operation not in EXPR_OPERATIONS | {"constant", "variable"} or content in ([math.inf], [-math.inf]):
            raise UnsupportedOffline(operation)
    return [list(node) for node in nodes]


def expression_tree(code: str) -> Any:
    """Return the tree of a torch expression; raise `UnsupportedOffline`.

    >>> expression_tree("torch.exp(scores - row_maximum[:, None]).sum(-1)")
    ['sum', ['exp', ['sub', 'scores', ['column', 'row_maximum']]]]
    """
    return _tree(ast.parse(code, mode="eval").body)


def _tree(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=op, operand=operand):
            return _operation(OPERATORS.get(type(op)), operand)
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            return _operation(OPERATORS.get(type(op)), left, right)
        case ast.Subscript(value=value) if ast.unparse(node.slice) == "(:, None)":
            return _operation("column", value)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args, keywords=keywords):
            return _call(name, [*([] if ast.unparse(value) == "torch" else [value]), *args], keywords)
    raise UnsupportedOffline(ast.unparse(node))


def _call(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
    if name in REDUCTIONS and len(args) == 2 and ast.unparse(args[1]) == "-1" and not keywords:
        return _operation(name, args[0])
    if name == "clamp" and len(args) == 1:
        bounds = {str(keyword.arg): _tree(keyword.value) for keyword in keywords}
        return [*_operation(name, args[0]), bounds.get("min"), bounds.get("max")]
    if name in REDUCTIONS or keywords:
        raise UnsupportedOffline(name)
    return _operation(name, *args)


def _operation(name: str | None, *args: ast.expr) -> list[Any]:
    if name not in STAGE_OPERATIONS:
        raise UnsupportedOffline(name)
    return [name, *(_tree(arg) for arg in args)]


def _spec_to_json(spec: StageSpec) -> Any:
    if callable(spec.value):
        return _operation(getattr(spec.value, "__name__", None))
    return expression_tree(spec.value or spec.code)


def _number(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if not isinstance(value, (int, float, type(None))):
        raise UnsupportedOffline(value)
    return value
