"""Longformer with separate global projections, against Hugging Face's layer and against both formulas row by row."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from regard import attention, mask
from regard.errors import ArgumentError
from regard.mechanisms.longformer import longformer_attention

WINDOW, HEADS, HEAD_DIM = 8, 2, 5


def random_inputs(n: int, batch: tuple[int, ...] = (2,), num_kv_heads: int = HEADS) -> list[Tensor]:
    """Return q, k, v and the global q, k, v."""
    heads = (HEADS, num_kv_heads, num_kv_heads)
    return [torch.randn(*batch, h, n, HEAD_DIM, dtype=torch.float64) for h in heads + heads]


def reference(tensors: list[Tensor], window: int, is_global: Tensor, is_real: Tensor) -> Tensor:
    """Compute the output query by query."""
    q, k, v, *global_tensors = tensors
    output = torch.zeros_like(q)
    for b, h, i in product(*(range(size) for size in q.shape[:3])):
        queries, keys, values = global_tensors if is_global[b, i] else (q, k, v)
        is_visible = [is_global[b, i] or is_global[b, j] or abs(i - j) <= window // 2 for j in range(q.shape[2])]
        visible = [j for j, is_near in enumerate(is_visible) if is_near and is_real[b, j]]
        if is_real[b, i]:
            weights = torch.softmax(keys[b, h, visible] @ queries[b, h, i] / q.shape[-1] ** 0.5, 0)
            output[b, h, i] = weights @ values[b, h, visible]
    return output


class HuggingFaceLayer:
    """Hugging Face's layer, with its six projections as q, k, v and the global q, k, v."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        config = LongformerConfig(
            hidden_size=HEADS * HEAD_DIM,
            num_attention_heads=HEADS,
            attention_window=[WINDOW],
            attention_probs_dropout_prob=0.0,
        )
        self.layer = LongformerSelfAttention(config, 0).to(dtype).eval()

    def project(self, x: Tensor) -> list[Tensor]:
        layer = self.layer
        projections = (layer.query, layer.key, layer.value, layer.query_global, layer.key_global, layer.value_global)
        return [p(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for p in projections]

    def output(self, x: Tensor, is_global: Tensor, is_real: Tensor) -> Tensor:
        kinds = torch.where(is_real, torch.where(is_global, 10000.0, 0.0), -10000.0)
        (output,) = self.layer(
            x,
            attention_mask=kinds,
            is_index_masked=kinds < 0,
            is_index_global_attn=kinds > 0,
            is_global_attn=bool((kinds > 0).any()),
        )
        return output.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


CASES: dict[str, tuple[list[list[int]], list[int]]] = {
    "none": ([[], [], []], [24, 24, 24]),
    "one": ([[0], [0], [0]], [24, 24, 24]),
    "several, near and far": ([[0, 1, 13, 23]] * 3, [24, 24, 24]),
    "different per element": ([[0, 7, 8], [], [20]], [24, 24, 24]),
    "padded": ([[0], [5, 6], []], [24, 17, 3]),
    "padded beyond a window": ([[0, 2], [3], [1, 2, 3]], [8, 24, 5]),
}


def to_mask(positions: list[list[int]], n: int) -> Tensor:
    is_global = torch.zeros(len(positions), n, dtype=torch.bool)
    for b, row in enumerate(positions):
        is_global[b, row] = True
    return is_global


@pytest.mark.parametrize("name", CASES)
def test_output_matches_hugging_face(name: str) -> None:
    positions, lengths = CASES[name]
    is_global, is_real = to_mask(positions, 24), torch.arange(24) < torch.tensor(lengths)[:, None]
    hf_layer, x = HuggingFaceLayer(), torch.randn(3, 24, HEADS * HEAD_DIM, dtype=torch.float64)

    with torch.no_grad():
        output = longformer_attention(
            *hf_layer.project(x), attention_window=WINDOW, global_tokens=is_global, attention_mask=is_real
        )
        expected = hf_layer.output(x, is_global, is_real)

    # the layer computes its softmax in float32 for projections dtype
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=2e-6)


