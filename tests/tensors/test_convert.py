"""Conversion to tensors: shared memory where possible, copies where necessary, errors with the argument's name."""

import warnings

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError
from regard.tensors.convert import as_tensor


def test_tensor_is_returned_unchanged() -> None:
    values = torch.ones(2)
    assert as_tensor(values, "q") is values


def test_array_shares_its_memory() -> None:
    values = np.zeros(3)
    as_tensor(values, "q")[1] = 5.0
    assert values.tolist() == [0.0, 5.0, 0.0]


def test_array_that_torch_cannot_share_is_copied_without_a_warning() -> None:
    read_only = np.arange(3.0)
    read_only.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_tensor(read_only, "q").tolist() == [0.0, 1.0, 2.0]
        assert as_tensor(np.arange(3.0)[::-1], "q").tolist() == [2.0, 1.0, 0.0]
        assert as_tensor(np.arange(6).reshape(2, 3)[:, ::-1], "q").tolist() == [[2, 1, 0], [5, 4, 3]]


@pytest.mark.parametrize("numbers", [[1, 2], (1, 2), 3, 2.5, True, np.float32(1.5)], ids=str)
def test_numbers_become_tensors(numbers: object) -> None:
    assert as_tensor(numbers, "q").tolist() == (list(numbers) if isinstance(numbers, list | tuple) else numbers)


@pytest.mark.parametrize(
    "value, type_name", [("text", "str"), ([1, "a"], "list"), ([[1], [1, 2]], "list"), (None, "NoneType")]
)
def test_value_without_numbers_raises_error_with_its_name(value: object, type_name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"slopes must be a tensor or an array of numbers; got {type_name} \("):
        as_tensor(value, "slopes")
