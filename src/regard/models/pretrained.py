"""Loading of Hugging Face checkpoints into models of this package: GPT-2, Llama, Mistral, BERT and ViT.

A folder holds config.json and model.safetensors, or several files with an index. Each tensor of the model is built from
tensors of the checkpoint, by name. A missing, truncated or unexpected tensor, or one of the wrong shape, raises an
error with its name. So does an unsupported option in config.json that changes the computation.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import LoadError
from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.language import LanguageModel
from regard.models.state_dict import load_state_dict
from regard.models.text_encoder import TextEncoder
from regard.models.vision import ImageEncoder, VisionTransformer
from regard.nn.block import BlockConfig
from regard.nn.position_encoding import LearnedPositionalEmbedding, RotaryEmbedding
from regard.nn.rope_scaling import LinearRopeScaling, Llama3RopeScaling, RopeScaling, YarnRopeScaling

Config = Mapping[str, Any]
Tensors = Mapping[str, Tensor]


class TensorSource(NamedTuple):
    """The checkpoint tensors that form a tensor of the model: concatenated, then transposed or flattened."""

    source_names: tuple[str, ...]
    transposed: bool = False
    flatten_leading: bool = False

    def build(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the tensor of the model."""
        parts = [tensors[name] for name in self.source_names]
        x = parts[0] if len(parts) == 1 else torch.cat(parts)
        return x.mT if self.transposed else x.flatten(0, -2) if self.flatten_leading else x


@dataclass(frozen=True)
class ModelFamily:
    """A supported architecture: how to build the model and map its tensors.

    `prefix` is a pattern of optional prefixes of checkpoint names. Names that match `ignored_pattern` may be unused.
    """

    build_model: Callable[[Config, Tensors], nn.Module]
    tensor_sources: Callable[[Config], dict[str, TensorSource]]
    prefix: str
    ignored_pattern: str


def load_pretrained(folder: str | Path) -> nn.Module:
    """Return the model in a folder written by Hugging Face's `save_pretrained`, in eval mode.

    GPT-2, Llama and Mistral become a `LanguageModel`. BERT becomes a `TextEncoder` without task heads. ViT becomes a
    `VisionTransformer`, or an `ImageEncoder` if the checkpoint has no classifier.

        model = load_pretrained("gpt2")  # a folder with config.json and safetensors files
        logits = model(tokens)           # tokens (batch, n)
    """
    folder = Path(folder)
    config = _load_json(folder / "config.json", folder)
    kind = config.get("model_type")
    if "quantization_config" in config:
        raise LoadError(f"weights must be floats; got quantized weights (quantization_config) in {folder}.")
    if not isinstance(kind, str) or kind not in MODEL_FAMILIES:
        raise LoadError(f"the model must be one of {', '.join(MODEL_FAMILIES)}; got {kind!r} in {folder}.")
    family = MODEL_FAMILIES[kind]
    tensors: dict[str, Tensor] = {}
    for name, tensor in _load_tensors(folder).items():
        short = re.sub(f"^{family.prefix}", "", name)
        if short in tensors:
            raise LoadError(f"{folder} must hold each tensor once; got {short!r} with and without its prefix.")
        tensors[short] = tensor
    try:
        model = family.build_model(config, tensors)
    except KeyError as error:
        raise LoadError(f"config.json of {folder} must have the key {error.args[0]!r}; it does not.") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise LoadError(f"config.json of {folder} must describe a valid model: {error}") from None
    load_state_dict(model, _map_tensors(model, family, config, tensors, folder), folder)
    return model.eval()


