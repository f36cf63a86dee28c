"""Attention under torch.func, checkpointing, autocast, torch.compile, copying and threads."""

import copy
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import regard
from regard import mask, measure, normalizer, score
from tests.random_tensors import normal

pytestmark = [
    pytest.mark.usefixtures("reset_compiler"),
    # torch itself calls torch.jit.script for some forward derivatives
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]
every_backend = pytest.mark.parametrize("backend", regard.available_backends())
EXACT = dict(rtol=1e-10, atol=1e-11)  # float64, sums of about ten terms, up to two derivatives


def inputs(*lead: int, n: int = 4, head_dim: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return tuple(normal(*lead, n, head_dim, seed=s, dtype=dtype) for s in (1, 2, 3))


def dense(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Causal attention written out; the last query is at the last key."""
    n_q, n_k = q.shape[-2], k.shape[-2]
    sees = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    return torch.softmax(scores.masked_fill(~sees, -math.inf), dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor, backend: str = "tiled", **options: Any) -> Tensor:
    return regard.attention(q, k, v, mask=mask.causal(), backend=backend, **options)


def biased_attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor, backend: str = "tiled") -> Tensor:
    """Causal attention with a bias looked up in a table of j - i."""
    n = q.shape[-2]
    return causal(q, k, v, backend, score=lambda s, b, h, i, j: s + table[j - i + n - 1])


def dense_biased_attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    n = q.shape[-2]
    return dense(q, k, v, table[torch.arange(n) - torch.arange(n).unsqueeze(-1) + n - 1])


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, **EXACT)


# torch.func: derivatives.


@every_backend
def test_grad_agrees_with_the_dense_formula(backend):
    q, k, v = inputs()

    actual = grad(lambda *x: causal(*x, backend=backend).sin().sum(), argnums=(0, 1, 2))(q, k, v)

    close(actual, grad(lambda *x: dense(*x).sin().sum(), argnums=(0, 1, 2))(q, k, v))


@every_backend
def test_grad_reaches_a_captured_tensor(backend):
    q, k, v = inputs()
    table = normal(7, seed=4)

    actual = grad(lambda t: biased_attention(q, k, v, t, backend).sin().sum())(table)

    close(actual, grad(lambda t: dense_biased_attention(q, k, v, t).sin().sum())(table))


PARAMETERS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], dict[str, Any]], Callable[..., Tensor]]] = {
    "a scale": (
        (),
        lambda c: dict(score=score.scaled_dot(c)),
        lambda q, k, v, c: torch.softmax(q @ k.mT * c, -1) @ v,
    ),
    "a matrix": (
        (3, 3),
        lambda w: dict(score=score.bilinear(w)),
        lambda q, k, v, w: torch.softmax(q @ w @ k.mT, -1) @ v,
    ),
    "a bandwidth": (
        (),
        lambda s: dict(score=score.gaussian(s)),
        lambda q, k, v, s: torch.softmax(-(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1) / (2 * s**2), -1) @ v,
    ),
    "additive weights": (
        (3,),
        lambda u: dict(score=score.additive(torch.eye(3).double(), torch.eye(3).double(), u)),
        lambda q, k, v, u: torch.softmax(torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) @ u, -1) @ v,
    ),
    "a tensor of a custom function": (
        (3,),
        lambda w: dict(score=score.custom(lambda q, k: (q * w) @ k.mT)),
        lambda q, k, v, w: torch.softmax((q * w) @ k.mT, -1) @ v,
    ),
    "a bias": (
        (4, 4),
        lambda t: dict(score=score.bias(t)),
        lambda q, k, v, t: torch.softmax(q @ k.mT / math.sqrt(3) + t, -1) @ v,
    ),
    "a sink": (
        (),
        lambda b: dict(normalizer=normalizer.sink(b)),
        lambda q, k, v, b: (
            (torch.exp(q @ k.mT / math.sqrt(3)) @ v)
            / (torch.exp(b) + torch.exp(q @ k.mT / math.sqrt(3)).sum(-1, keepdim=True))
        ),
    ),
    "the bias of a sigmoid": (
        (),
        lambda b: dict(normalizer=normalizer.sigmoid(b)),
        lambda q, k, v, b: torch.sigmoid(q @ k.mT / math.sqrt(3) + b) @ v,
    ),
    "a table of a function of values": (
        (3, 2),
        lambda w: dict(value=lambda v: v @ w),
        lambda q, k, v, w: torch.softmax(q @ k.mT / math.sqrt(3), -1) @ (v @ w),
    ),
}
every_parameter = pytest.mark.parametrize("name", PARAMETERS)


def parameter(name: str, seed: int = 5, *lead: int) -> Tensor:
    return normal(*lead, *PARAMETERS[name][0], seed=seed).abs() + 0.5


def with_parameter(name: str, backend: str = "tiled") -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Attention as a function of one parameter: by regard, and written out."""
    q, k, v = inputs()
    _, options, written_out = PARAMETERS[name]
    return lambda w: regard.attention(q, k, v, backend=backend, **options(w)), lambda w: written_out(q, k, v, w)


@every_backend
@every_parameter
def test_grad_reaches_every_kind_of_parameter(backend, name):
    ours, written_out = with_parameter(name, backend)

    close(
        grad(lambda w: ours(w).sin().sum())(parameter(name)),
        grad(lambda w: written_out(w).sin().sum())(parameter(name)),
    )


@every_parameter
def test_jacobians_are_right_for_every_kind_of_parameter(name):
    ours, written_out = with_parameter(name)
    expected = jacrev(written_out)(parameter(name))

    close(jacrev(ours)(parameter(name)), expected)
    close(jacfwd(ours)(parameter(name)), expected)


@every_parameter
def test_hessian_is_right_for_every_kind_of_parameter(name):
    ours, written_out = with_parameter(name)

    close(
        hessian(lambda w: ours(w).sin().sum())(parameter(name)),
        hessian(lambda w: written_out(w).sin().sum())(parameter(name)),
    )


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_jacobians_and_hessians_in_the_inputs_are_right(argnum):
    q, k, v = inputs(n=2, head_dim=2)

    close(jacrev(causal, argnum)(q, k, v), jacrev(dense, argnum)(q, k, v))
    close(jacfwd(causal, argnum)(q, k, v), jacfwd(dense, argnum)(q, k, v))
    ours, written_out = (lambda *x, f=f: f(*x).sin().sum() for f in (causal, dense))
    expected = hessian(written_out, argnum)(q, k, v)
    close(hessian(ours, argnum)(q, k, v), expected)
    close(jacrev(jacrev(ours, argnum), argnum)(q, k, v), expected)
    close(jacrev(jacfwd(ours, argnum), argnum)(q, k, v), expected)


def test_jvp_is_the_transpose_of_vjp():
    q, k, v = inputs()
    tangents, d_output = inputs(n=4), normal(4, 3, seed=8)

    _, along = jvp(causal, (q, k, v), tangents)
    _, back = vjp(causal, q, k, v)

    close((along * d_output).sum(), sum((a * b).sum() for a, b in zip(back(d_output), tangents, strict=True)))
    close(along, jvp(dense, (q, k, v), tangents)[1])


def test_jvp_of_row_statistic_and_weights_is_right():
    q, k, v = inputs()
    tangents = inputs(n=4)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        actual = regard.attention_with_weights(q, k, v)
        return actual.lse, actual.weights[1:3]

    def written_out(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.mT / math.sqrt(3)
        return torch.logsumexp(scores, -1), torch.softmax(scores, -1)[1:3]

    close(jvp(ours, (q, k, v), tangents), jvp(written_out, (q, k, v), tangents))


# torch.func: vmap.


@every_backend
@pytest.mark.parametrize(
    "in_dims", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, 0, None)], ids=str
)
def test_vmap_over_any_input_equals_separate_calls(backend, in_dims):
    x = [normal(*((2,) if d is not None else ()), 4, 3, seed=s) for s, d in enumerate(in_dims)]
    x = [t if d in (0, None) else t.movedim(0, d) for t, d in zip(x, in_dims, strict=True)]

    actual = vmap(lambda *x: causal(*x, backend=backend), in_dims)(*x)

    for n in range(2):
        one = [t if d is None else t.select(d, n) for t, d in zip(x, in_dims, strict=True)]
        close(actual[n], dense(*one))


@pytest.mark.parametrize("in_dim, out_dim", [(0, 0), (1, 0), (2, 1), (-1, -1), (3, 2)])
def test_vmap_supports_any_in_and_out_dimension(in_dim, out_dim):
    q, k, v = (normal(2, 3, 4, 5, seed=s) for s in (1, 2, 3))  # any of the dimensions is mapped
    rest = [d for d in range(4) if d != in_dim % 4]

    actual = vmap(causal, in_dims=in_dim, out_dims=out_dim)(q, k, v)

    expected = dense(*(x.permute(in_dim % 4, *rest) for x in (q, k, v)))
    close(actual, expected.movedim(0, out_dim))


def test_vmap_can_be_nested():
    q, k, v = (normal(2, 3, 4, 3, seed=s) for s in (1, 2, 3))

    close(vmap(vmap(causal))(q, k, v), dense(q, k, v))
    close(
        vmap(vmap(causal, in_dims=(0, None, None)), in_dims=(None, 0, 0))(q[0], k[:, 0], v[:, 0])[1, 2],
        dense(q[0, 2], k[1, 0], v[1, 0]),
    )


@every_parameter
def test_vmap_over_a_parameter_equals_separate_calls(name):
    ours, written_out = with_parameter(name)
    stack = parameter(name, 5, 3)

    close(vmap(ours)(stack), torch.stack([written_out(w) for w in stack]))


@every_parameter
def test_vmap_of_grad_gives_per_parameter_gradients(name):
    ours, written_out = with_parameter(name)
    stack = parameter(name, 5, 3)

    actual = vmap(grad(lambda w: ours(w).sin().sum()))(stack)

    close(actual, torch.stack([grad(lambda w: written_out(w).sin().sum())(w) for w in stack]))


def test_vmap_over_the_last_dimension_of_a_captured_table():
    q, k, v = inputs()
    tables = normal(7, 3, seed=4)

    actual = vmap(lambda t: biased_attention(q, k, v, t), in_dims=1)(tables)

    close(actual, torch.stack([dense_biased_attention(q, k, v, t) for t in tables.unbind(1)]))


def test_vmap_over_a_boolean_mask_equals_separate_calls():
    q, k, v = inputs()
    visible = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(1)) < 0.6

    actual = vmap(lambda m: regard.attention(q, k, v, mask=m))(visible)

    close(actual, torch.stack([regard.attention(q, k, v, mask=m) for m in visible]))


