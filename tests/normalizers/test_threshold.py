"""Threshold normalizers: worked numbers, properties of the threshold, gradients, and errors."""

import math
import pickle
from dataclasses import dataclass
from typing import ClassVar

import entmax
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, measure, normalizer, score
from regard.errors import ArgumentError
from regard.expr.ir import Expr, apply, constant, variable
from regard.normalizers.threshold import Entmax, Hardmax, ThresholdNormalizer, TopK

every_backend = pytest.mark.parametrize("backend", ["native", "tiled", "reference"])
NORMALIZERS = {
    "sparsemax": normalizer.sparsemax(),
    "entmax": normalizer.entmax(1.3),
    "topk": normalizer.topk(3),
    "hardmax": normalizer.hardmax(),
}


def attention_weights(scores: list[float], row_normalizer: object, backend: str = "tiled") -> list[float]:
    """Return the weights of one query with these scores."""
    keys = torch.tensor(scores).view(-1, 1)
    return (
        regard.attention_with_weights(
            torch.ones(1, 1), keys, keys, score=score.dot(), normalizer=row_normalizer, backend=backend
        )
        .weights[0]
        .tolist()
    )


@every_backend
def test_weights_of_worked_examples(backend: str) -> None:
    close = dict(abs=6e-5)
    assert attention_weights([-2.0, 0.0, 0.5], normalizer.sparsemax(), backend) == pytest.approx(
        [0.0, 0.25, 0.75], abs=1e-6
    )
    assert attention_weights([-2.0, 0.0, 0.5], normalizer.entmax(1.5), backend) == pytest.approx(
        [0.0, 0.3260, 0.6740], **close
    )
    assert attention_weights([-1.0, 0.0, 0.5], normalizer.entmax(1.33), backend) == pytest.approx(
        [0.0460, 0.3276, 0.6264], **close
    )
    assert attention_weights([1.0, 3.0, 3.0 + math.log(2), -5.0], normalizer.topk(2), backend) == pytest.approx(
        [0, 1 / 3, 2 / 3, 0]
    )
    assert attention_weights([1.0, 3.0, 2.9], normalizer.hardmax(), backend) == [0.0, 1.0, 0.0]


@every_backend
def test_gradient_of_learned_alpha_in_a_worked_example(backend: str) -> None:
    alpha = torch.tensor(1.33, requires_grad=True)
    keys = torch.tensor([[-1.0], [0.0], [0.5]])

    weights = regard.attention(
        torch.ones(1, 1), keys, torch.eye(3), score=score.dot(), normalizer=normalizer.entmax(alpha), backend=backend
    )
    (gradient,) = torch.autograd.grad(weights[0, 0], alpha)

    assert float(gradient) == pytest.approx(-0.2562, abs=1e-4)


@every_backend
@pytest.mark.parametrize("row_normalizer", NORMALIZERS)
def test_equal_scores_over_many_keys_get_equal_weights(backend: str, row_normalizer: str) -> None:
    v = torch.randn(1, 1, 3000, 4)
    q, k = torch.zeros(1, 1, 2, 4), torch.randn(1, 1, 3000, 4)

    result = regard.attention_with_weights(q, k, v, normalizer=NORMALIZERS[row_normalizer], backend=backend)

    torch.testing.assert_close(result.output, v.mean(2, keepdim=True).expand(1, 1, 2, 4), rtol=1e-5, atol=1e-6)


@every_backend
def test_entmax_interpolates_between_softmax_and_sparsemax(backend: str) -> None:
    q, k, v = (torch.randn(2, 9, 4) for _ in range(3))
    attend = lambda row_normalizer: regard.attention(q, k, v, normalizer=row_normalizer, backend=backend)

    assert torch.equal(attend(normalizer.entmax(1.0)), attend(normalizer.softmax()))
    assert torch.equal(attend(normalizer.entmax(2.0)), attend(normalizer.sparsemax()))
    torch.testing.assert_close(attend(normalizer.entmax(1.001)), attend(normalizer.softmax()), rtol=1e-2, atol=2e-3)


@every_backend
@pytest.mark.parametrize("k", [7, 8, 100])
def test_topk_of_all_keys_is_softmax(backend: str, k: int) -> None:
    q, keys, v = (torch.randn(2, 7, 4) for _ in range(3))

    output = regard.attention(q, keys, v, normalizer=normalizer.topk(k), mask=mask.causal(), backend=backend)

    torch.testing.assert_close(output, regard.attention(q, keys, v, mask=mask.causal(), backend=backend))


@every_backend
@pytest.mark.parametrize("k", [1, 2, 5, 64, 299])
def test_topk_agrees_with_torch_topk(backend: str, k: int) -> None:
    q, keys, v = (torch.randn(2, 3, n, 8) for n in (70, 300, 300))
    scores = q @ keys.mT / 8**0.5
    kth = scores.topk(k).values[..., -1:]
    expected = scores.masked_fill(scores < kth, -math.inf).softmax(-1)

    result = regard.attention_with_weights(q, keys, v, normalizer=normalizer.topk(k), backend=backend)

    torch.testing.assert_close(result.weights[...], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result.output, expected @ v, rtol=1e-4, atol=1e-5)


