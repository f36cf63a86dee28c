"""Valid calls of `regard.models`: constructors, and the methods that take tensors of users."""

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard import nn
from regard.models import rnn_translation, shipped, sound, store, translation
from regard.models.encoder import TextEncoder
from regard.models.graph import GraphAttention, GraphNetwork
from regard.models.language import LanguageModel
from regard.models.multimodal import Describer, Seen
from regard.models.rnn_translation import RecurrentTranslator
from regard.models.speech import SpeechClassifier
from regard.models.train import answers
from regard.models.trained import is_trained
from regard.models.translation import Translator
from regard.models.vision import ImageEncoder, VisionTransformer
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, ValidCall, given

DESIGN = nn.Design(8, 2, hidden=16)
TOKENS = torch.tensor([[1, 2, 3]])
IMAGES, FRAMES = numbers(1, 3, 8, 8), numbers(1, 20, 12)
NODES, EDGES = numbers(3, 4), torch.tensor([[0, 1], [2, 2]])


def language(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(11, layers=1, design=DESIGN, position=nn.Rotary(4), **options).eval().requires_grad_(False)


def made(function: Callable[..., Any], *positional: Any, use: Any = None, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return given(*positional, **keywords)

    name = f"{function.__module__}.{function.__qualname__}"
    return ValidCall(name, lambda: function, arguments, use)


def method(cls: type, name: str, make: Callable[[], Any], *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return given(*positional, **keywords)

    return ValidCall(f"{cls.__module__}.{cls.__name__}.{name}", lambda: getattr(make(), name), arguments)


def recurrent() -> RecurrentTranslator:
    return RecurrentTranslator((11, 12), width=8)


def without_gradients(model: Any) -> Any:
    return model.eval().requires_grad_(False)


def a_wav() -> Path:
    with wave.open("sound.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(200))
    return Path("sound.wav")


def vision() -> VisionTransformer:
    return VisionTransformer(image=(8, 8), patch=2, channels=3, classes=4, layers=1, design=DESIGN)


def on_images(model: Any) -> Any:
    return model(IMAGES)


def eye() -> ImageEncoder:
    return ImageEncoder(image=(8, 8), patch=2, channels=3, layers=1, design=DESIGN)


def describer() -> Describer:
    return Describer(11, eye=eye(), layers=1, design=DESIGN, position=nn.Rotary(4))


def translator() -> Translator:
    return Translator((11, 12), layers=1, design=DESIGN, positions=(None, None))


SPEECH: dict[str, Any] = {"bands": 12, "channels": 4, "classes": 3, "layers": 1, "design": DESIGN, "position": None}


def written() -> str:
    store.write("weights.safetensors", {"a": torch.ones(2)}, {"kind": "test"})
    return "weights.safetensors"


CALLS = [
    made(LanguageModel, 11, layers=1, design=DESIGN, position=nn.Rotary(4), use=lambda one: one(TOKENS)),
    method(LanguageModel, "forward", language, TOKENS),
    method(LanguageModel, "states", language, TOKENS),
    method(LanguageModel, "logits", language, numbers(1, 3, 8)),
    method(LanguageModel, "following", language, TOKENS, nn.KeyValueCache()),
    made(GraphNetwork, features=4, classes=3, width=5, heads=(2, 1), use=lambda one: one(NODES, EDGES)),
    method(GraphNetwork, "forward", lambda: GraphNetwork(features=4, classes=3, width=5, heads=(2, 1)), NODES, EDGES),
    made(GraphAttention, 4, 5, heads=2, use=lambda one: one(NODES, EDGES)),
    method(GraphAttention, "attend", lambda: GraphAttention(4, 5, heads=2), NODES, EDGES),
    made(TextEncoder, 11, longest=8, layers=1, design=DESIGN, use=lambda one: one(TOKENS)),
    method(TextEncoder, "forward", lambda: TextEncoder(11, longest=8, layers=1, design=DESIGN), TOKENS),
    made(ImageEncoder, image=(8, 8), patch=2, channels=3, layers=1, design=DESIGN, use=lambda one: one(IMAGES)),
    made(VisionTransformer, image=(8, 8), patch=2, channels=3, classes=4, layers=1, design=DESIGN, use=on_images),
    method(VisionTransformer, "forward", vision, IMAGES),
    method(VisionTransformer, "attend", vision, IMAGES),
    made(Describer, 11, eye=eye(), layers=1, design=DESIGN, position=None, use=lambda one: one(TOKENS, IMAGES)),
    method(Describer, "forward", describer, TOKENS, IMAGES),
    method(Describer, "attend", describer, TOKENS, IMAGES),
    method(Describer, "adopt", describer, language()),
    made(SpeechClassifier, **SPEECH, use=lambda one: one(FRAMES)),
    method(SpeechClassifier, "forward", lambda: SpeechClassifier(**SPEECH), FRAMES, lengths=torch.tensor([20])),
    method(SpeechClassifier, "attend", lambda: SpeechClassifier(**SPEECH), FRAMES),
    made(Translator, (11, 12), layers=1, design=DESIGN, positions=(None, None), use=lambda one: one(TOKENS, TOKENS)),
    method(Translator, "forward", translator, TOKENS, TOKENS, lengths=torch.tensor([2])),
    method(Translator, "reading", translator, TOKENS),
    made(RecurrentTranslator, (11, 12), width=8, use=lambda one: one(TOKENS, TOKENS)),
    method(RecurrentTranslator, "forward", lambda: RecurrentTranslator((11, 12), width=8), TOKENS, TOKENS),
    made(answers, numbers(2, 5), torch.tensor([1, 2]), 0.1),
    made(sound.LogMel, use=lambda one: one(numbers(1, 4000))),
    method(
        TextEncoder,
        "pooled",
        lambda: TextEncoder(11, longest=8, layers=1, design=DESIGN, pooler=True),
        numbers(1, 3, 8),
    ),
    method(GraphAttention, "forward", lambda: GraphAttention(4, 5, heads=2), NODES, EDGES),
    method(GraphNetwork, "attend", lambda: GraphNetwork(features=4, classes=3, width=5, heads=(2, 1)), NODES, EDGES),
    method(Describer, "seeing", describer, IMAGES),
    method(Describer, "patches", describer, IMAGES),
    method(Seen, "logits", lambda: describer().seeing(IMAGES), TOKENS),
    method(Seen, "following", lambda: without_gradients(describer()).seeing(IMAGES), TOKENS, nn.KeyValueCache()),
    method(rnn_translation.Reading, "logits", lambda: recurrent().reading(TOKENS), TOKENS),
    method(rnn_translation.Reading, "attend", lambda: recurrent().reading(TOKENS), TOKENS),
    method(RecurrentTranslator, "reading", recurrent, TOKENS),
    method(translation.Reading, "logits", lambda: translator().reading(TOKENS), TOKENS),
    method(SpeechClassifier, "states", lambda: SpeechClassifier(**SPEECH), FRAMES),
    method(SpeechClassifier, "tokens", lambda: SpeechClassifier(**SPEECH), FRAMES),
    method(sound.LogMel, "lengths", lambda: sound.LogMel(), torch.tensor([4000])),
    *(method(ImageEncoder, name, eye, IMAGES) for name in ("forward", "states", "attend", "tokens")),
    made(shipped.language_model),
    made(shipped.translator),
    made(is_trained, "folder"),
    made(store.fit, torch.nn.Linear(2, 1, bias=False), {"weight": torch.ones(1, 2)}, "source"),
    ValidCall("regard.models.store.read_words", lambda: store.read_words, lambda: given(Path(written()))),
    ValidCall("regard.models.sound.read_wav", lambda: sound.read_wav, lambda: given(a_wav())),
    made(sound.mel, torch.tensor([440.0])),
    made(sound.hertz, torch.tensor([5.0])),
    made(sound.resampled, numbers(100), 16000, 8000),
    made(store.write, "weights.safetensors", {"a": torch.ones(2)}),
    ValidCall("regard.models.store.read", lambda: store.read, lambda: given(written())),
]

LEFT_OUT = {
    "regard.models.load.load": "needs a folder of weights; tests/models/test_load.py",
    "regard.models.multimodal.Seen": "a result, made by Describer.seeing; its methods are in the table",
    "regard.models.rnn_translation.Reading": "a result, made by RecurrentTranslator.reading",
    "regard.models.translation.Reading": "a result, made by Translator.reading",
    "regard.models.trained.trained": "needs a training; tests/models/test_trained.py",
    "regard.models.load.Family": "a description of a family of models",
    "regard.models.load.Part": "a description of a family of models",
    "regard.models.multimodal.GatedLook": "a part of Describer",
    "regard.models.multimodal.SeeingBlock": "a part of Describer",
    "regard.models.multimodal.SeeingDecoder": "a part of Describer",
    "regard.models.rnn_translation.Alignment": "a part of RecurrentTranslator",
    "regard.models.rnn_translation.Walk": "a part of RecurrentTranslator",
    "regard.models.speech.Subsampling": "a part of SpeechClassifier",
    "regard.models.speech.halved": "a part of SpeechClassifier",
    "regard.models.speech.levelled": "a part of SpeechClassifier",
    "regard.models.speech.tokens_of": "a part of SpeechClassifier",
    "regard.models.sound.triangles": "a part of LogMel",
    "regard.models.graph.check_edges": "called by the models of graphs",
    "regard.models.store.check_fit": "called by fit",
    "regard.models.text.Tokens": "needs a learned vocabulary; tests/models",
    **{
        f"regard.models.train.{name}": "part of a training, which `regard train` starts; tests/models/test_train.py"
        for name in ("Outcome", "Recipe", "Report", "Spread", "Task", "Training", "changed", "curve_json")
    },
    "regard.models.trained.Trained": "a result, made by trained",
    "regard.models.trained.write_trained": "called by a training",
}