def test_gradients_match_hugging_face() -> None:
    """Uses float32: in float64 the layer returns NaN, since its smallest float64 becomes -inf in a float32 softmax."""
    is_global, is_real = to_mask([[0, 7], [], [4]], 24), torch.arange(24) < torch.tensor([24, 24, 13])[:, None]
    hf_layer, x = HuggingFaceLayer(torch.float32), torch.randn(3, 24, HEADS * HEAD_DIM, requires_grad=True)
    weights = torch.randn(3, HEADS, 24, HEAD_DIM)
    inputs = (x, *hf_layer.layer.parameters())

    output = longformer_attention(
        *hf_layer.project(x), attention_window=WINDOW, global_tokens=is_global, attention_mask=is_real
    )
    gradients = torch.autograd.grad((output * weights).sum(), inputs)
    expected = torch.autograd.grad((hf_layer.output(x, is_global, is_real) * weights).sum(), inputs)

    for actual, desired in zip(gradients, expected, strict=True):
        torch.testing.assert_close(actual, desired, rtol=1e-4, atol=1e-5)  # sums over 72 tokens in float32


@pytest.mark.parametrize("n, window", [(1, 4), (23, 1), (23, 6), (23, 7), (23, 100)])
def test_longformer_matches_the_reference(n: int, window: int) -> None:
    tensors = random_inputs(n)
    is_global, is_real = torch.rand(2, n) < 0.2, torch.rand(2, n) < 0.8
    is_real[:, 0] = is_global[0, 0] = True

    output = longformer_attention(*tensors, attention_window=window, global_tokens=is_global, attention_mask=is_real)

    torch.testing.assert_close(output, reference(tensors, window, is_global & is_real, is_real))


def test_equal_projections_give_the_longformer_mask() -> None:
    q, k, v = random_inputs(150)[:3]

    output = longformer_attention(q, k, v, q, k, v, attention_window=20, global_tokens=[0, 70, 149])

    torch.testing.assert_close(output, attention(q, k, v, mask=mask.longformer(20, [0, 70, 149])))


def test_global_tokens_may_be_indices_or_booleans() -> None:
    tensors = random_inputs(30, batch=(2, 3))
    indices = torch.tensor([[[0, 4], [9, 9], [1, 29]], [[3, 2], [0, 0], [8, 7]]])
    booleans = torch.zeros(2, 3, 30, dtype=torch.bool).scatter(-1, indices, True)

    by_index = longformer_attention(*tensors, attention_window=6, global_tokens=indices)

    torch.testing.assert_close(by_index, longformer_attention(*tensors, attention_window=6, global_tokens=booleans))
    flat = [x.flatten(0, 1) for x in tensors]
    torch.testing.assert_close(
        by_index.flatten(0, 1), longformer_attention(*flat, attention_window=6, global_tokens=booleans.flatten(0, 1))
    )
    shared = longformer_attention(*tensors, attention_window=6, global_tokens=[0, 4])
    torch.testing.assert_close(shared, longformer_attention(*tensors, attention_window=6, global_tokens=booleans[0, 0]))
    torch.testing.assert_close(shared[0, 0], by_index[0, 0])


def test_inputs_without_heads_and_batch() -> None:
    tensors = random_inputs(20, batch=(3,))
    one_head = [x[:, :1] for x in tensors]
    expected = longformer_attention(*one_head, attention_window=6, global_tokens=[2, 11])

    torch.testing.assert_close(
        longformer_attention(*(x[:, 0] for x in one_head), attention_window=6, global_tokens=[2, 11]), expected[:, 0]
    )
    torch.testing.assert_close(
        longformer_attention(*(x[1, 0] for x in one_head), attention_window=6, global_tokens=[2, 11]), expected[1, 0]
    )


def test_grouped_heads_share_keys() -> None:
    tensors = random_inputs(20, num_kv_heads=1)
    expanded = [x.expand(-1, HEADS, -1, -1) for x in tensors]

    output = longformer_attention(*tensors, attention_window=6, global_tokens=[3])

    torch.testing.assert_close(output, longformer_attention(*expanded, attention_window=6, global_tokens=[3]))


