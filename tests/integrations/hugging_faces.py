"""Hugging Face's models of many kinds, tiny and with random weights, and what they are given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=99)
TEXT = dict(**SIZES, max_position_embeddings=64)
GROUPED = dict(**TEXT, num_key_value_heads=2)
BATCH, LENGTH, WINDOW, NEW = 2, 12, 5, 8


def made(model: type, config: type, **options: Any) -> Any:
    """A model whose attention is far from uniform: matrices of the library's own size would leave it so."""
    torch.manual_seed(0)
    result = model(config(**options)).eval()
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.copy_(0.25 * torch.randn(parameter.shape))
            elif name.endswith("sinks"):
                parameter.copy_(torch.randn(parameter.shape))
    if hasattr(result, "generation_config"):
        result.generation_config.update(eos_token_id=None, pad_token_id=0, bos_token_id=1, decoder_start_token_id=1)
    return result


def words(batch: int = BATCH, length: int = LENGTH) -> Tensor:
    return torch.randint(3, 99, (batch, length), generator=torch.Generator().manual_seed(1))


def padding(side: str, length: int = LENGTH) -> Tensor:
    """The first sequence is whole, the second has four places too many."""
    real = torch.ones(BATCH, length, dtype=torch.long)
    real[1, slice(0, 4) if side == "left" else slice(-4, None)] = 0
    return real


@dataclass(frozen=True)
class Sort:
    """A model, what it is given, which of its answers count, and how often a forward pass asks for attention."""

    make: Callable[[], Any]
    calls: int = 2

    def given(self) -> dict[str, Any]:
        raise NotImplementedError

    def answers(self, output: Any) -> list[Tensor]:
        raise NotImplementedError


class Decoder(Sort):
    def given(self) -> dict[str, Any]:
        return dict(input_ids=words(), attention_mask=padding("left"))

    def answers(self, output: Any) -> list[Tensor]:
        return [output.logits[padding("left").bool()]]


class Encoder(Sort):
    def given(self) -> dict[str, Any]:
        return dict(input_ids=words(), attention_mask=padding("right"))

    def answers(self, output: Any) -> list[Tensor]:
        return [output.last_hidden_state[padding("right").bool()]]


class Both(Sort):
    """Encoder and decoder."""

    def given(self) -> dict[str, Any]:
        return dict(
            input_ids=words(),
            attention_mask=padding("right"),
            decoder_input_ids=words(length=7).flip(0),
            use_cache=False,
        )

    def answers(self, output: Any) -> list[Tensor]:
        return [output.logits, output.encoder_last_hidden_state[padding("right").bool()]]


class Speech(Both):
    def given(self) -> dict[str, Any]:
        return dict(input_features=torch.randn(BATCH, 8, 40), decoder_input_ids=words(length=7), use_cache=False)

    def answers(self, output: Any) -> list[Tensor]:
        return [output.logits, output.encoder_last_hidden_state]


class Sound(Sort):
    def given(self) -> dict[str, Any]:
        real = torch.ones(BATCH, 400, dtype=torch.long)
        real[1, 250:] = 0
        return dict(input_values=torch.randn(BATCH, 400), attention_mask=real)

    def answers(self, output: Any) -> list[Tensor]:
        return [output.last_hidden_state[0], output.last_hidden_state[1, :10]]


class Image(Sort):
    def given(self) -> dict[str, Any]:
        return dict(pixel_values=torch.randn(BATCH, 3, 32, 32))

    def answers(self, output: Any) -> list[Tensor]:
        return [output.last_hidden_state]


class ImageAndText(Sort):
    def given(self) -> dict[str, Any]:
        return dict(pixel_values=torch.randn(BATCH, 3, 32, 32), input_ids=words(), attention_mask=padding("right"))

    def answers(self, output: Any) -> list[Tensor]:
        return [output.logits_per_text]


def model(name: str, **options: Any) -> Callable[[], Any]:
    """A class of transformers and its configuration, found by the beginning of their names."""
    kind = getattr(transformers, name)
    return lambda: made(kind, kind.config_class, **options)


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