def test_vmap_over_a_bias_with_minus_infinity_equals_separate_calls():
    q, k, v = inputs()
    extra = normal(3, 4, 4, seed=4).masked_fill(normal(3, 4, 4, seed=5) > 0.8, -math.inf)

    actual = vmap(lambda t: regard.attention(q, k, v, score=score.bias(t)))(extra)

    close(actual, torch.stack([regard.attention(q, k, v, score=score.bias(t)) for t in extra]))


def test_per_example_gradients_agree_with_the_dense_formula():
    q, k, v = (normal(3, 2, 4, 3, seed=s) for s in (1, 2, 3))

    def loss(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda q, k, v: call(q, k, v).sin().sum()

    actual = vmap(grad(loss(causal), argnums=(0, 1, 2)))(q, k, v)

    close(actual, vmap(grad(loss(dense), argnums=(0, 1, 2)))(q, k, v))


def test_vmap_of_hessian_vector_products_is_right():
    q, k, v = inputs()
    directions = normal(3, 4, 3, seed=9)

    def product(call: Callable[..., Tensor], direction: Tensor) -> Tensor:
        return jvp(grad(lambda q: call(q, k, v).sin().sum()), (q,), (direction,))[1]

    actual = vmap(lambda d: product(causal, d))(directions)

    close(actual, vmap(lambda d: product(dense, d))(directions))


def test_vmap_with_dropout_uses_the_seed():
    q, k, v = (normal(3, 2, 4, 3, seed=s) for s in (1, 2, 3))

    actual = vmap(lambda *x: causal(*x, dropout=0.4, seed=6))(q, k, v)

    close(actual, torch.stack([causal(*(x[n] for x in (q, k, v)), dropout=0.4, seed=6) for n in range(3)]))


# Modules.


class Layer(nn.Module):
    """One self-attention layer with a learned bias by distance."""

    def __init__(self, head_dim: int = 8, heads: int = 2, attention: Callable[..., Tensor] = biased_attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.project, self.back = nn.Linear(head_dim, 3 * head_dim), nn.Linear(head_dim, head_dim)
        self.table = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)
        n = x.shape[-2]
        actual = self.attention(q, k, v, self.table[: 2 * n - 1].to(q.dtype))
        return self.back(actual.transpose(-2, -3).flatten(-2))


def layers() -> tuple[Layer, Layer]:
    """Two layers with the same parameters: by regard, and written out."""
    torch.manual_seed(3)
    ours = Layer().double()
    written_out = Layer(attention=dense_biased_attention).double()
    written_out.load_state_dict(ours.state_dict())
    return ours, written_out


def test_functional_call_uses_the_passed_parameters():
    ours, written_out = layers()
    x = normal(2, 5, 8, seed=1)
    others = {name: p * 0.5 + 0.1 for name, p in ours.named_parameters()}

    close(functional_call(ours, others, (x,)), functional_call(written_out, others, (x,)))
    assert not torch.allclose(functional_call(ours, others, (x,)), ours(x))


def test_per_example_gradients_of_a_module_are_right():
    ours, written_out = layers()
    x = normal(3, 5, 8, seed=1)

    def per_example(layer: Layer) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(layer, parameters, (x.unsqueeze(0),)).square().sum()

        return vmap(grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), x)

    close(per_example(ours), per_example(written_out))


