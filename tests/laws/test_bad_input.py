"""Bad input: an error before any work, saying what must hold, what was got (its numbers) and what to do."""

import re

import numpy as np
import pytest
import torch

import regard
from regard import mask, score, weigh
from regard.errors import BudgetError, EngineError, RegardError, SpecError, TraceError

NUMBER = r"\d"


def tensors(q=(2, 4, 5, 8), k=(2, 4, 6, 8), v=(2, 4, 6, 8), dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in (q, k, v)]


def says(error, *numbers):
    """The message holds every number (or word) as a word of its own, and is more than a few words long."""
    message = str(error.value)
    missing = [n for n in numbers if not re.search(rf"(?<![\w.]){re.escape(str(n))}(?![\w])", message)]
    assert missing == [], message
    assert len(message.split()) >= 6, message


def test_every_error_is_a_regard_error_and_a_familiar_one():
    assert issubclass(SpecError, RegardError)
    assert issubclass(SpecError, ValueError)
    assert issubclass(TraceError, TypeError)
    assert issubclass(EngineError, RuntimeError)
    assert issubclass(BudgetError, MemoryError)


@pytest.mark.parametrize("call", [regard.attention, regard.attend, regard.explain])
def test_queries_and_keys_of_unequal_width(engine, call):
    with pytest.raises(SpecError, match="width") as error:
        call(*tensors(q=(2, 4, 5, 8), k=(2, 4, 6, 7)), engine=engine)
    says(error, 8, 7)


def test_unequal_widths_named_from_shapes_alone():
    with pytest.raises(SpecError, match="width") as error:
        regard.explain((2, 4, 5, 8), (2, 4, 6, 7), (2, 4, 6, 8))
    says(error, 8, 7)


@pytest.mark.parametrize("chosen", [score.dot(), score.cosine(1.0), score.metric(1.0)], ids=["dot", "cosine", "metric"])
def test_scores_without_a_matrix_need_equal_widths(engine, chosen):
    with pytest.raises(SpecError, match="width") as error:
        regard.attention(*tensors(q=(5, 3), k=(6, 4), v=(6, 4)), score=chosen, engine=engine)
    says(error, 3, 4)


def test_a_matrix_of_the_wrong_shape(engine):
    with pytest.raises(SpecError, match=NUMBER) as error:
        regard.attention(
            *tensors(q=(5, 3), k=(6, 4), v=(6, 4)),
            score=score.multiplicative(torch.zeros(3, 5)),
            engine=engine,
        )
    says(error, 3, 4, 5)


def test_additive_weights_of_the_wrong_shape(engine):
    w_q, w_k, u = torch.zeros(8, 16), torch.zeros(9, 16), torch.zeros(16)
    with pytest.raises(SpecError, match=NUMBER) as error:
        regard.attention(*tensors(), score=score.additive(w_q, w_k, u), engine=engine)
    says(error, 8, 9)


def test_heads_that_do_not_divide(engine):
    with pytest.raises(SpecError, match="head") as error:
        regard.attention(*tensors(q=(2, 4, 5, 8), k=(2, 3, 6, 8), v=(2, 3, 6, 8)), engine=engine)
    says(error, 4, 3)


def test_more_key_heads_than_query_heads(engine):
    with pytest.raises(SpecError, match="head") as error:
        regard.attention(*tensors(q=(2, 2, 5, 8), k=(2, 6, 7, 8), v=(2, 6, 7, 8)), engine=engine)
    says(error, 2, 6)


def test_keys_and_values_of_unequal_length(engine):
    with pytest.raises(SpecError, match="length") as error:
        regard.attention(*tensors(k=(2, 4, 6, 8), v=(2, 4, 7, 8)), engine=engine)
    says(error, 6, 7)


def test_batches_that_do_not_broadcast(engine):
    with pytest.raises(SpecError, match="batch") as error:
        regard.attention(*tensors(q=(2, 4, 5, 8), k=(3, 4, 6, 8), v=(3, 4, 6, 8)), engine=engine)
    says(error, 2, 3)


@pytest.mark.parametrize("shape", [(), (5,)])
def test_too_few_dimensions(engine, shape):
    with pytest.raises(SpecError, match="dim") as error:
        regard.attention(torch.zeros(shape), torch.zeros(6, 8), torch.zeros(6, 8), engine=engine)
    says(error, 2, *shape)


