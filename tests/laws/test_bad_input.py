"""Bad input raises before any work, with the requirement, the given values and a fix."""

import re

import numpy as np
import pytest
import torch

import regard
from regard import mask, normalizer, score
from regard.errors import ArgumentError, BackendError, BudgetError, RegardError, TraceError

NUMBER = r"\d"


def tensors(q=(2, 4, 5, 8), k=(2, 4, 6, 8), v=(2, 4, 6, 8), dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in (q, k, v)]


def assert_mentions(error, *generator):
    """Assert that the message contains every number or word, and has at least six words."""
    message = str(error.value)
    missing = [n for n in generator if not re.search(rf"(?<![\w.]){re.escape(str(n))}(?![\w])", message)]
    assert missing == [], message
    assert len(message.split()) >= 6, message


def test_errors_are_regard_errors_and_builtin_errors():
    assert issubclass(ArgumentError, RegardError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(TraceError, TypeError)
    assert issubclass(BackendError, RuntimeError)
    assert issubclass(BudgetError, MemoryError)


@pytest.mark.parametrize("call", [regard.attention, regard.attention_with_weights, regard.explain])
def test_queries_and_keys_of_different_head_dims(backend, call):
    with pytest.raises(ArgumentError, match="dimension") as error:
        call(*tensors(q=(2, 4, 5, 8), k=(2, 4, 6, 7)), backend=backend)
    assert_mentions(error, 8, 7)


def test_explain_checks_head_dims_of_shapes():
    with pytest.raises(ArgumentError, match="dimension") as error:
        regard.explain((2, 4, 5, 8), (2, 4, 6, 7), (2, 4, 6, 8))
    assert_mentions(error, 8, 7)


@pytest.mark.parametrize(
    "tested_score", [score.dot(), score.cosine(1.0), score.gaussian(1.0)], ids=["dot", "cosine", "gaussian"]
)
def test_scores_without_a_matrix_need_equal_head_dims(backend, tested_score):
    with pytest.raises(ArgumentError, match="dimension") as error:
        regard.attention(*tensors(q=(5, 3), k=(6, 4), v=(6, 4)), score=tested_score, backend=backend)
    assert_mentions(error, 3, 4)


def test_bilinear_matrix_of_the_wrong_shape(backend):
    with pytest.raises(ArgumentError, match=NUMBER) as error:
        regard.attention(
            *tensors(q=(5, 3), k=(6, 4), v=(6, 4)),
            score=score.bilinear(torch.zeros(3, 5)),
            backend=backend,
        )
    assert_mentions(error, 3, 4, 5)


def test_additive_weights_of_the_wrong_shape(backend):
    w_q, w_k, u = torch.zeros(8, 16), torch.zeros(9, 16), torch.zeros(16)
    with pytest.raises(ArgumentError, match=NUMBER) as error:
        regard.attention(*tensors(), score=score.additive(w_q, w_k, u), backend=backend)
    assert_mentions(error, 8, 9)


def test_num_kv_heads_must_divide_num_heads(backend):
    with pytest.raises(ArgumentError, match="head") as error:
        regard.attention(*tensors(q=(2, 4, 5, 8), k=(2, 3, 6, 8), v=(2, 3, 6, 8)), backend=backend)
    assert_mentions(error, 4, 3)


def test_more_key_heads_than_query_heads(backend):
    with pytest.raises(ArgumentError, match="head") as error:
        regard.attention(*tensors(q=(2, 2, 5, 8), k=(2, 6, 7, 8), v=(2, 6, 7, 8)), backend=backend)
    assert_mentions(error, 2, 6)


def test_keys_and_values_of_different_lengths(backend):
    with pytest.raises(ArgumentError, match="length") as error:
        regard.attention(*tensors(k=(2, 4, 6, 8), v=(2, 4, 7, 8)), backend=backend)
    assert_mentions(error, 6, 7)


def test_batches_that_do_not_broadcast(backend):
    with pytest.raises(ArgumentError, match="batch") as error:
        regard.attention(*tensors(q=(2, 4, 5, 8), k=(3, 4, 6, 8), v=(3, 4, 6, 8)), backend=backend)
    assert_mentions(error, 2, 3)


@pytest.mark.parametrize("shape", [(), (5,)])
def test_too_few_dimensions(backend, shape):
    with pytest.raises(ArgumentError, match="dim") as error:
        regard.attention(torch.zeros(shape), torch.zeros(6, 8), torch.zeros(6, 8), backend=backend)
    assert_mentions(error, 2, *shape)


@pytest.mark.parametrize("shape", [(5, 7), (6,), (3, 1, 5, 7), (4, 5, 8), (2, 4, 6, 7)])
def test_a_mask_that_does_not_broadcast(backend, shape):
    with pytest.raises(ArgumentError, match="broadcast") as error:
        regard.attention(
            *tensors(q=(2, 4, 5, 8), k=(2, 4, 8, 8), v=(2, 4, 8, 8)),
            mask=torch.ones((*shape[:-1], shape[-1] + 3), dtype=torch.bool),
            backend=backend,
        )
    assert_mentions(error, shape[-1] + 3, 8)


def test_a_bias_that_does_not_broadcast(backend):
    with pytest.raises(ArgumentError, match="broadcast") as error:
        regard.attention(*tensors(), score=score.bias(torch.zeros(5, 9)), backend=backend)
    assert_mentions(error, 9, 6)


def test_a_mask_that_is_not_boolean(backend):
    with pytest.raises(ArgumentError, match="bool"):
        regard.attention(*tensors(), mask=torch.zeros(5, 6), backend=backend)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "v", "all"])