def test_ensemble_of_modules_runs_under_vmap():
    torch.manual_seed(3)
    members = [Layer().double() for _ in range(3)]
    x = normal(2, 5, 8, seed=1)
    parameters, buffers = torch.func.stack_module_state(members)

    actual = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(parameters, buffers)

    close(actual, torch.stack([member(x) for member in members]))


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not reentrant"])
@every_backend
def test_checkpointing_gives_the_same_bits(backend, use_reentrant):
    x = [t.requires_grad_() for t in (*inputs(), normal(7, seed=4))]

    def loss(call: Callable[..., Tensor]) -> Tensor:
        return call(*(t * 2.0 for t in x)).sin().sum()

    def function(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return biased_attention(q, k, v, table, backend)

    expected = torch.autograd.grad(loss(function), x)
    result = loss(lambda *t: checkpoint(function, *t, use_reentrant=use_reentrant))
    result.backward()

    for t, gradient in zip(x, expected, strict=True):
        assert torch.equal(t.grad, gradient)


def test_checkpointing_repeats_the_same_dropout():
    q, k, v = (t.requires_grad_() for t in inputs())

    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal(q, k, v, dropout=0.5)

    torch.manual_seed(5)
    expected = torch.autograd.grad(dropped(q, k, v).sin().sum(), (q, k, v))
    torch.manual_seed(5)
    actual = torch.autograd.grad(checkpoint(dropped, q, k, v, use_reentrant=False).sin().sum(), (q, k, v))

    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


def test_saved_tensor_hooks_are_supported():
    x = [t.requires_grad_() for t in (*inputs(), normal(7, seed=4))]
    tangents = []

    def pack(t: Tensor) -> Tensor:
        tangents.append(t)
        return t.clone()

    expected = torch.autograd.grad(biased_attention(*x).sum(), x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = biased_attention(*x)
    actual = torch.autograd.grad(output.sum(), x)

    assert tangents
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


# Autocast.


@pytest.fixture
def autocast() -> Iterator[Callable[[], Any]]:
    return lambda: torch.autocast("cpu", dtype=torch.bfloat16)


SINGLE = {
    "scaled dot": dict,
    "bilinear": lambda: dict(score=score.bilinear(normal(16, 16, seed=5, dtype=torch.float32))),
    "cosine": lambda: dict(score=score.cosine(3.0)),
    "gaussian": lambda: dict(score=score.gaussian(2.0)),
    "mahalanobis": lambda: dict(score=score.mahalanobis(torch.eye(16))),
    "additive": lambda: dict(
        score=score.additive(*(normal(*s, seed=5, dtype=torch.float32) for s in [(16, 8), (16, 8), (8,)]))
    ),
    "relative keys": lambda: dict(score=score.shaw_keys(normal(5, 16, seed=5, dtype=torch.float32))),
    "relative values": lambda: dict(value=score.shaw_values(normal(5, 16, seed=5, dtype=torch.float32))),
    "alibi": lambda: dict(score=score.alibi()),
    "sink": lambda: dict(normalizer=normalizer.sink(0.5)),
    "sigmoid": lambda: dict(normalizer=normalizer.sigmoid(-2.0)),
}


@every_backend
@pytest.mark.parametrize("name", SINGLE)
def test_autocast_does_not_change_float32_results(backend, name, autocast):
    q, k, v = (t.requires_grad_() for t in inputs(2, 2, n=20, head_dim=16, dtype=torch.float32))
    options = SINGLE[name]()

    def with_gradients(output: Tensor) -> tuple[Tensor, ...]:
        # outside of autocast, as torch requires: inside, torch rounds the backward pass of float32 products
        return output, *torch.autograd.grad(output, (q, k, v), torch.ones_like(output))

    expected = with_gradients(causal(q, k, v, backend, **options))
    with autocast():
        output = causal(q, k, v, backend, **options)

    for a, b in zip(with_gradients(output), expected, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", SINGLE)
def test_autocast_does_not_change_float32_weights_and_measures(name, autocast):
    q, k, v = inputs(2, 2, n=20, head_dim=16, dtype=torch.float32)
    options = SINGLE[name]()

    def weights_and_measures() -> tuple[Tensor, ...]:
        weights = regard.attention_with_weights(q, k, v, mask=mask.causal(), **options).weights
        return weights[...], *weights.measure(measure.entropy, measure.column_mass)

    expected = weights_and_measures()
    with autocast():
        actual = weights_and_measures()

    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


def test_autocast_does_not_change_float32_second_derivatives(autocast):
    q, k, v = (t.requires_grad_() for t in inputs(2, 2, n=20, head_dim=16, dtype=torch.float32))

    def second() -> Tensor:
        (first,) = torch.autograd.grad(causal(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), k)[0]

    expected = second()
    with autocast():
        actual = second()

    # torch may add in another order under autocast
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_attention_between_bfloat16_layers_works_under_autocast(autocast):
    torch.manual_seed(3)
    layer = Layer()
    x = normal(2, 20, 8, seed=1, dtype=torch.float32)

    with autocast():
        output = layer(x)
    actual = torch.autograd.grad(output.float().square().sum(), list(layer.parameters()))

    assert output.dtype == torch.bfloat16
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    # bfloat16 has 8 bits: three layers of it agree with float32 to a few percent of the largest
    torch.testing.assert_close(output.float(), layer(x), rtol=0.05, atol=0.05)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.05 * float(b.abs().max()))


def test_mixed_dtypes_under_autocast_give_the_wider_dtype(autocast):
    q, k, v = inputs(n=20, head_dim=16, dtype=torch.float32)

    with autocast():
        actual = causal(q.bfloat16(), k, v)

    assert actual.dtype == torch.float32
    assert torch.equal(actual, causal(q.bfloat16().float(), k, v))


# torch.compile: these backends need no C compiler.

compile_backends = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@compile_backends
@pytest.mark.parametrize("name", ["plain", "causal", "a lambda", "a table", "a tensor", "dropout", "additive", "sink"])
def test_compiled_caller_agrees_with_eager_forward_and_backward(backend, name):
    table, visible = normal(7, seed=4), torch.eye(4, dtype=torch.bool) | (normal(4, 4, seed=6) > 0)
    w, u = normal(3, 5, seed=7), normal(5, seed=8)

    def caller(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q * 2.0
        options = {}
        if name == "causal":
            options = dict(mask=mask.causal() & mask.sliding_window(3))
        elif name == "a lambda":
            options = dict(mask=lambda b, h, i, j: (i - j) % 2 == 0)
        elif name == "a table":
            options = dict(score=lambda s, b, h, i, j: s + table[i - j + 3])
        elif name == "a tensor":
            options = dict(mask=visible)
        elif name == "dropout":
            options = dict(dropout=0.3, seed=2)
        elif name == "additive":
            options = dict(score=score.additive(w, w, u))
        elif name == "sink":
            options = dict(normalizer=normalizer.sink(0.5), mask=mask.causal())
        return regard.attention(q, k, v, **options).sin()

    results = []
    for call in (caller, torch.compile(caller, backend=backend)):
        x = [t.requires_grad_() for t in inputs()]
        output = call(*x)
        results.append((output, *torch.autograd.grad(output.sum(), x)))

    for actual, expected in zip(*results, strict=True):
        close(actual, expected)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.long), "aot_eager"])
