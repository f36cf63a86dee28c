"""Rules against their formulas and the published numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regard
from regard import score
from regard.errors import SpecError
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.formula import Formula
from regard.spec.rule import alibi_slopes, as_rule, composed, reach_of
from regard.spec.term import variable
from regard.spec.text import text

CLOSE = dict(rtol=1e-12, atol=1e-12)


def changed(rule: Formula, s: Tensor, start: int | Tensor | None = None, queries: Tensor | None = None) -> Tensor:
    """The scores (batch, heads, n_q, n_k) after a rule."""
    batch, heads, n_q, n_k = s.shape
    start = n_k - n_q if start is None else start
    where = Positions(*(range(n) for n in s.shape), start=start, n_q=n_q, n_k=n_k, device=torch.device("cpu"))
    tensors = rule.resolved((batch, heads, n_q, n_k), start, queries)
    return Evaluation(tensors, where, s, s.dtype).number(rule.term).expand(s.shape)


def zeros(batch: int = 1, heads: int = 1, n_q: int = 4, n_k: int = 4) -> Tensor:
    return torch.zeros(batch, heads, n_q, n_k, dtype=torch.float64)


def distance(n_q: int, n_k: int, start: int | None = None) -> Tensor:
    """j - p."""
    p = torch.arange(n_q).view(-1, 1) + (n_k - n_q if start is None else start)
    return torch.arange(n_k) - p


def test_the_slopes_of_alibi_are_the_published_ones() -> None:
    assert alibi_slopes(8).tolist() == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    twelve = alibi_slopes(12).tolist()
    assert twelve[:8] == alibi_slopes(8).tolist()
    assert twelve[8:] == pytest.approx([0.707107, 0.353553, 0.176777, 0.088388], abs=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 12, 16, 20, 31, 33])
def test_there_is_one_slope_a_head_and_all_differ(heads: int) -> None:
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,) and len(set(slopes.tolist())) == heads
    power = 2 ** int(math.log2(heads))
    assert slopes[:power].tolist() == pytest.approx([2 ** (-8 * h / power) for h in range(1, power + 1)])
    assert slopes[power:].tolist() == pytest.approx(
        alibi_slopes(2 * power)[0::2][: heads - power].tolist() if heads > power else []
    )


@pytest.mark.parametrize("n_q, n_k, start", [(5, 5, None), (2, 6, None), (6, 2, None), (3, 7, 1)])
def test_alibi_lowers_scores_with_the_distance(n_q: int, n_k: int, start: int | None) -> None:
    s = torch.randn(2, 12, n_q, n_k, dtype=torch.float64)
    expected = s - alibi_slopes(12).double().view(-1, 1, 1) * distance(n_q, n_k, start).abs()
    torch.testing.assert_close(changed(score.alibi(), s, start), expected, **CLOSE)


def test_alibi_takes_slopes_of_ones_own() -> None:
    slopes = torch.tensor([1.0, 0.1], dtype=torch.float64, requires_grad=True)
    rule = score.alibi(slopes)
    found = changed(rule, zeros(heads=2))
    torch.testing.assert_close(found, -slopes.view(1, 2, 1, 1) * distance(4, 4).abs(), **CLOSE)
    assert rule.tensors == (slopes,)
    assert changed(score.alibi([1.0]), zeros())[0, 0, 3, 0] == -3  # type: ignore[arg-type]


@pytest.mark.parametrize("c", [5.0, 50.0, torch.tensor(7.0)])
def test_a_softcap_bends_scores_below_the_cap(c: float | Tensor) -> None:
    s = torch.linspace(-200, 200, 16, dtype=torch.float64).view(1, 1, 4, 4)
    found = changed(score.softcap(c), s)
    torch.testing.assert_close(found, c * torch.tanh(s / c), rtol=1e-7, atol=1e-7)
    assert found.abs().max() <= float(c)


def test_a_very_high_softcap_changes_nothing() -> None:
    s = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(changed(score.softcap(1e6), s), s, rtol=1e-10, atol=1e-10)


def test_the_slope_of_a_softcap_is_one_less_the_square_of_tanh() -> None:
    s = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(changed(score.softcap(2.0), s).sum(), s)
    torch.testing.assert_close(found, 1 - torch.tanh(s / 2) ** 2, **CLOSE)


SHAPES = [(), (4,), (3, 4), (1, 4), (3, 1), (2, 3, 4), (5, 2, 3, 4), (5, 1, 1, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bias_of_any_shape_that_broadcasts_is_added(shape: tuple[int, ...]) -> None:
    s, values = torch.randn(5, 2, 3, 4, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    assert torch.equal(changed(score.bias(values), s), s + values)
    assert torch.equal(changed(as_rule(values), s), s + values)
    assert torch.equal(changed(score.bias(values.numpy()), s), s + values)


def bucket(d: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """T5's buckets, for one distance j - p."""
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
    return first + min(exact + int(far + 1e-6), buckets - 1)  # the whole steps are exact in the published tables


