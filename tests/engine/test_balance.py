"""Sinkhorn's weighing against POT, against its closed form, and against a loop over the whole matrix."""

import math
from typing import Any

import ot
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import mask, measure, score, weigh
from regard.attention import TILED
from regard.engine.native import Build, Native, builds
from regard.errors import SpecError
from regard.spec.read import read

every_engine = pytest.mark.parametrize("engine", ["native", "tiled", "reference"])


def looped(scores: Tensor, iterations: int) -> Tensor:
    """The weights by rows and columns of the whole matrix in turn; hidden scores are -inf."""
    v = torch.zeros_like(scores[..., :1, :])
    for _ in range(iterations - 1):
        u = -_lse(scores + v, -1)
        v = -_lse(scores + u, -2)
    sees = (scores != -math.inf).any(-1, keepdim=True)
    return torch.where(sees, torch.softmax(torch.where(sees, scores + v, 0.0), -1), 0.0)


def _lse(scores: Tensor, dim: int) -> Tensor:
    nothing = (scores == -math.inf).all(dim, keepdim=True)
    return torch.where(nothing, 0.0, torch.logsumexp(torch.where(nothing, 0.0, scores), dim, keepdim=True))


def numbers(n_q: int, n_k: int, heads: int = 2, key_heads: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = ((heads, n_q), (key_heads, n_k), (key_heads, n_k))
    return [torch.randn(2, *size, 8, dtype=dtype, requires_grad=True) for size in sizes]


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT / 8**0.5


def agrees(engine: str, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, iterations: int = 4, **options: Any) -> None:
    """Weights, output and the gradients of q, k and v."""
    expected = looped(scores, iterations)
    outputs = expected @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    found = regard.attend(q, k, v, weigh=weigh.sinkhorn(iterations), engine=engine, **options)
    torch.testing.assert_close(found.weights[...].to(expected), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.output.to(outputs), outputs, rtol=1e-4, atol=2e-5)
    with torch.no_grad():
        alone = regard.attention(q, k, v, weigh=weigh.sinkhorn(iterations), engine=engine, **options)
    assert torch.equal(alone, found.output), "gradients change the bits"
    both = (torch.autograd.grad(x.sin().sum(), (q, k, v), retain_graph=True) for x in (found.output, outputs))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@every_engine
@pytest.mark.parametrize("iterations", [1, 2, 3, 12])
def test_it_is_rows_and_columns_in_turn(engine: str, iterations: int) -> None:
    q, k, v = numbers(40, 50)

    agrees(engine, q, k, v, scores_of(q, k), iterations)


def test_one_iteration_is_softmax_to_the_bit() -> None:
    q, k, v = numbers(30, 30)

    assert torch.equal(regard.attention(q, k, v, weigh=weigh.sinkhorn(1)), regard.attention(q, k, v))


@pytest.mark.parametrize("n_q, n_k", [(60, 60), (40, 90)])
def test_the_limit_is_the_plan_of_optimal_transport(n_q: int, n_k: int) -> None:
    q, k, v = (x.detach() for x in numbers(n_q, n_k, dtype=torch.float64))
    scores = scores_of(q, k)[1, 1].numpy()
    expected = n_q * ot.sinkhorn([1 / n_q] * n_q, [1 / n_k] * n_k, -scores, reg=1.0, numItermax=100_000, stopThr=1e-15)

    weights = regard.attend(q, k, v, weigh=weigh.sinkhorn(400)).weights

    torch.testing.assert_close(weights[1, 1], torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
    (received,) = weights.measure(measure.received)
    torch.testing.assert_close(received, torch.full_like(received, n_q / n_k), rtol=1e-9, atol=1e-9)


@every_engine
def test_two_by_two_has_a_closed_form(engine: str) -> None:
    added = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
    nothing = torch.zeros(2, 1)

    found = regard.attend(
        nothing, nothing, nothing, score=score.bias(added), weigh=weigh.sinkhorn(60), engine=engine
    ).weights[...]

    root = math.exp((1.0 + 0.5) / 2)
    assert float(found[0, 0]) == pytest.approx(root / (1 + root), abs=1e-6)
    assert float(found[1, 1]) == pytest.approx(0.679179, abs=1e-6)


def test_what_a_row_or_a_column_adds_to_its_scores_changes_nothing_in_the_limit() -> None:
    q, k, v = (x.detach() for x in numbers(20, 20, dtype=torch.float64))
    rows, columns = torch.randn(20, 1, dtype=torch.float64), torch.randn(1, 20, dtype=torch.float64)

    plain = regard.attention(q, k, v, weigh=weigh.sinkhorn(300))
    shifted = regard.attention(q, k, v, score=score.bias(rows + columns), weigh=weigh.sinkhorn(300))

    torch.testing.assert_close(shifted, plain)


@every_engine
def test_keys_that_heads_share_receive_from_each_head_by_itself(engine: str) -> None:
    q, k, v = numbers(30, 40, heads=4, key_heads=2)

    agrees(engine, q, k, v, scores_of(q, k))


@every_engine
@pytest.mark.parametrize("name", ["documents", "window", "padding", "some see nothing", "one sees one"])
def test_masks_that_leave_a_balance_are_kept_to(engine: str, name: str) -> None:
    q, k, v = numbers(36, 36)
    i, j = torch.arange(36)[:, None], torch.arange(36)
    may, given = {
        "documents": (i // 9 == j // 9, mask.documents(torch.arange(36) // 9)),
        "window": ((i - j).abs() < 7, mask.window(7)),
        "padding": ((j < 20).expand(36, 36), mask.padding(torch.tensor([20, 20]))),
        "some see nothing": ((i % 3 != 0).expand(36, 36), lambda b, h, i, j: i % 3 != 0),
        "one sees one": (i == j, lambda b, h, i, j: i == j),
    }[name]

    agrees(engine, q, k, v, scores_of(q, k).masked_fill(~may, -math.inf), mask=given)


@every_engine
def test_rules_speak_of_the_same_positions_when_keys_ask(engine: str) -> None:
    q, k, v = numbers(30, 40)
    i, j = torch.arange(30)[:, None], torch.arange(40)
    slopes = torch.tensor([0.3, 0.1])
    changed = scores_of(q, k) - slopes[:, None, None] * (i + 10 - j).abs() + 0.01 * i * (j % 3) + (40 - 30) * 0.1

    def rule(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + 0.01 * i * (j % 3) + 1.0

    agrees(engine, q, k, v, changed, score=score.scaled_dot().then(score.alibi(slopes)).then(rule))


@every_engine
def test_a_start_of_each_batch_element_moves_with_it(engine: str) -> None:
    q, k, v = numbers(12, 30)
    start = torch.tensor([4, 15])
    p = start.view(2, 1, 1, 1) + torch.arange(12)[:, None]
    may = (p - torch.arange(30)).abs() < 4

    agrees(engine, q, k, v, scores_of(q, k).masked_fill(~may, -math.inf), mask=mask.window(4), start=start)


@every_engine
@pytest.mark.parametrize("kind", ["additive", "custom", "relative keys"])
def test_scores_that_are_no_product_are_turned_over_as_well(engine: str, kind: str) -> None:
    q, k, v = numbers(14, 17)
    w_q, w_k, u, table = torch.randn(8, 5), torch.randn(8, 5), torch.randn(5), torch.randn(7, 8)
    distance = (torch.arange(17) - torch.arange(14)[:, None] - 3).clamp(-3, 3) + 3
    chosen, scores = {
        "additive": (
            score.additive(w_q, w_k, u),
            torch.tanh((q @ w_q).unsqueeze(-2) + (k @ w_k).unsqueeze(-3)) @ u,
        ),
        "custom": (score.custom(lambda a, b: (a * 0.3).tanh() @ b.mT), (q * 0.3).tanh() @ k.mT),
        "relative keys": (
            score.scaled_dot().then(score.shaw_keys(table)),
            scores_of(q, k) + (q.unsqueeze(-2) * table[distance]).sum(-1) / 8**0.5,
        ),
    }[kind]
    if engine == "native" and kind == "custom":
        pytest.skip("native knows products and additive scores")

    agrees(engine, q, k, v, scores, score=chosen)


def test_derivatives_of_first_and_second_order() -> None:
    q, k, v = (torch.randn(1, 1, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    added = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
        return regard.attention(q, k, v, score=score.bias(added), weigh=weigh.sinkhorn(3))

    assert gradcheck(run, (q, k, v, added))
    assert gradgradcheck(run, (q, k, v, added))


def test_dropout_leaves_the_balance_alone() -> None:
    q, k, v = (x.detach() for x in numbers(30, 30))

    found = regard.attend(q, k, v, weigh=weigh.sinkhorn(4), dropout=0.4, seed=3)

    kept = regard.attend(torch.zeros_like(q), k, torch.eye(30).expand(2, 2, 30, 30), dropout=0.4, seed=3).output * 30
    torch.testing.assert_close(found.weights[...], regard.attend(q, k, v, weigh=weigh.sinkhorn(4)).weights[...])
    torch.testing.assert_close(found.output, (found.weights[...] * kept) @ v, rtol=1e-4, atol=1e-5)


def test_packed_sequences_are_balanced_apart() -> None:
    lengths = [5, 9, 3]
    q, k, v = (torch.randn(2, 17, 4) for _ in range(3))

    found = regard.attention_packed(q, k, v, lengths, lengths, weigh=weigh.sinkhorn(5))

    parts = zip(*(x.split(lengths, dim=1) for x in (q, k, v)), strict=True)
    apart = [regard.attention(*(x[None] for x in part), weigh=weigh.sinkhorn(5))[0] for part in parts]
    torch.testing.assert_close(found, torch.cat(apart, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "given, side",
    [
        (mask.causal(), "later"),
        (mask.causal() & mask.window(5), "later"),
        (torch.ones(20, 20, dtype=torch.bool).triu(), "earlier"),
        (lambda b, h, i, j: (j < i) | (i == j), "later"),
    ],
    ids=["causal", "causal window", "a tensor", "a function"],
)
def test_a_mask_that_leaves_only_the_identity_is_refused(given: Any, side: str) -> None:
    q = torch.randn(1, 1, 20, 4)

    with pytest.raises(SpecError, match=f"no query attends to {side} keys than its own.*weigh.softmax"):
        regard.attention(q, q, q, mask=given, weigh=weigh.sinkhorn(3))


@every_engine
@pytest.mark.parametrize("name", ["one pair hidden", "decode step", "chunk", "causal padding", "start by element"])
def test_masks_over_earlier_keys_that_leave_a_choice_are_accepted(engine: str, name: str) -> None:
    n_q, n_k, start = {"one pair hidden": (2, 48, 46), "decode step": (1, 30, 29), "chunk": (5, 20, 15)}.get(
        name, (12, 12, 0)
    )
    q, k, v = numbers(n_q, n_k)
    i, j = torch.arange(n_q)[:, None], torch.arange(n_k)
    causal, starts = j <= start + i, torch.tensor([3, 5])
    visible, chosen, options = {
        "causal padding": (causal & (j < 7), mask.causal() & mask.padding(torch.tensor([7, 7])), {}),
        "start by element": (j <= starts.view(2, 1, 1, 1) + i, mask.causal(), {"start": starts}),
    }.get(name, (causal, mask.causal(), {}))

    agrees(engine, q, k, v, scores_of(q, k).masked_fill(~visible, -math.inf), mask=chosen, **options)


@pytest.mark.parametrize("kind", ["ragged", "runs"])
@pytest.mark.parametrize("seed", range(40))
def test_a_refused_mask_leaves_one_key_to_each_query(seed: int, kind: str) -> None:
    """Whether a pair can keep weight is a linear program: the largest weight it has in any balanced matrix.

    Every such mask whose rows are runs of keys from the first one is refused, but not every mask with gaps.
    """
    generator = torch.Generator().manual_seed(seed)
    n_q, n_k = (int(torch.randint(2, 5, (), generator=generator)) for _ in range(2))
    if kind == "runs":
        lengths = torch.minimum(
            torch.randint(0, n_k + 1, (n_q,), generator=generator), torch.arange(1, n_q + 1) + n_k - n_q
        )
        visible = torch.arange(n_k) < lengths[:, None]
    else:
        visible = (torch.rand(n_q, n_k, generator=generator) < 0.8).tril(n_k - n_q)
    visible = visible.flip(0, 1) if seed % 2 else visible
    q, k = torch.randn(n_q, 3, generator=generator), torch.randn(n_k, 3, generator=generator)

    try:
        regard.attention(q, k, k, mask=visible, weigh=weigh.sinkhorn(3))
        is_refused = False
    except SpecError:
        is_refused = True

    is_square = int(visible.any(1).sum()) == int(visible.any(0).sum())
    largest = largest_balanced_weights(visible)
    leaves_one_key = largest is not None and bool(((largest > 1e-9).sum(1) <= 1).all())
    hides_a_choice = bool((visible.sum(1) > 1).any())
    leaves_identity = is_square and leaves_one_key and hides_a_choice
    assert is_refused == leaves_identity if kind == "runs" else is_refused <= leaves_identity, (visible, largest)


def largest_balanced_weights(visible: Tensor) -> Tensor | None:
    """The largest weight each pair can have in a matrix of equal row sums and equal column sums; None without any."""
    rows, columns = visible.any(1).nonzero()[:, 0], visible.any(0).nonzero()[:, 0]
    inner = visible[rows][:, columns]
    n, m = inner.shape
    if n == 0:
        return None
    sums = torch.cat([torch.eye(n).repeat_interleave(m, 1), torch.eye(m).repeat(1, n)]).numpy()
    targets = [1.0] * n + [n / m] * m
    bounds = [(0.0, 1.0 if pair else 0.0) for pair in inner.flatten().tolist()]
    largest = torch.zeros(n * m)
    for pair in inner.flatten().nonzero()[:, 0].tolist():
        goal = [0.0] * (n * m)
        goal[pair] = -1.0
        solution = linprog(goal, A_eq=sums, b_eq=targets, bounds=bounds)
        if solution.status != 0:
            return None
        largest[pair] = -solution.fun
    return largest.view(n, m)


@every_engine
@pytest.mark.parametrize("n_q, n_k", [(3, 0), (0, 5), (0, 0)])
def test_without_queries_or_keys_the_output_is_zero(engine: str, n_q: int, n_k: int) -> None:
    q, k, v = numbers(n_q, n_k)

    output = regard.attention(q, k, v, weigh=weigh.sinkhorn(2), engine=engine)
    output.sum().backward()

    assert torch.equal(output, torch.zeros(2, 2, n_q, 8))
    assert q.grad is not None and not q.grad.any()


@every_engine
def test_transformed_functions_compute_the_same_bits(engine: str) -> None:
    q, k, v = (x.detach() for x in numbers(9, 12))

    def run(q: Tensor) -> Tensor:
        return regard.attention(q, k, v, weigh=weigh.sinkhorn(4), engine=engine)

    plain = run(q)
    with_tangent, tangent = torch.func.jvp(run, (q,), (torch.ones_like(q),))
    stacked = torch.func.vmap(run)(q.expand(2, *q.shape))

    assert torch.equal(with_tangent, plain)
    assert torch.equal(stacked, plain.expand(2, *plain.shape))
    step = 1e-3
    difference = (run(q + step) - run(q - step)) / (2 * step)
    torch.testing.assert_close(tangent, difference, rtol=1e-2, atol=1e-3)  # float32 differences


@pytest.mark.parametrize("iterations", [0, -2, 2.5, True])
def test_there_must_be_an_iteration(iterations: Any) -> None:
    rule = "must be a whole number" if iterations in (2.5, True) else "must take from 1 to 10,000 iterations"
    with pytest.raises(SpecError, match=f"{rule}; got {iterations}"):
        weigh.sinkhorn(iterations)


def test_there_is_no_lse() -> None:
    q = torch.randn(4, 2)

    with pytest.raises(SpecError, match="sinkhorn has one a row and one a column"):
        _ = regard.attend(q, q, q, weigh=weigh.sinkhorn(2)).lse


def test_a_graph_has_it_too() -> None:
    q, k, v = numbers(20, 20)
    compiled = torch.compile(
        lambda q, k, v: regard.attention(q, k, v, weigh=weigh.sinkhorn(3)), fullgraph=True, backend="aot_eager"
    )

    expected = regard.attention(q, k, v, weigh=weigh.sinkhorn(3))
    found = compiled(q, k, v)

    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


class Counted:
    """How often the compiled engine is asked for what keys receive, and for a pass that does not tell it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received = self.forward = 0
        received, forward = Native.received, Native.forward

        def counting_received(engine: Native, *asked: Any) -> Any:
            self.received += 1
            return received(engine, *asked)

        def counting_forward(engine: Native, *asked: Any) -> Any:
            self.forward += 1
            return forward(engine, *asked)

        monkeypatch.setattr(Native, "received", counting_received)
        monkeypatch.setattr(Native, "forward", counting_forward)


needs_core = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")


@needs_core
def test_a_pass_over_rows_tells_what_keys_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach() for x in numbers(40, 50))
    counted = Counted(monkeypatch)

    regard.attention(q, k, v, weigh=weigh.sinkhorn(6), engine="native")

    assert (counted.received, counted.forward) == (5, 1)  # the last one is the answer


@needs_core
def test_gradients_take_no_more_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = numbers(40, 50)
    counted = Counted(monkeypatch)

    regard.attention(q, k, v, weigh=weigh.sinkhorn(6), engine="native")

    assert (counted.received, counted.forward) == (5, 1)


@needs_core
def test_keys_that_nobody_sees_take_one_pass_more(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach() for x in numbers(40, 50))
    scores = scores_of(q, k).masked_fill(torch.arange(50) >= torch.tensor([50, 31]).view(2, 1, 1, 1), -math.inf)
    counted = Counted(monkeypatch)

    found = regard.attention(q, k, v, weigh=weigh.sinkhorn(6), mask=mask.padding([50, 31]), engine="native")

    torch.testing.assert_close(found, looped(scores, 6) @ v, rtol=1e-4, atol=2e-5)
    assert (counted.received, counted.forward) == (5, 2)


@needs_core
def test_a_key_that_is_all_but_forgotten_still_gets_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(-300) is 0 in float32, and its logarithm is not."""
    q, k, v = (x.detach() for x in numbers(40, 50))
    lowered = torch.zeros(50)
    lowered[7] = -300.0
    counted = Counted(monkeypatch)

    found = regard.attend(q, k, v, weigh=weigh.sinkhorn(6), score=score.bias(lowered), engine="native")

    torch.testing.assert_close(found.output, looped(scores_of(q, k) + lowered, 6) @ v, rtol=1e-4, atol=2e-5)
    assert float(found.weights[0, 0, :, 7].sum()) == pytest.approx(40 / 50, rel=0.05)
    assert counted.received == 5 and counted.forward > 1


@needs_core
@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("heads, key_heads, n_q, n_k", [(4, 2, 101, 77), (1, 1, 1, 300), (2, 1, 48, 5), (3, 3, 7, 1)])
def test_what_keys_receive_is_the_sum_of_their_weights(
    build: Build, heads: int, key_heads: int, n_q: int, n_k: int
) -> None:
    q, k, v = (x.detach() for x in numbers(n_q, n_k, heads, key_heads))
    question = read(q, k, v, mask=mask.window(30), score=score.softcap(3.0))

    told = Native(TILED, build).received(question.spec, question.inputs())

    assert told is not None
    found = regard.attend(q.double(), k.double(), v.double(), mask=mask.window(30), score=score.softcap(3.0))
    torch.testing.assert_close(told[0].double(), found.lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(told[1], found.weights.measure(measure.received).received, rtol=1e-5, atol=1e-5)


@needs_core
def test_any_number_of_threads_gives_the_same_bits() -> None:
    q, k, v = (x.detach() for x in numbers(500, 300))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(regard.attention(q, k, v, weigh=weigh.sinkhorn(4), engine="native"))
    finally:
        torch.set_num_threads(before)

    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@needs_core
def test_what_is_no_number_is_passed_on_and_what_is_hidden_is_not() -> None:
    q, k, v = (x.detach() for x in numbers(40, 50))
    k[0, :, 45] = math.nan
    seen, hidden = torch.arange(50) < 50, torch.arange(50) < 45

    assert regard.attention(q, k, v, weigh=weigh.sinkhorn(3), mask=seen[None], engine="native")[0].isnan().all()
    found = regard.attention(q, k, v, weigh=weigh.sinkhorn(3), mask=hidden[None], engine="native")
    expected = looped(scores_of(q, torch.nan_to_num(k)).masked_fill(~hidden, -math.inf), 3) @ v
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
