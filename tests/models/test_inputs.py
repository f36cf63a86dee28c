"""Invalid sizes and tensors of models raise before any work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import ArgumentError, BudgetError
from regard.models.audio import LogMelSpectrogram, read_wav, resample
from regard.models.graph import GraphAttentionLayer, GraphAttentionNetwork
from regard.models.language import LanguageModel
from regard.models.multimodal import ImageCaptioner
from regard.models.rnn_translation import RecurrentTranslator
from regard.models.speech import SpeechClassifier
from regard.models.text_encoder import TextEncoder
from regard.models.trained_model import has_trained_model
from regard.models.translation import Translator
from regard.models.vision import ImageEncoder, VisionTransformer
from regard.nn import BlockConfig

CONFIG = BlockConfig(8, 2, ffn_dim=16)
TOKENS = torch.tensor([[1, 2, 3]])
IMAGE: dict[str, Any] = {
    "image_size": (8, 8),
    "patch_size": 2,
    "num_channels": 3,
    "num_layers": 1,
    "block_config": CONFIG,
}
SPEECH: dict[str, Any] = {
    "n_mels": 12,
    "conv_channels": 4,
    "num_classes": 3,
    "num_layers": 1,
    "block_config": CONFIG,
    "position_encoding": None,
}


def _language_model(**options: Any) -> LanguageModel:
    defaults = {"vocab_size": 11, "num_layers": 1, "block_config": CONFIG, "position_encoding": None}
    return LanguageModel(**(defaults | options))


def _translator() -> Translator:
    return Translator((11, 12), num_layers=1, block_config=CONFIG, position_encodings=(None, None))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: _language_model(vocab_size="x"), "vocab_size must be an integer; got 'x'"),
        (lambda: _language_model(num_layers=-1), "num_layers must be an integer from 1 to 100000; got -1"),
        (
            lambda: _language_model(block_config=[]),
            "block_config must hold at least one BlockConfig; got an empty sequence",
        ),
        (
            lambda: _language_model(position_encoding="x"),
            "position_encoding must be a PositionEncoding or None; got 'x'",
        ),
        (lambda: _language_model()(TOKENS[0]), r"tokens must be \(batch, n\); got shape \(3,\)"),
        (lambda: _language_model()(TOKENS + 10), "tokens must be from 0 to vocab_size - 1 = 10; got 11 to 13"),
        (lambda: _language_model().logits(torch.ones(2, 7)), r"hidden_states must have shape \(..., 8\); got \(2, 7\)"),
        (
            lambda: TextEncoder(11, max_len=8, num_layers=1, block_config=CONFIG, type_vocab_size=0),
            "type_vocab_size must be .* 1 to .*; got 0",
        ),
        (
            lambda: TextEncoder(11, max_len=8, num_layers=1, block_config=CONFIG)(TOKENS, token_type_ids=TOKENS),
            "token_type_ids must be from 0 to 1; got 1 to 3",
        ),
        (
            lambda: TextEncoder(11, max_len=8, num_layers=1, block_config=CONFIG)(TOKENS, lengths=torch.tensor([4])),
            "lengths must be from 0 to 3; got 4 to 4",
        ),
        (
            lambda: ImageEncoder(**IMAGE | {"patch_size": 0}),
            "patch_size must be an integer from 1 to 2147483647; got 0",
        ),
        (lambda: ImageEncoder(**IMAGE)(torch.ones(1, 1, 8, 8)), r"shape \(batch, 3, height, width\); got \(1, 1, 8, 8"),
        (lambda: ImageEncoder(**IMAGE)(torch.ones(1, 3, 0, 8)), r"at least one patch of 2 x 2; got \(0, 8\)"),
        (lambda: VisionTransformer(**IMAGE, num_classes=-1), "num_classes must be an integer from 1 .*; got -1"),
        (
            lambda: Translator((11,), num_layers=1, block_config=CONFIG, position_encodings=(None, None)),
            "vocab_sizes must be a tuple of",
        ),
        (lambda: _translator()(TOKENS, TOKENS.repeat(2, 1)[:0]), r"1 batch elements, or a multiple .*; got 0"),
        (
            lambda: ImageCaptioner(11, vision_encoder=None, num_layers=1, block_config=CONFIG, position_encoding=None),
            "vision_encoder must be a .*; got None",
        ),
        (lambda: SpeechClassifier(**SPEECH | {"n_mels": 3}), "n_mels must be an integer from 7 .*; got 3"),
        (lambda: SpeechClassifier(**SPEECH)(torch.ones(1, 20, 12).long()), "frames must hold floating point numbers"),
        (
            lambda: GraphAttentionNetwork(in_features=4, num_classes=3, head_dim=5, num_heads=(2, 0)),
            "num_heads must be .* 1 to .*; got 0",
        ),
        (
            lambda: GraphAttentionLayer(4, 5, num_heads=2)(torch.ones(3, 3), TOKENS),
            r"must have shape \(nodes, 4\); got \(3, 3",
        ),
        (
            lambda: GraphAttentionLayer(4, 5, num_heads=2)(torch.ones(3, 4), torch.tensor([[0], [3]])),
            "edge_index must hold nodes from 0 to 2; got 0 to 3",
        ),
        (lambda: RecurrentTranslator((11, 12), hidden_size=-2), "hidden_size must be an integer from 1 .*; got -2"),
        (
            lambda: RecurrentTranslator((11, 12), hidden_size=8)(TOKENS + 9, TOKENS),
            "source must be from 0 to 10; got 10",
        ),
        (lambda: LogMelSpectrogram(hop_length=0), "hop_length must be an integer from 1 to 16777216; got 0"),
        (lambda: LogMelSpectrogram(f_min=4000.0), "f_min must be below sample_rate / 2, 4000.0; got 4000.0"),
        (lambda: resample(torch.ones(0), 8000, 8000), r"with at least one sample; got shape \(0,\)"),
        (lambda: resample(torch.ones(2), 8000, 1), "at least one sample at new_freq=1; got 2 at orig_freq=8000"),
        (lambda: read_wav("x"), "file must be a pathlib.Path or an open file; got 'x'"),
        (lambda: has_trained_model(None), "folder must be a path; got None"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_models_too_large_for_memory_raise() -> None:
    with pytest.raises(
        BudgetError, match=r"patch_embedding.weight of shape \(8, 1000000000, 1000, 1000\) would need 3.2e\+16"
    ):
        ImageEncoder(**IMAGE | {"patch_size": 1000, "num_channels": 10**9, "image_size": (1000, 1000)})


def test_an_empty_folder_has_no_trained_model(tmp_path: Path) -> None:
    assert not has_trained_model(tmp_path)
