"""Wrong settings of experiments and wrong arguments of checks: refused before any work."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard import theory
from regard.errors import SpecError
from regard.nn import Design, Encoder

X = torch.randn(1, 3, 4)


@pytest.mark.parametrize("name", [experiment.name for experiment in theory.experiments()])
def test_every_experiment_refuses_wrong_settings(name: str) -> None:
    function = getattr(theory, name)
    with pytest.raises(SpecError, match="seed must be a whole number from 0 to 9223372036854775807; got 'x'"):
        function(seed="x")
    with pytest.raises(SpecError, match="progress must be a function of the share of the work that is done; got 3"):
        function(progress=3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: theory.collapse(tokens=-1), "tokens must be a whole number from 1 to 1000000; got -1"),
        (lambda: theory.scaling(keys=10**9), "keys must be a whole number from 1 to 1000000; got 1000000000"),
        (lambda: theory.heat(sigma=math.nan), "sigma must be a finite number above 0 and at most 1000000; got nan"),
        (lambda: theory.check_causality(None, 4), r"layer must be a function of x \(batch, n, width\); got None"),
        (lambda: theory.check_causality(lambda: 0, 4), r"function of x, \(2, 1, 4\); calling it failed: .*lambda"),
        (
            lambda: theory.check_equivariance(lambda x: x, "x"),
            "width must be .* from 1 to 1048576; got 'x'",
        ),
        (
            lambda: theory.check_independence(lambda x: x, 4, lengths=[-1]),
            "lengths must be a whole number .* -1",
        ),
        (lambda: theory.check_independence(lambda x: x, 4, within=math.nan), "within must be a finite number .* nan"),
        (lambda: theory.check_normalised("x"), "weights must be a tensor or an array of numbers; got str"),
        (lambda: theory.check_normalised(X, mask=X), "mask must hold booleans; got torch.float32"),
        (lambda: theory.check_normalised(X, mask=torch.ones(5) > 0), r"to the weights, \(1, 3, 4\); got \(5,\)"),
        (lambda: theory.influence(lambda x: x, None), r"x must be a tensor of shape \(batch, n, width\); got None"),
        (lambda: theory.experiment(3), "an experiment must be one of scaling, .*; got 3"),
        (lambda: theory.gradient_path_norms(Encoder(Design(8, 2), 1), X), r"\(1, 3, 4\) in torch.float32, .*; got"),
        (lambda: theory.gradient_path_norms(Encoder(Design(4, 2), 1), X, loss=int), "functions of x, .* failed"),
        (lambda: theory.gradient_path_norms(None, X), "module must be a torch.nn.Module; got None"),
        (lambda: theory.gradient_path_norms(torch.nn.Linear(4, 4), X, parts={"a": 3}), "pairs of modules .* got 3"),
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()
