"""Every head metric equals its dense formula, for several masks, scores and normalizers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import mask, normalizer, score
from regard.recording.metrics.head_metrics import LAST_QUERIES, NUM_PATTERN_LINES, HeadMetrics
from regard.recording.recorded_call import CALL_OPTIONS, RecordedCall

BATCH_SIZE, NUM_HEADS, N, HEAD_DIM = 2, 4, 256, 16
CLOSE = dict(rtol=2e-4, atol=2e-5)  # weights are float32, means of 256 rows; the formula here is float64
SEPARATORS = (".", ",")


def random_tokens(n: int = N) -> list[list[str]]:
    generator = torch.Generator().manual_seed(3)
    words = ["the", "whale", "sea", ".", ",", *(f"w{k}" for k in range(40))]
    return [[words[int(k)] for k in torch.randint(len(words), (n,), generator=generator)] for _ in range(BATCH_SIZE)]


LENGTHS = torch.tensor([N, 200])
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": mask.causal()},
    "window": {"mask": mask.causal() & mask.sliding_window(40)},
    "padding": {"mask": mask.padding(LENGTHS)},
    "by head": {"mask": mask.from_function(lambda b, h, i, j: (j <= i) & ((i - j) % (h + 1) == 0))},
    "scale": {"mask": mask.causal(), "score": score.scaled_dot(0.9)},
    "alibi": {"mask": mask.causal(), "score": score.scaled_dot().then(score.alibi())},
    "sink": {"mask": mask.causal(), "normalizer": normalizer.sink(torch.tensor([0.0, 1.0, 2.0, 3.0]))},
    "sparsemax": {"mask": mask.causal(), "normalizer": normalizer.sparsemax()},
    "sigmoid": {"mask": mask.causal() & mask.sliding_window(40), "normalizer": normalizer.sigmoid(-1.0)},
    "an offset": {"mask": mask.causal(), "query_offset": 30},
    "an offset, sparsemax": {"mask": mask.causal(), "query_offset": 30, "normalizer": normalizer.sparsemax()},
    "queries beyond the keys": {"mask": mask.causal(), "query_offset": N - 40},
    "queries without keys": {"mask": mask.from_function(lambda b, h, i, j: (j < i) & (i % 7 != 0))},
}


class Case:
    """A recorded call with its dense weights `a` and its dense mask `visible`."""

    def __init__(self, name: str, n_q: int = N, num_kv_heads: int = NUM_HEADS) -> None:
        torch.manual_seed(1)
        options = {**dict.fromkeys(CALL_OPTIONS), **CALLS[name]}
        q, k = (
            1.5 * torch.randn(BATCH_SIZE, NUM_HEADS, n_q, HEAD_DIM),
            torch.randn(BATCH_SIZE, num_kv_heads, N, HEAD_DIM),
        )
        self.call = RecordedCall(q, k, torch.randn(BATCH_SIZE, num_kv_heads, N, HEAD_DIM), options, None, "")
        self.tokens = random_tokens()
        self.metrics = HeadMetrics(self.call, self.tokens, SEPARATORS, window_size=16)
        self.a = self.call.result.weights[...].double()
        if options["mask"] is None:
            self.visible = torch.ones(BATCH_SIZE, NUM_HEADS, n_q, N, dtype=torch.bool)
        else:
            self.visible = options["mask"].to_dense(
                n_q, N, batch_size=BATCH_SIZE, num_heads=NUM_HEADS, query_offset=options["query_offset"]
            )
        self.uniform = self.visible / self.visible.sum(-1, keepdim=True).clamp(min=1).double()
        query_offset = N - n_q if options["query_offset"] is None else options["query_offset"]
        self.p, self.j = torch.arange(n_q)[:, None] + query_offset, torch.arange(N)

    def mean(self, values: Tensor, valid: Tensor) -> Tensor:
        values, valid = torch.broadcast_tensors(values, valid)
        return (values * valid).sum(-1) / valid.sum(-1).clamp(min=1)

    def mass(self, pairs: Tensor, weights: Tensor) -> Tensor:
        """Return the mean mass on `pairs`, over the queries that may attend to one of them."""
        return self.mean((weights * pairs).sum(-1), (pairs & self.visible).any(-1))

    def equal_tokens(self, shift: int) -> Tensor:
        """Return the pairs whose key is `shift` positions after an earlier occurrence of the query's token."""
        tokens = self.tokens
        n_q = self.call.q.shape[2]
        pairs = torch.zeros(BATCH_SIZE, 1, n_q, N, dtype=torch.bool)
        for b in range(BATCH_SIZE):
            for i, p in enumerate(self.p[:, 0].tolist()):
                for j in range(shift, p if p < N else 0):
                    pairs[b, 0, i, j] = tokens[b][j - shift] == tokens[b][p]
        return pairs


