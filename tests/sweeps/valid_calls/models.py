"""Valid calls of `regard.models`: constructors, and methods that take tensors."""

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard import nn
from regard.files import tensors_with_metadata
from regard.models import audio, bundled, rnn_translation, translation
from regard.models.graph import GraphAttentionLayer, GraphAttentionNetwork
from regard.models.language import LanguageModel
from regard.models.multimodal import EncodedImages, ImageCaptioner
from regard.models.rnn_translation import RecurrentTranslator
from regard.models.speech import SpeechClassifier
from regard.models.state_dict import load_state_dict
from regard.models.text_encoder import TextEncoder
from regard.models.trained_model import has_trained_model
from regard.models.training import classification_result
from regard.models.translation import Translator
from regard.models.vision import ImageEncoder, VisionTransformer
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, ValidCall, args

CONFIG = nn.BlockConfig(8, 2, ffn_dim=16)
TOKENS = torch.tensor([[1, 2, 3]])
IMAGES, FRAMES = numbers(1, 3, 8, 8), numbers(1, 20, 12)
NODES, EDGES = numbers(3, 4), torch.tensor([[0, 1], [2, 2]])


def language_model(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    return (
        LanguageModel(11, num_layers=1, block_config=CONFIG, position_encoding=nn.RotaryEmbedding(4), **options)
        .eval()
        .requires_grad_(False)
    )


def call(function: Callable[..., Any], *positional: Any, use: Any = None, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return args(*positional, **keywords)

    name = f"{function.__module__}.{function.__qualname__}"
    return ValidCall(name, lambda: function, arguments, use)


def method(cls: type, name: str, make: Callable[[], Any], *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return args(*positional, **keywords)

    return ValidCall(f"{cls.__module__}.{cls.__name__}.{name}", lambda: getattr(make(), name), arguments)


def recurrent_translator() -> RecurrentTranslator:
    return RecurrentTranslator((11, 12), hidden_size=8)


def without_gradients(model: Any) -> Any:
    return model.eval().requires_grad_(False)


def wav_file() -> Path:
    with wave.open("sound.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(200))
    return Path("sound.wav")


def vision() -> VisionTransformer:
    return VisionTransformer(
        image_size=(8, 8), patch_size=2, num_channels=3, num_classes=4, num_layers=1, block_config=CONFIG
    )


def apply_to_images(model: Any) -> Any:
    return model(IMAGES)


def image_encoder() -> ImageEncoder:
    return ImageEncoder(image_size=(8, 8), patch_size=2, num_channels=3, num_layers=1, block_config=CONFIG)


def captioner() -> ImageCaptioner:
    return ImageCaptioner(
        11, vision_encoder=image_encoder(), num_layers=1, block_config=CONFIG, position_encoding=nn.RotaryEmbedding(4)
    )


def translator() -> Translator:
    return Translator((11, 12), num_layers=1, block_config=CONFIG, position_encodings=(None, None))


SPEECH: dict[str, Any] = {
    "n_mels": 12,
    "conv_channels": 4,
    "num_classes": 3,
    "num_layers": 1,
    "block_config": CONFIG,
    "position_encoding": None,
}


def weights_file() -> str:
    tensors_with_metadata.save_tensors_and_metadata("weights.safetensors", {"a": torch.ones(2)}, {"kind": "test"})
    return "weights.safetensors"


CALLS = [
    call(
        LanguageModel,
        11,
        num_layers=1,
        block_config=CONFIG,
        position_encoding=nn.RotaryEmbedding(4),
        use=lambda model: model(TOKENS),
    ),
    method(LanguageModel, "forward", language_model, TOKENS),
    method(LanguageModel, "hidden_states", language_model, TOKENS),
    method(LanguageModel, "logits", language_model, numbers(1, 3, 8)),
    method(LanguageModel, "next_token_logits", language_model, TOKENS, nn.KeyValueCache()),
    call(
        GraphAttentionNetwork,
        in_features=4,
        num_classes=3,
        head_dim=5,
        num_heads=(2, 1),
        use=lambda model: model(NODES, EDGES),
    ),
    method(
        GraphAttentionNetwork,
        "forward",
        lambda: GraphAttentionNetwork(in_features=4, num_classes=3, head_dim=5, num_heads=(2, 1)),
        NODES,
        EDGES,
    ),
    call(GraphAttentionLayer, 4, 5, num_heads=2, use=lambda model: model(NODES, EDGES)),
    method(GraphAttentionLayer, "attention_weights", lambda: GraphAttentionLayer(4, 5, num_heads=2), NODES, EDGES),
    call(TextEncoder, 11, max_len=8, num_layers=1, block_config=CONFIG, use=lambda model: model(TOKENS)),
    method(TextEncoder, "forward", lambda: TextEncoder(11, max_len=8, num_layers=1, block_config=CONFIG), TOKENS),
    call(
        ImageEncoder,
        image_size=(8, 8),
        patch_size=2,
        num_channels=3,
        num_layers=1,
        block_config=CONFIG,
        use=lambda model: model(IMAGES),
    ),
    call(
        VisionTransformer,
        image_size=(8, 8),
        patch_size=2,
        num_channels=3,
        num_classes=4,
        num_layers=1,
        block_config=CONFIG,
        use=apply_to_images,
    ),
    method(VisionTransformer, "forward", vision, IMAGES),
    method(VisionTransformer, "attention_with_weights", vision, IMAGES),
    call(
        ImageCaptioner,
        11,
        vision_encoder=image_encoder(),
        num_layers=1,
        block_config=CONFIG,
        position_encoding=None,
        use=lambda model: model(TOKENS, IMAGES),
    ),
    method(ImageCaptioner, "forward", captioner, TOKENS, IMAGES),
    method(ImageCaptioner, "attention_with_weights", captioner, TOKENS, IMAGES),
    method(ImageCaptioner, "load_language_model", captioner, language_model()),
    call(SpeechClassifier, **SPEECH, use=lambda model: model(FRAMES)),
    method(SpeechClassifier, "forward", lambda: SpeechClassifier(**SPEECH), FRAMES, lengths=torch.tensor([20])),
    method(SpeechClassifier, "attention_with_weights", lambda: SpeechClassifier(**SPEECH), FRAMES),
    call(
        Translator,
        (11, 12),
        num_layers=1,
        block_config=CONFIG,
        position_encodings=(None, None),
        use=lambda model: model(TOKENS, TOKENS),
    ),
    method(Translator, "forward", translator, TOKENS, TOKENS, lengths=torch.tensor([2])),
    method(Translator, "encode_source", translator, TOKENS),
    call(RecurrentTranslator, (11, 12), hidden_size=8, use=lambda model: model(TOKENS, TOKENS)),
    method(RecurrentTranslator, "forward", lambda: RecurrentTranslator((11, 12), hidden_size=8), TOKENS, TOKENS),
    call(classification_result, numbers(2, 5), torch.tensor([1, 2]), 0.1),
    call(audio.LogMelSpectrogram, use=lambda model: model(numbers(1, 4000))),
    method(
        TextEncoder,
        "pool",
        lambda: TextEncoder(11, max_len=8, num_layers=1, block_config=CONFIG, add_pooling_layer=True),
        numbers(1, 3, 8),
    ),
    method(GraphAttentionLayer, "forward", lambda: GraphAttentionLayer(4, 5, num_heads=2), NODES, EDGES),
    method(
        GraphAttentionNetwork,
        "attention_weights",
        lambda: GraphAttentionNetwork(in_features=4, num_classes=3, head_dim=5, num_heads=(2, 1)),
        NODES,
        EDGES,
    ),
    method(ImageCaptioner, "encode_images", captioner, IMAGES),
    method(ImageCaptioner, "image_features", captioner, IMAGES),
    method(EncodedImages, "logits", lambda: captioner().encode_images(IMAGES), TOKENS),
    method(
        EncodedImages,
        "next_token_logits",
        lambda: without_gradients(captioner()).encode_images(IMAGES),
        TOKENS,
        nn.KeyValueCache(),
    ),
    method(
        rnn_translation.RecurrentEncodedSource, "logits", lambda: recurrent_translator().encode_source(TOKENS), TOKENS
    ),
    method(
        rnn_translation.RecurrentEncodedSource,
        "attention_weights",
        lambda: recurrent_translator().encode_source(TOKENS),
        TOKENS,
    ),
    method(RecurrentTranslator, "encode_source", recurrent_translator, TOKENS),
    method(translation.EncodedSource, "logits", lambda: translator().encode_source(TOKENS), TOKENS),
    method(SpeechClassifier, "hidden_states", lambda: SpeechClassifier(**SPEECH), FRAMES),
    method(SpeechClassifier, "embed_frames", lambda: SpeechClassifier(**SPEECH), FRAMES),
    method(audio.LogMelSpectrogram, "num_frames", lambda: audio.LogMelSpectrogram(), torch.tensor([4000])),
    *(
        method(ImageEncoder, name, image_encoder, IMAGES)
        for name in ("forward", "hidden_states", "attention_with_weights", "embed_images")
    ),
    call(bundled.language_model),
    call(bundled.date_translator),
    call(has_trained_model, "folder"),
    call(load_state_dict, torch.nn.Linear(2, 1, bias=False), {"weight": torch.ones(1, 2)}, "source"),
    ValidCall(
        "regard.files.tensors_with_metadata.load_metadata",
        lambda: tensors_with_metadata.load_metadata,
        lambda: args(Path(weights_file())),
    ),
    ValidCall("regard.models.audio.read_wav", lambda: audio.read_wav, lambda: args(wav_file())),
    call(audio.hz_to_mel, torch.tensor([440.0])),
    call(audio.mel_to_hz, torch.tensor([5.0])),
    call(audio.resample, numbers(100), 16000, 8000),
    call(tensors_with_metadata.save_tensors_and_metadata, "weights.safetensors", {"a": torch.ones(2)}),
    ValidCall(
        "regard.files.tensors_with_metadata.load_tensors_and_metadata",
        lambda: tensors_with_metadata.load_tensors_and_metadata,
        lambda: args(weights_file()),
    ),
]

LEFT_OUT = {
    "regard.models.pretrained.load_pretrained": "needs a folder of weights; tests/models/test_pretrained.py",
    "regard.models.multimodal.EncodedImages": "a result of ImageCaptioner.encode_images; its methods are in the table",
    "regard.models.rnn_translation.RecurrentEncodedSource": "a result of RecurrentTranslator.encode_source",
    "regard.models.translation.EncodedSource": "a result of Translator.encode_source",
    "regard.models.trained_model.load_trained": "needs a training run; tests/models/test_trained_model.py",
    "regard.models.pretrained.ModelFamily": "describes a family of models",
    "regard.models.pretrained.TensorSource": "describes a family of models",
    "regard.models.multimodal.GatedCrossAttention": "a part of ImageCaptioner",
    "regard.models.multimodal.FlamingoBlock": "a part of ImageCaptioner",
    "regard.models.multimodal.FlamingoDecoder": "a part of ImageCaptioner",
    "regard.models.rnn_translation.Alignment": "a part of RecurrentTranslator",
    "regard.models.rnn_translation.DecoderSteps": "a part of RecurrentTranslator",
    "regard.models.speech.ConvSubsampling": "a part of SpeechClassifier",
    "regard.models.speech.conv_output_length": "a part of SpeechClassifier",
    "regard.models.speech.normalize_frames": "a part of SpeechClassifier",
    "regard.models.speech.subsampled_lengths": "a part of SpeechClassifier",
    "regard.models.audio.mel_filterbank": "a part of LogMelSpectrogram",
    "regard.models.state_dict.check_state_dict": "called by load_state_dict",
    "regard.models.tokenizer.Tokenizer": "needs a trained vocabulary; tests/models",
    **{
        f"regard.models.training.{name}": "a part of training; tests/models/test_training.py"
        for name in (
            "BatchResult",
            "Recipe",
            "StepReport",
            "ContextParallelModel",
            "Task",
            "Trainer",
            "override_recipe",
            "curve_json",
        )
    },
    "regard.models.trained_model.TrainedModel": "a result of load_trained",
    "regard.models.trained_model.save_trained": "called by the train command",
}
