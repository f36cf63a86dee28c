"""Compiled programs: their instructions, precomputed values, and unsupported expressions."""

import re
from pathlib import Path

import pytest
import torch

from regard import mask, score
from regard.backends.native.codegen.program_compiler import (
    OPCODES,
    Precomputed,
    TableOffset,
    TileProgram,
    UnsupportedExpr,
    compile_program,
)
from regard.expr.ir import TRUE, constant, variable
from regard.expr.score_modifier import as_score_modifier
from regard.mask import as_mask


def compile_options(mask_like=None, modifier_like=None) -> TileProgram:
    """The program of a mask and a score modifier."""
    mask_expr = None if mask_like is None else as_mask(mask_like)
    score_mod = None if modifier_like is None else as_score_modifier(modifier_like)
    tensors = [t for f in (score_mod, mask_expr) if f is not None for t in f.tensors]
    sizes, strides = tuple(tuple(t.shape) for t in tensors), tuple(t.stride() for t in tensors)
    return compile_program(
        TRUE if mask_expr is None else mask_expr.expr, None if score_mod is None else score_mod.expr, sizes, strides
    )


def op_names(program: TileProgram) -> list[str]:
    return [x.op for x in program.instructions]


def test_causal_mask_compiles_to_one_comparison():
    program = compile_options(mask.causal())

    assert op_names(program) == ["mask_le"] and program.score_mod_end == 0 and program.mask_end == 1
    assert program.per_query == (Precomputed(variable("p"), False),) and program.per_key == (
        Precomputed(variable("j"), False),
    )


def test_sliding_window_compiles_to_one_comparison_per_side():
    assert op_names(compile_options(mask.causal() & mask.sliding_window(7))) == ["mask_le", "mask_lt", "mask_lt"]


def test_document_ids_are_precomputed_per_query_and_key():
    program = compile_options(mask.document(torch.arange(8) // 3))

    assert op_names(program) == ["mask_eq"]
    assert {x.expr.op for x in (*program.per_query, *program.per_key)} == {"lookup"}


def test_expression_of_the_distance_compiles_to_a_table():
    program = compile_options(mask.dilated(3, 4))

    assert [x.op for x in program.instructions if x.op.startswith("lookup")] == ["lookup_byte"] * op_names(
        program
    ).count("lookup_byte")
    assert any(isinstance(x, TableOffset) for x in program.per_query)
    assert not any(op in op_names(program) for op in ("i_mod", "i_floordiv"))


def test_alibi_compiles_to_a_lookup_and_a_difference():
    program = compile_options(modifier_like=score.alibi(torch.ones(2)))

    assert op_names(program) == ["lookup", "f_sub"] and program.score_mod_end == program.mask_end == 2


def test_derivative_of_one_takes_no_instructions():
    assert len(compile_options(modifier_like=score.bias(torch.zeros(3, 3))).instructions) == 2


def test_derivative_of_softcap_compiles_to_products():
    program = compile_options(modifier_like=score.softcap(3.0))

    assert op_names(program)[: program.score_mod_end] == ["f_mul", "f_tanh", "f_mul"]
    assert "f_pow" not in op_names(program) and program.instructions[-1].dest == 1


def test_last_instruction_of_a_score_modifier_writes_the_scores():
    for modifier_like in (lambda s, b, h, i, j: s * 2, lambda s, b, h, i, j: i - j, lambda s, b, h, i, j: i * 0.5):
        program = compile_options(modifier_like=modifier_like)
        assert program.instructions[program.score_mod_end - 1].dest == 0


def test_dense_tensor_is_read_by_its_own_strides():
    values = torch.zeros(4, 6, dtype=torch.bool).T

    program = compile_options(values)

    assert op_names(program) == ["lookup_byte", "mask"]
    assert [x.expr.args[-1].value for x in program.per_key if x.expr.op == "mul"] == [
        6
    ]  # keys are rows of the transposed tensor


ERRORS = {
    "a divisor that varies": (lambda b, h, i, j: (i + 2 * j) % (j + 1) == 0, "by a constant integer other than 0 only"),
    "a comparison of sines": (lambda b, h, i, j: torch.sin(i * 0.5 + j) > 0, "its sin may round differently"),
    "an integer beyond 32 bits": (lambda b, h, i, j: i + 2 * j < 2**40, "does not fit"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_unsupported_expression_raises_error_with_the_reason(name):
    mask_like, message = ERRORS[name]
    with pytest.raises(UnsupportedExpr, match=message):
        compile_options(mask_like)


def test_constant_condition_needs_at_most_one_instruction():
    assert op_names(compile_options(mask.from_function(lambda b, h, i, j: (i >= 0) | True))) in ([], ["mask"])
    assert constant(True) is TRUE


def test_opcodes_are_in_the_order_of_the_interpreter():
    header = (Path(__file__).parents[4] / "csrc" / "include" / "program.h").read_text(encoding="utf8")
    body = header.split("#define REGARD_OPS(OP)")[1].split("enum Op")[0]
    enumerators = [name.lower() for name in re.findall(r"OP\((\w+)\)", body)]

    assert enumerators == list(OPCODES)