def test_compiled_module_trains_to_the_same_parameters(backend):
    torch.manual_seed(3)
    plain = nn.Sequential(Layer(), nn.GELU(), Layer())
    compiled = copy.deepcopy(plain)
    run = torch.compile(compiled, backend=backend)
    x = normal(2, 10, 8, seed=1, dtype=torch.float32)

    for model, call in ((plain, plain), (compiled, run)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()

    for a, b in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.long), "aot_eager"])
def test_compiled_caller_can_read_weights_at_any_length(backend):
    def caller(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        actual = regard.attention_with_weights(q, k, v, mask=mask.causal())
        return actual.output + 1.0, actual.lse * 2.0, actual.weights[1:3].sum(-1)

    compiled = torch.compile(caller, backend=backend)

    for n in (4, 7, 5, 300):
        close(compiled(*inputs(n=n)), caller(*inputs(n=n)))


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.long), "aot_eager"])
def test_other_public_functions_can_be_compiled(backend):
    q, k, v = inputs(2, n=6)

    def caller(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        packed = regard.attention_varlen(q, k, v, [2, 4], mask=mask.causal())
        like_torch = regard.scaled_dot_product_attention(q, k, v, is_causal=True)
        one, other = (regard.attention_with_weights(q, k[:, s], v[:, s]) for s in (slice(0, 2), slice(2, 6)))
        merged, lse = regard.merge_states((one.output, one.lse), (other.output, other.lse))
        return packed * 1.0, like_torch * 1.0, merged * 1.0, lse * 1.0

    close(torch.compile(caller, backend=backend)(q, k, v), caller(q, k, v))


def test_compiled_model_with_overridden_sdpa_agrees_with_eager():
    def caller(x: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x * 2.0, x, x, is_causal=True).sin()

    x = normal(1, 2, 5, 4, seed=1)
    expected = caller(x)

    with regard.override_sdpa():
        actual = torch.compile(caller, backend="eager")(x)

    close(actual, expected)


# Copies.

SIX = torch.tensor([0, 0, 1, 1, 1, 2])
MASKS: dict[str, Callable[[], Any]] = {
    "causal": mask.causal,
    "window": lambda: mask.sliding_window(2),
    "dilated": lambda: mask.dilated(2, 2),
    "chunked": lambda: mask.chunked(2, look_back=1),
    "strided": lambda: mask.strided(2),
    "fixed": lambda: mask.fixed(2),
    "padding": lambda: mask.padding([4]),
    "padding on the left": lambda: mask.padding([4], side="left"),
    "documents": lambda: mask.document(SIX),
    "documents of both": lambda: mask.document(SIX, SIX),
    "prefix": lambda: mask.causal() | mask.prefix(2),
    "prefixes": lambda: mask.prefix([3]),
    "global tokens": lambda: mask.global_tokens([0, 4]),
    "random blocks": lambda: mask.random_blocks(2, 1, seed=1),
    "longformer": lambda: mask.longformer(2, [3]),
    "bigbird": lambda: mask.bigbird(2, num_local_blocks=1, num_global_blocks=1, num_random_blocks=1),
    "a function": lambda: mask.from_function(lambda b, h, i, j: (i + SIX[j]) % 3 != 0),
    "a tensor": lambda: mask.tensor(torch.eye(6, dtype=torch.bool)),
    "combined": lambda: mask.causal() & ~mask.sliding_window(2) | mask.padding([1]),
    "random blocks of another seed": lambda: mask.random_blocks(2, 1, seed=3),
}
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
every_copy_method = pytest.mark.parametrize("copy_method", COPIES)


@every_copy_method
@pytest.mark.parametrize("name", MASKS)
def test_copied_mask_is_the_same_mask(copy_method, name):
    original = MASKS[name]()
    x = inputs(n=6)

    copied = COPIES[copy_method](original)

    assert str(copied) == str(original)
    assert torch.equal(copied.to_dense(6), original.to_dense(6))
    assert torch.equal(regard.attention(*x, mask=copied), regard.attention(*x, mask=original))
    assert torch.equal((copied & mask.causal()).to_dense(6), (original & mask.causal()).to_dense(6))
    assert regard.explain(*x, mask=copied).spec == regard.explain(*x, mask=original).spec


@every_copy_method
@pytest.mark.parametrize(
    "name, message",
    [("padding", "3 batch elements; got 1"), ("documents", "7 keys; got 6"), ("a tensor", r"got shape \(6, 6\)")],
)
def test_copied_mask_still_checks_shapes(copy_method, name, message):
    copied = COPIES[copy_method](MASKS[name]())

    with pytest.raises(regard.errors.ArgumentError, match=message):
        regard.attention(*inputs(3, n=7), mask=copied)


SCORES: dict[str, Callable[[], Any]] = {
    "scaled dot": lambda: score.scaled_dot(0.3),
    "bilinear": lambda: score.bilinear(normal(3, 3, seed=5)),
    "gaussian": lambda: score.gaussian(2.0),
    "additive": lambda: score.additive(normal(3, 3, seed=5), normal(3, 3, seed=6), normal(3, seed=7)),
    "alibi": lambda: score.scaled_dot().then(score.alibi()),
    "softcap": lambda: score.dot().then(score.softcap(2.0)),
    "bias": lambda: score.dot().then(score.bias(normal(6, 6, seed=5))),
    "t5 bias": lambda: score.dot().then(score.t5_bias(normal(8, 1, seed=5))),
    "relative keys": lambda: score.dot().then(score.shaw_keys(normal(5, 3, seed=5))),
}


@every_copy_method
@pytest.mark.parametrize("name", SCORES)
def test_copied_score_is_the_same_score(copy_method, name):
    original = SCORES[name]()
    x = inputs(n=6)

    copied = COPIES[copy_method](original)

    assert torch.equal(regard.attention(*x, score=copied), regard.attention(*x, score=original))


@every_copy_method
@pytest.mark.parametrize(
    "make", [normalizer.softmax, normalizer.sink, lambda: normalizer.sigmoid(-1.0), normalizer.relu]
)
def test_copied_normalizer_is_the_same_normalizer(copy_method, make):
    x = inputs(n=6)

    copied = COPIES[copy_method](make())

    assert torch.equal(regard.attention(*x, normalizer=copied), regard.attention(*x, normalizer=make()))


class StoredOptions(nn.Module):
    """A module that stores a score and a mask of its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, 6, dtype=torch.float64))
        self.score = score.scaled_dot().then(score.bias(self.table))
        self.mask = mask.causal() & mask.padding([5])

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q, k, v, score=self.score, mask=self.mask)


def test_deep_copy_of_a_module_has_its_own_parameters():
    original = StoredOptions()
    copied = copy.deepcopy(original)
    x = inputs(n=6)

    with torch.no_grad():
        copied.table += normal(6, 6, seed=9)
    copied(*x).square().sum().backward()

    assert original.table.grad is None
    assert copied.table.grad is not None and bool(copied.table.grad.abs().sum() > 0)
    assert not torch.allclose(copied(*x), original(*x))
    close(original(*x), regard.attention(*x, mask=mask.causal() & mask.padding([5])))


# Threads.


def test_threads_can_call_concurrently():
    calls = [
        dict(mask=mask.causal()),
        dict(mask=mask.sliding_window(30) & mask.padding([900])),
        dict(mask=lambda b, h, i, j: (i * j) % 7 != 0),
        dict(score=score.alibi()),
        dict(score=lambda s, b, h, i, j: s * 0.5 - abs(i - j) / 100),
        dict(normalizer=normalizer.sigmoid(-3.0), mask=mask.chunked(100)),
        dict(dropout=0.2, seed=4),
        dict(score=score.gaussian(2.0), mask=mask.global_tokens([0, 500])),
    ]
    x = inputs(1, 1, n=1000, head_dim=8, dtype=torch.float32)

    def work(options: dict[str, Any]) -> tuple[Tensor, ...]:
        q, k, v = (t.clone().requires_grad_() for t in x)
        output = regard.attention(q, k, v, **options)
        return output.detach(), *torch.autograd.grad(output.sum(), (q, k, v))

    expected = [work(options) for options in calls]
    actual: dict[int, list[tuple[Tensor, ...]]] = {n: [] for n in range(len(calls))}
    barrier = threading.Barrier(len(calls), timeout=60)

    def run(n: int) -> None:
        barrier.wait()
        for _ in range(2):
            actual[n].append(work(calls[n]))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)

    for n, outputs in actual.items():
        assert len(outputs) == 2, f"thread {n} failed"
        for results in outputs:
            for a, b in zip(results, expected[n], strict=True):
                assert torch.equal(a, b)


def test_threads_can_trace_and_plan_masks_concurrently():
    barrier = threading.Barrier(8, timeout=60)
    actual: dict[int, float] = {}

    def run(n: int) -> None:
        barrier.wait()
        for step in range(1, 20):
            visible = mask.from_function(lambda b, h, i, j, step=step: (i * step + j) % (n + 2) == 0)
            actual[n] = visible.density(50) + regard.explain((60, 4), (60, 4), (60, 4), mask=visible).cost.visited_pairs

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert len(actual) == 8
    for n, number in actual.items():
        visible = mask.from_function(lambda b, h, i, j, n=n: (i * 19 + j) % (n + 2) == 0)
        assert (
            number == visible.density(50) + regard.explain((60, 4), (60, 4), (60, 4), mask=visible).cost.visited_pairs
        )
