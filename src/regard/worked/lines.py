"""Reading a term: as a line of torch, over index tensors i, j and p; and numbers as torch can read them again."""

from collections.abc import Sequence

from torch import Tensor

from regard.errors import SpecError
from regard.spec.term import ARITHMETIC, WRAPS, Term, slot_of, tree_sizes, walk

_OPERATIONS = "add sub mul div floordiv mod pow eq ne lt le gt ge and or xor bitand bitor bitxor shift_left shift_right"
_SIGNS = dict(zip(_OPERATIONS.split(), "+ - * / // % ** == != < <= > >= & | ^ & | ^ << >>".split(), strict=True))
_CASTS = {"to_int": ".long()", "to_float": ".float()", "exact": ".double()"}
_CASTS |= {op: f".to(torch.{op.removeprefix('to_')}).long()" for op in WRAPS}
MAX_WRITTEN = 1000


def line(term: Term, names: Sequence[str], score: str = "s") -> str:
    """An expression in torch that gives a term's value, with captured tensors by name.

    >>> from regard import mask
    >>> line((mask.causal() & mask.window(3)).term, ())
    '(j <= p) & (((p - 3) < j) & (j < (p + 3)))'
    """
    if not is_short(term, MAX_WRITTEN):
        raise SpecError(f"a formula that is written as code must have at most {MAX_WRITTEN} operations; got more.")
    written: dict[Term, str] = {}
    for node in walk(term):
        written[node] = _written(node, [written[a] for a in node.args], names, score)
    return written[term]


def _written(node: Term, args: list[str], names: Sequence[str], score: str) -> str:
    if node.op == "constant":
        return repr(node.value)
    if node.op == "variable":
        return score if node.value == "s" else str(node.value)
    if node.op == "lookup":
        name = names[slot_of(node)]
        return f"{name}[{', '.join(args)}]" if args else name
    if node.op in ARITHMETIC:  # conditions count as 0 and 1
        args = [f"{_bracket(a, x)}.long()" if x.kind == "bool" else a for a, x in zip(args, node.args, strict=True)]
    if node.op in _SIGNS:
        left, right = (_bracket(a, x) for a, x in zip(args, node.args, strict=True))
        return f"{left} {_SIGNS[node.op]} {right}"
    if node.op == "not":
        return f"~{_bracket(args[0], node.args[0])}"
    if node.op == "neg":
        return f"-{_bracket(args[0], node.args[0])}"
    if node.op in _CASTS:
        return f"torch.as_tensor({args[0]}){_CASTS[node.op]}"
    if node.op in ("minimum", "maximum"):
        return f"torch.{node.op}(torch.as_tensor({args[0]}), torch.as_tensor({args[1]}))"
    return f"torch.{node.op}({', '.join(args)})"


def _bracket(written: str, node: Term) -> str:
    plain = node.op in ("variable", "lookup") or (node.op == "constant" and not written.startswith("-"))
    return written if plain or node.op not in {*_SIGNS, "neg", "not", "constant"} else f"({written})"


def numbers(values: Tensor) -> str:
    """A tensor as torch can read it again, every digit of it.

    >>> import torch
    >>> numbers(torch.tensor([[0.1, float("-inf")]], dtype=torch.float64))
    'torch.tensor([[0.1, -inf]], dtype=torch.float64)'
    """
    kind = ", dtype=torch.float64" if values.is_floating_point() else ""
    exact = values.detach().double() if values.is_floating_point() else values
    return f"torch.tensor({exact.tolist()!r}{kind})"


def is_short(term: Term, most: int = 300) -> bool:
    """Whether a term written out has at most so many operations; one that repeats its parts may have very many."""
    return tree_sizes(term)[term] <= most
