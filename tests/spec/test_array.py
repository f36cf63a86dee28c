"""Arrays of any kind as tensors: shared where torch can, copied where it cannot, refused by name."""

import warnings

import numpy as np
import pytest
import torch

from regard.errors import SpecError
from regard.spec.array import as_tensor


def test_a_tensor_is_handed_back_itself() -> None:
    given = torch.ones(2)
    assert as_tensor(given, "q") is given


def test_an_array_shares_its_memory() -> None:
    given = np.zeros(3)
    as_tensor(given, "q")[1] = 5.0
    assert given.tolist() == [0.0, 5.0, 0.0]


def test_an_array_that_torch_cannot_share_is_copied_without_a_warning() -> None:
    locked = np.arange(3.0)
    locked.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_tensor(locked, "q").tolist() == [0.0, 1.0, 2.0]
        assert as_tensor(np.arange(3.0)[::-1], "q").tolist() == [2.0, 1.0, 0.0]
        assert as_tensor(np.arange(6).reshape(2, 3)[:, ::-1], "q").tolist() == [[2, 1, 0], [5, 4, 3]]


@pytest.mark.parametrize("numbers", [[1, 2], (1, 2), 3, 2.5, True, np.float32(1.5)], ids=str)
def test_numbers_become_tensors(numbers: object) -> None:
    assert as_tensor(numbers, "q").tolist() == (list(numbers) if isinstance(numbers, list | tuple) else numbers)


@pytest.mark.parametrize(
    "wrong, kind", [("text", "str"), ([1, "a"], "list"), ([[1], [1, 2]], "list"), (None, "NoneType")]
)
def test_what_holds_no_numbers_is_refused_by_its_name(wrong: object, kind: str) -> None:
    with pytest.raises(SpecError, match=rf"slopes must be a tensor or an array of numbers; got {kind} \("):
        as_tensor(wrong, "slopes")
