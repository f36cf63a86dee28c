"""Calls one after another as one matrix: what each query sees and how it scores must be what its own call said."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import mask, score, weigh
from regard.errors import SpecError
from regard.inside.tape import Tape
from regard.models.store import read
from tests.integrations.hugging_faces import SEQUENCES, words

HEADS, WIDTH, PROMPT, STEPS = 4, 8, 6, 5
CLOSE = dict(rtol=1e-5, atol=1e-6)  # the same numbers, in another order of sums


class Steps(nn.Module):
    """A prompt and then token by token, over the `latest` keys."""

    def __init__(self, latest: int = 1000, **options: Any) -> None:
        super().__init__()
        self.latest, self.options = latest, options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        seen = self.options.pop("mask", mask.causal())
        regard.attention(q[:, :, :PROMPT], k[:, :, :PROMPT], v[:, :, :PROMPT], mask=seen, **self.options)
        for n in range(PROMPT, PROMPT + STEPS):
            part = slice(max(0, n + 1 - self.latest), n + 1)
            regard.attention(q[:, :, n : n + 1], k[:, :, part], v[:, :, part], **self.at(n, part))

    def at(self, n: int, part: slice) -> dict[str, Any]:
        return self.options


class Biased(Steps):
    """With a bias for each pair, of which each step has its row."""

    def __init__(self, bias: Tensor, capped: bool, **options: Any) -> None:
        self.bias, self.score = (
            bias,
            score.scaled_dot(0.5).then(score.softcap(3.0)) if capped else score.scaled_dot(0.5),
        )
        super().__init__(score=self.score.then(score.bias(bias[:, :PROMPT, :PROMPT])), **options)

    def at(self, n: int, part: slice) -> dict[str, Any]:
        return {"score": self.score.then(score.bias(self.bias[:, n : n + 1, part]))}


def recorded(model: nn.Module) -> tuple[Tape, tuple[Tensor, ...]]:
    given = torch.randn(3, 2, HEADS, PROMPT + STEPS, WIDTH, generator=torch.Generator().manual_seed(0)).unbind()
    with regard.record(model) as tape:
        model(*given)
    return tape, given


LATEST = {"all keys": 1000, "the last four": 4}


@pytest.mark.parametrize("latest", LATEST.values(), ids=LATEST)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weigh": weigh.sink(torch.arange(4.0))},
        {"weigh": weigh.entmax(1.5), "score": score.cosine(3.0)},
        {"score": score.scaled_dot(0.3).then(score.softcap(2.0))},
    ],
    ids=["plain", "sink", "entmax of cosines", "softcap"],
)
def test_steps_are_the_rows_of_one_matrix(options: dict[str, Any], latest: int) -> None:
    tape, (q, k, v) = recorded(Steps(latest, **options))
    n = PROMPT + STEPS
    seen = mask.where(lambda b, h, i, j: (j <= i) & ((i < PROMPT) | (i - j < latest)))
    right = regard.attend(q, k, v, mask=seen, **options)
    found = tape[0]
    assert found.weights.shape == (2, HEADS, n, n)
    torch.testing.assert_close(found.weights[...], right.weights[...], **CLOSE)
    torch.testing.assert_close(found.output, right.output, **CLOSE)
    assert len(tape.heads()) == HEADS


@pytest.mark.parametrize("latest", LATEST.values(), ids=LATEST)
@pytest.mark.parametrize("capped", [False, True])
def test_rows_of_a_bias_are_put_together(capped: bool, latest: int) -> None:
    n = PROMPT + STEPS
    bias = torch.randn(HEADS, n, n, generator=torch.Generator().manual_seed(1))
    tape, (q, k, v) = recorded(model := Biased(bias, capped, latest=latest))
    seen = mask.where(lambda b, h, i, j: (j <= i) & ((i < PROMPT) | (i - j < latest)))
    right = regard.attend(q, k, v, mask=seen, score=model.score.then(score.bias(bias)))
    torch.testing.assert_close(tape[0].weights[...], right.weights[...], **CLOSE)


@pytest.mark.parametrize("latest", LATEST.values(), ids=LATEST)
def test_keys_are_kept_and_saved_once(latest: int, tmp_path: Path) -> None:
    tape, (_, k, _) = recorded(Steps(latest))
    (chain,) = tape.layers[0].chains
    torch.testing.assert_close(chain.k, k, rtol=0, atol=0)
    assert {take.k.untyped_storage().data_ptr() for take in chain.takes} == {chain.k.untyped_storage().data_ptr()}
    assert chain.k.untyped_storage().nbytes() <= k.nbytes * 1.25 + k.nbytes // k.shape[2]
    tape.save(tmp_path / "tape.safetensors")
    tensors, _ = read(tmp_path / "tape.safetensors")
    assert sum(t.shape[2] for name, t in tensors.items() if name.endswith(".k")) == PROMPT + STEPS
    again = regard.load_tape(tmp_path / "tape.safetensors")
    torch.testing.assert_close(again[0].weights[...], tape[0].weights[...], rtol=0, atol=0)
    for one, other in zip(again.calls(0), tape.calls(0), strict=True):
        torch.testing.assert_close(one.weights[...], other.weights[...], rtol=0, atol=0)


def test_a_budget_counts_keys_once() -> None:
    """They fit with a quarter to grow and a step on its way. Each step's own keys would be fifty times as many."""
    q, k, v = torch.randn(3, 1, 1, 102, WIDTH, generator=torch.Generator().manual_seed(0)).unbind()
    step = nn.Module()
    step.forward = lambda n: regard.attention(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1])  # type: ignore[method-assign]
    with regard.record(step, budget=6 * k.nbytes) as tape:
        for n in range(102):
            step(n)
    assert not tape.dropped
    assert tape[0].weights.shape == (1, 1, 102, 102)


