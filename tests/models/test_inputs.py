"""Wrong sizes and tensors of models: refused before any work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import BudgetError, SpecError
from regard.models.encoder import TextEncoder
from regard.models.graph import GraphAttention, GraphNetwork
from regard.models.language import LanguageModel
from regard.models.multimodal import Describer
from regard.models.rnn_translation import RecurrentTranslator
from regard.models.sound import LogMel, read_wav, resampled
from regard.models.speech import SpeechClassifier
from regard.models.trained import is_trained
from regard.models.translation import Translator
from regard.models.vision import ImageEncoder, VisionTransformer
from regard.nn import Design

DESIGN = Design(8, 2, hidden=16)
TOKENS = torch.tensor([[1, 2, 3]])
IMAGE: dict[str, Any] = {"image": (8, 8), "patch": 2, "channels": 3, "layers": 1, "design": DESIGN}
SPEECH: dict[str, Any] = {"bands": 12, "channels": 4, "classes": 3, "layers": 1, "design": DESIGN, "position": None}


def _language(**options: Any) -> LanguageModel:
    return LanguageModel(**({"vocabulary": 11, "layers": 1, "design": DESIGN, "position": None} | options))


def _translator() -> Translator:
    return Translator((11, 12), layers=1, design=DESIGN, positions=(None, None))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: _language(vocabulary="x"), "vocabulary must be a whole number; got 'x'"),
        (lambda: _language(layers=-1), "layers must be a whole number from 1 to 100000; got -1"),
        (lambda: _language(design=[]), "a stack needs at least one design; got none"),
        (lambda: _language(position="x"), "position must be a Position or None; got 'x'"),
        (lambda: _language()(TOKENS[0]), r"tokens must be \(batch, n\); got shape \(3,\)"),
        (lambda: _language()(TOKENS + 10), "tokens must be from 0 to 10, the vocabulary; got 11 to 13"),
        (lambda: _language().logits(torch.ones(2, 7)), r"states must have shape \(..., 8\); got \(2, 7\)"),
        (lambda: TextEncoder(11, longest=8, layers=1, design=DESIGN, types=0), "types must be .* 1 to .*; got 0"),
        (
            lambda: TextEncoder(11, longest=8, layers=1, design=DESIGN)(TOKENS, types=TOKENS),
            "types must be from 0 to 1; got 1 to 3",
        ),
        (
            lambda: TextEncoder(11, longest=8, layers=1, design=DESIGN)(TOKENS, lengths=torch.tensor([4])),
            "lengths must be from 0 to 3; got 4 to 4",
        ),
        (lambda: ImageEncoder(**IMAGE | {"patch": 0}), "patch must be a whole number from 1 to 2147483647; got 0"),
        (lambda: ImageEncoder(**IMAGE)(torch.ones(1, 1, 8, 8)), r"shape \(batch, 3, height, width\); got \(1, 1, 8, 8"),
        (lambda: ImageEncoder(**IMAGE)(torch.ones(1, 3, 0, 8)), r"at least one patch of 2 x 2; got \(0, 8\)"),
        (lambda: VisionTransformer(**IMAGE, classes=-1), "classes must be a whole number from 1 .*; got -1"),
        (lambda: Translator((11,), layers=1, design=DESIGN, positions=(None, None)), "vocabularies must be a tuple of"),
        (lambda: _translator()(TOKENS, TOKENS.repeat(2, 1)[:0]), r"1 batch elements, or a multiple .*; got 0"),
        (
            lambda: Describer(11, eye=None, layers=1, design=DESIGN, position=None),
            "eye must be a .*; got None",
        ),
        (lambda: SpeechClassifier(**SPEECH | {"bands": 3}), "bands must be a whole number from 7 .*; got 3"),
        (lambda: SpeechClassifier(**SPEECH)(torch.ones(1, 20, 12).long()), "frames must hold floating point numbers"),
        (lambda: GraphNetwork(features=4, classes=3, width=5, heads=(2, 0)), "heads must be .* 1 to .*; got 0"),
        (
            lambda: GraphAttention(4, 5, heads=2)(torch.ones(3, 3), TOKENS),
            r"must have shape \(nodes, 4\); got \(3, 3",
        ),
        (
            lambda: GraphAttention(4, 5, heads=2)(torch.ones(3, 4), torch.tensor([[0], [3]])),
            "edges must be between nodes 0 and 2; got 0 to 3",
        ),
        (lambda: RecurrentTranslator((11, 12), width=-2), "width must be a whole number from 1 .*; got -2"),
        (
            lambda: RecurrentTranslator((11, 12), width=8)(TOKENS + 9, TOKENS),
            "source must be from 0 to 10; got 10",
        ),
        (lambda: LogMel(step=0), "step must be a whole number from 1 to 16777216; got 0"),
        (lambda: LogMel(lowest=4000.0), "lowest must be below half the rate, 4000.0; got 4000.0"),
        (lambda: resampled(torch.ones(0), 8000, 8000), r"with at least one sample; got shape \(0,\)"),
        (lambda: resampled(torch.ones(2), 8000, 1), "2 samples at rate 8000 is less than one sample at rate 1"),
        (lambda: read_wav("x"), "file must be a pathlib.Path or an open file; got 'x'"),
        (lambda: is_trained(None), "folder must be a path; got None"),
    ],
)
def test_wrong_calls_of_models_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


def test_models_that_no_machine_can_hold_are_refused() -> None:
    with pytest.raises(BudgetError, match=r"patches.weight of shape \(8, 1000000000, 1000, 1000\) would need 3.2e\+16"):
        ImageEncoder(**IMAGE | {"patch": 1000, "channels": 10**9, "image": (1000, 1000)})


def test_a_folder_without_a_run_is_not_trained(tmp_path: Path) -> None:
    assert not is_trained(tmp_path)
