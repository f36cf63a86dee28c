"""Stored formulas: what is written is read again, and what nobody wrote is refused with a sentence."""

import json
import re
from typing import Any

import pytest
import torch

import regard
from regard import mask, score
from regard.errors import SpecError, TraceError
from regard.spec.named import read_back, read_options, spell
from regard.spec.nodes import digest, from_nodes, to_nodes
from regard.spec.term import apply, constant, lookup, variable

FLOATS, WHOLE, BOOLEANS = torch.arange(6.0), torch.arange(6), torch.ones(6, 6, dtype=torch.bool)
I, J = ["variable", "i"], ["variable", "j"]


def formula(*nodes: Any) -> str:
    return json.dumps({"formula": nodes})


def from_term(*nodes: Any, maker: str = "mask.from_term", tensors: int = 3) -> str:
    captured = {"list": [{"tensor": n} for n in range(tensors)]}
    return json.dumps([maker, [{"formula": nodes}, captured, {"list": ["a", "b", "c"]}], {}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON; got ''"),
        ("[" * 100_000, "must be JSON"),
        ("9" * 10_000, "must be JSON"),
        ('{"list": [' * 250 + "]}" * 250, "must nest at most 200 parts"),
        ("{}", "marked number, tensor, list or formula; got ''"),
        ('{"number": 0, "tensor": 0}', "marked number, tensor, list or formula; got 'number, tensor'"),
        ('{"number": 5}', "a number must be one of the 1 that come with the text; got 5"),
        ('{"number": -1}', "a number must be one of the 1"),
        ('{"tensor": "0"}', "a tensor must be one of the 3 that come with the text; got '0'"),
        ("123456789012345678901234567890", "must fit into 64 bits; got 123456789012345678901234567890"),
        ('["mask.causal"]', "the name of a maker, its arguments and its options"),
        ('["mask.nothing", [], {}]', "must name masks, scores and weighings of regard; got 'mask.nothing'"),
        ('["mask.causal", [1], {}]', re.escape("mask.causal must be given the arguments it takes, ()")),
        ('["mask.window", ["a"], {}]', "before of mask.window must be <class 'int'>; got str"),
        ('["mask.window", [{"number": 0}], {"x": null}]', "mask.window must be given the arguments it takes"),
        ('["score.scaled_dot", ["x"], {}]', "scale of score.scaled_dot must be .*; got str"),
        ('["mask.both", [1.5, true], {}]', "got float"),
        ('["feature.favor", [30000, 30000], {}]', "at most 33554432 numbers .*; got 30000 features of width 30000"),
        ('["feature.favor", [4611686018427387904], {}]', "favor must have at most"),
        ('["weigh.sinkhorn", [1000000000], {}]', "from 1 to 10,000 iterations; got 1000000000"),
        ('["mask.tokens", [{"list": [4611686018427387904]}], {}]', "less than 134217728; got 4611686018427387904"),
        (formula(), "a list of 1 to 20000 nodes; got 0 nodes"),
        (formula(7), "begins with an operation; got 7"),
        (formula(["launch", [0]]), "operations of regard; got 'launch'"),
        (formula(I, ["add", [0]]), re.escape("a node of add must have 2 arguments; got [0]")),
        (formula(I, ["neg", [1]]), re.escape("arguments of neg must be nodes listed before it, 0 to 0; got [1]")),
        (formula(I, ["neg", [-1]]), "nodes listed before it"),
        (formula(I, ["neg", [True]]), "nodes listed before it"),
        (formula(["variable", "z"]), re.escape("one of b, h, i, j, p, s, n_q, n_k; got ['z']")),
        (formula(["constant", "1"]), "must be one number"),
        (formula(["constant", 2**63]), "fit into 64 bits; got one of 64 bits"),
        (formula(I, ["constant", 0], ["mod", [0, 1]]), "cannot be divided by 0"),
        (formula(I, ["constant", -1], ["pow", [0, 1]]), "raised to the power -1"),
        (formula(["constant", 0.5], I, ["bitand", [0, 1]]), "takes whole numbers, not floats"),
        (formula(["lookup", -1, "int", []]), "captured tensor 0 or more; got -1"),
        (formula(["lookup", 0, "complex", []]), "bool, int or float; got 'complex'"),
        (formula(["constant", 0.5], ["lookup", 0, "int", [0]]), r"an index .* whole number; got \['float'\]"),
        (from_term(I), "the formula must be of kind bool; got int"),
        (from_term(["variable", "s"], ["constant", 0.0], ["lt", [0, 1]]), "must not depend on the score"),
        (from_term(I, ["lookup", 9, "bool", [0]]), "one of 3 captured tensors; got number 9"),
        (from_term(I, ["lookup", 2, "bool", [0]]), "tensor 2 must give bool and have 2 indices.*; got bool and 1"),
        (from_term(I, ["lookup", 0, "bool", [0]]), "tensor 0 must give float .*; got bool and 1"),
        (
            from_term(I, ["lookup", 0, "int", [0]], ["eq", [0, 1]]),
            "captured tensor 0 must give float and have 1 indices, as the tensor does; got int and 1",
        ),
        (from_term(I, ["lookup", 1, "float", [0]], maker="rule.from_term"), "tensor 1 must give int"),
    ],
)
def test_a_text_that_nobody_spelled_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_back(text, (FLOATS, WHOLE, BOOLEANS), (3,))


def test_options_are_read_by_their_names() -> None:
    assert read_options('{"list": [null, 1]}', (), (), ("mask", "start")) == {"mask": None, "start": 1}
    with pytest.raises(SpecError, match="must list its options, mask, start; got 1 values"):
        read_options('{"list": [null]}', (), (), ("mask", "start"))
    with pytest.raises(SpecError, match="must list its options, mask, start; got NoneType"):
        read_options("null", (), (), ("mask", "start"))


def test_strings_with_quotes_are_spelled_and_read() -> None:
    for value in ('a"b', "a\\b", 'a\\"'):
        assert read_back(spell(value, [], []), (), ()) == value


def test_a_look_up_of_another_kind_never_reaches_the_kernels() -> None:
    term = apply("eq", lookup(0, (variable("j"),), "int"), constant(3))
    with pytest.raises(SpecError, match="must give float"):
        mask.from_term(term, (FLOATS,), ("t",))
    with pytest.raises(SpecError, match="must hold booleans, floats or whole numbers"):
        mask.from_term(term, (FLOATS.to(torch.complex64),), ("t",))


def test_equal_formulas_have_equal_digests_and_others_do_not() -> None:
    terms = [mask.causal().term, mask.window(3).term, mask.window(4).term, constant(0.0), constant(-0.0), constant(0)]
    assert len({digest(term) for term in terms}) == len(terms)
    assert digest(mask.window(3).term) == digest(from_nodes(json.loads(json.dumps(to_nodes(mask.window(3).term)))))


def test_nodes_list_shared_parts_once() -> None:
    x = apply("sub", variable("i"), variable("j"))
    assert to_nodes(apply("mul", x, x)) == (("variable", "i"), ("variable", "j"), ("sub", (0, 1)), ("mul", (2, 2)))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_whole_numbers_beyond_64_bits_are_refused(number: int) -> None:
    with pytest.raises(TraceError, match="must fit into 64 bits"):
        regard.attention(*torch.randn(3, 1, 1, 4, 8), mask=lambda b, h, i, j: i < number)


def test_bits_of_floats_are_refused() -> None:
    with pytest.raises(TraceError, match="takes whole numbers, not floats"):
        score.rule(lambda s, b, h, i, j: s << 1)
