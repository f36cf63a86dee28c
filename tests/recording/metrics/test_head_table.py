"""`find_heads` and `head_table` on models with planted heads: exactly the planted heads are found."""

import pytest
import torch

import regard
from regard.errors import ArgumentError
from tools.planted_heads import KINDS, build_planted_model, detection_errors


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("seed", range(4))
def test_planted_heads_are_found_and_no_others(kind: str | None, seed: int) -> None:
    planted = build_planted_model(kind, 5000 + seed)
    assert detection_errors(planted) == {name: (set(), set()) for name in KINDS}


def test_matches_print_their_scores() -> None:
    planted = build_planted_model("previous", 7)
    with torch.no_grad(), regard.record(planted.model) as recording:
        planted.model(planted.residual_stream)
    (head,) = recording.find_heads("previous")
    layer, index = planted.heads["previous"]
    assert str(head).startswith(f"layer {layer}, head {index} ({layer}): 1.00 on the previous token (uniform head: 0.")
    assert head.uniform == pytest.approx(sum(1 / (i + 1) for i in range(1, 100)) / 99, rel=1e-4)


def test_head_tables_are_sorted_filtered_and_printed() -> None:
    planted = build_planted_model("previous", 7)
    with torch.no_grad(), regard.record(planted.model) as recording:
        planted.model(planted.residual_stream)
    table = recording.head_table()
    assert len(table) == len(planted.model) * len(planted.model[0].w_qk)
    best = table.sort("previous")[0]
    assert (best["layer"], best["head"]) == planted.heads["previous"]
    assert table.sort("previous", descending=False)[-1] is best
    assert all(row["previous"] < 0.4 for row in table.filter(lambda row: row["previous"] < 0.4))
    lines = repr(table).splitlines()
    assert len(lines) == len(table) + 1 and lines[0].split()[:3] == ["layer", "head", "path"]
    assert table._repr_html_().count("<tr>") == len(table) + 1
    assert "entropy_uniform" in table.columns and "induction" not in table.columns


def test_unknown_kinds_and_columns_raise() -> None:
    planted = build_planted_model("previous", 7)
    with torch.no_grad(), regard.record(planted.model) as recording:
        planted.model(planted.residual_stream)
    with pytest.raises(ArgumentError, match=r"kind must be one of self, previous.*; got 'clever'\."):
        recording.find_heads("clever")
    with pytest.raises(ArgumentError, match=r"got 'induction'\. Set the tokens first: recording\.tokens = "):
        recording.find_heads("induction")
    with pytest.raises(ArgumentError, match=r"column must be one of layer, head, .*; got 'x'\.$"):
        recording.head_table().sort("x")
