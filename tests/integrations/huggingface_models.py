"""Hugging Face models of many kinds, tiny and with random weights, with their inputs and outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=99)
TEXT = dict(**SIZES, max_position_embeddings=64)
GROUPED = dict(**TEXT, num_key_value_heads=2)
BATCH_SIZE, LENGTH, WINDOW, NEW_TOKENS = 2, 12, 5, 8


def build_model(model_class: type, config_class: type, **options: Any) -> Any:
    """Return a model with larger weights than the default initialization, whose attention would be almost uniform."""
    torch.manual_seed(0)
    model = model_class(config_class(**options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.copy_(0.25 * torch.randn(parameter.shape))
            elif name.endswith("sinks"):
                parameter.copy_(torch.randn(parameter.shape))
    if hasattr(model, "generation_config"):
        model.generation_config.update(eos_token_id=None, pad_token_id=0, bos_token_id=1, decoder_start_token_id=1)
    return model


def token_ids(batch_size: int = BATCH_SIZE, length: int = LENGTH) -> Tensor:
    return torch.randint(3, 99, (batch_size, length), generator=torch.Generator().manual_seed(1))


def padding_mask(side: str, length: int = LENGTH) -> Tensor:
    """Return an attention mask in which the second sequence has four padding tokens."""
    mask = torch.ones(BATCH_SIZE, length, dtype=torch.long)
    mask[1, slice(0, 4) if side == "left" else slice(-4, None)] = 0
    return mask


@dataclass(frozen=True)
class ModelCase:
    """A model, its inputs, the outputs to compare, and the number of attention calls of a forward pass."""

    build: Callable[[], Any]
    num_calls: int = 2

    def inputs(self) -> dict[str, Any]:
        raise NotImplementedError

    def outputs(self, output: Any) -> list[Tensor]:
        raise NotImplementedError


class DecoderCase(ModelCase):
    def inputs(self) -> dict[str, Any]:
        return dict(input_ids=token_ids(), attention_mask=padding_mask("left"))

    def outputs(self, output: Any) -> list[Tensor]:
        return [output.logits[padding_mask("left").bool()]]


class EncoderCase(ModelCase):
    def inputs(self) -> dict[str, Any]:
        return dict(input_ids=token_ids(), attention_mask=padding_mask("right"))

    def outputs(self, output: Any) -> list[Tensor]:
        return [output.last_hidden_state[padding_mask("right").bool()]]


class EncoderDecoderCase(ModelCase):
    def inputs(self) -> dict[str, Any]:
        return dict(
            input_ids=token_ids(),
            attention_mask=padding_mask("right"),
            decoder_input_ids=token_ids(length=7).flip(0),
            use_cache=False,
        )

    def outputs(self, output: Any) -> list[Tensor]:
        return [output.logits, output.encoder_last_hidden_state[padding_mask("right").bool()]]


class SpeechCase(EncoderDecoderCase):
    def inputs(self) -> dict[str, Any]:
        return dict(
            input_features=torch.randn(BATCH_SIZE, 8, 40), decoder_input_ids=token_ids(length=7), use_cache=False
        )

    def outputs(self, output: Any) -> list[Tensor]:
        return [output.logits, output.encoder_last_hidden_state]


class AudioCase(ModelCase):
    def inputs(self) -> dict[str, Any]:
        mask = torch.ones(BATCH_SIZE, 400, dtype=torch.long)
        mask[1, 250:] = 0
        return dict(input_values=torch.randn(BATCH_SIZE, 400), attention_mask=mask)

    def outputs(self, output: Any) -> list[Tensor]:
        return [output.last_hidden_state[0], output.last_hidden_state[1, :10]]


class ImageCase(ModelCase):
    def inputs(self) -> dict[str, Any]:
        return dict(pixel_values=torch.randn(BATCH_SIZE, 3, 32, 32))

    def outputs(self, output: Any) -> list[Tensor]:
        return [output.last_hidden_state]


class ImageTextCase(ModelCase):
    def inputs(self) -> dict[str, Any]:
        return dict(
            pixel_values=torch.randn(BATCH_SIZE, 3, 32, 32), input_ids=token_ids(), attention_mask=padding_mask("right")
        )

    def outputs(self, output: Any) -> list[Tensor]:
        return [output.logits_per_text]


def builder(class_name: str, **options: Any) -> Callable[[], Any]:
    """Return a function that builds a model of a class of transformers."""
    model_class = getattr(transformers, class_name)
    return lambda: build_model(model_class, model_class.config_class, **options)


T5 = dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=99, decoder_start_token_id=1)
BART = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    vocab_size=99,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
)
VISION = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32)
LATENT = dict(
    **TEXT,
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
)

DECODERS: dict[str, ModelCase] = {
    "GPT-2": DecoderCase(builder("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=99)),
    "OPT": DecoderCase(builder("OPTForCausalLM", **TEXT, ffn_dim=48, word_embed_proj_dim=32)),
    "Llama": DecoderCase(builder("LlamaForCausalLM", **GROUPED)),
    "Mistral": DecoderCase(builder("MistralForCausalLM", **GROUPED, sliding_window=WINDOW)),
    "Qwen2": DecoderCase(builder("Qwen2ForCausalLM", **GROUPED)),
    "Qwen3": DecoderCase(builder("Qwen3ForCausalLM", **GROUPED, head_dim=8)),
    "Gemma2": DecoderCase(
        builder(
            "Gemma2ForCausalLM",
            **GROUPED,
            head_dim=8,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=5.0,
            sliding_window=WINDOW,
        )
    ),
    "Gemma3": DecoderCase(
        builder(
            "Gemma3ForCausalLM",
            **GROUPED,
            head_dim=8,
            query_pre_attn_scalar=16,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "GPT-NeoX": DecoderCase(builder("GPTNeoXForCausalLM", **TEXT)),
    "DeepSeek-V3": DecoderCase(builder("DeepseekV3ForCausalLM", **LATENT)),
    "GPT-OSS": DecoderCase(
        builder(
            "GptOssForCausalLM",
            **GROUPED,
            head_dim=8,
            sliding_window=WINDOW,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
    ),
    "Phi3": DecoderCase(builder("Phi3ForCausalLM", **GROUPED, pad_token_id=0)),
    "StableLM": DecoderCase(builder("StableLmForCausalLM", **GROUPED)),
    "Mixtral": DecoderCase(builder("MixtralForCausalLM", **GROUPED, num_local_experts=4)),
    "Olmo2": DecoderCase(builder("Olmo2ForCausalLM", **GROUPED)),
    "Llama 4": DecoderCase(
        builder(
            "Llama4ForCausalLM",
            **GROUPED,
            head_dim=8,
            attention_chunk_size=WINDOW,
            intermediate_size_mlp=48,
            num_local_experts=2,
            pad_token_id=0,
        )
    ),
    "Cohere": DecoderCase(builder("CohereForCausalLM", **GROUPED, logit_scale=1.0)),
}
ENCODERS: dict[str, ModelCase] = {
    "BERT": EncoderCase(builder("BertModel", **TEXT)),
    "RoBERTa": EncoderCase(builder("RobertaModel", **TEXT)),
    "DistilBERT": EncoderCase(
        builder(
            "DistilBertModel", dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=99, max_position_embeddings=64
        )
    ),
    "ModernBERT": EncoderCase(
        builder(
            "ModernBertModel",
            **TEXT,
            local_attention=4,
            layer_types=["sliding_attention", "full_attention"],
            pad_token_id=0,
        )
    ),
    "Electra": EncoderCase(builder("ElectraModel", **TEXT, embedding_size=32)),
}
ENCODER_DECODERS: dict[str, ModelCase] = {
    "T5": EncoderDecoderCase(builder("T5ForConditionalGeneration", **T5), num_calls=6),
    "BART": EncoderDecoderCase(
        builder("BartForConditionalGeneration", **BART, max_position_embeddings=64), num_calls=6
    ),
    "Marian": EncoderDecoderCase(
        builder("MarianMTModel", **BART, max_position_embeddings=64, pad_token_id=0), num_calls=6
    ),
    "Whisper": SpeechCase(
        builder(
            "WhisperForConditionalGeneration",
            **BART,
            num_mel_bins=8,
            max_source_positions=20,
            max_target_positions=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        num_calls=6,
    ),
}
VISION_AND_AUDIO: dict[str, ModelCase] = {
    "ViT": ImageCase(builder("ViTModel", **VISION, patch_size=8)),
    "Swin": ImageCase(
        builder("SwinModel", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
        num_calls=4,
    ),
    "CLIP": ImageTextCase(
        builder(
            "CLIPModel",
            text_config=dict(**TEXT, eos_token_id=2),
            vision_config=dict(**VISION, patch_size=8),
            projection_dim=16,
        ),
        num_calls=4,
    ),
    "Wav2Vec2": AudioCase(
        builder(
            "Wav2Vec2Model",
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            conv_dim=[16, 16],
            conv_kernel=[10, 3],
            conv_stride=[5, 2],
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        )
    ),
}
ALL_MODELS = DECODERS | ENCODERS | ENCODER_DECODERS | VISION_AND_AUDIO

# models that do not support "sdpa" and expect the masks of "eager"; some layers add the masks themselves
EAGER_MASK_MODELS: dict[str, ModelCase] = {
    "Splinter": EncoderCase(builder("SplinterModel", **TEXT)),
    "CLAP": EncoderCase(builder("ClapTextModel", **TEXT)),
    "NLLB-MoE": EncoderDecoderCase(
        builder("NllbMoeForConditionalGeneration", **BART, max_position_embeddings=64, num_experts=4, pad_token_id=0),
        num_calls=6,
    ),
    "Pegasus-X": EncoderDecoderCase(
        builder("PegasusXForConditionalGeneration", **BART, max_position_embeddings=64, pad_token_id=0), num_calls=4
    ),
    "BigBird-Pegasus": EncoderDecoderCase(
        builder("BigBirdPegasusForConditionalGeneration", **BART, max_position_embeddings=64, pad_token_id=0),
        num_calls=4,
    ),
}
