"""The checks of layers pass correct layers, and locate the bugs of incorrect ones."""

import pytest
import torch
from torch import nn

import regard
from regard import mask, normalizer
from regard.errors import ArgumentError
from regard.nn import ALiBi, BlockConfig, Decoder, Encoder, MultiHeadAttention, RotaryEmbedding
from regard.theory import (
    CheckResult,
    Violation,
    buggy_layers,
    check_batch_independence,
    check_causality,
    check_equivariance,
    check_normalized,
    position_influence,
)

EMBED_DIM = 8
CONFIG = BlockConfig(embed_dim=EMBED_DIM, num_heads=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_of_regard_and_torch_without_positions_are_equivariant(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [
        MultiHeadAttention(EMBED_DIM, 2),
        Encoder(CONFIG, 2),
        nn.MultiheadAttention(EMBED_DIM, 2, batch_first=True),
        nn.MultiheadAttention(EMBED_DIM, 2),  # the batch is its second dimension
        nn.TransformerEncoderLayer(EMBED_DIM, 2, batch_first=True),
    ]
    for layer in layers:
        result = check_equivariance(layer.to(dtype).eval(), EMBED_DIM)
        assert result.holds and result.violations == (), f"{type(layer).__name__}\n{result}"
        assert check_batch_independence(layer, EMBED_DIM).holds


def test_torch_attention_with_batch_first_false_is_checked_correctly() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(EMBED_DIM, 2).double()
    assert check_batch_independence(layer, EMBED_DIM, lengths=(5,)).holds
    # with the wrong layout batch elements affect each other, and the check detects it
    assert not check_batch_independence(lambda x: layer(x, x, x)[0], EMBED_DIM, lengths=(5,)).holds


@pytest.mark.parametrize("position", [None, RotaryEmbedding(4), ALiBi(2)], ids=["none", "rotary", "alibi"])
def test_decoders_are_causal_and_not_equivariant(position: nn.Module | None) -> None:
    torch.manual_seed(0)
    layer = Decoder(CONFIG, 2, position_encoding=position).double()
    assert check_causality(layer, EMBED_DIM).holds
    assert not check_equivariance(layer, EMBED_DIM).holds


def test_an_encoder_is_not_causal_and_all_pairs_are_reported() -> None:
    result = check_causality(Encoder(CONFIG, 1).double(), EMBED_DIM, lengths=(4,))
    assert not result.holds
    assert {(p.output_index, p.input_index) for p in result.violations} == {
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 2),
        (1, 3),
        (2, 3),
    }
    assert result.max_error == max(violation.error for violation in result.violations)


def test_violations_are_sorted_by_error() -> None:
    matrix = torch.tensor([[1.0, 0.1, 0.5], [0.0, 1.0, 5.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    result = check_causality(lambda x: matrix @ x, EMBED_DIM, lengths=(3,))
    assert [(violation.output_index, violation.input_index) for violation in result.violations] == [
        (1, 2),
        (0, 2),
        (0, 1),
    ]
    a = torch.tensor([[0.9, 0.0], [0.5, 0.0], [0.7, 0.0]])
    assert [violation.output_index for violation in check_normalized(a).violations] == [(1,), (2,), (0,)]


def test_a_hugging_face_model_is_checked_through_a_function() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=EMBED_DIM, n_head=2, n_layer=1, n_positions=64, vocab_size=10)
    model = transformers.GPT2Model(config).double().eval()
    assert check_causality(lambda x: model(inputs_embeds=x)[0], EMBED_DIM, lengths=(2, 5, 9)).holds
    assert not check_equivariance(lambda x: model(inputs_embeds=x)[0], EMBED_DIM, lengths=(5,)).holds


@pytest.mark.parametrize("name", buggy_layers.causal_leaks(16))
def test_every_causal_leak_is_detected(name: str) -> None:
    assert not check_causality(buggy_layers.causal_leaks(16)[name], EMBED_DIM).holds


def test_a_leak_of_one_pair_is_the_only_violation() -> None:
    result = check_causality(buggy_layers.causal_leaks(16)["one pair"], EMBED_DIM)
    assert {(p.output_index, p.input_index) for p in result.violations} == {(8, 9)}
    assert {p.seq_len for p in result.violations} == {15, 16, 17, 31, 32, 33}


def test_a_leak_at_one_length_is_detected_with_the_default_lengths() -> None:
    for length in (2, 8, 16, 17, 32):
        result = check_causality(buggy_layers.causal_leaks(length)["only at one length"], EMBED_DIM)
        assert {p.seq_len for p in result.violations} == {length}
    assert check_causality(buggy_layers.causal_leaks(16)["only at one length"], EMBED_DIM, lengths=(15, 17)).holds


def test_a_leak_with_a_small_weight_is_detected() -> None:
    def leaking(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1) + 1e-9 * x.roll(-1, 1)

    result = check_causality(leaking, EMBED_DIM, lengths=(6,))
    assert not result.holds and result.max_error < 1e-8


@pytest.mark.parametrize("name", buggy_layers.order_dependent_layers())
def test_every_order_dependent_layer_is_detected(name: str) -> None:
    assert not check_equivariance(buggy_layers.order_dependent_layers()[name], EMBED_DIM).holds


def test_order_independent_poolings_pass() -> None:
    for pool in (lambda x: x.mean(1), lambda x: x.amax(1), lambda x: regard.attention(x, x, x).sum(1)):
        assert check_equivariance(pool, EMBED_DIM).holds


def test_a_special_position_is_reported() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([2 * x[:, :1], x[:, 1:]], 1)

    result = check_equivariance(first, EMBED_DIM, lengths=(5,))
    assert {p.output_index for p in result.violations if p.error > 0.1} >= {0}
    assert not result.holds


@pytest.mark.parametrize("name", buggy_layers.batch_mixing_layers())
def test_every_batch_mixing_layer_is_detected(name: str) -> None:
    result = check_batch_independence(buggy_layers.batch_mixing_layers()[name], EMBED_DIM)
    assert not result.holds and {(p.output_index, p.input_index) for p in result.violations} == {(0, 1), (1, 0)}


def test_weights_of_regard_are_normalized() -> None:
    q, k = torch.randn(2, 3, 7, 4), torch.randn(2, 3, 9, 4)
    for options in (
        {},
        {"mask": mask.causal()},
        {"normalizer": normalizer.sparsemax()},
        {"normalizer": normalizer.sinkhorn(3)},
    ):
        assert check_normalized(regard.attention_with_weights(q, k, k, **options).weights).holds
    for options in ({"normalizer": normalizer.sink()}, {"normalizer": normalizer.sigmoid()}):
        assert not check_normalized(regard.attention_with_weights(q, k, k, **options).weights).holds


@pytest.mark.parametrize("name", buggy_layers.unnormalized_weights(torch.zeros(2, 2)))
def test_every_unnormalized_weight_matrix_is_detected(name: str) -> None:
    torch.manual_seed(0)
    assert not check_normalized(buggy_layers.unnormalized_weights(torch.randn(8, 8))[name]).holds


def test_a_row_that_does_not_sum_to_one_is_reported() -> None:
    a = torch.full((2, 3, 4), 0.25)
    a[1, 2, 0] = 0.0
    result = check_normalized(a)
    assert [(p.output_index, round(p.error, 3)) for p in result.violations] == [((1, 2), 0.25)]


def test_negative_weights_and_nan_are_detected() -> None:
    assert check_normalized(torch.tensor([[1.5, -0.5]])).max_error == pytest.approx(0.5)
    assert not check_normalized(torch.tensor([[float("nan"), 1.0]])).holds


def test_hidden_weights_must_be_exactly_zero() -> None:
    visible = torch.tensor([[True, False], [False, False]])
    assert check_normalized(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), mask=visible).holds
    assert not check_normalized(torch.tensor([[1.0, 1e-20], [0.0, 0.0]]), mask=visible).holds
    assert not check_normalized(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), mask=visible).holds
    q = torch.randn(5, 4)
    weights = regard.attention_with_weights(q, q, q, mask=mask.causal() & mask.sliding_window(2)).weights
    assert check_normalized(weights, mask=torch.ones(5, 5).tril().triu(-1) > 0).holds
    assert not check_normalized(weights, mask=torch.ones(5, 5).tril().triu(0) > 0).holds


def test_position_influence_of_a_shift() -> None:
    result = position_influence(lambda x: x.roll(1, 1), torch.randn(2, 4, EMBED_DIM))
    assert torch.equal(result > 0, torch.eye(4).roll(1, 0) > 0)


def test_a_layer_with_nan_outputs_does_not_pass() -> None:
    result = check_causality(lambda x: x * float("nan"), EMBED_DIM, lengths=(3,))
    assert not result.holds and result.max_error == float("inf")


def test_a_random_layer_raises() -> None:
    layer = Encoder(BlockConfig(embed_dim=EMBED_DIM, num_heads=2, dropout=0.5), 1)
    with pytest.raises(
        ArgumentError,
        match=r"a layer must be deterministic; two calls differ by a relative error of [\d.]+. Call .eval",
    ):
        check_causality(layer, EMBED_DIM)
    assert not check_causality(layer.eval(), EMBED_DIM).holds


def test_low_precision_raises_without_a_tolerance() -> None:
    layer = Decoder(CONFIG, 1).bfloat16()
    with pytest.raises(ArgumentError, match=r"float32 or float64.*got torch\.bfloat16"):
        check_causality(layer, EMBED_DIM)
    assert check_causality(layer, EMBED_DIM, tolerance=0.0).holds


def test_invalid_outputs_raise() -> None:
    with pytest.raises(ArgumentError, match=r"a tensor with the batch size of x, 2; got shape \(8,\)"):
        check_equivariance(lambda x: x.sum((0, 1)), EMBED_DIM)
    with pytest.raises(ArgumentError, match=r"a tensor with the batch size of x, 2; got NoneType"):
        check_equivariance(lambda x: None, EMBED_DIM)
    with pytest.raises(ArgumentError, match=r"must return \(batch, 1, ...\); got shape \(2, 8\)"):
        check_causality(lambda x: x.sum(1), EMBED_DIM)
    with pytest.raises(
        ArgumentError, match=r"weights must be \(..., n_q, n_k\) in floats; got torch\.int64 of shape \(2,\)"
    ):
        check_normalized(torch.tensor([1, 2]))


def test_the_text_of_a_check_result_has_five_violations() -> None:
    violations = tuple(Violation(n, n + 1, 9, 0.5) for n in range(7))
    lines = str(CheckResult("it is so", False, 0.5, 0.1, violations)).splitlines()
    assert lines[0] == "does not hold: it is so; error 0.5, tolerance 0.1"
    assert lines[1] == "  output 0, input 1, of 9 positions: error 0.5"
    assert len(lines) == 7 and lines[-1] == "  and 2 more"
    assert str(CheckResult("it is so", True, 0.0, 0.1)) == "holds: it is so; error 0, tolerance 0.1"