@pytest.fixture(scope="module", params=[*CALLS, "cache", "grouped"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "cache":
        return Case("causal", n_q=70)
    if "query_offset" in CALLS.get(request.param, {}):
        return Case(request.param, n_q=70)
    return Case("causal", num_kv_heads=2) if request.param == "grouped" else Case(request.param)


def check(scores: Any, expected: Tensor, uniform: Tensor) -> None:
    torch.testing.assert_close(scores.values.double().expand_as(expected), expected.double(), **CLOSE)
    torch.testing.assert_close(scores.uniform.double().expand_as(uniform), uniform.double(), **CLOSE)
    assert float(expected.double().std()) > 1e-4 or float(expected.min()) in (0.0, 1.0)  # no trivial comparison


def test_entropy(case: Case) -> None:
    has_key = case.visible.any(-1)
    rows = torch.special.entr(case.a).sum(-1)
    check(case.metrics.entropy(), case.mean(rows, has_key), case.mean(case.visible.sum(-1).clamp(min=1).log(), has_key))
    has_choice = case.visible.sum(-1) > 1
    normalized = rows / case.visible.sum(-1).clamp(min=2).log()
    check(
        case.metrics.normalized_entropy(),
        case.mean(normalized, has_choice),
        case.mean(torch.ones_like(normalized), has_choice),
    )


def test_distance(case: Case) -> None:
    def distances(weights: Tensor) -> Tensor:
        return (weights * (case.p - case.j).abs()).sum(-1) / weights.sum(-1).clamp(min=1e-30)

    has_key = case.visible.any(-1)
    scores = case.metrics.distance()
    # positions up to 256 times float32 weights
    torch.testing.assert_close(scores.values.double(), case.mean(distances(case.a), has_key), rtol=1e-4, atol=2e-3)
    uniform = case.mean(distances(case.uniform), has_key)
    torch.testing.assert_close(scores.uniform.double().expand_as(uniform), uniform, rtol=1e-4, atol=2e-3)


def test_confidence_and_the_most_common_offset(case: Case) -> None:
    has_key = case.visible.any(-1)
    best = case.a.max(-1)
    check(
        case.metrics.confidence(),
        case.mean(best.values, has_key),
        case.mean(1 / case.visible.sum(-1).clamp(min=1).double(), has_key),
    )
    scores, offset = case.metrics.positional()
    offsets = best.indices - case.p[:, 0]
    for b in range(BATCH_SIZE):
        for h in range(NUM_HEADS):
            head_offsets = offsets[b, h][has_key[b, h]].tolist()
            count = max(head_offsets.count(o) for o in set(head_offsets))
            assert head_offsets.count(int(offset[b, h])) == count
            assert math.isclose(float(scores.values[b, h]), count / len(head_offsets), rel_tol=1e-5)


def test_mass_on_the_first_key_and_on_separators(case: Case) -> None:
    first = (case.j == 0) & (case.p > 0)
    check(case.metrics.first_token(), case.mass(first, case.a), case.mass(first, case.uniform))
    is_separator = torch.tensor([[token in SEPARATORS for token in text] for text in case.tokens])[:, None, None]
    is_separator = is_separator.expand_as(case.visible)
    check(case.metrics.separator(), case.mass(is_separator, case.a), case.mass(is_separator, case.uniform))


@pytest.mark.parametrize(
    "name, pairs",
    [
        ("own_position", lambda p, j: j == p),
        ("previous", lambda p, j: j == p - 1),
        ("next", lambda p, j: j == p + 1),
        ("window", lambda p, j: (p - j).abs() < 16),
    ],
)
def test_mass_near_the_diagonal(name: str, pairs: Callable[[Tensor, Tensor], Tensor], case: Case) -> None:
    band = pairs(case.p, case.j)
    check(getattr(case.metrics, name)(), case.mass(band, case.a), case.mass(band, case.uniform))


@pytest.mark.parametrize("name, shift", [("duplicate", 0), ("induction", 1)])
def test_mass_on_equal_tokens(name: str, shift: int, case: Case) -> None:
    pairs = case.equal_tokens(shift)
    check(getattr(case.metrics, name)(), case.mass(pairs, case.a), case.mass(pairs, case.uniform))


def test_column_mass_and_the_strongest_sink(case: Case) -> None:
    torch.testing.assert_close(case.metrics.query_metrics.column_mass.double(), case.a.sum(-2), **CLOSE)
    num_queries = case.visible.sum(-2)
    mean_weights = torch.where(num_queries >= 8, case.a.sum(-2) / num_queries.clamp(min=1), 0.0)
    sink, key = case.metrics.strongest_sink()
    torch.testing.assert_close(sink.double(), mean_weights.max(-1).values, **CLOSE)
    torch.testing.assert_close(mean_weights.gather(-1, key[..., None])[..., 0], mean_weights.max(-1).values, **CLOSE)


def test_alignment_is_the_mutual_information_of_query_and_key(case: Case) -> None:
    """I = sum p(i, j) log p(i, j) / (p(i) p(j)), where p(i) is uniform and p(j | i) are the weights."""

    def information(weights: Tensor) -> Tensor:
        rows = weights.sum(-1, keepdim=True)
        has_key = (rows > 0).sum(-2, keepdim=True)
        pairs = weights / rows.clamp(min=1e-300) / has_key
        independent = pairs.sum(-2, keepdim=True) * pairs.sum(-1, keepdim=True)
        return torch.where(pairs > 0, pairs * (pairs / independent.clamp(min=1e-300)).log(), 0.0).sum((-2, -1))

    maximum = math.log(min(case.call.q.shape[2], N))
    scores = case.metrics.alignment()
    uniform = information(case.uniform) / maximum
    torch.testing.assert_close(scores.uniform.double().expand_as(uniform), uniform, rtol=1e-3, atol=1e-5)
    if case.call.options["normalizer"] is None:  # with a sink rows do not sum to 1
        torch.testing.assert_close(scores.values.double(), information(case.a) / maximum, rtol=1e-3, atol=1e-5)


def test_vertical_and_slash_scores(case: Case) -> None:
    rows = case.a[:, :, -LAST_QUERIES:]
    total = rows.sum((-2, -1))
    columns = rows.sum(-2).topk(NUM_PATTERN_LINES).values.sum(-1) / total
    n = rows.shape[-2]
    diagonals = torch.stack([rows.diagonal(o, -2, -1).sum(-1) for o in range(-n + 1, N)], -1)
    vertical, slash = case.metrics.vertical_and_slash()
    torch.testing.assert_close(vertical.double(), columns, **CLOSE)
    torch.testing.assert_close(slash.double(), diagonals.topk(NUM_PATTERN_LINES).values.sum(-1) / total, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_metrics_of_half_precision_calls_are_computed_in_float32(dtype: torch.dtype) -> None:
    n = 3000  # half precision does not distinguish the last positions
    q = torch.zeros(1, 1, n, 64)
    angles = torch.arange(n)[:, None] * 0.9 ** torch.arange(32)
    q[0, 0] = 4 * torch.cat((angles.cos(), angles.sin()), -1)
    k = q.roll(-1, 2)  # key j matches query j + 1
    options = {**dict.fromkeys(CALL_OPTIONS), "mask": mask.causal()}
    halves = RecordedCall(q.to(dtype), k.to(dtype), k.to(dtype), options, None, "")
    floats = RecordedCall(halves.q.float(), halves.k.float(), halves.v.float(), options, None, "")
    metrics, expected = (HeadMetrics(call) for call in (halves, floats))
    assert float(expected.previous().values) > 0.9 and float(expected.distance().values) < 20
    for name in ("distance", "entropy", "first_token", "previous", "alignment", "confidence"):
        a, b = (getattr(x, name)().values for x in (metrics, expected))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # the same sums of the same numbers
