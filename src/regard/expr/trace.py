"""Trace a Python function into an expression by calling it with symbolic indices.

The function has the signature of FlexAttention: `mask_mod(b, h, i, j)` or `score_mod(s, b, h, i, j)`. Its operations on
the arguments are recorded. Tensors that it indexes are captured; the expression refers to them by slot.
"""

import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import TraceError
from regard.expr.int_wraparound import WRAP_OPS, wrap_result, wrapping_dtype
from regard.expr.ir import (
    COMPARISONS,
    ELEMENTARY_FUNCTIONS,
    ROUNDING,
    Expr,
    Number,
    ScalarKind,
    apply,
    as_condition,
    constant,
    lookup,
    variable,
)
from regard.torch_ops.compile_guard import disable_compile

_TORCH_PATH = os.path.dirname(torch.__file__) + os.sep
MASK_VARIABLES = ("b", "h", "i", "j")
SCORE_VARIABLES = ("s", "b", "h", "i", "j")


class TraceResult(NamedTuple):
    """An expression and its captured tensors: slot n is `tensors[n]`, printed as `tensor_names[n]`."""

    expr: Expr
    tensors: tuple[Tensor, ...]
    tensor_names: tuple[str, ...]


@disable_compile
def trace(function: Callable[..., Any], argument_names: Sequence[str]) -> TraceResult:
    """Return the expression that a function computes from the named variables.

    The function is called twice, so that one that draws random numbers or reads the clock raises an error.
    """
    rng_state = _rng_state()
    first, second = trace_once(function, argument_names), trace_once(function, argument_names)
    same = first.expr is second.expr and all(map(_is_same_tensor, first.tensors, second.tensors))
    if not same or rng_state != _rng_state():
        raise TraceError(
            f"a mask or score function must compute the same expression in every call; {_function_name(function)}, "
            f"defined at {_source_location(function)}, gave two different ones. Draw random numbers or read changing "
            "state outside of it, and capture the result as a tensor."
        )
    return first


def _rng_state() -> tuple[object, ...]:
    """Return the states of the random generators of Python, NumPy and torch."""
    kind, state, *rest = np.random.get_state(legacy=True)
    states: list[object] = [random.getstate(), kind, np.asarray(state).tobytes(), *rest]
    with suppress(RuntimeError):  # inside a torch.func transform the state cannot be read
        states.append(torch.get_rng_state().numpy().tobytes())
    return tuple(states)


@disable_compile
def trace_once(function: Callable[..., Any], argument_names: Sequence[str]) -> TraceResult:
    """Like `trace`, for a function that is known to be deterministic: it is called once."""
    captures: list[Tensor] = []
    try:
        result = to_expr(function(*(Symbol(variable(name), captures) for name in argument_names)), captures)
    except Exception as error:
        raise TraceError(_error_message(function, argument_names, error)) from None
    return TraceResult(result, tuple(captures), tuple(_tensor_names(function, captures)))


def _tensor_names(function: Callable[..., Any], captures: list[Tensor]) -> Iterator[str]:
    """Yield the variable names under which the function refers to its captured tensors; `t<slot>` if unknown."""
    code = getattr(function, "__code__", None)
    names: dict[int, str] = {}
    if code is not None:
        values = {name: function.__globals__.get(name) for name in code.co_names}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a variable that has no value yet
                values[name] = cell.cell_contents
        names = {id(value): name for name, value in values.items()}
    for slot, tensor in enumerate(captures):
        base = tensor if id(tensor) in names else tensor._base
        yield names.get(id(base), f"t{slot}")


