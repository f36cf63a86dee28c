"""The backward pass of attention: every formula against autograd.

`attention_gradients` has the formulas. The Jacobian of softmax, J = diag(a) - aaᵀ, is symmetric, has no negative
eigenvalues and maps the constant vector to 0. Its largest eigenvalue is at most 1/2, with equality for two keys of
equal weight. The gradient of the products q·k is a map R of the shape of the weights (Reversed Attention, Katz and Wolf
2024): dQ = RK and dK = RᵀQ, so the backward pass is attention with R instead of A. Rows of R sum to 0, rows of A to 1.

At a residual connection y = x + f(x) the gradient of x has two parts: one that skips f and one through f.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard import mask, normalizer, score
from regard.attention import attention, attention_with_weights
from regard.nn import BlockConfig, Encoder
from regard.plot.chart_panels import ImagePanel, Panel, Series
from regard.plot.style import power_of_ten
from regard.theory.analysis import attention_gradients
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult
from regard.theory.residual_gradients import GradientPath, gradient_paths
from regard.theory.seeding import fork_rng_with_seed

CAP, SIGMA, DROPOUT = 2.0, 1.5, 0.3
ROUNDING_REASON = "rounding in float64 of sums of some hundred products, relative to the largest gradient"


@check_settings
def gradients(
    *, num_tokens: int = 24, embed_dim: int = 16, query_scale: float = 1.0, num_layers: int = 8, seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:  # fmt: skip
    """Compare the backward pass with autograd; test the Jacobian of softmax and the gradient paths of a stack.

    `num_tokens` and `embed_dim` are the shape of q, k and v. `query_scale` multiplies the queries. `num_layers` is the
    depth of the stack.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> gradients(num_tokens=6, embed_dim=4, num_layers=2).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    q, k, v, g = (torch.randn(num_tokens, embed_dim, generator=random, dtype=torch.float64) for _ in range(4))
    q = q * query_scale
    backward_claims = _backward_claims(q, k, v, g, random)
    report(0.3)
    jacobian_claims, jacobian_norms = _jacobian_claims(num_tokens, random), _jacobian_norms(num_tokens, random)
    report(0.5)
    a, r, autograd_grads = _reversed_attention(q, k, v, g)
    paths = {
        name: _stack_gradient_paths(embed_dim, num_layers, norm_first, seed)
        for name, norm_first in (("first", True), ("last", False))
    }
    report(1.0)
    return ExperimentResult(
        name="gradients",
        claims=(
            *backward_claims,
            *jacobian_claims,
            *_reversed_attention_claims(a, r, q, k, autograd_grads),
            *_path_claims(paths),
        ),
        false_claims=_false_claims(q, k, v, g),
        panels=_panels(a, r, jacobian_norms, paths),
        settings={
            "num_tokens": num_tokens,
            "embed_dim": embed_dim,
            "query_scale": query_scale,
            "num_layers": num_layers,
            "seed": seed,
        },
        data={"weights": a, "reversed": r, **jacobian_norms},
    )