def test_integer_and_complex_tensors(backend, dtype, name):
    inputs = [
        x.to(dtype) if name in (tensor_name, "all") else x for tensor_name, x in zip("qkv", tensors(), strict=True)
    ]

    with pytest.raises(ArgumentError, match="float") as error:
        regard.attention(*inputs, backend=backend)
    assert str(dtype).removeprefix("torch.") in str(error.value)


def test_integer_numpy_arrays(backend):
    with pytest.raises(ArgumentError, match="int64"):
        regard.attention(*(np.zeros((3, 2), dtype=np.int64) for _ in range(3)), backend=backend)


def test_tensors_of_two_dtypes(backend):
    q, k, v = tensors()
    with pytest.raises(ArgumentError, match="dtype") as error:
        regard.attention(q, k.double(), v, backend=backend)
    assert "float32" in str(error.value)
    assert "float64" in str(error.value)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_tensors_on_two_devices(backend, index):
    inputs = [x.to("meta") if n == index else x for n, x in enumerate(tensors())]
    with pytest.raises(ArgumentError, match="device") as error:
        regard.attention(*inputs, backend=backend)
    assert "cpu" in str(error.value)
    assert "meta" in str(error.value)


def test_a_query_that_is_not_a_tensor(backend):
    with pytest.raises((ArgumentError, TypeError), match=r"[Tt]ensor|array"):
        regard.attention("q", *tensors()[1:], backend=backend)


@pytest.mark.parametrize("call", [regard.attention, regard.attention_with_weights, regard.explain])
def test_unknown_backend_error_lists_the_backends(call):
    with pytest.raises(BackendError, match="warp") as error:
        call(*tensors(), backend="warp")
    assert_mentions(error, *regard.available_backends())


def test_an_unsupported_call_raises_with_the_reason():
    length = 2_000_000  # the float64 scores would take 32 TB
    with pytest.raises(BackendError, match="reference") as error:
        regard.attention(*(torch.zeros(length, 1) for _ in range(3)), backend="reference")
    assert re.search(r"\d", str(error.value)), str(error.value)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_dropout_outside_of_zero_to_one(backend, p):
    with pytest.raises(ArgumentError, match="dropout") as error:
        regard.attention(*tensors(), dropout=p, seed=1, backend=backend)
    assert_mentions(error, p)


def test_dense_weights_beyond_the_budget(backend):
    weights = regard.attention_with_weights(
        *tensors(q=(2, 4, 500, 8), k=(2, 4, 600, 8), v=(2, 4, 600, 8)), backend=backend
    ).weights
    with pytest.raises(BudgetError, match=NUMBER) as error:
        weights.to_dense(budget="1MB")
    # 2 * 4 * 500 * 600 numbers of 4 bytes
    assert re.search(r"9[.,]?[0-9]* ?M(i)?B|9[_,]?600[_,]?000", str(error.value)), str(error.value)
    assert re.search(r"(?<![\d.])1(\.0+)? ?M(i)?B|1[_,]?000[_,]?000", str(error.value)), str(error.value)


