"""Reading a term: which parts of it depend on the query, the key, both, or only on how far apart they are."""

from regard.spec.term import COMPARISONS, Term, apply, constant

QUERY, KEY = frozenset("ip"), frozenset("j")


def in_tile(term: Term) -> bool:
    """Whether a term is another number for each pair."""
    return "s" in term.depends or bool(term.depends & QUERY and term.depends & KEY)


def of_difference(term: Term) -> bool:
    """Whether a term depends on the positions of the query and the key only by their difference."""
    if not term.depends & (QUERY | KEY):
        return True
    linear = _linear(term)
    if linear is not None:
        return linear[0] == -linear[1]
    if term.op in COMPARISONS:
        sides = [_linear(a) for a in term.args]
        if sides[0] is not None and sides[1] is not None:
            return sides[0][0] - sides[1][0] == sides[1][1] - sides[0][1]
    return bool(term.args) and all(of_difference(a) for a in term.args)


def _linear(term: Term) -> tuple[int, int] | None:
    """The factors of the query's and the key's position in a sum; None if it is no such sum."""
    if not term.depends & (QUERY | KEY):
        return (0, 0)
    if term.op == "variable":
        return (1, 0) if term.value in QUERY else (0, 1)
    if term.kind != "int" or term.op not in ("add", "sub", "neg"):
        return None
    parts = [_linear(a) for a in term.args]
    if any(p is None for p in parts):
        return None
    (a, b), *rest = [p for p in parts if p is not None]
    if term.op == "neg":
        return (-a, -b)
    sign = 1 if term.op == "add" else -1
    return (a + sign * rest[0][0], b + sign * rest[0][1])


def split(term: Term) -> tuple[Term, Term] | None:
    """A whole number as a sum of one for the query and one for the key; None if it is no such sum."""
    if not in_tile(term):
        return (constant(0), term) if term.depends & KEY else (term, constant(0))
    if term.kind != "int" or term.op not in ("add", "sub", "neg"):
        return None
    parts = [split(a) for a in term.args]
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    if term.op == "neg":
        return apply("neg", known[0][0]), apply("neg", known[0][1])
    return apply(term.op, known[0][0], known[1][0]), apply(term.op, known[0][1], known[1][1])
