"""What is kept for tensors is found again for the same numbers, and for no others."""

import pytest
import torch
from torch import Tensor

from regard.plan.recent import Recent


class Maker:
    """Counts how often something is made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1.0, -0.0, torch.nan]),
        torch.tensor([True, False]),
        torch.tensor([3, 4]),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        torch.arange(12.0).view(3, 4).mT,
        (torch.arange(24) % 3 == 0)[9:17],
        torch.zeros(0),
        torch.tensor(3.0),
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)}",
)
def test_the_same_numbers_find_what_was_made(values: Tensor) -> None:
    recent, make = Recent[int](), Maker()

    assert [recent.get("key", [values], make) for _ in range(2)] == [1, 1]


def test_a_copy_finds_what_was_made() -> None:
    recent, make = Recent[int](), Maker()
    values = torch.arange(12.0)

    assert [recent.get("key", [x], make) for x in (values, values.clone())] == [1, 1]


def test_a_tensor_changed_in_place_is_not_mistaken() -> None:
    recent, make = Recent[int](), Maker()
    values = torch.tensor([1.0, 2.0])
    behind = values.numpy()
    recent.get("key", [values], make)

    behind[1] = 3.0  # torch does not notice

    assert recent.get("key", [values], make) == 2


@pytest.mark.parametrize(
    "other",
    [torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([[0.0, 1.0]]), torch.tensor([0, 1])],
    ids=["sign of zero", "longer", "more dimensions", "whole numbers"],
)
def test_other_numbers_are_made_anew(other: Tensor) -> None:
    recent, make = Recent[int](), Maker()
    recent.get("key", [torch.tensor([0.0, 1.0])], make)

    assert recent.get("key", [other], make) == 2


def test_another_key_is_made_anew() -> None:
    recent, make = Recent[int](), Maker()
    values = torch.ones(3)

    assert recent.get("one", [values], make) == 1 and recent.get("other", [values], make) == 2


def test_copies_are_few_and_the_oldest_go_first() -> None:
    recent, make = Recent[int](bytes_kept=100), Maker()
    small = [torch.full((10,), float(n)) for n in range(3)]  # 40 bytes each: two fit

    for n in (0, 1, 0, 2):  # number 1 is the one not used for longest
        recent.get(n, [small[n]], make)

    assert make.made == 3
    assert [recent.get(n, [small[n]], make) for n in (0, 2)] == [1, 3]
    assert recent.get(1, [small[1]], make) == 4


def test_what_is_large_is_not_copied() -> None:
    recent, make = Recent[int](bytes_kept=100), Maker()
    large = torch.zeros(26)

    assert [recent.get("key", [large], make) for _ in range(2)] == [1, 2]
