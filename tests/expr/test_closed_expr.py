"""Closed expressions: captured tensors, deferred tensors, shape checks, and merging of captures."""

import pytest
import torch

from regard.errors import ArgumentError
from regard.expr.closed_expr import ClosedExpr, TensorFromQueries, TensorFromShape, merge_captures, trace_builtin
from regard.expr.ir import TRUE, apply, constant, lookup, variable
from regard.expr.printing import to_text

I, J = variable("i"), variable("j")


def test_trace_builtin_returns_expression_and_tensors() -> None:
    table = torch.arange(4)
    traced = trace_builtin(lambda i, j: table[i] <= j, "i", "j")
    assert traced.expr is apply("le", lookup(0, (I,), "int"), J)
    assert len(traced.tensors) == 1 and traced.tensors[0] is table
    assert traced.tensor_names == ("table",) and traced.shape_checks == ()


def test_explicit_tensor_names_override_variable_names() -> None:
    table = torch.arange(4)
    traced = trace_builtin(lambda i: table[i] > 0, "i", tensor_names=("documents",))
    assert to_text(traced.expr, traced.tensor_names) == "documents[i] > 0"


def test_deferred_tensor_replaces_its_placeholder() -> None:
    placeholder, table = torch.zeros(1), torch.arange(5)
    deferred = TensorFromShape(lambda score_shape: torch.full((score_shape[1],), float(score_shape[3])))
    traced = trace_builtin(lambda h, j: placeholder[h] * table[j], "h", "j", deferred_tensor=(placeholder, deferred))
    assert traced.tensors[0] is deferred and traced.tensors[1] is table
    tensors = traced.resolve_tensors((2, 3, 4, 5), 0)
    assert tensors[0].tolist() == [5.0, 5.0, 5.0] and tensors[1] is table


def test_tensor_from_queries_is_differentiable() -> None:
    placeholder = torch.zeros(1, 1, 1)
    traced = trace_builtin(
        lambda b, h, i: placeholder[b, h, i] + 0,
        "b",
        "h",
        "i",
        deferred_tensor=(placeholder, TensorFromQueries(lambda q: q.sum(-1))),
    )
    queries = torch.ones(2, 3, 4, 5, requires_grad=True)
    (tensor,) = traced.resolve_tensors((2, 3, 4, 4), 0, queries)
    assert tensor.shape == (2, 3, 4) and tensor.requires_grad and (tensor == 5).all()


def test_shape_checks_run_before_deferred_tensors_are_computed() -> None:
    calls = []

    def check(score_shape, query_offset):  # type: ignore[no-untyped-def]
        calls.append((score_shape, query_offset))
        raise ArgumentError("no")

    def make(score_shape):  # type: ignore[no-untyped-def]
        raise AssertionError("the tensor must not be computed if a shape check fails")

    closed_expr = ClosedExpr(TRUE, (TensorFromShape(make),), ("t",), (check,))
    with pytest.raises(ArgumentError, match="no"):
        closed_expr.resolve_tensors((1, 2, 3, 4), 7)
    assert calls == [((1, 2, 3, 4), 7)]


def test_merge_captures_lists_a_shared_tensor_once() -> None:
    shared, other_table = torch.arange(3), torch.arange(4)
    one = trace_builtin(lambda i: shared[i] > 0, "i")
    other = trace_builtin(lambda i, j: other_table[i] > shared[j], "i", "j")
    exprs, tensors, names, _ = merge_captures([one, other])
    assert [id(t) for t in tensors] == [id(shared), id(other_table)] and names == ("shared", "other_table")
    assert exprs[0] is apply("gt", lookup(0, (I,), "int"), constant(0))
    assert exprs[1] is apply("gt", lookup(1, (I,), "int"), lookup(0, (J,), "int"))


def test_merge_captures_keeps_equal_but_distinct_tensors() -> None:
    one, other = torch.arange(3), torch.arange(3)
    _, tensors, _, _ = merge_captures(
        [trace_builtin(lambda i: one[i] > 0, "i"), trace_builtin(lambda i: other[i] > 0, "i")]
    )
    assert len(tensors) == 2


def test_merge_captures_makes_names_unique() -> None:
    def closed_expr(value: int) -> ClosedExpr:
        table = torch.full((3,), value)
        return trace_builtin(lambda i: table[i] > 0, "i")

    exprs, _, names, _ = merge_captures([closed_expr(n) for n in range(4)])
    assert names == ("table", "table2", "table3", "table4")
    assert [to_text(t, names) for t in exprs] == [f"{n}[i] > 0" for n in names]


def test_merge_captures_keeps_all_shape_checks() -> None:
    calls = []
    closed_exprs = [
        ClosedExpr(TRUE, shape_checks=(lambda score_shape, query_offset, n=n: calls.append(n),)) for n in range(3)
    ]
    _, _, _, checks = merge_captures(closed_exprs)
    for check in checks:
        check((1, 1, 1, 1), 0)
    assert calls == [0, 1, 2]


def test_merge_captures_of_nothing_is_empty() -> None:
    assert merge_captures([]) == ([], (), (), ())
