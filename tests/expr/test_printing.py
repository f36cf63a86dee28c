"""Expressions as text and as LaTeX: parsed again, they mean the same."""

import ast
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.mathtext import MathTextParser

from regard import mask
from regard.expr import score_modifier
from regard.expr.ir import FALSE, TRUE, Expr, apply, constant, lookup, variable, walk
from regard.expr.printing import to_latex, to_text

from .random_exprs import EvalContext, ExprGenerator, random_context

B, H, I, J, P, S = (variable(name) for name in "bhijps")

INFIX: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor", ast.LShift: "shift_left",
    ast.RShift: "shift_right", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge", ast.And: "and", ast.Or: "or", ast.MatMult: "xor",
}  # fmt: skip
NAMES = {"min": "minimum", "max": "maximum", "int": "to_int", "float": "to_float"}


def replace_bars(text: str) -> str:
    """Replace |x| by abs(x).

    A bar between spaces is a bitwise or. Any other bar opens after an operator and closes after a value.
    """
    text = re.sub(r"(?<= )\|(?= )", "\0", text)
    result = ""
    for n, char in enumerate(text):
        if char != "|":
            result += char
            continue
        before = result[-1:]
        closes = before.isalnum() or before in (")", "]", "_", ".")
        result += ")" if closes else "abs("
        assert closes or n + 1 < len(text)
    return result.replace("\0", "|")


def parse(text: str, context: EvalContext) -> Expr:
    """Parse a text by Python's grammar into an expression."""
    return _from_ast(ast.parse(replace_bars(text), mode="eval").body, context)


def _from_ast(tree: ast.AST, context: EvalContext) -> Expr:
    def convert(node: ast.AST) -> Expr:
        return _from_ast(node, context)

    match tree:
        case ast.Constant(value):
            return constant(value)
        case ast.Name(name):
            if re.fullmatch(r"t\d+", name):
                return lookup(int(name[1:]), (), _kind(context, int(name[1:])))
            return constant(float(name)) if name in ("inf", "nan") else variable(name)
        case ast.Subscript(ast.Name(name), index):
            entries = index.elts if isinstance(index, ast.Tuple) else [index]
            return lookup(int(name[1:]), tuple(map(convert, entries)), _kind(context, int(name[1:])))
        case ast.BinOp(left, op, right):
            return apply(INFIX[type(op)], convert(left), convert(right))
        case ast.Compare(left, [op], [right]):
            return apply(INFIX[type(op)], convert(left), convert(right))
        case ast.BoolOp(op, values):
            first, *rest = map(convert, values)
            for other in rest:
                first = apply(INFIX[type(op)], first, other)
            return first
        case ast.UnaryOp(ast.Not(), operand):
            return apply("not", convert(operand))
        case ast.UnaryOp(ast.USub(), operand):
            if isinstance(operand, ast.Constant):
                return constant(-operand.value)
            return apply("neg", convert(operand))
        case ast.IfExp(condition, one, other):
            return apply("where", convert(condition), convert(one), convert(other))
        case ast.Call(ast.Name(name), args):
            return apply(NAMES.get(name, name), *map(convert, args))
    raise AssertionError(ast.dump(tree))


def _kind(context: EvalContext, slot: int):  # type: ignore[no-untyped-def]
    tensor = context.tensors[slot]
    return "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"


def round_trip_agrees(expr: Expr, context: EvalContext) -> bool:
    text = to_text(expr)
    parsed = parse(text, context)
    if parsed is expr:
        return True
    expected, actual = context.values_or_none(expr), context.values_or_none(parsed)
    if expected is None or actual is None:
        return (expected is None) == (actual is None)
    if expected.dtype != actual.dtype:
        return False
    # sums and products of floats may be regrouped, which changes few lookups and comparisons
    return bool(np.isclose(expected, actual, rtol=1e-4, atol=1e-5, equal_nan=True).mean() > 0.97)


@pytest.mark.parametrize("seed", range(8))
def test_parsed_text_has_the_same_values(seed: int) -> None:
    context = random_context(seed, finite=True)
    generator = ExprGenerator(context, 700 + seed)
    count = 0
    while count < 60:
        expr = (generator.boolean, generator.integer, generator.floating)[count % 3](4)
        if any(node.op == "xor" for node in walk(expr)):
            continue  # Python has no such operator; see below
        count += 1
        assert round_trip_agrees(expr, context), to_text(expr)


OPERATORS = (
    "add",
    "sub",
    "mul",
    "div",
    "floordiv",
    "mod",
    "pow",
    "bitand",
    "bitor",
    "bitxor",
    "shift_left",
    "shift_right",
)


def apply_to_ints(op: str, *args: Expr) -> Expr:
    """Apply an operation; bitwise operations get integer arguments."""
    return apply(op, *(apply("to_int", a) if a.kind == "float" and INFIX_BITS & {op} else a for a in args))


INFIX_BITS = {"bitand", "bitor", "bitxor", "shift_left", "shift_right"}


