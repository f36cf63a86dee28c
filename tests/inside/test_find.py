"""`find` on models whose heads are known: the planted ones are found, and nothing else is."""

import pytest
import torch

import regard
from regard.errors import SpecError
from tools.planted import KINDS, judged, planted


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("seed", range(4))
def test_planted_heads_are_found_and_no_others(kind: str | None, seed: int) -> None:
    one = planted(kind, 5000 + seed)
    assert judged(one) == {name: (set(), set()) for name in KINDS}


def test_what_is_found_says_why() -> None:
    one = planted("previous", 7)
    with torch.no_grad(), regard.record(one.model) as tape:
        one.model(one.stream)
    (head,) = tape.find("previous")
    layer, number = one.heads["previous"]
    assert str(head).startswith(
        f"layer {layer}, head {number} ({layer}): 1.00 on the token before, where a uniform head has"
    )
    assert head.uniform == pytest.approx(sum(1 / (i + 1) for i in range(1, 100)) / 99, rel=1e-4)


def test_a_table_sorts_and_filters_and_prints() -> None:
    one = planted("previous", 7)
    with torch.no_grad(), regard.record(one.model) as tape:
        one.model(one.stream)
    heads = tape.heads()
    assert len(heads) == len(one.model) * len(one.model[0].match)
    best = heads.sort("previous")[0]
    assert (best["layer"], best["head"]) == one.heads["previous"]
    assert heads.sort("previous", largest_first=False)[-1] is best
    assert all(row["previous"] < 0.4 for row in heads.where(lambda row: row["previous"] < 0.4))
    lines = repr(heads).splitlines()
    assert len(lines) == len(heads) + 1 and lines[0].split()[:3] == ["layer", "head", "path"]
    assert heads._repr_html_().count("<tr>") == len(heads) + 1
    assert "entropy_uniform" in heads.columns and "induction" not in heads.columns


def test_asking_for_what_is_not_there_says_what_to_do() -> None:
    one = planted("previous", 7)
    with torch.no_grad(), regard.record(one.model) as tape:
        one.model(one.stream)
    with pytest.raises(SpecError, match=r"a kind of head must be one of self, previous.*; got 'clever'\."):
        tape.find("clever")
    with pytest.raises(SpecError, match=r"got 'induction'\. Give the tape its tokens first: tape\.tokens = "):
        tape.find("induction")
    with pytest.raises(SpecError, match=r"a column must be one of layer, head, .*; got 'x'\.$"):
        tape.heads().sort("x")
