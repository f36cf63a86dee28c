"""Every architecture of transformers that generates: on regard it decodes, and trains, as it does on "eager"."""

import warnings
from typing import Any

import pytest
import transformers

from regard.errors import ArgumentError
from regard.integrations.huggingface import attention_interface
from tests.integrations.architectures import UNSUPPORTED, UNUSABLE, WITHOUT_ATTENTION, generating_classes, tiny_model
from tests.integrations.decoding import (
    LENGTH,
    assert_checkpointed_gradients_match_eager,
    assert_decoding_matches_eager,
    gradients,
    inputs,
)

# models whose layers change their mask, whose masks are windows, chunks or floats, and a few plain ones
SAMPLE = [
    "DeepseekV4ForCausalLM",
    "DogeForCausalLM",
    "Gemma4ForCausalLM",
    "GptOssForCausalLM",
    "GraniteSWAForCausalLM",
    "LlamaForCausalLM",
    "Llama4ForCausalLM",
    "MiniMaxForCausalLM",
    "MistralForCausalLM",
    "ModernBertDecoderForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen4ExpForCausalLM",
    "T5ForConditionalGeneration",
]
TRAINED = [
    "DeepseekV4ForCausalLM",
    "DogeForCausalLM",
    "GptOssForCausalLM",
    "LlamaForCausalLM",
    "T5ForConditionalGeneration",
]


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    attention_interface.register()
    transformers.logging.set_verbosity_error()


def model_of(class_name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the models' own files
        return tiny_model(class_name)


@pytest.mark.long
@pytest.mark.parametrize("class_name", SAMPLE)
def test_an_architecture_decodes_as_it_does_on_eager(class_name: str) -> None:
    assert assert_decoding_matches_eager(model_of(class_name)) > 0


@pytest.mark.long
@pytest.mark.parametrize("class_name", TRAINED)
def test_checkpointed_training_has_the_gradients_of_eager(class_name: str) -> None:
    assert_checkpointed_gradients_match_eager(model_of(class_name))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # of the models' own files, and that a model computes its attention itself
@pytest.mark.parametrize("class_name", generating_classes())
def test_every_architecture_decodes_and_trains_as_it_does_on_eager(class_name: str) -> None:
    if class_name in UNUSABLE:
        pytest.skip(UNUSABLE[class_name])
    model = model_of(class_name)
    if class_name in UNSUPPORTED:
        model.set_attn_implementation("regard")
        with pytest.raises(
            ArgumentError, match=r"also passed indices, which .* Load this model with attn_implementation='\w+'"
        ):
            model(**inputs(model, 0, LENGTH, None))
        return
    calls = assert_decoding_matches_eager(model)
    # a model that computes its attention itself was set back to another backend; parts of a model may be served
    assert calls > 0 or model.config._attn_implementation != "regard" or class_name in WITHOUT_ATTENTION
    if model.supports_gradient_checkpointing and trains_on_eager(model):
        assert_checkpointed_gradients_match_eager(model)


def trains_on_eager(model: Any) -> bool:
    """Whether eager has gradients: some models do not recompute layers, and some give NaN where a text is padded."""
    try:
        return all(gradient.isfinite().all() for gradient in gradients(model, "eager").values())
    except Exception:  # eager may raise any error
        return False