def _map_tensors(
    model: nn.Module, family: ModelFamily, config: Config, tensors: dict[str, Tensor], source: Path
) -> dict[str, Tensor]:
    """Return the state dict of the model, built from the tensors of the checkpoint."""
    result: dict[str, Tensor] = {}
    used: set[str] = set()
    expected = model.state_dict()
    for name, tensor_source in family.tensor_sources(config).items():
        if name not in expected:
            continue
        for source_name in tensor_source.source_names:
            if source_name not in tensors:
                raise LoadError(f"{source} must hold the tensor {source_name!r}; it does not.")
        try:
            x = tensor_source.build(tensors)
        except RuntimeError:
            x = None
        if x is None or x.shape != expected[name].shape:
            got = ", ".join(f"{part!r} {tuple(tensors[part].shape)}" for part in tensor_source.source_names)
            shape = tuple(expected[name].mT.shape if tensor_source.transposed else expected[name].shape)
            concatenated = "" if len(tensor_source.source_names) == 1 else ", concatenated,"
            raise LoadError(f"{source}: {got}{concatenated} must have shape {shape} according to config.json.")
        result[name] = x
        used.update(tensor_source.source_names)
    for name in tensors:
        if name not in used and not re.fullmatch(family.ignored_pattern, name):
            raise LoadError(f"{source} holds the tensor {name!r}, which this model does not have.")
    return result