@every_backend
@pytest.mark.parametrize("row_normalizer", [normalizer.topk(2), normalizer.hardmax()], ids=["topk", "hardmax"])
def test_ties_with_the_kth_score_are_kept(backend: str, row_normalizer: object) -> None:
    scores = [5.0, 5.0, 1.0, 5.0, -2.0]

    assert attention_weights(scores, row_normalizer, backend) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])


@every_backend
def test_entmax_rows_sum_to_one_at_tau(backend: str) -> None:
    q, k, v = (torch.randn(2, 4, n, 8) for n in (60, 90, 90))
    alpha = torch.tensor([1.1, 1.5, 1.7, 2.0])

    tau = regard.attention_with_weights(q, k, v, normalizer=normalizer.entmax(alpha), backend=backend).statistic

    factor = alpha.view(4, 1, 1) - 1
    z = factor * (q @ k.mT) / 8**0.5
    sums = (z - tau.unsqueeze(-1)).clamp(min=0).pow(1 / factor).sum(-1)
    torch.testing.assert_close(
        sums, torch.ones_like(sums), rtol=1e-4, atol=1e-4
    )  # rounded numbers are raised to the power 10


@every_backend
def test_hardmax_selects_the_largest_score_with_the_gradient_of_softmax(backend: str) -> None:
    q, k, v = (torch.randn(2, 20, 4, requires_grad=True) for _ in range(3))
    scores = q @ k.mT / 2
    soft = scores.softmax(-1)
    hard = torch.nn.functional.one_hot(scores.argmax(-1), 20).float()
    expected = (hard + soft - soft.detach()) @ v

    output = regard.attention(q, k, v, normalizer=normalizer.hardmax(), backend=backend)

    torch.testing.assert_close(output, v.gather(1, scores.argmax(-1, keepdim=True).expand(-1, -1, 4)))
    for gradient, reference in zip(
        *(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (output, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5)


@every_backend
def test_measures_use_the_weights_of_entmax(backend: str) -> None:
    q, k, v = (torch.randn(1, 2, n, 8) for n in (80, 120, 120))
    expected = entmax.entmax15(q @ k.mT / 8**0.5, dim=-1)

    weights = regard.attention_with_weights(q, k, v, normalizer=normalizer.entmax(1.5), backend=backend).weights
    entropy, column_mass = weights.measure(measure.entropy, measure.column_mass)

    torch.testing.assert_close(entropy, torch.special.entr(expected).sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(column_mass, expected.sum(-2), rtol=1e-4, atol=1e-5)


def test_gradient_of_materialized_weights_agrees_with_the_entmax_package() -> None:
    q, k = (torch.randn(1, 1, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = entmax.sparsemax(q @ k.mT / 3**0.5, dim=-1)

    weights = regard.attention_with_weights(q, k, k, normalizer=normalizer.sparsemax()).weights[...]

    for gradient, reference in zip(
        *(torch.autograd.grad(x.sin().sum(), (q, k)) for x in (weights, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, reference)


def test_shaw_values_under_hardmax_have_the_gradient_of_softmax() -> None:
    q, k, v = (torch.randn(1, 1, 6, 3, dtype=torch.float64) for _ in range(3))
    q.requires_grad_()
    table = torch.randn(5, 3, dtype=torch.float64)
    indices = (torch.arange(6) - torch.arange(6)[:, None]).clamp(-2, 2) + 2

    output = regard.attention(q, k, v, normalizer=normalizer.hardmax(), value=score.shaw_values(table))
    soft = (q @ k.mT / 3**0.5).softmax(-1)
    expected = soft @ v + (soft.unsqueeze(-1) * table[indices]).sum(-2)

    for gradient, reference in zip(*(torch.autograd.grad(x.sum(), q) for x in (output, expected)), strict=True):
        torch.testing.assert_close(gradient, reference)


def test_shaw_values_use_the_weights_of_entmax() -> None:
    q, k, v = (torch.randn(1, 1, 6, 3, dtype=torch.float64) for _ in range(3))
    table = torch.randn(5, 3, dtype=torch.float64)
    weights = entmax.entmax15(q @ k.mT / 3**0.5, dim=-1)
    indices = (torch.arange(6) - torch.arange(6)[:, None]).clamp(-2, 2) + 2
    expected = weights @ v + (weights.unsqueeze(-1) * table[indices]).sum(-2)

    output = regard.attention(q, k, v, normalizer=normalizer.entmax(1.5), value=score.shaw_values(table))

    torch.testing.assert_close(output, expected)


def test_pickled_normalizers_are_equal_and_hash_equal() -> None:
    for instance in (Entmax(constant(2.0)), TopK(3), Hardmax()):
        assert pickle.loads(pickle.dumps(instance)) == instance
        assert hash(pickle.loads(pickle.dumps(instance))) == hash(instance)
    assert Entmax(constant(2.0)) != Entmax(constant(3.0))


@pytest.mark.parametrize("alpha", [0.5, 2.5, -1.0])
def test_alpha_outside_one_to_two_raises_error(alpha: float) -> None:
    with pytest.raises(ArgumentError, match=rf"from 1 \(softmax\) to 2 \(sparsemax\); got {alpha}"):
        normalizer.entmax(alpha)


def test_invalid_learned_alpha_raises_error() -> None:
    with pytest.raises(ArgumentError, match=r"above 1 and at most 2; got \[1.5, 1.0\]"):
        normalizer.entmax(torch.tensor([1.5, 1.0]))
    with pytest.raises(
        ArgumentError,
        match=r"a float, or a float tensor with one number or one per head; got torch.float32 of shape \(2, 2\)",
    ):
        normalizer.entmax(torch.full((2, 2), 1.5))
    q = torch.randn(1, 3, 4, 2)
    with pytest.raises(ArgumentError, match="3 heads"):
        regard.attention(q, q, q, normalizer=normalizer.entmax(torch.tensor([1.5, 1.5])))


@pytest.mark.parametrize("k", [0, -1, 2.0, True])
def test_topk_of_fewer_than_one_key_raises_error(k: object) -> None:
    with pytest.raises(ArgumentError, match=f"k must be (at least 1|an integer); got {k}"):
        normalizer.topk(k)


def test_lse_of_sparsemax_raises_error_that_names_tau() -> None:
    q = torch.randn(3, 2)

    with pytest.raises(ArgumentError, match="got entmax, whose statistic is tau"):
        _ = regard.attention_with_weights(q, q, q, normalizer=normalizer.sparsemax()).lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_of_a_row_does_not_depend_on_other_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(-3, 2, 64, dtype=dtype)[:, None]  # some rows take more steps than others
    scores, exponent = torch.randn(64, 300, generator=generator, dtype=dtype) * spread, torch.tensor(3.0, dtype=dtype)
    row_normalizer = Entmax(constant(3.0))
    alone = torch.cat([row_normalizer.threshold(row, exponent) for row in scores.split(1)])
    assert torch.equal(row_normalizer.threshold(scores, exponent), alone)


def test_threshold_of_a_fully_masked_row_is_infinite() -> None:
    q = torch.randn(2, 3)

    result = regard.attention_with_weights(
        q, q, q, normalizer=normalizer.sparsemax(), mask=torch.tensor([[True, True], [False, False]])
    )

    assert result.statistic[1] == math.inf and (result.output[1] == 0).all()
    assert result.weights[1].tolist() == [0.0, 0.0]


def test_plan_names_the_normalizer() -> None:
    shape = (2, 64, 8)

    assert "1.5-entmax(" in str(regard.explain(shape, shape, shape, normalizer=normalizer.entmax(1.5)))
    assert "sparsemax(" in str(regard.explain(shape, shape, shape, normalizer=normalizer.sparsemax()))


def test_varlen_sequences_are_normalized_separately() -> None:
    lengths = [3, 5, 1]
    q, k, v = (torch.randn(2, 9, 4) for _ in range(3))
    alpha = torch.tensor([1.3, 1.8])

    output = regard.attention_varlen(q, k, v, lengths, lengths, normalizer=normalizer.entmax(alpha))

    parts = zip(*(x.split(lengths, dim=1) for x in (q, k, v)), strict=True)
    expected: list[Tensor] = [
        regard.attention(*(x[None] for x in part), normalizer=normalizer.entmax(alpha))[0] for part in parts
    ]
    torch.testing.assert_close(output, torch.cat(expected, 1))


@dataclass(frozen=True)
class AboveMean(ThresholdNormalizer):
    """Softmax over the scores that are at least the mean of their row."""

    name: ClassVar[str] = "above mean"
    statistic: ClassVar[str | None] = "threshold"

    def threshold(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        return scores.detach().mean(-1, keepdim=True)

    def softmax_score_mod(self, threshold: Expr) -> Expr:
        s = variable("s")
        return apply("where", apply("lt", s, threshold), constant(-torch.inf), s)

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        threshold = self.threshold(scores)
        return torch.where(scores < threshold, -torch.inf, scores).softmax(-1), threshold.squeeze(-1)


def test_a_threshold_normalizer_of_a_user_runs_with_gradients() -> None:
    x = torch.randn(1, 2, 12, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    result = regard.attention_with_weights(x, x, x, normalizer=AboveMean())
    expected, _ = AboveMean().normalize(x @ x.mT / 2.0)
    assert result.plan.backend == "tiled"
    # float32, sums of 12 products of size 1
    torch.testing.assert_close(result.weights[...], expected, rtol=1e-5, atol=1e-6)
    gradients = (torch.autograd.grad(o.square().sum(), x)[0] for o in (result.output, expected @ x))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
