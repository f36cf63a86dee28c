"""Random changes of serialized call options, as files store them.

    python tests/sweeps/stored_text.py FIRST_SEED COUNT

Each changed text must raise an ArgumentError, or give options with which a call runs or raises an error of the library.
Prints the number of texts of each outcome as JSON. A crash ends the process, which the test notices.
"""

import copy
import json
import random
import sys
from collections import Counter
from typing import Any

import torch

import regard
from regard import feature_map, mask, normalizer, score
from regard.errors import ArgumentError, RegardError
from regard.expr.serialize import deserialize_options, serialize

OPTIONS = ("score", "mask", "normalizer", "value", "query_offset")
TABLE = torch.arange(6.0)
BYTES = (torch.arange(6) * 40).byte()
SIGNS = torch.arange(36).view(6, 6) % 5 > 1
MASKS: list[Any] = [
    None,
    mask.causal() & mask.sliding_window(3),
    mask.from_function(lambda b, h, i, j: (i + j * 2 > 3) | (TABLE[j] < 2.5)),
    mask.from_function(lambda b, h, i, j: (BYTES[i] - BYTES[j] < 100) & SIGNS[i, j]),
    mask.tensor(SIGNS) | mask.document(torch.arange(6) // 2),
    mask.bigbird(2, num_local_blocks=1, num_global_blocks=1, num_random_blocks=1) | ~mask.padding([4]),
    mask.global_tokens([0, 4]) | mask.dilated(2, 2),
]
SCORES: list[Any] = [
    None,
    score.alibi(),
    score.modifier(lambda s, b, h, i, j: torch.where(SIGNS[i, j], s * 0.5, torch.tanh(s - TABLE[i - j + 5 - 5]))),
    score.scaled_dot(0.5).then(score.softcap(20.0)).then(score.bias(torch.zeros(6, 6))),
    score.scaled_dot().then(score.t5_bias(torch.zeros(8, 2))),
    score.cosine(2.0),
]
NORMALIZERS: list[Any] = [
    None,
    normalizer.sink(0.5),
    normalizer.entmax(1.5),
    normalizer.topk(2),
    normalizer.sinkhorn(3),
    normalizer.relu(),
    normalizer.kernel(feature_map.favor(8, 16)),
]
VALUES = [None, True, -1, 0, 1, 2, 3, 7, 10**9, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, float("inf"), float("nan")]
VALUES += ["", "add", "lookup", "constant", "variable", "float", "int", "bool", "s", "p", [], {}, [[]], "mask.causal"]
KEYS = ["int", "tensor", "list", "expr", "exprs", "x"]


def texts() -> list[tuple[Any, list[torch.Tensor], list[int]]]:
    serialized = []
    for number in range(max(len(MASKS), len(SCORES), len(NORMALIZERS))):
        options = [choices[number % len(choices)] for choices in (SCORES, MASKS, NORMALIZERS)]
        if options[2] is not None and getattr(options[2], "feature_map", None) is not None:
            options[0] = None
        tensors: list[torch.Tensor] = []
        numbers: list[int] = []
        text = serialize((*options, None, None), tensors, numbers)
        serialized.append((json.loads(text), tensors, numbers))
    return serialized


def slots(tree: Any) -> list[tuple[Any, Any]]:
    """Return the container (list or dict) and the index or key of every value in a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [slot for key, value in list(items) for slot in ((tree, key), *slots(value))]


def mutate(tree: Any, rng: random.Random) -> Any:
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        choices = slots(tree)
        if not choices:
            return tree
        (container, key), (other, other_key) = rng.choice(choices), rng.choice(choices)
        kind = rng.randrange(6)
        if kind == 0:
            container[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 1:
            container[key] = copy.deepcopy(other[other_key])
        elif kind == 2 and isinstance(container, list):
            del container[key]
        elif kind == 3 and isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), copy.deepcopy(other[other_key]))
        elif kind == 4 and isinstance(container, dict):
            container[rng.choice(KEYS)] = container.pop(key)
        elif isinstance(container[key], int) and not isinstance(container[key], bool):
            container[key] += rng.choice([-1, 1, 5, 1000])
        elif isinstance(container[key], str):
            container[key] = rng.choice([v for v in VALUES if isinstance(v, str)])
    return tree


def outcome(text: str, tensors: list[torch.Tensor], numbers: list[int]) -> str:
    try:
        options = deserialize_options(text, tensors, numbers, OPTIONS)
    except ArgumentError as error:
        return "refused" if len(str(error)) < 1000 else "internal: a message of more than 1000 characters"
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
        rng = random.Random(seed)
        tree, tensors, numbers = rng.choice(originals)
        numbers = [rng.choice([n, n, n, n + 1, -n, 10**9, 0]) for n in numbers]
        text = json.dumps(mutate(tree, rng))
        if seed % 10 == 0:  # also change characters, which may break the JSON syntax
            cut = rng.randrange(len(text))
            characters = rng.choice(["", "[", "]", '"', "{", "9" * 5000, "[" * 5000])
            text = text[:cut] + characters + text[cut + rng.randrange(3) :]
        outcomes[outcome(text, tensors, numbers)] += 1
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(sweep(int(sys.argv[1]), int(sys.argv[2]))))