def _load_tensors(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if index.exists() and not (folder / "model.safetensors").exists():
        weight_map = _load_json(index, folder).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise LoadError(f"{index} must map tensor names to file names in weight_map; it does not.")
        files = sorted(set(weight_map.values()))
    else:
        files = ["model.safetensors"]
        pickled = [name for name in ("pytorch_model.bin", "model.pt") if (folder / name).exists()]
        if pickled and not (folder / files[0]).exists():
            raise LoadError(
                f"{folder} must hold model.safetensors; got {pickled[0]}, a pickle, which can run arbitrary code when "
                "loaded. If you trust it, convert it with save_pretrained(folder, safe_serialization=True)."
            )
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= load_tensors_and_metadata(folder / file)[0]
    return tensors


def _load_json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise LoadError(
            f"a checkpoint must be a folder with config.json and model.safetensors; got {folder} ({error})."
        ) from None
    if not isinstance(value, dict):
        raise LoadError(f"{path} must be a JSON object; got {type(value).__name__}.")
    return value


def _layer_sources(
    model_prefix: str, file_prefix: str, num_layers: int, names: Mapping[str, Sequence[str]], transposed: bool = False
) -> dict[str, TensorSource]:
    return {
        f"{model_prefix}.{layer}.{name}": TensorSource(
            tuple(f"{file_prefix}.{layer}.{source}" for source in sources), transposed
        )
        for layer in range(num_layers)
        for name, sources in names.items()
    }


def _weight_and_bias(names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Map the weight and the bias of each module to those of its sources."""
    separators = {name: "_" if name.endswith("in_proj") else "." for name in names}
    return {
        f"{name}{separators[name]}{kind}": [f"{source}.{kind}" for source in sources]
        for name, sources in names.items()
        for kind in ("weight", "bias")
    }


def _build_gpt2(config: Config, tensors: Tensors) -> nn.Module:
    _require_value(config, "activation_function", "gelu_new")
    _require_value(config, "scale_attn_weights", True)
    _require_value(config, "scale_attn_by_inverse_layer_idx", False)
    embed_dim, num_layers = config["n_embd"], config["n_layer"]
    block_config = BlockConfig(
        embed_dim=embed_dim,
        num_heads=config["n_head"],
        ffn_dim=config.get("n_inner") or 4 * embed_dim,
        activation="gelu_tanh",
        eps=config["layer_norm_epsilon"],
    )
    return LanguageModel(
        config["vocab_size"],
        num_layers=num_layers,
        block_config=block_config,
        position_encoding=LearnedPositionalEmbedding(config["n_positions"], embed_dim),
        tie_word_embeddings=_is_tied(config, True, tensors, "wte.weight"),
    )


def _is_tied(config: Config, default: bool, tensors: Tensors, embedding_name: str) -> bool:
    """Return whether embeddings and logits share a matrix; they do not if the checkpoint has two different matrices."""
    if not config.get("tie_word_embeddings", default):
        return False
    lm_head = tensors.get("lm_head.weight")
    return lm_head is None or (embedding_name in tensors and torch.equal(lm_head, tensors[embedding_name]))


def _gpt2_sources(config: Config) -> dict[str, TensorSource]:
    transposed = {
        "self_attn.in_proj_weight": ["attn.c_attn.weight"],
        "self_attn.out_proj.weight": ["attn.c_proj.weight"],
        "linear1.weight": ["mlp.c_fc.weight"],
        "linear2.weight": ["mlp.c_proj.weight"],
    }
    biases = {
        name.replace("weight", "bias"): [source.replace("weight", "bias") for source in sources]
        for name, sources in transposed.items()
    }
    norms = _weight_and_bias({"norm1": ["ln_1"], "norm2": ["ln_2"]})
    return {
        "embedding.weight": TensorSource(("wte.weight",)),
        "decoder.position_encoding.weight": TensorSource(("wpe.weight",)),
        **_layer_sources("decoder.layers", "h", config["n_layer"], transposed, transposed=True),
        **_layer_sources("decoder.layers", "h", config["n_layer"], biases | norms),
        "decoder.norm.weight": TensorSource(("ln_f.weight",)),
        "decoder.norm.bias": TensorSource(("ln_f.bias",)),
        "lm_head.weight": TensorSource(("lm_head.weight",)),
    }


def _build_llama(config: Config, tensors: Tensors) -> nn.Module:
    _require_value(config, "hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias"):
        _require_value(config, name, False)
    block_config = BlockConfig(
        embed_dim=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads"),
        head_dim=config.get("head_dim"),
        ffn_dim=config["intermediate_size"],
        activation="swiglu",
        norm="rms",
        eps=config["rms_norm_eps"],
        bias=False,
        sliding_window=config.get("sliding_window", 4096) if config["model_type"] == "mistral" else None,
    )
    base, scaling = _rope_config(config)
    return LanguageModel(
        config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        block_config=block_config,
        position_encoding=RotaryEmbedding(block_config.resolved_head_dim, base=base, scaling=scaling),
        tie_word_embeddings=_is_tied(config, False, tensors, "embed_tokens.weight"),
    )


def _rope_config(config: Config) -> tuple[float, RopeScaling | None]:
    """Return the rotary base and scaling; old and new config files have different keys for them."""
    rope = {"rope_theta": config.get("rope_theta"), **(config.get("rope_parameters") or {})}
    rope |= config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = float(rope.get("rope_theta") or 10000.0)
    max_len = rope.get("original_max_position_embeddings") or config.get("max_position_embeddings", 0)
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, LinearRopeScaling(rope["factor"])
    if kind == "llama3":
        return base, Llama3RopeScaling(rope["factor"], max_len, rope["low_freq_factor"], rope["high_freq_factor"])
    unsupported = {"mscale", "attention_factor", "truncate"} & {
        name for name, value in rope.items() if value is not None
    }
    if kind == "yarn" and not unsupported:
        return base, YarnRopeScaling(rope["factor"], max_len, rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
    raise LoadError(
        "rope_scaling must be default, linear, llama3, or yarn without mscale, attention_factor and truncate; "
        f"got {rope}."
    )


def _llama_sources(config: Config) -> dict[str, TensorSource]:
    names = {
        "self_attn.in_proj_weight": [f"self_attn.{x}_proj.weight" for x in "qkv"],
        "self_attn.out_proj.weight": ["self_attn.o_proj.weight"],
        "linear1.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        "linear2.weight": ["mlp.down_proj.weight"],
        "norm1.weight": ["input_layernorm.weight"],
        "norm2.weight": ["post_attention_layernorm.weight"],
    }
    return {
        "embedding.weight": TensorSource(("embed_tokens.weight",)),
        **_layer_sources("decoder.layers", "layers", config["num_hidden_layers"], names),
        "decoder.norm.weight": TensorSource(("norm.weight",)),
        "lm_head.weight": TensorSource(("lm_head.weight",)),
    }


def _encoder_block_config(config: Config, norm_first: bool) -> BlockConfig:
    _require_value(config, "hidden_act", "gelu")
    return BlockConfig(
        embed_dim=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        ffn_dim=config["intermediate_size"],
        activation="gelu",
        norm_first=norm_first,
        eps=config["layer_norm_eps"],
    )


def _build_bert(config: Config, tensors: Tensors) -> nn.Module:
    _require_value(config, "position_embedding_type", "absolute")
    _require_value(config, "is_decoder", False)
    return TextEncoder(
        config["vocab_size"],
        max_len=config["max_position_embeddings"],
        num_layers=config["num_hidden_layers"],
        block_config=_encoder_block_config(config, norm_first=False),
        type_vocab_size=config["type_vocab_size"],
        add_pooling_layer="pooler.dense.weight" in tensors,
    )


def _bert_sources(config: Config) -> dict[str, TensorSource]:
    names = _weight_and_bias(
        {
            "self_attn.in_proj": [f"attention.self.{x}" for x in ("query", "key", "value")],
            "self_attn.out_proj": ["attention.output.dense"],
            "norm1": ["attention.output.LayerNorm"],
            "linear1": ["intermediate.dense"],
            "linear2": ["output.dense"],
            "norm2": ["output.LayerNorm"],
        }
    )
    rest = _weight_and_bias({"norm": ["embeddings.LayerNorm"], "pooler": ["pooler.dense"]})
    return {
        "embedding.weight": TensorSource(("embeddings.word_embeddings.weight",)),
        "position_embedding.weight": TensorSource(("embeddings.position_embeddings.weight",)),
        "token_type_embedding.weight": TensorSource(("embeddings.token_type_embeddings.weight",)),
        **{name: TensorSource(tuple(sources)) for name, sources in rest.items()},
        **_layer_sources("encoder.layers", "encoder.layer", config["num_hidden_layers"], names),
    }


def _build_vit(config: Config, tensors: Tensors) -> nn.Module:
    _require_value(config, "qkv_bias", True)
    size, patch = config["image_size"], config["patch_size"]
    if not isinstance(patch, int):
        raise LoadError(f"patch_size in config.json must be an integer, for square patches; got {patch}.")
    sizes: dict[str, Any] = {
        "image_size": (size, size) if isinstance(size, int) else tuple(size),
        "patch_size": patch,
        "num_channels": config["num_channels"],
        "num_layers": config["num_hidden_layers"],
        "block_config": _encoder_block_config(config, norm_first=True),
    }
    if "classifier.weight" not in tensors:
        return ImageEncoder(**sizes)
    return VisionTransformer(**sizes, num_classes=len(config.get("id2label") or range(config.get("num_labels", 2))))


def _vit_sources(config: Config) -> dict[str, TensorSource]:
    names = _weight_and_bias(
        {
            "self_attn.in_proj": [f"attention.attention.{x}" for x in ("query", "key", "value")],
            "self_attn.out_proj": ["attention.output.dense"],
            "norm1": ["layernorm_before"],
            "linear1": ["intermediate.dense"],
            "linear2": ["output.dense"],
            "norm2": ["layernorm_after"],
        }
    )
    rest = _weight_and_bias(
        {
            "patch_embedding": ["embeddings.patch_embeddings.projection"],
            "encoder.norm": ["layernorm"],
            "classifier": ["classifier"],
        }
    )
    return {
        "cls_token": TensorSource(("embeddings.cls_token",), flatten_leading=True),
        "position_embedding": TensorSource(("embeddings.position_embeddings",), flatten_leading=True),
        **{name: TensorSource(tuple(sources)) for name, sources in rest.items()},
        **_layer_sources("encoder.layers", "encoder.layer", config["num_hidden_layers"], names),
    }


def _require_value(config: Config, name: str, value: Any) -> None:
    if config.get(name, value) != value:
        raise LoadError(f"{name} in config.json must be {value!r}; got {config[name]!r}.")


MODEL_FAMILIES: dict[str, ModelFamily] = {
    "gpt2": ModelFamily(_build_gpt2, _gpt2_sources, r"transformer\.", r"lm_head\.weight|h\.\d+\.attn\.(masked_)?bias"),
    "llama": ModelFamily(_build_llama, _llama_sources, r"model\.", r"lm_head\.weight|.*rotary_emb\.inv_freq"),
    "mistral": ModelFamily(_build_llama, _llama_sources, r"model\.", r"lm_head\.weight|.*rotary_emb\.inv_freq"),
    "bert": ModelFamily(
        _build_bert, _bert_sources, r"bert\.", r"embeddings\.position_ids|(cls|classifier|qa_outputs)\..*"
    ),
    "vit": ModelFamily(_build_vit, _vit_sources, r"vit\.", r"pooler\..*"),
}