@pytest.mark.parametrize("shape", [(5, 7), (6,), (3, 1, 5, 7), (4, 5, 8), (2, 4, 6, 7)])
def test_a_mask_that_does_not_broadcast(engine, shape):
    with pytest.raises(SpecError, match="broadcast") as error:
        regard.attention(
            *tensors(q=(2, 4, 5, 8), k=(2, 4, 8, 8), v=(2, 4, 8, 8)),
            mask=torch.ones((*shape[:-1], shape[-1] + 3), dtype=torch.bool),
            engine=engine,
        )
    says(error, shape[-1] + 3, 8)


def test_a_bias_that_does_not_broadcast(engine):
    with pytest.raises(SpecError, match="broadcast") as error:
        regard.attention(*tensors(), score=score.bias(torch.zeros(5, 9)), engine=engine)
    says(error, 9, 6)


def test_a_mask_that_is_not_boolean(engine):
    with pytest.raises(SpecError, match="bool"):
        regard.attention(*tensors(), mask=torch.zeros(5, 6), engine=engine)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("which", ["q", "k", "v", "all"])
def test_integer_and_complex_tensors(engine, dtype, which):
    inputs = [x.to(dtype) if which in (name, "all") else x for name, x in zip("qkv", tensors(), strict=True)]

    with pytest.raises(SpecError, match="float") as error:
        regard.attention(*inputs, engine=engine)
    assert str(dtype).removeprefix("torch.") in str(error.value)


def test_integer_numpy_arrays(engine):
    with pytest.raises(SpecError, match="int64"):
        regard.attention(*(np.zeros((3, 2), dtype=np.int64) for _ in range(3)), engine=engine)


def test_tensors_of_two_dtypes(engine):
    q, k, v = tensors()
    with pytest.raises(SpecError, match="dtype") as error:
        regard.attention(q, k.double(), v, engine=engine)
    assert "float32" in str(error.value)
    assert "float64" in str(error.value)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_tensors_on_two_devices(engine, which):
    inputs = [x.to("meta") if n == which else x for n, x in enumerate(tensors())]
    with pytest.raises(SpecError, match="device") as error:
        regard.attention(*inputs, engine=engine)
    assert "cpu" in str(error.value)
    assert "meta" in str(error.value)


def test_something_that_is_no_tensor(engine):
    with pytest.raises((SpecError, TypeError), match=r"[Tt]ensor|array"):
        regard.attention("q", *tensors()[1:], engine=engine)


@pytest.mark.parametrize("call", [regard.attention, regard.attend, regard.explain])
def test_an_unknown_engine_is_answered_with_the_known_ones(call):
    with pytest.raises(EngineError, match="warp") as error:
        call(*tensors(), engine="warp")
    says(error, *regard.engines())


def test_an_engine_that_objects_says_why_and_nothing_runs_in_its_place():
    long = 2_000_000  # its float64 scores would take 32 TB
    with pytest.raises(EngineError, match="reference") as error:
        regard.attention(*(torch.zeros(long, 1) for _ in range(3)), engine="reference")
    assert re.search(r"\d", str(error.value)), str(error.value)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_dropout_outside_of_zero_to_one(engine, p):
    with pytest.raises(SpecError, match="dropout") as error:
        regard.attention(*tensors(), dropout=p, seed=1, engine=engine)
    says(error, p)


def test_dense_weights_beyond_the_budget(engine):
    weights = regard.attend(*tensors(q=(2, 4, 500, 8), k=(2, 4, 600, 8), v=(2, 4, 600, 8)), engine=engine).weights
    with pytest.raises(BudgetError, match=NUMBER) as error:
        weights.dense(budget="1MB")
    # 2 * 4 * 500 * 600 numbers of 4 bytes
    assert re.search(r"9[.,]?[0-9]* ?M(i)?B|9[_,]?600[_,]?000", str(error.value)), str(error.value)
    assert re.search(r"(?<![\d.])1(\.0+)? ?M(i)?B|1[_,]?000[_,]?000", str(error.value)), str(error.value)


@pytest.mark.parametrize(
    "budget", ["much", "", "-1GB", "1 parsec"], ids=["a word", "nothing", "negative", "another unit"]
)
def test_a_budget_that_is_no_size(engine, budget):
    weights = regard.attend(*tensors(), engine=engine).weights
    with pytest.raises(SpecError, match="budget"):
        weights.dense(budget=budget)


