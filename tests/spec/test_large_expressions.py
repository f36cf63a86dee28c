"""Formulas are graphs: parts that are shared a thousand times and chains of thousands of operations are read once."""

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import mask, score
from regard.distributed.agree import _spelled
from regard.errors import SpecError
from regard.spec.bounds import Bounds, Regions
from regard.spec.closure import Closures, may_leave, rounding_that_decides
from regard.spec.derivative import derivatives
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.hiding import hiding
from regard.spec.linear import of_difference
from regard.spec.named import MAX_DEPTH, Unspeakable, read_back, spell
from regard.spec.nodes import MAX_NODES, from_nodes, to_nodes
from regard.spec.place import Places, _Move
from regard.spec.program import Untold, program
from regard.spec.read import read
from regard.spec.term import Term, apply, constant, renumber, substitute, variable, walk
from regard.spec.text import latex, text
from regard.worked.lines import is_short, line

LENGTHS = (1, 1, 3, 4)
CALLS_A_NODE = 150  # Python calls that a reading may make for each node: some readings take many, but none counts twice


def doubled(x: Term) -> Term:
    for _ in range(60):
        x = apply("add", x, x)
    return x


def chain(x: Term, length: int = 5000) -> Term:
    for n in range(length):
        x = apply("add", x, apply("mul", variable("j"), constant(n)) if x.kind == "int" else constant(0.001 * n))
    return x


def alternating(x: Term) -> Term:
    """Conditions that share their parts, which no simplification joins."""
    for n in range(60):
        left = apply("and", x, apply("gt", variable("i"), constant(n)))
        x = apply("or", left, apply("and", x, apply("lt", variable("j"), constant(n))))
    return x


DIFFERENCE = apply("sub", variable("i"), variable("j"))
MASKS = {
    "doubled": apply("lt", doubled(DIFFERENCE), constant(5)),
    "chain": apply("lt", chain(DIFFERENCE), constant(5000)),
    "conditions": alternating(apply("le", variable("j"), variable("i"))),
}
RULES = {
    "doubled": doubled(apply("add", variable("s"), apply("to_float", DIFFERENCE))),
    "chain": chain(variable("s")),
    "chain of -inf": chain(apply("add", variable("s"), constant(float("-inf"))), 500),
}


def positions() -> Positions:
    b, h, i, j = (range(n) for n in LENGTHS)
    return Positions(b, h, i, j, start=1, n_q=3, n_k=4, device=torch.device("cpu"))


def everywhere() -> Regions:
    zero = np.zeros(1, np.int64)
    return Regions(zero, zero, zero, zero + 2, zero, zero + 3)


def compiled(term: Term) -> object:
    try:
        return program(term, None, (), ()) if term.kind == "bool" else program(mask.causal().term, term, (), ())
    except Untold as reason:
        return str(reason)


def spec() -> Any:
    return read((1, 1, 3, 4), (1, 1, 4, 4), (1, 1, 4, 4)).spec


READINGS: dict[str, Callable[[Term], Any]] = {
    "walk": lambda term: list(walk(term)),
    "nodes": lambda term: from_nodes(to_nodes(term)),
    "repr": repr,
    "pickle": lambda term: pickle.loads(pickle.dumps(term)),
    "copy": copy.deepcopy,
    "text": lambda term: text(term),
    "latex": lambda term: latex(term),
    "substitute": lambda term: substitute(term, {variable("i"): variable("p")}),
    "renumber": lambda term: renumber(term, {}),
    "move": lambda term: _Move(frozenset(), Places(1, 2), Places(0, 4), 0, spec()).term(term),
    "evaluate": lambda term: Evaluation((), positions(), torch.zeros(1, 1, 3, 4)).value(term, True),
    "bounds": lambda term: Bounds((), LENGTHS, 1).of(term, everywhere()),
    "leaving": lambda term: may_leave((term,), (), LENGTHS, 1),
    "deciding": lambda term: list(rounding_that_decides((term,))),
    "derivative": lambda term: derivatives(term),
    "difference": of_difference,
    "program": compiled,
    "hiding": lambda term: hiding(term if term.kind == "float" else None, ()),
    "agreement": lambda term: _spelled(term, ()),
    "is short": lambda term: is_short(term),
}


