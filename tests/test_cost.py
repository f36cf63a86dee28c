"""`regard.cost` against independent counts.

The counts are torch's FLOP counter on real modules, their parameters, pairs counted one by one, the tensors that
autograd saves, and published numbers.
"""

import doctest
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from regard import cost
from regard.errors import ArgumentError


def count_flops(run: Callable[[], object], **options: object) -> int:
    """Return the FLOPs that torch counts while `run` runs."""
    with FlopCounterMode(display=False, **options) as counter:
        run()
    return counter.get_total_flops()


def count_parameters(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


# ---- attention itself


def test_attention_flops_equal_torch_sdpa() -> None:
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 6)
    expected = cost.attention(5, 7, 8, v_head_dim=6, num_heads=3, batch_size=2)
    with sdpa_kernel(SDPBackend.MATH):
        assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v)) == expected.total
    assert count_flops(lambda: q @ k.mT) == expected.scores
    assert count_flops(lambda: torch.empty(2, 3, 5, 7) @ v) == expected.values


def test_grouped_query_attention_has_the_same_flops() -> None:
    q, k = torch.randn(1, 6, 5, 4), torch.randn(1, 2, 5, 4)
    with sdpa_kernel(SDPBackend.MATH):
        grouped = count_flops(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    assert grouped == cost.attention(5, 5, 4, num_heads=6).total


def test_backward_flops_are_twice_the_forward() -> None:
    q, k, v = (torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 8), (7, 8), (7, 6)))
    forward = cost.attention(5, 7, 8, v_head_dim=6, num_heads=3, batch_size=2)
    with sdpa_kernel(SDPBackend.MATH):
        output = F.scaled_dot_product_attention(q, k, v)
        assert count_flops(lambda: output.sum().backward()) == cost.backward(forward).total


def test_backward_with_recompute_equals_torch_flash_attention() -> None:
    # torch has formulas for flash attention, but does not apply them to its CPU operators
    aten = torch.ops.aten
    cpu_formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (5, 7, 7))
    forward = cost.attention(5, 7, 8, num_heads=3, batch_size=2)

    def forward_and_backward() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, k, v).sum().backward()

    assert (
        count_flops(forward_and_backward, custom_mapping=cpu_formulas) == cost.training(forward, recompute=True).total
    )
    n, d = 512, 64
    square = cost.attention(n, n, d)
    assert cost.backward(square).total == 8 * n * n * d
    assert cost.backward(square, recompute=True).total == 10 * n * n * d


@given(n_q=st.integers(0, 12), n_k=st.integers(0, 12), query_offset=st.none() | st.integers(-15, 15))
def test_causal_pairs_equal_a_count_of_all_pairs(n_q: int, n_k: int, query_offset: int | None) -> None:
    offset = n_k - n_q if query_offset is None else query_offset
    expected = sum(j <= offset + i for i in range(n_q) for j in range(n_k))
    assert cost.causal_pairs(n_q, n_k, query_offset=query_offset) == expected


def test_causal_flops_equal_row_by_row_products() -> None:
    n, d = 9, 4
    q, k, v = torch.randn(3, n, d)

    def row_by_row() -> None:
        for i in range(n):
            (q[i : i + 1] @ k[: i + 1].T) @ v[: i + 1]

    causal = cost.attention(n, n, d, pairs=cost.causal_pairs(n, n)).total
    assert count_flops(row_by_row) == causal == 2 * n * (n + 1) * d


def test_pairs_of_a_sliding_window() -> None:
    n, window, d = 40, 8, 16
    pairs = sum(i - window < j <= i for i in range(n) for j in range(n))
    assert pairs == n * window - window * (window - 1) // 2
    assert cost.attention(n, n, d, num_heads=2, batch_size=3, pairs=pairs).total == 3 * 2 * 4 * pairs * d
    assert cost.softmax(n, n, num_heads=2, batch_size=3, pairs=pairs) == 3 * 2 * 5 * pairs


def test_softmax_counts_five_operations_per_pair() -> None:
    assert cost.softmax(100, 100, num_heads=12) == 5 * 100**2 * 12


