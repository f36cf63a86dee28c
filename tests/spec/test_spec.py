"""Reading a call: shapes, dtypes, starts; equal questions have equal specs; what does not fit is refused at once."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard import mask, score, weigh
from regard.errors import SpecError
from regard.spec.normaliser import Sigmoid, Softmax
from regard.spec.read import read
from regard.spec.spec import Spec
from regard.spec.term import TRUE


def tensors(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(shape).to(dtype) for _ in range(3))
    return q, k, v


def spec(*args: Any, **options: Any) -> Spec:
    return read(*args, **options).spec


@pytest.mark.parametrize(
    "q, k, v, expected",
    [
        ((5, 8), (7, 8), (7, 3), (1, 1, 1, 5, 7, 8, 3)),
        ((2, 5, 8), (2, 7, 8), (2, 7, 3), (2, 1, 1, 5, 7, 8, 3)),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3), (2, 4, 4, 5, 7, 8, 3)),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3), (2, 4, 2, 5, 7, 8, 3)),
        ((3, 2, 4, 5, 8), (3, 2, 1, 7, 8), (3, 2, 1, 7, 3), (6, 4, 1, 5, 7, 8, 3)),
        ((2, 4, 5, 8), (1, 4, 7, 8), (2, 4, 7, 3), (2, 4, 4, 5, 7, 8, 3)),
        ((1, 4, 5, 8), (6, 4, 7, 8), (1, 4, 7, 3), (6, 4, 4, 5, 7, 8, 3)),
        ((0, 8), (7, 8), (7, 3), (1, 1, 1, 0, 7, 8, 3)),
        ((5, 8), (0, 8), (0, 3), (1, 1, 1, 5, 0, 8, 3)),
        ((0, 2, 5, 8), (0, 2, 5, 8), (0, 2, 5, 8), (0, 2, 2, 5, 5, 8, 8)),
        ((5, 8), (7, 8), (7, 0), (1, 1, 1, 5, 7, 8, 0)),
    ],
)  # fmt: skip
def test_dimensions_are_read_from_the_end(q: Any, k: Any, v: Any, expected: tuple[int, ...]) -> None:
    found = spec(*(torch.zeros(s) for s in (q, k, v)))
    assert (
        (found.batch, found.heads, found.key_heads, found.n_q, found.n_k, found.width, found.value_width)
        == expected
        == tuple(
            getattr(spec(q, k, v), n) for n in ("batch", "heads", "key_heads", "n_q", "n_k", "width", "value_width")
        )
    )
    assert found.lengths == (expected[0], expected[1], expected[3], expected[4])
    assert found.group == expected[1] // expected[2]


def test_results_get_back_the_callers_dimensions() -> None:
    for q_shape, leading in (((5, 8), ()), ((2, 5, 8), (2,)), ((2, 4, 5, 8), (2, 4)), ((3, 2, 4, 5, 8), (3, 2, 4))):
        question = read(*tensors(*q_shape))
        result = torch.zeros(*question.spec.lengths[:3], 9)
        assert question.shaped(result).shape == (*leading, 5, 9)


def test_an_array_gets_an_array_back() -> None:
    q, k, v = (x.numpy() for x in tensors(5, 8))
    question = read(q, k, v)
    assert question.is_numpy and isinstance(question.shaped(torch.zeros(1, 1, 5, 8)), np.ndarray)
    assert not read(*tensors(5, 8)).is_numpy


def test_shapes_alone_are_enough_to_plan_with() -> None:
    found = spec((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), mask=mask.causal())
    assert found.lengths == (2, 4, 5, 7) and found.device == "cpu" and found.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_kept_in_float32_or_better(dtype: torch.dtype) -> None:
    found = spec(*tensors(5, 8, dtype=dtype))
    assert found.dtype == dtype
    assert found.precision == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_the_default_is_softmax_of_scaled_dot_without_a_mask() -> None:
    found = spec(*tensors(5, 16))
    assert (found.score, found.scale, found.rule, found.mask) == ("dot", 0.25, None, TRUE)
    assert found.normaliser == Softmax() and found.dropout == 0.0 and found.start == 0 and found.tensors == ()


@pytest.mark.parametrize(
    "chosen, kind, scale, width",
    [
        (score.dot(), "dot", 1.0, 4),
        (score.scaled_dot(0.3), "dot", 0.3, 4),
        (score.scaled_dot(torch.tensor(0.3)), "dot", 1.0, 4),
        (score.cosine(7.0), "dot", 7.0, 4),
        (score.metric(2.0), "dot", 1.0, 6),
        (score.mahalanobis(torch.eye(4)), "dot", 1.0, 6),
        (score.additive(torch.ones(4, 9), torch.ones(4, 9), torch.ones(9)), "additive", 1.0, 9),
        (score.custom(lambda q, k: q @ k.mT), "custom", 1.0, 4),
    ],
)
def test_a_spec_says_which_product_is_computed(chosen: Any, kind: str, scale: float, width: int) -> None:
    found = spec(*tensors(5, 4), score=chosen)
    assert (found.score, found.scale, found.width) == (kind, scale, width)


def test_a_spec_says_what_is_prepared() -> None:
    """The scale in the spec and the scale of the preparation are the same number."""
    q, k, v = tensors(1, 2, 5, 4)
    for chosen in (score.dot(), score.scaled_dot(), score.scaled_dot(0.7), score.cosine(3.0), score.metric(0.5)):
        assert spec(q, k, v, score=chosen).scale == chosen.prepare(q, k).scale


CHOICES: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "causal": lambda: {"mask": mask.causal()},
    "a window": lambda: {"mask": mask.causal() & mask.window(3)},
    "a wider window": lambda: {"mask": mask.causal() & mask.window(4)},
    "a function": lambda: {"mask": lambda b, h, i, j: i >= j},
    "another function": lambda: {"mask": lambda b, h, i, j: i > j},
    "padding": lambda: {"mask": mask.padding([3, 5])},
    "a boolean tensor": lambda: {"mask": torch.ones(5, 5, dtype=torch.bool)},
    "alibi": lambda: {"score": score.alibi()},
    "alibi of one's own": lambda: {"score": score.alibi(torch.ones(4))},
    "softcap": lambda: {"score": score.softcap(20.0)},
    "another softcap": lambda: {"score": score.softcap(30.0)},
    "bias": lambda: {"score": score.bias(torch.zeros(5, 5))},
    "a fine bias": lambda: {"score": score.bias(torch.zeros(5, 5, dtype=torch.float64))},
    "dot": lambda: {"score": score.dot()},
    "a scale": lambda: {"score": score.scaled_dot(0.1)},
    "metric": lambda: {"score": score.metric(2.0)},
    "additive": lambda: {"score": score.additive(torch.ones(8, 9), torch.ones(8, 9), torch.ones(9))},
    "sigmoid": lambda: {"weigh": weigh.sigmoid()},
    "sigmoid with a bias": lambda: {"weigh": weigh.sigmoid(-1.0)},
    "relu": lambda: {"weigh": weigh.relu()},
    "dropout": lambda: {"dropout": 0.1, "seed": 1},
    "more dropout": lambda: {"dropout": 0.2, "seed": 1},
    "a start": lambda: {"start": 3},
    "a start a batch element": lambda: {"start": [0, 3]},
    "random blocks": lambda: {"mask": mask.random_blocks(2, 1)},
}


@pytest.mark.parametrize("name", CHOICES)
def test_equal_questions_have_equal_specs(name: str) -> None:
    one, other = (spec(*tensors(2, 4, 5, 8), **CHOICES[name]()) for _ in range(2))
    assert one == other and hash(one) == hash(other)


def test_different_questions_have_different_specs() -> None:
    found = {name: spec(*tensors(2, 4, 5, 8), **make()) for name, make in CHOICES.items()}
    for one, a in found.items():
        for other, b in found.items():
            assert (one == other) == (a == b), (one, other)


def test_other_shapes_and_dtypes_are_other_questions() -> None:
    every = [
        spec(*tensors(2, 4, 5, 8)),
        spec(*tensors(2, 4, 5, 8, dtype=torch.bfloat16)),
        spec(*tensors(1, 4, 5, 8)),
        spec(*tensors(2, 2, 5, 8)),
        spec(*tensors(2, 4, 6, 8)),
        spec(*tensors(2, 4, 5, 9)),
    ]
    assert len(set(every)) == len(every)
    assert spec((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)) == spec(*tensors(2, 4, 5, 8))  # a shape is float32 on the CPU


def test_values_in_captured_tensors_are_no_part_of_the_question() -> None:
    """So a plan is found again although the padding differs from call to call."""
    one, other = (spec(*tensors(2, 4, 5, 8), mask=mask.padding(n)) for n in ([1, 2], [4, 5]))
    assert one == other


def test_a_spec_holds_no_tensors() -> None:
    found = spec(*tensors(2, 4, 5, 8), mask=mask.padding([1, 2]), score=score.bias(torch.zeros(5, 5)))
    assert not any(isinstance(x, Tensor) for x in vars(found).values())
    assert found.tensors == (((5, 5), torch.float32), ((2,), torch.int64))
    with pytest.raises(AttributeError):
        found.heads = 3  # type: ignore[misc]


@pytest.mark.parametrize("start, expected", [(None, 2), (0, 0), (7, 7), (-3, -3), (np.int64(4), 4)])
def test_a_start_is_a_number_or_the_end_of_the_keys(start: Any, expected: int) -> None:
    question = read(torch.zeros(5, 8), torch.zeros(7, 8), torch.zeros(7, 8), start=start)
    assert question.start == question.spec.start == expected


@pytest.mark.parametrize(
    "start", [[1, 2, 3], torch.tensor([1, 2, 3]), np.array([1, 2, 3])], ids=["list", "tensor", "array"]
)
def test_a_start_may_differ_by_batch_element(start: Any) -> None:
    question = read(*tensors(3, 5, 8), start=start)
    assert question.spec.start is None and torch.as_tensor(question.start).tolist() == [1, 2, 3]


def test_one_start_in_a_tensor_holds_for_all() -> None:
    question = read(*tensors(3, 5, 8), start=torch.tensor([4]))
    assert torch.as_tensor(question.start).tolist() == [4, 4, 4]
    assert torch.as_tensor(read(*tensors(3, 5, 8), start=torch.tensor(4)).start).tolist() == [4, 4, 4]


def test_rule_and_mask_share_one_list_of_tensors() -> None:
    shared = torch.rand(5)
    question = read(
        *tensors(5, 8),
        score=score.rule(lambda s, b, h, i, j: s + shared[j]),
        mask=lambda b, h, i, j: (shared[i] > 0.1) | (j <= i),
    )
    assert len(question.inputs().tensors) == 1 and question.inputs().tensors[0] is shared


def test_the_rule_of_the_weighing_comes_after_that_of_the_score() -> None:
    found = read(*tensors(1, 1, 5, 4), score=score.softcap(2.0), weigh=weigh.sigmoid(-1.0)).spec
    assert found.formula == "o = sigmoid(2.0 * tanh(s / 2.0) + -1.0 with s = q·k / √d) v"
    assert found.normaliser == Sigmoid()


def test_the_question_is_written_in_a_line() -> None:
    q, k, v = tensors(2, 4, 5, 8)
    assert spec(q, k, v).formula == "o = softmax(q·k / √d) v"
    found = spec(q, k, v, score=score.alibi(), mask=mask.causal())
    assert found.formula == "o = softmax(s - slopes[h] * |p - j| with s = q·k / √d, seen where j <= p) v"


def test_every_tensor_of_a_call_can_be_replaced() -> None:
    inputs = read(
        *tensors(1, 1, 5, 4),
        score=score.additive(torch.ones(4, 6), torch.ones(4, 6), torch.ones(6)).then(score.bias(torch.zeros(5, 5))),
        mask=torch.ones(5, 5, dtype=torch.bool),
    ).inputs()
    every = inputs.every()
    assert len(every) == 3 + 2 + 1
    moved = inputs.holding([x.clone() for x in every])
    assert all(torch.equal(a, b) and a is not b for a, b in zip(every, moved.every(), strict=True))
    assert len(moved.tensors) == 2 and len(moved.parameters) == 1


def test_inputs_detached_require_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(5, 4))
    assert not any(x.requires_grad for x in read(q, k, v).inputs().detached().every())
    assert all(x.requires_grad for x in read(q, k, v).inputs().every())


def test_planning_sees_captured_tensors_without_the_queries() -> None:
    question = read((4, 6), (4, 6), (4, 6), score=score.shaw_keys(torch.zeros(3, 6)), mask=mask.random_blocks(2, 1))
    captured = question.captured()
    assert len(captured) == 2 and captured[1].shape == (2, 2)


def test_a_function_of_the_values_may_change_their_width() -> None:
    q, k, v = tensors(2, 4, 5, 8)
    question = read(q, k, v, value=lambda x: x[..., :3] * 2)
    assert question.spec.value_width == 3 and torch.equal(question.v, v[..., :3] * 2)
    assert read((4, 6), (4, 6), (4, 6), value=lambda x: x[..., :3]).spec.value_width == 6  # not called for shapes


def test_mixed_dtypes_meet_in_the_widest_under_autocast() -> None:
    q, k, v = tensors(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert spec(q.bfloat16(), k, v).dtype == torch.float32


def test_a_seed_is_drawn_from_torch_only_if_there_is_dropout() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    q, k, v = (torch.zeros(5, 8) for _ in range(3))
    assert read(q, k, v).seed == 0 and torch.equal(torch.get_rng_state(), before)
    first, second = read(q, k, v, dropout=0.1).seed, read(q, k, v, dropout=0.1).seed
    assert first != second
    torch.manual_seed(0)
    assert read(q, k, v, dropout=0.1).seed == first
    assert read(q, k, v, dropout=0.1, seed=17).seed == 17


def zeros(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(s, dtype=dtype) for s in shapes]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "whole numbers": (
        lambda: read(torch.ones(5, 8, dtype=torch.int64), *zeros((5, 8), (5, 8))),
        r"q must hold float64, float32, bfloat16 or float16; got torch\.int64\. Convert it first, as in q\.float\(\)\.",
    ),
    "complex numbers": (
        lambda: read(*zeros((5, 8), (5, 8)), torch.ones(5, 8, dtype=torch.complex64)),
        r"v must hold float64, .*; got torch\.complex64",
    ),
    "one dimension": (
        lambda: read(*zeros((5, 8), (8,), (5, 8))),
        r"k must have at least 2 dimensions, \(length, width\); got shape \(8,\)\. Use k\[None\] for a single vector\.",
    ),
    "dtypes": (
        lambda: read(torch.zeros(5, 8), torch.zeros(5, 8).double(), torch.zeros(5, 8).half()),
        r"q, k and v must have one dtype; got q=torch\.float32, k=torch\.float64, v=torch\.float16\.",
    ),
    "devices": (
        lambda: read(torch.zeros(5, 8), torch.zeros(5, 8), torch.empty(5, 8, device="meta")),
        r"q, k and v must be on one device; got q on cpu, k on cpu, v on meta\. Move them with \.to\(device\)\.",
    ),
    "numbers of dimensions": (
        lambda: read(*zeros((2, 5, 8), (5, 8), (5, 8))),
        r"q, k and v must have the same number of dimensions; got q=\(2, 5, 8\), k=\(5, 8\), v=\(5, 8\)\.",
    ),
    "lengths": (
        lambda: read(*zeros((5, 8), (6, 8), (7, 8))),
        r"k and v must have the same length; got k=6, v=7 \(q=\(5, 8\), k=\(6, 8\), v=\(7, 8\)\)\.",
    ),
    "no width": (
        lambda: read(*zeros((5, 0), (6, 0), (6, 8))),
        r"q and k must be at least 1 wide; got q=\(5, 0\), k=\(6, 0\), v=\(6, 8\)\.",
    ),
    "widths": (lambda: read(*zeros((5, 8), (6, 7), (6, 8))), r"q and k must have the same width; got q=8, k=7\."),
    "heads of keys and values": (
        lambda: read(*zeros((1, 4, 5, 8), (1, 2, 5, 8), (1, 4, 5, 8))),
        r"it must divide that of q; got q=4, k=2, v=4 heads \(q=\(1, 4, 5, 8\)",
    ),
    "heads that do not divide": (
        lambda: read(*zeros((1, 4, 5, 8), (1, 3, 5, 8), (1, 3, 5, 8))),
        r"it must divide that of q; got q=4, k=3, v=3 heads",
    ),
    "fewer heads of queries": (
        lambda: read(*zeros((1, 2, 5, 8), (1, 4, 5, 8), (1, 4, 5, 8))),
        r"it must divide that of q; got q=2, k=4, v=4 heads",
    ),
    "no heads of keys": (
        lambda: read(*zeros((1, 2, 5, 8), (1, 0, 5, 8), (1, 0, 5, 8))),
        r"it must divide that of q; got q=2, k=0, v=0 heads",
    ),
    "batches": (
        lambda: read(*zeros((2, 5, 8), (3, 5, 8), (3, 5, 8))),
        r"the batch dimensions of q, k and v must be equal or 1; got q=\(2, 5, 8\), k=\(3, 5, 8\), v=\(3, 5, 8\)\.",
    ),
    "a start with a fraction": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), start=1.5),
        r"start must be a whole number, or one for each of 1 batch elements; got torch\.float32 of shape \(\)\.",
    ),
    "starts for another batch": (
        lambda: read(*zeros((2, 5, 8), (2, 5, 8), (2, 5, 8)), start=[1, 2, 3]),
        r"start must be .* for each of 2 batch elements; got torch\.int64 of shape \(3,\)\.",
    ),
    "starts in a square": (
        lambda: read(*zeros((2, 5, 8), (2, 5, 8), (2, 5, 8)), start=[[1], [2]]),
        r"for each of 2 batch elements; got torch\.int64 of shape \(2, 1\)\.",
    ),
    "dropout of one": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), dropout=1.0),
        r"dropout must be a number at least 0 and less than 1; got 1\.0\.",
    ),
    "negative dropout": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), dropout=-0.1),
        r"dropout must be a number at least 0 and less than 1; got -0\.1\.",
    ),
    "dropout that is no number": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), dropout=float("nan")),
        r"dropout must be a number at least 0 and less than 1; got nan\.",
    ),
    "a value that is no function": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), value=3),
        r"value must be a function \(v\); got 3\.",
    ),
    "a value that loses a dimension": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), value=lambda v: v.sum(0)),
        r"value must keep all dimensions of v but the last, \(5,\); got \(8,\)\.",
    ),
    "a value that gives no tensor": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), value=lambda v: None),
        r"value must keep all dimensions of v but the last, \(5,\); got NoneType\.",
    ),
    "a mask for other lengths": (
        lambda: read(*zeros((5, 8), (6, 8), (6, 8)), mask=torch.ones(5, 7, dtype=torch.bool)),
        r"a mask tensor must broadcast to \(batch, heads, n_q, n_k\) = \(1, 1, 5, 6\); got shape \(5, 7\)",
    ),
    "a mask that is none": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), mask="causal"),
        r"mask must be a mask, a boolean tensor or a function \(b, h, i, j\); got str\.",
    ),
    "a bias for other lengths": (
        lambda: read(*zeros((5, 8), (6, 8), (6, 8)), score=torch.ones(6, 5)),
        r"a bias tensor must broadcast to .* = \(1, 1, 5, 6\); got shape \(6, 5\)",
    ),
    "a sink for other heads": (
        lambda: read(*zeros((1, 3, 5, 8), (1, 3, 5, 8), (1, 3, 5, 8)), weigh=weigh.sink(torch.zeros(2))),
        r"sink logits must have one entry for each of 3 heads; got 2 \(shape \(2,\)\)\.",
    ),
    "relative values of another width": (
        lambda: read(*zeros((5, 8), (5, 8), (5, 8)), value=score.shaw_values(torch.zeros(3, 7))),
        r"shaw_values needs a table as wide as v; got table=7, v=8\.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_question_that_cannot_be_meant_is_refused_with_its_numbers(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        make()


def test_a_function_is_read_again_each_time() -> None:
    q = torch.zeros(1, 1, 4, 2)
    reach = [2]
    near = lambda b, h, i, j: i - j < reach[0]

    before = read(q, q, q, mask=near).spec.mask
    reach[0] = 3

    assert read(q, q, q, mask=near).spec.mask is not before


def test_the_same_objects_ask_the_same_question_and_other_lengths_another() -> None:
    chosen = mask.causal() & mask.window(3)
    q, longer = torch.zeros(1, 2, 4, 2), torch.zeros(1, 2, 5, 2)

    assert read(q, q, q, mask=chosen).spec is read(q + 1, q, q, mask=chosen).spec
    assert read(longer, longer, longer, mask=chosen).spec.n_q == 5
    assert read(q, longer, longer, mask=chosen).start == 1
    assert read(q.double(), q.double(), q.double(), mask=chosen).spec.dtype == torch.float64
    assert read(q, q, q, mask=chosen, dropout=0.5).spec.dropout == 0.5
    assert read(q, q, q, mask=chosen, start=1).start == 1
    assert read(q, q, q, mask=chosen, score=score.softcap(2.0)).spec.rule is not None


def test_what_captures_much_is_not_kept_alive() -> None:
    q = torch.zeros(1, 1, 1100, 2)
    seen = torch.ones(1100, 1100, dtype=torch.bool)
    gone = weakref.ref(seen)
    chosen = mask.tensor(seen)
    read(q, q, q, mask=chosen)

    del seen, chosen

    assert gone() is None
