"""A covering sample of large families of tests: all cases of one test function are a family.

`make test` runs the sample and `make test-long` the other cases. In the sample each value of each parameter occurs, and
each value occurs on each backend and each build of the kernels. A list of cases with one parameter runs completely.
"""

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

MAX_UNSAMPLED_CASES = 12
PAIRED = ("backend", "build")  # every other value occurs with each value of these parameters


def mark_cases_outside_samples(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of each large family that its sample leaves out as long."""
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not _is_deselected(item):
            families[item.nodeid.partition("[")[0]].append(item)
    for name, cases in families.items():
        if len(cases) <= MAX_UNSAMPLED_CASES:
            continue
        sample = covering_sample([_case_values(case) for case in cases], seed=name)
        for index, case in enumerate(cases):
            if index not in sample:
                case.add_marker(pytest.mark.long)


def covering_sample(cases: Sequence[dict[str, object]], seed: str) -> set[int]:
    """Return the indices of cases that cover every value, and every value with each value of the paired parameters.

    The cases are visited in a random order, which depends on the seed only, so that values mix.
    """
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    covered: set[object] = set()
    sample = set()
    for index in order:
        values = set(cases[index].items())
        paired = {value for value in values if value[0] in PAIRED}
        covers = {frozenset((value, other)) for value in values for other in paired} | values
        if not covers <= covered:
            covered |= covers
            sample.add(index)
    return sample


def _is_deselected(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("long", "exhaustive"))


def _case_values(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    return {name: _hashable(value) for name, value in params.items()}


def _hashable(value: object) -> object:
    """Return a value that is equal for equal parameters. Parametrized objects are shared by the cases of a family."""
    return value if isinstance(value, str | int | float | bool | None) else id(value)
