"""`attention_varlen` against separate calls for each sequence."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import attention_varlen, mask, normalizer, score
from regard.errors import ArgumentError, BackendError, RegardError
from tests.random_tensors import normal

every_backend = pytest.mark.parametrize("backend", regard.available_backends())
EXACT = dict(rtol=1e-11, atol=1e-12)  # float64, sums of about ten terms

LENGTHS_Q = [3, 0, 5, 1, 4, 6]
LENGTHS_K = [4, 2, 5, 0, 7, 3]  # more keys than queries, as many, none and fewer
HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 3, 2

Options = dict[str, Any]
SequenceOptions = Callable[[int, int, int], Options]  # of the index, n_q and n_k of the sequence


def inputs(lengths_q: Sequence[int] = LENGTHS_Q, lengths_k: Sequence[int] = LENGTHS_K) -> tuple[Tensor, Tensor, Tensor]:
    n_q, n_k = sum(lengths_q), sum(lengths_k)
    return (
        normal(HEADS, n_q, HEAD_DIM, seed=1),
        normal(KV_HEADS, n_k, HEAD_DIM, seed=2),
        normal(KV_HEADS, n_k, VALUE_DIM, seed=3),
    )


def separate_calls(
    q: Tensor, k: Tensor, v: Tensor, lengths_q: Sequence[int], lengths_k: Sequence[int], options_of: SequenceOptions
) -> Tensor:
    """Call `attention` for each sequence and concatenate the outputs."""
    ks, vs = k.split(list(lengths_k), dim=-2), v.split(list(lengths_k), dim=-2)
    outputs = []
    for b, part in enumerate(q.split(list(lengths_q), dim=-2)):
        options = options_of(b, lengths_q[b], lengths_k[b])
        output = regard.attention(part[None], ks[b][None], vs[b][None], backend="reference", **options)
        outputs.append(output[0])
    return torch.cat(outputs, dim=-2)


def same_options(**options: Any) -> SequenceOptions:
    return lambda b, n_q, n_k: options


NUM_SEQUENCES = len(LENGTHS_Q)
MAX_Q, MAX_K = max(LENGTHS_Q), max(LENGTHS_K)
RANDOM_MASK = torch.rand(NUM_SEQUENCES, HEADS, MAX_Q, MAX_K, generator=torch.Generator().manual_seed(4)) < 0.6
PREFIX_LENGTHS = torch.tensor([2, 1, 5, 0, 4, 3])
IDS_Q = torch.tensor([[(b + i) % 2 for i in range(MAX_Q)] for b in range(NUM_SEQUENCES)])
IDS_K = torch.tensor([[j // 2 % 2 for j in range(MAX_K)] for _ in range(NUM_SEQUENCES)])

MASKS: dict[str, tuple[Any, Callable[[int, int, int], Any]]] = {
    name: (option, lambda b, n_q, n_k, option=option: option)
    for name, option in {
        "none": None,
        "causal": mask.causal(),
        "window": mask.sliding_window(2),
        "asymmetric window": mask.sliding_window(3, 1),
        "dilated": mask.dilated(2, 2),
        "chunked": mask.chunked(2),
        "chunked with look_back": mask.chunked(2, look_back=1),
        "strided": mask.strided(2),
        "fixed": mask.fixed(3, 1),
        "prefix": mask.causal() | mask.prefix(2),
        "global tokens": mask.global_tokens([0, 3]),
        "longformer": mask.longformer(2, [1]),
        "random blocks": mask.random_blocks(2, 1, seed=3),
        "bigbird": mask.bigbird(1, num_local_blocks=1, num_global_blocks=1, num_random_blocks=1, seed=2),
        "bigbird without random blocks": mask.bigbird(2, num_local_blocks=1, num_global_blocks=1, num_random_blocks=0),
        "not causal": ~mask.causal(),
        "causal window": mask.causal() & mask.sliding_window(2),
        "function of i and j": lambda b, h, i, j: (i * 2 + j) % 3 != 0,
        "function of h": lambda b, h, i, j: (i + j) % (h + 1) == 0,
    }.items()
} | {
    "padding": (mask.padding(PREFIX_LENGTHS), lambda b, n_q, n_k: mask.padding(PREFIX_LENGTHS[b : b + 1])),
    "padding on the left": (
        mask.padding(PREFIX_LENGTHS, side="left"),
        lambda b, n_q, n_k: mask.padding(PREFIX_LENGTHS[b : b + 1], side="left"),
    ),
    "prefixes": (mask.prefix(PREFIX_LENGTHS), lambda b, n_q, n_k: mask.prefix(PREFIX_LENGTHS[b : b + 1])),
    "documents with separate ids": (
        mask.document(IDS_Q, IDS_K),
        lambda b, n_q, n_k: mask.document(IDS_Q[b : b + 1, :n_q], IDS_K[b : b + 1, :n_k]),
    ),
    "tensor of all pairs": (RANDOM_MASK, lambda b, n_q, n_k: RANDOM_MASK[b : b + 1, :, :n_q, :n_k]),
    "tensor of keys": (RANDOM_MASK[:, :1, :1], lambda b, n_q, n_k: RANDOM_MASK[b : b + 1, :1, :1, :n_k]),
    "tensor of queries and keys": (RANDOM_MASK[0, 0], lambda b, n_q, n_k: RANDOM_MASK[0, 0, :n_q, :n_k]),
    "function of b": (
        lambda b, h, i, j: (b + i + j) % 3 != 1,
        lambda n, n_q, n_k: lambda b, h, i, j: (n + i + j) % 3 != 1,
    ),
    "function with a tensor indexed by b": (
        lambda b, h, i, j: j < PREFIX_LENGTHS[b],
        lambda n, n_q, n_k: lambda b, h, i, j: j < int(PREFIX_LENGTHS[n]),
    ),
}


@every_backend
@pytest.mark.parametrize("name", MASKS)
def test_masks_apply_to_each_sequence_separately(backend, name):
    q, k, v = inputs()
    packed_mask, mask_of = MASKS[name]

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, mask=packed_mask, backend=backend)

    expected = separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, lambda *sequence: dict(mask=mask_of(*sequence)))
    torch.testing.assert_close(output, expected, **EXACT)


@every_backend
@pytest.mark.parametrize("by_sequence", [False, True])
def test_document_ids_apply_to_each_sequence_separately(backend, by_sequence):
    lengths_q, lengths_k = [3, 2, 5], [4, 2, 5]
    q, k, v = inputs(lengths_q, lengths_k)
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [2, 2, 2, 0, 0]])
    ids = ids if by_sequence else ids[0]

    output = attention_varlen(q, k, v, lengths_q, lengths_k, mask=mask.document(ids), backend=backend)

    def options_of(b: int, n_q: int, n_k: int) -> Options:
        return dict(mask=mask.document(ids[b : b + 1, :n_k] if by_sequence else ids[:n_k]))

    torch.testing.assert_close(output, separate_calls(q, k, v, lengths_q, lengths_k, options_of), **EXACT)


TABLE = normal(MAX_Q + MAX_K, HEADS, seed=6)
BIAS = normal(NUM_SEQUENCES, HEADS, MAX_Q, MAX_K, seed=7)
RELATIVE = normal(8, HEADS, seed=8)
SHAW = normal(5, HEAD_DIM, seed=9)
SLOPES = normal(HEADS, seed=10).abs()
SQUARE = normal(HEAD_DIM, HEAD_DIM, seed=11)
ADDITIVE = [normal(HEAD_DIM, 4, seed=12), normal(HEAD_DIM, 4, seed=13), normal(4, seed=14), normal(4, seed=15)]

SCORES: dict[str, tuple[Any, Callable[[int, int, int], Any]]] = {
    name: (option, lambda b, n_q, n_k, option=option: option)
    for name, option in {
        "dot": score.dot(),
        "scaled dot": score.scaled_dot(0.7),
        "bilinear": score.bilinear(SQUARE),
        "cosine": score.cosine(3.0),
        "gaussian": score.gaussian(1.3),
        "mahalanobis": score.mahalanobis(SQUARE @ SQUARE.mT),
        "additive": score.additive(*ADDITIVE),
        "custom": score.custom(lambda q, k: torch.tanh(q @ k.mT)),
        "alibi": score.alibi(),
        "alibi with slopes": score.alibi(SLOPES),
        "softcap": score.softcap(0.8),
        "t5_bias": score.t5_bias(RELATIVE, max_distance=6),
        "one-directional t5_bias": score.t5_bias(RELATIVE, bidirectional=False, max_distance=6),
        "shaw_keys": score.shaw_keys(SHAW),
        "gaussian, then alibi": score.gaussian(1.3).then(score.alibi()),
        "additive, then softcap, then alibi": score.additive(*ADDITIVE).then(score.softcap(1.0)).then(score.alibi()),
        "function of i and j": lambda s, b, h, i, j: s * 0.5 + TABLE[i - j + MAX_K, h],
        "bias of heads": score.bias(BIAS[0, :, :1, :1]),
        "minus infinity": lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, s, -math.inf),
    }.items()
} | {
    "bias of all pairs": (score.bias(BIAS), lambda b, n_q, n_k: score.bias(BIAS[b : b + 1, :, :n_q, :n_k])),
    "bias of keys": (score.bias(BIAS[:, :1, :1]), lambda b, n_q, n_k: score.bias(BIAS[b : b + 1, :1, :1, :n_k])),
    "function of b": (
        lambda s, b, h, i, j: s * (b + 1) + 0.1 * i - 0.2 * j,
        lambda n, n_q, n_k: lambda s, b, h, i, j: s * (n + 1) + 0.1 * i - 0.2 * j,
    ),
}


@every_backend
@pytest.mark.parametrize("name", SCORES)
def test_scores_and_modifiers_apply_to_each_sequence_separately(backend, name):
    q, k, v = inputs()
    packed_score, score_of = SCORES[name]

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, score=packed_score, backend=backend)

    expected = separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, lambda *sequence: dict(score=score_of(*sequence)))
    torch.testing.assert_close(output, expected, **EXACT)


NORMALIZERS: dict[str, Any] = {
    "softmax": normalizer.softmax(),
    "sink": normalizer.sink(),
    "per-head sink": normalizer.sink(normal(HEADS, seed=16)),
    "sigmoid": normalizer.sigmoid(-1.0),
    "sigmoid with a per-head bias": normalizer.sigmoid(normal(HEADS, seed=17)),
    "relu": normalizer.relu(),
    "scaled relu": normalizer.relu(0.2),
}


@every_backend
@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("causal_mask", [None, mask.causal()], ids=["all", "causal"])
def test_normalizers_count_the_keys_of_each_sequence(backend, name, causal_mask):
    q, k, v = inputs()
    options = dict(normalizer=NORMALIZERS[name], mask=causal_mask)

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, backend=backend, **options)

    torch.testing.assert_close(output, separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, same_options(**options)), **EXACT)


@every_backend
@pytest.mark.parametrize(
    "query_offset", [None, 0, 2, -1, [0, 1, 2, 3, 4, 5], torch.tensor([3, 0, -2, 0, 1, 7])], ids=str
)
@pytest.mark.parametrize("name", ["causal", "window", "chunked", "strided", "global tokens"])
def test_query_offset_applies_to_each_sequence(backend, name, query_offset):
    q, k, v = inputs()
    positional_mask, _ = MASKS[name]

    output = attention_varlen(
        q, k, v, LENGTHS_Q, LENGTHS_K, mask=positional_mask, query_offset=query_offset, backend=backend
    )

    def options_of(b: int, n_q: int, n_k: int) -> Options:
        offset = query_offset if query_offset is None or isinstance(query_offset, int) else int(query_offset[b])
        return dict(mask=positional_mask, query_offset=offset)

    torch.testing.assert_close(output, separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, options_of), **EXACT)


@every_backend
@pytest.mark.parametrize("query_offset", [None, 0, [2, 0, 1, 0, 3, 1]], ids=str)
def test_relative_modifiers_use_the_query_offset_of_each_sequence(backend, query_offset):
    q, k, v = inputs()
    near = score.scaled_dot().then(score.alibi()).then(score.t5_bias(RELATIVE, max_distance=6))
    options = dict(score=near.then(score.shaw_keys(SHAW)))

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, query_offset=query_offset, backend=backend, **options)

    def options_of(b: int, n_q: int, n_k: int) -> Options:
        return options | dict(query_offset=query_offset[b] if isinstance(query_offset, list) else query_offset)

    torch.testing.assert_close(output, separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, options_of), **EXACT)


@every_backend
@pytest.mark.parametrize("lengths_k", [LENGTHS_Q, LENGTHS_K], ids=["as many keys", "other numbers of keys"])
def test_relative_values_use_the_position_in_each_sequence(backend, lengths_k):
    q, k, v = inputs(LENGTHS_Q, lengths_k)
    options = dict(value=score.shaw_values(normal(5, VALUE_DIM, seed=18)), mask=mask.causal())

    output = attention_varlen(q, k, v, LENGTHS_Q, lengths_k, backend=backend, **options)

    torch.testing.assert_close(output, separate_calls(q, k, v, LENGTHS_Q, lengths_k, same_options(**options)), **EXACT)


@every_backend
def test_a_value_function_may_change_the_value_dim(backend):
    q, k, v = inputs()
    w = normal(VALUE_DIM, 5, seed=19)
    options = dict(value=lambda v: torch.tanh(v @ w))

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, backend=backend, **options)

    assert output.shape == (HEADS, sum(LENGTHS_Q), 5)
    torch.testing.assert_close(output, separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, same_options(**options)), **EXACT)


# Shapes.


@every_backend
def test_two_dimensions_are_one_head(backend):
    q, k, v = (x[0] for x in inputs())

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal(), backend=backend)

    assert output.shape == (sum(LENGTHS_Q), VALUE_DIM)
    expected = separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, same_options(mask=mask.causal()))
    torch.testing.assert_close(output, expected, **EXACT)


@every_backend
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_grouped_query_attention(backend, num_kv_heads):
    q = normal(HEADS, sum(LENGTHS_Q), HEAD_DIM, seed=1)
    k, v = (
        normal(num_kv_heads, sum(LENGTHS_K), HEAD_DIM, seed=2),
        normal(num_kv_heads, sum(LENGTHS_K), VALUE_DIM, seed=3),
    )
    options = dict(mask=lambda b, h, i, j: (i + j + h) % 3 != 0)

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, backend=backend, **options)

    torch.testing.assert_close(output, separate_calls(q, k, v, LENGTHS_Q, LENGTHS_K, same_options(**options)), **EXACT)


def test_lengths_k_defaults_to_lengths_q():
    q, k, v = inputs(LENGTHS_Q, LENGTHS_Q)

    output = attention_varlen(q, k, v, LENGTHS_Q, mask=mask.causal())

    assert torch.equal(output, attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_Q, mask=mask.causal()))


def test_one_sequence_is_plain_attention():
    q, k, v = inputs([5], [7])

    output = attention_varlen(q, k, v, [5], [7], mask=mask.causal())

    torch.testing.assert_close(output, regard.attention(q[None], k[None], v[None], mask=mask.causal())[0], **EXACT)


@every_backend
@pytest.mark.parametrize("lengths", [[0], [0, 0], [1], [0, 3, 0], [1, 1, 1]], ids=str)
def test_sequences_of_length_zero_and_one(backend, lengths):
    q, k, v = inputs(lengths, lengths)

    output = attention_varlen(q, k, v, lengths, mask=mask.causal(), backend=backend)

    expected = separate_calls(q, k, v, lengths, lengths, same_options(mask=mask.causal()))
    torch.testing.assert_close(output, expected, **EXACT)


def test_no_sequences_give_an_empty_output():
    q, k, v = inputs([], [])

    assert attention_varlen(q, k, v, []).shape == (HEADS, 0, VALUE_DIM)


@every_backend
def test_queries_of_a_sequence_without_keys_get_zero_output_and_gradient(backend):
    lengths_q, lengths_k = [2, 3, 2], [3, 0, 2]
    q, k, v = (x.requires_grad_() for x in inputs(lengths_q, lengths_k))

    output = attention_varlen(q, k, v, lengths_q, lengths_k, backend=backend)
    (grad_q,) = torch.autograd.grad(output.sum(), q)

    assert torch.equal(output[:, 2:5], torch.zeros(HEADS, 3, VALUE_DIM, dtype=torch.float64))
    assert torch.equal(grad_q[:, 2:5], torch.zeros(HEADS, 3, HEAD_DIM, dtype=torch.float64))
    assert bool((output[:, [0, 1, 5, 6]] != 0).all())


@pytest.mark.parametrize(
    "container", [list, tuple, torch.tensor, np.array, lambda x: torch.tensor(x, dtype=torch.int32)]
)
def test_lengths_may_be_lists_tensors_or_arrays(container):
    q, k, v = inputs()

    output = attention_varlen(q, k, v, container(LENGTHS_Q), container(LENGTHS_K), mask=mask.causal())

    assert torch.equal(output, attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal()))


def test_numpy_inputs_give_a_numpy_output():
    q, k, v = inputs()

    output = attention_varlen(q.numpy(), k.numpy(), v.numpy(), LENGTHS_Q, LENGTHS_K, mask=mask.causal())

    assert isinstance(output, np.ndarray)
    expected = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal())
    np.testing.assert_array_equal(output, expected.numpy())


def test_inputs_may_be_transposed_views():
    q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in inputs())

    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal())

    expected = attention_varlen(*inputs(), LENGTHS_Q, LENGTHS_K, mask=mask.causal())
    torch.testing.assert_close(output, expected, **EXACT)


def test_sequences_may_cross_tile_borders():
    lengths = [300, 1, 513, 0, 255, 40]
    q, k, v = (normal(sum(lengths), 4, seed=s) for s in range(3))

    output = attention_varlen(q, k, v, lengths, mask=mask.causal())

    expected = separate_calls(q, k, v, lengths, lengths, same_options(mask=mask.causal()))
    torch.testing.assert_close(output, expected, **EXACT)


def test_tiles_of_different_sequences_are_skipped(monkeypatch):
    visited_fractions = []
    forward = regard.backends.tiled.TiledBackend.forward

    def counting_forward(self, spec, inputs, tiles):
        counts = regard.plan.tiling.call_coverage(spec, inputs.tensors, inputs.query_offset, tiles).tile_counts
        visited_fractions.append(1.0 - counts["empty"] / sum(counts.values()))
        return forward(self, spec, inputs, tiles)

    monkeypatch.setattr(regard.backends.tiled.TiledBackend, "forward", counting_forward)
    x = normal(8 * 1024, 4, seed=1)

    attention_varlen(x, x, x, [1024] * 8)

    assert visited_fractions == [1 / 8]


# Gradients and dropout.


@every_backend
@pytest.mark.parametrize("name", ["plain", "bias", "table", "shaw_keys", "sink", "additive", "custom", "relu"])
def test_gradients_equal_those_of_separate_calls(backend, name):
    bias, table, shaw = BIAS.clone(), TABLE.clone(), SHAW.clone()
    sink, additive, w = normal(HEADS, seed=16), [x.clone() for x in ADDITIVE], normal(HEAD_DIM, seed=20)
    learned, packed, options_of = {
        "plain": ([], {}, lambda b, n_q, n_k: {}),
        "bias": (
            [bias],
            dict(score=score.bias(bias)),
            lambda b, n_q, n_k: dict(score=score.bias(bias[b : b + 1, :, :n_q, :n_k])),
        ),
        "table": ([table], *packed_and_separate(score=lambda s, b, h, i, j: s * table[i - j + MAX_K, h])),
        "shaw_keys": ([shaw], *packed_and_separate(score=score.shaw_keys(shaw))),
        "sink": ([sink], *packed_and_separate(normalizer=normalizer.sink(sink))),
        "additive": (additive, *packed_and_separate(score=score.additive(*additive))),
        "custom": ([w], *packed_and_separate(score=score.custom(lambda q, k: (q * w) @ k.mT))),
        "relu": ([], *packed_and_separate(normalizer=normalizer.relu())),
    }[name]
    tensors = [x.requires_grad_() for x in (*inputs(), *learned)]

    output = attention_varlen(*tensors[:3], LENGTHS_Q, LENGTHS_K, mask=mask.causal(), backend=backend, **packed)
    expected = separate_calls(
        *tensors[:3], LENGTHS_Q, LENGTHS_K, lambda *sequence: dict(mask=mask.causal()) | options_of(*sequence)
    )

    grad_output = normal(*output.shape, seed=21)
    grads, expected_grads = (torch.autograd.grad(x, tensors, grad_output) for x in (output, expected))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, **EXACT)


def packed_and_separate(**options: Any) -> tuple[Options, SequenceOptions]:
    return options, same_options(**options)


def test_gradcheck_and_gradgradcheck():
    lengths_q, lengths_k = [2, 0, 1], [1, 1, 2]
    q, k, v = (normal(n, 2, seed=s).requires_grad_() for s, n in enumerate((3, 4, 4)))

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_varlen(q, k, v, lengths_q, lengths_k, mask=mask.causal())

    assert torch.autograd.gradcheck(packed, (q, k, v))
    assert torch.autograd.gradgradcheck(packed, (q, k, v))


def test_a_nonfinite_sequence_does_not_affect_the_others():
    q, k, v = inputs()
    expected = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K)
    k[:, 6:11], v[:, 6:11] = math.nan, math.inf  # the third sequence

    q, k, v = (x.requires_grad_() for x in (q, k, v))
    output = attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K)
    others = [n for n in range(sum(LENGTHS_Q)) if not 3 <= n < 8]
    other_keys = [n for n in range(sum(LENGTHS_K)) if not 6 <= n < 11]
    gradients = torch.autograd.grad(output.sum(), (q, k, v))

    torch.testing.assert_close(output[:, others], expected[:, others], **EXACT)
    assert bool(output[:, 3:8].isnan().all())
    for gradient, rows in zip(gradients, (others, other_keys, other_keys), strict=True):
        assert bool(torch.isfinite(gradient[:, rows]).all())


def test_dropout_depends_only_on_the_seed_on_every_backend():
    q, k, v = inputs()

    def dropped(seed: int, backend: str) -> Tensor:
        return attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K, dropout=0.4, seed=seed, backend=backend)

    first = dropped(1, "reference")
    for backend in ("tiled", "reference"):  # these inputs are float64
        torch.testing.assert_close(dropped(1, backend), first, **EXACT)
        assert not torch.allclose(dropped(2, backend), first)
    assert not torch.allclose(attention_varlen(q, k, v, LENGTHS_Q, LENGTHS_K), first)


def test_dropout_zeros_weights_and_scales_the_rest():
    lengths = [4, 60, 36]
    x = torch.zeros(100, 1)

    dropped = attention_varlen(x, x, torch.eye(100), lengths, dropout=0.25, seed=5)

    for b, (n, first) in enumerate(zip(lengths, (0, 4, 64), strict=True)):
        block = dropped[first : first + n, first : first + n]
        nonzero = block != 0
        torch.testing.assert_close(block[nonzero], torch.full_like(block[nonzero], 1 / n / 0.75))
        assert 0 < int(nonzero.sum()) < n * n or b == 0
    assert int((dropped != 0).sum()) == int((dropped[:4, :4] != 0).sum()) + sum(
        int((dropped[a:b, a:b] != 0).sum()) for a, b in ((4, 64), (64, 100))
    )


# Errors.


@pytest.mark.parametrize("name", ["q", "k"])
def test_lengths_must_add_up_to_the_rows(name):
    q, k, v = inputs([3, 4], [3, 4])
    lengths = {"q": ([3, 5], [3, 4]), "k": ([3, 4], [3, 5])}[name]

    with pytest.raises(ArgumentError, match=f"lengths_{name} must add up to the 7 rows of {name}; got 8"):
        attention_varlen(q, k, v, *lengths)


def test_error_suggests_transposing_heads_after_the_length():
    q, k, v = (x.transpose(0, 1) for x in inputs([3, 4], [3, 4]))

    with pytest.raises(ArgumentError, match=r"must add up to the 4 rows of q; got 7.*use q\.transpose\(0, 1\)"):
        attention_varlen(q, k, v, [3, 4])


@pytest.mark.parametrize("lengths", [[-1, 8], [[3, 4]], [3.0, 4.0], 7], ids=str)
def test_lengths_must_be_nonnegative_integers(lengths):
    with pytest.raises(ArgumentError, match="lengths_q must be a list of nonnegative integers; got"):
        attention_varlen(*inputs([3, 4], [3, 4]), lengths, [3, 4])


def test_lengths_q_and_lengths_k_must_have_the_same_size():
    with pytest.raises(ArgumentError, match="must have one entry per sequence; got 2 and 3 entries"):
        attention_varlen(*inputs([3, 4], [3, 2, 2]), [3, 4], [3, 2, 2])


@pytest.mark.parametrize("shape", [(7,), (1, 2, 7, 3)], ids=str)
def test_inputs_must_have_two_or_three_dimensions(shape):
    x = torch.zeros(shape)

    with pytest.raises(
        ArgumentError, match=r"\(total, head_dim\) or \(num_heads, total, head_dim\); got a tensor of shape"
    ):
        attention_varlen(x, x, x, [3, 4])


def test_keys_must_have_as_many_dimensions_as_queries():
    q, k, v = inputs([3, 4], [3, 4])

    with pytest.raises(RegardError, match="dimensions"):
        attention_varlen(q, k[0], v[0], [3, 4])


def test_query_offset_must_be_one_number_or_one_per_sequence():
    with pytest.raises(ArgumentError, match=r"one for each of 2 sequences; got a tensor of shape \(3,\)"):
        attention_varlen(*inputs([3, 4], [3, 4]), [3, 4], query_offset=[0, 0, 0])


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(mask=mask.padding([3, 4, 5])), "2 batch elements; got 3"),
        (dict(mask=torch.ones(3, 1, 1, 4, dtype=torch.bool)), r"\(2, 4, 4, 4\); got shape \(3, 1, 1, 4\)"),
        (dict(score=score.bias(torch.zeros(5, 5))), r"\(2, 4, 4, 4\); got shape \(5, 5\)"),
        (dict(score=score.alibi(torch.ones(3))), "4 heads"),
        (dict(dropout=1.5), "got 1.5"),
        (dict(normalizer=normalizer.sink(torch.zeros(3))), "4 heads; got 3"),
    ],
)
def test_options_that_do_not_fit_the_sequences_raise(options, message):
    with pytest.raises(ArgumentError, match=message):
        attention_varlen(*inputs([3, 4], [3, 4]), [3, 4], **options)


def test_unknown_backend_error_lists_the_backends():
    with pytest.raises(BackendError, match=r"tiled, reference; got 'fast'"):
        attention_varlen(*inputs([3, 4], [3, 4]), [3, 4], backend="fast")