@pytest.mark.parametrize("outer", OPERATORS)
def test_nested_operators_get_parentheses(outer: str) -> None:
    """Nest every pair of operators to the left and to the right; the texts must differ in meaning."""
    context = EvalContext((1, 1, 4, 4), 0, ())
    one, two, three = apply("add", I, constant(2)), apply("add", J, constant(1)), constant(3)
    mismatches = []
    for inner in OPERATORS:
        left = apply_to_ints(outer, apply_to_ints(inner, I, J), three)
        right = apply_to_ints(outer, one, apply_to_ints(inner, J, three))
        both = apply_to_ints(outer, two, apply_to_ints(inner, three, two))
        mismatches += [to_text(t) for t in (left, right, both) if not round_trip_is_exact(t, context)]
    assert not mismatches, mismatches


def round_trip_is_exact(expr: Expr, context: EvalContext) -> bool:
    """Return whether the parsed text has the same values; only a + (b + c) and a * (b * c) may regroup."""
    expected, actual = context.values_or_none(expr), context.values_or_none(parse(to_text(expr), context))
    if expected is None or actual is None:
        return (expected is None) == (actual is None)
    return bool(np.allclose(expected.astype(float), actual.astype(float), rtol=1e-6, equal_nan=True))


LOGIC = ("and", "or", "xor")


@pytest.mark.parametrize("outer", LOGIC)
@pytest.mark.parametrize("inner", LOGIC)
def test_nested_logic_gets_parentheses(outer: str, inner: str) -> None:
    """Two expressions with different values must not have the same text."""
    a, b, c = apply("lt", I, J), apply("eq", I, constant(2)), apply("gt", J, constant(1))
    context = EvalContext((1, 1, 4, 4), 0, ())
    grouped = [
        apply(outer, a, apply(inner, b, c)),
        apply(outer, apply(inner, a, b), c),
        apply(inner, a, apply(outer, b, c)),
        apply(inner, apply(outer, a, b), c),
    ]
    for printer in (to_text, to_latex):
        for one in grouped:
            for other in grouped:
                same_text = printer(one) == printer(other)
                assert not same_text or (context.values(one) == context.values(other)).all(), printer(one)


@pytest.mark.parametrize("outer", [op for op in OPERATORS if op != "pow"])
def test_latex_of_nested_operators_is_unambiguous(outer: str) -> None:
    context = EvalContext((1, 1, 4, 4), 0, ())
    one, two, three = apply("add", I, constant(2)), apply("add", J, constant(1)), constant(3)
    for inner in OPERATORS:
        grouped = [
            apply_to_ints(outer, one, apply_to_ints(inner, two, three)),
            apply_to_ints(inner, apply_to_ints(outer, one, two), three),
        ]
        values = [context.values_or_none(t) for t in grouped]
        if to_latex(grouped[0]) == to_latex(grouped[1]) and values[0] is not None and values[1] is not None:
            assert np.allclose(*(v.astype(float) for v in values)), to_latex(grouped[0])


@pytest.mark.parametrize(
    "expr, text",
    [
        (apply("le", J, P), "j <= p"),
        (apply("and", apply("le", J, P), apply("lt", apply("sub", P, constant(3)), J)), "j <= p and p - 3 < j"),
        (apply("not", apply("and", apply("le", J, P), apply("lt", I, J))), "not (j <= p and i < j)"),
        (apply("or", apply("not", apply("eq", I, J)), apply("lt", I, J)), "not i == j or i < j"),
        (apply("abs", apply("sub", P, J)), "|p - j|"),
        (apply("sub", I, apply("sub", J, P)), "i - (j - p)"),
        (apply("sub", apply("sub", I, J), P), "i - j - p"),
        (apply("mod", apply("sub", I, J), constant(3)), "(i - j) % 3"),
        (apply("neg", apply("add", I, J)), "-(i + j)"),
        (apply("pow", apply("neg", I), constant(2)), "(-i) ** 2"),
        (apply("pow", constant(-2), I), "(-2) ** i"),
        (apply("neg", apply("pow", I, constant(2))), "-i ** 2"),
        (apply("eq", apply("lt", I, J), apply("lt", J, I)), "(i < j) == (j < i)"),
        (apply("where", apply("lt", I, J), S, constant(0.0)), "(s if i < j else 0.0)"),
        (apply("maximum", I, apply("minimum", J, constant(5))), "max(i, min(j, 5))"),
        (apply("to_int", apply("div", I, J)), "int(i / j)"),
        (constant(float("-inf")), "-inf"),
        (constant(True), "True"),
    ],
    ids=str,
)
def test_text_has_no_needless_parentheses(expr: Expr, text: str) -> None:
    assert to_text(expr) == text


def test_captured_tensors_are_printed_by_name() -> None:
    expr = apply("eq", lookup(0, (B, I), "int"), lookup(1, (), "int"))
    assert to_text(expr, ("doc", "this")) == "doc[b, i] == this"
    assert to_text(expr, ("doc",)) == "doc[b, i] == t1" and to_text(expr) == "t0[b, i] == t1"
    assert to_latex(expr, ("doc_q", "n")) == r"\mathrm{doc\_q}_{b, i} = \mathrm{n}"


