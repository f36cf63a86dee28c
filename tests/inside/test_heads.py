"""Every number about a head is its dense formula, for several kinds of layers, texts and masks."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import mask, score, weigh
from regard.inside.heads import LAST, LINES, Looked
from regard.inside.take import OPTIONS, Take

BATCH, HEADS, N, WIDTH = 2, 4, 256, 16
CLOSE = dict(rtol=2e-4, atol=2e-5)  # weights are float32, means of 256 rows; the formula here is float64
SEPARATORS = (".", ",")


def texts(n: int = N) -> list[list[str]]:
    draw = torch.Generator().manual_seed(3)
    words = ["the", "whale", "sea", ".", ",", *(f"w{k}" for k in range(40))]
    return [[words[int(k)] for k in torch.randint(len(words), (n,), generator=draw)] for _ in range(BATCH)]


PADDED = torch.tensor([N, 200])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": mask.causal()},
    "window": {"mask": mask.causal() & mask.window(40)},
    "padding": {"mask": mask.padding(PADDED)},
    "by head": {"mask": mask.where(lambda b, h, i, j: (j <= i) & ((i - j) % (h + 1) == 0))},
    "scale": {"mask": mask.causal(), "score": score.scaled_dot(0.9)},
    "alibi": {"mask": mask.causal(), "score": score.scaled_dot().then(score.alibi())},
    "sink": {"mask": mask.causal(), "weigh": weigh.sink(torch.tensor([0.0, 1.0, 2.0, 3.0]))},
    "sparsemax": {"mask": mask.causal(), "weigh": weigh.sparsemax()},
    "sigmoid": {"mask": mask.causal() & mask.window(40), "weigh": weigh.sigmoid(-1.0)},
    "blind": {"mask": mask.where(lambda b, h, i, j: (j < i) & (i % 7 != 0))},
}


class Case:
    """A layer and all its weights."""

    def __init__(self, kind: str, n_q: int = N, key_heads: int = HEADS) -> None:
        torch.manual_seed(1)
        options = {**dict.fromkeys(OPTIONS), **KINDS[kind]}
        q, k = 1.5 * torch.randn(BATCH, HEADS, n_q, WIDTH), torch.randn(BATCH, key_heads, N, WIDTH)
        self.take = Take(q, k, torch.randn(BATCH, key_heads, N, WIDTH), options, None, "")
        self.tokens = texts()
        self.looked = Looked(self.take, self.tokens, SEPARATORS, window=16)
        self.a = self.take.attended.weights[...].double()
        seen = options["mask"]
        shape = (BATCH, HEADS, n_q, N)
        self.seen = (
            torch.ones(shape, dtype=torch.bool) if seen is None else seen.dense(n_q, N, batch=BATCH, heads=HEADS)
        )
        self.uniform = self.seen / self.seen.sum(-1, keepdim=True).clamp(min=1).double()
        self.p, self.j = torch.arange(n_q)[:, None] + N - n_q, torch.arange(N)

    def mean(self, rows: Tensor, counted: Tensor) -> Tensor:
        rows, counted = torch.broadcast_tensors(rows, counted)
        return (rows * counted).sum(-1) / counted.sum(-1).clamp(min=1)

    def mass(self, pairs: Tensor, weights: Tensor) -> Tensor:
        """The mean mass under a mask, of rows that see one of its keys."""
        return self.mean((weights * pairs).sum(-1), (pairs & self.seen).any(-1))

    def equal(self, shift: int) -> Tensor:
        tokens = self.tokens
        n_q = self.take.q.shape[2]
        found = torch.zeros(BATCH, 1, n_q, N, dtype=torch.bool)
        for b in range(BATCH):
            for i in range(n_q):
                p = i + N - n_q
                for j in range(shift, p):
                    found[b, 0, i, j] = tokens[b][j - shift] == tokens[b][p]
        return found


@pytest.fixture(scope="module", params=[*KINDS, "cache", "grouped"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "cache":
        return Case("causal", n_q=70)
    return Case("causal", key_heads=2) if request.param == "grouped" else Case(request.param)


def check(scores: Any, found: Tensor, uniform: Tensor) -> None:
    torch.testing.assert_close(scores.found.double().expand_as(found), found.double(), **CLOSE)
    torch.testing.assert_close(scores.uniform.double().expand_as(uniform), uniform.double(), **CLOSE)
    assert float(found.double().std()) > 1e-4 or float(found.min()) in (0.0, 1.0)  # heads differ, or none of it


def test_entropy(case: Case) -> None:
    sees = case.seen.any(-1)
    rows = torch.special.entr(case.a).sum(-1)
    check(case.looked.entropy(), case.mean(rows, sees), case.mean(case.seen.sum(-1).clamp(min=1).log(), sees))
    several = case.seen.sum(-1) > 1
    share = rows / case.seen.sum(-1).clamp(min=2).log()
    check(case.looked.entropy_share(), case.mean(share, several), case.mean(torch.ones_like(share), several))


def test_distance(case: Case) -> None:
    def rows(weights: Tensor) -> Tensor:
        return (weights * (case.p - case.j).abs()).sum(-1) / weights.sum(-1).clamp(min=1e-30)

    sees = case.seen.any(-1)
    scores = case.looked.distance()
    # positions up to 256 times float32 weights
    torch.testing.assert_close(scores.found.double(), case.mean(rows(case.a), sees), rtol=1e-4, atol=2e-3)
    uniform = case.mean(rows(case.uniform), sees)
    torch.testing.assert_close(scores.uniform.double().expand_as(uniform), uniform, rtol=1e-4, atol=2e-3)


def test_confidence_and_the_commonest_offset(case: Case) -> None:
    sees = case.seen.any(-1)
    best = case.a.max(-1)
    check(
        case.looked.confidence(),
        case.mean(best.values, sees),
        case.mean(1 / case.seen.sum(-1).clamp(min=1).double(), sees),
    )
    scores, offset = case.looked.positional()
    offsets = best.indices - case.p[:, 0]
    for b in range(BATCH):
        for h in range(HEADS):
            here = offsets[b, h][sees[b, h]].tolist()
            common = max(here.count(o) for o in set(here))
            assert here.count(int(offset[b, h])) == common
            assert math.isclose(float(scores.found[b, h]), common / len(here), rel_tol=1e-5)


def test_mass_on_keys(case: Case) -> None:
    first = (case.j == 0) & (case.p > 0)
    check(case.looked.first(), case.mass(first, case.a), case.mass(first, case.uniform))
    is_one = torch.tensor([[token in SEPARATORS for token in text] for text in case.tokens])[:, None, None]
    is_one = is_one.expand_as(case.seen)
    check(case.looked.separator(), case.mass(is_one, case.a), case.mass(is_one, case.uniform))


@pytest.mark.parametrize(
    "name, pairs",
    [
        ("self_", lambda p, j: j == p),
        ("previous", lambda p, j: j == p - 1),
        ("next", lambda p, j: j == p + 1),
        ("window", lambda p, j: (p - j).abs() < 16),
    ],
)
def test_mass_near_the_diagonal(name: str, pairs: Callable[[Tensor, Tensor], Tensor], case: Case) -> None:
    where = pairs(case.p, case.j)
    check(getattr(case.looked, name)(), case.mass(where, case.a), case.mass(where, case.uniform))


@pytest.mark.parametrize("name, shift", [("duplicate", 0), ("induction", 1)])
def test_mass_on_equal_tokens(name: str, shift: int, case: Case) -> None:
    where = case.equal(shift)
    check(getattr(case.looked, name)(), case.mass(where, case.a), case.mass(where, case.uniform))


def test_what_keys_receive_and_the_largest_sink(case: Case) -> None:
    torch.testing.assert_close(case.looked.own.received.double(), case.a.sum(-2), **CLOSE)
    by = case.seen.sum(-2)
    share = torch.where(by >= 8, case.a.sum(-2) / by.clamp(min=1), 0.0)
    found, key = case.looked.sinks()
    torch.testing.assert_close(found.double(), share.max(-1).values, **CLOSE)
    torch.testing.assert_close(share.gather(-1, key[..., None])[..., 0], share.max(-1).values, **CLOSE)


def test_what_a_query_tells_about_its_key(case: Case) -> None:
    """Over pairs drawn by a query, each as likely, and its weights: I = sum p(i, j) log p(i, j) / (p(i) p(j))."""

    def information(weights: Tensor) -> Tensor:
        rows = weights.sum(-1, keepdim=True)
        sees = (rows > 0).sum(-2, keepdim=True)
        pairs = weights / rows.clamp(min=1e-300) / sees
        both = pairs.sum(-2, keepdim=True) * pairs.sum(-1, keepdim=True)
        return torch.where(pairs > 0, pairs * (pairs / both.clamp(min=1e-300)).log(), 0.0).sum((-2, -1))

    most = math.log(min(case.take.q.shape[2], N))
    scores = case.looked.alignment()
    uniform = information(case.uniform) / most
    torch.testing.assert_close(scores.uniform.double().expand_as(uniform), uniform, rtol=1e-3, atol=1e-5)
    if case.take.options["weigh"] is None:  # with a sink rows do not add up to 1, and entropy is of what there is
        torch.testing.assert_close(scores.found.double(), information(case.a) / most, rtol=1e-3, atol=1e-5)


def test_vertical_and_slashed_lines(case: Case) -> None:
    rows = case.a[:, :, -LAST:]
    total = rows.sum((-2, -1))
    columns = rows.sum(-2).topk(LINES).values.sum(-1) / total
    n = rows.shape[-2]
    diagonals = torch.stack([rows.diagonal(o, -2, -1).sum(-1) for o in range(-n + 1, N)], -1)
    vertical, slash = case.looked.lines()
    torch.testing.assert_close(vertical.double(), columns, **CLOSE)
    torch.testing.assert_close(slash.double(), diagonals.topk(LINES).values.sum(-1) / total, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_as_exactly_as_floats(dtype: torch.dtype) -> None:
    n = 3000  # half precision cannot tell the last places apart
    q = torch.zeros(1, 1, n, 64)
    angles = torch.arange(n)[:, None] * 0.9 ** torch.arange(32)
    q[0, 0] = 4 * torch.cat((angles.cos(), angles.sin()), -1)
    k = q.roll(-1, 2)  # a key has what the next query asks for
    options = {**dict.fromkeys(OPTIONS), "mask": mask.causal()}
    halves = Take(q.to(dtype), k.to(dtype), k.to(dtype), options, None, "")
    floats = Take(halves.q.float(), halves.k.float(), halves.v.float(), options, None, "")
    found, right = (Looked(take) for take in (halves, floats))
    assert float(right.previous().found) > 0.9 and float(right.distance().found) < 20
    for name in ("distance", "entropy", "first", "previous", "alignment", "confidence"):
        a, b = (getattr(looked, name)().found for looked in (found, right))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # the same sums, of the same numbers