def _autograd(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> Tensor:
    """Return autograd's gradients of q, k and v, concatenated along the rows."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    return torch.cat(torch.autograd.grad(attention(q, k, v, **options), (q, k, v), g))


def _backward_claims(q: Tensor, k: Tensor, v: Tensor, g: Tensor, generator: torch.Generator) -> list[Claim]:
    e, d = g @ v.mT, q.shape[-1]
    w_q, w_k = (torch.randn(d, 8, generator=generator, dtype=torch.float64) / math.sqrt(d) for _ in range(2))
    u = torch.randn(8, generator=generator, dtype=torch.float64)
    options: dict[str, dict[str, Any]] = {
        "softmax": {},
        "softmax under a causal mask": {"mask": mask.causal()},
        "a sink": {"normalizer": normalizer.sink(1.0)},
        "sparsemax": {"normalizer": normalizer.sparsemax()},
        "entmax of 1.5": {"normalizer": normalizer.entmax(1.5)},
        "sigmoid": {"normalizer": normalizer.sigmoid(-1.0)},
        "relu / n": {"normalizer": normalizer.relu()},
        "softcap": {"score": score.scaled_dot().then(score.softcap(CAP))},
        "the Gaussian score": {"score": score.gaussian(SIGMA)},
        "the additive score": {"score": score.additive(w_q, w_k, u)},
    }
    score_grads = {
        "sparsemax": lambda a: attention_gradients.entmax_score_grad(a, e, 2.0),
        "entmax of 1.5": lambda a: attention_gradients.entmax_score_grad(a, e, 1.5),
        "sigmoid": lambda a: attention_gradients.sigmoid_score_grad(a, e),
        "relu / n": lambda a: attention_gradients.relu_score_grad(a, e),
    }
    input_grads = {
        "softcap": lambda ds: attention_gradients.softcap_qk_grads(ds, q, k, CAP),
        "the Gaussian score": lambda ds: attention_gradients.gaussian_qk_grads(ds, q, k, SIGMA),
        "the additive score": lambda ds: attention_gradients.additive_qk_grads(ds, q, k, w_q, w_k, u),
    }
    claims = []
    for name, call_options in options.items():
        a = attention_with_weights(q, k, v, **call_options).weights.to_dense()
        ds = score_grads[name](a) if name in score_grads else attention_gradients.softmax_score_grad(a, e)
        qk_grads = input_grads[name](ds) if name in input_grads else attention_gradients.dot_qk_grads(ds, q, k)
        claims.append(_gradient_claim(name, torch.cat([*qk_grads, a.mT @ g]), _autograd(q, k, v, g, **call_options)))
    return [*claims, _dropout_claim(q, k, v, g)]


def _dropout_claim(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Claim:
    """Return the claim for dropout with the mask Z: dV = (A ∘ Z)ᵀG, and E = GVᵀ ∘ Z."""
    options: dict[str, Any] = {"dropout": DROPOUT, "seed": 7}
    a = attention_with_weights(q, k, v).weights.to_dense()
    z = attention(q, k, torch.eye(len(k), dtype=v.dtype), **options) / a  # with the identity as values, o = A ∘ Z
    ds = attention_gradients.softmax_score_grad(a, g @ v.mT * z)
    expected = torch.cat([*attention_gradients.dot_qk_grads(ds, q, k), (a * z).mT @ g])
    return _gradient_claim("softmax with dropout", expected, _autograd(q, k, v, g, **options))


def _gradient_claim(name: str, expected: Tensor, actual: Tensor) -> Claim:
    size = expected.abs().max()
    return Claim(f"dQ, dK and dV of {name} match the formula", expected / size, actual / size, 1e-12, ROUNDING_REASON)


def _autograd_jacobian(s: Tensor) -> Tensor:
    """Return autograd's Jacobian of the weights of one query with scores s."""
    q = torch.ones(1, 1, dtype=s.dtype)

    def weights(k: Tensor) -> Tensor:
        output: Tensor = attention_with_weights(q, k[:, None], k[:, None]).weights[0]
        return output

    output: Tensor = torch.autograd.functional.jacobian(weights, s)
    return output


def _jacobian_claims(n: int, generator: torch.Generator) -> tuple[Claim, ...]:
    s = torch.randn(n, generator=generator, dtype=torch.float64)
    jacobian, a = _autograd_jacobian(s), s.softmax(-1)
    values = torch.linalg.eigvalsh(jacobian)
    pair = torch.linalg.eigvalsh(_autograd_jacobian(torch.zeros(2, dtype=torch.float64)))[-1]
    reason = "rounding in float64"
    return (
        Claim("the Jacobian of softmax is diag(a) - aaᵀ", torch.diag(a) - torch.outer(a, a), jacobian, 1e-15, reason),
        Claim("it has no negative eigenvalue", torch.zeros(n), values, 1e-15, reason, "at least"),
        Claim("and none above 1/2", torch.full((n,), 0.5), values, 1e-15, reason, "at most"),
        Claim("two keys of equal weight reach 1/2", 0.5, pair, 1e-15, reason),
    )


def _jacobian_norms(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return norms of the Jacobian for one row of scores times a range of factors."""
    s = torch.randn(n, generator=generator, dtype=torch.float64)
    factors = torch.logspace(-1, 1.5, 21, dtype=torch.float64)
    jacobians = torch.stack([_autograd_jacobian(s * factor) for factor in factors])
    return {
        "factors": factors,
        "largest": torch.linalg.eigvalsh(jacobians)[:, -1],
        "frobenius": jacobians.flatten(1).norm(dim=-1),
    }


def _reversed_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights under a causal mask, their reversed attention, and autograd's gradients of q, k and v."""
    a = attention_with_weights(q, k, v, mask=mask.causal()).weights.to_dense()
    r = attention_gradients.reversed_attention(a, g, v, 1 / math.sqrt(q.shape[-1]))
    return a, r, _autograd(q, k, v, g, mask=mask.causal())


def _reversed_attention_claims(a: Tensor, r: Tensor, q: Tensor, k: Tensor, autograd_grads: Tensor) -> tuple[Claim, ...]:
    n, size = len(q), autograd_grads.abs().max()
    patched = a - 3 * r
    small = 1e-14 * (1 + float(r.abs().max()))
    reason = "rounding in float64 of sums over all keys"
    return (
        Claim("Reversed Attention: dQ = R K", r @ k / size, autograd_grads[:n] / size, 1e-12, ROUNDING_REASON),
        Claim(
            "Reversed Attention: dK = RᵀQ", r.mT @ q / size, autograd_grads[n : 2 * n] / size, 1e-12, ROUNDING_REASON
        ),
        Claim("rows of R sum to 0", torch.zeros(n), r.sum(-1), n * small, reason),
        Claim("so rows of A + ηR still sum to 1", torch.ones(n), patched.sum(-1), n * 3 * small, reason),
        Claim("under a causal mask R is 0 above the diagonal", torch.zeros_like(r), r.triu(1), 0.0, "exactly"),
    )


def _stack_gradient_paths(embed_dim: int, num_layers: int, norm_first: bool, seed: int) -> list[GradientPath]:
    with fork_rng_with_seed(seed):
        stack = Encoder(
            BlockConfig(embed_dim=embed_dim, num_heads=2 - embed_dim % 2, norm_first=norm_first), num_layers
        ).double()
    x = torch.randn(1, 16, embed_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return gradient_paths(stack, x, seed=seed)


def _path_claims(paths: dict[str, list[GradientPath]]) -> list[Claim]:
    claims = []
    for name, stack_paths in paths.items():
        total, skip, through = (
            torch.stack([getattr(path, gradient) for path in stack_paths])
            for gradient in ("input_gradient", "skip_gradient", "branch_gradient")
        )
        size = total.abs().max()
        statement = f"norm {name}: the gradient of each branch's input is the skip gradient plus the branch gradient"
        claims.append(Claim(statement, (skip + through) / size, total / size, 1e-13, ROUNDING_REASON))
    return claims


def _false_claims(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Claim, ...]:
    """Return two published formulas that are wrong, and two common mistakes."""
    n, e = len(q), g @ v.mT
    grads = _autograd(q, k, v, g)
    dq, dk = grads[:n], grads[n : 2 * n]
    a = attention_with_weights(q, k, v).weights.to_dense()
    ds = attention_gradients.softmax_score_grad(a, e)
    scale = 1 / math.sqrt(q.shape[-1])

    def claim(statement: str, expected: Tensor, actual: Tensor) -> Claim:
        size = actual.abs().max()
        return Claim(statement, expected / size, actual / size, 1e-6, "rounding is far smaller")

    return (
        claim("VJP_K = uᵀQ · K with u = dL/dS, as published in Math description (Gemini)", ds.mT @ q * k, dk),
        claim("VJP_Q = u K · Q, from Math description (Gemini)", ds @ k * q, dq),
        claim("dK = dSᵀQ, without the scale", ds.mT @ q, dk),
        claim("dS = A ∘ E, as if each weight depended on its own score alone", scale * (a * e) @ k, dq),
    )


def _panels(
    a: Tensor, r: Tensor, jacobian_norms: dict[str, Tensor], paths: dict[str, list[GradientPath]]
) -> tuple[Panel | ImagePanel, ...]:
    totals = {
        gradient: torch.stack([getattr(path, gradient).norm() for path in paths["first"]]).mean()
        for gradient in ("skip_gradient", "branch_gradient")
    }
    share = float(totals["skip_gradient"] / totals["branch_gradient"])
    smallest, factor = float(jacobian_norms["frobenius"][-1]), float(jacobian_norms["factors"][-1])
    curves = []
    for name, stack_paths in paths.items():
        for gradient, label, style in (
            ("skip_gradient", "skip", "line"),
            ("branch_gradient", "branch", "points"),
        ):
            norms = [float(getattr(path, gradient).norm()) for path in stack_paths]
            curves.append(Series(f"norm {name}: {label}", range(1, len(norms) + 1), norms, style))  # type: ignore[arg-type]  # one of the styles
    return (
        ImagePanel("Attention A: rows sum to 1", "key", "query", a),
        ImagePanel("Reversed Attention R: rows sum to 0", "key", "query", r, signed=True),
        Panel(
            f"Scores {factor:.0f} times as large leave a Jacobian of {power_of_ten(smallest)}",
            "factor of the scores",
            "norm of the Jacobian",
            [
                Series("largest eigenvalue", jacobian_norms["factors"], jacobian_norms["largest"]),
                Series("Frobenius norm", jacobian_norms["factors"], jacobian_norms["frobenius"]),
                Series("bound 1/2", jacobian_norms["factors"][[0, -1]], [0.5, 0.5], "dashed"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"Skip connections carry {share:.1f} times the gradient of the branches, with norm first",
            "branch, from the input on",
            "norm of the gradient",
            curves,
            log_y=True,
        ),
    )
