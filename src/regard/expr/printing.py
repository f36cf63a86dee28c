"""Print expressions as plain text and as LaTeX."""

from collections import Counter
from collections.abc import Callable, Sequence

from regard.expr.ir import WRAP_RANGES, Expr, slot_of, tree_sizes, walk

# precedence of operations; an argument of lower precedence gets parentheses
_LOOSE, _OR, _XOR, _AND, _COMPARE, _BITOR, _BITXOR, _BITAND, _SHIFT, _SUM, _PRODUCT, _SIGN, _POWER, _TIGHT = range(14)

_INFIX: dict[str, tuple[int, str, str]] = {
    "or": (_OR, " or ", r" \lor "),
    "xor": (_XOR, " xor ", r" \oplus "),
    "and": (_AND, " and ", r" \land "),
    "eq": (_COMPARE, " == ", " = "),
    "ne": (_COMPARE, " != ", r" \neq "),
    "lt": (_COMPARE, " < ", " < "),
    "le": (_COMPARE, " <= ", r" \leq "),
    "gt": (_COMPARE, " > ", " > "),
    "ge": (_COMPARE, " >= ", r" \geq "),
    "add": (_SUM, " + ", " + "),
    "sub": (_SUM, " - ", " - "),
    "mul": (_PRODUCT, " * ", r" \, "),
    "div": (_PRODUCT, " / ", " / "),
    "floordiv": (_PRODUCT, " // ", r" \div "),
    "mod": (_PRODUCT, " % ", r" \bmod "),
    "pow": (_POWER, " ** ", "^"),
    "bitand": (_BITAND, " & ", r" \mathbin{\&} "),
    "bitor": (_BITOR, " | ", r" \mathbin{|} "),
    "bitxor": (_BITXOR, " ^ ", r" \oplus "),
    "shift_left": (_SHIFT, " << ", r" \ll "),
    "shift_right": (_SHIFT, " >> ", r" \gg "),
}
_LATEX_NAMES = {"minimum": r"\min", "maximum": r"\max", "sigmoid": r"\sigma"}
_LATEX_FUNCTIONS = frozenset({"tanh", "log", "sin", "cos"})
_TEXT_NAMES = {"minimum": "min", "maximum": "max", "to_int": "int", "to_float": "float"}
_TEXT_NAMES |= {op: op.removeprefix("to_") for op in WRAP_RANGES}

MAX_PRINTED_NODES = 1000  # of a larger expression only the size is printed
MAX_INLINE_NODES = 200  # in a larger expression, repeated subexpressions get names

NodeFormatter = Callable[[Expr, list[tuple[str, int]], Sequence[str]], tuple[str, int]]


def to_text(expr: Expr, tensor_names: Sequence[str] = ()) -> str:
    """Return the expression as a line of text; captured tensors are printed by `tensor_names`.

    >>> from regard.expr.ir import apply, variable
    >>> to_text(apply("le", variable("j"), variable("p")))
    'j <= p'
    """
    size = _oversize_node_count(expr)
    if size:
        return f"an expression of {size} operations on {', '.join(sorted(expr.free_variables)) or 'constants'}"
    text, parts = _format_expr(expr, tensor_names, _node_text)
    return text if not parts else f"{text} where {', '.join(f'x{n} = {part}' for n, part in parts)}"


def to_latex(expr: Expr, tensor_names: Sequence[str] = ()) -> str:
    r"""Return the expression in LaTeX, without dollar signs.

    >>> from regard.expr.ir import apply, variable
    >>> to_latex(apply("le", variable("j"), variable("p")))
    'j \\leq p'
    """
    size = _oversize_node_count(expr)
    if size:
        return rf"\text{{an expression of {size} operations}}"
    text, parts = _format_expr(expr, tensor_names, _node_latex)
    return text if not parts else rf"{text} \text{{ where }} {', '.join(f'x{n} = {part}' for n, part in parts)}"


def _oversize_node_count(expr: Expr) -> int:
    """Return the number of nodes if the expression is too large to print, else 0."""
    size = sum(1 for _ in walk(expr))
    return size if size > MAX_PRINTED_NODES else 0


def _format_expr(
    expr: Expr, tensor_names: Sequence[str], formatter: NodeFormatter
) -> tuple[str, list[tuple[int, str]]]:
    """Return the formatted expression and its named subexpressions: number and text of x1, x2, ..."""
    repeated = _repeated_subexprs(expr)
    parts: list[tuple[int, str]] = []
    formatted: dict[Expr, tuple[str, int]] = {}
    for node in walk(expr):
        formatted[node] = formatter(node, [formatted[a] for a in node.args], tensor_names)
        if node in repeated:
            parts.append((len(parts) + 1, formatted[node][0]))
            formatted[node] = f"x{len(parts)}", _TIGHT
    return formatted[expr][0], parts


def _repeated_subexprs(expr: Expr) -> set[Expr]:
    """Return the subexpressions that occur more than once in a large expression; none in a small one."""
    sizes = tree_sizes(expr)
    if sizes[expr] <= MAX_INLINE_NODES:
        return set()
    uses = Counter(a for node in sizes for a in node.args)
    return {node for node, count in uses.items() if count > 1 and sizes[node] > 3}