def test_additive_scores_count_the_sum_and_the_product_with_u() -> None:
    m, n, hidden_dim = 5, 7, 6
    a, b, u = torch.randn(m, 1, hidden_dim), torch.randn(1, n, hidden_dim), torch.randn(hidden_dim, 1)
    summed = a + b
    product = count_flops(lambda: torch.tanh(summed).reshape(m * n, hidden_dim) @ u)
    assert product == 2 * m * n * hidden_dim
    assert cost.additive_scores(m, n, hidden_dim) == summed.numel() + product
    assert cost.additive_scores(m, n, hidden_dim, num_heads=2, batch_size=3, pairs=4) == 2 * 3 * 3 * 4 * hidden_dim


# ---- layers


@pytest.mark.parametrize("n_q, n_k", [(9, 9), (9, 5)], ids=["self", "cross"])
def test_projections_and_attention_equal_torch_multihead_attention(n_q: int, n_k: int) -> None:
    module = nn.MultiheadAttention(24, 4, batch_first=True)
    x, y = torch.randn(2, n_q, 24), torch.randn(2, n_k, 24)
    expected = cost.projections(n_q, n_k, 24, num_heads=4, batch_size=2) + cost.attention(
        n_q, n_k, 6, num_heads=4, batch_size=2
    )
    assert count_flops(lambda: module(x, y, y, need_weights=True)) == expected.total


@pytest.mark.parametrize("has_output", [True, False])
@pytest.mark.parametrize("head_dim", [None, 5])
def test_grouped_projections_equal_torch_linear_layers(head_dim: int | None, has_output: bool) -> None:
    embed_dim, num_heads, num_kv_heads, n_q, n_k = 24, 6, 2, 7, 9
    d = head_dim or embed_dim // num_heads
    x, y = torch.randn(n_q, embed_dim), torch.randn(n_k, embed_dim)
    q_proj, k_proj = nn.Linear(embed_dim, num_heads * d), nn.Linear(embed_dim, num_kv_heads * d)
    v_proj, out_proj = nn.Linear(embed_dim, num_kv_heads * d), nn.Linear(num_heads * d, embed_dim)

    def run() -> None:
        q, _, _ = q_proj(x), k_proj(y), v_proj(y)
        if has_output:
            out_proj(q)

    expected = cost.projections(
        *(n_q, n_k, embed_dim),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        has_output_projection=has_output,
    )
    assert count_flops(run) == expected.total


def test_projections_follow_the_published_formulas() -> None:
    n, D, G, d = 100, 64, 2, 8
    assert cost.projections(n, n, D).total == 8 * n * D**2
    assert cost.projections(n, n, D, has_output_projection=False).total == 6 * n * D**2
    assert cost.projections(n, n, D, num_heads=8, num_kv_heads=G).total == 4 * n * D**2 + 4 * n * D * G * d


def test_feed_forward_flops_equal_torch() -> None:
    up, gate, down, x = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 6), torch.randn(3, 7, 6)
    plain = count_flops(lambda: down(F.gelu(up(x))))
    gated = count_flops(lambda: down(F.silu(gate(x)) * up(x)))
    assert plain == cost.feed_forward(7, 6, 10, batch_size=3).total
    assert gated == cost.feed_forward(7, 6, 10, gated=True, batch_size=3).total
    assert cost.feed_forward(7, 6).total == cost.feed_forward(7, 6, 24).total


def test_layer_flops_equal_a_torch_encoder_layer() -> None:
    module = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)
    x = torch.randn(2, 9, 24)
    with sdpa_kernel(SDPBackend.MATH):
        assert count_flops(lambda: module(x)) == cost.layer(9, 24, num_heads=4, ffn_dim=40, batch_size=2).total


def test_layer_is_the_sum_of_its_parts() -> None:
    layer = cost.layer(9, 24, num_heads=6, num_kv_heads=2, head_dim=5, ffn_dim=40, gated=True, pairs=45, batch_size=2)
    assert layer == (
        cost.projections(9, 9, 24, num_heads=6, num_kv_heads=2, head_dim=5, batch_size=2)
        + cost.attention(9, 9, 5, num_heads=6, pairs=45, batch_size=2)
        + cost.feed_forward(9, 24, 40, gated=True, batch_size=2)
    )
    assert layer.total == layer.projections + layer.scores + layer.values + layer.feed_forward


# ---- training


