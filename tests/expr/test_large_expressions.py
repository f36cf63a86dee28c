"""Large expressions: algorithms visit shared nodes once and do not recurse."""

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import mask, score
from regard.backends.flex.lowering import FlexLowering, may_index_out_of_range, rounding_sensitive_ops
from regard.backends.native.codegen.program_compiler import UnsupportedExpr, compile_program
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.subcall import StridedRange, _IndexSubstitution
from regard.distributed.ranks.consistency import _describe_expr
from regard.errors import ArgumentError
from regard.expr.affine import depends_on_difference_only
from regard.expr.bounds import BoundsEvaluator, IndexBoxes
from regard.expr.derivative import derivatives
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.hidden_pairs import hidden_condition
from regard.expr.ir import Expr, apply, constant, renumber_slots, substitute, variable, walk
from regard.expr.node_list import MAX_NODES, from_nodes, to_nodes
from regard.expr.printing import to_latex, to_text
from regard.expr.serialize import MAX_NESTING_DEPTH, NotSerializable, deserialize, serialize
from regard.walkthrough.render.expr_code import has_few_operations, torch_expression

SCORE_SHAPE = (1, 1, 3, 4)
CALLS_PER_NODE = 150  # limit of Python calls for each node; visiting shared nodes repeatedly would exceed it by far


def doubled(x: Expr) -> Expr:
    for _ in range(60):
        x = apply("add", x, x)
    return x


def chain(x: Expr, length: int = 5000) -> Expr:
    for n in range(length):
        x = apply("add", x, apply("mul", variable("j"), constant(n)) if x.kind == "int" else constant(0.001 * n))
    return x


def alternating(x: Expr) -> Expr:
    """Conditions that share their parts, key no simplification joins."""
    for n in range(60):
        left = apply("and", x, apply("gt", variable("i"), constant(n)))
        x = apply("or", left, apply("and", x, apply("lt", variable("j"), constant(n))))
    return x


DIFFERENCE = apply("sub", variable("i"), variable("j"))
MASKS = {
    "doubled": apply("lt", doubled(DIFFERENCE), constant(5)),
    "chain": apply("lt", chain(DIFFERENCE), constant(5000)),
    "booleans": alternating(apply("le", variable("j"), variable("i"))),
}
MODIFIERS = {
    "doubled": doubled(apply("add", variable("s"), apply("to_float", DIFFERENCE))),
    "chain": chain(variable("s")),
    "chain of -inf": chain(apply("add", variable("s"), constant(float("-inf"))), 500),
}


def index_grid() -> IndexGrid:
    b, h, i, j = (range(n) for n in SCORE_SHAPE)
    return IndexGrid(b, h, i, j, query_offset=1, n_q=3, n_k=4, device=torch.device("cpu"))


def all_positions() -> IndexBoxes:
    zero = np.zeros(1, np.int64)
    return IndexBoxes(zero, zero, zero, zero + 2, zero, zero + 3)


def compile_expr(expr: Expr) -> object:
    try:
        return (
            compile_program(expr, None, (), ())
            if expr.kind == "bool"
            else compile_program(mask.causal().expr, expr, (), ())
        )
    except UnsupportedExpr as reason:
        return str(reason)


def spec() -> Any:
    return parse_call(AttentionCall((1, 1, 3, 4), (1, 1, 4, 4), (1, 1, 4, 4))).spec


ALGORITHMS: dict[str, Callable[[Expr], Any]] = {
    "walk": lambda expr: list(walk(expr)),
    "nodes": lambda expr: from_nodes(to_nodes(expr)),
    "repr": repr,
    "pickle": lambda expr: pickle.loads(pickle.dumps(expr)),
    "copy": copy.deepcopy,
    "text": lambda expr: to_text(expr),
    "latex": lambda expr: to_latex(expr),
    "substitute": lambda expr: substitute(expr, {variable("i"): variable("p")}),
    "renumber": lambda expr: renumber_slots(expr, {}),
    "index substitution": lambda expr: _IndexSubstitution(
        frozenset(), StridedRange(1, 2), StridedRange(0, 4), 0, spec()
    ).apply(expr),
    "evaluate": lambda expr: Evaluator((), index_grid(), torch.zeros(1, 1, 3, 4)).value(expr, True),
    "bounds": lambda expr: BoundsEvaluator((), SCORE_SHAPE, 1).bounds(expr, all_positions()),
    "may index out of range": lambda expr: may_index_out_of_range((expr,), (), SCORE_SHAPE, 1),
    "rounding-sensitive ops": lambda expr: list(rounding_sensitive_ops((expr,))),
    "derivative": lambda expr: derivatives(expr),
    "depends on difference": depends_on_difference_only,
    "program": compile_expr,
    "hidden pairs": lambda expr: hidden_condition(expr if expr.kind == "float" else None, ()),
    "rank consistency": lambda expr: _describe_expr(expr, ()),
    "has few operations": lambda expr: has_few_operations(expr),
}


def count_calls(algorithm: Callable[[Expr], Any], expr: Expr) -> int:
    count = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        algorithm(expr)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", [*(f"mask {name}" for name in MASKS), *(f"modifier {name}" for name in MODIFIERS)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_visits_each_node_a_few_times(algorithm: str, name: str) -> None:
    kind, _, key = name.partition(" ")
    expr = {"mask": MASKS, "modifier": MODIFIERS}[kind][key]
    nodes = sum(1 for _ in walk(expr))

    assert count_calls(ALGORITHMS[algorithm], expr) <= CALLS_PER_NODE * (nodes + 100)


