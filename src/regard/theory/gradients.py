"""How gradients come back through attention: every formula of the backward pass beside autograd.

`backward` has the formulas. The Jacobian of softmax, J = diag(a) - aa', is symmetric, has no negative eigenvalue, maps
the constant to 0, and its largest eigenvalue is at most 1/2, which two keys of equal weight reach. The gradient in the
products q·k is a map R of the same shape as the weights (Reversed Attention, Katz and Wolf 2024): dQ = RK and dK = R'Q,
so that the backward pass is attention with R in the place of A. Its rows sum to 0, where those of A sum to 1.

Around a part f of a block, y = x + f(x), a gradient comes back twice: past f as it is, and through f.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard.attention import attend, attention
from regard.draw.charts import Image, Panel, Series
from regard.nn import Design, Encoder
from regard.spec import mask, score, weigh
from regard.theory import backward
from regard.theory.experiment import Progress, check_settings
from regard.theory.outcome import Claim, Outcome
from regard.theory.paths import Followed, gradient_paths
from regard.theory.seeded import seeded

CAP, SIGMA, DROPOUT = 2.0, 1.5, 0.3
ROUNDING = "rounding in float64 of sums of some hundred products, as a share of the largest gradient"


@check_settings
def gradients(
    *, tokens: int = 24, width: int = 16, sharpness: float = 1.0, layers: int = 8, seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:  # fmt: skip
    """The backward pass by formula and by autograd, the Jacobian of softmax, and the paths of a gradient in a stack.

    `sharpness` multiplies the queries; `layers` is the depth of the stack.

    >>> gradients(tokens=6, width=4, layers=2).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    q, k, v, g = (torch.randn(tokens, width, generator=random, dtype=torch.float64) for _ in range(4))
    q = q * sharpness
    cases = _cases(q, k, v, g, random)
    told(0.3)
    jacobians, sizes = _jacobian_claims(tokens, random), _jacobian_sizes(tokens, random)
    told(0.5)
    a, r, wanted = _reversed(q, k, v, g)
    paths = {name: _stack(width, layers, first, seed) for name, first in (("first", True), ("last", False))}
    told(1.0)
    return Outcome(
        name="gradients",
        claims=(*cases, *jacobians, *_of_reversed(a, r, q, k, wanted), *_of_paths(paths)),
        wrong=_wrong(q, k, v, g),
        panels=_panels(a, r, sizes, paths),
        settings={"tokens": tokens, "width": width, "sharpness": sharpness, "layers": layers, "seed": seed},
        data={"weights": a, "reversed": r, **sizes},
    )