def buckets_of(distances: list[int], **options: object) -> dict[int, int]:
    """The bucket of each distance, read from a table that holds its own row numbers."""
    table = torch.arange(32.0, dtype=torch.float64).view(32, 1)
    n = 301
    found = changed(score.relative(table, **options), zeros(n_q=1, n_k=2 * n + 1), start=n)[0, 0, 0]  # type: ignore[arg-type]
    return {d: int(found[n + d]) for d in distances}


def test_the_buckets_of_t5_are_the_published_ones() -> None:
    both = {-128: 15, -64: 14, -16: 10, -8: 8, -1: 1, 0: 0, 1: 17, 8: 24, 16: 26, 64: 30, 128: 31}
    assert buckets_of(list(both)) == both
    back = {5: 0, -15: 15, -16: 16, -20: 17, -32: 21, -64: 26, -127: 31}
    assert buckets_of(list(back), bidirectional=False) == back


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("max_distance", [128, 64, 200])
def test_every_distance_has_t5s_bucket(bidirectional: bool, max_distance: int) -> None:
    distances = list(range(-300, 301))
    found = buckets_of(distances, bidirectional=bidirectional, max_distance=max_distance)
    assert found == {d: bucket(d, 32, bidirectional, max_distance) for d in distances}


def test_a_relative_bias_is_looked_up_by_bucket_and_head() -> None:
    table = torch.randn(32, 3, dtype=torch.float64)
    s = torch.randn(2, 3, 5, 9, dtype=torch.float64)
    found = changed(score.relative(table), s)
    which = torch.tensor([[bucket(int(d), 32, True, 128) for d in row] for row in distance(5, 9)])
    torch.testing.assert_close(found, s + table[which].permute(2, 0, 1), **CLOSE)


def test_shaws_relative_keys_add_the_product_of_the_query_with_the_table() -> None:
    q = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    table = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    s = torch.randn(2, 3, 5, 9, dtype=torch.float64)
    rows = table[distance(5, 9).clamp(-3, 3) + 3]  # (n_q, n_k, width)
    products = torch.einsum("bhid,ijd->bhij", q, rows)
    torch.testing.assert_close(changed(score.shaw_keys(table), s, queries=q), s + products / 2, **CLOSE)
    found = changed(score.shaw_keys(table, scale=0.3), s, queries=q)
    torch.testing.assert_close(found, s + products * 0.3, **CLOSE)
    gradients = torch.autograd.grad(found.sin().sum(), (q, table))
    expected = torch.autograd.grad((s + products * 0.3).sin().sum(), (q, table))
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_relative_keys_that_reach_nowhere_shift_a_row_by_a_constant() -> None:
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    found = changed(score.shaw_keys(torch.randn(1, 4, dtype=torch.float64)), zeros(n_q=3, n_k=5), queries=q)
    torch.testing.assert_close(found, found[..., :1].expand_as(found), **CLOSE)
    k = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    chosen = score.scaled_dot().then(score.shaw_keys(torch.randn(1, 4, dtype=torch.float64)))
    torch.testing.assert_close(regard.attention(q, k, k, score=chosen), regard.attention(q, k, k), **CLOSE)


def test_relative_keys_are_those_of_adding_the_table_to_the_keys() -> None:
    q, k = torch.randn(1, 2, 4, 6, dtype=torch.float64), torch.randn(1, 2, 4, 6, dtype=torch.float64)
    table = torch.randn(5, 6, dtype=torch.float64)
    found = regard.attend(q, k, k, score=score.scaled_dot().then(score.shaw_keys(table))).lse
    moved = k.unsqueeze(2) + table[distance(4, 4).clamp(-2, 2) + 2]
    expected = torch.einsum("bhid,bhijd->bhij", q, moved) / math.sqrt(6)
    torch.testing.assert_close(found, expected.logsumexp(-1), **CLOSE)


def test_a_rule_of_ones_own_gets_the_raw_number_of_the_query() -> None:
    found = changed(score.rule(lambda s, b, h, i, j: s + 1000 * b + 100 * h + 10 * i + j), zeros(2, 2, 2, 3))
    assert found[1, 1].tolist() == [[1100, 1101, 1102], [1110, 1111, 1112]]


