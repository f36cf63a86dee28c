"""Longformer with projections of its own for global tokens: Hugging Face's layer, and every row written out."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from regard import attention, mask
from regard.errors import SpecError
from regard.mechanism.longformer import longformer

WINDOW, HEADS, WIDTH = 8, 2, 5


def numbers(n: int, batch: tuple[int, ...] = (2,), key_heads: int = HEADS) -> list[Tensor]:
    """q, k, v and the same three for global tokens."""
    heads = (HEADS, key_heads, key_heads)
    return [torch.randn(*batch, h, n, WIDTH, dtype=torch.float64) for h in heads + heads]


def written_out(tensors: list[Tensor], window: int, is_global: Tensor, is_real: Tensor) -> Tensor:
    """One query of one batch element after another; key by key."""
    q, k, v, *far = tensors
    output = torch.zeros_like(q)
    for b, h, i in product(*(range(size) for size in q.shape[:3])):
        queries, keys, values = far if is_global[b, i] else (q, k, v)
        near = [is_global[b, i] or is_global[b, j] or abs(i - j) <= window // 2 for j in range(q.shape[2])]
        seen = [j for j, is_near in enumerate(near) if is_near and is_real[b, j]]
        if is_real[b, i]:
            weights = torch.softmax(keys[b, h, seen] @ queries[b, h, i] / q.shape[-1] ** 0.5, 0)
            output[b, h, i] = weights @ values[b, h, seen]
    return output


class Witness:
    """Hugging Face's layer, and its six projections as q, k, v and the global three."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        config = LongformerConfig(
            hidden_size=HEADS * WIDTH,
            num_attention_heads=HEADS,
            attention_window=[WINDOW],
            attention_probs_dropout_prob=0.0,
        )
        self.layer = LongformerSelfAttention(config, 0).to(dtype).eval()

    def projected(self, x: Tensor) -> list[Tensor]:
        layer = self.layer
        every = (layer.query, layer.key, layer.value, layer.query_global, layer.key_global, layer.value_global)
        return [p(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for p in every]

    def output(self, x: Tensor, is_global: Tensor, is_real: Tensor) -> Tensor:
        kinds = torch.where(is_real, torch.where(is_global, 10000.0, 0.0), -10000.0)
        (found,) = self.layer(
            x,
            attention_mask=kinds,
            is_index_masked=kinds < 0,
            is_index_global_attn=kinds > 0,
            is_global_attn=bool((kinds > 0).any()),
        )
        return found.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


PLACES: dict[str, tuple[list[list[int]], list[int]]] = {
    "none": ([[], [], []], [24, 24, 24]),
    "one": ([[0], [0], [0]], [24, 24, 24]),
    "several, near and far": ([[0, 1, 13, 23]] * 3, [24, 24, 24]),
    "each element its own": ([[0, 7, 8], [], [20]], [24, 24, 24]),
    "padded": ([[0], [5, 6], []], [24, 17, 3]),
    "padded beyond a window": ([[0, 2], [3], [1, 2, 3]], [8, 24, 5]),
}


def marked(places: list[list[int]], n: int) -> Tensor:
    found = torch.zeros(len(places), n, dtype=torch.bool)
    for b, row in enumerate(places):
        found[b, row] = True
    return found


@pytest.mark.parametrize("name", PLACES)
def test_hugging_faces_layer_says_the_same_at_every_position(name: str) -> None:
    places, lengths = PLACES[name]
    is_global, is_real = marked(places, 24), torch.arange(24) < torch.tensor(lengths)[:, None]
    witness, x = Witness(), torch.randn(3, 24, HEADS * WIDTH, dtype=torch.float64)

    with torch.no_grad():
        found = longformer(*witness.projected(x), window=WINDOW, tokens=is_global, real=is_real)
        expected = witness.output(x, is_global, is_real)

    # the layer takes its softmax in float32, whatever it is given
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_hugging_faces_layer_has_the_same_gradients() -> None:
    """In float32: of float64 the layer makes NaN, where its smallest number becomes -inf in its softmax's float32."""
    is_global, is_real = marked([[0, 7], [], [4]], 24), torch.arange(24) < torch.tensor([24, 24, 13])[:, None]
    witness, x = Witness(torch.float32), torch.randn(3, 24, HEADS * WIDTH, requires_grad=True)
    weights = torch.randn(3, HEADS, 24, WIDTH)
    of = (x, *witness.layer.parameters())

    found = longformer(*witness.projected(x), window=WINDOW, tokens=is_global, real=is_real)
    got = torch.autograd.grad((found * weights).sum(), of)
    expected = torch.autograd.grad((witness.output(x, is_global, is_real) * weights).sum(), of)

    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # sums over 72 tokens in float32


@pytest.mark.parametrize("n, window", [(1, 4), (23, 1), (23, 6), (23, 7), (23, 100)])
def test_each_row_is_what_the_two_formulas_say(n: int, window: int) -> None:
    tensors = numbers(n)
    is_global, is_real = torch.rand(2, n) < 0.2, torch.rand(2, n) < 0.8
    is_real[:, 0] = is_global[0, 0] = True

    found = longformer(*tensors, window=window, tokens=is_global, real=is_real)

    torch.testing.assert_close(found, written_out(tensors, window, is_global & is_real, is_real))


def test_with_one_set_of_projections_it_is_the_mask() -> None:
    q, k, v = numbers(150)[:3]

    found = longformer(q, k, v, q, k, v, window=20, tokens=[0, 70, 149])

    torch.testing.assert_close(found, attention(q, k, v, mask=mask.longformer(20, [0, 70, 149])))


def test_tokens_may_be_indices_or_booleans_for_all_or_for_each() -> None:
    tensors = numbers(30, batch=(2, 3))
    each = torch.tensor([[[0, 4], [9, 9], [1, 29]], [[3, 2], [0, 0], [8, 7]]])
    booleans = torch.zeros(2, 3, 30, dtype=torch.bool).scatter(-1, each, True)

    by_index = longformer(*tensors, window=6, tokens=each)

    torch.testing.assert_close(by_index, longformer(*tensors, window=6, tokens=booleans))
    flat = [x.flatten(0, 1) for x in tensors]
    torch.testing.assert_close(by_index.flatten(0, 1), longformer(*flat, window=6, tokens=booleans.flatten(0, 1)))
    for_all = longformer(*tensors, window=6, tokens=[0, 4])
    torch.testing.assert_close(for_all, longformer(*tensors, window=6, tokens=booleans[0, 0]))
    torch.testing.assert_close(for_all[0, 0], by_index[0, 0])


def test_no_head_and_no_batch_need_be_given() -> None:
    tensors = numbers(20, batch=(3,))
    one_head = [x[:, :1] for x in tensors]
    expected = longformer(*one_head, window=6, tokens=[2, 11])

    torch.testing.assert_close(longformer(*(x[:, 0] for x in one_head), window=6, tokens=[2, 11]), expected[:, 0])
    torch.testing.assert_close(longformer(*(x[1, 0] for x in one_head), window=6, tokens=[2, 11]), expected[1, 0])


def test_heads_share_keys() -> None:
    tensors = numbers(20, key_heads=1)
    spread = [x.expand(-1, HEADS, -1, -1) for x in tensors]

    found = longformer(*tensors, window=6, tokens=[3])

    torch.testing.assert_close(found, longformer(*spread, window=6, tokens=[3]))


def test_only_the_rows_of_global_tokens_use_the_global_projections() -> None:
    tensors = [x.requires_grad_() for x in numbers(40)]
    tokens = torch.zeros(2, 40, dtype=torch.bool)
    tokens[0, 5] = tokens[1, 30] = tokens[1, 31] = True

    output = longformer(*tensors, window=6, tokens=tokens)
    of_query, of_key = torch.autograd.grad(output.sum(), (tensors[3], tensors[4]))

    asked = of_query.abs().sum((1, 3)) > 0
    assert asked.nonzero().tolist() == [[0, 5], [1, 30], [1, 31]]
    assert (of_key.abs().sum((1, 3)) > 0).all()


def test_a_token_that_is_not_real_gets_zero_and_moves_nothing() -> None:
    tensors = numbers(20)
    real = torch.arange(20) < 15
    expected = longformer(*tensors, window=8, tokens=[0, 17], real=real)
    changed = [x.clone() for x in tensors]
    for x in changed:
        x[..., 15:, :] = torch.nan

    found = longformer(*changed, window=8, tokens=[0, 17], real=real)

    assert torch.equal(found, expected)
    assert (found[..., 15:, :] == 0).all() and (found[..., :15, :] != 0).all()


def test_gradients() -> None:
    tensors = [torch.randn(2, 1, 6, 2, dtype=torch.float64, requires_grad=True) for _ in range(6)]
    tokens = torch.tensor([[True, False, False, True, False, False], [False] * 6])

    assert gradcheck(lambda *x: longformer(*x, window=2, tokens=tokens), tensors)


def test_nothing_gives_nothing() -> None:
    assert longformer(*numbers(0), window=4, tokens=[]).shape == (2, HEADS, 0, WIDTH)


def test_what_is_wrong_is_said() -> None:
    tensors = numbers(10)
    short = [x[..., :9, :] for x in tensors]
    with pytest.raises(SpecError, match=r"the shapes of q, k and v; got \(2, 2, 10, 5\).*; \(2, 2, 9, 5\)"):
        longformer(*tensors[:3], *short[3:], window=4, tokens=[])
    with pytest.raises(SpecError, match=r"one batch and one length; got q=\(2, 2, 10, 5\), k=\(2, 2, 9, 5\)"):
        longformer(tensors[0], *short[1:3], tensors[3], *short[4:], window=4, tokens=[])
    with pytest.raises(SpecError, match="window must be a whole number of at least 1; got 0"):
        longformer(*tensors, window=0, tokens=[])
    with pytest.raises(SpecError, match="tokens must lie between 0 and 9; got 3 to 10"):
        longformer(*tensors, window=4, tokens=[3, 10])
    with pytest.raises(SpecError, match="tokens must lie between 0 and 9; got -1 to 3"):
        longformer(*tensors, window=4, tokens=[3, -1])
    with pytest.raises(SpecError, match=r"one for each of batch \(2,\); got shape \(3, 1\)"):
        longformer(*tensors, window=4, tokens=[[0], [1], [2]])
    with pytest.raises(SpecError, match=r"tokens must be indices or booleans; got torch\.float32"):
        longformer(*tensors, window=4, tokens=[0.5])
    with pytest.raises(SpecError, match=r"tokens as booleans must be \(10,\) or \(2, 10\); got \(9,\)"):
        longformer(*tensors, window=4, tokens=[True] * 9)
    with pytest.raises(SpecError, match=r"real as booleans must be \(10,\) or \(2, 10\); got \(3, 10\)"):
        longformer(*tensors, window=4, tokens=[], real=torch.ones(3, 10, dtype=torch.bool))
    with pytest.raises(SpecError, match=r"real must be booleans, True for a token that is meant; got torch\.int64"):
        longformer(*tensors, window=4, tokens=[], real=[1] * 10)
