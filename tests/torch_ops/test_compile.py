"""torch.compile captures a call as one operator, with the results and gradients of the reference."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.func import grad, vmap

import regard
from regard import mask, normalizer, score
from tests.random_tensors import normal
from tests.torch_ops.cases import (
    CASES,
    EMBED_DIM,
    HEAD_DIM,
    HEADS,
    LENGTH,
    QUICK,
    close,
    inputs,
    output_and_gradients,
    parametrize_cases,
    reference_call,
    user_call,
)

pytestmark = pytest.mark.usefixtures("reset_compiler")
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")


def compile_full_graph(call: Callable[..., Any], backend: Any = "aot_eager", **options: Any) -> Callable[..., Any]:
    return torch.compile(call, backend=backend, fullgraph=True, **options)


@parametrize_cases(*QUICK)
def test_call_compiles_into_one_graph_forward_and_backward(name):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]

    close(output_and_gradients(compile_full_graph(user_call(case)), *x), output_and_gradients(reference_call(case), *x))


@pytest.mark.long
@needs_a_compiler
@pytest.mark.parametrize("name", ["a window", "alibi", "bias", "sink", "dropout", "a function of the values"])
def test_inductor_agrees_with_the_reference(name):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]

    close(
        output_and_gradients(compile_full_graph(user_call(case), backend="inductor"), *x),
        output_and_gradients(reference_call(case), *x),
    )


@pytest.mark.parametrize(
    "name", ["a window", "documents", "alibi", "bias", "relative values", "sink", "a learned scale"]
)
def test_options_made_outside_the_graph_are_supported(name):
    case = CASES[name]
    learned = [p.requires_grad_() for p in case.parameters()]
    options = case.options(*learned)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, **options) + 1.0

    x = [t.requires_grad_() for t in inputs()]
    output = compile_full_graph(call)(*x)
    actual = [output, *torch.autograd.grad(output.sin().sum(), [*x, *learned])]

    close(actual, output_and_gradients(reference_call(case), *x, *learned))


class Block(nn.Module):
    """Self-attention that stores a mask, a score with a parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(EMBED_DIM, 3 * EMBED_DIM)
        self.table = nn.Parameter(normal(LENGTH, LENGTH, seed=4, dtype=torch.float32))
        self.logit = nn.Parameter(normal(2, seed=5, dtype=torch.float32))
        self.register_buffer("ids", torch.arange(LENGTH) // 4)
        self.score = score.scaled_dot().then(score.bias(self.table))
        self.mask = mask.causal() & mask.sliding_window(4)

    def forward(self, x: Tensor, backend: str | None = None) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, EMBED_DIM // 2)).permute(2, 0, 3, 1, 4).unbind(0)
        visible = self.mask | mask.document(self.ids)
        sink = normalizer.sink(self.logit)
        return regard.attention(q, k, v, mask=visible, score=self.score, normalizer=sink, backend=backend)


def test_compiled_module_with_stored_options_has_the_same_gradients():
    torch.manual_seed(3)
    block = Block()
    compiled = compile_full_graph(block)
    x = normal(2, LENGTH, EMBED_DIM, seed=1, dtype=torch.float32)

    actual, expected = [], []
    for call, results in ((compiled, actual), (lambda x: block(x, "reference"), expected)):
        block.zero_grad()
        call(x).square().sum().backward()
        results.extend(p.grad.clone() for p in block.parameters())

    close(actual, expected)


@pytest.mark.parametrize(
    "shapes",
    [((6, 8), (7, 8), (7, 5)), ((2, 6, 8), (2, 7, 8), (2, 7, 5)), ((2, 4, 1, 8), (1, 2, 7, 8), (2, 2, 7, 5))],
    ids=["one sequence", "a batch without heads", "shared keys of a shared batch"],
)
def test_compiled_call_has_the_shapes_of_an_eager_call(shapes):
    def call(q: Tensor, k: Tensor, v: Tensor, backend: str | None = None) -> Tensor:
        return regard.attention(q, k, v, mask=mask.causal(), backend=backend)

    x = [normal(*shape, seed=n, dtype=torch.float32) for n, shape in enumerate(shapes)]

    close(
        output_and_gradients(compile_full_graph(call), *x),
        output_and_gradients(lambda *x: call(*x, backend="reference"), *x),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_compiled_call_has_the_dtypes_and_bits_of_an_eager_call(dtype):
    case = CASES["sink"]
    x = [*inputs(dtype=dtype), *case.parameters(dtype)]

    actual, eager = (
        output_and_gradients(compile_full_graph(user_call(case)), *x),
        output_and_gradients(user_call(case), *x),
    )

    assert [t.dtype for t in actual] == [dtype] * len(x) + [dtype]
    for a, b in zip(actual, eager, strict=True):
        assert torch.equal(a, b)  # the same backend
    rough = dict(rtol=3e-2, atol=3e-2) if dtype == torch.bfloat16 else dict(rtol=4e-3, atol=4e-3)
    close(
        actual,
        output_and_gradients(reference_call(case), *x),
        **(dict(rtol=1e-10, atol=1e-11) if dtype == torch.float64 else rough),
    )


def test_autocast_in_a_graph_rounds_nothing_further():
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q @ torch.eye(HEAD_DIM), k, v, mask=mask.causal())

    x = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, eager = output_and_gradients(compile_full_graph(call), *x), output_and_gradients(call, *x)
    exact = regard.attention(x[0].bfloat16().float(), *x[1:], mask=mask.causal(), backend="reference")

    assert actual[0].dtype == torch.float32
    close(actual[:1], [exact])
    close(actual, eager)


def test_compiled_call_draws_the_seed_of_an_eager_call():
    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, dropout=0.4)

    results = []
    for function in (compile_full_graph(call), call, call):
        torch.manual_seed(5)
        results.append(function(*inputs()))
    torch.manual_seed(6)

    assert torch.equal(results[0], results[1])
    assert not torch.equal(compile_full_graph(call)(*inputs()), results[1])


