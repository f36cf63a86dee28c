"""Stored expressions: round trips, and errors for invalid texts."""

import json
import re
from typing import Any

import pytest
import torch

import regard
from regard import mask, score
from regard.errors import ArgumentError, TraceError
from regard.expr.ir import apply, constant, lookup, variable
from regard.expr.node_list import digest, from_nodes, to_nodes
from regard.expr.serialize import deserialize, deserialize_options, serialize

FLOATS, INTEGERS, BOOLEANS = torch.arange(6.0), torch.arange(6), torch.ones(6, 6, dtype=torch.bool)
I, J = ["variable", "i"], ["variable", "j"]


def expr_text(*nodes: Any) -> str:
    return json.dumps({"expr": nodes})


def constructor_text(*nodes: Any, constructor: str = "mask.mask_from_expr", tensors: int = 3) -> str:
    tensor_list = {"list": [{"tensor": n} for n in range(tensors)]}
    return json.dumps([constructor, [{"expr": nodes}, tensor_list, {"list": ["a", "b", "c"]}], {}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON; got ''"),
        ("[" * 100_000, "must be JSON"),
        ("9" * 10_000, "must be JSON"),
        ('{"list": [' * 250 + "]}" * 250, "must nest at most 200 levels"),
        ("{}", "the tag int, tensor, list or expr; got ''"),
        ('{"int": 0, "tensor": 0}', "the tag int, tensor, list or expr; got 'int, tensor'"),
        ('{"int": 5}', "a part int must be the index of one of 1 values; got 5"),
        ('{"int": -1}', "a part int must be the index of one of 1 values"),
        ('{"tensor": "0"}', "a part tensor must be the index of one of 3 values; got '0'"),
        ("123456789012345678901234567890", "must fit into 64 bits; got 123456789012345678901234567890"),
        ('["mask.causal"]', "must be a list of name, arguments and options"),
        ('["mask.nothing", [], {}]', "must be a mask, score or normalizer of regard; got 'mask.nothing'"),
        ('["mask.causal", [1], {}]', re.escape("the arguments of mask.causal must match ()")),
        ('["mask.sliding_window", ["a"], {}]', "before of mask.sliding_window must be <class 'int'>; got str"),
        ('["mask.sliding_window", [{"int": 0}], {"x": null}]', "the arguments of mask.sliding_window must match"),
        ('["score.scaled_dot", ["x"], {}]', "scale of score.scaled_dot must be .*; got str"),
        ('["mask.logical_and", [1.5, true], {}]', "got float"),
        (
            '["feature_map.favor", [30000, 30000], {}]',
            "at most 33554432 numbers .*; got head_dim=30000, num_features=30000",
        ),
        ('["feature_map.favor", [4611686018427387904], {}]', "favor must have at most"),
        ('["normalizer.sinkhorn", [1000000000], {}]', "iterations must be from 1 to 10,000; got 1000000000"),
        (
            '["mask.global_tokens", [{"list": [4611686018427387904]}], {}]',
            "less than 134217728; got 4611686018427387904",
        ),
        (expr_text(), "a list of 1 to 20000 nodes; got 0 nodes"),
        (expr_text(7), "begins with an operation; got 7"),
        (expr_text(["launch", [0]]), "operations of regard; got 'launch'"),
        (expr_text(I, ["add", [0]]), re.escape("a node add must have 2 arguments; got [0]")),
        (expr_text(I, ["neg", [1]]), re.escape("arguments of neg must be nodes listed before it, 0 to 0; got [1]")),
        (expr_text(I, ["neg", [-1]]), "nodes listed before it"),
        (expr_text(I, ["neg", [True]]), "nodes listed before it"),
        (expr_text(["variable", "z"]), re.escape("one of b, h, i, j, p, s, n_q, n_k; got ['z']")),
        (expr_text(["constant", "1"]), "must be one number"),
        (expr_text(["constant", 2**63]), "fit into 64 bits; got one of 64 bits"),
        (expr_text(I, ["constant", 0], ["mod", [0, 1]]), "cannot be divided by 0"),
        (expr_text(I, ["constant", -1], ["pow", [0, 1]]), "raised to the power -1"),
        (expr_text(["constant", 0.5], I, ["bitand", [0, 1]]), "takes integers, not floats"),
        (expr_text(["lookup", -1, "int", []]), "the slot of a lookup must be 0 or more; got -1"),
        (expr_text(["lookup", 0, "complex", []]), "bool, int or float; got 'complex'"),
        (expr_text(["constant", 0.5], ["lookup", 0, "int", [0]]), r"an index .* integer; got \['float'\]"),
        (constructor_text(I), "the expression must be of kind bool; got int"),
        (constructor_text(["variable", "s"], ["constant", 0.0], ["lt", [0, 1]]), "must not depend on the score"),
        (constructor_text(I, ["lookup", 9, "bool", [0]]), "below 3, the number of captured tensors; got 9"),
        (
            constructor_text(I, ["lookup", 2, "bool", [0]]),
            "tensor 2 must have the kind bool and 2 indices; got bool and 1",
        ),
        (constructor_text(I, ["lookup", 0, "bool", [0]]), "tensor 0 must have the kind float .*; got bool and 1"),
        (
            constructor_text(I, ["lookup", 0, "int", [0]], ["eq", [0, 1]]),
            "captured tensor 0 must have the kind float and 1 indices; got int and 1",
        ),
        (
            constructor_text(I, ["lookup", 1, "float", [0]], constructor="score.modifier_from_expr"),
            "tensor 1 must have the kind int",
        ),
    ],
)
def test_invalid_text_raises_argument_error(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        deserialize(text, (FLOATS, INTEGERS, BOOLEANS), (3,))


def test_deserialize_options_returns_options_by_name() -> None:
    assert deserialize_options('{"list": [null, 1]}', (), (), ("mask", "query_offset")) == {
        "mask": None,
        "query_offset": 1,
    }
    with pytest.raises(ArgumentError, match="must list the options mask, query_offset; got 1 values"):
        deserialize_options('{"list": [null]}', (), (), ("mask", "query_offset"))
    with pytest.raises(ArgumentError, match="must list the options mask, query_offset; got NoneType"):
        deserialize_options("null", (), (), ("mask", "query_offset"))


def test_strings_with_quotes_survive_serialization() -> None:
    for value in ('a"b', "a\\b", 'a\\"'):
        assert deserialize(serialize(value, [], []), (), ()) == value


def test_lookup_of_another_kind_raises_argument_error() -> None:
    expr = apply("eq", lookup(0, (variable("j"),), "int"), constant(3))
    with pytest.raises(ArgumentError, match="must have the kind float"):
        mask.mask_from_expr(expr, (FLOATS,), ("t",))
    with pytest.raises(ArgumentError, match="must hold booleans, floats or integers"):
        mask.mask_from_expr(expr, (FLOATS.to(torch.complex64),), ("t",))


def test_digests_are_equal_for_equal_expressions_only() -> None:
    exprs = [
        mask.causal().expr,
        mask.sliding_window(3).expr,
        mask.sliding_window(4).expr,
        constant(0.0),
        constant(-0.0),
        constant(0),
    ]
    assert len({digest(expr) for expr in exprs}) == len(exprs)
    assert digest(mask.sliding_window(3).expr) == digest(
        from_nodes(json.loads(json.dumps(to_nodes(mask.sliding_window(3).expr))))
    )


def test_node_list_contains_shared_nodes_once() -> None:
    x = apply("sub", variable("i"), variable("j"))
    assert to_nodes(apply("mul", x, x)) == (("variable", "i"), ("variable", "j"), ("sub", (0, 1)), ("mul", (2, 2)))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_integer_beyond_64_bits_raises_trace_error(number: int) -> None:
    with pytest.raises(TraceError, match="must fit into 64 bits"):
        regard.attention(*torch.randn(3, 1, 1, 4, 8), mask=lambda b, h, i, j: i < number)


def test_bitwise_operation_on_floats_raises_trace_error() -> None:
    with pytest.raises(TraceError, match="takes integers, not floats"):
        score.modifier(lambda s, b, h, i, j: s << 1)