def calls_of(reading: Callable[[Term], Any], term: Term) -> int:
    count = 0

    def counted(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        reading(term)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", [*(f"mask {name}" for name in MASKS), *(f"rule {name}" for name in RULES)])
@pytest.mark.parametrize("reading", READINGS)
def test_each_reading_visits_each_part_a_few_times(reading: str, name: str) -> None:
    kind, _, which = name.partition(" ")
    term = {"mask": MASKS, "rule": RULES}[kind][which]
    nodes = sum(1 for _ in walk(term))

    assert calls_of(READINGS[reading], term) <= CALLS_A_NODE * (nodes + 100)


@pytest.mark.parametrize("term", [*MASKS.values(), *RULES.values()], ids=[*MASKS, *RULES])
def test_a_large_formula_that_is_stored_is_the_same_object_again(term: Term) -> None:
    assert from_nodes(to_nodes(term)) is term
    assert pickle.loads(pickle.dumps(term)) is term


def doubling_mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    x = i - j
    for _ in range(20):
        x = x + x
    return x < 2**20 * 2


def long_mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    x = i - j
    for n in range(5000):
        x = x + (n % 3) * j
    return x < 5000


def long_score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    for _ in range(5000):
        s = s + (i - j) * 0.001
    return s


@pytest.mark.parametrize("engine", ["reference", "tiled", "native", "fused"])
def test_a_doubled_difference_masks_as_its_multiple(engine: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0))

    output = regard.attention(q, k, v, mask=doubling_mask, engine=engine)

    expected = regard.attention(q, k, v, mask=lambda b, h, i, j: i - j < 2, engine=engine)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("name", ["reference", "tiled"])
def test_chains_of_five_thousand_additions_compute_their_sum(name: str) -> None:
    q, k, v = torch.randn(3, 1, 1, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    masked = regard.attention(q, k, v, mask=long_mask, engine=name)
    changed = regard.attention(q, k, v, score=long_score, engine=name)

    few = regard.attention(q, k, v, mask=lambda b, h, i, j: i - j + 4999 * j < 5000, engine=name)
    at_once = regard.attention(q, k, v, score=lambda s, b, h, i, j: s + (i - j) * 5.0, engine=name)
    torch.testing.assert_close(masked, few)
    torch.testing.assert_close(changed, at_once, rtol=1e-6, atol=1e-6)


def test_the_native_engine_states_its_limit() -> None:
    with pytest.raises(regard.errors.EngineError, match="at most 1000 operations on a query and a key together"):
        regard.attention(*torch.randn(3, 1, 1, 5, 8), mask=long_mask, engine="native")


def test_a_large_formula_is_printed_by_its_size() -> None:
    assert text(MASKS["chain"]) == f"a formula of {len(to_nodes(MASKS['chain']))} operations on i, j"
    assert len(text(MASKS["doubled"])) < 3000
    assert repr(MASKS["chain"]) != repr(MASKS["doubled"]) and len(repr(MASKS["chain"])) < 60


def test_code_is_written_for_formulas_of_limited_size() -> None:
    with pytest.raises(SpecError, match="at most 1000 operations"):
        line(MASKS["doubled"], ())


def test_masks_joined_with_themselves_are_spelled_up_to_a_size() -> None:
    joined = mask.causal()
    for n in range(60):
        joined = (joined | mask.window(n + 1)) & (joined | mask.prefix(n))

    with pytest.raises(Unspeakable, match="more than 2000 parts"):
        spell(joined, [], [])


def test_a_chain_of_masks_is_spelled_up_to_a_depth() -> None:
    def joined(depth: int) -> Any:
        whole = mask.causal()
        for n in range(depth - 1):
            whole = whole | mask.window(n + 1)
        return whole

    tensors, numbers = [], []  # type: ignore[var-annotated]  # of tensors and whole numbers
    written = spell(joined(MAX_DEPTH), tensors, numbers)
    assert read_back(written, tensors, numbers).term is joined(MAX_DEPTH).term
    with pytest.raises(Unspeakable, match="more than 100 inside one another"):
        spell(joined(MAX_DEPTH + 1), [], [])


def test_a_formula_is_stored_up_to_a_size() -> None:
    x = variable("i")
    for n in range(MAX_NODES // 2 + 1):
        x = apply("add", x, apply("mul", variable("j"), constant(n)))

    with pytest.raises(Unspeakable, match=f"more than {MAX_NODES} operations"):
        spell(mask.from_term(apply("lt", x, constant(0)), (), ()), [], [])
    with pytest.raises(SpecError, match=rf"1 to {MAX_NODES} nodes; got \d+ nodes"):
        pickle.loads(pickle.dumps(x))


def test_a_long_mask_is_spelled_and_read() -> None:
    tensors: list[torch.Tensor] = []
    numbers: list[int] = []
    original = mask.where(long_mask)

    again = read_back(spell(original, tensors, numbers), tensors, numbers)

    assert again.term is original.term


def test_closures_of_large_formulas_give_the_numbers_of_evaluation() -> None:
    closures = Closures((), LENGTHS, 1, torch.device("cpu"))
    values = Evaluation((), positions()).condition(MASKS["chain"])
    for i in range(3):
        for j in range(4):
            index = (torch.tensor(n) for n in (0, 0, i, j))
            assert bool(closures.mask(MASKS["chain"])(*index)) == bool(values[0, 0, i, j])


def test_scores_with_chained_rules_keep_their_formula() -> None:
    chosen = score.scaled_dot()
    for _ in range(300):
        chosen = chosen.then(lambda s, b, h, i, j: s + 0.01)
    q, k, v = torch.randn(3, 1, 1, 5, 8, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(regard.attention(q, k, v, score=chosen), regard.attention(q, k, v))
