"""Score modifiers against their formulas and the published numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regard
from regard import score
from regard.errors import ArgumentError
from regard.expr.closed_expr import ClosedExpr
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import variable
from regard.expr.printing import to_text
from regard.expr.score_modifier import alibi_slopes, as_score_modifier, compose, shaw_max_distance

CLOSE = dict(rtol=1e-12, atol=1e-12)


def apply_modifier(
    modifier: ClosedExpr, s: Tensor, query_offset: int | Tensor | None = None, queries: Tensor | None = None
) -> Tensor:
    """Apply a modifier to scores of shape (batch, heads, n_q, n_k)."""
    batch, heads, n_q, n_k = s.shape
    query_offset = n_k - n_q if query_offset is None else query_offset
    grid = IndexGrid(
        *(range(n) for n in s.shape), query_offset=query_offset, n_q=n_q, n_k=n_k, device=torch.device("cpu")
    )
    tensors = modifier.resolve_tensors((batch, heads, n_q, n_k), query_offset, queries)
    return Evaluator(tensors, grid, s, s.dtype).score_value(modifier.expr).expand(s.shape)


def zeros(batch: int = 1, heads: int = 1, n_q: int = 4, n_k: int = 4) -> Tensor:
    return torch.zeros(batch, heads, n_q, n_k, dtype=torch.float64)


def distance(n_q: int, n_k: int, query_offset: int | None = None) -> Tensor:
    """Return the distances j - p."""
    p = torch.arange(n_q).view(-1, 1) + (n_k - n_q if query_offset is None else query_offset)
    return torch.arange(n_k) - p


def test_alibi_slopes_are_the_published_ones() -> None:
    assert alibi_slopes(8).tolist() == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    twelve = alibi_slopes(12).tolist()
    assert twelve[:8] == alibi_slopes(8).tolist()
    assert twelve[8:] == pytest.approx([0.707107, 0.353553, 0.176777, 0.088388], abs=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 12, 16, 20, 31, 33])
def test_alibi_has_a_different_slope_for_each_head(heads: int) -> None:
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,) and len(set(slopes.tolist())) == heads
    power = 2 ** int(math.log2(heads))
    assert slopes[:power].tolist() == pytest.approx([2 ** (-8 * h / power) for h in range(1, power + 1)])
    assert slopes[power:].tolist() == pytest.approx(
        alibi_slopes(2 * power)[0::2][: heads - power].tolist() if heads > power else []
    )


@pytest.mark.parametrize("n_q, n_k, query_offset", [(5, 5, None), (2, 6, None), (6, 2, None), (3, 7, 1)])
def test_alibi_subtracts_slope_times_distance(n_q: int, n_k: int, query_offset: int | None) -> None:
    s = torch.randn(2, 12, n_q, n_k, dtype=torch.float64)
    expected = s - alibi_slopes(12).double().view(-1, 1, 1) * distance(n_q, n_k, query_offset).abs()
    torch.testing.assert_close(apply_modifier(score.alibi(), s, query_offset), expected, **CLOSE)


def test_alibi_accepts_custom_slopes() -> None:
    slopes = torch.tensor([1.0, 0.1], dtype=torch.float64, requires_grad=True)
    modifier = score.alibi(slopes)
    actual = apply_modifier(modifier, zeros(heads=2))
    torch.testing.assert_close(actual, -slopes.view(1, 2, 1, 1) * distance(4, 4).abs(), **CLOSE)
    assert modifier.tensors == (slopes,)
    assert apply_modifier(score.alibi([1.0]), zeros())[0, 0, 3, 0] == -3  # type: ignore[arg-type]


@pytest.mark.parametrize("c", [5.0, 50.0, torch.tensor(7.0)])
def test_softcap_bounds_the_scores(c: float | Tensor) -> None:
    s = torch.linspace(-200, 200, 16, dtype=torch.float64).view(1, 1, 4, 4)
    actual = apply_modifier(score.softcap(c), s)
    torch.testing.assert_close(actual, c * torch.tanh(s / c), rtol=1e-7, atol=1e-7)
    assert actual.abs().max() <= float(c)


def test_softcap_may_have_one_cap_per_head() -> None:
    s, caps = torch.randn(1, 2, 4, 4, dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64)
    expected = caps[:, None, None] * torch.tanh(s / caps[:, None, None])
    torch.testing.assert_close(apply_modifier(score.softcap(caps), s), expected, **CLOSE)
    x = torch.randn(1, 2, 4, 8)
    with pytest.raises(ArgumentError, match=r"cap .* 2 heads; got 3"):
        regard.attention(x, x, x, score=score.softcap(torch.ones(3)))


def test_a_bias_may_be_a_numpy_array() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    values = torch.randn(4, 4)
    torch.testing.assert_close(
        regard.attention(q, k, v, score=values.numpy()), regard.attention(q, k, v, score=values), **CLOSE
    )


def test_very_high_softcap_is_the_identity() -> None:
    s = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(apply_modifier(score.softcap(1e6), s), s, rtol=1e-10, atol=1e-10)


def test_softcap_has_the_derivative_of_tanh() -> None:
    s = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    (actual,) = torch.autograd.grad(apply_modifier(score.softcap(2.0), s).sum(), s)
    torch.testing.assert_close(actual, 1 - torch.tanh(s / 2) ** 2, **CLOSE)


SHAPES = [(), (4,), (3, 4), (1, 4), (3, 1), (2, 3, 4), (5, 2, 3, 4), (5, 1, 1, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_of_any_broadcastable_shape_is_added(shape: tuple[int, ...]) -> None:
    s, values = torch.randn(5, 2, 3, 4, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    assert torch.equal(apply_modifier(score.bias(values), s), s + values)
    assert torch.equal(apply_modifier(as_score_modifier(values), s), s + values)
    assert torch.equal(apply_modifier(score.bias(values.numpy()), s), s + values)


def bucket(d: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """Return T5's bucket of one distance j - p."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if d > 0 else 0
        d = abs(d)
    else:
        d = -min(d, 0)
    exact = buckets // 2
    if d < exact:
        return first + d
    far = math.log(d / exact) / math.log(max_distance / exact) * (buckets - exact)
    return first + min(exact + int(far + 1e-6), buckets - 1)  # integer steps are exact in the published tables


