"""Formulas as text and as LaTeX: read back, they mean the same."""

import ast
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.mathtext import MathTextParser

from regard import mask
from regard.spec import rule
from regard.spec.term import FALSE, TRUE, Term, apply, constant, lookup, variable, walk
from regard.spec.text import latex, text

from .worlds import World, Writer, world

B, H, I, J, P, S = (variable(name) for name in "bhijps")

INFIX: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor", ast.LShift: "shift_left",
    ast.RShift: "shift_right", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge", ast.And: "and", ast.Or: "or", ast.MatMult: "xor",
}  # fmt: skip
NAMES = {"min": "minimum", "max": "maximum", "int": "to_int", "float": "to_float"}


def bars_as_calls(line: str) -> str:
    """|x| as abs(x). A bar between spaces joins bits; any other opens after an operator and closes after a value."""
    line = re.sub(r"(?<= )\|(?= )", "\0", line)
    result = ""
    for n, letter in enumerate(line):
        if letter != "|":
            result += letter
            continue
        before = result[-1:]
        closes = before.isalnum() or before in (")", "]", "_", ".")
        result += ")" if closes else "abs("
        assert closes or n + 1 < len(line)
    return result.replace("\0", "|")


def read_back(line: str, where: World) -> Term:
    """The term that Python's own grammar reads in a line of text."""
    return _from_tree(ast.parse(bars_as_calls(line), mode="eval").body, where)


def _from_tree(tree: ast.AST, where: World) -> Term:
    def of(node: ast.AST) -> Term:
        return _from_tree(node, where)

    match tree:
        case ast.Constant(value):
            return constant(value)
        case ast.Name(name):
            if re.fullmatch(r"t\d+", name):
                return lookup(int(name[1:]), (), _kind(where, int(name[1:])))
            return constant(float(name)) if name in ("inf", "nan") else variable(name)
        case ast.Subscript(ast.Name(name), index):
            entries = index.elts if isinstance(index, ast.Tuple) else [index]
            return lookup(int(name[1:]), tuple(map(of, entries)), _kind(where, int(name[1:])))
        case ast.BinOp(left, op, right):
            return apply(INFIX[type(op)], of(left), of(right))
        case ast.Compare(left, [op], [right]):
            return apply(INFIX[type(op)], of(left), of(right))
        case ast.BoolOp(op, values):
            first, *rest = map(of, values)
            for other in rest:
                first = apply(INFIX[type(op)], first, other)
            return first
        case ast.UnaryOp(ast.Not(), inside):
            return apply("not", of(inside))
        case ast.UnaryOp(ast.USub(), inside):
            if isinstance(inside, ast.Constant):
                return constant(-inside.value)
            return apply("neg", of(inside))
        case ast.IfExp(condition, one, other):
            return apply("where", of(condition), of(one), of(other))
        case ast.Call(ast.Name(name), args):
            return apply(NAMES.get(name, name), *map(of, args))
    raise AssertionError(ast.dump(tree))


def _kind(where: World, slot: int):  # type: ignore[no-untyped-def]
    tensor = where.tensors[slot]
    return "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"


def means_the_same(term: Term, where: World) -> bool:
    line = text(term)
    back = read_back(line, where)
    if back is term:
        return True
    values, found = where.values_or_none(term), where.values_or_none(back)
    if values is None or found is None:
        return (values is None) == (found is None)
    if values.dtype != found.dtype:
        return False
    # a sum or a product of floats may be regrouped; a look-up or a comparison far from any border survives that
    return bool(np.isclose(values, found, rtol=1e-4, atol=1e-5, equal_nan=True).mean() > 0.97)


@pytest.mark.parametrize("seed", range(8))
def test_text_read_back_by_python_means_the_same(seed: int) -> None:
    where = world(seed, finite=True)
    writer = Writer(where, 700 + seed)
    tried = 0
    while tried < 60:
        term = (writer.condition, writer.whole, writer.real)[tried % 3](4)
        if any(node.op == "xor" for node in walk(term)):
            continue  # Python has no word for it; see below
        tried += 1
        assert means_the_same(term, where), text(term)


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
TWO = [(one, other) for one in OPERATORS for other in OPERATORS]