@pytest.mark.parametrize(
    "budget", ["much", "", "-1GB", "1 parsec"], ids=["a word", "nothing", "negative", "another unit"]
)
def test_invalid_budgets(backend, budget):
    weights = regard.attention_with_weights(*tensors(), backend=backend).weights
    with pytest.raises(ArgumentError, match="budget"):
        weights.to_dense(budget=budget)


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


@pytest.mark.parametrize("function", [branching, through_python_numbers])
def test_a_mask_function_that_cannot_be_traced_names_its_line(backend, function):
    with pytest.raises(TraceError, match=NUMBER) as error:
        regard.attention(*tensors(), mask=function, backend=backend)
    assert_mentions(error, function.__code__.co_firstlineno + 1)


@pytest.mark.parametrize("modifier", [through_items, unknown_operation])
def test_a_modifier_that_cannot_be_traced_names_its_line_and_suggests_custom(backend, modifier):
    with pytest.raises(TraceError, match=r"score\.custom") as error:
        regard.attention(*tensors(), score=modifier, backend=backend)
    assert_mentions(error, modifier.__code__.co_firstlineno + 1)


def test_a_random_modifier_raises(backend):
    with pytest.raises(TraceError, match=r"twice|random|differ"):
        regard.attention(*tensors(), score=lambda s, b, h, i, j: s + torch.rand(()), backend=backend)


def test_a_mask_function_that_does_not_return_a_boolean(backend):
    with pytest.raises((ArgumentError, TraceError), match=r"bool|True"):
        regard.attention(*tensors(), mask=lambda b, h, i, j: i - j, backend=backend)


def test_a_function_of_the_wrong_number_of_arguments(backend):
    with pytest.raises((ArgumentError, TraceError)):
        regard.attention(*tensors(), mask=lambda i, j: i >= j, backend=backend)


def test_query_offsets_of_the_wrong_number(backend):
    with pytest.raises(ArgumentError, match="query_offset") as error:
        regard.attention(*tensors(), mask=mask.causal(), query_offset=[0, 1, 2], backend=backend)
    assert_mentions(error, 3, 2)


def test_lengths_of_the_wrong_number(backend):
    with pytest.raises(ArgumentError, match="length") as error:
        regard.attention(*tensors(), mask=mask.padding(torch.tensor([1, 2, 3])), backend=backend)
    assert_mentions(error, 3, 2)


def test_slopes_of_the_wrong_number(backend):
    with pytest.raises(ArgumentError, match=NUMBER) as error:
        regard.attention(*tensors(), score=score.alibi(torch.ones(3)), backend=backend)
    assert_mentions(error, 3, 4)


def test_sink_logits_of_the_wrong_number(backend):
    with pytest.raises(ArgumentError, match=NUMBER) as error:
        regard.attention(*tensors(), normalizer=normalizer.sink(torch.ones(3)), backend=backend)
    assert_mentions(error, 3, 4)


@pytest.mark.parametrize(
    "make, value",
    [
        (lambda: mask.sliding_window(0), "0"),
        (lambda: mask.dilated(2, 0), "0"),
        (lambda: mask.chunked(0), "0"),
        (lambda: mask.chunked(-3), "-3"),
        (lambda: mask.strided(0), "0"),
        (lambda: mask.fixed(0), "0"),
        (lambda: mask.padding([1, 2], side="top"), "top"),
    ],
    ids=["sliding_window", "dilated", "chunked", "negative chunked", "strided", "fixed", "side"],
)
def test_invalid_mask_parameters(make, value):
    with pytest.raises(ArgumentError, match=value):
        make()


def test_varlen_lengths_that_do_not_add_up(backend):
    q, k, v = (torch.zeros(10, 4) for _ in range(3))
    with pytest.raises(ArgumentError, match="length") as error:
        regard.attention_varlen(q, k, v, [3, 4], backend=backend)
    assert_mentions(error, 7, 10)


def test_bad_input_of_a_huge_length_raises_at_once(backend):
    q, k, v = (
        torch.zeros(1, 1).expand(50_000_000, 1),
        torch.zeros(1, 1).expand(50_000_000, 1),
        torch.zeros(3, 1),
    )
    with pytest.raises(ArgumentError, match="length") as error:
        regard.attention(q, k, v, backend=backend)
    assert "50000000" in str(error.value).replace(",", "").replace("_", "")