def _source_location(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def _error_message(function: Callable[..., Any], argument_names: Sequence[str], error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames[1:] if f.filename != __file__ and not f.filename.startswith(_TORCH_PATH)]
    location = (
        f"\n    {user_frames[-1].filename}:{user_frames[-1].lineno}: {user_frames[-1].line}"
        if user_frames
        else f"\n    {_source_location(function)}"
    )
    reason = str(error) if isinstance(error, TraceError) else f"{type(error).__name__}: {error}"
    return (
        f"{_function_name(function)}({', '.join(argument_names)}) could not be traced: {reason}{location}\n"
        "A mask or score function may use arithmetic, comparisons, & | ~, torch.where, minimum, maximum, abs, tanh, "
        f"exp, log, and tensors indexed by b, h, i and j. {_alternative(argument_names)}"
    )


def _alternative(argument_names: Sequence[str]) -> str:
    """Return a sentence that names other options than a traced function with these arguments."""
    if "s" in argument_names:
        return "For anything else, use score.bias(tensor), or score.custom(fn) for a function of queries and keys."
    return "For anything else, pass a boolean tensor."


def _function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _is_same_tensor(x: Tensor, y: Tensor) -> bool:
    if x is y:
        return True
    if x._base is not None and x._base is y._base:
        return x.shape == y.shape and x.stride() == y.stride() and x.storage_offset() == y.storage_offset()
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    try:
        return bool(((x == y) | ((x != x) & (y != y))).all())  # NaN equals NaN here
    except RuntimeError:  # inside vmap, values are not available
        return True


def to_expr(value: object, captures: list[Tensor]) -> Expr:
    """Convert a number, a captured scalar tensor or a symbol to an expression."""
    if isinstance(value, Symbol):
        return value.expr
    if isinstance(value, (bool, int, float)):
        return constant(value)
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return _lookup_expr(value.reshape(()), [], captures)
        raise TraceError(f"a tensor of shape {tuple(value.shape)} is used without indices; index it with b, h, i or j")
    if isinstance(value, PartiallyIndexedTensor):
        raise TraceError(
            f"a tensor of shape {tuple(value.tensor.shape)} is used with {len(value.indices)} of "
            f"{value.tensor.dim()} indices; index every dimension"
        )
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy scalar
        return constant(value.item())
    raise TraceError(f"a {type(value).__name__} cannot be part of an expression")


def _lookup_expr(tensor: Tensor, indices: list[Expr], captures: list[Tensor]) -> Expr:
    if tensor.is_complex():
        raise TraceError("a captured tensor must be real; got a complex one")
    if tensor.dtype == torch.uint64:
        raise TraceError("a captured tensor of torch.uint64 may hold values beyond 63 bits. Convert it with .long()")
    kind: ScalarKind = "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"
    slot = next((n for n, captured in enumerate(captures) if captured is tensor), len(captures))
    if slot == len(captures):
        captures.append(tensor)
    return lookup(slot, tuple(indices), kind)


@dataclass(frozen=True, eq=False)
class PartiallyIndexedTensor:
    """A captured tensor whose leading dimensions are indexed, such as `doc[b]` in `doc[b][i]`."""

    tensor: Tensor
    indices: list[Expr]
    captures: list[Tensor]

    def __getitem__(self, index: object) -> "PartiallyIndexedTensor | Symbol":
        return _index_captured(self.tensor, self.indices, index, self.captures)

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape[len(self.indices) :]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TraceError(f"torch.{function.__name__} is applied to a tensor with unindexed dimensions")


def _index_captured(
    tensor: Tensor, indices: list[Expr], index: object, captures: list[Tensor]
) -> "PartiallyIndexedTensor | Symbol":
    entries = list(index) if isinstance(index, (tuple, list)) else [index]
    if any(e is Ellipsis for e in entries):
        axis = next(n for n, e in enumerate(entries) if e is Ellipsis)
        missing = tensor.dim() - len(indices) - len(entries) + 1
        entries[axis : axis + 1] = [slice(None)] * missing
    if any(e is None or (isinstance(e, slice) and e != slice(None)) for e in entries):
        raise TraceError("an index of a captured tensor must be an integer expression or a full slice")
    if len(indices) + len(entries) > tensor.dim():
        raise TraceError(f"a tensor with {tensor.dim()} dimensions has {len(indices) + len(entries)} indices")
    all_entries: list[object] = [*indices, *entries]
    if any(isinstance(e, slice) for e in all_entries):  # table[:, i]: move the sliced dimensions to the end
        indexed_axes = [n for n, e in enumerate(all_entries) if not isinstance(e, slice)]
        open_axes = [n for n in range(tensor.dim()) if n not in indexed_axes]
        tensor = tensor.permute(indexed_axes + open_axes)
        all_entries = [all_entries[n] for n in indexed_axes]
    exprs = [e if isinstance(e, Expr) else to_expr(e, captures) for e in all_entries]
    if any(e.kind != "int" for e in exprs):
        raise TraceError("an index must be an integer; use .long() or //")
    if len(exprs) < tensor.dim():
        return PartiallyIndexedTensor(tensor, exprs, captures)
    return Symbol(_lookup_expr(tensor, exprs, captures), captures, tensor.dtype)


_DTYPE_OF_KIND: dict[ScalarKind, torch.dtype] = {"bool": torch.bool, "int": torch.int64, "float": torch.float32}
_NO_VALUE_MESSAGE = "a symbol has no value while the function is traced"


class Symbol:
    """A symbolic scalar that records the operations applied to it; the argument of a traced function.

    `wrapping_dtype` is the dtype of an integer of fewer than 64 bits, which wraps around; None otherwise.
    """

    __slots__ = ("captures", "expr", "wrapping_dtype")
    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy scalars then defer to the operators of this class

    def __init__(self, expr: Expr, captures: list[Tensor], dtype: torch.dtype | None = None) -> None:
        self.expr = expr
        self.captures = captures
        self.wrapping_dtype = dtype if dtype in WRAP_OPS and expr.kind == "int" else None

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.strip("_")
        if name == "getitem" and isinstance(args[0], Tensor):
            captures = next(a.captures for a in _flatten(args[1]) if isinstance(a, Symbol))
            return _index_captured(args[0], [], args[1], captures)
        if name == "embedding":  # nn.Embedding called with a position
            return _index_captured(args[1], [], args[0], args[0].captures)
        operation = TORCH_FUNCTIONS.get(name)
        if operation is None:
            raise TraceError(f"torch.{function.__name__} is not supported in a mask or score function")
        return operation(*args, **(kwargs or {}))

    def __bool__(self) -> bool:
        raise TraceError(
            f"{_NO_VALUE_MESSAGE}, so `if`, `and`, `or`, `not`, `in`, min(), max() and chained comparisons are not "
            "supported; use torch.where, &, |, ~, torch.minimum, torch.maximum"
        )

    def _raise_no_value(self, *_: object) -> Any:
        raise TraceError(f"{_NO_VALUE_MESSAGE}; index a torch tensor with it, or compute with torch functions")

    __index__ = __int__ = __float__ = __len__ = __iter__ = item = tolist = numpy = __array__ = _raise_no_value

    def __getitem__(self, index: object) -> "Symbol":
        if index is Ellipsis or index == ():
            return self
        raise TraceError("a symbol is a scalar and cannot be indexed")

    # attributes of a scalar tensor that torch code reads
    shape = torch.Size(())
    ndim = 0
    requires_grad = False
    is_cuda = False
    device = torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return self.wrapping_dtype or _DTYPE_OF_KIND[self.expr.kind]

    def __pos__(self) -> "Symbol":
        return self

    def dim(self) -> int:
        return 0

    def size(self) -> torch.Size:
        return torch.Size(())

    def numel(self) -> int:
        return 1

    def to(self, *args: Any, dtype: Any = None, **_: Any) -> "Symbol":
        for target in (*args, dtype):
            if isinstance(target, (Tensor, Symbol)):
                target = target.dtype
            if isinstance(target, torch.dtype):
                return _cast(self, target)
        return self

    type = type_as = to

    def contiguous(self) -> "Symbol":
        return self

    clone = detach = cpu = contiguous

    def float(self) -> "Symbol":
        return _cast(self, torch.float32)

    double = half = bfloat16 = float

    def long(self) -> "Symbol":
        return _cast(self, torch.int64)

    def int(self) -> "Symbol":
        return _cast(self, torch.int32)

    def short(self) -> "Symbol":
        return _cast(self, torch.int16)

    def char(self) -> "Symbol":
        return _cast(self, torch.int8)

    def byte(self) -> "Symbol":
        return _cast(self, torch.uint8)

    def bool(self) -> "Symbol":
        return _cast(self, torch.bool)

    def new_full(self, size: Any, value: Any, *, dtype: Any = None, **_: Any) -> "Symbol":
        return _cast(Symbol(to_expr(value, self.captures), self.captures), dtype or self.dtype)

    def new_tensor(self, value: Any, *, dtype: Any = None, **_: Any) -> "Symbol":
        return self.new_full((), value, dtype=dtype)

    def new_ones(self, *size: Any, dtype: Any = None, **_: Any) -> "Symbol":
        return self.new_full((), 1, dtype=dtype)

    def new_zeros(self, *size: Any, dtype: Any = None, **_: Any) -> "Symbol":
        return self.new_full((), 0, dtype=dtype)


def _flatten(index: object) -> list[object]:
    return list(index) if isinstance(index, (tuple, list)) else [index]


def _cast(symbol: Symbol, dtype: torch.dtype) -> Symbol:
    if dtype == torch.bool:
        return Symbol(as_condition(symbol.expr), symbol.captures)
    if dtype.is_floating_point:
        return Symbol(apply("to_float", symbol.expr), symbol.captures)
    expr = apply("to_int", symbol.expr)
    if dtype in WRAP_OPS and dtype != symbol.wrapping_dtype:
        expr = apply(WRAP_OPS[dtype], expr)
    return Symbol(expr, symbol.captures, dtype)


def _symbolic_op(op: str, *args: Any) -> Symbol:
    captures = next(a.captures for a in args if isinstance(a, Symbol))
    expr = apply(op, *(to_expr(a, captures) for a in args))
    dtype = wrapping_dtype(op, args)
    return Symbol(expr, captures) if dtype is None else Symbol(wrap_result(op, expr, dtype), captures, dtype)


SymbolicFunction = Callable[..., Any]


def _symbolic(op: str, reflected: bool = False) -> SymbolicFunction:
    if reflected:
        return lambda x, y: _symbolic_op(op, y, x)
    return lambda *args: _symbolic_op(op, *args)


def _bitwise_or_logical(logical: str, bitwise: str) -> SymbolicFunction:
    def combine(x: Any, y: Any) -> Symbol:
        captures = x.captures if isinstance(x, Symbol) else y.captures
        is_logical = all(to_expr(operand, captures).kind == "bool" for operand in (x, y))
        return _symbolic_op(logical if is_logical else bitwise, x, y)

    return combine


def _divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Symbol:
    if rounding_mode == "floor":
        return _symbolic_op("floordiv", x, y)
    if rounding_mode != "trunc":
        return _symbolic_op("div", x, y)
    captures = x.captures if isinstance(x, Symbol) else y.captures
    if any(to_expr(operand, captures).kind == "float" for operand in (x, y)):
        return _symbolic_op("trunc", _symbolic_op("div", x, y))
    # the remainder has the sign of the divisor, and a quotient of another sign was rounded down
    quotient, remainder = _symbolic_op("floordiv", x, y), _symbolic_op("mod", x, y)
    is_rounded = _symbolic_op("and", _symbolic_op("ne", remainder, 0), _symbolic_op("lt", quotient, 0))
    return _symbolic_op("where", is_rounded, _symbolic_op("add", quotient, 1), quotient)


def _add(x: Any, y: Any, *, alpha: Number = 1) -> Symbol:
    return _symbolic_op("add", x, y if alpha == 1 else _symbolic_op("mul", y, alpha))


def _sub(x: Any, y: Any, *, alpha: Number = 1) -> Symbol:
    return _symbolic_op("sub", x, y if alpha == 1 else _symbolic_op("mul", y, alpha))


def _softplus(x: Any) -> Symbol:
    return _symbolic_op(
        "add",
        _symbolic_op("maximum", x, 0),
        _symbolic_op("log1p", _symbolic_op("exp", _symbolic_op("neg", _symbolic_op("abs", x)))),
    )


def _invert(x: Symbol) -> Symbol:
    if x.expr.kind == "bool":
        return _symbolic_op("not", x)
    return _cast(Symbol(apply("sub", constant(-1), x.expr), x.captures), x.dtype)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        x = _symbolic_op("maximum", x, min)
    return x if max is None else _symbolic_op("minimum", x, max)


def _isin(x: Any, choices: Tensor, *, invert: bool = False, assume_unique: bool = False) -> Symbol:
    x = x.long() if x.wrapping_dtype else x
    matches = [_symbolic_op("eq", x, choice) for choice in choices.flatten().tolist()]
    is_in = reduce(partial(_symbolic_op, "or"), matches) if matches else _symbolic_op("ne", x, x)
    return _symbolic_op("not", is_in) if invert else is_in


def _full_like(number: Number) -> SymbolicFunction:
    return lambda x, *, dtype=None, **_: x.new_full((), number, dtype=dtype)


TORCH_FUNCTIONS: dict[str, SymbolicFunction] = {
    "add": _add,
    "sub": _sub,
    "mul": _symbolic("mul"),
    "div": _divide,
    "floordiv": _symbolic("floordiv"),
    "mod": _symbolic("mod"),
    "pow": _symbolic("pow"),
    "radd": _symbolic("add", reflected=True),
    "rmul": _symbolic("mul", reflected=True),
    "rsub": _symbolic("sub", reflected=True),
    "rdiv": _symbolic("div", reflected=True),
    "rfloordiv": _symbolic("floordiv", reflected=True),
    "rmod": _symbolic("mod", reflected=True),
    "rpow": _symbolic("pow", reflected=True),
    "rlshift": _symbolic("shift_left", reflected=True),
    "rrshift": _symbolic("shift_right", reflected=True),
    "and": _bitwise_or_logical("and", "bitand"),
    "or": _bitwise_or_logical("or", "bitor"),
    "xor": _bitwise_or_logical("xor", "bitxor"),
    "lshift": _symbolic("shift_left"),
    "rshift": _symbolic("shift_right"),
    "invert": _invert,
    "where": lambda condition, x, y: _symbolic_op("where", condition, x, y),
    "masked_fill": lambda x, condition, number: _symbolic_op("where", condition, number, x),
    "clamp": _clamp,
    "isin": _isin,
    "zeros_like": _full_like(0),
    "ones_like": _full_like(1),
    "full_like": lambda x, number, *, dtype=None, **_: x.new_full((), number, dtype=dtype),
    "square": lambda x: _symbolic_op("mul", x, x),
    "relu": lambda x, inplace=False: _symbolic_op("maximum", x, 0),
    "rsqrt": lambda x: _symbolic_op("div", 1.0, _symbolic_op("sqrt", x)),
    "reciprocal": lambda x: _symbolic_op("div", 1.0, x),
    "softplus": _softplus,
    "logical_and": _symbolic("and"),
    "logical_or": _symbolic("or"),
    "logical_xor": _symbolic("xor"),
    "logical_not": _symbolic("not"),
}
for _op in (*COMPARISONS, *ELEMENTARY_FUNCTIONS, *ROUNDING, "neg", "abs", "sign", "minimum", "maximum"):
    TORCH_FUNCTIONS[_op] = _symbolic(_op)

_ALIASES = {
    "add": "iadd",
    "sub": "isub subtract",
    "mul": "imul multiply",
    "div": "truediv itruediv divide true_divide",
    "rdiv": "rtruediv",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "neg": "negative",
    "abs": "absolute",
    "clamp": "clip",
    "and": "bitwise_and rand iand",
    "or": "bitwise_or ror ior",
    "xor": "bitwise_xor rxor ixor",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "ne": "not_equal",
    "minimum": "min",
    "maximum": "max",
    "trunc": "fix",
    "sigmoid": "special_expit expit",
    "exp2": "special_exp2",
}
for _name, _aliases in _ALIASES.items():
    TORCH_FUNCTIONS.update(dict.fromkeys(_aliases.split(), TORCH_FUNCTIONS[_name]))

_PYTHON_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rand", "ror", "rxor", "rlshift", "rrshift"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "invert", "round", "floor", "ceil", "trunc"),
)


def _make_method(name: str, operation: SymbolicFunction) -> SymbolicFunction:
    def method(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        return operation(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in _PYTHON_OPERATORS:
    setattr(Symbol, f"__{_name}__", _make_method(_name, TORCH_FUNCTIONS[_name]))
for _name, _operation in TORCH_FUNCTIONS.items():
    if not hasattr(Symbol, _name):
        setattr(Symbol, _name, _make_method(_name, _operation))
Symbol.where = lambda self, condition, other: _symbolic_op("where", condition, self, other)  # type: ignore[attr-defined]  # argument order of Tensor.where
