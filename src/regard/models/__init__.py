"""Complete models, one readable file each; their training; and two trained models that are part of the package."""

from regard.models.bundled import date_translator, language_model
from regard.models.graph import GraphAttentionNetwork
from regard.models.language import LanguageModel
from regard.models.multimodal import ImageCaptioner
from regard.models.pretrained import load_pretrained
from regard.models.rnn_translation import RecurrentTranslator
from regard.models.speech import SpeechClassifier
from regard.models.text_encoder import TextEncoder
from regard.models.tokenizer import Tokenizer
from regard.models.trained_model import TrainedModel, has_trained_model, load_trained
from regard.models.training import Recipe, Trainer
from regard.models.translation import Translator
from regard.models.vision import ImageEncoder, VisionTransformer

__all__ = [
    "GraphAttentionNetwork",
    "ImageCaptioner",
    "ImageEncoder",
    "LanguageModel",
    "Recipe",
    "RecurrentTranslator",
    "SpeechClassifier",
    "TextEncoder",
    "Tokenizer",
    "TrainedModel",
    "Trainer",
    "Translator",
    "VisionTransformer",
    "date_translator",
    "has_trained_model",
    "language_model",
    "load_pretrained",
    "load_trained",
]


def __dir__() -> list[str]:
    return sorted(__all__)
