"""Symmetries of attention: permutations, a shift of all keys, a change of basis of queries and keys.

For permutations P of the queries and R of the keys, Attention(PQ, RK, RV; P M Rᵀ) = P Attention(Q, K, V; M), with the
mask M permuted too. Self-attention without a mask and without positions therefore maps a permuted sequence to the
permuted output; a causal mask breaks this symmetry. Softmax depends only on differences of scores, so adding one vector
to all keys changes nothing. Q B and K B⁻ᵀ have the scores of Q and K. `regard.theory` has checks of such properties
for any layer; here they run on correct layers and on layers with bugs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard import mask, score
from regard.attention import attention, attention_with_weights
from regard.errors import ArgumentError
from regard.nn import BlockConfig, Decoder, Encoder, MultiHeadAttention, RotaryEmbedding
from regard.plot.chart_panels import ImagePanel, Panel, Series
from regard.theory import buggy_layers
from regard.theory.check_result import CheckResult
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult
from regard.theory.layer_checks import (
    check_batch_independence,
    check_causality,
    check_equivariance,
    check_normalized,
    position_influence,
)
from regard.theory.seeding import fork_rng_with_seed

ROUNDING_REASON = "rounding in float64, of sums of some dozens of products"


@check_settings
def equivariance(
    *, num_tokens: int = 16, embed_dim: int = 16, seed: int = 0, progress: ProgressCallback | None = None
) -> ExperimentResult:
    """Test the symmetries of attention, and the checks for them on correct layers and on layers with bugs.

    `num_tokens` is the sequence length, `embed_dim` the dimension of the vectors.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> equivariance(num_tokens=8, embed_dim=8).is_consistent
    True
    """
    if embed_dim % 4:
        raise ArgumentError(f"embed_dim must be a multiple of 4, for two heads with rotary positions; got {embed_dim}.")
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    q, k, v = (torch.randn(num_tokens, embed_dim, generator=random, dtype=torch.float64) for _ in range(3))
    identities = _identity_claims(q, k, v, random)
    report(0.1)
    lengths = (2, num_tokens - 1, num_tokens, num_tokens + 1)
    correct = _check_correct_layers(embed_dim, lengths, seed)
    buggy = _check_buggy_layers(embed_dim, num_tokens, lengths, q @ k.mT)
    report(0.8)
    x = torch.randn(1, num_tokens, embed_dim, generator=random, dtype=torch.float64)
    maps = {name: position_influence(layer, x, seed=seed) for name, layer in _plotted_layers(num_tokens).items()}
    report(1.0)
    reordered = check_equivariance(lambda y: attention(y, y, y, mask=mask.causal()), embed_dim, lengths=lengths)
    reversed_mask = buggy["reversed"]
    return ExperimentResult(
        name="equivariance",
        claims=(*identities, *_correct_layer_claims(correct), *_bug_claims(buggy, num_tokens)),
        false_claims=(
            Claim(
                "self-attention commutes with reordering, also under a causal mask",
                0.0,
                reordered.max_error,
                reordered.tolerance,
                ROUNDING_REASON,
            ),
            Claim(
                "a mask that hides past tokens from future ones is causal",
                0.0,
                reversed_mask.max_error,
                reversed_mask.tolerance,
                ROUNDING_REASON,
            ),
        ),
        panels=_panels(maps, num_tokens, embed_dim),
        settings={"num_tokens": num_tokens, "embed_dim": embed_dim, "seed": seed},
        data={**maps, "errors_correct": _errors(correct), "errors_buggy": _errors(buggy)},
    )


def _identity_claims(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> tuple[Claim, ...]:
    """Return claims that two calls of attention agree."""
    n, d = q.shape
    q_order, k_order = (torch.randperm(n, generator=generator) for _ in range(2))
    visible = torch.rand(n, n, generator=generator) < 0.6
    shift = 3 * torch.randn(d, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0]
    basis = basis @ torch.diag(torch.linspace(0.5, 2.0, d, dtype=torch.float64))
    output = attention(q, k, v)
    best_key = attention_with_weights(q, k, v, score=score.dot()).weights.to_dense().argmax(-1)
    rounding = 1e-13 * float(v.abs().max())

    def identity(
        statement: str, expected: Tensor, actual: Tensor, tolerance: float = rounding, reason: str = ROUNDING_REASON
    ) -> Claim:
        return Claim(statement, expected, actual, tolerance, reason)

    permuted = attention(q[q_order], k[k_order], v[k_order], mask=visible[q_order][:, k_order])
    inverse = torch.linalg.inv(basis).mT
    low, high = v.amin(0), v.amax(0)
    return (
        identity("permutations P of queries and R of keys: Attention(PQ, RK, RV; PMRᵀ) = P Attention(Q, K, V; M)",
                 attention(q, k, v, mask=visible)[q_order], permuted),
        identity("adding one vector to all keys changes nothing", output, attention(q, k + shift, v), 10 * rounding),
        identity("Q B and K B⁻ᵀ give the output of Q and K", output, attention(q @ basis, k @ inverse, v)),
        identity("repeating every key changes nothing", output, attention(q, torch.cat([k, k]), torch.cat([v, v]))),
        identity("a scale of 0 gives the mean of the values",
                 v.mean(0).expand_as(output), attention(q, k, v, score=score.scaled_dot(0.0))),
        identity("an infinite scale gives the value of the best key",
                 v[best_key], attention(q, k, v, score=score.scaled_dot(1e8)),
                 reason="rounding; no two scores differ by less than 1e-7"),
        Claim("outputs do not exceed the largest value of each coordinate",
              high.expand_as(output), output, rounding, ROUNDING_REASON, "at most"),
        Claim("outputs are not below the smallest value of each coordinate",
              low.expand_as(output), output, rounding, ROUNDING_REASON, "at least"),
    )  # fmt: skip


def _check_correct_layers(embed_dim: int, lengths: tuple[int, ...], seed: int) -> dict[str, CheckResult]:
    """Check correct layers, each with the check that it must pass."""
    config = BlockConfig(embed_dim=embed_dim, num_heads=2)
    with fork_rng_with_seed(seed):
        layers: dict[str, nn.Module] = {
            "MultiHeadAttention": MultiHeadAttention(embed_dim, 2),
            "torch's MultiheadAttention": nn.MultiheadAttention(embed_dim, 2, batch_first=True),
            "Encoder": Encoder(config, 2),
            "Decoder": Decoder(config, 2),
            "Decoder with rotary positions": Decoder(config, 2, position_encoding=RotaryEmbedding(embed_dim // 2)),
        }
    results = {}
    for name, layer in layers.items():
        check = check_causality if "Decoder" in name else check_equivariance
        results[name] = check(layer.double().eval(), embed_dim, lengths=lengths)
        results[f"{name}, batch"] = check_batch_independence(layer, embed_dim, lengths=lengths)
    x = torch.randn(lengths[-1], embed_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weights = attention_with_weights(x, x, x, mask=mask.causal()).weights
    results["weights of regard.attention_with_weights"] = check_normalized(weights)
    return results


def _check_buggy_layers(embed_dim: int, num_tokens: int, lengths: tuple[int, ...], s: Tensor) -> dict[str, CheckResult]:
    results = {
        name: check_causality(bug, embed_dim, lengths=lengths)
        for name, bug in buggy_layers.causal_leaks(num_tokens).items()
    }
    for name, bug in buggy_layers.order_dependent_layers().items():
        results[name] = check_equivariance(bug, embed_dim, lengths=lengths)
    for name, bug in buggy_layers.batch_mixing_layers().items():
        results[name] = check_batch_independence(bug, embed_dim, lengths=lengths)
    return {**results, **{name: check_normalized(a) for name, a in buggy_layers.unnormalized_weights(s).items()}}


def _errors(results: dict[str, CheckResult]) -> Tensor:
    return torch.tensor([result.max_error for result in results.values()], dtype=torch.float64)


def _correct_layer_claims(results: dict[str, CheckResult]) -> tuple[Claim, ...]:
    tolerance = max(result.tolerance for result in results.values())
    statement = f"{len(results)} checks of correct layers pass: {', '.join(results)}"
    return (
        Claim(statement, torch.zeros(len(results)), _errors(results), tolerance, "1000 times the epsilon of float64"),
    )


def _bug_claims(results: dict[str, CheckResult], num_tokens: int) -> tuple[Claim, ...]:
    is_detected = [float(not result.holds) for result in results.values()]
    pair_violations = results["one pair"].violations
    leaking_lengths = [violation.seq_len for violation in results["only at one length"].violations]
    exact = "integers are exact"
    return (
        Claim(f"checks detect each of {len(results)} bugs", torch.ones(len(is_detected)), is_detected, 0.0, exact),
        Claim(
            "the check reports exactly the output and the input of the pair that leaks",
            [num_tokens // 2, num_tokens // 2 + 1, 1.0],
            _largest_leak(pair_violations),
            0.0,
            exact,
        ),
        Claim(
            "the leak at one length is detected at that length only",
            [float(num_tokens), float(num_tokens)],
            [min(leaking_lengths, default=0), max(leaking_lengths, default=0)],
            0.0,
            exact,
        ),
    )


def _largest_leak(violations: Any) -> list[float]:
    """Return output and input of the largest leak, and the number of pairs that leak."""
    pairs = {(violation.output_index, violation.input_index) for violation in violations}
    if not violations:
        return [-1.0, -1.0, 0.0]
    return [float(violations[0].output_index), float(violations[0].input_index), float(len(pairs))]


def _plotted_layers(num_tokens: int) -> dict[str, Any]:
    leaks = buggy_layers.causal_leaks(num_tokens)
    return {
        "right": lambda x: attention(x, x, x, mask=mask.causal()),
        "off by one": leaks["off by one"],
        "one pair": leaks["one pair"],
    }


def _panels(maps: dict[str, Tensor], num_tokens: int, embed_dim: int) -> tuple[Panel | ImagePanel, ...]:
    titles = {
        "right": "A causal layer: no leak",
        "off by one": "A mask off by one leaks the next token",
        "one pair": "A leak of one pair is one cell",
    }
    # on a logarithmic scale small leaks are visible too
    sizes = {name: changes.clamp(min=1e-16).log10() for name, changes in maps.items()}
    images = [ImagePanel(titles[name], "input that changes", "output (log₁₀ change)", sizes[name]) for name in sizes]
    lengths = list(range(max(2, num_tokens - 4), num_tokens + 5))
    bug = buggy_layers.causal_leaks(num_tokens)["only at one length"]
    errors = [check_causality(bug, embed_dim, lengths=(n,)).max_error for n in lengths]
    leaking = [n for n, error in zip(lengths, errors, strict=True) if error > 1e-6]
    curve = Panel(
        f"A leak that only exists at {' and '.join(map(str, leaking)) or 'no'} tokens",
        "tokens",
        "change of an earlier output",
        [Series("", lengths, errors, "points")],
    )
    return (*images, curve)