def _parenthesize(formatted: tuple[str, int], min_precedence: int) -> str:
    text, precedence = formatted
    return text if precedence >= min_precedence else f"({text})"


def _format_infix(node: Expr, args: list[tuple[str, int]], column: int) -> tuple[str, int]:
    precedence = _INFIX[node.op][0]
    operator = _INFIX[node.op][column]
    left_min, right_min = precedence, precedence + 1
    if node.op in ("and", "or", "add", "mul") and node.args[1].op == node.op:
        right_min = precedence  # associative operations need no parentheses
    if precedence == _COMPARE or node.op == "pow":
        left_min = precedence + 1
    assert isinstance(operator, str)
    left, right = _parenthesize(args[0], left_min), _parenthesize(args[1], right_min)
    if node.op == "add" and node.args[1].op == "constant" and right.startswith("-"):
        return f"{left} - {right[1:]}", precedence  # of a negative number
    return f"{left}{operator}{right}", precedence


def _format_number(value: object) -> tuple[str, int]:
    negative = isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0
    return str(value), _SIGN if negative else _TIGHT


def _tensor_name(node: Expr, tensor_names: Sequence[str]) -> str:
    slot = slot_of(node)
    return tensor_names[slot] if slot < len(tensor_names) else f"t{slot}"


def _node_text(node: Expr, args: list[tuple[str, int]], tensor_names: Sequence[str]) -> tuple[str, int]:
    arguments = ", ".join(a for a, _ in args)
    if node.op == "constant":
        return _format_number(node.value)
    if node.op == "variable":
        return str(node.value), _TIGHT
    if node.op == "lookup":
        return (
            f"{_tensor_name(node, tensor_names)}[{arguments}]" if args else _tensor_name(node, tensor_names)
        ), _TIGHT
    if node.op in _INFIX:
        return _format_infix(node, args, 1)
    if node.op == "exact":
        return args[0]
    if node.op == "not":
        return f"not {_parenthesize(args[0], _COMPARE)}", _COMPARE
    if node.op == "neg":
        return f"-{_parenthesize(args[0], _SIGN)}", _SIGN
    if node.op == "abs":
        return f"|{args[0][0]}|", _TIGHT
    if node.op == "where":
        return f"({args[1][0]} if {args[0][0]} else {args[2][0]})", _TIGHT
    return f"{_TEXT_NAMES.get(node.op, node.op)}({arguments})", _TIGHT


def _node_latex(node: Expr, args: list[tuple[str, int]], tensor_names: Sequence[str]) -> tuple[str, int]:
    arguments = ", ".join(a for a, _ in args)
    if node.op == "constant":
        special = {float("inf"): r"\infty", float("-inf"): r"-\infty", True: r"\top", False: r"\bot"}
        if isinstance(node.value, bool) or node.value in (float("inf"), float("-inf")):
            return special[node.value], _TIGHT
        return _format_number(node.value)
    if node.op == "variable":
        return str(node.value), _TIGHT
    if node.op == "lookup":
        name = rf"\mathrm{{{_tensor_name(node, tensor_names)}}}".replace("_", r"\_")
        return (f"{name}_{{{arguments}}}" if args else name), _TIGHT
    if node.op == "div":
        return rf"\frac{{{args[0][0]}}}{{{args[1][0]}}}", _TIGHT
    if node.op == "floordiv":
        return rf"\left\lfloor \frac{{{args[0][0]}}}{{{args[1][0]}}} \right\rfloor", _TIGHT
    if node.op == "pow":
        return f"{_parenthesize(args[0], _TIGHT)}^{{{args[1][0]}}}", _POWER
    if node.op in _INFIX:
        return _format_infix(node, args, 2)
    if node.op == "not":
        return rf"\lnot {_parenthesize(args[0], _TIGHT)}", _SIGN
    if node.op == "neg":
        return f"-{_parenthesize(args[0], _SIGN)}", _SIGN
    if node.op == "abs":
        return f"|{args[0][0]}|", _TIGHT
    if node.op == "where":
        return (
            rf"\begin{{cases}} {args[1][0]} & {args[0][0]} \\ {args[2][0]} & \text{{else}} \end{{cases}}",
            _LOOSE,
        )
    if node.op == "floor":
        return rf"\lfloor {args[0][0]} \rfloor", _TIGHT
    if node.op == "exp":
        return f"e^{{{args[0][0]}}}", _POWER
    if node.op == "sqrt":
        return rf"\sqrt{{{args[0][0]}}}", _TIGHT
    if node.op in ("to_float", "to_int", "exact"):
        return args[0] if node.op != "to_int" else (rf"\mathrm{{int}}({arguments})", _TIGHT)
    if node.op in WRAP_RANGES:
        return rf"\mathrm{{{_TEXT_NAMES[node.op]}}}({arguments})", _TIGHT
    name = _LATEX_NAMES.get(node.op) or (rf"\{node.op}" if node.op in _LATEX_FUNCTIONS else rf"\mathrm{{{node.op}}}")
    return f"{name}({arguments})", _TIGHT