class LanguageModel(nn.Module):
    def __init__(self, num_layers: int, embed_dim: int, num_heads: int, vocab_size: int, max_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, embed_dim)
        self.positions = nn.Embedding(max_len, embed_dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(embed_dim, num_heads, 4 * embed_dim, batch_first=True, norm_first=True)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def test_training_flops_of_a_model_equal_torch_and_six_n_d() -> None:
    num_layers, embed_dim, vocab_size, seq_len, batch_size = 3, 16, 50, 9, 2
    model = LanguageModel(num_layers, embed_dim, 4, vocab_size, seq_len)
    ids = torch.randint(vocab_size, (batch_size, seq_len))

    def step() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            model(ids).sum().backward()

    forward = num_layers * cost.layer(seq_len, embed_dim, num_heads=4, batch_size=batch_size)
    forward += cost.lm_head(seq_len, embed_dim, vocab_size, batch_size=batch_size)
    assert count_flops(step) == cost.training(forward).total

    matrices = [p for block in model.blocks for p in block.parameters() if p.ndim == 2] + [model.tokens.weight]
    N = sum(matrix.numel() for matrix in matrices)
    one_token = num_layers * cost.layer(1, embed_dim) + cost.lm_head(1, embed_dim, vocab_size)
    assert one_token.non_attention // 2 == N
    num_tokens = batch_size * seq_len
    by_rule = cost.six_n_d(N, num_tokens, num_layers=num_layers, embed_dim=embed_dim, keys_per_query=seq_len)
    assert by_rule == cost.training(forward).total
    assert cost.six_n_d(N, num_tokens) == cost.training(forward).non_attention


def test_causal_attention_halves_the_correction_of_six_n_d() -> None:
    L, T, D, tokens = 12, 1024, 768, 10 * 1024
    bare = cost.six_n_d(10**8, tokens)
    assert cost.six_n_d(10**8, tokens, num_layers=L, embed_dim=D, keys_per_query=T) - bare == 12 * L * T * D * tokens
    assert (
        cost.six_n_d(10**8, tokens, num_layers=L, embed_dim=D, keys_per_query=T // 2) - bare == 6 * L * T * D * tokens
    )
    causal = 10 * L * cost.attention(T, T, D, pairs=cost.causal_pairs(T, T))
    assert cost.training(causal).total == 6 * L * (T + 1) * D * tokens


def test_training_follows_the_published_table() -> None:
    B, T, D, V, ffn_dim = 4, 128, 64, 1000, 160
    training = cost.training(
        cost.layer(T, D, num_heads=4, ffn_dim=ffn_dim, batch_size=B)
        + cost.lm_head(T, D, V, one_hot_input=True, batch_size=B)
    )
    assert training.attention == 12 * B * T**2 * D
    assert training.projections == 24 * B * T * D**2
    assert training.feed_forward == 12 * B * T * D * ffn_dim
    assert training.lm_head == 12 * B * T * D * V
    gated = cost.training(cost.feed_forward(T, D, ffn_dim, gated=True, batch_size=B))
    assert gated.total == 18 * B * T * D * ffn_dim
    assert cost.training(cost.lm_head(T, D, V, batch_size=B)).total == 6 * B * T * D * V


# ---- crossover: the published estimates are "n > d" and "T > 8D"


def test_crossover_lengths_of_common_layers() -> None:
    n, D = 96, 768
    half = n * n // 2
    full = cost.attention(n, n, D)
    assert cost.crossover_length(full + cost.projections(n, n, D, has_output_projection=False), n) == Fraction(3, 2) * D
    assert cost.crossover_length(full + cost.projections(n, n, D), n) == 2 * D
    assert cost.crossover_length(cost.layer(n, D), n) == 6 * D
    assert cost.crossover_length(cost.layer(n, D, gated=True), n) == 8 * D
    assert cost.crossover_length(cost.layer(n, D, gated=True, ffn_dim=8 * D // 3), n) == 6 * D
    assert cost.crossover_length(cost.layer(n, D, pairs=half), n) == 12 * D
    assert cost.crossover_length(cost.layer(n, D, gated=True, pairs=half), n) == 16 * D
    assert cost.crossover_length(cost.layer(n, D, ffn_dim=0), n) == 2 * D


@pytest.mark.parametrize("gated, times", [(False, 6), (True, 8)])
def test_attention_costs_less_before_and_more_after_the_crossover(gated: bool, times: int) -> None:
    D = 12
    before, equal, after = (cost.layer(times * D + step, D, gated=gated) for step in (-1, 0, 1))
    assert before.attention < before.non_attention
    assert equal.attention == equal.non_attention
    assert after.attention > after.non_attention


@pytest.mark.parametrize("gated, times", [(False, 12), (True, 16)])
def test_exact_causal_attention_crosses_one_token_before_its_limit(gated: bool, times: int) -> None:
    D = 12
    n = times * D - 1
    causal = cost.layer(n, D, gated=gated, pairs=cost.causal_pairs(n, n))
    assert causal.attention == causal.non_attention


def test_crossover_length_does_not_depend_on_the_given_length() -> None:
    lengths = {cost.crossover_length(cost.layer(n, 48, num_heads=6, num_kv_heads=2), n) for n in (1, 7, 1000)}
    assert len(lengths) == 1
    grouped = cost.layer(7 * 48, 48, num_heads=6, num_kv_heads=2)
    assert grouped.attention > grouped.non_attention > 0, (
        "fewer key heads make the rest cheaper, so the crossover is earlier"
    )


# ---- memory


def test_attention_weights_of_a_bert_sample_take_144_mib() -> None:
    matrix = torch.empty(512, 512)
    assert cost.attention_weights_bytes(512, 512) == matrix.numel() * matrix.element_size() == 1_048_576
    assert cost.attention_weights_bytes(512, 512, num_heads=12, num_layers=12) == 150_994_944 == 144 * 2**20
    assert (
        cost.attention_weights_bytes(512, 512, num_heads=12, num_layers=12, batch_size=8, bytes_per_element=2)
        == 8 * 72 * 2**20
    )


@pytest.mark.parametrize("recompute", [False, True])
def test_activation_bytes_equal_the_tensors_that_autograd_saves(recompute: bool) -> None:
    B, n, D, H = 2, 24, 16, 4
    dtype = torch.bfloat16
    qkv, out, up, down = (nn.Linear(i, o, dtype=dtype) for i, o in ((D, 3 * D), (D, D), (D, 4 * D), (4 * D, D)))
    norms = [nn.LayerNorm(D, dtype=dtype) for _ in range(2)]
    parameters = {p.untyped_storage().data_ptr() for m in (qkv, out, up, down, *norms) for p in m.parameters()}
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        is_statistic = tensor.numel() in (1, B * n)  # the estimate omits those of the norms, and the scale
        if address not in parameters and not is_statistic:
            saved[address] = tensor
        return tensor

    def drop(x: Tensor) -> Tensor:
        return torch.native_dropout(x, 0.1, True)[0]  # saves its mask, one byte per element

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return drop(torch.softmax(q @ k.mT, -1)) @ v

    x = torch.randn(B, n, D, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        q, k, v = qkv(norms[0](x)).reshape(B, n, 3, H, D // H).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        q, k, v = (t.clone() for t in (q, k, v))  # separate storages, so that each is counted
        if recompute:
            o = checkpoint(attention, q, k, v, use_reentrant=False)
            saved.update({t.untyped_storage().data_ptr(): t for t in (q, k, v)})
        else:
            o = attention(q, k, v)
        y = x + drop(out(o.transpose(1, 2).reshape(B, n, D)))
        z = y + drop(down(F.gelu(up(norms[1](y)))))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert z.shape == x.shape
    assert measured == cost.activation_bytes(n, D, H, batch_size=B, recompute=recompute)


def test_activation_bytes_follow_the_published_formula() -> None:
    n, B, D, H, L = 2048, 3, 1024, 16, 24
    assert cost.activation_bytes(n, D, H, num_layers=L, batch_size=B) == L * (n * B * D * (34 + 5 * H * n // D))
    linear = cost.activation_bytes(n, D, H, num_layers=L, batch_size=B, recompute=True)
    assert cost.activation_bytes(2 * n, D, H, num_layers=L, batch_size=B, recompute=True) == 2 * linear


def test_kv_cache_bytes_equal_those_of_real_tensors() -> None:
    num_layers, num_kv_heads, seq_len, head_dim, batch_size = 3, 2, 11, 8, 5
    tensors = torch.empty(num_layers, 2, batch_size, num_kv_heads, seq_len, head_dim, dtype=torch.float16)
    shape = dict(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, batch_size=batch_size)
    assert cost.kv_cache_bytes(seq_len, **shape) == tensors.nbytes
    assert cost.kv_cache_bytes(seq_len, **shape, bytes_per_element=4) == tensors.float().nbytes


@pytest.mark.parametrize("num_heads, num_kv_heads, bytes_per_element", [(32, 32, 2), (32, 8, 2), (32, 1, 4)])
def test_decode_intensity_equals_a_count_on_real_tensors(
    num_heads: int, num_kv_heads: int, bytes_per_element: int
) -> None:
    seq_len, d = 20, 4
    q, k = torch.randn(1, num_heads, 1, d), torch.randn(1, num_kv_heads, seq_len, d)
    with sdpa_kernel(SDPBackend.MATH):
        flops = count_flops(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    intensity = cost.decode_intensity(num_heads, num_kv_heads, bytes_per_element=bytes_per_element)
    assert intensity == Fraction(flops, 2 * k.numel() * bytes_per_element)
    assert intensity == Fraction(num_heads, num_kv_heads) * Fraction(2, bytes_per_element)


# ---- parameters


@pytest.mark.parametrize("embed_dim, ffn_dim", [(24, None), (24, 40), (768, 3072)])
def test_layer_parameters_equal_a_torch_encoder_layer(embed_dim: int, ffn_dim: int | None) -> None:
    module = nn.TransformerEncoderLayer(embed_dim, 4, ffn_dim or 4 * embed_dim, device="meta")
    assert cost.layer_parameters(embed_dim, ffn_dim) == count_parameters(module)
    assert cost.layer_parameters(768) == 7_087_872


def test_gpt2_small_has_124_439_808_parameters() -> None:
    assert cost.gpt2_parameters() == 124_439_808
    with torch.device("meta"):
        assert count_parameters(LanguageModel(12, 768, 12, 50257, 1024)) == cost.gpt2_parameters()
        small = cost.gpt2_parameters(num_layers=2, embed_dim=32, vocab_size=100, max_len=7)
        assert count_parameters(LanguageModel(2, 32, 4, 100, 7)) == small


def test_vit_b_16_has_86_567_656_parameters() -> None:
    def count_on_modules(num_layers: int, embed_dim: int, image_size: int, patch_size: int, num_classes: int) -> int:
        num_tokens = (image_size // patch_size) ** 2 + 1
        with torch.device("meta"):
            return count_parameters(
                nn.Conv2d(3, embed_dim, patch_size, patch_size),
                nn.Embedding(1, embed_dim),
                nn.Embedding(num_tokens, embed_dim),
                *(nn.TransformerEncoderLayer(embed_dim, 4, 4 * embed_dim) for _ in range(num_layers)),
                nn.LayerNorm(embed_dim),
                nn.Linear(embed_dim, num_classes),
            )

    assert cost.vit_parameters() == 86_567_656 == count_on_modules(12, 768, 224, 16, 1000)
    small = cost.vit_parameters(num_layers=2, embed_dim=32, image_size=64, patch_size=8, num_classes=10)
    assert small == count_on_modules(2, 32, 64, 8, 10)


def test_the_feed_forward_layer_is_two_thirds_of_a_layer() -> None:
    layer = cost.layer(1, 768)
    assert Fraction(layer.feed_forward, layer.non_attention) == Fraction(2, 3)


# ---- growth


def evaluate_complexity(text: str, **letters: float) -> float:
    """Evaluate a text O(...) with values for its letters."""
    terms = re.fullmatch(r"O\((.*)\)", text)[1]
    value = 0.0
    for term in terms.split(" + "):
        product = 1.0
        for factor in term.replace("log n", "log(n)").split(" "):
            name, power = factor.rstrip("²³"), {"²": 2, "³": 3}.get(factor[-1], 1)
            if name == "log(n)":
                product *= math.log2(letters["n"])
            elif name.startswith("√"):
                product *= math.sqrt(letters[name[1:]])
            elif name != "1":
                product *= letters[name] ** power
        value += product
    return value


def stored_tensors(name: str, n: int, d: int, m: int, w: int, a: int) -> list[Tensor]:
    """Run the products of a mechanism on meta tensors and return the intermediate tensors that it stores."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    x = empty(n, d)
    match name:
        case "self-attention":
            stored = [x @ x.T]
            stored[0] @ x
        case "cross-attention":
            stored = [empty(m, d) @ x.T]
            stored[0] @ x
        case "additive":
            stored = [torch.tanh(empty(n, 1, a) + empty(1, n, a))]
            stored[0].reshape(-1, a) @ empty(a, 1)
        case "recurrent":
            stored = [empty(1, d)]
            for i in range(n):
                stored = [torch.tanh(stored[0] @ empty(d, d) + x[i : i + 1] @ empty(d, d))]
        case "convolution":
            F.conv1d(x.T[None], empty(d, d, w), padding=w // 2)
            stored = [empty(1)]
        case "window":
            blocks = x.reshape(n // w, w, d)
            stored = [blocks @ blocks.mT]
            stored[0] @ blocks
        case "linformer":
            keys, values = empty(m, n) @ x, empty(m, n) @ x
            stored = [x @ keys.T, keys, values]
            stored[0] @ values
        case "performer":
            queries, keys = x @ empty(d, m), x @ empty(d, m)
            stored = [queries, keys, keys.T @ x]
            queries @ stored[2]
        case "nystromformer":
            landmarks = empty(m, d)
            left, middle, right = x @ landmarks.T, landmarks @ landmarks.T, landmarks @ x.T
            inverse = middle @ (middle @ (middle @ (middle @ middle)))  # one iteration: four products
            stored = [left, inverse, right]
            left @ (inverse @ (right @ x))
        case "linear":
            queries, keys = F.elu(x) + 1, F.elu(x) + 1
            stored = [queries, keys, keys.T @ x]
            queries @ stored[2]
    return stored


@pytest.mark.parametrize(
    "name",
    [
        *("self-attention", "cross-attention", "additive", "recurrent", "convolution"),
        *("window", "linformer", "performer", "nystromformer", "linear"),
    ],
)
def test_complexities_equal_counted_growth(name: str) -> None:
    base_sizes = dict(n=64, d=4, m=16, w=4, a=4)
    time, memory = [], []
    for letter in ("none", *base_sizes):
        sizes = {name: size * (16 if name == letter else 1) for name, size in base_sizes.items()}
        letters = sizes | dict(n_q=sizes["m"], n_k=sizes["n"])
        with FlopCounterMode(display=False) as counter:
            numel = sum(tensor.numel() for tensor in stored_tensors(name, **sizes))
        time.append(counter.get_total_flops() / evaluate_complexity(cost.COMPLEXITIES[name].time, **letters))
        memory.append(numel / evaluate_complexity(cost.COMPLEXITIES[name].memory, **letters))
    # O() omits a constant for each term of a sum; a wrong power of any letter would be off by 16 or 4
    assert max(time) / min(time) < 3
    assert max(memory) / min(memory) < 3


@pytest.mark.parametrize("name", ["sparse transformer", "routing", "window", "longformer"])
def test_complexities_of_sparse_patterns_follow_their_pairs(name: str) -> None:
    def pairs(n: int) -> int:
        i, j = torch.arange(n)[:, None], torch.arange(n)
        root, w = math.isqrt(n), 16
        visible = {
            "sparse transformer": (j <= i) & ((i - j < root) | ((i - j) % root == 0)),
            "routing": i // root == j // root,
            "window": (i - j).abs() < w,
            "longformer": ((i - j).abs() < w) | (i < 2) | (j < 2),
        }
        return int(visible[name].sum())

    memory, time = cost.COMPLEXITIES[name].memory, cost.COMPLEXITIES[name].time
    expected = evaluate_complexity(memory, n=2304, w=16) / evaluate_complexity(memory, n=576, w=16)
    assert pairs(2304) / pairs(576) == pytest.approx(expected, rel=0.05)  # the edges of the patterns
    assert time == memory[:-1] + " d)"


def test_complexities_contain_the_table_of_the_transformer_paper() -> None:
    rows = {
        name: (complexity.sequential_operations, complexity.max_path_length)
        for name, complexity in cost.COMPLEXITIES.items()
        if complexity.sequential_operations
    }
    assert rows == {
        "self-attention": ("O(1)", "O(1)"),
        "self-attention, streamed": ("O(1)", "O(1)"),
        "cross-attention": ("O(1)", "O(1)"),
        "additive": ("O(1)", "O(1)"),
        "recurrent": ("O(n)", "O(n)"),
        "convolution": ("O(1)", "O(log_w n)"),
        "window": ("O(1)", "O(n/w)"),
    }
    streamed, reformer = cost.COMPLEXITIES["self-attention, streamed"], cost.COMPLEXITIES["reformer"]
    assert (streamed.time, streamed.memory) == (cost.COMPLEXITIES["self-attention"].time, "O(n)")
    assert (reformer.time, reformer.memory) == ("O(n log n d r)", "O(n log n r)")
    with pytest.raises(TypeError, match="item assignment"):
        cost.COMPLEXITIES["self-attention"] = cost.COMPLEXITIES["linear"]


# ---- the module


def test_counts_are_exact_beyond_64_bits() -> None:
    training = cost.training(200 * cost.layer(10**6 + 1, 10**5 + 1, batch_size=10**4))
    assert training.attention == 200 * 12 * (10**6 + 1) ** 2 * (10**5 + 1) * 10**4 > 2**63


def test_default_arguments() -> None:
    single = dict(num_heads=1, batch_size=1)
    assert cost.attention(5, 7, 8) == cost.attention(5, 7, 8, v_head_dim=8, **single, pairs=35)
    assert cost.softmax(5, 7) == cost.softmax(5, 7, **single)
    assert cost.additive_scores(5, 7, 3) == cost.additive_scores(5, 7, 3, **single)
    assert cost.projections(5, 7, 9) == cost.projections(
        5, 7, 9, **single, num_kv_heads=1, head_dim=9, has_output_projection=True
    )
    assert cost.feed_forward(5, 8) == cost.feed_forward(5, 8, 32, gated=False, batch_size=1)
    assert cost.lm_head(5, 8, 9) == cost.lm_head(5, 8, 9, one_hot_input=False, batch_size=1)
    assert cost.layer(5, 8) == cost.layer(5, 8, **single, ffn_dim=32, gated=False, pairs=25)
    assert cost.activation_bytes(5, 8, 2) == cost.activation_bytes(5, 8, 2, num_layers=1, batch_size=1, recompute=False)
    assert cost.decode_intensity(8, 2) == cost.decode_intensity(8, 2, bytes_per_element=2)


def test_head_dim_need_not_divide_embed_dim() -> None:
    assert cost.layer(5, 10, num_heads=3, head_dim=4).attention == cost.attention(5, 5, 4, num_heads=3).total


def test_results_are_hashable_values() -> None:
    assert len({cost.layer(5, 8), cost.layer(5, 8), cost.layer(6, 8)}) == 2
    assert (
        len({cost.COMPLEXITIES["longformer"], cost.COMPLEXITIES["sparse transformer"], cost.COMPLEXITIES["routing"]})
        == 2
    )


def test_empty_sequences_and_batches_cost_nothing() -> None:
    assert cost.layer(0, 64, num_heads=4).total == 0
    assert cost.attention(0, 5, 8).total == cost.attention(5, 5, 8, batch_size=0).total == 0
    assert cost.kv_cache_bytes(0, num_layers=1, num_kv_heads=1, head_dim=1) == 0
    assert cost.activation_bytes(0, 8, 2) == cost.activation_bytes(5, 8, 2, num_layers=0) == 0
    assert cost.vit_parameters(num_layers=0) == 86_567_656 - 12 * cost.layer_parameters(768)


INVALID_INTEGERS: list[tuple[Callable[[], object], str, int, str]] = [
    (lambda: cost.attention(-1, 5, 8), "n_q", 0, "-1"),
    (lambda: cost.attention(5, 5, 0), "head_dim", 1, "0"),
    (lambda: cost.attention(5, 5, 8, num_heads=True), "num_heads", 1, "True"),
    (lambda: cost.attention(5, 5, 8, v_head_dim=0), "v_head_dim", 1, "0"),
    (lambda: cost.softmax(5, 5, pairs=-1), "pairs", 0, "-1"),
    (lambda: cost.additive_scores(5, 5, 0), "hidden_dim", 1, "0"),
    (lambda: cost.causal_pairs(5, -5), "n_k", 0, "-5"),
    (lambda: cost.layer(1e6, 64), "seq_len", 0, "1000000.0"),
    (lambda: cost.layer(np.int64(5), 64), "seq_len", 0, "np.int64(5)"),
    (lambda: cost.layer(5, 16, head_dim=0), "head_dim", 1, "0"),
    (lambda: 2.5 * cost.layer(5, 16), "count", 0, "2.5"),
    (lambda: cost.projections(5, 5, "16"), "embed_dim", 1, "'16'"),
    (lambda: cost.projections(5, 5, 16, batch_size=-2), "batch_size", 0, "-2"),
    (lambda: cost.projections(5, 5, 16, num_kv_heads=0), "num_kv_heads", 1, "0"),
    (lambda: cost.feed_forward(5, 16, -1), "ffn_dim", 0, "-1"),
    (lambda: cost.feed_forward(5, None), "embed_dim", 1, "None"),
    (lambda: cost.lm_head(5, 0, 9), "embed_dim", 1, "0"),
    (lambda: cost.lm_head(5, 16, 1.5), "vocab_size", 0, "1.5"),
    (lambda: cost.crossover_length(cost.layer(1, 1), 0), "seq_len", 1, "0"),
    (lambda: cost.six_n_d(1, 1e9), "num_tokens", 0, "1000000000.0"),
    (lambda: cost.attention_weights_bytes(5, 5, num_layers=-3), "num_layers", 0, "-3"),
    (lambda: cost.attention_weights_bytes(5, 5, bytes_per_element=0), "bytes_per_element", 1, "0"),
    (lambda: cost.activation_bytes(5, 16, 0), "num_heads", 1, "0"),
    (lambda: cost.kv_cache_bytes(5, num_layers=1, num_kv_heads=0, head_dim=8), "num_kv_heads", 1, "0"),
    (lambda: cost.layer_parameters(0), "embed_dim", 1, "0"),
    (lambda: cost.layer_parameters(16, 0), "ffn_dim", 1, "0"),
    (lambda: cost.gpt2_parameters(vocab_size=-1), "vocab_size", 0, "-1"),
    (lambda: cost.vit_parameters(patch_size=0), "patch_size", 1, "0"),
]


@pytest.mark.parametrize("call, name, minimum, value", INVALID_INTEGERS)
def test_invalid_integers_raise(call: Callable[[], object], name: str, minimum: int, value: str) -> None:
    message = f"{name} must be an integer of at least {minimum}; got {name}={value}. Pass a Python int."
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize(
    "call, requirement, values, fix",
    [
        (
            lambda: cost.causal_pairs(3, 3, query_offset=0.5),
            *("query_offset must be an integer", "query_offset=0.5", "Pass a Python int"),
        ),
        (
            lambda: cost.attention(3, 5, 8, pairs=16),
            *("pairs must be at most n_q * n_k = 15", "pairs=16", "Count the pairs of one head"),
        ),
        (
            lambda: cost.layer(5, 10, num_heads=3),
            *("embed_dim must be a multiple of num_heads", "embed_dim=10, num_heads=3", "Otherwise pass head_dim"),
        ),
        (
            lambda: cost.layer(5, 16, num_heads=8, num_kv_heads=3),
            *("num_heads must be a multiple of num_kv_heads", "num_heads=8, num_kv_heads=3", "Change either"),
        ),
        (
            lambda: cost.decode_intensity(6, 4),
            *("num_heads must be a multiple of num_kv_heads", "num_heads=6, num_kv_heads=4", "Change either"),
        ),
        (
            lambda: cost.crossover_length(cost.feed_forward(5, 1), 5),
            *("forward must contain attention", str(cost.feed_forward(5, 1)), "Add attention(...) to it"),
        ),
        (
            lambda: cost.vit_parameters(image_size=225),
            *("image_size must be a multiple of patch_size", "image_size=225, patch_size=16", "Resize the image"),
        ),
    ],
)
def test_inconsistent_arguments_raise(call: Callable[[], object], requirement: str, values: str, fix: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{re.escape(f'{requirement}; got {values}. {fix}.')}$"):
        call()


def test_docstring_examples() -> None:
    results = doctest.testmod(cost)
    assert results.attempted >= 8
    assert results.failed == 0


def test_cost_does_not_import_torch() -> None:
    source = Path(cost.__file__).read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) (torch|numpy)", source, re.MULTILINE)
