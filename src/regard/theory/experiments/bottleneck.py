"""The bottleneck of a fixed-size state: its error grows with the sequence, and the error of attention does not.

n tokens with m numbers each are stored in a state of d·m numbers (retention, linear attention: S = sum_j k_j v_jᵀ):

    the best linear readout of S misses the fraction 1 - d/n of the values if n > d
    the readout with q = k_t, for random keys of norm 1, misses (n - 1)/d, by the overlap with the other keys
    any encoder of d numbers: its squared correlations with independent features of the text sum to at most d

For the last line, a word of n letters from an alphabet of A has n(A - 1) such features, so a linear readout of d
numbers recovers at most d / n(A - 1) of them. Softmax over all tokens, with the score β for the right token and 0 for
the others, gives it the weight a = 1/(1 + (n - 1) exp(-β)) and misses (1 - a)² n/(n - 1), which is small if β grows as
log n.

The limit is not information: a float64 has 53 bits and stores 11 letters out of 26 exactly. The limit is the linear
readout.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from regard import score
from regard.attention import attention
from regard.mechanisms.linear_recurrence import delta_rule, retention
from regard.models.rnn_translation import RecurrentTranslator
from regard.plot.chart_panels import Panel, Series
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult
from regard.theory.seeding import fork_rng_with_seed

LENGTHS = (2, 4, 8, 16, 32, 64, 128)
WORD_LENGTHS = (1, 2, 4, 8, 16)  # lengths of words for the recurrent encoder
ALPHABET_SIZE = 8  # for the recurrent encoder
PACKED_ALPHABET_SIZE = 26  # for words packed into numbers
LETTERS_PER_FLOAT = 11  # 26^11 < 2^53
FIVE_SE_REASON = "five standard errors"


@dataclass(frozen=True, eq=False)
class ReadoutError:
    """The squared error for each length, relative to the values, and its standard error."""

    missed_fraction: Tensor
    standard_error: Tensor


@check_settings
def bottleneck(
    *,
    state_dim: int = 16,
    value_dim: int = 4,
    logit_margin: float = 4.0,
    num_samples: int = 1000,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Store random values and read them back: from a fixed-size state, from a recurrent encoder, by attention.

    `state_dim` is d, `value_dim` is m, and attention has β = log n + `logit_margin`. `num_samples` is the number of
    random values.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> bottleneck(state_dim=8, num_samples=200).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    best = _for_each_length(lambda n: _least_squares_readout_error(n, state_dim, value_dim, num_samples, random))
    report(0.3)
    direct = _for_each_length(lambda n: _key_readout_error(n, state_dim, value_dim, num_samples // 4, random))
    report(0.6)
    attended = _for_each_length(
        lambda n: _attention_readout_error(n, value_dim, logit_margin, num_samples // 4, random)
    )
    delta = torch.tensor([_delta_rule_readout(n, state_dim, value_dim, random) for n in LENGTHS])
    report(0.8)
    states = torch.tensor(
        [_encoder_readout(n, state_dim, num_samples, seed) for n in WORD_LENGTHS], dtype=torch.float64
    )
    packed = torch.tensor(
        [_packed_accuracy(n, state_dim, random) for n in (state_dim, 2 * state_dim, LETTERS_PER_FLOAT * state_dim)]
    )
    report(1.0)
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    data = {
        "least_squares_missed": best.missed_fraction,
        "key_readout_missed": direct.missed_fraction,
        "attention_missed": attended.missed_fraction,
        "delta_rule_missed": delta,
        "encoder_fraction": states,
        "packed_accuracy": packed,
    }
    return ExperimentResult(
        name="bottleneck",
        claims=(
            *_state_claims(best, direct, lengths, state_dim, num_samples * value_dim),
            _attention_claim(attended, lengths, logit_margin),
            Claim(
                "a recurrent encoder: a linear readout recovers at most d of the n(A - 1) features of a word",
                _readable_fraction(torch.tensor(WORD_LENGTHS, dtype=torch.float64), state_dim),
                states,
                tolerance=1e-9,
                tolerance_reason="rounding in float64; the bound holds for any sample",
                relation="at most",
            ),
            Claim(
                "d numbers hold words of d, 2d and 11d letters without a mistake",
                torch.ones(3),
                packed,
                tolerance=0.0,
                tolerance_reason="26^11 is below 2^53, so the computation is exact",
            ),
        ),
        false_claims=_false_claims(data, lengths, state_dim, value_dim),
        panels=_panels(data, lengths, state_dim, logit_margin),
        settings={
            "state_dim": state_dim,
            "value_dim": value_dim,
            "logit_margin": logit_margin,
            "num_samples": num_samples,
            "seed": seed,
        },
        data=data,
    )


def _for_each_length(readout: Callable[[int], tuple[float, float]]) -> ReadoutError:
    missed, error = zip(*(readout(n) for n in LENGTHS), strict=True)
    return ReadoutError(torch.tensor(missed, dtype=torch.float64), torch.tensor(error, dtype=torch.float64))


def _randn(*size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64)


# ---- a state of fixed size ----------------------------------------------------------------------------------
def _least_squares_readout_error(
    n: int, state_dim: int, value_dim: int, num_samples: int, generator: torch.Generator
) -> tuple[float, float]:
    """Return the error of a least-squares readout, fitted to samples with the same keys, and its standard error."""
    k = normalize(_randn(n, state_dim, generator=generator), dim=-1)
    v = _randn(num_samples, n, value_dim, generator=generator)
    state = retention(torch.zeros_like(k).expand(num_samples, -1, -1), k.expand(num_samples, -1, -1), v, 1.0)[1]
    states, targets = state.mT.reshape(-1, state_dim), v.mT.reshape(-1, n)  # every column of values is a sample
    basis = _basis(states)
    residual = targets - basis @ (basis.mT @ targets)
    rows, free = len(states), max(n - state_dim, 0)
    std = math.sqrt(2 / (rows * free)) * free / n if free else 0.0
    return float(residual.square().sum() / targets.square().sum()), std + math.sqrt(2 / (rows * n)) * free / n


def _basis(rows: Tensor) -> Tensor:
    """Return an orthonormal basis of the column space."""
    left, singular_values, _ = torch.linalg.svd(rows, full_matrices=False)
    output: Tensor = left[:, singular_values > 1e-10 * singular_values[0]]
    return output


def _key_readout_error(
    n: int, state_dim: int, value_dim: int, num_draws: int, generator: torch.Generator
) -> tuple[float, float]:
    """Return the error of reading each token with its own key, and its standard error; keys are random per draw."""
    k = normalize(_randn(num_draws, n, state_dim, generator=generator), dim=-1)
    v = _randn(num_draws, n, value_dim, generator=generator)
    state = retention(k, k, v, 1.0)[1]
    return _mean_and_standard_error((k @ state - v).square().mean((1, 2)))


def _delta_rule_readout(n: int, state_dim: int, value_dim: int, generator: torch.Generator) -> float:
    """Return the error of reading each token with its own key from the state of the delta rule."""
    k = normalize(_randn(50, n, state_dim, generator=generator), dim=-1)
    v = _randn(50, n, value_dim, generator=generator)
    state = delta_rule(k, k, v, torch.ones(50, n, dtype=torch.float64))[1]
    return _mean_and_standard_error((k @ state - v).square().mean((1, 2)))[0]


def _mean_and_standard_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


# ---- attention over all tokens ------------------------------------------------------------------------------
def _attention_readout_error(
    n: int, value_dim: int, logit_margin: float, num_draws: int, generator: torch.Generator
) -> tuple[float, float]:
    """Return the error of attention with orthonormal keys, in which each token is queried by its key."""
    beta = math.log(n) + logit_margin
    k = torch.eye(n, dtype=torch.float64).expand(num_draws, -1, -1)
    v = _randn(num_draws, n, value_dim, generator=generator)
    output = attention(k, k, v, score=score.scaled_dot(beta))
    return _mean_and_standard_error((output - v).square().mean((1, 2)))


# ---- a recurrent encoder ------------------------------------------------------------------------------------
@torch.no_grad()
def _encoder_readout(n: int, state_dim: int, num_samples: int, seed: int) -> float:
    """Return the fraction of word features that a linear readout of the final state recovers.

    The fraction is the mean squared canonical correlation.
    """
    with fork_rng_with_seed(seed):
        model = RecurrentTranslator((ALPHABET_SIZE, ALPHABET_SIZE), hidden_size=state_dim, attention=None).double()
    words = torch.randint(0, ALPHABET_SIZE, (4 * num_samples, n), generator=torch.Generator().manual_seed(seed))
    final_states = model.encode_source(words).final_state
    features = one_hot(words, ALPHABET_SIZE).double()[..., 1:].flatten(1)
    state_basis, feature_basis = (_basis(x - x.mean(0)) for x in (final_states, features))
    return float((state_basis.mT @ feature_basis).square().sum() / feature_basis.shape[1])


def _readable_fraction(num_letters: Tensor, state_dim: int) -> Tensor:
    return (state_dim / (num_letters * (ALPHABET_SIZE - 1))).clamp(max=1)


# ---- words packed into numbers ------------------------------------------------------------------------------
def _packed_accuracy(n: int, state_dim: int, generator: torch.Generator) -> float:
    """Pack words of n letters into `state_dim` floats in base 26; return the fraction that unpacks correctly."""
    words = torch.randint(0, PACKED_ALPHABET_SIZE, (200, LETTERS_PER_FLOAT * state_dim), generator=generator)
    words[:, n:] = 0
    powers = torch.tensor([PACKED_ALPHABET_SIZE**power for power in range(LETTERS_PER_FLOAT)], dtype=torch.float64)
    packed = (words.reshape(200, state_dim, LETTERS_PER_FLOAT).double() * powers).sum(-1)
    unpacked = (packed.unsqueeze(-1) / powers).floor() % PACKED_ALPHABET_SIZE
    return float((unpacked.long().reshape(200, -1) == words).all(-1).double().mean())


# ---- claims and charts --------------------------------------------------------------------------------------
def _state_claims(
    least_squares: ReadoutError, by_key: ReadoutError, lengths: Tensor, state_dim: int, num_rows: int
) -> tuple[Claim, Claim]:
    fitted = (1 - state_dim / lengths).clamp(min=0) * (1 - state_dim / num_rows)
    return (
        Claim(
            "a state of d numbers per channel: the best linear readout misses 1 - d/n of the values",
            fitted,
            least_squares.missed_fraction,
            tolerance=5 * float(least_squares.standard_error.max()) + 1e-12,
            tolerance_reason=f"{FIVE_SE_REASON}; the fit to the sample adds the factor 1 - d/samples to the formula",
        ),
        Claim(
            "a readout with the key itself misses (n - 1)/d",
            torch.zeros(len(lengths)),
            (by_key.missed_fraction - (lengths - 1) / state_dim) / by_key.standard_error,
            tolerance=5.0,
            tolerance_reason=f"in standard errors: {FIVE_SE_REASON}",
        ),
    )


def _attention_missed_fraction(lengths: Tensor, logit_margin: float) -> Tensor:
    """Return (1 - a)² n/(n - 1) with exp(-β) = exp(-logit_margin) / n."""
    rest = (lengths - 1) * math.exp(-logit_margin) / lengths
    return (rest / (1 + rest)).square() * lengths / (lengths - 1)


def _attention_claim(readout: ReadoutError, lengths: Tensor, logit_margin: float) -> Claim:
    return Claim(
        "attention over all tokens misses (1 - a)² n/(n - 1), at every length",
        torch.zeros(len(lengths)),
        (readout.missed_fraction - _attention_missed_fraction(lengths, logit_margin)) / readout.standard_error,
        tolerance=5.0,
        tolerance_reason=f"in standard errors: {FIVE_SE_REASON}",
    )


def _false_claims(data: dict[str, Tensor], lengths: Tensor, state_dim: int, value_dim: int) -> tuple[Claim, ...]:
    is_short = lengths <= state_dim
    return (
        Claim(
            "d·m numbers are full only after d·m tokens",
            (1 - state_dim * value_dim / lengths).clamp(min=0),
            data["least_squares_missed"],
            tolerance=0.1,
            tolerance_reason="a tenth, far above chance",
        ),
        Claim(
            "if n <= d, each token is read with its key without loss",
            torch.zeros(int(is_short.sum())),
            data["key_readout_missed"][is_short],
            tolerance=0.05,
            tolerance_reason="a twentieth; at n = d the error is nearly as large as the values",
        ),
        Claim(
            "d numbers cannot store a long text: no word of more than d letters is recovered",
            torch.zeros(2),
            data["packed_accuracy"][1:],
            tolerance=0.1,
            tolerance_reason="a tenth",
        ),
    )


def _panels(data: dict[str, Tensor], lengths: Tensor, state_dim: int, logit_margin: float) -> tuple[Panel, ...]:
    words = torch.tensor(WORD_LENGTHS, dtype=torch.float64)
    remaining = float(data["encoder_fraction"][-1])
    lost, attended = float(data["least_squares_missed"][-1]), float(data["attention_missed"][-1])
    return (
        Panel(
            f"A state of {state_dim} numbers misses {lost:.0%} of {int(lengths[-1])} values, attention {attended:.2%}",
            "tokens",
            "missed fraction",
            [
                Series(
                    "state, best readout",
                    lengths,
                    data["least_squares_missed"],
                    "points",
                    color_group="state",
                ),
                Series("1 - d/n", lengths, (1 - state_dim / lengths).clamp(min=0), color_group="state"),
                Series("attention over all", lengths, data["attention_missed"], "points", color_group="attention"),
                Series(
                    "(1 - a)² n/(n - 1)",
                    lengths,
                    _attention_missed_fraction(lengths, logit_margin),
                    color_group="attention",
                ),
            ],
            log_x=True,
        ),
        Panel(
            f"Read with the key, the error is {float(data['key_readout_missed'][-1]):.0f} times the values",
            "tokens",
            "relative error",
            [
                Series("sum (retention)", lengths, data["key_readout_missed"], "points", color_group="sum"),
                Series("(n - 1)/d", lengths, (lengths - 1) / state_dim, color_group="sum"),
                Series("delta rule", lengths, data["delta_rule_missed"], "points"),
                Series("attention over all", lengths, data["attention_missed"], "points"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"A recurrent state of {state_dim} numbers keeps {remaining:.0%} of {WORD_LENGTHS[-1]} letters",
            "letters of a word",
            "fraction of features",
            [
                Series("read from the state", words, data["encoder_fraction"], "points"),
                Series("at most d / n(A - 1)", words, _readable_fraction(words, state_dim)),
            ],
            log_x=True,
        ),
    )
