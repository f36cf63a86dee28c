"""The pictures of the gallery: their rows, and the properties of the catalog that they show."""

import pytest
import torch

from regard.errors import ArgumentError
from regard.mechanisms import catalog
from regard.mechanisms.weight_matrices import MATRICES, NUM_TOKENS, GalleryInput, weight_matrix

NAMES = [m.name for m in catalog()]
every_name = pytest.mark.parametrize("name", NAMES)
ROWS_WITH_OTHER_SUMS = {  # the others are normalized
    *("sink (softmax1)", "sigmoid", "ReLU", "Luong, local-p", "Routing Transformer"),
    *("retention (RetNet)", "gated linear attention", "delta rule (DeltaNet)"),
    *("Linformer", "Nyström attention"),
}


CASES = [(num_fixed, seed) for num_fixed in (6, 21) for seed in range(3)]


def matrix(name: str, x: GalleryInput) -> torch.Tensor:
    with torch.no_grad():
        return MATRICES[name](x).reshape(NUM_TOKENS, NUM_TOKENS)


def test_every_mechanism_has_a_picture() -> None:
    assert sorted(MATRICES) == sorted(NAMES)


def test_an_unknown_name_raises() -> None:
    with pytest.raises(ArgumentError, match="must be a mechanism of the catalog; got 'maxsoft'"):
        weight_matrix("maxsoft")


@every_name
def test_rows_sum_to_one_unless_the_definition_differs(name: str) -> None:
    weights = weight_matrix(name)
    assert weights.shape == (32, 32) and weights.dtype == torch.float64 and weights.isfinite().all()
    is_normalized = bool((weights.sum(-1) - 1).abs().max() < 1e-6)  # Sinkhorn stops after a number of iterations
    assert is_normalized == (name not in ROWS_WITH_OTHER_SUMS)


@every_name
def test_sparse_mechanisms_have_exact_zeros_among_earlier_keys(name: str) -> None:
    earlier = torch.ones(32, 32, dtype=torch.bool).tril()
    zeros = (weight_matrix(name)[earlier] == 0).double().mean()
    # a product of ReLU features, as in cosFormer, is 0 for a few pairs
    assert catalog().find(name).sparse == bool(zeros > 0.1)


@every_name
def test_learned_mechanisms_depend_on_their_parameters(name: str) -> None:
    one, other = (matrix(name, GalleryInput(parameter_seed=seed)) for seed in (0, 5))
    assert catalog().find(name).learned == (not torch.equal(one, other))


@every_name
def test_later_tokens_have_no_effect_on_causal_mechanisms(name: str) -> None:
    if name == "Sinkhorn":  # its columns cannot sum to a constant under a causal mask
        with pytest.raises(ArgumentError, match="sinkhorn requires a mask"):
            largest_change(name, 21, 0)
        assert not catalog().find(name).causal
        return
    assert catalog().find(name).causal == (max(largest_change(name, *case) for case in CASES) < 1e-10)


def largest_change(name: str, num_fixed: int, seed: int) -> float:
    """The largest change of a weight of the first queries, in the causal form, when later tokens change."""
    generator = torch.Generator().manual_seed(seed)
    original, changed = GalleryInput(causal=True), GalleryInput(causal=True)
    for x in (changed.q, changed.k):
        later = x[..., num_fixed:, :]
        later += 2 * torch.randn(later.shape, generator=generator, dtype=x.dtype)
    difference = matrix(name, original) - matrix(name, changed)
    return float(difference[:num_fixed].abs().max())


@pytest.mark.parametrize("name", ["block-sparse by scores", "Reformer (LSH attention)", "Routing Transformer"])
def test_later_keys_have_no_weight_in_forms_that_only_hide_them(name: str) -> None:
    assert matrix(name, GalleryInput(causal=True)).triu(1).eq(0).all()
    assert not catalog().find(name).causal