def test_one_graph_serves_every_length_batch_and_window():
    counter = CompileCounter()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near = mask.sliding_window(q.shape[-2] // 2 + 1)
        return regard.attention(q, k, v, mask=mask.causal() & near, score=score.alibi())

    compiled = compile_full_graph(call, counter, dynamic=True)
    for batch, n in ((2, 5), (3, 9), (4, 17)):
        x = inputs(batch, HEADS, n=n)
        close([compiled(*x)], [call(*x)])

    assert counter.frame_count == 1


def test_dynamic_lengths_are_right_forward_and_backward():
    case = CASES["alibi"]
    compiled = compile_full_graph(user_call(case), dynamic=True)

    for n in (5, 9, 17):
        x = [*inputs(n=n), *case.parameters()]
        close(output_and_gradients(compiled, *x), output_and_gradients(reference_call(case), *x))


def test_captured_tensor_is_read_at_each_call():
    table = torch.zeros(LENGTH, LENGTH)
    score_mod = score.bias(table)

    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, score=score_mod)

    compiled = compile_full_graph(call)
    before = compiled(*inputs())
    table.add_(normal(LENGTH, LENGTH, seed=8, dtype=torch.float32))
    after = compiled(*inputs())

    assert not torch.equal(before, after)
    close([after], [regard.attention(*inputs(), score=score_mod, backend="reference")])


def test_another_mask_object_gives_another_graph():
    def call(visible: Any, *x: Tensor) -> Tensor:
        return regard.attention(*x, mask=visible)

    compiled = compile_full_graph(call)

    for visible in (
        mask.causal(),
        mask.sliding_window(2),
        mask.sliding_window(4),
        mask.causal() & mask.sliding_window(2),
        EVERY_OTHER,
        None,
    ):
        close([compiled(visible, *inputs())], [regard.attention(*inputs(), mask=visible, backend="reference")])


EVERY_OTHER = mask.from_function(lambda b, h, i, j: (i - j) % 2 == 0)