def buckets_of(distances: list[int], **options: object) -> dict[int, int]:
    """Return the bucket of each distance, from a table whose entries are its row numbers."""
    table = torch.arange(32.0, dtype=torch.float64).view(32, 1)
    n = 301
    actual = apply_modifier(score.t5_bias(table, **options), zeros(n_q=1, n_k=2 * n + 1), query_offset=n)[0, 0, 0]  # type: ignore[arg-type]
    return {d: int(actual[n + d]) for d in distances}


def test_t5_buckets_are_the_published_ones() -> None:
    both = {-128: 15, -64: 14, -16: 10, -8: 8, -1: 1, 0: 0, 1: 17, 8: 24, 16: 26, 64: 30, 128: 31}
    assert buckets_of(list(both)) == both
    back = {5: 0, -15: 15, -16: 16, -20: 17, -32: 21, -64: 26, -127: 31}
    assert buckets_of(list(back), bidirectional=False) == back


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("max_distance", [128, 64, 200])
def test_every_distance_has_the_bucket_of_t5(bidirectional: bool, max_distance: int) -> None:
    distances = list(range(-300, 301))
    actual = buckets_of(distances, bidirectional=bidirectional, max_distance=max_distance)
    assert actual == {d: bucket(d, 32, bidirectional, max_distance) for d in distances}


def test_t5_bias_is_indexed_by_bucket_and_head() -> None:
    table = torch.randn(32, 3, dtype=torch.float64)
    s = torch.randn(2, 3, 5, 9, dtype=torch.float64)
    actual = apply_modifier(score.t5_bias(table), s)
    indices = torch.tensor([[bucket(int(d), 32, True, 128) for d in row] for row in distance(5, 9)])
    torch.testing.assert_close(actual, s + table[indices].permute(2, 0, 1), **CLOSE)