@pytest.mark.parametrize("expr", [*MASKS.values(), *MODIFIERS.values()], ids=[*MASKS, *MODIFIERS])
def test_stored_large_expression_loads_as_the_same_object(expr: Expr) -> None:
    assert from_nodes(to_nodes(expr)) is expr
    assert pickle.loads(pickle.dumps(expr)) is expr


def doubling_mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    x = i - j
    for _ in range(20):
        x = x + x
    return x < 2**20 * 2


def long_mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    x = i - j
    for n in range(5000):
        x = x + (n % 3) * j
    return x < 5000


def long_score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    for _ in range(5000):
        s = s + (i - j) * 0.001
    return s


@pytest.mark.parametrize("backend", ["reference", "tiled", "native", "flex"])
def test_repeatedly_doubled_difference_gives_the_right_mask(backend: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0))

    output = regard.attention(q, k, v, mask=doubling_mask, backend=backend)

    expected = regard.attention(q, k, v, mask=lambda b, h, i, j: i - j < 2, backend=backend)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("name", ["reference", "tiled"])
def test_chain_of_five_thousand_additions_is_evaluated(name: str) -> None:
    q, k, v = torch.randn(3, 1, 1, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    masked = regard.attention(q, k, v, mask=long_mask, backend=name)
    modified = regard.attention(q, k, v, score=long_score, backend=name)

    expected_masked = regard.attention(q, k, v, mask=lambda b, h, i, j: i - j + 4999 * j < 5000, backend=name)
    expected_modified = regard.attention(q, k, v, score=lambda s, b, h, i, j: s + (i - j) * 5.0, backend=name)
    torch.testing.assert_close(masked, expected_masked)
    torch.testing.assert_close(modified, expected_modified, rtol=1e-6, atol=1e-6)


def test_native_backend_reports_its_limit() -> None:
    with pytest.raises(regard.errors.BackendError, match="at most 1000 operations on a query and a key together"):
        regard.attention(*torch.randn(3, 1, 1, 5, 8), mask=long_mask, backend="native")


def test_large_expression_is_printed_by_its_size() -> None:
    assert to_text(MASKS["chain"]) == f"an expression of {len(to_nodes(MASKS['chain']))} operations on i, j"
    assert len(to_text(MASKS["doubled"])) < 3000
    assert repr(MASKS["chain"]) != repr(MASKS["doubled"]) and len(repr(MASKS["chain"])) < 60


def test_torch_code_of_a_large_expression_raises_error() -> None:
    with pytest.raises(ArgumentError, match="at most 1000 operations"):
        torch_expression(MASKS["doubled"], ())


def test_number_of_serialized_constructor_calls_is_limited() -> None:
    combined = mask.causal()
    for n in range(60):
        combined = (combined | mask.sliding_window(n + 1)) & (combined | mask.prefix(n))

    with pytest.raises(NotSerializable, match="more than 2000 constructor calls"):
        serialize(combined, [], [])


def test_nesting_depth_of_serialized_masks_is_limited() -> None:
    def nested_mask(depth: int) -> Any:
        combined = mask.causal()
        for n in range(depth - 1):
            combined = combined | mask.sliding_window(n + 1)
        return combined

    tensors, ints = [], []  # type: ignore[var-annotated]  # lists of tensors and ints
    text = serialize(nested_mask(MAX_NESTING_DEPTH), tensors, ints)
    assert deserialize(text, tensors, ints).expr is nested_mask(MAX_NESTING_DEPTH).expr
    with pytest.raises(NotSerializable, match="nests deeper than 100"):
        serialize(nested_mask(MAX_NESTING_DEPTH + 1), [], [])


def test_size_of_stored_expressions_is_limited() -> None:
    x = variable("i")
    for n in range(MAX_NODES // 2 + 1):
        x = apply("add", x, apply("mul", variable("j"), constant(n)))

    with pytest.raises(NotSerializable, match=f"more than {MAX_NODES} nodes"):
        serialize(mask.mask_from_expr(apply("lt", x, constant(0)), (), ()), [], [])
    with pytest.raises(ArgumentError, match=rf"1 to {MAX_NODES} nodes; got \d+ nodes"):
        pickle.loads(pickle.dumps(x))


def test_long_mask_survives_serialization() -> None:
    tensors: list[torch.Tensor] = []
    ints: list[int] = []
    original = mask.from_function(long_mask)

    copied = deserialize(serialize(original, tensors, ints), tensors, ints)

    assert copied.expr is original.expr


def test_flex_lowering_of_a_large_expression_agrees_with_evaluation() -> None:
    lowering = FlexLowering((), SCORE_SHAPE, 1, torch.device("cpu"))
    values = Evaluator((), index_grid()).mask_value(MASKS["chain"])
    for i in range(3):
        for j in range(4):
            index = (torch.tensor(n) for n in (0, 0, i, j))
            assert bool(lowering.mask_mod(MASKS["chain"])(*index)) == bool(values[0, 0, i, j])


def test_score_with_hundreds_of_modifiers_is_evaluated() -> None:
    score_fn = score.scaled_dot()
    for _ in range(300):
        score_fn = score_fn.then(lambda s, b, h, i, j: s + 0.01)
    q, k, v = torch.randn(3, 1, 1, 5, 8, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(regard.attention(q, k, v, score=score_fn), regard.attention(q, k, v))
