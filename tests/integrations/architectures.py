"""Every generating architecture of transformers as a tiny model: its default configuration with small sizes."""

from typing import Any

import torch
import transformers
from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError
from transformers.models.auto import modeling_auto

WINDOW = 5
# sizes of configurations, with small values that are consistent: 4 heads of dimension 8 make 32
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input", "d_vocab"), 99),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim_model", "emb_dim", "dim"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "attention_hidden_size", "output_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "num_kv_shared_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "d_inner", "ffn_hidden_size", "dim_ff"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "intermediate_size_mlp", "dense_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(
        ("moe_shared_expert_intermediate_size", "shared_intermediate_size", "expert_intermediate_size"), 16
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "kv_channels", "global_head_dim", "attention_head_dim"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "n_group", "topk_group"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len"), 64),
    **dict.fromkeys(("n_ctx", "max_sequence_length", "context_length", "max_source_positions"), 64),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "window_size", "local_attention"), WINDOW),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "index_head_dim", "linear_key_head_dim"), 8),
    **dict.fromkeys(("linear_value_head_dim", "mamba_d_head", "mamba_head_dim", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "index_n_heads", "state_size", "time_step_rank"), 4),
    **dict.fromkeys(("index_topk", "mamba_n_groups", "n_groups", "mamba_d_conv", "conv_kernel"), 2),
    **dict.fromkeys(("first_k_dense_replace", "mamba_expand", "projection_dim"), 1),
    "qk_head_dim": 12,
    "keep_window_size": WINDOW,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
    "num_mel_bins": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
# sizes that depend on other sizes, or that only one configuration has
SPECIAL: dict[str, dict[str, Any]] = {
    "BambaForCausalLM": dict(attn_layer_indices=[1]),
    "BltForCausalLM": dict(encoder_hash_byte_group_vocab=50),
    "CohereCompassForCausalLM": dict(
        layer_types=["sliding_attention", "full_attention"],
        num_hidden_layers=2,
        rope_parameters={
            kind: dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 1, 1])
            for kind in ("sliding_attention", "full_attention")
        },
    ),
    "DbrxForCausalLM": dict(
        attn_config=dict(kv_n_heads=2, rope_theta=10000.0, clip_qkv=8.0),
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2),
    ),
    "DeepseekV4ForCausalLM": dict(head_dim=8, num_key_value_heads=1, mlp_bias=False, num_hash_layers=0),
    "FalconH1ForCausalLM": dict(mamba_d_ssm=32),
    "Gemma3nForCausalLM": dict(
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        activation_sparsity_pattern=[0.0] * 4,
    ),
    "Gemma4ForCausalLM": dict(head_dim=8, num_kv_shared_layers=0, vocab_size_per_layer_input=99),
    "Gemma4UnifiedForCausalLM": dict(head_dim=8, num_kv_shared_layers=0),
    "GPTNeoForCausalLM": dict(attention_types=[[["global", "local"], 1]]),
    "GraniteMoeHybridForCausalLM": dict(layer_types=["linear_attention", "full_attention"]),
    "JambaForCausalLM": dict(attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1),
    "KimiLinearForCausalLM": dict(linear_head_dim=8, linear_num_heads=4),
    "Lfm2MoeForCausalLM": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "LEDForConditionalGeneration": dict(attention_window=4),
    "LongT5ForConditionalGeneration": dict(local_radius=4, global_block_size=4),
    "Mamba2ForCausalLM": dict(expand=1),
    "PegasusXForConditionalGeneration": dict(block_size=4, num_global_tokens=2),
    "Phi4MultimodalForCausalLM": dict(pad_token_id=0),
    "Qwen4ExpForCausalLM": dict(
        indexer_n_heads=2,
        indexer_kv_heads=1,
        indexer_head_dim=8,
        indexer_budget=4,
        indexer_compress_ratio=2,
        hc_lowrank=8,
        layer_types=["linear_attention", "indexed_attention"],
    ),
    "RecurrentGemmaForCausalLM": dict(num_hidden_layers=3, lru_width=32),
    "ReformerModelWithLMHead": dict(is_decoder=True, axial_pos_embds_dim=(16, 16), axial_pos_shape=(8, 8)),
    "RoCBertForCausalLM": dict(pronunciation_vocab_size=9, shape_vocab_size=9, pronunciation_embed_dim=8),
    "ZambaForCausalLM": dict(num_hidden_layers=4, layer_types=["linear_attention", "hybrid"] * 2),
    "ZayaForCausalLM": dict(num_experts_per_tok=1),
}
MAX_PARAMETERS = 7_000_000
DROPOUT_NAMES = ("drop", "jitter")

