"""The compiled core and the packed structs that it reads: the same fields as in abi.h and program.h of csrc/include.

Only this module imports the core. It compares the layout of the compiled structs with its own once, at import, because
a core of another version would read wrong memory.
"""

import ctypes
from collections.abc import Mapping
from enum import IntEnum
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import torch

from regard.backends.native.codegen.program_compiler import OPCODES, OPERAND_KINDS, SCORE_REGISTER, SCRATCH_REGISTER
from regard.errors import BackendError

MAX_LENGTH = 2**31 - 1024  # of queries and of keys: positions have 32 bits
PANELS_PER_BLOCK = 8  # panels of queries that read a tile of keys one after another
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in the order of the enum DType
_DTYPE_NAMES = ("FP32", "BF16", "FP16")


class ThresholdMode(IntEnum):
    """What the kernel `thresholded` computes: ThresholdParams::Mode."""

    ENTMAX = 0
    TOPK = 1
    HARDMAX = 2
    ENTMAX_SLOPE = 3  # (s - threshold)^(exponent - 1) for given thresholds
    COLUMN_SUMS = 4  # softmax without an output: the lse of each row, and the sum of the weights of each key


class ConflictScope(IntEnum):
    """Which queries may add to the same element of a captured tensor's gradient."""

    PANEL = 0  # only those of one panel
    HEADS = 1  # also those of other batch elements and heads at the same positions
    ANY = 2


def _int64_fields(names: str) -> tuple[tuple[str, type[ctypes.c_int64]], ...]:
    return tuple((name, ctypes.c_int64) for name in names.split())


def _int32_fields(names: str) -> tuple[tuple[str, type[ctypes.c_int32]], ...]:
    return tuple((name, ctypes.c_int32) for name in names.split())


class StridedRows(ctypes.Structure):
    """The rows of a tensor: its address, and its strides by batch element, head and row."""

    _fields_ = _int64_fields("data batch_stride head_stride row_stride")


class AttentionParams(ctypes.Structure):
    """The parameters of a call. Pointers are addresses; 0 means that there is none."""

    _fields_ = (
        *_int64_fields("batch num_heads num_kv_heads n_q n_k head_dim value_dim num_threads"),
        ("scale", ctypes.c_double),
        *_int64_fields("dtype output_dtype"),
        *((name, StridedRows) for name in ("q", "k", "v")),
        *_int64_fields("coverage_batch coverage_num_heads coverage_num_panels coverage_run_offsets coverage_runs"),
        *_int64_fields("program seed dropout_threshold"),
        ("dropout_scale", ctypes.c_double),
        *_int64_fields("output row_statistic"),
        ("d_output", StridedRows),
        *_int64_fields("d_row_statistic d_q d_k d_v u d_u entmax_exponents"),
        *_int64_fields(
            "dropout_head_offset dropout_query_offset dropout_query_step dropout_key_offset dropout_key_step"
        ),
    )


class WeightTileParams(ctypes.Structure):
    """A tile of the matrix of weights, and the addresses of its outputs; 0 for an output that is not requested."""

    _fields_ = (
        *_int64_fields("b_begin b_end h_begin h_end i_begin i_end j_begin j_end is_partial"),
        *_int64_fields("scores weights entropy cell_keys cell_sums cell_maxima column_sums max_weight max_weight_key"),
    )


class ThresholdParams(ctypes.Structure):
    """The parameters of the kernel `thresholded`, besides those of a call."""

    _fields_ = _int64_fields("mode k_or_groups exponents thresholds column_sums")


class KeyRun(ctypes.Structure):
    """A run of keys that a panel of queries attends to."""

    _fields_ = _int32_fields("begin end is_partial vector_begin vector_end")


class Instruction(ctypes.Structure):
    """An instruction of a program."""

    _fields_ = _int32_fields("op dest table padding a_kind a_index b_kind b_index c_kind c_index")


class PositionArray(ctypes.Structure):
    """An array with a value for each query or key."""

    _fields_ = _int64_fields("data batch_stride head_stride")


class GradientSum(ctypes.Structure):
    """The sum that receives the gradient of a captured tensor."""

    _fields_ = _int64_fields("data size conflict_scope")


class Program(ctypes.Structure):
    """A program of the tile interpreter."""

    _fields_ = (
        *_int64_fields("instructions score_mod_end mask_end derivative_end end num_registers"),
        *_int64_fields("per_query per_key tables num_sums gradient_sums"),
    )


STRUCTS = (
    *(StridedRows, AttentionParams, WeightTileParams, ThresholdParams),
    *(KeyRun, Instruction, PositionArray, GradientSum, Program),
)


def field_names(struct: type[ctypes.Structure]) -> tuple[str, ...]:
    """The names of a struct's fields, in the order of memory."""
    return tuple(field[0] for field in struct._fields_)


FIELD_NAMES: dict[type[ctypes.Structure], tuple[str, ...]] = {struct: field_names(struct) for struct in STRUCTS}


def expected_abi() -> dict[str, dict[str, int]]:
    """Return sizes and offsets of the structs, enumerators and constants, in the form of `_core.abi()`."""
    layouts = {
        struct.__name__: {"sizeof": ctypes.sizeof(struct)}
        | {name: getattr(struct, name).offset for name in field_names(struct)}
        for struct in STRUCTS
    }
    enums = {
        "DType": _DTYPE_NAMES,
        "ThresholdMode": tuple(mode.name for mode in ThresholdMode),
        "OperandKind": tuple(kind.upper() for kind in OPERAND_KINDS),
        "ConflictScope": tuple(scope.name for scope in ConflictScope),
        "Op": tuple(op.upper() for op in OPCODES),
    }
    constants = {"MAX_LENGTH": MAX_LENGTH, "PANELS_PER_BLOCK": PANELS_PER_BLOCK}
    constants |= {"SCORE_REGISTER": SCORE_REGISTER, "SCRATCH_REGISTER": SCRATCH_REGISTER}
    return (
        layouts
        | {group: {n: i for i, n in enumerate(names)} for group, names in enums.items()}
        | {"constants": constants}
    )


def core_file() -> Path | None:
    """The file of the compiled core, whether or not it can be imported; None if it was not built."""
    package = Path(__file__).parents[2]
    files = (package / f"_core{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((file for file in files if file.exists()), None)


def check_abi(compiled: Mapping[str, Mapping[str, int]]) -> None:
    """Raise a BackendError that names the first difference between the compiled core's layout and this module's."""
    expected = expected_abi()
    for group in (*expected, *(group for group in compiled if group not in expected)):
        ours, theirs = expected.get(group, {}), compiled.get(group, {})
        for name in (*ours, *(name for name in theirs if name not in ours)):
            if ours.get(name) != theirs.get(name):
                raise BackendError(
                    f"the compiled core must match this version of regard, which has {group}.{name} = "
                    f"{ours.get(name, 'nothing')}; got {theirs.get(name, 'nothing')}. Build the core again: run "
                    "make setup, or install regard again."
                )


core: ModuleType | None
load_error = ""  # why a core that was built cannot be imported
try:
    from regard import _core as core
except ImportError as error:
    core = None
    if core_file() is not None:
        load_error = str(error)
if core is not None:
    check_abi(core.abi() if hasattr(core, "abi") else {})
