"""Reading a Python function as a term, by calling it once with stand-ins for the positions.

The function is written as for FlexAttention: `mask(b, h, i, j)` or `score(s, b, h, i, j)`. What it does to its
arguments is written down; tensors it looks things up in are captured and travel beside the term by number.
"""

import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.eager import runs_eagerly
from regard.errors import TraceError
from regard.spec.narrow import NARROW, narrow_dtype, wrapped
from regard.spec.term import (
    COMPARISONS,
    ROUNDING,
    SMOOTH,
    Kind,
    Number,
    Term,
    apply,
    constant,
    lookup,
    truth,
    variable,
)

_TORCH = os.path.dirname(torch.__file__) + os.sep
MASK_VARIABLES = ("b", "h", "i", "j")
SCORE_VARIABLES = ("s", "b", "h", "i", "j")


class Traced(NamedTuple):
    """A term and the tensors it looks things up in: look-up number n reads `tensors[n]`, called `names[n]`."""

    term: Term
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]


@runs_eagerly
def trace(function: Callable[..., Any], names: Sequence[str]) -> Traced:
    """The formula a function computes, given the names of its arguments.

    The function is called twice: one that draws random numbers or reads the clock differs from itself.
    """
    dice = _dice()
    first, second = trace_once(function, names), trace_once(function, names)
    same = first.term is second.term and all(map(_same_tensor, first.tensors, second.tensors))
    if not same or dice != _dice():
        raise TraceError(
            f"a rule must be the same formula each time it is called; {_name(function)}, defined at "
            f"{_place(function)}, gave two different ones. Draw random numbers or read changing state outside, and "
            "capture the result as a tensor."
        )
    return first


def _dice() -> tuple[object, ...]:
    """The state of the random generators: a rule that draws from one changes it, even if it draws the same twice."""
    kind, state, *rest = np.random.get_state(legacy=True)
    own: list[object] = [random.getstate(), kind, np.asarray(state).tobytes(), *rest]
    with suppress(RuntimeError):  # inside a torch.func transform the state cannot be read
        own.append(torch.get_rng_state().numpy().tobytes())
    return tuple(own)


@runs_eagerly
def trace_once(function: Callable[..., Any], names: Sequence[str]) -> Traced:
    """The same for a function that is known to be the same formula each time."""
    captures: list[Tensor] = []
    try:
        result = lift(function(*(Symbol(variable(name), captures) for name in names)), captures)
    except Exception as error:
        raise TraceError(_explain(function, names, error)) from None
    return Traced(result, tuple(captures), tuple(_tensor_names(function, captures)))


def _tensor_names(function: Callable[..., Any], captures: list[Tensor]) -> Iterator[str]:
    """What the function itself calls the tensors it closes over, where that can be seen."""
    code = getattr(function, "__code__", None)
    known: dict[int, str] = {}
    if code is not None:
        named = {name: function.__globals__.get(name) for name in code.co_names}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a variable that has no value yet
                named[name] = cell.cell_contents
        known = {id(value): name for name, value in named.items()}
    for number, tensor in enumerate(captures):
        base = tensor if id(tensor) in known else tensor._base
        yield known.get(id(base), f"t{number}")


