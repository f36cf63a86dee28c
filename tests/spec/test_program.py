"""Programs for the vector machine: what they compute beforehand, and what they refuse."""

from pathlib import Path

import pytest
import torch

from regard import mask, score
from regard.spec.mask import as_mask
from regard.spec.program import OPS, Beforehand, Program, TableOffset, Untold, program
from regard.spec.rule import as_rule
from regard.spec.term import TRUE, constant, variable


def of(seen=None, rule=None) -> Program:
    """The program of a mask and a rule, whose tensors are contiguous."""
    chosen = None if seen is None else as_mask(seen)
    changed = None if rule is None else as_rule(rule)
    tensors = [t for f in (changed, chosen) if f is not None for t in f.tensors]
    sizes, strides = tuple(tuple(t.shape) for t in tensors), tuple(t.stride() for t in tensors)
    return program(TRUE if chosen is None else chosen.term, None if changed is None else changed.term, sizes, strides)


def names(told: Program) -> list[str]:
    return [x.op for x in told.instructions]


def test_causal_is_one_comparison_of_positions():
    told = of(mask.causal())

    assert names(told) == ["keep_le"] and told.rule == 0 and told.hiding == 1
    assert told.lanes == (Beforehand(variable("p"), False),) and told.keys == (Beforehand(variable("j"), False),)


def test_a_window_is_one_comparison_for_each_side():
    assert names(of(mask.causal() & mask.window(7))) == ["keep_le", "keep_lt", "keep_lt"]


def test_documents_are_looked_up_beforehand():
    told = of(mask.documents(torch.arange(8) // 3))

    assert names(told) == ["keep_eq"]
    assert {x.term.op for x in (*told.lanes, *told.keys)} == {"lookup"}


def test_what_depends_on_the_distance_alone_is_a_table():
    told = of(mask.dilated(3, 4))

    assert [x.op for x in told.instructions if x.op.startswith("lookup")] == ["lookup_byte"] * names(told).count(
        "lookup_byte"
    )
    assert any(isinstance(x, TableOffset) for x in told.lanes)
    assert not any(op in names(told) for op in ("i_mod", "i_floordiv"))


def test_alibi_is_a_look_up_and_a_difference():
    told = of(rule=score.alibi(torch.ones(2)))

    assert names(told) == ["lookup", "f_sub"] and told.rule == told.hiding == 2


def test_a_slope_that_is_one_takes_no_instructions():
    assert len(of(rule=score.bias(torch.zeros(3, 3))).instructions) == 2


def test_a_softcap_has_a_slope_made_of_products():
    told = of(rule=score.softcap(3.0))

    assert names(told)[: told.rule] == ["f_mul", "f_tanh", "f_mul"]
    assert "f_pow" not in names(told) and told.instructions[-1].into == 1


def test_the_last_instruction_of_a_rule_writes_the_scores():
    for rule in (lambda s, b, h, i, j: s * 2, lambda s, b, h, i, j: i - j, lambda s, b, h, i, j: i * 0.5):
        told = of(rule=rule)
        assert told.instructions[told.rule - 1].into == 0


def test_a_dense_tensor_is_read_where_it_lies():
    values = torch.zeros(4, 6, dtype=torch.bool).T

    told = of(values)

    assert names(told) == ["lookup_byte", "keep"]
    assert [x.term.args[-1].value for x in told.keys if x.term.op == "mul"] == [6]  # a key is a column of the original


REFUSED = {
    "a divisor that varies": (lambda b, h, i, j: (i + 2 * j) % (j + 1) == 0, "by constant whole numbers only"),
    "a sine that decides": (lambda b, h, i, j: torch.sin(i * 0.5 + j) > 0, "its sin is its own"),
    "a number beyond 32 bits": (lambda b, h, i, j: i + 2 * j < 2**40, "does not fit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_machine_cannot_do_is_refused_with_its_reason(name):
    seen, said = REFUSED[name]
    with pytest.raises(Untold, match=said):
        of(seen)


def test_a_constant_condition_needs_no_program_of_its_own():
    assert names(of(mask.where(lambda b, h, i, j: (i >= 0) | True))) in ([], ["keep"])
    assert constant(True) is TRUE


def test_operations_are_counted_as_the_machine_counts_them():
    header = (Path(__file__).parents[2] / "native/program.h").read_text(encoding="utf8")
    body = header.split("enum Op : int32_t {")[1].split("OPS")[0]
    counted = [
        word.strip().lower() for line in body.splitlines() for word in line.split("//")[0].split(",") if word.strip()
    ]

    assert counted == list(OPS)