def test_a_rule_of_distances_goes_on_over_all_keys() -> None:
    tape, (q, k, v) = recorded(Steps(score=score.alibi()))
    right = regard.attend(q, k, v, mask=mask.causal(), score=score.alibi())
    torch.testing.assert_close(tape[0].weights[...], right.weights[...], **CLOSE)


def test_each_head_keeps_what_it_sees() -> None:
    tape, _ = recorded(Steps(mask=mask.where(lambda b, h, i, j: j <= i - h * (i > 3))))
    whole = tape[0].weights[...]
    for step, rows in zip(tape.calls(0), whole.split([PROMPT] + [1] * STEPS, dim=2), strict=True):
        torch.testing.assert_close(rows[..., : step.weights.shape[3]], step.weights[...], **CLOSE)


class Across(Steps):
    """Queries one by one over keys that stay."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        for n in range(PROMPT):
            regard.attention(q[:, :, n : n + 1], k, v, **self.options)


def test_queries_over_keys_that_stay(tmp_path: Path) -> None:
    options = {"score": score.scaled_dot(0.5).then(lambda s, b, h, i, j: s - 0.1 * j)}
    tape, (q, k, v) = recorded(Across(**options))
    right = regard.attend(q[:, :, :PROMPT], k, v, **options)
    tape.save(tmp_path / "tape.safetensors")
    for each in (tape, regard.load_tape(tmp_path / "tape.safetensors")):
        torch.testing.assert_close(each[0].weights[...], right.weights[...], **CLOSE)


@pytest.mark.parametrize(
    "model",
    [
        Steps(4, score=score.alibi()),
        Across(score=score.alibi()),
        Steps(score=lambda s, b, h, i, j: s + 0.1 * i),
    ],
    ids=["places, and a cache that forgets", "places, and keys that stay", "numbers of queries"],
)
def test_rules_that_would_mean_something_else_are_left_apart(model: nn.Module) -> None:
    tape, _ = recorded(model)
    with pytest.raises(
        SpecError, match=r"called 6 times with other keys or rules\. Take them one by one: tape\.calls\(0\)"
    ):
        _ = tape[0]


def test_a_text_after_another_is_another() -> None:
    class Twice(Steps):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
            for part in (slice(0, 5), slice(5, 10)):
                regard.attention(q[:, :, part], k[:, :, part], v[:, :, part])

    tape, _ = recorded(Twice())
    with pytest.raises(SpecError, match="called 2 times with other keys or rules"):
        _ = tape[0]


@torch.no_grad()
def test_a_translator_that_writes_is_one_matrix_a_layer() -> None:
    """T5 adds a bias for each distance, of which each step has a row."""
    model = SEQUENCES["T5"].make()
    source = words(1, 8)
    with regard.record(model) as tape:
        written = model.generate(source, max_new_tokens=6, min_new_tokens=6, do_sample=False)[:, :-1]
    model.set_attn_implementation("eager")
    right = model(input_ids=source, decoder_input_ids=written, output_attentions=True)
    found = {path: tape[path].weights[...] for path in tape.paths}
    for number, (own, cross) in enumerate(zip(right.decoder_attentions, right.cross_attentions, strict=True)):
        base = f"decoder.block.{number}.layer"
        torch.testing.assert_close(found[f"{base}.0.SelfAttention"], own, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(found[f"{base}.1.EncDecAttention"], cross, rtol=1e-3, atol=1e-5)
