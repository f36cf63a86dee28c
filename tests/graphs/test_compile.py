"""torch.compile takes a call as one operator: one graph, the numbers of the definition, gradients to everything."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.func import grad, vmap

import regard
from regard import mask, score, weigh
from tests.graphs.cases import CASES, HEADS, LENGTH, QUICK, WIDTH, answers, asked, close, defined, inputs, normal, some

needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor wants g++")


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def whole(call: Callable[..., Any], backend: Any = "aot_eager", **options: Any) -> Callable[..., Any]:
    return torch.compile(call, backend=backend, fullgraph=True, **options)


@some(*QUICK)
def test_a_call_is_part_of_one_graph_forward_and_backward(name):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]

    close(answers(whole(asked(case)), *x), answers(defined(case), *x))


@pytest.mark.long
@needs_a_compiler
@pytest.mark.parametrize("name", ["a window", "alibi", "bias", "sink", "dropout", "a function of the values"])
def test_inductor_gives_the_same_numbers(name):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]

    close(answers(whole(asked(case), backend="inductor"), *x), answers(defined(case), *x))


@pytest.mark.parametrize(
    "name", ["a window", "documents", "alibi", "bias", "relative values", "sink", "a learned scale"]
)
def test_masks_scores_and_weighings_may_be_made_outside(name):
    case = CASES[name]
    learned = [p.requires_grad_() for p in case.parameters()]
    made = case.options(*learned)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, **made) + 1.0

    x = [t.requires_grad_() for t in inputs()]
    output = whole(call)(*x)
    found = [output, *torch.autograd.grad(output.sin().sum(), [*x, *learned])]

    close(found, answers(defined(case), *x, *learned))


class Block(nn.Module):
    """Self-attention that keeps a mask, a rule of its parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.table = nn.Parameter(normal(LENGTH, LENGTH, seed=4))
        self.logit = nn.Parameter(normal(2, seed=5))
        self.register_buffer("ids", torch.arange(LENGTH) // 4)
        self.score = score.scaled_dot().then(score.bias(self.table))
        self.mask = mask.causal() & mask.window(4)

    def forward(self, x: Tensor, engine: str | None = None) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4).unbind(0)
        seen = self.mask | mask.documents(self.ids)
        sink = weigh.sink(self.logit)
        return regard.attention(q, k, v, mask=seen, score=self.score, weigh=sink, engine=engine)


def test_a_module_that_keeps_its_masks_and_rules_is_trained_to_the_same_parameters():
    torch.manual_seed(3)
    block = Block()
    compiled = whole(block)
    x = normal(2, LENGTH, WIDTH, seed=1)

    found, expected = [], []
    for call, results in ((compiled, found), (lambda x: block(x, "reference"), expected)):
        block.zero_grad()
        call(x).square().sum().backward()
        results.extend(p.grad.clone() for p in block.parameters())

    close(found, expected)


@pytest.mark.parametrize(
    "shapes",
    [((6, 8), (7, 8), (7, 5)), ((2, 6, 8), (2, 7, 8), (2, 7, 5)), ((2, 4, 1, 8), (1, 2, 7, 8), (2, 2, 7, 5))],
    ids=["one sequence", "a batch without heads", "shared keys of a shared batch"],
)
def test_shapes_are_those_of_an_eager_call(shapes):
    def call(q: Tensor, k: Tensor, v: Tensor, engine: str | None = None) -> Tensor:
        return regard.attention(q, k, v, mask=mask.causal(), engine=engine)

    x = [normal(*shape, seed=n) for n, shape in enumerate(shapes)]

    close(answers(whole(call), *x), answers(lambda *x: call(*x, engine="reference"), *x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_precisions_are_those_of_an_eager_call(dtype):
    case = CASES["sink"]
    x = [*inputs(dtype=dtype), *case.parameters(dtype)]

    found, eager = answers(whole(asked(case)), *x), answers(asked(case), *x)

    assert [t.dtype for t in found] == [dtype] * len(x) + [dtype]
    for a, b in zip(found, eager, strict=True):
        assert torch.equal(a, b)  # the same engine, the same numbers
    rough = dict(rtol=3e-2, atol=3e-2) if dtype == torch.bfloat16 else dict(rtol=4e-3, atol=4e-3)
    close(found, answers(defined(case), *x), **(dict(rtol=1e-10, atol=1e-11) if dtype == torch.float64 else rough))


def test_autocast_mixes_precisions_and_rounds_nothing_further():
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q @ torch.eye(WIDTH), k, v, mask=mask.causal())

    x = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, eager = answers(whole(call), *x), answers(call, *x)
    exact = regard.attention(x[0].bfloat16().float(), *x[1:], mask=mask.causal(), engine="reference")

    assert found[0].dtype == torch.float32
    close(found[:1], [exact])
    close(found, eager)


def test_a_seed_that_is_drawn_is_the_one_an_eager_call_draws():
    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, dropout=0.4)

    results = []
    for each in (whole(call), call, call):
        torch.manual_seed(5)
        results.append(each(*inputs()))
    torch.manual_seed(6)

    assert torch.equal(results[0], results[1])
    assert not torch.equal(whole(call)(*inputs()), results[1])


