"""What a memory of fixed size loses as a text grows, and attention, which keeps every token, does not.

n tokens with m numbers each, read into a state of d·m numbers (retention, linear attention: S = sum_j k_j v_j', d·m):

    the best linear reading of S misses 1 - d/n of the values, as soon as n > d
    reading with q = k_t, keys of length 1 in random directions, misses (n - 1)/d: what other keys share with it
    any encoder of d numbers: squared correlations with independent features of the text add up to at most d

For the last line, a word of n letters out of A has n(A - 1) such features: a network that reads d numbers linearly gets
at most d / n(A - 1) of them. Softmax over all tokens with scores β for the right one and 0 for the others gives it
a = 1/(1 + (n - 1) exp(-β)) of the weight and misses (1 - a)² n/(n - 1), which stays small if β grows as log n.

Information is not what is short: a float64 has 53 bits, and holds 11 letters out of 26 without a mistake. What is short
is what can be read with products and sums.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from regard.attention import attention
from regard.draw.charts import Panel, Series
from regard.mechanism.state import delta, retention
from regard.models.rnn_translation import RecurrentTranslator
from regard.spec import score
from regard.theory.experiment import Progress, check_settings
from regard.theory.outcome import Claim, Outcome

LENGTHS = (2, 4, 8, 16, 32, 64, 128)
ENCODED = (1, 2, 4, 8, 16)  # lengths of words for the recurrent encoder
LETTERS = 8  # of the alphabet whose words the recurrent encoder reads
WORD = 26  # letters of the alphabet that is packed into numbers
PER_NUMBER = 11  # 26^11 < 2^53
FIVE = "five standard errors"


@dataclass(frozen=True, eq=False)
class Read:
    """What is missed, for each length, relative to what there was, and the error of that as an estimate."""

    missed: Tensor
    error: Tensor


@check_settings
def bottleneck(
    *,
    width: int = 16,
    numbers: int = 4,
    sharpness: float = 4.0,
    samples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Random values are stored and read again: from a state of fixed size, from a recurrent encoder, by attention.

    `width` is d, `numbers` is m; for attention β = log n + `sharpness`.

    >>> bottleneck(width=8, samples=200).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    best = _each(lambda n: _best_reading(n, width, numbers, samples, random))
    told(0.3)
    direct = _each(lambda n: _direct_reading(n, width, numbers, samples // 4, random))
    told(0.6)
    looked = _each(lambda n: _attention_reading(n, numbers, sharpness, samples // 4, random))
    replaced = torch.tensor([_replacing(n, width, numbers, random) for n in LENGTHS])
    told(0.8)
    states = torch.tensor([_encoder(n, width, samples, seed) for n in ENCODED], dtype=torch.float64)
    packed = torch.tensor([_packed(n, width, random) for n in (width, 2 * width, PER_NUMBER * width)])
    told(1.0)
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    found = {
        "best_reading": best.missed,
        "direct_reading": direct.missed,
        "attention": looked.missed,
        "delta_rule": replaced,
        "encoder": states,
        "packed": packed,
    }
    return Outcome(
        name="bottleneck",
        claims=(
            *_of_states(best, direct, lengths, width, samples * numbers),
            _of_attention(looked, lengths, sharpness),
            Claim(
                "a recurrent encoder: of n(A - 1) features of a word, a linear reading gets d at most",
                _readable(torch.tensor(ENCODED, dtype=torch.float64), width),
                states,
                within=1e-9,
                because="rounding in float64; the bound holds for any sample",
                relation="at most",
            ),
            Claim(
                "d numbers hold words of d, 2d and 11d letters without a mistake",
                torch.ones(3),
                packed,
                within=0.0,
                because="26^11 is below 2^53, so that all of it is exact",
            ),
        ),
        wrong=_wrong(found, lengths, width, numbers),
        panels=_panels(found, lengths, width, sharpness),
        settings={"width": width, "numbers": numbers, "sharpness": sharpness, "samples": samples, "seed": seed},
        data=found,
    )


def _each(read: Callable[[int], tuple[float, float]]) -> Read:
    missed, error = zip(*(read(n) for n in LENGTHS), strict=True)
    return Read(torch.tensor(missed, dtype=torch.float64), torch.tensor(error, dtype=torch.float64))


def _normal(*size: int, random: torch.Generator) -> Tensor:
    return torch.randn(size, generator=random, dtype=torch.float64)


# ---- a state of fixed size ----------------------------------------------------------------------------------
def _best_reading(n: int, width: int, numbers: int, samples: int, random: torch.Generator) -> tuple[float, float]:
    """The same keys for all samples; the reading is fitted to the states of these samples, by least squares."""
    k = normalize(_normal(n, width, random=random), dim=-1)
    v = _normal(samples, n, numbers, random=random)
    state = retention(torch.zeros_like(k).expand(samples, -1, -1), k.expand(samples, -1, -1), v, 1.0)[1]
    held, wanted = state.mT.reshape(-1, width), v.mT.reshape(-1, n)  # a column of values is a sample of its own
    basis = _basis(held)
    missed = wanted - basis @ (basis.mT @ wanted)
    rows, free = len(held), max(n - width, 0)
    spread = math.sqrt(2 / (rows * free)) * free / n if free else 0.0
    return float(missed.square().sum() / wanted.square().sum()), spread + math.sqrt(2 / (rows * n)) * free / n


def _basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the same as these columns."""
    left, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
    return left[:, sizes > 1e-10 * sizes[0]]  # type: ignore[no-any-return]  # torch's own


