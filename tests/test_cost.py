"""`regard.cost` against witnesses that do not know its formulas: torch's FLOP counter on real modules,
their parameters, pairs counted one by one, the tensors autograd really keeps, and the numbers in print."""

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
from regard.errors import SpecError


def counted(run: Callable[[], object], **options: object) -> int:
    """FLOPs torch itself counts while `run` runs."""
    with FlopCounterMode(display=False, **options) as counter:
        run()
    return counter.get_total_flops()


def number_of_parameters(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


# ---- attention itself


def test_scores_and_values_cost_what_torch_counts_for_sdpa() -> None:
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 6)
    expected = cost.attention(5, 7, 8, value_width=6, heads=3, batch=2)
    with sdpa_kernel(SDPBackend.MATH):
        assert counted(lambda: F.scaled_dot_product_attention(q, k, v)) == expected.total
    assert counted(lambda: q @ k.mT) == expected.scores
    assert counted(lambda: torch.empty(2, 3, 5, 7) @ v) == expected.values


def test_fewer_key_heads_cost_the_same_flops() -> None:
    q, k = torch.randn(1, 6, 5, 4), torch.randn(1, 2, 5, 4)
    with sdpa_kernel(SDPBackend.MATH):
        grouped = counted(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    assert grouped == cost.attention(5, 5, 4, heads=6).total


def test_backward_costs_twice_the_forward() -> None:
    q, k, v = (torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 8), (7, 8), (7, 6)))
    forward = cost.attention(5, 7, 8, value_width=6, heads=3, batch=2)
    with sdpa_kernel(SDPBackend.MATH):
        output = F.scaled_dot_product_attention(q, k, v)
        assert counted(lambda: output.sum().backward()) == cost.backward(forward).total


def test_backward_with_recomputed_scores_costs_what_torch_states_for_flash_attention() -> None:
    # torch has formulas for flash attention, but does not tie them to its operators for the CPU
    aten = torch.ops.aten
    on_cpu = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (5, 7, 7))
    forward = cost.attention(5, 7, 8, heads=3, batch=2)

    def both() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, k, v).sum().backward()

    assert counted(both, custom_mapping=on_cpu) == cost.training(forward, recompute=True).total
    n, d = 512, 64
    square = cost.attention(n, n, d)
    assert cost.backward(square).total == 8 * n * n * d
    assert cost.backward(square, recompute=True).total == 10 * n * n * d


@given(n_q=st.integers(0, 12), n_k=st.integers(0, 12), start=st.none() | st.integers(-15, 15))
def test_causal_pairs_are_those_found_by_looking_at_each(n_q: int, n_k: int, start: int | None) -> None:
    first = n_k - n_q if start is None else start
    seen = sum(j <= first + i for i in range(n_q) for j in range(n_k))
    assert cost.causal_pairs(n_q, n_k, start=start) == seen


def test_causal_attention_costs_what_the_visible_part_costs_row_by_row() -> None:
    n, d = 9, 4
    q, k, v = torch.randn(3, n, d)

    def row_by_row() -> None:
        for i in range(n):
            (q[i : i + 1] @ k[: i + 1].T) @ v[: i + 1]

    causal = cost.attention(n, n, d, pairs=cost.causal_pairs(n, n)).total
    assert counted(row_by_row) == causal == 2 * n * (n + 1) * d


def test_any_number_of_pairs_may_be_given() -> None:
    n, window, d = 40, 8, 16
    pairs = sum(i - window < j <= i for i in range(n) for j in range(n))
    assert pairs == n * window - window * (window - 1) // 2
    assert cost.attention(n, n, d, heads=2, batch=3, pairs=pairs).total == 3 * 2 * 4 * pairs * d
    assert cost.softmax(n, n, heads=2, batch=3, pairs=pairs) == 3 * 2 * 5 * pairs


