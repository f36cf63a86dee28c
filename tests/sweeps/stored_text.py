"""Texts of calls as files hold them, changed at random: run with a first seed and a number of changes.

Each text must be refused with a SpecError, or give options with which a call runs or is refused. The process must
survive; the test that starts it sees whether it does. Prints how many texts were refused and how many ran.
"""

import copy
import json
import random
import sys
from collections import Counter
from typing import Any

import torch

import regard
from regard import feature, mask, score, weigh
from regard.errors import RegardError, SpecError
from regard.spec.named import read_options, spell

OPTIONS = ("score", "mask", "weigh", "value", "start")
TABLE = torch.arange(6.0)
BYTES = (torch.arange(6) * 40).byte()
SIGNS = torch.arange(36).view(6, 6) % 5 > 1
MASKS: list[Any] = [
    None,
    mask.causal() & mask.window(3),
    mask.where(lambda b, h, i, j: (i + j * 2 > 3) | (TABLE[j] < 2.5)),
    mask.where(lambda b, h, i, j: (BYTES[i] - BYTES[j] < 100) & SIGNS[i, j]),
    mask.tensor(SIGNS) | mask.documents(torch.arange(6) // 2),
    mask.bigbird(2, near=1, ends=1, random=1) | ~mask.padding([4]),
    mask.tokens([0, 4]) | mask.dilated(2, 2),
]
SCORES: list[Any] = [
    None,
    score.alibi(),
    score.rule(lambda s, b, h, i, j: torch.where(SIGNS[i, j], s * 0.5, torch.tanh(s - TABLE[i - j + 5 - 5]))),
    score.scaled_dot(0.5).then(score.softcap(20.0)).then(score.bias(torch.zeros(6, 6))),
    score.scaled_dot().then(score.relative(torch.zeros(8, 2))),
    score.cosine(2.0),
]
WEIGHS: list[Any] = [None, weigh.sink(0.5), weigh.entmax(1.5), weigh.top(2), weigh.sinkhorn(3), weigh.relu()]
WEIGHS.append(weigh.kernel(feature.favor(8, 16)))
VALUES = [None, True, -1, 0, 1, 2, 3, 7, 10**9, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, float("inf"), float("nan")]
VALUES += ["", "add", "lookup", "constant", "variable", "float", "int", "bool", "s", "p", [], {}, [[]], "mask.causal"]
KEYS = ["number", "tensor", "list", "formula", "term", "x"]


def texts() -> list[tuple[Any, list[torch.Tensor], list[int]]]:
    found = []
    for number in range(max(len(MASKS), len(SCORES), len(WEIGHS))):
        options = [choices[number % len(choices)] for choices in (SCORES, MASKS, WEIGHS)]
        if options[2] is not None and getattr(options[2], "features", None) is not None:
            options[0] = None
        tensors: list[torch.Tensor] = []
        numbers: list[int] = []
        text = spell((*options, None, None), tensors, numbers)
        found.append((json.loads(text), tensors, numbers))
    return found


def places(part: Any) -> list[tuple[Any, Any]]:
    """Every place in a text: the list or dict that holds it, and its index or key."""
    inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [place for key, value in list(inside) for place in ((part, key), *places(value))]


def changed(part: Any, draw: random.Random) -> Any:
    part = copy.deepcopy(part)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        every = places(part)
        if not every:
            return part
        (holder, key), (other, other_key) = draw.choice(every), draw.choice(every)
        kind = draw.randrange(6)
        if kind == 0:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
        elif kind == 1:
            holder[key] = copy.deepcopy(other[other_key])
        elif kind == 2 and isinstance(holder, list):
            del holder[key]
        elif kind == 3 and isinstance(holder, list):
            holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(other[other_key]))
        elif kind == 4 and isinstance(holder, dict):
            holder[draw.choice(KEYS)] = holder.pop(key)
        elif isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] += draw.choice([-1, 1, 5, 1000])
        elif isinstance(holder[key], str):
            holder[key] = draw.choice([v for v in VALUES if isinstance(v, str)])
    return part


def outcome(text: str, tensors: list[torch.Tensor], numbers: list[int]) -> str:
    try:
        options = read_options(text, tensors, numbers, OPTIONS)
    except SpecError as error:
        return "refused" if len(str(error)) < 1000 else "internal: a message of more than 1000 letters"
    q, k, v = torch.randn(3, 1, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    try:
        regard.attention(q, k, v, **options)
    except RegardError:
        return "refused by the call"
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, IndexError) as error:
        return f"internal {type(error).__name__}: {error!s:.100}"
    return "ran"


def sweep(first: int, count: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    originals = texts()
    for seed in range(first, first + count):
        draw = random.Random(seed)
        part, tensors, numbers = draw.choice(originals)
        numbers = [draw.choice([n, n, n, n + 1, -n, 10**9, 0]) for n in numbers]
        text = json.dumps(changed(part, draw))
        if seed % 10 == 0:  # letters, too
            cut = draw.randrange(len(text))
            letters = draw.choice(["", "[", "]", '"', "{", "9" * 5000, "[" * 5000])
            text = text[:cut] + letters + text[cut + draw.randrange(3) :]
        outcomes[outcome(text, tensors, numbers)] += 1
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(sweep(int(sys.argv[1]), int(sys.argv[2]))))
