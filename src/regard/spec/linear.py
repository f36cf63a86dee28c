"""Reading a term: which parts of it depend on the query, the key, both, or only on how far apart they are."""

from functools import lru_cache

from regard.spec.term import COMPARISONS, Term, apply, constant, postorder

QUERY, KEY = frozenset("ip"), frozenset("j")

Factors = tuple[int, int]
Parts = tuple[Term, Term]


def in_tile(term: Term) -> bool:
    """Whether a term is another number for each pair."""
    return "s" in term.depends or bool(term.depends & QUERY and term.depends & KEY)


def steps_in_tile(term: Term, most: int) -> list[Term]:
    """Distinct parts that are another number for each pair, up to so many."""
    steps: list[Term] = []
    for node in postorder((term,), lambda n: [a for a in n.args if in_tile(a)] if in_tile(n) else []):
        if in_tile(node):
            steps.append(node)
        if len(steps) == most:
            break
    return steps


class Affine:
    """Readings of many terms that share parts: each part is read once."""

    def __init__(self) -> None:
        self._factors: dict[Term, Factors | None] = {}
        self._of_difference: dict[Term, bool] = {}
        self._parts: dict[Term, Parts | None] = {}

    def of_difference(self, term: Term) -> bool:
        """Whether a term depends on the positions of the query and the key only by their difference."""
        known = self._of_difference
        for node in postorder((term,), lambda n: () if n in known else n.args):
            if node not in known:
                known[node] = self._is_of_difference(node)
        return known[term]

    def _is_of_difference(self, node: Term) -> bool:
        if not node.depends & (QUERY | KEY):
            return True
        factors = self.factors(node)
        if factors is not None:
            return factors[0] == -factors[1]
        if node.op in COMPARISONS:
            left, right = (self.factors(a) for a in node.args)
            if left is not None and right is not None:
                return left[0] - right[0] == right[1] - left[1]
        return bool(node.args) and all(self._of_difference[a] for a in node.args)

    def factors(self, term: Term) -> Factors | None:
        """The factors of the query's and the key's position in a sum; None if it is no such sum."""
        known = self._factors
        for node in postorder((term,), lambda n: () if n in known else _summands(n)):
            if node not in known:
                known[node] = self._added(node)
        return known[term]

    def _added(self, node: Term) -> Factors | None:
        if not node.depends & (QUERY | KEY):
            return (0, 0)
        if node.op == "variable":
            return (1, 0) if node.value in QUERY else (0, 1)
        parts = [self._factors[a] for a in _summands(node)]
        known = [p for p in parts if p is not None]
        if not parts or len(known) < len(parts):
            return None
        if node.op == "neg":
            return -known[0][0], -known[0][1]
        sign = 1 if node.op == "add" else -1
        return known[0][0] + sign * known[1][0], known[0][1] + sign * known[1][1]

    def split(self, term: Term) -> Parts | None:
        """A whole number as a sum of one for the query and one for the key; None if it is no such sum."""
        known = self._parts
        for node in postorder((term,), lambda n: () if n in known or not in_tile(n) else _summands(n)):
            if node not in known:
                known[node] = self._split(node)
        return known[term]

    def _split(self, node: Term) -> Parts | None:
        if not in_tile(node):
            return (constant(0), node) if node.depends & KEY else (node, constant(0))
        parts = [self._parts[a] for a in _summands(node)]
        known = [p for p in parts if p is not None]
        if not parts or len(known) < len(parts):
            return None
        if node.op == "neg":
            return apply("neg", known[0][0]), apply("neg", known[0][1])
        return apply(node.op, known[0][0], known[1][0]), apply(node.op, known[0][1], known[1][1])


def _summands(node: Term) -> tuple[Term, ...]:
    return node.args if node.kind == "int" and node.op in ("add", "sub", "neg") else ()


@lru_cache(maxsize=512)
def of_difference(term: Term) -> bool:
    """Whether a term depends on the positions of the query and the key only by their difference."""
    return Affine().of_difference(term)