def _place(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def _explain(function: Callable[..., Any], names: Sequence[str], error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames[1:] if f.filename != __file__ and not f.filename.startswith(_TORCH)]
    where = (
        f"\n    {theirs[-1].filename}:{theirs[-1].lineno}: {theirs[-1].line}" if theirs else f"\n    {_place(function)}"
    )
    what = str(error) if isinstance(error, TraceError) else f"{type(error).__name__}: {error}"
    return (
        f"{_name(function)}({', '.join(names)}) could not be read as a formula: {what}{where}\n"
        "A rule may use arithmetic, comparisons, & | ~, torch.where, minimum, maximum, abs, tanh, exp, log, and "
        "tensors indexed by positions. For anything else, score.custom(fn) takes a function of whole tiles."
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _same_tensor(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    if one._base is not None and one._base is other._base:
        same = one.shape == other.shape and one.stride() == other.stride()
        return same and one.storage_offset() == other.storage_offset()
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    try:
        return bool(((one == other) | ((one != one) & (other != other))).all())  # a NaN is the same NaN
    except RuntimeError:  # inside vmap values cannot be looked at
        return True


def lift(value: object, captures: list[Tensor]) -> Term:
    """A number, a captured scalar tensor or a stand-in, as a term."""
    if isinstance(value, Symbol):
        return value.term
    if isinstance(value, (bool, int, float)):
        return constant(value)
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return _lookup(value.reshape(()), [], captures)
        raise TraceError(f"a tensor of shape {tuple(value.shape)} is used whole; index it with b, h, i or j")
    if isinstance(value, View):
        raise TraceError(
            f"a tensor of shape {tuple(value.tensor.shape)} has {len(value.indices)} indices; index it fully"
        )
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy scalar
        return constant(value.item())
    raise TraceError(f"a {type(value).__name__} cannot be part of a rule")


def _lookup(tensor: Tensor, indices: list[Term], captures: list[Tensor]) -> Term:
    if tensor.is_complex():
        raise TraceError("a captured tensor must hold real numbers; got complex ones")
    if tensor.dtype == torch.uint64:
        raise TraceError("a captured tensor of torch.uint64 may hold numbers beyond 63 bits. Convert it with .long()")
    kind: Kind = "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"
    slot = next((n for n, known in enumerate(captures) if known is tensor), len(captures))
    if slot == len(captures):
        captures.append(tensor)
    return lookup(slot, tuple(indices), kind)


@dataclass(frozen=True, eq=False)
class View:
    """A captured tensor of which the leading dimensions are indexed already, as in `doc[b][i]`."""

    tensor: Tensor
    indices: list[Term]
    captures: list[Tensor]

    def __getitem__(self, index: object) -> "View | Symbol":
        return _index(self.tensor, self.indices, index, self.captures)

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape[len(self.indices) :]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TraceError(f"torch.{function.__name__} of a tensor that is not fully indexed")


def _index(tensor: Tensor, have: list[Term], index: object, captures: list[Tensor]) -> "View | Symbol":
    entries = list(index) if isinstance(index, (tuple, list)) else [index]
    if any(e is Ellipsis for e in entries):
        at = next(n for n, e in enumerate(entries) if e is Ellipsis)
        missing = tensor.dim() - len(have) - len(entries) + 1
        entries[at : at + 1] = [slice(None)] * missing
    if any(e is None or (isinstance(e, slice) and e != slice(None)) for e in entries):
        raise TraceError("an index in a rule must be a position, a number or a full slice")
    if len(have) + len(entries) > tensor.dim():
        raise TraceError(f"a tensor of {tensor.dim()} dimensions got {len(have) + len(entries)} indices")
    places: list[object] = [*have, *entries]
    if any(isinstance(e, slice) for e in places):  # table[:, i]: the sliced dimensions wait at the end
        taken = [n for n, e in enumerate(places) if not isinstance(e, slice)]
        waiting = [n for n in range(tensor.dim()) if n not in taken]
        tensor = tensor.permute(taken + waiting)
        places = [places[n] for n in taken]
    terms = [e if isinstance(e, Term) else lift(e, captures) for e in places]
    if any(t.kind != "int" for t in terms):
        raise TraceError("an index must be a whole number; use .long() or //")
    if len(terms) < tensor.dim():
        return View(tensor, terms, captures)
    return Symbol(_lookup(tensor, terms, captures), captures, tensor.dtype)


_DTYPES: dict[Kind, torch.dtype] = {"bool": torch.bool, "int": torch.int64, "float": torch.float32}
_NO_VALUE = "a position has no value while the rule is being read"


class Symbol:
    """The stand-in a rule is called with: a scalar that writes down what is done to it.

    `narrow` is its dtype where that has whole numbers of fewer than 64 bits, which wrap around.
    """

    __slots__ = ("captures", "narrow", "term")
    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy numbers leave the arithmetic to us

    def __init__(self, term: Term, captures: list[Tensor], dtype: torch.dtype | None = None) -> None:
        self.term = term
        self.captures = captures
        self.narrow = dtype if dtype in NARROW and term.kind == "int" else None

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.strip("_")
        if name == "getitem" and isinstance(args[0], Tensor):
            captures = next(a.captures for a in _flatten(args[1]) if isinstance(a, Symbol))
            return _index(args[0], [], args[1], captures)
        if name == "embedding":  # nn.Embedding called with a position
            return _index(args[1], [], args[0], args[0].captures)
        operation = OPERATIONS.get(name)
        if operation is None:
            raise TraceError(f"torch.{function.__name__} is not among the operations a rule can use")
        return operation(*args, **(kwargs or {}))

    def __bool__(self) -> bool:
        raise TraceError(
            f"{_NO_VALUE}, so `if`, `and`, `or`, `not`, `in`, min(), max() and chained comparisons cannot decide; "
            "use torch.where, &, |, ~, torch.minimum, torch.maximum"
        )

    def _refuse(self, *_: object) -> Any:
        raise TraceError(f"{_NO_VALUE}; index a torch tensor with it, or compute with torch functions")

    __index__ = __int__ = __float__ = __len__ = __iter__ = item = tolist = numpy = __array__ = _refuse

    def __getitem__(self, index: object) -> "Symbol":
        if index is Ellipsis or index == ():
            return self
        raise TraceError("a position is a single number and cannot be indexed")

    # what torch code asks of a scalar tensor
    shape = torch.Size(())
    ndim = 0
    requires_grad = False
    is_cuda = False
    device = torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return self.narrow or _DTYPES[self.term.kind]

    def __pos__(self) -> "Symbol":
        return self

    def dim(self) -> int:
        return 0

    def size(self) -> torch.Size:
        return torch.Size(())

    def numel(self) -> int:
        return 1

    def to(self, *args: Any, dtype: Any = None, **_: Any) -> "Symbol":
        for wanted in (*args, dtype):
            if isinstance(wanted, (Tensor, Symbol)):
                wanted = wanted.dtype
            if isinstance(wanted, torch.dtype):
                return _cast(self, wanted)
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
        return _cast(Symbol(lift(value, self.captures), self.captures), dtype or self.dtype)

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
        return Symbol(truth(symbol.term), symbol.captures)
    if dtype.is_floating_point:
        return Symbol(apply("to_float", symbol.term), symbol.captures)
    term = apply("to_int", symbol.term)
    if dtype in NARROW and dtype != symbol.narrow:
        term = apply(NARROW[dtype], term)
    return Symbol(term, symbol.captures, dtype)


def _record(op: str, *args: Any) -> Symbol:
    captures = next(a.captures for a in args if isinstance(a, Symbol))
    term = apply(op, *(lift(a, captures) for a in args))
    dtype = narrow_dtype(op, args)
    return Symbol(term, captures) if dtype is None else Symbol(wrapped(op, term, dtype), captures, dtype)


Operation = Callable[..., Any]


def _operation(op: str, flipped: bool = False) -> Operation:
    if flipped:
        return lambda x, y: _record(op, y, x)
    return lambda *args: _record(op, *args)


def _bit_or_logic(logical: str, bitwise: str) -> Operation:
    def combine(x: Any, y: Any) -> Symbol:
        captures = x.captures if isinstance(x, Symbol) else y.captures
        both = (lift(x, captures), lift(y, captures))
        return _record(logical if all(t.kind == "bool" for t in both) else bitwise, x, y)

    return combine


def _divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Symbol:
    if rounding_mode == "floor":
        return _record("floordiv", x, y)
    quotient = _record("div", x, y)
    return _record("to_int", quotient) if rounding_mode == "trunc" else quotient


def _add(x: Any, y: Any, *, alpha: Number = 1) -> Symbol:
    return _record("add", x, y if alpha == 1 else _record("mul", y, alpha))


def _sub(x: Any, y: Any, *, alpha: Number = 1) -> Symbol:
    return _record("sub", x, y if alpha == 1 else _record("mul", y, alpha))


def _softplus(x: Any) -> Symbol:
    return _record("add", _record("maximum", x, 0), _record("log1p", _record("exp", _record("neg", _record("abs", x)))))


def _invert(x: Symbol) -> Symbol:
    if x.term.kind == "bool":
        return _record("not", x)
    return _cast(Symbol(apply("sub", constant(-1), x.term), x.captures), x.dtype)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        x = _record("maximum", x, min)
    return x if max is None else _record("minimum", x, max)


def _isin(x: Any, choices: Tensor, **_: Any) -> Symbol:
    x = x.long() if x.narrow else x
    result = _record("ne", x, x)
    for choice in choices.flatten().tolist():
        result = _record("or", result, _record("eq", x, choice))
    return result


def _like(number: Number) -> Operation:
    return lambda x, *, dtype=None, **_: x.new_full((), number, dtype=dtype)


OPERATIONS: dict[str, Operation] = {
    "add": _add,
    "sub": _sub,
    "mul": _operation("mul"),
    "div": _divide,
    "floordiv": _operation("floordiv"),
    "mod": _operation("mod"),
    "pow": _operation("pow"),
    "radd": _operation("add", flipped=True),
    "rmul": _operation("mul", flipped=True),
    "rsub": _operation("sub", flipped=True),
    "rdiv": _operation("div", flipped=True),
    "rfloordiv": _operation("floordiv", flipped=True),
    "rmod": _operation("mod", flipped=True),
    "rpow": _operation("pow", flipped=True),
    "rlshift": _operation("shift_left", flipped=True),
    "rrshift": _operation("shift_right", flipped=True),
    "and": _bit_or_logic("and", "bitand"),
    "or": _bit_or_logic("or", "bitor"),
    "xor": _bit_or_logic("xor", "bitxor"),
    "lshift": _operation("shift_left"),
    "rshift": _operation("shift_right"),
    "invert": _invert,
    "where": lambda condition, x, y: _record("where", condition, x, y),
    "masked_fill": lambda x, condition, number: _record("where", condition, number, x),
    "clamp": _clamp,
    "isin": _isin,
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "full_like": lambda x, number, *, dtype=None, **_: x.new_full((), number, dtype=dtype),
    "square": lambda x: _record("mul", x, x),
    "relu": lambda x, inplace=False: _record("maximum", x, 0),
    "rsqrt": lambda x: _record("div", 1.0, _record("sqrt", x)),
    "reciprocal": lambda x: _record("div", 1.0, x),
    "softplus": lambda x: _softplus(x),
    "logical_and": _operation("and"),
    "logical_or": _operation("or"),
    "logical_xor": _operation("xor"),
    "logical_not": _operation("not"),
}
for _op in (*COMPARISONS, *SMOOTH, *ROUNDING, "neg", "abs", "sign", "minimum", "maximum"):
    OPERATIONS[_op] = _operation(_op)

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
for _of, _others in _ALIASES.items():
    OPERATIONS.update(dict.fromkeys(_others.split(), OPERATIONS[_of]))

_PYTHON_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rand", "ror", "rxor", "rlshift", "rrshift"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "invert", "round", "floor", "ceil", "trunc"),
)


def _method(name: str, operation: Operation) -> Operation:
    def method(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        return operation(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name_ in _PYTHON_OPERATORS:
    setattr(Symbol, f"__{_name_}__", _method(_name_, OPERATIONS[_name_]))
for _name_, _operation_ in OPERATIONS.items():
    if not hasattr(Symbol, _name_):
        setattr(Symbol, _name_, _method(_name_, _operation_))
Symbol.where = lambda self, condition, other: _record("where", condition, self, other)  # type: ignore[attr-defined]  # argument order of Tensor.where