def _direct_reading(n: int, width: int, numbers: int, draws: int, random: torch.Generator) -> tuple[float, float]:
    """Each draw has its own keys; after all tokens are in, each is asked for by its key."""
    k = normalize(_normal(draws, n, width, random=random), dim=-1)
    v = _normal(draws, n, numbers, random=random)
    state = retention(k, k, v, 1.0)[1]
    return _mean((k @ state - v).square().mean((1, 2)))


def _replacing(n: int, width: int, numbers: int, random: torch.Generator) -> float:
    """The same by the delta rule, which puts a value in the place of what its key gave before."""
    k = normalize(_normal(50, n, width, random=random), dim=-1)
    v = _normal(50, n, numbers, random=random)
    state = delta(k, k, v, torch.ones(50, n, dtype=torch.float64))[1]
    return _mean((k @ state - v).square().mean((1, 2)))[0]


def _mean(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


# ---- all tokens kept ----------------------------------------------------------------------------------------
def _attention_reading(
    n: int, numbers: int, sharpness: float, draws: int, random: torch.Generator
) -> tuple[float, float]:
    """Keys are n directions at right angles; each token is asked for by its own."""
    beta = math.log(n) + sharpness
    k = torch.eye(n, dtype=torch.float64).expand(draws, -1, -1)
    v = _normal(draws, n, numbers, random=random)
    read = attention(k, k, v, score=score.scaled_dot(beta))
    return _mean((read - v).square().mean((1, 2)))


# ---- a recurrent encoder ------------------------------------------------------------------------------------
@torch.no_grad()
def _encoder(n: int, width: int, samples: int, seed: int) -> float:
    """The share of all features of words that a linear reading of the last states gets: the mean squared canonical
    correlation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RecurrentTranslator((LETTERS, LETTERS), width=width, attention=None).double()
    words = torch.randint(0, LETTERS, (4 * samples, n), generator=torch.Generator().manual_seed(seed))
    last = model.reading(words).last
    features = one_hot(words, LETTERS).double()[..., 1:].flatten(1)
    states, wanted = (_basis(x - x.mean(0)) for x in (last, features))
    return float((states.mT @ wanted).square().sum() / wanted.shape[1])


def _readable(letters: Tensor, width: int) -> Tensor:
    return (width / (letters * (LETTERS - 1))).clamp(max=1)


# ---- numbers that hold words --------------------------------------------------------------------------------
def _packed(n: int, width: int, random: torch.Generator) -> float:
    """Words of n letters in `width` float64 numbers, each a number to the base 26, and out again: the share that is
    right."""
    words = torch.randint(0, WORD, (200, PER_NUMBER * width), generator=random)
    words[:, n:] = 0
    places = torch.tensor([WORD**place for place in range(PER_NUMBER)], dtype=torch.float64)
    vector = (words.reshape(200, width, PER_NUMBER).double() * places).sum(-1)
    again = (vector.unsqueeze(-1) / places).floor() % WORD
    return float((again.long().reshape(200, -1) == words).all(-1).double().mean())


# ---- what is claimed ----------------------------------------------------------------------------------------
def _of_states(best: Read, direct: Read, lengths: Tensor, width: int, rows: int) -> tuple[Claim, Claim]:
    fitted = (1 - width / lengths).clamp(min=0) * (1 - width / rows)
    return (
        Claim(
            "a state of d numbers a channel: the best linear reading misses 1 - d/n of the values",
            fitted,
            best.missed,
            within=5 * float(best.error.max()) + 1e-12,
            because=f"{FIVE}; the reading is fitted to the sample, which the formula accounts for by 1 - d/samples",
        ),
        Claim(
            "read by the key itself, it misses (n - 1)/d",
            torch.zeros(len(lengths)),
            (direct.missed - (lengths - 1) / width) / direct.error,
            within=5.0,
            because=f"in standard errors: {FIVE}",
        ),
    )


def _missed_by_attention(lengths: Tensor, sharpness: float) -> Tensor:
    """(1 - a)² n/(n - 1) with exp(-β) = exp(-sharpness) / n."""
    rest = (lengths - 1) * math.exp(-sharpness) / lengths
    return (rest / (1 + rest)).square() * lengths / (lengths - 1)


def _of_attention(looked: Read, lengths: Tensor, sharpness: float) -> Claim:
    return Claim(
        "attention over all tokens misses (1 - a)² n/(n - 1), at every length",
        torch.zeros(len(lengths)),
        (looked.missed - _missed_by_attention(lengths, sharpness)) / looked.error,
        within=5.0,
        because=f"in standard errors: {FIVE}",
    )


def _wrong(found: dict[str, Tensor], lengths: Tensor, width: int, numbers: int) -> tuple[Claim, ...]:
    few = lengths <= width
    return (
        Claim(
            "d·m numbers are full only after d·m tokens",
            (1 - width * numbers / lengths).clamp(min=0),
            found["best_reading"],
            within=0.1,
            because="a tenth, far above chance",
        ),
        Claim(
            "as long as n <= d, each token is read by its key without loss",
            torch.zeros(int(few.sum())),
            found["direct_reading"][few],
            within=0.05,
            because="a twentieth; at n = d it misses nearly as much as there is",
        ),
        Claim(
            "d numbers cannot hold a long text without losing information: beyond d letters none is right",
            torch.zeros(2),
            found["packed"][1:],
            within=0.1,
            because="a tenth",
        ),
    )


def _panels(found: dict[str, Tensor], lengths: Tensor, width: int, sharpness: float) -> tuple[Panel, ...]:
    words = torch.tensor(ENCODED, dtype=torch.float64)
    return (
        Panel(
            "What is missed",
            "tokens",
            "share of the values",
            [
                Series("state, read as well as can be", lengths, found["best_reading"], "points", of="state"),
                Series("1 - d/n", lengths, (1 - width / lengths).clamp(min=0), of="state"),
                Series("attention over all", lengths, found["attention"], "points", of="attention"),
                Series("(1 - a)² n/(n - 1)", lengths, _missed_by_attention(lengths, sharpness), of="attention"),
            ],
            log_x=True,
        ),
        Panel(
            "Read by the key",
            "tokens",
            "missed, relative to the values",
            [
                Series("sum of all (retention)", lengths, found["direct_reading"], "points", of="sum"),
                Series("(n - 1)/d", lengths, (lengths - 1) / width, of="sum"),
                Series("replacing (delta rule)", lengths, found["delta_rule"], "points"),
                Series("attention over all", lengths, found["attention"], "points"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"A recurrent encoder of width {width}",
            "letters of a word",
            "share of its features",
            [
                Series("read from the last state", words, found["encoder"], "points"),
                Series("at most d / n(A - 1)", words, _readable(words, width)),
            ],
            log_x=True,
        ),
    )
