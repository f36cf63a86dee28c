"""The complexity experiment: counters, depths of known graphs, and detection of wrong formulas."""

import importlib

import pytest
import torch

from regard.mechanisms.registry import catalog
from regard.theory import complexity
from regard.theory.analysis.flop_scaling import (
    PLANNED_LENGTHS,
    count_flops,
    flop_exponents,
    multi_call_mechanisms,
    planned_flops,
    run_flops,
    single_call_mechanisms,
)

module = importlib.import_module("regard.theory.experiments.complexity")
SMALL = dict(embed_dim=16, num_tokens=16, mechanism_stride=8)


@pytest.fixture
def short_timings(monkeypatch):
    """Measure the times of short sequences: they are for the chart only."""
    monkeypatch.setattr(module, "TIMED_LENGTHS", (16, 32))


def test_flops_of_a_matrix_product():
    assert count_flops(lambda: torch.zeros(3, 4) @ torch.zeros(4, 5)) == 2 * 3 * 4 * 5


def test_planned_flops_count_visible_pairs():
    options = single_call_mechanisms()["sliding window"].options(1024)
    visible_pairs = int(options["mask"].to_dense(1024).sum())
    assert planned_flops(1024, options) == pytest.approx(4 * visible_pairs * 16, rel=1e-12)
    assert planned_flops(1024, {}) == 4 * 1024**2 * 16


def test_counted_flops_of_nystrom_match_its_formula():
    mechanism = multi_call_mechanisms()["Nyström attention"]
    assert [run_flops(n, mechanism.call) for n in (256, 512)] == [mechanism.work_formula(n) for n in (256, 512)]


def test_all_mechanisms_are_in_the_catalog():
    names = {mechanism.name for mechanism in catalog()}
    assert set(single_call_mechanisms()) | set(multi_call_mechanisms()) <= names


def test_the_formulas_match_the_catalog():
    formulas = {mechanism.name: mechanism.time_complexity for mechanism in catalog()}
    for name, mechanism in (single_call_mechanisms() | multi_call_mechanisms()).items():
        assert formulas[name].startswith(mechanism.formula), name


def test_stride_selects_mechanisms_and_progress_is_reported():
    fractions = []
    exponents = flop_exponents(10, fractions.append)
    assert len(exponents) == len(fractions) == -(-len(single_call_mechanisms() | multi_call_mechanisms()) // 10)
    assert fractions[-1] == 1.0


def test_planned_lengths_differ_by_a_factor_of_four():
    assert PLANNED_LENGTHS[1] == 4 * PLANNED_LENGTHS[0]


def test_flops_of_a_block_per_token_and_per_pair():
    for gated, entries in ((False, 12), (True, 16)):
        per_token, per_pair = module._block_flops(8, gated)
        assert per_token == 2 * entries * 8**2
        assert per_pair == 4 * 8


def test_longest_path_of_a_known_graph():
    x = torch.ones(1, requires_grad=True)
    y = x.exp().sin() + x.cos()  # exp, sin, the sum, and the node that accumulates the gradient
    assert module._longest_path(y) == 4


def test_graph_depth_grows_for_a_recurrent_cell_only():
    assert module._graph_depth(32, True) > 30 + module._graph_depth(2, True)
    assert module._graph_depth(2, False) == module._graph_depth(200, False)


@pytest.mark.parametrize(
    ("tokens", "window", "layers"), [(9, 3, [1, 4, 2]), (10, 3, [1, 5, 3]), (64, 8, [1, 9, 2]), (4, 16, [1, 1, 1])]
)
def test_layers_to_reach_the_first_token(tokens, window, layers):
    assert module._depths_to_reach_the_first_token(tokens, window) == layers


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("_block_flops", lambda width, gated: (2 * 11 * width**2, 4 * width)),
        ("_training_flops", lambda width: (4.0, 1)),
        ("_num_causal_pairs", lambda n: n * n // 2),
        ("_graph_depth", lambda n, cell: n if not cell else 5),
        ("_depths_to_reach_the_first_token", lambda tokens, window: [1, tokens // window + 2, 1]),
        ("six_n_d", lambda parameters, tokens, **others: 6 * parameters * tokens),
        ("crossover_length", lambda forward, length: 1024),
    ],
)
def test_a_wrong_formula_is_detected(monkeypatch, short_timings, name, replacement):
    monkeypatch.setattr(module, name, replacement)
    assert not complexity(**SMALL).is_consistent


def test_the_experiment_is_consistent_with_short_timings(short_timings):
    result = complexity(**SMALL)
    assert result.is_consistent, str(result)


def test_a_wrong_growth_of_flops_is_detected(monkeypatch, short_timings):
    flop_scaling = importlib.import_module("regard.theory.analysis.flop_scaling")
    monkeypatch.setattr(flop_scaling, "planned_flops", lambda n, options: float(n))
    assert not complexity(**SMALL).is_consistent