# architectures that are not compared, with the reason
UNUSABLE: dict[str, str] = {
    "BltForCausalLM": "its patch and byte models are inconsistent with small sizes",
    "Gemma3nForConditionalGeneration": "it needs timm; its text model is compared",
    "Gemma4ForConditionalGeneration": "it needs the parts of its processor; its text model is compared",
    "Gemma4UnifiedForConditionalGeneration": "it needs the parts of its processor; its text model is compared",
    "Gemma4AssistantForCausalLM": "it needs the keys of another model",
    "Gemma4UnifiedAssistantForCausalLM": "it needs the keys of another model",
    "MusicgenForCausalLM": "its tokens are audio codebooks",
    "MusicgenMelodyForCausalLM": "its tokens are audio codebooks",
    "Nemotron3_5TranscribeForConditionalGeneration": "it needs audio, and its parts are inconsistent with small sizes",
    "VibeVoiceAsrForConditionalGeneration": "it stays large with small sizes",
    "VoxtralRealtimeForConditionalGeneration": "it needs audio",
    "XmodForCausalLM": "it needs a default language",
    "ZambaForCausalLM": "its shared layer has twice the embedding dimension of the others",
    "Zamba2ForCausalLM": "its shared layer has twice the embedding dimension of the others",
}
# architectures whose layers select keys by index and pass the indices to the attention function
UNSUPPORTED = {"AXK2ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "HYV4ForCausalLM"}
WITHOUT_ATTENTION = {"FalconMambaForCausalLM", "MambaForCausalLM", "Mamba2ForCausalLM", "xLSTMForCausalLM"}


def generating_classes() -> list[str]:
    """Return the classes that generate text, one for each model type and task."""
    mappings = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )
    return list(dict.fromkeys(name for mapping in mappings for name in mapping.values()))


def tiny_config(config_class: Any, **extra: Any) -> Any:
    """Return a configuration with all sizes small and one layer of each type."""
    default = config_class()
    options: dict[str, Any] = {}
    for name in (*vars(default), *getattr(default, "attribute_map", {})):
        value = _attribute(default, name)
        if name in SMALL and not isinstance(value, list | tuple | dict):
            options[name] = SMALL[name]
        elif any(part in name for part in DROPOUT_NAMES) and isinstance(value, float):
            options[name] = 0.0
    for name in getattr(config_class, "sub_configs", ()):
        if getattr(default, name, None) is not None:
            options[name] = tiny_config(type(getattr(default, name)))
    if hasattr(default, "qk_rope_head_dim"):  # latent attention has one key per head and rotates a part of it
        options |= {"head_dim": 4, "num_key_value_heads": 4}
    layer_types = getattr(default, "layer_types", None)
    attribute = getattr(default, "attribute_map", {}).get("layer_types", "layer_types")
    if layer_types and not isinstance(getattr(config_class, attribute, None), property):
        distinct = list(dict.fromkeys(layer_types))
        options["layer_types"] = distinct * (1 if len(distinct) > 1 else 2)
        options["num_hidden_layers"] = len(options["layer_types"])
    return config_class(**(options | extra))


def _attribute(config: Any, name: str) -> Any:
    """Return an attribute of a configuration, or None if it differs between layers."""
    try:
        return getattr(config, name, None)
    except AmbiguousGlobalPerLayerAttributeError:
        return None


def tiny_model(class_name: str, **extra: Any) -> Any:
    """Return a tiny model of a class of transformers, with weights large enough for non-uniform attention."""
    model_class = getattr(transformers, class_name)
    extra = SPECIAL.get(class_name, {}) | extra
    config = tiny_config(model_class.config_class, **extra)
    if class_name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() and hasattr(config, "is_decoder"):
        config.is_decoder = True  # otherwise BERT and similar models are bidirectional
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class(config).parameters())
    assert size <= MAX_PARAMETERS, f"{class_name} has {size:,} parameters; add its sizes to SMALL or SPECIAL"
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.copy_(0.25 * torch.randn(parameter.shape))
            elif name.endswith("sinks"):
                parameter.copy_(torch.randn(parameter.shape))
    return model