def _autograd(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> Tensor:
    """What autograd gives for q, k and v, one below another, and for further tensors that are asked for."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    return torch.cat(torch.autograd.grad(attention(q, k, v, **options), (q, k, v), g))


def _cases(q: Tensor, k: Tensor, v: Tensor, g: Tensor, random: torch.Generator) -> list[Claim]:
    e, width = g @ v.mT, q.shape[-1]
    w, other = (torch.randn(width, 8, generator=random, dtype=torch.float64) / math.sqrt(width) for _ in range(2))
    u = torch.randn(8, generator=random, dtype=torch.float64)
    options: dict[str, dict[str, Any]] = {
        "softmax": {},
        "softmax under a causal mask": {"mask": mask.causal()},
        "a sink": {"weigh": weigh.sink(1.0)},
        "sparsemax": {"weigh": weigh.sparsemax()},
        "entmax of 1.5": {"weigh": weigh.entmax(1.5)},
        "sigmoid": {"weigh": weigh.sigmoid(-1.0)},
        "relu / n": {"weigh": weigh.relu()},
        "softcap": {"score": score.scaled_dot().then(score.softcap(CAP))},
        "the Gaussian score": {"score": score.metric(SIGMA)},
        "the additive score": {"score": score.additive(w, other, u)},
    }
    of_scores = {
        "sparsemax": lambda a: backward.entmax_scores(a, e, 2.0),
        "entmax of 1.5": lambda a: backward.entmax_scores(a, e, 1.5),
        "sigmoid": lambda a: backward.sigmoid_scores(a, e),
        "relu / n": lambda a: backward.relu_scores(a, e),
    }
    of_inputs = {
        "softcap": lambda ds: backward.softcapped(ds, q, k, CAP),
        "the Gaussian score": lambda ds: backward.gaussian(ds, q, k, SIGMA),
        "the additive score": lambda ds: backward.additive(ds, q, k, w, other, u),
    }
    claims = []
    for name, given in options.items():
        a = attend(q, k, v, **given).weights.dense()
        ds = of_scores[name](a) if name in of_scores else backward.softmax_scores(a, e)
        both = of_inputs[name](ds) if name in of_inputs else backward.dot(ds, q, k)
        claims.append(_compared(name, torch.cat([*both, a.mT @ g]), _autograd(q, k, v, g, **given)))
    return [*claims, _dropped(q, k, v, g)]


def _dropped(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Claim:
    """With weights left out by Z: dV = (A ∘ Z)'G, and E = GV' ∘ Z."""
    given: dict[str, Any] = {"dropout": DROPOUT, "seed": 7}
    a = attend(q, k, v).weights.dense()
    kept = attention(q, k, torch.eye(len(k), dtype=v.dtype), **given) / a  # values that are the identity show A ∘ Z
    ds = backward.softmax_scores(a, g @ v.mT * kept)
    expected = torch.cat([*backward.dot(ds, q, k), (a * kept).mT @ g])
    return _compared("softmax with dropout", expected, _autograd(q, k, v, g, **given))


def _compared(name: str, predicted: Tensor, found: Tensor) -> Claim:
    size = predicted.abs().max()
    return Claim(f"dQ, dK and dV of {name} are as the formula says", predicted / size, found / size, 1e-12, ROUNDING)


def _jacobian_of(s: Tensor) -> Tensor:
    """By autograd, of the weights of one query whose scores are s."""
    one = torch.ones(1, 1, dtype=s.dtype)

    def weights(k: Tensor) -> Tensor:
        return attend(one, k[:, None], k[:, None]).weights[0]  # type: ignore[no-any-return]  # a tensor

    return torch.autograd.functional.jacobian(weights, s)  # type: ignore[no-any-return]  # a tensor


def _jacobian_claims(n: int, random: torch.Generator) -> tuple[Claim, ...]:
    s = torch.randn(n, generator=random, dtype=torch.float64)
    found, a = _jacobian_of(s), s.softmax(-1)
    values = torch.linalg.eigvalsh(found)
    pair = torch.linalg.eigvalsh(_jacobian_of(torch.zeros(2, dtype=torch.float64)))[-1]
    because = "rounding in float64"
    return (
        Claim("the Jacobian of softmax is diag(a) - aa'", torch.diag(a) - torch.outer(a, a), found, 1e-15, because),
        Claim("it has no negative eigenvalue", torch.zeros(n), values, 1e-15, because, "at least"),
        Claim("and none above 1/2", torch.full((n,), 0.5), values, 1e-15, because, "at most"),
        Claim("two keys of equal weight reach 1/2", 0.5, pair, 1e-15, because),
    )


def _jacobian_sizes(n: int, random: torch.Generator) -> dict[str, Tensor]:
    """Norms of the Jacobian as one row of scores is stretched."""
    s = torch.randn(n, generator=random, dtype=torch.float64)
    factors = torch.logspace(-1, 1.5, 21, dtype=torch.float64)
    found = torch.stack([_jacobian_of(s * factor) for factor in factors])
    return {
        "factors": factors,
        "largest": torch.linalg.eigvalsh(found)[:, -1],
        "frobenius": found.flatten(1).norm(dim=-1),
    }


def _reversed(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights under a causal mask, their reversed attention, and what autograd gives for q, k and v."""
    a = attend(q, k, v, mask=mask.causal()).weights.dense()
    r = backward.reversed_attention(a, g, v, 1 / math.sqrt(q.shape[-1]))
    return a, r, _autograd(q, k, v, g, mask=mask.causal())


def _of_reversed(a: Tensor, r: Tensor, q: Tensor, k: Tensor, wanted: Tensor) -> tuple[Claim, ...]:
    n, size = len(q), wanted.abs().max()
    patched = a - 3 * r
    small = 1e-14 * (1 + float(r.abs().max()))
    because = "rounding in float64 of sums of as many weights as there are keys"
    return (
        Claim("Reversed Attention: dQ = R K", r @ k / size, wanted[:n] / size, 1e-12, ROUNDING),
        Claim("Reversed Attention: dK = R'Q", r.mT @ q / size, wanted[n : 2 * n] / size, 1e-12, ROUNDING),
        Claim("rows of R sum to 0", torch.zeros(n), r.sum(-1), n * small, because),
        Claim("so rows of A + ηR still sum to 1", torch.ones(n), patched.sum(-1), n * 3 * small, because),
        Claim("under a causal mask R is 0 above the diagonal", torch.zeros_like(r), r.triu(1), 0.0, "exactly"),
    )


def _stack(width: int, layers: int, norm_first: bool, seed: int) -> list[Followed]:
    with seeded(seed):
        stack = Encoder(Design(width=width, heads=2 - width % 2, norm_first=norm_first), layers).double()
    x = torch.randn(1, 16, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return gradient_paths(stack, x, seed=seed)


def _of_paths(paths: dict[str, list[Followed]]) -> list[Claim]:
    claims = []
    for name, followed in paths.items():
        total, skip, through = (
            torch.stack([getattr(each, part) for each in followed]) for part in ("total", "skip", "through")
        )
        size = total.abs().max()
        says = f"norm {name}: at each part of each block the gradient is what skips it plus what comes through it"
        claims.append(Claim(says, (skip + through) / size, total / size, 1e-13, ROUNDING))
    return claims


def _wrong(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Claim, ...]:
    """What an article prints for dK, and two slips of one's own."""
    n, e = len(q), g @ v.mT
    found = _autograd(q, k, v, g)
    dq, dk = found[:n], found[n : 2 * n]
    a = attend(q, k, v).weights.dense()
    ds = backward.softmax_scores(a, e)
    scale = 1 / math.sqrt(q.shape[-1])

    def claim(says: str, predicted: Tensor, wanted: Tensor) -> Claim:
        size = wanted.abs().max()
        return Claim(says, predicted / size, wanted / size, 1e-6, "rounding is far smaller")

    return (
        claim("VJP_K = u'Q · K with u = dL/dS, as an article prints", ds.mT @ q * k, dk),
        claim("VJP_Q = u K · Q, likewise", ds @ k * q, dq),
        claim("dK = dS'Q, without the scale", ds.mT @ q, dk),
        claim("dS = A ∘ E, as if each weight depended on its own score alone", scale * (a * e) @ k, dq),
    )


def _panels(
    a: Tensor, r: Tensor, sizes: dict[str, Tensor], paths: dict[str, list[Followed]]
) -> tuple[Panel | Image, ...]:
    curves = []
    for name, followed in paths.items():
        for part in ("skip", "through"):
            norms = [float(getattr(each, part).norm()) for each in followed]
            style = "line" if part == "skip" else "points"
            words = "past the part" if part == "skip" else "through it"
            curves.append(Series(f"norm {name}, {words}", range(1, len(norms) + 1), norms, style, of=name))  # type: ignore[arg-type]  # one of the styles
    return (
        Image("Attention A, causal", "key", "query", a),
        Image("Reversed Attention R", "key", "query", r, signed=True),
        Panel(
            "Jacobian of softmax, as scores are stretched",
            "factor",
            "norm",
            [
                Series("largest eigenvalue", sizes["factors"], sizes["largest"]),
                Series("Frobenius norm", sizes["factors"], sizes["frobenius"]),
                Series("bound of the eigenvalue, 1/2", sizes["factors"][[0, -1]], [0.5, 0.5], "dashed"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "Gradient paths in a stack",
            "part, from the input (attention, feed-forward, ...)",
            "norm of the gradient",
            curves,
            log_y=True,
        ),
    )