def test_only_global_tokens_use_the_global_queries() -> None:
    tensors = [x.requires_grad_() for x in random_inputs(40)]
    tokens = torch.zeros(2, 40, dtype=torch.bool)
    tokens[0, 5] = tokens[1, 30] = tokens[1, 31] = True

    output = longformer_attention(*tensors, attention_window=6, global_tokens=tokens)
    query_gradient, key_gradient = torch.autograd.grad(output.sum(), (tensors[3], tensors[4]))

    is_used = query_gradient.abs().sum((1, 3)) > 0
    assert is_used.nonzero().tolist() == [[0, 5], [1, 30], [1, 31]]
    assert (key_gradient.abs().sum((1, 3)) > 0).all()


def test_padding_has_zero_output_and_no_effect() -> None:
    tensors = random_inputs(20)
    is_real = torch.arange(20) < 15
    expected = longformer_attention(*tensors, attention_window=8, global_tokens=[0, 17], attention_mask=is_real)
    padded = [x.clone() for x in tensors]
    for x in padded:
        x[..., 15:, :] = torch.nan

    output = longformer_attention(*padded, attention_window=8, global_tokens=[0, 17], attention_mask=is_real)

    assert torch.equal(output, expected)
    assert (output[..., 15:, :] == 0).all() and (output[..., :15, :] != 0).all()


def test_gradients() -> None:
    tensors = [torch.randn(2, 1, 6, 2, dtype=torch.float64, requires_grad=True) for _ in range(6)]
    tokens = torch.tensor([[True, False, False, True, False, False], [False] * 6])

    assert gradcheck(lambda *x: longformer_attention(*x, attention_window=2, global_tokens=tokens), tensors)


def test_empty_inputs_return_empty_outputs() -> None:
    assert longformer_attention(*random_inputs(0), attention_window=4, global_tokens=[]).shape == (
        2,
        HEADS,
        0,
        HEAD_DIM,
    )


def test_invalid_arguments_raise() -> None:
    tensors = random_inputs(10)
    short = [x[..., :9, :] for x in tensors]
    with pytest.raises(ArgumentError, match=r"the shapes of q, k and v; got \(2, 2, 10, 5\).*; \(2, 2, 9, 5\)"):
        longformer_attention(*tensors[:3], *short[3:], attention_window=4, global_tokens=[])
    with pytest.raises(
        ArgumentError, match=r"the same batch and the same length; got q=\(2, 2, 10, 5\), k=\(2, 2, 9, 5\)"
    ):
        longformer_attention(tensors[0], *short[1:3], tensors[3], *short[4:], attention_window=4, global_tokens=[])
    with pytest.raises(ArgumentError, match="attention_window must be at least 1; got 0"):
        longformer_attention(*tensors, attention_window=0, global_tokens=[])
    with pytest.raises(ArgumentError, match="global_tokens must lie between 0 and 9; got 3 to 10"):
        longformer_attention(*tensors, attention_window=4, global_tokens=[3, 10])
    with pytest.raises(ArgumentError, match="global_tokens must lie between 0 and 9; got -1 to 3"):
        longformer_attention(*tensors, attention_window=4, global_tokens=[3, -1])
    with pytest.raises(
        ArgumentError,
        match=r"global_tokens as indices must be \(g,\) or \(batch, g\) with batch \(2,\); got shape \(3, 1\)",
    ):
        longformer_attention(*tensors, attention_window=4, global_tokens=[[0], [1], [2]])
    with pytest.raises(ArgumentError, match=r"global_tokens must be indices or booleans; got torch\.float32"):
        longformer_attention(*tensors, attention_window=4, global_tokens=[0.5])
    with pytest.raises(ArgumentError, match=r"global_tokens as booleans must be \(10,\) or \(2, 10\); got \(9,\)"):
        longformer_attention(*tensors, attention_window=4, global_tokens=[True] * 9)
    with pytest.raises(ArgumentError, match=r"attention_mask as booleans must be \(10,\) or \(2, 10\); got \(3, 10\)"):
        longformer_attention(
            *tensors, attention_window=4, global_tokens=[], attention_mask=torch.ones(3, 10, dtype=torch.bool)
        )
    with pytest.raises(ArgumentError, match=r"attention_mask must be boolean, True for a real token; got torch\.int64"):
        longformer_attention(*tensors, attention_window=4, global_tokens=[], attention_mask=[1] * 10)