DECODERS: dict[str, Sort] = {
    "GPT-2": Decoder(model("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=99)),
    "OPT": Decoder(model("OPTForCausalLM", **TEXT, ffn_dim=48, word_embed_proj_dim=32)),
    "Llama": Decoder(model("LlamaForCausalLM", **GROUPED)),
    "Mistral": Decoder(model("MistralForCausalLM", **GROUPED, sliding_window=WINDOW)),
    "Qwen2": Decoder(model("Qwen2ForCausalLM", **GROUPED)),
    "Qwen3": Decoder(model("Qwen3ForCausalLM", **GROUPED, head_dim=8)),
    "Gemma2": Decoder(
        model(
            "Gemma2ForCausalLM",
            **GROUPED,
            head_dim=8,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=5.0,
            sliding_window=WINDOW,
        )
    ),
    "Gemma3": Decoder(
        model(
            "Gemma3ForCausalLM",
            **GROUPED,
            head_dim=8,
            query_pre_attn_scalar=16,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "GPT-NeoX": Decoder(model("GPTNeoXForCausalLM", **TEXT)),
    "DeepSeek-V3": Decoder(model("DeepseekV3ForCausalLM", **LATENT)),
    "GPT-OSS": Decoder(
        model(
            "GptOssForCausalLM",
            **GROUPED,
            head_dim=8,
            sliding_window=WINDOW,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
    ),
    "Phi3": Decoder(model("Phi3ForCausalLM", **GROUPED, pad_token_id=0)),
    "StableLM": Decoder(model("StableLmForCausalLM", **GROUPED)),
    "Mixtral": Decoder(model("MixtralForCausalLM", **GROUPED, num_local_experts=4)),
    "Olmo2": Decoder(model("Olmo2ForCausalLM", **GROUPED)),
    "Llama 4": Decoder(
        model(
            "Llama4ForCausalLM",
            **GROUPED,
            head_dim=8,
            attention_chunk_size=WINDOW,
            intermediate_size_mlp=48,
            num_local_experts=2,
            pad_token_id=0,
        )
    ),
    "Cohere": Decoder(model("CohereForCausalLM", **GROUPED, logit_scale=1.0)),
}
ENCODERS: dict[str, Sort] = {
    "BERT": Encoder(model("BertModel", **TEXT)),
    "RoBERTa": Encoder(model("RobertaModel", **TEXT)),
    "DistilBERT": Encoder(
        model(
            "DistilBertModel", dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=99, max_position_embeddings=64
        )
    ),
    "ModernBERT": Encoder(
        model(
            "ModernBertModel",
            **TEXT,
            local_attention=4,
            layer_types=["sliding_attention", "full_attention"],
            pad_token_id=0,
        )
    ),
    "Electra": Encoder(model("ElectraModel", **TEXT, embedding_size=32)),
}
SEQUENCES: dict[str, Sort] = {
    "T5": Both(model("T5ForConditionalGeneration", **T5), calls=6),
    "BART": Both(model("BartForConditionalGeneration", **BART, max_position_embeddings=64), calls=6),
    "Marian": Both(model("MarianMTModel", **BART, max_position_embeddings=64, pad_token_id=0), calls=6),
    "Whisper": Speech(
        model(
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
        calls=6,
    ),
}
OTHERS: dict[str, Sort] = {
    "ViT": Image(model("ViTModel", **VISION, patch_size=8)),
    "Swin": Image(
        model("SwinModel", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
        calls=4,
    ),
    "CLIP": ImageAndText(
        model(
            "CLIPModel",
            text_config=dict(**TEXT, eos_token_id=2),
            vision_config=dict(**VISION, patch_size=8),
            projection_dim=16,
        ),
        calls=4,
    ),
    "Wav2Vec2": Sound(
        model(
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
ALL = DECODERS | ENCODERS | SEQUENCES | OTHERS

# models that do not run on "sdpa" and expect masks as "eager" gets them; some have layers that add them themselves
MADE_FOR_EAGER: dict[str, Sort] = {
    "Splinter": Encoder(model("SplinterModel", **TEXT)),
    "CLAP": Encoder(model("ClapTextModel", **TEXT)),
    "NLLB-MoE": Both(
        model("NllbMoeForConditionalGeneration", **BART, max_position_embeddings=64, num_experts=4, pad_token_id=0),
        calls=6,
    ),
    "Pegasus-X": Both(
        model("PegasusXForConditionalGeneration", **BART, max_position_embeddings=64, pad_token_id=0), calls=4
    ),
    "BigBird-Pegasus": Both(
        model("BigBirdPegasusForConditionalGeneration", **BART, max_position_embeddings=64, pad_token_id=0), calls=4
    ),
}
