"""Normalizers against their formulas, and the errors of invalid ones."""

import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import normalizer
from regard.errors import ArgumentError
from regard.normalizer import as_normalizer
from regard.normalizers.streaming import Relu, Sigmoid, Softmax

CLOSE = dict(rtol=1e-12, atol=1e-12)
HEADS, N_Q, N_K, HEAD_DIM = 3, 5, 7, 4

every_backend = pytest.mark.parametrize("backend", regard.available_backends())


def random_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(2, HEADS, n, HEAD_DIM, dtype=torch.float64) for n in (N_Q, N_K, N_K))
    return q, k, v, q @ k.mT / math.sqrt(HEAD_DIM)


@every_backend
def test_softmax_is_torch_softmax(backend: str) -> None:
    q, k, v, s = random_inputs()
    for option in (normalizer.softmax(), None):
        torch.testing.assert_close(
            regard.attention(q, k, v, normalizer=option, backend=backend), s.softmax(-1) @ v, **CLOSE
        )


@every_backend
@pytest.mark.parametrize("logit", [0.0, -2.0, 5.0, torch.tensor(0.5)])
def test_sink_is_one_more_key_with_value_zero(backend: str, logit: float | Tensor) -> None:
    q, k, v, s = random_inputs()
    extended = torch.cat([s, torch.full_like(s[..., :1], float(logit))], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(
        regard.attention(q, k, v, normalizer=normalizer.sink(logit), backend=backend), extended @ v, **CLOSE
    )


@every_backend
@pytest.mark.parametrize("shape", [(HEADS,), (1,)])
def test_sink_logit_may_differ_by_head(backend: str, shape: tuple[int, ...]) -> None:
    q, k, v, s = random_inputs()
    logit = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    total = logit.view(-1, 1, 1).exp() + s.exp().sum(-1, keepdim=True)
    expected = (s.exp() / total) @ v
    output = regard.attention(q, k, v, normalizer=normalizer.sink(logit), backend=backend)
    torch.testing.assert_close(output, expected, **CLOSE)
    (grad,) = torch.autograd.grad(output.sin().sum(), logit)
    (expected_grad,) = torch.autograd.grad(expected.sin().sum(), logit)
    torch.testing.assert_close(grad, expected_grad, **CLOSE)


def test_sink_of_zero_is_add_zero_attn_of_torch() -> None:
    layer = nn.MultiheadAttention(HEAD_DIM, 1, bias=False, add_zero_attn=True, batch_first=True, dtype=torch.float64)
    x = torch.randn(1, N_K, HEAD_DIM, dtype=torch.float64)
    q, k, v = (x @ w.T for w in layer.in_proj_weight.chunk(3))
    expected, _ = layer(x, x, x)
    output = regard.attention(q, k, v, normalizer=normalizer.sink()) @ layer.out_proj.weight.T
    torch.testing.assert_close(output, expected, **CLOSE)


def test_lse_excludes_the_sink() -> None:
    q, k, v, s = random_inputs()
    torch.testing.assert_close(
        regard.attention_with_weights(q, k, v, normalizer=normalizer.sink(3.0)).lse, s.logsumexp(-1), **CLOSE
    )


def test_a_fully_masked_query_with_a_sink_returns_zero() -> None:
    q, k, v, _ = random_inputs()
    assert (regard.attention(q, k, v, normalizer=normalizer.sink(), mask=lambda b, h, i, j: j < 0) == 0).all()


@every_backend
@pytest.mark.parametrize("bias", [0.0, -1.5, torch.tensor(0.4), torch.tensor([0.1, -0.2, 0.3])], ids=str)
def test_sigmoid_weights_each_pair_independently(backend: str, bias: float | Tensor) -> None:
    q, k, v, s = random_inputs()
    shift = bias.double().view(-1, 1, 1) if isinstance(bias, Tensor) else bias
    expected = torch.sigmoid(s + shift) @ v
    torch.testing.assert_close(
        regard.attention(q, k, v, normalizer=normalizer.sigmoid(bias), backend=backend), expected, **CLOSE
    )


def test_gradients_reach_the_sigmoid_bias() -> None:
    q, k, v, s = random_inputs()
    bias = torch.randn(HEADS, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(regard.attention(q, k, v, normalizer=normalizer.sigmoid(bias)).sin().sum(), bias)
    (expected,) = torch.autograd.grad((torch.sigmoid(s + bias.view(-1, 1, 1)) @ v).sin().sum(), bias)
    torch.testing.assert_close(grad, expected, **CLOSE)


@every_backend
@pytest.mark.parametrize("scale", [None, 0.3, torch.tensor(2.0)], ids=str)
def test_relu_weights_positive_scores(backend: str, scale: float | Tensor | None) -> None:
    q, k, v, s = random_inputs()
    expected = torch.relu(s) @ v * (1 / N_K if scale is None else float(scale))
    torch.testing.assert_close(
        regard.attention(q, k, v, normalizer=normalizer.relu(scale), backend=backend), expected, rtol=1e-7, atol=1e-7
    )


def test_relu_counts_hidden_keys() -> None:
    q, k, v, s = random_inputs()
    visible = torch.arange(N_K) < 3
    expected = (torch.relu(s) * visible) @ v / N_K
    torch.testing.assert_close(regard.attention(q, k, v, normalizer=normalizer.relu(), mask=visible), expected, **CLOSE)


def test_formula_of_each_normalizer() -> None:
    assert [
        n.formula
        for n in (
            normalizer.softmax(),
            normalizer.sink(),
            normalizer.sigmoid(),
            normalizer.relu(),
            normalizer.relu(2.0),
        )
    ] == [
        "softmax",
        "sink softmax",
        "sigmoid",
        "1/n · relu",
        "scale · relu",
    ]


def test_row_normalizer_of_each_normalizer() -> None:
    assert normalizer.softmax().row_normalizer == normalizer.sink().row_normalizer == Softmax()
    assert normalizer.sigmoid(1.0).row_normalizer == Sigmoid() and normalizer.relu().row_normalizer == Relu()
    assert normalizer.sigmoid().score_mod is None and normalizer.sigmoid(0.5).score_mod is not None


def test_as_normalizer_accepts_none_and_row_normalizers() -> None:
    assert as_normalizer(None).row_normalizer == Softmax()
    assert as_normalizer(Sigmoid()).row_normalizer == Sigmoid()
    relu = normalizer.relu()
    assert as_normalizer(relu) is relu


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: normalizer.sink(torch.zeros(2, 3)),
            r"logit must be a float, or a float tensor .*; got torch\.float32 of shape \(2, 3\)\.",
        ),
        (
            lambda: normalizer.sink(torch.zeros(2)).check_shapes((1, HEADS, 4, 4), 0),
            r"sink logits must have one entry for each of 3 heads; got 2 \(shape \(2,\)\)\.",
        ),
        (
            lambda: normalizer.relu(torch.zeros(2, 3)),
            r"scale must be a float, or a float tensor .*; got torch.float32 of shape \(2, 3\)\.",
        ),
        (
            lambda: normalizer.relu(torch.zeros(2)).check_shapes((1, HEADS, 4, 4), 0),
            r"relu scales must have one entry for each of 3 heads; got 2 \(shape \(2,\)\)\.",
        ),
        (
            lambda: as_normalizer("softmax"),
            r"normalizer must be a normalizer of regard\.normalizer, such as normalizer\.softmax\(\); got str\.",
        ),
        (lambda: as_normalizer(normalizer.softmax), r"got function\."),
    ],
)
def test_invalid_normalizers_raise_with_the_given_values(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("size", [2, 4])
def test_a_sigmoid_bias_for_another_number_of_heads_raises(size: int) -> None:
    q, k, v, _ = random_inputs()
    with pytest.raises(ArgumentError, match=r"head|captured tensor"):
        regard.attention(q, k, v, normalizer=normalizer.sigmoid(torch.zeros(size)))