def branching(b, h, i, j):
    if i > j:
        return j >= 0
    return j < 0


def through_python_numbers(b, h, i, j):
    return j < int(i)


def through_items(s, b, h, i, j):
    return s + s.item()


def unknown_operation(s, b, h, i, j):
    return torch.fft.fft(s)


@pytest.mark.parametrize("may", [branching, through_python_numbers])
def test_a_mask_function_that_cannot_be_traced_names_its_line(engine, may):
    with pytest.raises(TraceError, match=NUMBER) as error:
        regard.attention(*tensors(), mask=may, engine=engine)
    says(error, may.__code__.co_firstlineno + 1)


@pytest.mark.parametrize("rule", [through_items, unknown_operation])
def test_a_rule_that_cannot_be_traced_names_its_line_and_offers_custom(engine, rule):
    with pytest.raises(TraceError, match=r"score\.custom") as error:
        regard.attention(*tensors(), score=rule, engine=engine)
    says(error, rule.__code__.co_firstlineno + 1)


def test_a_rule_that_rolls_dice_is_refused_and_not_frozen(engine):
    with pytest.raises(TraceError, match=r"twice|random|differ"):
        regard.attention(*tensors(), score=lambda s, b, h, i, j: s + torch.rand(()), engine=engine)


def test_a_mask_function_that_does_not_say_yes_or_no(engine):
    with pytest.raises((SpecError, TraceError), match=r"bool|True"):
        regard.attention(*tensors(), mask=lambda b, h, i, j: i - j, engine=engine)


def test_a_function_of_the_wrong_number_of_arguments(engine):
    with pytest.raises((SpecError, TraceError)):
        regard.attention(*tensors(), mask=lambda i, j: i >= j, engine=engine)


def test_starts_of_the_wrong_number(engine):
    with pytest.raises(SpecError, match="start") as error:
        regard.attention(*tensors(), mask=mask.causal(), start=[0, 1, 2], engine=engine)
    says(error, 3, 2)


def test_lengths_of_the_wrong_number(engine):
    with pytest.raises(SpecError, match="length") as error:
        regard.attention(*tensors(), mask=mask.padding(torch.tensor([1, 2, 3])), engine=engine)
    says(error, 3, 2)


def test_slopes_of_the_wrong_number(engine):
    with pytest.raises(SpecError, match=NUMBER) as error:
        regard.attention(*tensors(), score=score.alibi(torch.ones(3)), engine=engine)
    says(error, 3, 4)


def test_sink_logits_of_the_wrong_number(engine):
    with pytest.raises(SpecError, match=NUMBER) as error:
        regard.attention(*tensors(), weigh=weigh.sink(torch.ones(3)), engine=engine)
    says(error, 3, 4)


@pytest.mark.parametrize(
    "make, got",
    [
        (lambda: mask.window(0), "0"),
        (lambda: mask.dilated(2, 0), "0"),
        (lambda: mask.blocks(0), "0"),
        (lambda: mask.blocks(-3), "-3"),
        (lambda: mask.strided(0), "0"),
        (lambda: mask.fixed(0), "0"),
        (lambda: mask.padding([1, 2], side="top"), "top"),
    ],
    ids=["window", "dilated", "blocks", "negative blocks", "strided", "fixed", "side"],
)
def test_parameters_that_make_no_mask(make, got):
    with pytest.raises(SpecError, match=got):
        make()


def test_packed_lengths_that_do_not_add_up(engine):
    q, k, v = (torch.zeros(10, 4) for _ in range(3))
    with pytest.raises(SpecError, match="length") as error:
        regard.attention_packed(q, k, v, [3, 4], engine=engine)
    says(error, 7, 10)


def test_a_bad_question_costs_nothing_even_at_a_length_that_would_cost_much(engine):
    q, k, v = (
        torch.zeros(1, 1).expand(50_000_000, 1),
        torch.zeros(1, 1).expand(50_000_000, 1),
        torch.zeros(3, 1),
    )
    with pytest.raises(SpecError, match="length") as error:
        regard.attention(q, k, v, engine=engine)
    assert "50000000" in str(error.value).replace(",", "").replace("_", "")