def test_softmax_is_estimated_at_five_operations_a_pair() -> None:
    assert cost.softmax(100, 100, heads=12) == 5 * 100**2 * 12


def test_additive_scores_cost_a_sum_for_each_hidden_number_and_a_product_with_u() -> None:
    m, n, hidden = 5, 7, 6
    a, b, u = torch.randn(m, 1, hidden), torch.randn(1, n, hidden), torch.randn(hidden, 1)
    summed = a + b
    product = counted(lambda: torch.tanh(summed).reshape(m * n, hidden) @ u)
    assert product == 2 * m * n * hidden
    assert cost.additive_scores(m, n, hidden) == summed.numel() + product
    assert cost.additive_scores(m, n, hidden, heads=2, batch=3, pairs=4) == 2 * 3 * 3 * 4 * hidden


# ---- layers


@pytest.mark.parametrize("n_q, n_k", [(9, 9), (9, 5)], ids=["self", "cross"])
def test_projections_and_attention_cost_what_torch_counts_for_multihead_attention(n_q: int, n_k: int) -> None:
    module = nn.MultiheadAttention(24, 4, batch_first=True)
    x, y = torch.randn(2, n_q, 24), torch.randn(2, n_k, 24)
    expected = cost.projections(n_q, n_k, 24, heads=4, batch=2) + cost.attention(n_q, n_k, 6, heads=4, batch=2)
    assert counted(lambda: module(x, y, y, need_weights=True)) == expected.total


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("head_width", [None, 5])
def test_grouped_projections_cost_what_torch_counts_for_their_matrices(head_width: int | None, output: bool) -> None:
    width, heads, key_heads, n_q, n_k = 24, 6, 2, 7, 9
    d = head_width or width // heads
    x, y = torch.randn(n_q, width), torch.randn(n_k, width)
    to_q, to_k = nn.Linear(width, heads * d), nn.Linear(width, key_heads * d)
    to_v, to_o = nn.Linear(width, key_heads * d), nn.Linear(heads * d, width)

    def run() -> None:
        q, _, _ = to_q(x), to_k(y), to_v(y)
        if output:
            to_o(q)

    expected = cost.projections(n_q, n_k, width, heads=heads, key_heads=key_heads, head_width=head_width, output=output)
    assert counted(run) == expected.total


def test_projections_follow_the_formulas_in_print() -> None:
    n, D, G, d = 100, 64, 2, 8
    assert cost.projections(n, n, D).total == 8 * n * D**2
    assert cost.projections(n, n, D, output=False).total == 6 * n * D**2
    assert cost.projections(n, n, D, heads=8, key_heads=G).total == 4 * n * D**2 + 4 * n * D * G * d


def test_feed_forward_costs_what_torch_counts() -> None:
    up, gate, down, x = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 6), torch.randn(3, 7, 6)
    plain = counted(lambda: down(F.gelu(up(x))))
    gated = counted(lambda: down(F.silu(gate(x)) * up(x)))
    assert plain == cost.feed_forward(7, 6, 10, batch=3).total
    assert gated == cost.feed_forward(7, 6, 10, gated=True, batch=3).total
    assert cost.feed_forward(7, 6).total == cost.feed_forward(7, 6, 24).total


def test_a_layer_costs_what_torch_counts_for_an_encoder_layer() -> None:
    module = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)
    x = torch.randn(2, 9, 24)
    with sdpa_kernel(SDPBackend.MATH):
        assert counted(lambda: module(x)) == cost.layer(9, 24, heads=4, feed_forward=40, batch=2).total


def test_a_layer_is_the_sum_of_its_parts() -> None:
    whole = cost.layer(9, 24, heads=6, key_heads=2, head_width=5, feed_forward=40, gated=True, pairs=45, batch=2)
    assert whole == (
        cost.projections(9, 9, 24, heads=6, key_heads=2, head_width=5, batch=2)
        + cost.attention(9, 9, 5, heads=6, pairs=45, batch=2)
        + cost.feed_forward(9, 24, 40, gated=True, batch=2)
    )
    assert whole.total == whole.projections + whole.scores + whole.values + whole.feed_forward


