"""Print an `Expr` as torch code over index tensors i, j and p, and tensors as literals."""

from collections.abc import Sequence

from torch import Tensor

from regard.errors import ArgumentError
from regard.expr.ir import ARITHMETIC, WRAP_RANGES, Expr, slot_of, tree_sizes, walk

_OPERATION_NAMES = (
    "add sub mul div floordiv mod pow eq ne lt le gt ge and or xor bitand bitor bitxor shift_left shift_right"
)
_OPERATORS = dict(
    zip(_OPERATION_NAMES.split(), "+ - * / // % ** == != < <= > >= & | ^ & | ^ << >>".split(), strict=True)
)
_CASTS = {"to_int": ".long()", "to_float": ".float()", "to_score_dtype": ".double()"}
_CASTS |= {op: f".to(torch.{op.removeprefix('to_')}).long()" for op in WRAP_RANGES}
MAX_OPERATIONS = 1000


def torch_expression(expr: Expr, names: Sequence[str], score: str = "s") -> str:
    """Return torch code that computes an `Expr`, with the variables `names` for captured tensors.

    >>> from regard import mask
    >>> torch_expression((mask.causal() & mask.sliding_window(3)).expr, ())
    '(j <= p) & (((p - 3) < j) & (j < (p + 3)))'
    """
    if not has_few_operations(expr, MAX_OPERATIONS):
        raise ArgumentError(
            f"a formula must have at most {MAX_OPERATIONS} operations to be written as code; it has more."
        )
    code: dict[Expr, str] = {}
    for node in walk(expr):
        code[node] = _node_code(node, [code[a] for a in node.args], names, score)
    return code[expr]


def _node_code(node: Expr, args: list[str], names: Sequence[str], score: str) -> str:
    if node.op == "constant":
        return repr(node.value)
    if node.op == "variable":
        return score if node.value == "s" else str(node.value)
    if node.op == "lookup":
        name = names[slot_of(node)]
        return f"{name}[{', '.join(args)}]" if args else name
    if node.op in ARITHMETIC:  # booleans count as 0 and 1
        args = [
            f"{_parenthesize(a, x)}.long()" if x.kind == "bool" else a for a, x in zip(args, node.args, strict=True)
        ]
    if node.op in _OPERATORS:
        left, right = (_parenthesize(a, x) for a, x in zip(args, node.args, strict=True))
        return f"{left} {_OPERATORS[node.op]} {right}"
    if node.op == "not":
        return f"~{_parenthesize(args[0], node.args[0])}"
    if node.op == "neg":
        return f"-{_parenthesize(args[0], node.args[0])}"
    if node.op in _CASTS:
        return f"torch.as_tensor({args[0]}){_CASTS[node.op]}"
    if node.op in ("minimum", "maximum"):
        return f"torch.{node.op}(torch.as_tensor({args[0]}), torch.as_tensor({args[1]}))"
    return f"torch.{node.op}({', '.join(args)})"


def _parenthesize(code: str, node: Expr) -> str:
    plain = node.op in ("variable", "lookup") or (node.op == "constant" and not code.startswith("-"))
    return code if plain or node.op not in {*_OPERATORS, "neg", "not", "constant"} else f"({code})"


def tensor_literal(values: Tensor) -> str:
    """Return code that creates a tensor with exactly these values; floats become float64.

    >>> import torch
    >>> tensor_literal(torch.tensor([[0.1, float("-inf")]], dtype=torch.float64))
    'torch.tensor([[0.1, -inf]], dtype=torch.float64)'
    """
    kind = ", dtype=torch.float64" if values.is_floating_point() else ""
    exact = values.detach().double() if values.is_floating_point() else values
    return f"torch.tensor({exact.tolist()!r}{kind})"


def has_few_operations(expr: Expr, max_operations: int = 300) -> bool:
    """Whether an `Expr` written as one formula has at most `max_operations`; shared parts count each time."""
    return tree_sizes(expr)[expr] <= max_operations
