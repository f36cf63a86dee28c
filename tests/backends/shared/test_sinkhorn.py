"""Sinkhorn normalization agrees with POT, with its closed form, and with a loop over the dense matrix."""

import math
from typing import Any

import ot
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import mask, measure, normalizer, score
from regard.backends.native.backend import KernelBuild, NativeBackend, builds
from regard.backends.registry import BACKENDS_BY_NAME
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.errors import ArgumentError

every_backend = pytest.mark.parametrize("backend", ["native", "tiled", "reference"])


def dense_sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """The weights of the dense matrix, by rows and columns in turn; hidden scores are -inf."""
    v = torch.zeros_like(scores[..., :1, :])
    for _ in range(iterations - 1):
        u = -_lse(scores + v, -1)
        v = -_lse(scores + u, -2)
    sees = (scores != -math.inf).any(-1, keepdim=True)
    return torch.where(sees, torch.softmax(torch.where(sees, scores + v, 0.0), -1), 0.0)


def _lse(scores: Tensor, dim: int) -> Tensor:
    nothing = (scores == -math.inf).all(dim, keepdim=True)
    return torch.where(nothing, 0.0, torch.logsumexp(torch.where(nothing, 0.0, scores), dim, keepdim=True))


def random_inputs(
    n_q: int, n_k: int, heads: int = 2, kv_heads: int = 2, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    sizes = ((heads, n_q), (kv_heads, n_k), (kv_heads, n_k))
    return [torch.randn(2, *size, 8, dtype=dtype, requires_grad=True) for size in sizes]


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT / 8**0.5


def assert_agrees(
    backend: str, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, iterations: int = 4, **options: Any
) -> None:
    """Compare weights, output and the gradients of q, k and v with the dense formula."""
    expected = dense_sinkhorn(scores, iterations)
    outputs = expected @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    actual = regard.attention_with_weights(
        q, k, v, normalizer=normalizer.sinkhorn(iterations), backend=backend, **options
    )
    torch.testing.assert_close(actual.weights[...].to(expected), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual.output.to(outputs), outputs, rtol=1e-4, atol=2e-5)
    with torch.no_grad():
        alone = regard.attention(q, k, v, normalizer=normalizer.sinkhorn(iterations), backend=backend, **options)
    assert torch.equal(alone, actual.output), "gradients change the bits"
    both = (torch.autograd.grad(x.sin().sum(), (q, k, v), retain_graph=True) for x in (actual.output, outputs))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@every_backend
@pytest.mark.parametrize("iterations", [1, 2, 3, 12])
def test_sinkhorn_normalizes_rows_and_columns_in_turn(backend: str, iterations: int) -> None:
    q, k, v = random_inputs(40, 50)

    assert_agrees(backend, q, k, v, scores_of(q, k), iterations)


def test_one_iteration_has_the_bits_of_softmax() -> None:
    q, k, v = random_inputs(30, 30)

    assert torch.equal(regard.attention(q, k, v, normalizer=normalizer.sinkhorn(1)), regard.attention(q, k, v))


@pytest.mark.parametrize("n_q, n_k", [(60, 60), (40, 90)])
def test_limit_is_the_optimal_transport_plan(n_q: int, n_k: int) -> None:
    q, k, v = (x.detach() for x in random_inputs(n_q, n_k, dtype=torch.float64))
    scores = scores_of(q, k)[1, 1].numpy()
    expected = n_q * ot.sinkhorn([1 / n_q] * n_q, [1 / n_k] * n_k, -scores, reg=1.0, numItermax=100_000, stopThr=1e-15)

    weights = regard.attention_with_weights(q, k, v, normalizer=normalizer.sinkhorn(400)).weights

    torch.testing.assert_close(weights[1, 1], torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
    (column_mass,) = weights.measure(measure.column_mass)
    torch.testing.assert_close(column_mass, torch.full_like(column_mass, n_q / n_k), rtol=1e-9, atol=1e-9)


@every_backend
def test_two_by_two_has_a_closed_form(backend: str) -> None:
    added = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
    nothing = torch.zeros(2, 1)

    actual = regard.attention_with_weights(
        nothing, nothing, nothing, score=score.bias(added), normalizer=normalizer.sinkhorn(60), backend=backend
    ).weights[...]

    root = math.exp((1.0 + 0.5) / 2)
    assert float(actual[0, 0]) == pytest.approx(root / (1 + root), abs=1e-6)
    assert float(actual[1, 1]) == pytest.approx(0.679179, abs=1e-6)


def test_row_and_column_biases_do_not_change_the_limit() -> None:
    q, k, v = (x.detach() for x in random_inputs(20, 20, dtype=torch.float64))
    rows, columns = torch.randn(20, 1, dtype=torch.float64), torch.randn(1, 20, dtype=torch.float64)

    plain = regard.attention(q, k, v, normalizer=normalizer.sinkhorn(300))
    shifted = regard.attention(q, k, v, score=score.bias(rows + columns), normalizer=normalizer.sinkhorn(300))

    torch.testing.assert_close(shifted, plain)


@every_backend
def test_shared_key_heads_are_balanced_per_query_head(backend: str) -> None:
    q, k, v = random_inputs(30, 40, heads=4, kv_heads=2)

    assert_agrees(backend, q, k, v, scores_of(q, k))


@every_backend
@pytest.mark.parametrize("name", ["documents", "window", "padding", "some fully masked", "diagonal"])
def test_masks_that_allow_balanced_weights_are_respected(backend: str, name: str) -> None:
    q, k, v = random_inputs(36, 36)
    i, j = torch.arange(36)[:, None], torch.arange(36)
    visible, mask_like = {
        "documents": (i // 9 == j // 9, mask.document(torch.arange(36) // 9)),
        "window": ((i - j).abs() < 7, mask.sliding_window(7)),
        "padding": ((j < 20).expand(36, 36), mask.padding(torch.tensor([20, 20]))),
        "some fully masked": ((i % 3 != 0).expand(36, 36), lambda b, h, i, j: i % 3 != 0),
        "diagonal": (i == j, lambda b, h, i, j: i == j),
    }[name]

    assert_agrees(backend, q, k, v, scores_of(q, k).masked_fill(~visible, -math.inf), mask=mask_like)


@every_backend
def test_score_modifiers_keep_their_positions_in_the_transposed_pass(backend: str) -> None:
    q, k, v = random_inputs(30, 40)
    i, j = torch.arange(30)[:, None], torch.arange(40)
    slopes = torch.tensor([0.3, 0.1])
    changed = scores_of(q, k) - slopes[:, None, None] * (i + 10 - j).abs() + 0.01 * i * (j % 3) + (40 - 30) * 0.1

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + 0.01 * i * (j % 3) + 1.0

    assert_agrees(backend, q, k, v, changed, score=score.scaled_dot().then(score.alibi(slopes)).then(score_mod))


@every_backend
def test_query_offset_per_batch_element_is_respected(backend: str) -> None:
    q, k, v = random_inputs(12, 30)
    query_offset = torch.tensor([4, 15])
    p = query_offset.view(2, 1, 1, 1) + torch.arange(12)[:, None]
    visible = (p - torch.arange(30)).abs() < 4

    assert_agrees(
        backend,
        q,
        k,
        v,
        scores_of(q, k).masked_fill(~visible, -math.inf),
        mask=mask.sliding_window(4),
        query_offset=query_offset,
    )


@every_backend
@pytest.mark.parametrize("kind", ["additive", "custom", "relative keys"])
def test_scores_other_than_products_are_transposed(backend: str, kind: str) -> None:
    q, k, v = random_inputs(14, 17)
    w_q, w_k, u, table = torch.randn(8, 5), torch.randn(8, 5), torch.randn(5), torch.randn(7, 8)
    distance = (torch.arange(17) - torch.arange(14)[:, None] - 3).clamp(-3, 3) + 3
    selected, scores = {
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
    if backend == "native" and kind == "custom":
        pytest.skip("native supports dot-product and additive scores")

    assert_agrees(backend, q, k, v, scores, score=selected)


def test_derivatives_of_first_and_second_order() -> None:
    q, k, v = (torch.randn(1, 1, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    added = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
        return regard.attention(q, k, v, score=score.bias(added), normalizer=normalizer.sinkhorn(3))

    assert gradcheck(run, (q, k, v, added))
    assert gradgradcheck(run, (q, k, v, added))


def test_dropout_does_not_change_the_balanced_weights() -> None:
    q, k, v = (x.detach() for x in random_inputs(30, 30))

    actual = regard.attention_with_weights(q, k, v, normalizer=normalizer.sinkhorn(4), dropout=0.4, seed=3)

    dropout_factor = (
        regard.attention_with_weights(
            torch.zeros_like(q), k, torch.eye(30).expand(2, 2, 30, 30), dropout=0.4, seed=3
        ).output
        * 30
    )
    torch.testing.assert_close(
        actual.weights[...], regard.attention_with_weights(q, k, v, normalizer=normalizer.sinkhorn(4)).weights[...]
    )
    torch.testing.assert_close(actual.output, (actual.weights[...] * dropout_factor) @ v, rtol=1e-4, atol=1e-5)


def test_packed_sequences_are_balanced_separately() -> None:
    lengths = [5, 9, 3]
    q, k, v = (torch.randn(2, 17, 4) for _ in range(3))

    actual = regard.attention_varlen(q, k, v, lengths, lengths, normalizer=normalizer.sinkhorn(5))

    parts = zip(*(x.split(lengths, dim=1) for x in (q, k, v)), strict=True)
    apart = [regard.attention(*(x[None] for x in part), normalizer=normalizer.sinkhorn(5))[0] for part in parts]
    torch.testing.assert_close(actual, torch.cat(apart, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "mask_like, side",
    [
        (mask.causal(), "later"),
        (mask.causal() & mask.sliding_window(5), "later"),
        (torch.ones(20, 20, dtype=torch.bool).triu(), "earlier"),
        (lambda b, h, i, j: (j < i) | (i == j), "later"),
    ],
    ids=["causal", "causal window", "a tensor", "a function"],
)
def test_mask_that_leaves_only_the_identity_raises_error(mask_like: Any, side: str) -> None:
    q = torch.randn(1, 1, 20, 4)

    with pytest.raises(ArgumentError, match=f"no query attends to {side} keys than its own.*normalizer.softmax"):
        regard.attention(q, q, q, mask=mask_like, normalizer=normalizer.sinkhorn(3))


@every_backend
@pytest.mark.parametrize(
    "name", ["one pair hidden", "decode step", "chunk", "causal padding", "query offset per batch element"]
)
def test_masks_over_earlier_keys_that_leave_a_choice_are_supported(backend: str, name: str) -> None:
    n_q, n_k, query_offset = {"one pair hidden": (2, 48, 46), "decode step": (1, 30, 29), "chunk": (5, 20, 15)}.get(
        name, (12, 12, 0)
    )
    q, k, v = random_inputs(n_q, n_k)
    i, j = torch.arange(n_q)[:, None], torch.arange(n_k)
    causal, query_offsets = j <= query_offset + i, torch.tensor([3, 5])
    visible, selected, options = {
        "causal padding": (causal & (j < 7), mask.causal() & mask.padding(torch.tensor([7, 7])), {}),
        "query offset per batch element": (
            j <= query_offsets.view(2, 1, 1, 1) + i,
            mask.causal(),
            {"query_offset": query_offsets},
        ),
    }.get(name, (causal, mask.causal(), {}))

    assert_agrees(backend, q, k, v, scores_of(q, k).masked_fill(~visible, -math.inf), mask=selected, **options)


@pytest.mark.parametrize("kind", ["ragged", "runs"])
@pytest.mark.parametrize("seed", range(40))
def test_rejected_mask_leaves_one_key_to_each_query(seed: int, kind: str) -> None:
    """A linear program gives the largest weight of each pair in any balanced matrix.

    Every mask of this kind whose rows are prefixes of the keys raises an error, but not every mask with gaps.
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
        regard.attention(q, k, k, mask=visible, normalizer=normalizer.sinkhorn(3))
        is_rejected = False
    except ArgumentError:
        is_rejected = True

    is_square = int(visible.any(1).sum()) == int(visible.any(0).sum())
    largest = largest_balanced_weights(visible)
    leaves_one_key = largest is not None and bool(((largest > 1e-9).sum(1) <= 1).all())
    hides_a_choice = bool((visible.sum(1) > 1).any())
    leaves_identity = is_square and leaves_one_key and hides_a_choice
    assert is_rejected == leaves_identity if kind == "runs" else is_rejected <= leaves_identity, (visible, largest)


def largest_balanced_weights(visible: Tensor) -> Tensor | None:
    """The largest weight of each pair in a matrix of equal row sums and equal column sums; None if there is none."""
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


@every_backend
@pytest.mark.parametrize("n_q, n_k", [(3, 0), (0, 5), (0, 0)])
def test_output_without_queries_or_keys_is_zero(backend: str, n_q: int, n_k: int) -> None:
    q, k, v = random_inputs(n_q, n_k)

    output = regard.attention(q, k, v, normalizer=normalizer.sinkhorn(2), backend=backend)
    output.sum().backward()

    assert torch.equal(output, torch.zeros(2, 2, n_q, 8))
    assert q.grad is not None and not q.grad.any()


@every_backend
def test_transformed_functions_compute_the_same_bits(backend: str) -> None:
    q, k, v = (x.detach() for x in random_inputs(9, 12))

    def run(q: Tensor) -> Tensor:
        return regard.attention(q, k, v, normalizer=normalizer.sinkhorn(4), backend=backend)

    plain = run(q)
    with_tangent, tangent = torch.func.jvp(run, (q,), (torch.ones_like(q),))
    stacked = torch.func.vmap(run)(q.expand(2, *q.shape))

    assert torch.equal(with_tangent, plain)
    assert torch.equal(stacked, plain.expand(2, *plain.shape))
    step = 1e-3
    difference = (run(q + step) - run(q - step)) / (2 * step)
    torch.testing.assert_close(tangent, difference, rtol=1e-2, atol=1e-3)  # float32 differences


@pytest.mark.parametrize("iterations", [0, -2, 2.5, True])
def test_invalid_number_of_iterations_raises_error(iterations: Any) -> None:
    requirement = "must be an integer" if iterations in (2.5, True) else "must be from 1 to 10,000"
    with pytest.raises(ArgumentError, match=f"iterations {requirement}; got {iterations}"):
        normalizer.sinkhorn(iterations)


def test_lse_of_sinkhorn_raises_error() -> None:
    q = torch.randn(4, 2)

    with pytest.raises(ArgumentError, match="a log-sum-exp per row and per column"):
        _ = regard.attention_with_weights(q, q, q, normalizer=normalizer.sinkhorn(2)).lse


def test_sinkhorn_can_be_compiled() -> None:
    q, k, v = random_inputs(20, 20)
    compiled = torch.compile(
        lambda q, k, v: regard.attention(q, k, v, normalizer=normalizer.sinkhorn(3)),
        fullgraph=True,
        backend="aot_eager",
    )

    expected = regard.attention(q, k, v, normalizer=normalizer.sinkhorn(3))
    actual = compiled(q, k, v)

    torch.testing.assert_close(actual, expected)
    for one, other in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other)


class CallCounter:
    """Counts the calls of the native backend's `column_sums` and `forward`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.column_sums = self.forward = 0
        column_mass, forward = NativeBackend.column_sums, NativeBackend.forward

        def counting_column_sums(backend: NativeBackend, *args: Any) -> Any:
            self.column_sums += 1
            return column_mass(backend, *args)

        def counting_forward(backend: NativeBackend, *args: Any) -> Any:
            self.forward += 1
            return forward(backend, *args)

        monkeypatch.setattr(NativeBackend, "column_sums", counting_column_sums)
        monkeypatch.setattr(NativeBackend, "forward", counting_forward)


needs_core = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")


@needs_core
def test_one_pass_over_rows_computes_the_column_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach() for x in random_inputs(40, 50))
    counter = CallCounter(monkeypatch)

    regard.attention(q, k, v, normalizer=normalizer.sinkhorn(6), backend="native")

    assert (counter.column_sums, counter.forward) == (5, 1)  # the last pass computes the output


@needs_core
def test_gradients_need_no_additional_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = random_inputs(40, 50)
    counter = CallCounter(monkeypatch)

    regard.attention(q, k, v, normalizer=normalizer.sinkhorn(6), backend="native")

    assert (counter.column_sums, counter.forward) == (5, 1)


@needs_core
def test_fully_hidden_keys_need_one_additional_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach() for x in random_inputs(40, 50))
    scores = scores_of(q, k).masked_fill(torch.arange(50) >= torch.tensor([50, 31]).view(2, 1, 1, 1), -math.inf)
    counter = CallCounter(monkeypatch)

    actual = regard.attention(q, k, v, normalizer=normalizer.sinkhorn(6), mask=mask.padding([50, 31]), backend="native")

    torch.testing.assert_close(actual, dense_sinkhorn(scores, 6) @ v, rtol=1e-4, atol=2e-5)
    assert (counter.column_sums, counter.forward) == (5, 2)


@needs_core
def test_key_with_tiny_weights_is_still_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(-300) is 0 in float32, but its logarithm is finite."""
    q, k, v = (x.detach() for x in random_inputs(40, 50))
    lowered = torch.zeros(50)
    lowered[7] = -300.0
    counter = CallCounter(monkeypatch)

    actual = regard.attention_with_weights(
        q, k, v, normalizer=normalizer.sinkhorn(6), score=score.bias(lowered), backend="native"
    )

    torch.testing.assert_close(actual.output, dense_sinkhorn(scores_of(q, k) + lowered, 6) @ v, rtol=1e-4, atol=2e-5)
    assert float(actual.weights[0, 0, :, 7].sum()) == pytest.approx(40 / 50, rel=0.05)
    assert counter.column_sums == 5 and counter.forward > 1


@needs_core
@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("heads, kv_heads, n_q, n_k", [(4, 2, 101, 77), (1, 1, 1, 300), (2, 1, 48, 5), (3, 3, 7, 1)])
def test_column_sums_are_the_sums_of_the_weights(
    build: KernelBuild, heads: int, kv_heads: int, n_q: int, n_k: int
) -> None:
    q, k, v = (x.detach() for x in random_inputs(n_q, n_k, heads, kv_heads))
    call = parse_call(AttentionCall(q, k, v, mask=mask.sliding_window(30), score=score.softcap(3.0)))

    sums = NativeBackend(BACKENDS_BY_NAME["tiled"], build).column_sums(call.spec, call.prepare_inputs())

    assert sums is not None
    actual = regard.attention_with_weights(
        q.double(), k.double(), v.double(), mask=mask.sliding_window(30), score=score.softcap(3.0)
    )
    torch.testing.assert_close(sums[0].double(), actual.lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums[1], actual.weights.measure(measure.column_mass).column_mass, rtol=1e-5, atol=1e-5)


@needs_core
def test_any_number_of_threads_gives_the_same_bits() -> None:
    q, k, v = (x.detach() for x in random_inputs(500, 300))
    before = torch.get_num_threads()
    actual = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            actual.append(regard.attention(q, k, v, normalizer=normalizer.sinkhorn(4), backend="native"))
    finally:
        torch.set_num_threads(before)

    assert torch.equal(actual[0], actual[1]) and torch.equal(actual[0], actual[2])


@needs_core
def test_visible_nan_propagates_and_hidden_nan_does_not() -> None:
    q, k, v = (x.detach() for x in random_inputs(40, 50))
    k[0, :, 45] = math.nan
    all_visible, visible = torch.arange(50) < 50, torch.arange(50) < 45

    assert (
        regard.attention(q, k, v, normalizer=normalizer.sinkhorn(3), mask=all_visible[None], backend="native")[0]
        .isnan()
        .all()
    )
    actual = regard.attention(q, k, v, normalizer=normalizer.sinkhorn(3), mask=visible[None], backend="native")
    expected = dense_sinkhorn(scores_of(q, torch.nan_to_num(k)).masked_fill(~visible, -math.inf), 3) @ v
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)
