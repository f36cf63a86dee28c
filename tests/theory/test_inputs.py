"""Invalid settings of experiments and invalid arguments of checks raise before any work."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard import theory
from regard.errors import ArgumentError
from regard.nn import BlockConfig, Encoder

X = torch.randn(1, 3, 4)


@pytest.mark.parametrize("name", [experiment.name for experiment in theory.list_experiments()])
def test_invalid_settings_of_every_experiment_raise(name: str) -> None:
    function = getattr(theory, name)
    with pytest.raises(ArgumentError, match="seed must be an integer from 0 to 9223372036854775807; got 'x'"):
        function(seed="x")
    with pytest.raises(ArgumentError, match="progress must be a function of the completed fraction of the work; got 3"):
        function(progress=3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: theory.rank_collapse(num_tokens=-1), "num_tokens must be an integer from 1 to 1000000; got -1"),
        (
            lambda: theory.score_scaling(num_keys=10**9),
            "num_keys must be an integer from 1 to 1000000; got 1000000000",
        ),
        (
            lambda: theory.heat_diffusion(sigma=math.nan),
            "sigma must be a finite number above 0 and at most 1000000; got nan",
        ),
        (lambda: theory.check_causality(None, 4), r"layer must be a function of x \(batch, n, embed_dim\); got None"),
        (lambda: theory.check_causality(lambda: 0, 4), r"function of x, \(2, 1, 4\); calling it failed: .*lambda"),
        (
            lambda: theory.check_equivariance(lambda x: x, "x"),
            "embed_dim must be .* from 1 to 1048576; got 'x'",
        ),
        (
            lambda: theory.check_batch_independence(lambda x: x, 4, lengths=[-1]),
            "lengths must be an integer .* -1",
        ),
        (
            lambda: theory.check_batch_independence(lambda x: x, 4, tolerance=math.nan),
            "tolerance must be a finite number .* nan",
        ),
        (lambda: theory.check_normalized("x"), "weights must be a tensor or an array of numbers; got str"),
        (lambda: theory.check_normalized(X, mask=X), "mask must hold booleans; got torch.float32"),
        (lambda: theory.check_normalized(X, mask=torch.ones(5) > 0), r"to the weights, \(1, 3, 4\); got \(5,\)"),
        (
            lambda: theory.position_influence(lambda x: x, None),
            r"x must be a tensor of shape \(batch, n, embed_dim\); got None",
        ),
        (lambda: theory.get_experiment(3), "name must be one of score_scaling, .*; got 3"),
        (
            lambda: theory.gradient_path_norms(Encoder(BlockConfig(8, 2), 1), X),
            r"\(1, 3, 4\) in torch.float32, .*; got",
        ),
        (lambda: theory.gradient_path_norms(Encoder(BlockConfig(4, 2), 1), X, loss=int), "functions of x, .* failed"),
        (lambda: theory.gradient_path_norms(None, X), "module must be a torch.nn.Module; got None"),
        (lambda: theory.gradient_path_norms(torch.nn.Linear(4, 4), X, branches={"a": 3}), "pairs of modules .* got 3"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