def test_a_rule_that_gives_whole_numbers_becomes_a_float() -> None:
    found = score.rule(lambda s, b, h, i, j: i - j)
    assert found.term.kind == "float"
    assert changed(found, zeros(n_q=2, n_k=2))[0, 0].tolist() == [[0, -1], [1, 0]]


def test_one_rule_after_another_sees_what_the_first_made() -> None:
    first, second = score.softcap(2.0), score.alibi(torch.tensor([0.5], dtype=torch.float64))
    s = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(changed(composed(first, second), s), changed(second, changed(first, s)), **CLOSE)
    torch.testing.assert_close(changed(composed(second, first), s), changed(first, changed(second, s)), **CLOSE)
    assert not torch.allclose(changed(composed(first, second), s), changed(composed(second, first), s))


def test_a_rule_that_forgets_the_score_may_be_followed_by_one_that_compares_it() -> None:
    forget = score.rule(lambda s, b, h, i, j: 1.5)
    compare = score.rule(lambda s, b, h, i, j: torch.where(s > j, s, s - 1))
    found = changed(composed(forget, compare), zeros(n_q=1, n_k=4))
    assert found.flatten().tolist() == [1.5, 1.5, 0.5, 0.5]


def test_rules_joined_keep_their_tables_apart() -> None:
    one, other = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    both = composed(composed(score.bias(one), score.bias(other)), score.bias(one))
    assert len(both.tensors) == 2 and both.names == ("bias", "bias2")
    torch.testing.assert_close(changed(both, zeros()), (2 * one + other).view(1, 1, 4, 4), **CLOSE)


def test_a_rule_is_a_rule_already() -> None:
    rule = score.softcap(3.0)
    assert as_rule(rule) is rule
    assert as_rule(lambda s, b, h, i, j: s).term is variable("s")


def test_rules_are_written_as_formulas() -> None:
    assert text(score.alibi().term, score.alibi().names) == "s - slopes[h] * |p - j|"
    assert text(score.softcap(20.0).term) == "20.0 * tanh(s / 20.0)"
    values = score.bias(torch.zeros(2, 3, 3))
    assert text(values.term, values.names) == "s + bias[h, i, j]"


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "softcap": (lambda: score.softcap(0.0), r"softcap must be greater than 0; got 0\.0\."),
    "negative softcap": (lambda: score.softcap(-3), r"softcap must be greater than 0; got -3\."),
    "whole bias": (
        lambda: score.bias(torch.ones(2, dtype=torch.int64)),
        r"a bias tensor must hold floats; got torch\.int64\. For a boolean mask use mask=\.",
    ),
    "boolean bias": (lambda: score.bias(torch.ones(2, dtype=torch.bool)), r"must hold floats; got torch\.bool"),
    "bias of five dimensions": (
        lambda: score.bias(torch.ones(1, 1, 1, 2, 2)),
        r"a bias tensor must have at most 4 dimensions; got shape \(1, 1, 1, 2, 2\)\.",
    ),
    "bias of another shape": (
        lambda: changed(score.bias(torch.ones(3, 4)), zeros(2, 2, 3, 5)),
        r"a bias tensor must broadcast to \(batch, heads, n_q, n_k\) = \(2, 2, 3, 5\); got shape \(3, 4\)\.",
    ),
    "slopes": (
        lambda: changed(score.alibi(torch.ones(3)), zeros(heads=2)),
        r"slopes must have one entry for each of 2 heads; got 3 \(shape \(3,\)\)\.",
    ),
    "relative": (
        lambda: changed(score.relative(torch.ones(32, 3)), zeros(heads=2)),
        r"relative table must have one entry for each of 2 heads; got 3 \(shape \(32, 3\)\)\.",
    ),
    "even table": (lambda: reach_of(torch.ones(4, 3)), r"1, width\) in floats; got a tensor of shape \(4, 3\)"),
    "flat table": (lambda: score.shaw_keys(torch.ones(3)), r"1, width\) in floats; got a tensor of shape \(3,\)"),
    "table width": (
        lambda: changed(score.shaw_keys(torch.ones(3, 5)), zeros(), queries=torch.ones(1, 1, 4, 6)),
        r"shaw_keys needs a table as wide as q; got table=5, q=6\.",
    ),
    "no rule": (lambda: as_rule(None), r"a rule must be a function \(s, b, h, i, j\) .*; got NoneType\."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_that_cannot_be_meant_is_refused_with_its_numbers(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        make()


def test_reach_is_half_of_the_table() -> None:
    assert [reach_of(torch.ones(n, 2)) for n in (1, 3, 9)] == [0, 1, 4]