def test_shaw_keys_add_the_product_of_query_and_table() -> None:
    q = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    table = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    s = torch.randn(2, 3, 5, 9, dtype=torch.float64)
    rows = table[distance(5, 9).clamp(-3, 3) + 3]  # (n_q, n_k, width)
    products = torch.einsum("bhid,ijd->bhij", q, rows)
    torch.testing.assert_close(apply_modifier(score.shaw_keys(table), s, queries=q), s + products / 2, **CLOSE)
    actual = apply_modifier(score.shaw_keys(table, scale=0.3), s, queries=q)
    torch.testing.assert_close(actual, s + products * 0.3, **CLOSE)
    gradients = torch.autograd.grad(actual.sin().sum(), (q, table))
    expected = torch.autograd.grad((s + products * 0.3).sin().sum(), (q, table))
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_shaw_keys_with_max_distance_zero_shift_rows_by_a_constant() -> None:
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    actual = apply_modifier(score.shaw_keys(torch.randn(1, 4, dtype=torch.float64)), zeros(n_q=3, n_k=5), queries=q)
    torch.testing.assert_close(actual, actual[..., :1].expand_as(actual), **CLOSE)
    k = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    score_fn = score.scaled_dot().then(score.shaw_keys(torch.randn(1, 4, dtype=torch.float64)))
    torch.testing.assert_close(regard.attention(q, k, k, score=score_fn), regard.attention(q, k, k), **CLOSE)


def test_shaw_keys_equal_adding_the_table_to_the_keys() -> None:
    q, k = torch.randn(1, 2, 4, 6, dtype=torch.float64), torch.randn(1, 2, 4, 6, dtype=torch.float64)
    table = torch.randn(5, 6, dtype=torch.float64)
    actual = regard.attention_with_weights(q, k, k, score=score.scaled_dot().then(score.shaw_keys(table))).lse
    shifted_keys = k.unsqueeze(2) + table[distance(4, 4).clamp(-2, 2) + 2]
    expected = torch.einsum("bhid,bhijd->bhij", q, shifted_keys) / math.sqrt(6)
    torch.testing.assert_close(actual, expected.logsumexp(-1), **CLOSE)


def test_custom_modifier_gets_the_raw_query_index() -> None:
    actual = apply_modifier(
        score.modifier(lambda s, b, h, i, j: s + 1000 * b + 100 * h + 10 * i + j), zeros(2, 2, 2, 3)
    )
    assert actual[1, 1].tolist() == [[1100, 1101, 1102], [1110, 1111, 1112]]


def test_integer_modifier_becomes_float() -> None:
    modifier = score.modifier(lambda s, b, h, i, j: i - j)
    assert modifier.expr.kind == "float"
    assert apply_modifier(modifier, zeros(n_q=2, n_k=2))[0, 0].tolist() == [[0, -1], [1, 0]]


def test_compose_applies_the_second_modifier_to_the_first() -> None:
    first, second = score.softcap(2.0), score.alibi(torch.tensor([0.5], dtype=torch.float64))
    s = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(
        apply_modifier(compose(first, second), s), apply_modifier(second, apply_modifier(first, s)), **CLOSE
    )
    torch.testing.assert_close(
        apply_modifier(compose(second, first), s), apply_modifier(first, apply_modifier(second, s)), **CLOSE
    )
    assert not torch.allclose(apply_modifier(compose(first, second), s), apply_modifier(compose(second, first), s))


def test_constant_modifier_can_be_followed_by_a_comparison() -> None:
    forget = score.modifier(lambda s, b, h, i, j: 1.5)
    compare = score.modifier(lambda s, b, h, i, j: torch.where(s > j, s, s - 1))
    actual = apply_modifier(compose(forget, compare), zeros(n_q=1, n_k=4))
    assert actual.flatten().tolist() == [1.5, 1.5, 0.5, 0.5]


