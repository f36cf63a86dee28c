"""Reading a term: as plain text and as LaTeX."""

from collections import Counter
from collections.abc import Callable, Sequence

from regard.spec.term import WRAPS, Term, slot_of, tree_sizes, walk

# how tightly an operation binds; a looser argument of a tighter operation gets brackets
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
_LATEX_NAMES = {"n_q": "n_q", "n_k": "n_k", "minimum": r"\min", "maximum": r"\max", "sigmoid": r"\sigma"}
_TEXT_NAMES = {"minimum": "min", "maximum": "max", "to_int": "int", "to_float": "float"}
_TEXT_NAMES |= {op: op.removeprefix("to_") for op in WRAPS}

MAX_WRITTEN = 1000  # nodes of a formula that is written; of a larger one only its size is
LARGEST = 200  # operations in a formula that is written out; in a larger one, parts that occur twice get names

Writer = Callable[[Term, list[tuple[str, int]], Sequence[str]], tuple[str, int]]


def text(term: Term, names: Sequence[str] = ()) -> str:
    """The formula as a line of text; captured tensors are called by `names`.

    >>> from regard.spec.term import apply, variable
    >>> text(apply("le", variable("j"), variable("p")))
    'j <= p'
    """
    size = _too_large(term)
    if size:
        return f"a formula of {size} operations on {', '.join(sorted(term.depends)) or 'constants'}"
    whole, parts = _write(term, names, _as_text)
    return whole if not parts else f"{whole} where {', '.join(f'x{n} = {part}' for n, part in parts)}"


def latex(term: Term, names: Sequence[str] = ()) -> str:
    r"""The formula in LaTeX, without dollar signs.

    >>> from regard.spec.term import apply, variable
    >>> latex(apply("le", variable("j"), variable("p")))
    'j \\leq p'
    """
    size = _too_large(term)
    if size:
        return rf"\text{{a formula of {size} operations}}"
    whole, parts = _write(term, names, _as_latex)
    return whole if not parts else rf"{whole} \text{{ where }} {', '.join(f'x{n} = {part}' for n, part in parts)}"


def _too_large(term: Term) -> int:
    """How many nodes a formula has that is too large to be written; 0 for others."""
    size = sum(1 for _ in walk(term))
    return size if size > MAX_WRITTEN else 0


def _write(term: Term, names: Sequence[str], writer: Writer) -> tuple[str, list[tuple[int, str]]]:
    """The formula, and the parts of it that it calls x1, x2 and so on."""
    shared = _shared(term)
    parts: list[tuple[int, str]] = []
    done: dict[Term, tuple[str, int]] = {}
    for node in walk(term):
        done[node] = writer(node, [done[a] for a in node.args], names)
        if node in shared:
            parts.append((len(parts) + 1, done[node][0]))
            done[node] = f"x{len(parts)}", _TIGHT
    return done[term][0], parts


def _shared(term: Term) -> set[Term]:
    """What occurs more than once in a large formula: written out, it would stand there anew with all that it holds."""
    size = tree_sizes(term)
    uses = Counter(a for node in size for a in node.args)
    return set() if size[term] <= LARGEST else {node for node, count in uses.items() if count > 1 and size[node] > 3}


def _bracket(written: tuple[str, int], least: int) -> str:
    string, binds = written
    return string if binds >= least else f"({string})"


def _infix(node: Term, args: list[tuple[str, int]], column: int) -> tuple[str, int]:
    binds = _INFIX[node.op][0]
    sign = _INFIX[node.op][column]
    left_least, right_least = binds, binds + 1
    if node.op in ("and", "or", "add", "mul") and node.args[1].op == node.op:
        right_least = binds  # these may be regrouped without changing what a reader understands
    if binds == _COMPARE or node.op == "pow":
        left_least = binds + 1
    assert isinstance(sign, str)
    return f"{_bracket(args[0], left_least)}{sign}{_bracket(args[1], right_least)}", binds


def _number(value: object) -> tuple[str, int]:
    negative = isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0
    return str(value), _SIGN if negative else _TIGHT


def _table(node: Term, names: Sequence[str]) -> str:
    slot = slot_of(node)
    return names[slot] if slot < len(names) else f"t{slot}"


def _as_text(node: Term, args: list[tuple[str, int]], names: Sequence[str]) -> tuple[str, int]:
    inside = ", ".join(a for a, _ in args)
    if node.op == "constant":
        return _number(node.value)
    if node.op == "variable":
        return str(node.value), _TIGHT
    if node.op == "lookup":
        return (f"{_table(node, names)}[{inside}]" if args else _table(node, names)), _TIGHT
    if node.op in _INFIX:
        return _infix(node, args, 1)
    if node.op == "exact":
        return args[0]
    if node.op == "not":
        return f"not {_bracket(args[0], _COMPARE)}", _COMPARE
    if node.op == "neg":
        return f"-{_bracket(args[0], _SIGN)}", _SIGN
    if node.op == "abs":
        return f"|{args[0][0]}|", _TIGHT
    if node.op == "where":
        return f"({args[1][0]} if {args[0][0]} else {args[2][0]})", _TIGHT
    return f"{_TEXT_NAMES.get(node.op, node.op)}({inside})", _TIGHT


def _as_latex(node: Term, args: list[tuple[str, int]], names: Sequence[str]) -> tuple[str, int]:
    inside = ", ".join(a for a, _ in args)
    if node.op == "constant":
        special = {float("inf"): r"\infty", float("-inf"): r"-\infty", True: r"\top", False: r"\bot"}
        if isinstance(node.value, bool) or node.value in (float("inf"), float("-inf")):
            return special[node.value], _TIGHT
        return _number(node.value)
    if node.op == "variable":
        return str(node.value), _TIGHT
    if node.op == "lookup":
        name = rf"\mathrm{{{_table(node, names)}}}".replace("_", r"\_")
        return (f"{name}_{{{inside}}}" if args else name), _TIGHT
    if node.op == "div":
        return rf"\frac{{{args[0][0]}}}{{{args[1][0]}}}", _TIGHT
    if node.op == "floordiv":
        return rf"\left\lfloor \frac{{{args[0][0]}}}{{{args[1][0]}}} \right\rfloor", _TIGHT
    if node.op == "pow":
        return f"{_bracket(args[0], _TIGHT)}^{{{args[1][0]}}}", _POWER
    if node.op in _INFIX:
        return _infix(node, args, 2)
    if node.op == "not":
        return rf"\lnot {_bracket(args[0], _TIGHT)}", _SIGN
    if node.op == "neg":
        return f"-{_bracket(args[0], _SIGN)}", _SIGN
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
        return args[0] if node.op != "to_int" else (rf"\mathrm{{int}}({inside})", _TIGHT)
    known = {"tanh", "log", "sin", "cos"}
    if node.op in WRAPS:
        return rf"\mathrm{{{_TEXT_NAMES[node.op]}}}({inside})", _TIGHT
    name = _LATEX_NAMES.get(node.op) or (rf"\{node.op}" if node.op in known else rf"\mathrm{{{node.op}}}")
    return f"{name}({inside})", _TIGHT