# ---- training


class Language(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def test_training_a_whole_model_costs_what_torch_counts_and_what_six_n_d_says() -> None:
    layers, width, vocabulary, length, batch = 3, 16, 50, 9, 2
    model, ids = Language(layers, width, 4, vocabulary, length), torch.randint(vocabulary, (batch, length))

    def step() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            model(ids).sum().backward()

    forward = layers * cost.layer(length, width, heads=4, batch=batch)
    forward += cost.vocabulary(length, width, vocabulary, batch=batch)
    assert counted(step) == cost.training(forward).total

    matrices = [p for block in model.blocks for p in block.parameters() if p.ndim == 2] + [model.tokens.weight]
    N = sum(matrix.numel() for matrix in matrices)
    one = layers * cost.layer(1, width) + cost.vocabulary(1, width, vocabulary)
    assert one.rest // 2 == N
    ruled = cost.six_n_d(N, batch * length, layers=layers, width=width, keys_seen=length)
    assert ruled == cost.training(forward).total
    assert cost.six_n_d(N, batch * length) == cost.training(forward).rest


def test_causal_attention_halves_the_correction_of_six_n_d() -> None:
    L, T, D, tokens = 12, 1024, 768, 10 * 1024
    bare = cost.six_n_d(10**8, tokens)
    assert cost.six_n_d(10**8, tokens, layers=L, width=D, keys_seen=T) - bare == 12 * L * T * D * tokens
    assert cost.six_n_d(10**8, tokens, layers=L, width=D, keys_seen=T // 2) - bare == 6 * L * T * D * tokens
    causal = 10 * L * cost.attention(T, T, D, pairs=cost.causal_pairs(T, T))
    assert cost.training(causal).total == 6 * L * (T + 1) * D * tokens


def test_training_follows_the_published_table() -> None:
    B, T, D, V, hidden = 4, 128, 64, 1000, 160
    trained = cost.training(
        cost.layer(T, D, heads=4, feed_forward=hidden, batch=B) + cost.vocabulary(T, D, V, one_hot_input=True, batch=B)
    )
    assert trained.attention == 12 * B * T**2 * D
    assert trained.projections == 24 * B * T * D**2
    assert trained.feed_forward == 12 * B * T * D * hidden
    assert trained.vocabulary == 12 * B * T * D * V
    gated = cost.training(cost.feed_forward(T, D, hidden, gated=True, batch=B))
    assert gated.total == 18 * B * T * D * hidden
    assert cost.training(cost.vocabulary(T, D, V, batch=B)).total == 6 * B * T * D * V


# ---- crossings: where the articles say "n > d" and "T > 8D"


def test_attention_overtakes_the_rest_where_the_corrected_articles_say() -> None:
    n, D = 96, 768
    half = n * n // 2
    full = cost.attention(n, n, D)
    assert cost.crossing(full + cost.projections(n, n, D, output=False), n) == Fraction(3, 2) * D
    assert cost.crossing(full + cost.projections(n, n, D), n) == 2 * D
    assert cost.crossing(cost.layer(n, D), n) == 6 * D
    assert cost.crossing(cost.layer(n, D, gated=True), n) == 8 * D
    assert cost.crossing(cost.layer(n, D, gated=True, feed_forward=8 * D // 3), n) == 6 * D
    assert cost.crossing(cost.layer(n, D, pairs=half), n) == 12 * D
    assert cost.crossing(cost.layer(n, D, gated=True, pairs=half), n) == 16 * D
    assert cost.crossing(cost.layer(n, D, feed_forward=0), n) == 2 * D


@pytest.mark.parametrize("gated, times", [(False, 6), (True, 8)])
def test_just_before_the_crossing_attention_is_cheaper_and_just_after_dearer(gated: bool, times: int) -> None:
    D = 12
    before, at, after = (cost.layer(times * D + step, D, gated=gated) for step in (-1, 0, 1))
    assert before.attention < before.rest
    assert at.attention == at.rest
    assert after.attention > after.rest


@pytest.mark.parametrize("gated, times", [(False, 12), (True, 16)])
def test_causal_attention_counted_exactly_crosses_one_token_before_its_limit(gated: bool, times: int) -> None:
    D = 12
    n = times * D - 1
    causal = cost.layer(n, D, gated=gated, pairs=cost.causal_pairs(n, n))
    assert causal.attention == causal.rest


def test_the_crossing_does_not_depend_on_the_length_it_is_read_off_at() -> None:
    read = {cost.crossing(cost.layer(n, 48, heads=6, key_heads=2), n) for n in (1, 7, 1000)}
    assert len(read) == 1
    at = cost.layer(7 * 48, 48, heads=6, key_heads=2)
    assert at.attention > at.rest > 0, "fewer key heads make the rest cheaper, so attention overtakes it sooner"


# ---- memory


def test_the_144_megabytes_of_the_article_are_144_mebibytes_a_sample() -> None:
    one = torch.empty(512, 512)
    assert cost.stored_weights(512, 512) == one.numel() * one.element_size() == 1_048_576
    assert cost.stored_weights(512, 512, heads=12, layers=12) == 150_994_944 == 144 * 2**20
    assert cost.stored_weights(512, 512, heads=12, layers=12, batch=8, bytes_per_number=2) == 8 * 72 * 2**20


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_the_tensors_autograd_keeps_for_a_16_bit_layer(recompute: bool) -> None:
    B, n, D, H = 2, 24, 16, 4
    dtype = torch.bfloat16
    qkv, out, up, down = (nn.Linear(i, o, dtype=dtype) for i, o in ((D, 3 * D), (D, D), (D, 4 * D), (4 * D, D)))
    norms = [nn.LayerNorm(D, dtype=dtype) for _ in range(2)]
    parameters = {p.untyped_storage().data_ptr() for m in (qkv, out, up, down, *norms) for p in m.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        is_statistic = tensor.numel() in (
            1,
            B * n,
        )  # of the norms, and the scale: the estimate leaves them out
        if place not in parameters and not is_statistic:
            kept[place] = tensor
        return tensor

    def drop(x: Tensor) -> Tensor:
        return torch.native_dropout(x, 0.1, True)[0]  # keeps its mask in one byte a number

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return drop(torch.softmax(q @ k.mT, -1)) @ v

    x = torch.randn(B, n, D, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        q, k, v = qkv(norms[0](x)).reshape(B, n, 3, H, D // H).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        q, k, v = (t.clone() for t in (q, k, v))  # storages of their own, so that they are counted one by one
        if recompute:
            o = checkpoint(attend, q, k, v, use_reentrant=False)
            kept.update({t.untyped_storage().data_ptr(): t for t in (q, k, v)})
        else:
            o = attend(q, k, v)
        y = x + drop(out(o.transpose(1, 2).reshape(B, n, D)))
        z = y + drop(down(F.gelu(up(norms[1](y)))))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert z.shape == x.shape
    assert measured == cost.activations(n, D, H, batch=B, recompute=recompute)


def test_activations_follow_the_formula_in_print() -> None:
    n, B, D, H, L = 2048, 3, 1024, 16, 24
    assert cost.activations(n, D, H, layers=L, batch=B) == L * (n * B * D * (34 + 5 * H * n // D))
    linear = cost.activations(n, D, H, layers=L, batch=B, recompute=True)
    assert cost.activations(2 * n, D, H, layers=L, batch=B, recompute=True) == 2 * linear


def test_the_cache_takes_the_bytes_of_the_tensors_in_it() -> None:
    layers, key_heads, length, head_width, batch = 3, 2, 11, 8, 5
    tensors = torch.empty(layers, 2, batch, key_heads, length, head_width, dtype=torch.float16)
    asked = dict(layers=layers, key_heads=key_heads, head_width=head_width, batch=batch)
    assert cost.cache(length, **asked) == tensors.nbytes
    assert cost.cache(length, **asked, bytes_per_number=4) == tensors.float().nbytes


@pytest.mark.parametrize("heads, key_heads, size", [(32, 32, 2), (32, 8, 2), (32, 1, 4)])
def test_decoding_does_as_many_flops_a_byte_as_counted_on_real_tensors(heads: int, key_heads: int, size: int) -> None:
    length, d = 20, 4
    q, k = torch.randn(1, heads, 1, d), torch.randn(1, key_heads, length, d)
    with sdpa_kernel(SDPBackend.MATH):
        flops = counted(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    intensity = cost.decode_intensity(heads, key_heads, bytes_per_number=size)
    assert intensity == Fraction(flops, 2 * k.numel() * size) == Fraction(heads, key_heads) * Fraction(2, size)


# ---- parameters


@pytest.mark.parametrize("width, hidden", [(24, None), (24, 40), (768, 3072)])
def test_a_block_has_the_parameters_of_an_encoder_layer(width: int, hidden: int | None) -> None:
    module = nn.TransformerEncoderLayer(width, 4, hidden or 4 * width, device="meta")
    assert cost.block_parameters(width, hidden) == number_of_parameters(module)
    assert cost.block_parameters(768) == 7_087_872


def test_gpt2_small_has_124_439_808_parameters() -> None:
    assert cost.gpt2_parameters() == 124_439_808
    with torch.device("meta"):
        assert number_of_parameters(Language(12, 768, 12, 50257, 1024)) == cost.gpt2_parameters()
        other = cost.gpt2_parameters(layers=2, width=32, vocabulary=100, length=7)
        assert number_of_parameters(Language(2, 32, 4, 100, 7)) == other


def test_vit_b_16_has_86_567_656_parameters() -> None:
    def counted_on_modules(layers: int, width: int, image: int, patch: int, classes: int) -> int:
        tokens = (image // patch) ** 2 + 1
        with torch.device("meta"):
            return number_of_parameters(
                nn.Conv2d(3, width, patch, patch),
                nn.Embedding(1, width),
                nn.Embedding(tokens, width),
                *(nn.TransformerEncoderLayer(width, 4, 4 * width) for _ in range(layers)),
                nn.LayerNorm(width),
                nn.Linear(width, classes),
            )

    assert cost.vit_parameters() == 86_567_656 == counted_on_modules(12, 768, 224, 16, 1000)
    other = cost.vit_parameters(layers=2, width=32, image=64, patch=8, classes=10)
    assert other == counted_on_modules(2, 32, 64, 8, 10)


def test_the_feed_forward_part_holds_two_thirds_of_a_block() -> None:
    one = cost.layer(1, 768)
    assert Fraction(one.feed_forward, one.rest) == Fraction(2, 3)


# ---- growth


def value_of(growth: str, **letters: float) -> float:
    """The text O(...) read as a number."""
    inside = re.fullmatch(r"O\((.*)\)", growth)[1]
    value = 0.0
    for term in inside.split(" + "):
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


def mechanism(name: str, n: int, d: int, m: int, w: int, a: int) -> list[Tensor]:
    """Runs the mechanism's products on tensors without data, and hands back what it held on the way."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    x = empty(n, d)
    match name:
        case "self-attention":
            held = [x @ x.T]
            held[0] @ x
        case "cross-attention":
            held = [empty(m, d) @ x.T]
            held[0] @ x
        case "additive":
            held = [torch.tanh(empty(n, 1, a) + empty(1, n, a))]
            held[0].reshape(-1, a) @ empty(a, 1)
        case "recurrent":
            held = [empty(1, d)]
            for i in range(n):
                held = [torch.tanh(held[0] @ empty(d, d) + x[i : i + 1] @ empty(d, d))]
        case "convolution":
            F.conv1d(x.T[None], empty(d, d, w), padding=w // 2)
            held = [empty(1)]
        case "window":
            blocks = x.reshape(n // w, w, d)
            held = [blocks @ blocks.mT]
            held[0] @ blocks
        case "linformer":
            keys, values = empty(m, n) @ x, empty(m, n) @ x
            held = [x @ keys.T, keys, values]
            held[0] @ values
        case "performer":
            queries, keys = x @ empty(d, m), x @ empty(d, m)
            held = [queries, keys, keys.T @ x]
            queries @ held[2]
        case "nystromformer":
            landmarks = empty(m, d)
            left, middle, right = x @ landmarks.T, landmarks @ landmarks.T, landmarks @ x.T
            inverse = middle @ (middle @ (middle @ (middle @ middle)))  # a step of its iteration: four products
            held = [left, inverse, right]
            left @ (inverse @ (right @ x))
        case "linear":
            queries, keys = F.elu(x) + 1, F.elu(x) + 1
            held = [queries, keys, keys.T @ x]
            queries @ held[2]
    return held


@pytest.mark.parametrize(
    "name",
    [
        *("self-attention", "cross-attention", "additive", "recurrent", "convolution"),
        *("window", "linformer", "performer", "nystromformer", "linear"),
    ],
)
def test_the_growth_in_print_is_the_growth_counted(name: str) -> None:
    smallest = dict(n=64, d=4, m=16, w=4, a=4)
    time, memory = [], []
    for letter in ("none", *smallest):
        sizes = {each: size * (16 if each == letter else 1) for each, size in smallest.items()}
        letters = sizes | dict(n_q=sizes["m"], n_k=sizes["n"])
        with FlopCounterMode(display=False) as counter:
            held = sum(tensor.numel() for tensor in mechanism(name, **sizes))
        time.append(counter.get_total_flops() / value_of(cost.GROWTH[name].time, **letters))
        memory.append(held / value_of(cost.GROWTH[name].memory, **letters))
    # O() leaves a constant open for each term of a sum; a wrong power of any letter would be off by 16 or 4
    assert max(time) / min(time) < 3
    assert max(memory) / min(memory) < 3


@pytest.mark.parametrize("name", ["sparse transformer", "routing", "window", "longformer"])
def test_sparse_patterns_grow_as_their_pairs_do(name: str) -> None:
    def pairs(n: int) -> int:
        i, j = torch.arange(n)[:, None], torch.arange(n)
        root, w = math.isqrt(n), 16
        seen = {
            "sparse transformer": (j <= i) & ((i - j < root) | ((i - j) % root == 0)),
            "routing": i // root == j // root,
            "window": (i - j).abs() < w,
            "longformer": ((i - j).abs() < w) | (i < 2) | (j < 2),
        }
        return int(seen[name].sum())

    memory, time = cost.GROWTH[name].memory, cost.GROWTH[name].time
    said = value_of(memory, n=2304, w=16) / value_of(memory, n=576, w=16)
    assert pairs(2304) / pairs(576) == pytest.approx(said, rel=0.05)  # the edges of the patterns
    assert time == memory[:-1] + " d)"


def test_the_table_holds_what_the_transformer_paper_compares() -> None:
    rows = {name: (growth.steps, growth.path) for name, growth in cost.GROWTH.items() if growth.steps}
    assert rows == {
        "self-attention": ("O(1)", "O(1)"),
        "self-attention, streamed": ("O(1)", "O(1)"),
        "cross-attention": ("O(1)", "O(1)"),
        "additive": ("O(1)", "O(1)"),
        "recurrent": ("O(n)", "O(n)"),
        "convolution": ("O(1)", "O(log_w n)"),
        "window": ("O(1)", "O(n/w)"),
    }
    streamed, reformer = cost.GROWTH["self-attention, streamed"], cost.GROWTH["reformer"]
    assert (streamed.time, streamed.memory) == (cost.GROWTH["self-attention"].time, "O(n)")
    assert (reformer.time, reformer.memory) == ("O(n log n d r)", "O(n log n r)")
    with pytest.raises(TypeError, match="item assignment"):
        cost.GROWTH["self-attention"] = cost.GROWTH["linear"]


# ---- the module


def test_counts_stay_exact_beyond_what_floats_and_64_bits_hold() -> None:
    trained = cost.training(200 * cost.layer(10**6 + 1, 10**5 + 1, batch=10**4))
    assert trained.attention == 200 * 12 * (10**6 + 1) ** 2 * (10**5 + 1) * 10**4 > 2**63


def test_what_is_left_out_counts_once_or_takes_its_usual_size() -> None:
    once = dict(heads=1, batch=1)
    assert cost.attention(5, 7, 8) == cost.attention(5, 7, 8, value_width=8, **once, pairs=35)
    assert cost.softmax(5, 7) == cost.softmax(5, 7, **once)
    assert cost.additive_scores(5, 7, 3) == cost.additive_scores(5, 7, 3, **once)
    assert cost.projections(5, 7, 9) == cost.projections(5, 7, 9, **once, key_heads=1, head_width=9, output=True)
    assert cost.feed_forward(5, 8) == cost.feed_forward(5, 8, 32, gated=False, batch=1)
    assert cost.vocabulary(5, 8, 9) == cost.vocabulary(5, 8, 9, one_hot_input=False, batch=1)
    assert cost.layer(5, 8) == cost.layer(5, 8, **once, feed_forward=32, gated=False, pairs=25)
    assert cost.activations(5, 8, 2) == cost.activations(5, 8, 2, layers=1, batch=1, recompute=False)
    assert cost.decode_intensity(8, 2) == cost.decode_intensity(8, 2, bytes_per_number=2)


def test_heads_may_have_a_width_that_does_not_divide_the_models() -> None:
    assert cost.layer(5, 10, heads=3, head_width=4).attention == cost.attention(5, 5, 4, heads=3).total


def test_results_are_values() -> None:
    assert len({cost.layer(5, 8), cost.layer(5, 8), cost.layer(6, 8)}) == 2
    assert len({cost.GROWTH["longformer"], cost.GROWTH["sparse transformer"], cost.GROWTH["routing"]}) == 2


def test_empty_sequences_and_batches_cost_nothing() -> None:
    assert cost.layer(0, 64, heads=4).total == 0
    assert cost.attention(0, 5, 8).total == cost.attention(5, 5, 8, batch=0).total == 0
    assert cost.cache(0, layers=1, key_heads=1, head_width=1) == 0
    assert cost.activations(0, 8, 2) == cost.activations(5, 8, 2, layers=0) == 0
    assert cost.vit_parameters(layers=0) == 86_567_656 - 12 * cost.block_parameters(768)


NOT_COUNTS: list[tuple[Callable[[], object], str, int, str]] = [
    (lambda: cost.attention(-1, 5, 8), "n_q", 0, "-1"),
    (lambda: cost.attention(5, 5, 0), "width", 1, "0"),
    (lambda: cost.attention(5, 5, 8, heads=True), "heads", 1, "True"),
    (lambda: cost.attention(5, 5, 8, value_width=0), "value_width", 1, "0"),
    (lambda: cost.softmax(5, 5, pairs=-1), "pairs", 0, "-1"),
    (lambda: cost.additive_scores(5, 5, 0), "hidden", 1, "0"),
    (lambda: cost.causal_pairs(5, -5), "n_k", 0, "-5"),
    (lambda: cost.layer(1e6, 64), "length", 0, "1000000.0"),
    (lambda: cost.layer(np.int64(5), 64), "length", 0, "np.int64(5)"),
    (lambda: cost.layer(5, 16, head_width=0), "head_width", 1, "0"),
    (lambda: 2.5 * cost.layer(5, 16), "times", 0, "2.5"),
    (lambda: cost.projections(5, 5, "16"), "width", 1, "'16'"),
    (lambda: cost.projections(5, 5, 16, batch=-2), "batch", 0, "-2"),
    (lambda: cost.projections(5, 5, 16, key_heads=0), "key_heads", 1, "0"),
    (lambda: cost.feed_forward(5, 16, -1), "feed_forward", 0, "-1"),
    (lambda: cost.feed_forward(5, None), "width", 1, "None"),
    (lambda: cost.vocabulary(5, 0, 9), "width", 1, "0"),
    (lambda: cost.vocabulary(5, 16, 1.5), "entries", 0, "1.5"),
    (lambda: cost.crossing(cost.layer(1, 1), 0), "length", 1, "0"),
    (lambda: cost.six_n_d(1, 1e9), "tokens", 0, "1000000000.0"),
    (lambda: cost.stored_weights(5, 5, layers=-3), "layers", 0, "-3"),
    (lambda: cost.stored_weights(5, 5, bytes_per_number=0), "bytes_per_number", 1, "0"),
    (lambda: cost.activations(5, 16, 0), "heads", 1, "0"),
    (lambda: cost.cache(5, layers=1, key_heads=0, head_width=8), "key_heads", 1, "0"),
    (lambda: cost.block_parameters(0), "width", 1, "0"),
    (lambda: cost.block_parameters(16, 0), "feed_forward", 1, "0"),
    (lambda: cost.gpt2_parameters(vocabulary=-1), "vocabulary", 0, "-1"),
    (lambda: cost.vit_parameters(patch=0), "patch", 1, "0"),
]


@pytest.mark.parametrize("ask, name, least, got", NOT_COUNTS)
def test_what_is_no_count_is_refused(ask: Callable[[], object], name: str, least: int, got: str) -> None:
    message = f"{name} must be a whole number of at least {least}; got {name}={got}. Give it as a Python int."
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        ask()


@pytest.mark.parametrize(
    "ask, must, got, do",
    [
        (
            lambda: cost.causal_pairs(3, 3, start=0.5),
            *("start must be a whole number", "start=0.5", "Give it as a Python int"),
        ),
        (
            lambda: cost.attention(3, 5, 8, pairs=16),
            *("pairs must be at most n_q * n_k = 15", "pairs=16", "Count those of one head"),
        ),
        (
            lambda: cost.layer(5, 10, heads=3),
            *("width must be a multiple of heads", "width=10, heads=3", "Otherwise give head_width"),
        ),
        (
            lambda: cost.layer(5, 16, heads=8, key_heads=3),
            *("heads must be a multiple of key_heads", "heads=8, key_heads=3", "Change either"),
        ),
        (
            lambda: cost.decode_intensity(6, 4),
            *("heads must be a multiple of key_heads", "heads=6, key_heads=4", "Change either"),
        ),
        (
            lambda: cost.crossing(cost.feed_forward(5, 1), 5),
            *("forward must contain attention", str(cost.feed_forward(5, 1)), "Add attention(...) to it"),
        ),
        (
            lambda: cost.vit_parameters(image=225),
            *("image must be a multiple of patch", "image=225, patch=16", "Resize the image"),
        ),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(ask: Callable[[], object], must: str, got: str, do: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(f'{must}; got {got}. {do}.')}$"):
        ask()


def test_the_examples_in_the_docstrings_run() -> None:
    results = doctest.testmod(cost)
    assert results.attempted >= 8
    assert results.failed == 0


def test_the_formulas_need_no_torch() -> None:
    source = Path(cost.__file__).read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) (torch|numpy)", source, re.MULTILINE)