def test_one_graph_serves_every_length_batch_and_window():
    counter = CompileCounter()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near = mask.window(q.shape[-2] // 2 + 1)
        return regard.attention(q, k, v, mask=mask.causal() & near, score=score.alibi())

    compiled = whole(call, counter, dynamic=True)
    for batch, n in ((2, 5), (3, 9), (4, 17)):
        x = inputs(batch, HEADS, n=n)
        close([compiled(*x)], [call(*x)])

    assert counter.frame_count == 1


def test_lengths_change_forward_and_backward():
    case = CASES["alibi"]
    compiled = whole(asked(case), dynamic=True)

    for n in (5, 9, 17):
        x = [*inputs(n=n), *case.parameters()]
        close(answers(compiled, *x), answers(defined(case), *x))


def test_the_numbers_of_a_captured_tensor_are_read_at_each_call():
    table = torch.zeros(LENGTH, LENGTH)
    rule = score.bias(table)

    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, score=rule)

    compiled = whole(call)
    before = compiled(*inputs())
    table.add_(normal(LENGTH, LENGTH, seed=8))
    after = compiled(*inputs())

    assert not torch.equal(before, after)
    close([after], [regard.attention(*inputs(), score=rule, engine="reference")])


def test_another_mask_in_the_same_place_is_another_graph():
    def call(seen: Any, *x: Tensor) -> Tensor:
        return regard.attention(*x, mask=seen)

    compiled = whole(call)

    for seen in (mask.causal(), mask.window(2), mask.window(4), mask.causal() & mask.window(2), EVERY_OTHER, None):
        close([compiled(seen, *inputs())], [regard.attention(*inputs(), mask=seen, engine="reference")])


EVERY_OTHER = mask.where(lambda b, h, i, j: (i - j) % 2 == 0)


def test_a_hidden_value_that_is_not_a_number_reaches_nothing():
    case = CASES["a function of the values"]
    q, k, v = inputs()
    v[..., -2:, :] = torch.nan

    def call(v: Tensor, w: Tensor) -> Tensor:
        return regard.attention(q, k, v, mask=mask.prefix(LENGTH - 2), **case.options(w))

    found = answers(whole(call), v, *case.parameters())

    assert all(bool(t.isfinite().all()) for t in found)
    close(found, answers(call, v, *case.parameters()))


def test_torchs_own_call_is_part_of_a_graph():
    added = normal(LENGTH, LENGTH, seed=4)

    def call(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
        causal = regard.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        return causal + regard.scaled_dot_product_attention(q, k, v, attn_mask=added)

    def expected(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
        own = torch.nn.functional.scaled_dot_product_attention
        return own(q, k, v, is_causal=True, scale=0.3) + own(q, k, v, attn_mask=added)

    close(answers(whole(call), *inputs(), added), answers(expected, *inputs(), added))


def test_torch_func_inside_a_graph():
    def loss(*x: Tensor) -> Tensor:
        return regard.attention(*x, mask=mask.causal(), score=score.softcap(3.0)).sin().sum()

    def call(*x: Tensor) -> tuple[Tensor, ...]:
        each = vmap(lambda *x: regard.attention(*x, mask=mask.causal()))
        return *grad(loss, argnums=(0, 1, 2))(*x), each(*x), vmap(grad(loss))(*x)

    close(list(whole(call)(*inputs())), list(call(*inputs())))


UNREADABLE: dict[str, Callable[..., Tensor]] = {
    "a mask": lambda *x: regard.attention(*x, mask=lambda b, h, i, j: i >= j),
    "a mask that is kept here": lambda *x: regard.attention(
        *x, mask=mask.causal() & mask.where(lambda b, h, i, j: i > 1)
    ),
    "a rule": lambda *x: regard.attention(*x, score=score.dot().then(lambda s, b, h, i, j: s + j)),
    "a score": lambda *x: regard.attention(*x, score=score.custom(lambda q, k: q @ k.mT)),
}
every_unreadable = pytest.mark.parametrize("name", UNREADABLE)


def test_a_call_that_stops_the_graph_draws_one_seed():
    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, mask=lambda b, h, i, j: i >= j, dropout=0.4)

    results = []
    for each in (torch.compile(call, backend="aot_eager"), call):
        torch.manual_seed(5)
        results.append((each(*inputs()), torch.rand(3)))

    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


@every_unreadable
def test_a_function_stops_the_graph_and_gives_the_same_numbers(name):
    call = UNREADABLE[name]

    close(answers(torch.compile(call, backend="aot_eager"), *inputs()), answers(call, *inputs()))


def test_a_function_in_a_whole_graph_is_refused_with_what_to_do():
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"got a function or an array. Keep a function outside"):
        whole(UNREADABLE["a mask"])(*inputs())


def test_what_does_not_fit_is_refused_when_the_graph_runs():
    def call(*x: Tensor) -> Tensor:
        return regard.attention(*x, mask=mask.padding([1, 2, 3]))

    with pytest.raises(regard.errors.SpecError, match="each of batch = 2; got 3"):
        whole(call)(*inputs())


def test_a_mask_made_in_a_graph_may_leave_it():
    @torch.compile(backend="aot_eager")
    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Any]:
        seen = mask.causal() & mask.window(2)
        return regard.attend(q * 1.0, k, v, mask=seen).output * 1.0, seen

    output, seen = call(*inputs())

    assert str(seen) == "j <= p and p - 2 < j and j < p + 2"
    assert seen.density(10) == 0.19
    close([output], [regard.attention(*inputs(), mask=mask.causal() & mask.window(2))])