def test_composed_modifiers_share_equal_tensors_only() -> None:
    one, other = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    both = compose(compose(score.bias(one), score.bias(other)), score.bias(one))
    assert len(both.tensors) == 2 and both.tensor_names == ("bias", "bias2")
    torch.testing.assert_close(apply_modifier(both, zeros()), (2 * one + other).view(1, 1, 4, 4), **CLOSE)


def test_as_score_modifier_returns_a_modifier_unchanged() -> None:
    modifier = score.softcap(3.0)
    assert as_score_modifier(modifier) is modifier
    assert as_score_modifier(lambda s, b, h, i, j: s).expr is variable("s")


def test_modifiers_are_printed_as_formulas() -> None:
    assert to_text(score.alibi().expr, score.alibi().tensor_names) == "s - slopes[h] * |p - j|"
    assert to_text(score.softcap(20.0).expr) == "20.0 * tanh(s / 20.0)"
    values = score.bias(torch.zeros(2, 3, 3))
    assert to_text(values.expr, values.tensor_names) == "s + bias[h, i, j]"


INVALID: dict[str, tuple[Callable[[], object], str]] = {
    "softcap": (lambda: score.softcap(0.0), r"cap must be greater than 0; got 0\.0\."),
    "negative softcap": (lambda: score.softcap(-3), r"cap must be greater than 0; got -3\."),
    "integer bias": (
        lambda: score.bias(torch.ones(2, dtype=torch.int64)),
        r"a bias tensor must hold floats; got torch\.int64\. For a boolean mask use mask=\.",
    ),
    "boolean bias": (lambda: score.bias(torch.ones(2, dtype=torch.bool)), r"must hold floats; got torch\.bool"),
    "bias of five dimensions": (
        lambda: score.bias(torch.ones(1, 1, 1, 2, 2)),
        r"a bias tensor must have at most 4 dimensions; got shape \(1, 1, 1, 2, 2\)\.",
    ),
    "bias of another shape": (
        lambda: apply_modifier(score.bias(torch.ones(3, 4)), zeros(2, 2, 3, 5)),
        r"a bias tensor must broadcast to \(batch, heads, n_q, n_k\) = \(2, 2, 3, 5\); got shape \(3, 4\)\.",
    ),
    "slopes": (
        lambda: apply_modifier(score.alibi(torch.ones(3)), zeros(heads=2)),
        r"slopes must have one entry for each of 2 heads; got 3 \(shape \(3,\)\)\.",
    ),
    "relative": (
        lambda: apply_modifier(score.t5_bias(torch.ones(32, 3)), zeros(heads=2)),
        r"table must have one entry for each of 2 heads; got 3 \(shape \(32, 3\)\)\.",
    ),
    "even table": (lambda: shaw_max_distance(torch.ones(4, 3)), r"\+ 1, head_dim\); got a tensor of shape \(4, 3\)"),
    "flat table": (lambda: score.shaw_keys(torch.ones(3)), r"\+ 1, head_dim\); got a tensor of shape \(3,\)"),
    "table width": (
        lambda: apply_modifier(score.shaw_keys(torch.ones(3, 5)), zeros(), queries=torch.ones(1, 1, 4, 6)),
        r"table of shaw_keys must have the head dimension of q; got 5 and 6\.",
    ),
    "no modifier": (
        lambda: as_score_modifier(None),
        r"a score modifier must be a function \(s, b, h, i, j\), .*; got NoneType\.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_invalid_modifier_raises_error_with_its_values(name: str) -> None:
    make, message = INVALID[name]
    with pytest.raises(ArgumentError, match=message):
        make()


def test_shaw_max_distance_is_half_of_the_table() -> None:
    assert [shaw_max_distance(torch.ones(n, 2)) for n in (1, 3, 9)] == [0, 1, 4]