def whole_if_needed(op: str, *args: Term) -> Term:
    """Bits are joined in whole numbers only."""
    return apply(op, *(apply("to_int", a) if a.kind == "float" and INFIX_BITS & {op} else a for a in args))


INFIX_BITS = {"bitand", "bitor", "bitxor", "shift_left", "shift_right"}


@pytest.mark.parametrize("outer", OPERATORS)
def test_brackets_stand_where_two_operators_need_them(outer: str) -> None:
    """Every pair of operators, nested to the left and to the right: the text has to tell them apart."""
    where = World((1, 1, 4, 4), 0, ())
    one, two, three = apply("add", I, constant(2)), apply("add", J, constant(1)), constant(3)
    wrong = []
    for inner in OPERATORS:
        left = whole_if_needed(outer, whole_if_needed(inner, I, J), three)
        right = whole_if_needed(outer, one, whole_if_needed(inner, J, three))
        both = whole_if_needed(outer, two, whole_if_needed(inner, three, two))
        wrong += [text(t) for t in (left, right, both) if not exactly_the_same(t, where)]
    assert not wrong, wrong


def exactly_the_same(term: Term, where: World) -> bool:
    """The values of the text, read back, are those of the term; only a + (b + c) and a * (b * c) may regroup."""
    values, found = where.values_or_none(term), where.values_or_none(read_back(text(term), where))
    if values is None or found is None:
        return (values is None) == (found is None)
    return bool(np.allclose(values.astype(float), found.astype(float), rtol=1e-6, equal_nan=True))


LOGIC = ("and", "or", "xor")


@pytest.mark.parametrize("outer", LOGIC)
@pytest.mark.parametrize("inner", LOGIC)
def test_brackets_stand_where_logic_needs_them(outer: str, inner: str) -> None:
    """Two formulas that differ somewhere must not be written alike."""
    a, b, c = apply("lt", I, J), apply("eq", I, constant(2)), apply("gt", J, constant(1))
    where = World((1, 1, 4, 4), 0, ())
    grouped = [
        apply(outer, a, apply(inner, b, c)),
        apply(outer, apply(inner, a, b), c),
        apply(inner, a, apply(outer, b, c)),
        apply(inner, apply(outer, a, b), c),
    ]
    for write in (text, latex):
        for one in grouped:
            for other in grouped:
                alike = write(one) == write(other)
                assert not alike or (where.values(one) == where.values(other)).all(), write(one)


@pytest.mark.parametrize("outer", [op for op in OPERATORS if op != "pow"])
def test_latex_tells_two_operators_apart(outer: str) -> None:
    where = World((1, 1, 4, 4), 0, ())
    one, two, three = apply("add", I, constant(2)), apply("add", J, constant(1)), constant(3)
    for inner in OPERATORS:
        grouped = [
            whole_if_needed(outer, one, whole_if_needed(inner, two, three)),
            whole_if_needed(inner, whole_if_needed(outer, one, two), three),
        ]
        values = [where.values_or_none(t) for t in grouped]
        if latex(grouped[0]) == latex(grouped[1]) and values[0] is not None and values[1] is not None:
            assert np.allclose(*(v.astype(float) for v in values)), latex(grouped[0])