def test_hidden_nan_value_changes_nothing_in_a_graph():
    case = CASES["a function of the values"]
    q, k, v = inputs()
    v[..., -2:, :] = torch.nan

    def call(v: Tensor, w: Tensor) -> Tensor:
        return regard.attention(q, k, v, mask=mask.prefix(LENGTH - 2), **case.options(w))

    actual = output_and_gradients(compile_full_graph(call), v, *case.parameters())

    assert all(bool(t.isfinite().all()) for t in actual)
    close(actual, output_and_gradients(call, v, *case.parameters()))


def test_scaled_dot_product_attention_compiles_into_one_graph():
    added = normal(LENGTH, LENGTH, seed=4, dtype=torch.float32)

    def call(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
        causal = regard.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        return causal + regard.scaled_dot_product_attention(q, k, v, attn_mask=added)

    def expected(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
        own = torch.nn.functional.scaled_dot_product_attention
        return own(q, k, v, is_causal=True, scale=0.3) + own(q, k, v, attn_mask=added)

    close(
        output_and_gradients(compile_full_graph(call), *inputs(), added),
        output_and_gradients(expected, *inputs(), added),
    )


def test_torch_func_can_be_compiled():
    def loss(*x: Tensor) -> Tensor:
        return regard.attention(*x, mask=mask.causal(), score=score.softcap(3.0)).sin().sum()

    def call(*x: Tensor) -> tuple[Tensor, ...]:
        function = vmap(lambda *x: regard.attention(*x, mask=mask.causal()))
        return *grad(loss, argnums=(0, 1, 2))(*x), function(*x), vmap(grad(loss))(*x)

    close(list(compile_full_graph(call)(*inputs())), list(call(*inputs())))


NOT_TRACEABLE: dict[str, Callable[..., Tensor]] = {
    "a mask": lambda *x: regard.attention(*x, mask=lambda b, h, i, j: i >= j),
    "a mask made in the graph": lambda *x: regard.attention(
        *x, mask=mask.causal() & mask.from_function(lambda b, h, i, j: i > 1)
    ),
    "a score modifier": lambda *x: regard.attention(*x, score=score.dot().then(lambda s, b, h, i, j: s + j)),
    "a score": lambda *x: regard.attention(*x, score=score.custom(lambda q, k: q @ k.mT)),
}
every_not_traceable = pytest.mark.parametrize("name", NOT_TRACEABLE)


def test_graph_break_draws_one_seed():
    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, mask=lambda b, h, i, j: i >= j, dropout=0.4)

    results = []
    for function in (torch.compile(call, backend="aot_eager"), call):
        torch.manual_seed(5)
        results.append((function(*inputs()), torch.rand(3)))

    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


@every_not_traceable
def test_function_breaks_the_graph_and_agrees_with_eager(name):
    call = NOT_TRACEABLE[name]

    close(
        output_and_gradients(torch.compile(call, backend="aot_eager"), *inputs()), output_and_gradients(call, *inputs())
    )


def test_function_in_a_full_graph_raises_error_with_the_fix():
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"got a function or an array. Convert a function outside"):
        compile_full_graph(NOT_TRACEABLE["a mask"])(*inputs())


def test_wrong_shape_raises_error_when_the_graph_runs():
    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, mask=mask.padding([1, 2, 3]))

    with pytest.raises(regard.errors.ArgumentError, match="each of 2 batch elements; got 3"):
        compile_full_graph(call)(*inputs())


def test_mask_made_in_a_graph_can_be_returned():
    @torch.compile(backend="aot_eager")
    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Any]:
        visible = mask.causal() & mask.sliding_window(2)
        return regard.attention_with_weights(q * 1.0, k, v, mask=visible).output * 1.0, visible

    output, visible = call(*inputs())

    assert str(visible) == "j <= p and p - 2 < j and j < p + 2"
    assert visible.density(10) == 0.19
    close([output], [regard.attention(*inputs(), mask=mask.causal() & mask.sliding_window(2))])
