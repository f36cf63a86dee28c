"""What attention does not care about: the order of keys, a shift of all of them, the basis of queries and keys.

For permutations P of the queries and R of the keys, Attention(PQ, RK, RV; P M R') = P Attention(Q, K, V; M), with the
mask M carried along. So self-attention without a mask and without positions maps a reordered text to the reordered
answer; a causal mask is not carried along, and breaks it on purpose. Softmax sees differences of scores only, so that a
vector c added to all keys changes nothing; Q B and K B'^-1 have the scores of Q and K. `regard.theory` has checks for
such properties in anyone's layer; here they are held against layers that are right and layers with planted bugs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import attend, attention
from regard.draw.charts import Image, Panel, Series
from regard.errors import SpecError
from regard.nn import Decoder, Design, Encoder, MultiHeadAttention, Rotary
from regard.spec import mask, score
from regard.theory import planted
from regard.theory.checks import check_causality, check_equivariance, check_independence, check_normalised, influence
from regard.theory.experiment import Progress, check_settings
from regard.theory.finding import Finding
from regard.theory.outcome import Claim, Outcome
from regard.theory.seeded import seeded

ROUNDING = "rounding in float64, of sums of some dozens of products"


@check_settings
def equivariance(*, tokens: int = 16, width: int = 16, seed: int = 0, progress: Progress | None = None) -> Outcome:
    """The invariants of attention, and the checks for them on layers that are right and on planted bugs.

    `tokens` is the length of the texts, `width` that of the vectors.

    >>> equivariance(tokens=8, width=8).agrees
    True
    """
    if width % 4:
        raise SpecError(f"width must be a multiple of 4, for two heads with rotary positions; got {width}.")
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    q, k, v = (torch.randn(tokens, width, generator=random, dtype=torch.float64) for _ in range(3))
    laws = _laws(q, k, v, random)
    told(0.1)
    lengths = (2, tokens - 1, tokens, tokens + 1)
    right, wrongs = _right(width, lengths, seed), _planted(width, tokens, lengths, q @ k.mT)
    told(0.8)
    x = torch.randn(1, tokens, width, generator=random, dtype=torch.float64)
    maps = {name: influence(layer, x, seed=seed) for name, layer in _shown(tokens).items()}
    told(1.0)
    reordered = check_equivariance(lambda y: attention(y, y, y, mask=mask.causal()), width, lengths=lengths)
    turned = wrongs["turned round"]
    return Outcome(
        name="equivariance",
        claims=(*laws, *_of_layers(right), *_of_bugs(wrongs, tokens)),
        wrong=(
            Claim(
                "self-attention commutes with reordering, also under a causal mask",
                0.0,
                reordered.error,
                reordered.within,
                ROUNDING,
            ),
            Claim(
                "a mask under which future tokens do not attend to past ones keeps the future out",
                0.0,
                turned.error,
                turned.within,
                ROUNDING,
            ),
        ),
        panels=_panels(maps, tokens, width),
        settings={"tokens": tokens, "width": width, "seed": seed},
        data={**maps, "errors_right": _errors(right), "errors_planted": _errors(wrongs)},
    )


def _laws(q: Tensor, k: Tensor, v: Tensor, random: torch.Generator) -> tuple[Claim, ...]:
    """Equations between two calls of attention."""
    n, width = q.shape
    queries, keys = (torch.randperm(n, generator=random) for _ in range(2))
    seen = torch.rand(n, n, generator=random) < 0.6
    shift = 3 * torch.randn(width, generator=random, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(width, width, generator=random, dtype=torch.float64))[0]
    basis = basis @ torch.diag(torch.linspace(0.5, 2.0, width, dtype=torch.float64))
    plain, spread = attention(q, k, v), v.abs().max()
    sharp = attend(q, k, v, score=score.dot()).weights.dense().argmax(-1)
    rounded = 1e-13 * float(spread)

    def law(says: str, predicted: Tensor, found: Tensor, within: float = rounded, because: str = ROUNDING) -> Claim:
        return Claim(says, predicted, found, within, because)

    moved = attention(q[queries], k[keys], v[keys], mask=seen[queries][:, keys])
    low, high = v.amin(0), v.amax(0)
    return (
        law("P and R reorder queries and keys: Attention(PQ, RK, RV; PMR') = P Attention(Q, K, V; M)",
            attention(q, k, v, mask=seen)[queries], moved),
        law("one vector added to all keys changes nothing", plain, attention(q, k + shift, v), 10 * rounded),
        law("Q B and K B'^-1 give what Q and K give", plain, attention(q @ basis, k @ torch.linalg.inv(basis).mT, v)),
        law("every key twice changes nothing", plain, attention(q, torch.cat([k, k]), torch.cat([v, v]))),
        law("a scale of 0 gives the mean of the values",
            v.mean(0).expand_as(plain), attention(q, k, v, score=score.scaled_dot(0.0))),
        law("a scale without end gives the value of the best key",
            v[sharp], attention(q, k, v, score=score.scaled_dot(1e8)),
            because="rounding; two scores nearer than 1e-7 would share, and none are"),
        Claim("outputs lie between the least and the largest value of each coordinate: none above",
              high.expand_as(plain), plain, rounded, ROUNDING, "at most"),
        Claim("and none below", low.expand_as(plain), plain, rounded, ROUNDING, "at least"),
    )  # fmt: skip


def _right(width: int, lengths: tuple[int, ...], seed: int) -> dict[str, Finding]:
    """Layers that are right, with the check that each must pass."""
    design = Design(width=width, heads=2)
    with seeded(seed):
        layers: dict[str, nn.Module] = {
            "MultiHeadAttention": MultiHeadAttention(width, 2),
            "torch's MultiheadAttention": nn.MultiheadAttention(width, 2, batch_first=True),
            "Encoder": Encoder(design, 2),
            "Decoder": Decoder(design, 2),
            "Decoder with rotary positions": Decoder(design, 2, position=Rotary(width // 2)),
        }
    found = {}
    for name, layer in layers.items():
        each = check_causality if "Decoder" in name else check_equivariance
        found[name] = each(layer.double().eval(), width, lengths=lengths)
        found[f"{name}, texts"] = check_independence(layer, width, lengths=lengths)
    x = torch.randn(lengths[-1], width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found["weights of regard.attend"] = check_normalised(attend(x, x, x, mask=mask.causal()).weights)
    return found


def _planted(width: int, tokens: int, lengths: tuple[int, ...], s: Tensor) -> dict[str, Finding]:
    found = {name: check_causality(bug, width, lengths=lengths) for name, bug in planted.leaks(tokens).items()}
    for name, bug in planted.order_dependent().items():
        found[name] = check_equivariance(bug, width, lengths=lengths)
    for name, bug in planted.mixing().items():
        found[name] = check_independence(bug, width, lengths=lengths)
    return {**found, **{name: check_normalised(a) for name, a in planted.unnormalised(s).items()}}


def _errors(findings: dict[str, Finding]) -> Tensor:
    return torch.tensor([finding.error for finding in findings.values()], dtype=torch.float64)


def _of_layers(right: dict[str, Finding]) -> tuple[Claim, ...]:
    allowed = max(finding.within for finding in right.values())
    says = f"checks of {len(right)} right layers find no error: {', '.join(right)}"
    return (Claim(says, torch.zeros(len(right)), _errors(right), allowed, "a thousand steps of float64"),)


def _of_bugs(wrongs: dict[str, Finding], tokens: int) -> tuple[Claim, ...]:
    caught = [float(not finding.holds) for finding in wrongs.values()]
    pair = wrongs["one pair"].places
    length = wrongs["only at one length"].places
    exact = "whole numbers are exact"
    return (
        Claim(f"checks find each of {len(wrongs)} planted bugs", torch.ones(len(caught)), caught, 0.0, exact),
        Claim(
            "the leak of one pair is named: its output, its input, and no other pair",
            [tokens // 2, tokens // 2 + 1, 1.0],
            _first(pair, tokens // 2),
            0.0,
            exact,
        ),
        Claim(
            "the leak at one length is found at that length alone",
            [float(tokens), float(tokens)],
            [min((p.length for p in length), default=0), max((p.length for p in length), default=0)],
            0.0,
            exact,
        ),
    )


def _first(places: Any, at: int) -> list[float]:
    """Output and input of the largest leak, and how many pairs leak."""
    pairs = {(place.output, place.input) for place in places}
    return [float(places[0].output), float(places[0].input), float(len(pairs))] if places else [-1.0, -1.0, 0.0]


def _shown(tokens: int) -> dict[str, Any]:
    leaks = planted.leaks(tokens)
    return {
        "right": lambda x: attention(x, x, x, mask=mask.causal()),
        "off by one": leaks["off by one"],
        "one pair": leaks["one pair"],
    }


def _panels(maps: dict[str, Tensor], tokens: int, width: int) -> tuple[Panel | Image, ...]:
    titles = {"right": "A causal layer", "off by one": "A mask that is off by one", "one pair": "A leak of one pair"}
    # a weight of a thousandth is as much of a leak as one of a half: as logarithms both are seen
    sizes = {name: found.clamp(min=1e-16).log10() for name, found in maps.items()}
    images = [Image(titles[name], "input that changes", "output (log10 of its change)", sizes[name]) for name in sizes]
    lengths = list(range(max(2, tokens - 4), tokens + 5))
    bug = planted.leaks(tokens)["only at one length"]
    errors = [check_causality(bug, width, lengths=(n,)).error for n in lengths]
    curve = Panel(
        "A leak at one length alone",
        "tokens",
        "share by which an early output changes",
        [Series("found", lengths, errors, "points")],
    )
    return (*images, curve)