@pytest.mark.parametrize(
    "term, line",
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
def test_text_is_written_as_a_person_would(term: Term, line: str) -> None:
    assert text(term) == line


def test_captured_tensors_are_called_by_their_names() -> None:
    term = apply("eq", lookup(0, (B, I), "int"), lookup(1, (), "int"))
    assert text(term, ("doc", "this")) == "doc[b, i] == this"
    assert text(term, ("doc",)) == "doc[b, i] == t1" and text(term) == "t0[b, i] == t1"
    assert latex(term, ("doc_q", "n")) == r"\mathrm{doc\_q}_{b, i} = \mathrm{n}"


@pytest.mark.parametrize(
    "term, line",
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
def test_latex_is_written_as_a_person_would(term: Term, line: str) -> None:
    assert latex(term) == line


def built_in_masks() -> dict[str, mask.Mask]:
    return {
        "causal": mask.causal(),
        "window": mask.window(4, 2),
        "dilated": mask.dilated(4, 3),
        "blocks": mask.blocks(4, 2),
        "strided": mask.strided(4),
        "fixed": mask.fixed(4),
        "padding": mask.padding([3]),
        "padding on the left": mask.padding([3], side="left"),
        "documents": mask.documents([0, 0, 1]),
        "two lists of documents": mask.documents([0, 0, 1], [1, 1]),
        "prefix": mask.prefix(3),
        "random blocks": mask.random_blocks(4, 2),
        "a tensor": mask.tensor(torch.ones(3, 3, dtype=torch.bool)),
        "a window but not the diagonal": mask.window(4) & ~mask.window(1),
    }


def built_in_rules() -> dict[str, rule.Rule]:
    return {
        "alibi": rule.alibi(),
        "softcap": rule.softcap(20.0),
        "bias": rule.bias(torch.zeros(3, 3)),
        "shaw": rule.shaw_keys(torch.zeros(5, 4)),
    }


PARSER = MathTextParser("path")
# matplotlib draws a part of LaTeX: these it does not know, and they stand for these that it does
UNKNOWN_TO_MATPLOTLIB = {
    r"\le": r"\leq",
    r"\ge": r"\geq",
    r"\lor": r"\vee",
    r"\land": r"\wedge",
    r"\lnot": r"\neg",
    r"\bmod": r"\,\mathrm{mod}\,",
    r"\mathbin{\&}": "+",
    r"\mathbin{|}": "|",
}


def drawn(line: str) -> None:
    for unknown, known in UNKNOWN_TO_MATPLOTLIB.items():
        line = re.sub(re.escape(unknown) + r"(?![a-z])", lambda _, known=known: known, line)
    PARSER.parse(f"${line}$")


@pytest.mark.parametrize("name", built_in_masks())
def test_the_latex_of_every_built_in_mask_can_be_drawn(name: str) -> None:
    drawn(built_in_masks()[name].latex())


@pytest.mark.parametrize("name", built_in_rules())
def test_the_latex_of_every_built_in_rule_can_be_drawn(name: str) -> None:
    found = built_in_rules()[name]
    drawn(latex(found.term, found.names))


@pytest.mark.parametrize(
    "make", [lambda: mask.tokens([0, 3]), lambda: mask.bigbird(4), lambda: mask.longformer(4, [1])]
)
def test_every_environment_in_latex_is_closed(make: Callable[[], mask.Mask]) -> None:
    line = make().latex()
    for opening, closing in (("{", "}"), (r"\left", r"\right"), (r"\begin", r"\end"), ("(", ")")):
        assert line.count(opening) == line.count(closing)


@pytest.mark.parametrize("seed", range(3))
def test_the_latex_of_random_formulas_can_be_drawn(seed: int) -> None:
    writer = Writer(world(seed), seed)
    tried = 0
    while tried < 25:
        term = writer.condition(3)
        if not any(node.op == "where" for node in walk(term)):  # matplotlib has no cases
            drawn(latex(term))
            tried += 1


def test_an_absolute_value_within_an_absolute_value_can_be_read() -> None:
    inner = apply("sub", apply("abs", apply("sub", I, constant(3))), J)
    assert text(apply("abs", inner)) == "||i - 3| - j|"
    assert bars_as_calls("||i - 3| - j|") == "abs(abs(i - 3) - j)"
    assert bars_as_calls("|i| | |j|") == "abs(i) | abs(j)"


def test_a_part_that_a_large_formula_holds_often_is_written_once() -> None:
    x = variable("i")
    for _ in range(14):  # written out, this would be millions of letters
        x = apply("add", x, apply("mul", x, x))

    written = text(x)

    assert len(written) < 2000
    assert written.startswith("x13 + x13 * x13 where x1 = i + i * i, x2 = x1 + x1 * x1, ")
    assert latex(x).startswith(r"x13 + x13 \, x13 \text{ where } x1 = i + i \, i, ")
