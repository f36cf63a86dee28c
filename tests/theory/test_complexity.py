"""Complexity: counters against products written out, graphs against known depths, and what breaks it."""

import importlib

import pytest
import torch

from regard.mechanism.catalogue import mechanisms
from regard.theory import complexity
from regard.theory.growing import PLANNED, counted, grown, planned, planned_work, run, run_work

module = importlib.import_module("regard.theory.complexity")
SMALL = dict(width=16, tokens=16, every=8)


def test_a_product_counts_twice_its_three_lengths():
    assert counted(lambda: torch.zeros(3, 4) @ torch.zeros(4, 5)) == 2 * 3 * 4 * 5


def test_work_of_one_call_is_that_of_the_pairs_that_are_seen():
    options = planned()["window"].options(1024)
    seen = int(options["mask"].dense(1024).sum())
    assert planned_work(1024, options) == pytest.approx(4 * seen * 16, rel=1e-12)
    assert planned_work(1024, {}) == 4 * 1024**2 * 16


def test_work_that_is_run_is_what_nyström_takes_to_the_last_product():
    one = run()["Nyström attention"]
    assert [run_work(n, one.call) for n in (256, 512)] == [one.work(n) for n in (256, 512)]


def test_all_mechanisms_are_of_the_catalogue():
    known = {each.name for each in mechanisms()}
    assert set(planned()) | set(run()) <= known


def test_the_formulas_are_those_of_the_catalogue():
    written = {each.name: each.time for each in mechanisms()}
    for name, each in (planned() | run()).items():
        assert written[name].startswith(each.formula), name


def test_every_so_manyth_mechanism_is_counted_and_told():
    told = []
    found = grown(10, told.append)
    assert len(found) == len(told) == -(-len(planned() | run()) // 10)
    assert told[-1] == 1.0


def test_growth_is_between_lengths_that_differ_by_four():
    assert PLANNED[1] == 4 * PLANNED[0]


def test_a_token_of_a_block_takes_twice_its_entries_and_a_pair_four_times_its_width():
    for gated, entries in ((False, 12), (True, 16)):
        per_token, per_pair = module._parts(8, gated)
        assert per_token == 2 * entries * 8**2
        assert per_pair == 4 * 8


def test_the_longest_way_through_a_graph_is_found():
    x = torch.ones(1, requires_grad=True)
    y = x.exp().sin() + x.cos()  # exp, sin and the sum, after what gathers the gradient
    assert module._longest(y) == 4


def test_a_recurrent_cell_waits_for_the_one_before():
    assert module._depth(32, True) > 30 + module._depth(2, True)
    assert module._depth(2, False) == module._depth(200, False)


@pytest.mark.parametrize(
    ("tokens", "window", "layers"), [(9, 3, [1, 4, 2]), (10, 3, [1, 5, 3]), (64, 8, [1, 9, 2]), (4, 16, [1, 1, 1])]
)
def test_layers_until_the_last_token_has_heard_of_the_first(tokens, window, layers):
    assert module._layers_to_reach(tokens, window) == layers


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_parts", lambda width, gated: (2 * 11 * width**2, 4 * width)),
        ("_training", lambda width: (4.0, 1)),
        ("_pairs_seen", lambda n: n * n // 2),
        ("_depth", lambda n, cell: n if not cell else 5),
        ("_layers_to_reach", lambda tokens, window: [1, tokens // window + 2, 1]),
        ("six_n_d", lambda parameters, tokens, **others: 6 * parameters * tokens),
        ("crossing", lambda forward, length: 1024),
    ],
)
def test_a_wrong_formula_in_its_place_is_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(module, name, broken)
    assert not complexity(**SMALL).agrees


def test_a_mechanism_that_grows_otherwise_is_noticed(monkeypatch):
    growing = importlib.import_module("regard.theory.growing")
    monkeypatch.setattr(growing, "planned_work", lambda n, options: float(n))
    assert not complexity(**SMALL).agrees