@pytest.mark.parametrize(
    "expr, text",
    [
        (apply("le", J, P), r"j \leq p"),
        (apply("div", apply("add", I, J), constant(2)), r"\frac{i + j}{2}"),
        (apply("floordiv", I, constant(8)), r"\left\lfloor \frac{i}{8} \right\rfloor"),
        (apply("and", apply("ge", I, J), apply("ne", I, J)), r"i \geq j \land i \neq j"),
        (apply("pow", apply("add", I, J), constant(2)), "(i + j)^{2}"),
        (apply("sqrt", apply("to_float", I)), r"\sqrt{i}"),
        (constant(float("-inf")), r"-\infty"),
        (TRUE, r"\top"),
        (FALSE, r"\bot"),
    ],
    ids=str,
)
def test_latex_of_simple_expressions(expr: Expr, text: str) -> None:
    assert to_latex(expr) == text


def built_in_masks() -> dict[str, mask.Mask]:
    return {
        "causal": mask.causal(),
        "sliding window": mask.sliding_window(4, 2),
        "dilated": mask.dilated(4, 3),
        "chunked": mask.chunked(4, 2),
        "strided": mask.strided(4),
        "fixed": mask.fixed(4),
        "padding": mask.padding([3]),
        "left padding": mask.padding([3], side="left"),
        "document": mask.document([0, 0, 1]),
        "document ids of queries and keys": mask.document([0, 0, 1], [1, 1]),
        "prefix": mask.prefix(3),
        "random blocks": mask.random_blocks(4, 2),
        "a tensor": mask.tensor(torch.ones(3, 3, dtype=torch.bool)),
        "a window but not the diagonal": mask.sliding_window(4) & ~mask.sliding_window(1),
    }


def built_in_modifiers() -> dict[str, score_modifier.ScoreModifier]:
    return {
        "alibi": score_modifier.alibi(),
        "softcap": score_modifier.softcap(20.0),
        "bias": score_modifier.bias(torch.zeros(3, 3)),
        "shaw": score_modifier.shaw_keys(torch.zeros(5, 4)),
    }


PARSER = MathTextParser("path")
# matplotlib supports a part of LaTeX: commands that it does not know, and replacements
MATPLOTLIB_REPLACEMENTS = {
    r"\le": r"\leq",
    r"\ge": r"\geq",
    r"\lor": r"\vee",
    r"\land": r"\wedge",
    r"\lnot": r"\neg",
    r"\bmod": r"\,\mathrm{mod}\,",
    r"\mathbin{\&}": "+",
    r"\mathbin{|}": "|",
}


def check_renders(text: str) -> None:
    for command, replacement in MATPLOTLIB_REPLACEMENTS.items():
        text = re.sub(re.escape(command) + r"(?![a-z])", lambda _, replacement=replacement: replacement, text)
    PARSER.parse(f"${text}$")


@pytest.mark.parametrize("name", built_in_masks())
def test_latex_of_every_built_in_mask_renders(name: str) -> None:
    check_renders(built_in_masks()[name].latex())


@pytest.mark.parametrize("name", built_in_modifiers())
def test_latex_of_every_built_in_modifier_renders(name: str) -> None:
    modifier = built_in_modifiers()[name]
    check_renders(to_latex(modifier.expr, modifier.tensor_names))


@pytest.mark.parametrize(
    "make", [lambda: mask.global_tokens([0, 3]), lambda: mask.bigbird(4), lambda: mask.longformer(4, [1])]
)
def test_every_latex_environment_is_closed(make: Callable[[], mask.Mask]) -> None:
    text = make().latex()
    for opening, closing in (("{", "}"), (r"\left", r"\right"), (r"\begin", r"\end"), ("(", ")")):
        assert text.count(opening) == text.count(closing)


@pytest.mark.parametrize("seed", range(3))
def test_latex_of_random_expressions_renders(seed: int) -> None:
    generator = ExprGenerator(random_context(seed), seed)
    count = 0
    while count < 25:
        expr = generator.boolean(3)
        if not any(node.op == "where" for node in walk(expr)):  # matplotlib does not support the cases environment
            check_renders(to_latex(expr))
            count += 1


def test_nested_absolute_values_can_be_parsed() -> None:
    inner = apply("sub", apply("abs", apply("sub", I, constant(3))), J)
    assert to_text(apply("abs", inner)) == "||i - 3| - j|"
    assert replace_bars("||i - 3| - j|") == "abs(abs(i - 3) - j)"
    assert replace_bars("|i| | |j|") == "abs(i) | abs(j)"


def test_repeated_subexpressions_of_a_large_expression_are_printed_once() -> None:
    x = variable("i")
    for _ in range(14):  # without names for shared parts, the text would have millions of characters
        x = apply("add", x, apply("mul", x, x))

    text = to_text(x)

    assert len(text) < 2000
    assert text.startswith("x13 + x13 * x13 where x1 = i + i * i, x2 = x1 + x1 * x1, ")
    assert to_latex(x).startswith(r"x13 + x13 \, x13 \text{ where } x1 = i + i \, i, ")
