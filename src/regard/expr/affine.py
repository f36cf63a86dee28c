"""Affine analysis: which subexpressions depend on the query, the key, both, or only on their difference."""

from regard.cache import memoize
from regard.expr.ir import COMPARISONS, Expr, apply, constant, postorder

QUERY_VARIABLES, KEY_VARIABLES = frozenset("ip"), frozenset("j")

Coefficients = tuple[int, int]
QueryKeySum = tuple[Expr, Expr]


def is_pairwise(expr: Expr) -> bool:
    """Return whether an expression depends on both the query and the key, or on the score."""
    return "s" in expr.free_variables or bool(
        expr.free_variables & QUERY_VARIABLES and expr.free_variables & KEY_VARIABLES
    )


def pairwise_nodes(expr: Expr, max_nodes: int) -> list[Expr]:
    """Return up to `max_nodes` distinct nodes that are pairwise."""
    nodes: list[Expr] = []
    for node in postorder((expr,), lambda n: [a for a in n.args if is_pairwise(a)] if is_pairwise(n) else []):
        if is_pairwise(node):
            nodes.append(node)
        if len(nodes) == max_nodes:
            break
    return nodes


class AffineAnalysis:
    """Analyzes expressions that share subexpressions; each node is analyzed once."""

    def __init__(self) -> None:
        self._coefficients: dict[Expr, Coefficients | None] = {}
        self._difference_only: dict[Expr, bool] = {}
        self._splits: dict[Expr, QueryKeySum | None] = {}

    def depends_on_difference_only(self, expr: Expr) -> bool:
        """Return whether an expression depends on the query and key positions only through their difference."""
        results = self._difference_only
        for node in postorder((expr,), lambda n: () if n in results else n.args):
            if node not in results:
                results[node] = self._node_depends_on_difference_only(node)
        return results[expr]

    def _node_depends_on_difference_only(self, node: Expr) -> bool:
        if not node.free_variables & (QUERY_VARIABLES | KEY_VARIABLES):
            return True
        coefficients = self.coefficients(node)
        if coefficients is not None:
            return coefficients[0] == -coefficients[1]
        if node.op in COMPARISONS:
            left, right = (self.coefficients(a) for a in node.args)
            if left is not None and right is not None:
                return left[0] - right[0] == right[1] - left[1]
        return bool(node.args) and all(self._difference_only[a] for a in node.args)

    def coefficients(self, expr: Expr) -> Coefficients | None:
        """Return the coefficients of the query and key positions; None if the expression is not affine in them."""
        results = self._coefficients
        for node in postorder((expr,), lambda n: () if n in results else _summands(n)):
            if node not in results:
                results[node] = self._node_coefficients(node)
        return results[expr]

    def _node_coefficients(self, node: Expr) -> Coefficients | None:
        if not node.free_variables & (QUERY_VARIABLES | KEY_VARIABLES):
            return (0, 0)
        if node.op == "variable":
            return (1, 0) if node.value in QUERY_VARIABLES else (0, 1)
        parts = [self._coefficients[a] for a in _summands(node)]
        affine = [p for p in parts if p is not None]
        if not parts or len(affine) < len(parts):
            return None
        if node.op == "neg":
            return -affine[0][0], -affine[0][1]
        sign = 1 if node.op == "add" else -1
        return affine[0][0] + sign * affine[1][0], affine[0][1] + sign * affine[1][1]

    def split_query_key(self, expr: Expr) -> QueryKeySum | None:
        """Return an integer expression as a sum of a query term and a key term; None if there is no such sum."""
        results = self._splits
        for node in postorder((expr,), lambda n: () if n in results or not is_pairwise(n) else _summands(n)):
            if node not in results:
                results[node] = self._split_node(node)
        return results[expr]

    def _split_node(self, node: Expr) -> QueryKeySum | None:
        if not is_pairwise(node):
            return (constant(0), node) if node.free_variables & KEY_VARIABLES else (node, constant(0))
        parts = [self._splits[a] for a in _summands(node)]
        sums = [p for p in parts if p is not None]
        if not parts or len(sums) < len(parts):
            return None
        if node.op == "neg":
            return apply("neg", sums[0][0]), apply("neg", sums[0][1])
        return apply(node.op, sums[0][0], sums[1][0]), apply(node.op, sums[0][1], sums[1][1])


def _summands(node: Expr) -> tuple[Expr, ...]:
    return node.args if node.kind == "int" and node.op in ("add", "sub", "neg") else ()


@memoize(512)
def depends_on_difference_only(expr: Expr) -> bool:
    """Return whether an expression depends on the query and key positions only through their difference."""
    return AffineAnalysis().depends_on_difference_only(expr)
