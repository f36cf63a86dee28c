"""Weighings against their formulas, and what they refuse."""

import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import weigh
from regard.errors import SpecError
from regard.spec.normaliser import Relu, Sigmoid, Softmax
from regard.spec.weigh import as_weigh

CLOSE = dict(rtol=1e-12, atol=1e-12)
HEADS, N_Q, N_K, WIDTH = 3, 5, 7, 4

every_engine = pytest.mark.parametrize("engine", regard.engines())


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, dtype=torch.float64) for n in (N_Q, N_K, N_K))
    return q, k, v, q @ k.mT / math.sqrt(WIDTH)


@every_engine
def test_softmax_is_the_usual_one(engine: str) -> None:
    q, k, v, s = problem()
    for chosen in (weigh.softmax(), None):
        torch.testing.assert_close(regard.attention(q, k, v, weigh=chosen, engine=engine), s.softmax(-1) @ v, **CLOSE)


@every_engine
@pytest.mark.parametrize("logit", [0.0, -2.0, 5.0, torch.tensor(0.5)])
def test_a_sink_is_one_more_key_of_value_zero(engine: str, logit: float | Tensor) -> None:
    q, k, v, s = problem()
    more = torch.cat([s, torch.full_like(s[..., :1], float(logit))], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(regard.attention(q, k, v, weigh=weigh.sink(logit), engine=engine), more @ v, **CLOSE)


@every_engine
@pytest.mark.parametrize("shape", [(HEADS,), (1,)])
def test_a_sink_may_differ_by_head(engine: str, shape: tuple[int, ...]) -> None:
    q, k, v, s = problem()
    logit = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    total = logit.view(-1, 1, 1).exp() + s.exp().sum(-1, keepdim=True)
    expected = (s.exp() / total) @ v
    found = regard.attention(q, k, v, weigh=weigh.sink(logit), engine=engine)
    torch.testing.assert_close(found, expected, **CLOSE)
    (one,) = torch.autograd.grad(found.sin().sum(), logit)
    (other,) = torch.autograd.grad(expected.sin().sum(), logit)
    torch.testing.assert_close(one, other, **CLOSE)


def test_a_sink_of_zero_is_torchs_zero_attention() -> None:
    layer = nn.MultiheadAttention(WIDTH, 1, bias=False, add_zero_attn=True, batch_first=True, dtype=torch.float64)
    x = torch.randn(1, N_K, WIDTH, dtype=torch.float64)
    q, k, v = (x @ w.T for w in layer.in_proj_weight.chunk(3))
    expected, _ = layer(x, x, x)
    found = regard.attention(q, k, v, weigh=weigh.sink()) @ layer.out_proj.weight.T
    torch.testing.assert_close(found, expected, **CLOSE)


def test_the_statistic_of_a_sink_is_the_one_without_it() -> None:
    q, k, v, s = problem()
    torch.testing.assert_close(regard.attend(q, k, v, weigh=weigh.sink(3.0)).lse, s.logsumexp(-1), **CLOSE)


def test_a_query_that_sees_nothing_but_the_sink_outputs_zero() -> None:
    q, k, v, _ = problem()
    assert (regard.attention(q, k, v, weigh=weigh.sink(), mask=lambda b, h, i, j: j < 0) == 0).all()


@every_engine
@pytest.mark.parametrize("bias", [0.0, -1.5, torch.tensor(0.4), torch.tensor([0.1, -0.2, 0.3])], ids=str)
def test_sigmoid_weighs_each_pair_for_itself(engine: str, bias: float | Tensor) -> None:
    q, k, v, s = problem()
    shift = bias.double().view(-1, 1, 1) if isinstance(bias, Tensor) else bias
    expected = torch.sigmoid(s + shift) @ v
    torch.testing.assert_close(regard.attention(q, k, v, weigh=weigh.sigmoid(bias), engine=engine), expected, **CLOSE)


def test_gradients_reach_the_bias_of_a_sigmoid() -> None:
    q, k, v, s = problem()
    bias = torch.randn(HEADS, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(regard.attention(q, k, v, weigh=weigh.sigmoid(bias)).sin().sum(), bias)
    (expected,) = torch.autograd.grad((torch.sigmoid(s + bias.view(-1, 1, 1)) @ v).sin().sum(), bias)
    torch.testing.assert_close(found, expected, **CLOSE)


@every_engine
@pytest.mark.parametrize("scale", [None, 0.3, torch.tensor(2.0)], ids=str)
def test_relu_weighs_what_is_positive(engine: str, scale: float | Tensor | None) -> None:
    q, k, v, s = problem()
    expected = torch.relu(s) @ v * (1 / N_K if scale is None else float(scale))
    torch.testing.assert_close(
        regard.attention(q, k, v, weigh=weigh.relu(scale), engine=engine), expected, rtol=1e-7, atol=1e-7
    )


def test_relu_counts_all_keys_hidden_or_not() -> None:
    q, k, v, s = problem()
    seen = torch.arange(N_K) < 3
    expected = (torch.relu(s) * seen) @ v / N_K
    torch.testing.assert_close(regard.attention(q, k, v, weigh=weigh.relu(), mask=seen), expected, **CLOSE)


def test_a_weighing_is_named_by_its_formula() -> None:
    assert [w.formula for w in (weigh.softmax(), weigh.sink(), weigh.sigmoid(), weigh.relu(), weigh.relu(2.0))] == [
        "softmax",
        "softmax with a sink",
        "sigmoid",
        "relu / n",
        "relu · scale",
    ]


def test_a_weighing_holds_its_normaliser() -> None:
    assert weigh.softmax().normaliser == weigh.sink().normaliser == Softmax()
    assert weigh.sigmoid(1.0).normaliser == Sigmoid() and weigh.relu().normaliser == Relu()
    assert weigh.sigmoid().rule is None and weigh.sigmoid(0.5).rule is not None


def test_nothing_and_a_normaliser_are_weighings_too() -> None:
    assert as_weigh(None).normaliser == Softmax()
    assert as_weigh(Sigmoid()).normaliser == Sigmoid()
    given = weigh.relu()
    assert as_weigh(given) is given


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: weigh.sink(torch.zeros(2, 3)),
            r"logit must be one number, or one a head, in floats; got torch\.float32 of shape \(2, 3\)\.",
        ),
        (
            lambda: weigh.sink(torch.zeros(2)).check((1, HEADS, 4, 4), 0),
            r"sink logits must have one entry for each of 3 heads; got 2 \(shape \(2,\)\)\.",
        ),
        (
            lambda: weigh.relu(torch.zeros(2, 3)),
            r"scale must be one number, or one a head, in floats; got torch.float32 of shape \(2, 3\)\.",
        ),
        (
            lambda: weigh.relu(torch.zeros(2)).check((1, HEADS, 4, 4), 0),
            r"relu scales must have one entry for each of 3 heads; got 2 \(shape \(2,\)\)\.",
        ),
        (
            lambda: as_weigh("softmax"),
            r"weigh must be one of regard\.weigh's, such as weigh\.softmax\(\); got str\.",
        ),
        (lambda: as_weigh(weigh.softmax), r"got function\."),
    ],
)
def test_a_weighing_that_cannot_be_meant_is_refused_with_its_numbers(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize("entries", [2, 4])
def test_a_sigmoid_bias_for_another_number_of_heads_is_refused(entries: int) -> None:
    q, k, v, _ = problem()
    with pytest.raises(SpecError, match=r"head|look-up"):
        regard.attention(q, k, v, weigh=weigh.sigmoid(torch.zeros(entries)))
