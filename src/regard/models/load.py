"""Weights that others trained, in models of this package: GPT-2, Llama, Mistral, BERT, ViT as Hugging Face keeps them.

A folder holds config.json and model.safetensors, or several files and an index of them. Every tensor of a model is
made from tensors of the file, by name; one that is missing, is cut off or has another shape is refused by name, and so
is one that nothing here knows. What config.json says that would change what a model computes is obeyed or refused.
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
from regard.models.encoder import TextEncoder
from regard.models.language import LanguageModel
from regard.models.store import fit, read
from regard.models.vision import ImageEncoder, VisionTransformer
from regard.nn.block import Design
from regard.nn.position import (
    Learned,
    LinearScaling,
    Llama3Scaling,
    Rotary,
    Scaling,
    YarnScaling,
)

Config = Mapping[str, Any]
Tensors = Mapping[str, Tensor]


class Part(NamedTuple):
    """What a tensor of ours is made from: tensors of the file, one below the other, or turned over, or as rows."""

    sources: tuple[str, ...]
    turned: bool = False
    as_rows: bool = False

    def made(self, tensors: Mapping[str, Tensor]) -> Tensor:
        found = [tensors[name] for name in self.sources]
        whole = found[0] if len(found) == 1 else torch.cat(found)
        return whole.mT if self.turned else whole.flatten(0, -2) if self.as_rows else whole


@dataclass(frozen=True)
class Family:
    """One kind of model: how it is made from its words and the tensors that are there, how these are named, and those
    that are not needed."""

    make: Callable[[Config, Tensors], nn.Module]
    parts: Callable[[Config], dict[str, Part]]
    prefix: str  # that names may have in the file, or not
    unneeded: str


def load(folder: str | Path) -> nn.Module:
    """The model in a folder, with its weights, ready to be used.

    What BERT was given for a task, such as a classifier, is left out: what comes back is the encoder. A ViT without a
    classifier is an `ImageEncoder`.
    """
    folder = Path(folder)
    config = _json(folder / "config.json", folder)
    kind = config.get("model_type")
    if "quantization_config" in config:
        raise LoadError(f"weights must be floats; got {folder}, whose config.json says that they are quantised.")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise LoadError(f"the model must be one of {', '.join(FAMILIES)}; got {kind!r} in {folder}.")
    family = FAMILIES[kind]
    tensors: dict[str, Tensor] = {}
    for name, tensor in _tensors(folder).items():
        short = re.sub(f"^{family.prefix}", "", name)
        if short in tensors:
            raise LoadError(f"{folder} must hold each tensor once; got {short!r} with and without its prefix.")
        tensors[short] = tensor
    try:
        model = family.make(config, tensors)
    except KeyError as error:
        raise LoadError(f"config.json of {folder} must say {error.args[0]!r}; it does not.") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise LoadError(f"config.json of {folder} must describe a model; it does not ({error}).") from None
    fit(model, _translated(model, family, config, tensors, folder), folder)
    return model.eval()


def _translated(
    model: nn.Module, family: Family, config: Config, tensors: dict[str, Tensor], source: Path
) -> dict[str, Tensor]:
    """The file's tensors by our names."""
    result: dict[str, Tensor] = {}
    used: set[str] = set()
    wanted = model.state_dict()
    for name, part in family.parts(config).items():
        if name not in wanted:
            continue
        for each in part.sources:
            if each not in tensors:
                raise LoadError(f"{source} must hold {each!r}; it does not.")
        try:
            made = part.made(tensors)
        except RuntimeError:
            made = None
        if made is None or made.shape != wanted[name].shape:
            got = ", ".join(f"{each!r} {tuple(tensors[each].shape)}" for each in part.sources)
            shape = tuple(wanted[name].mT.shape if part.turned else wanted[name].shape)
            below = "" if len(part.sources) == 1 else ", one below the other,"
            raise LoadError(f"{source}: {got}{below} must have shape {shape} by the model's config.json.")
        result[name] = made
        used.update(part.sources)
    for name in tensors:
        if name not in used and not re.fullmatch(family.unneeded, name):
            raise LoadError(f"{source} holds {name!r}, and a model of this kind has no such tensor.")
    return result


def _tensors(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if index.exists() and not (folder / "model.safetensors").exists():
        places = _json(index, folder).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise LoadError(f"{index} must say in which files tensors are, as weight_map; it does not.")
        files = sorted(set(places.values()))
    else:
        files = ["model.safetensors"]
        pickled = [name for name in ("pytorch_model.bin", "model.pt") if (folder / name).exists()]
        if pickled and not (folder / files[0]).exists():
            raise LoadError(
                f"{folder} must hold model.safetensors; got {pickled[0]}, which is pickled: opening it could run any "
                "program. Save it anew with save_pretrained(folder, safe_serialization=True) where you trust it."
            )
    found: dict[str, Tensor] = {}
    for file in files:
        found |= read(folder / file)[0]
    return found


def _json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise LoadError(
            f"a model is a folder with config.json and model.safetensors; got {folder} ({error})."
        ) from None
    if not isinstance(found, dict):
        raise LoadError(f"{path} must be an object, with names and values; got {type(found).__name__}.")
    return found


def _layers(
    ours: str, theirs: str, count: int, names: Mapping[str, Sequence[str]], turned: bool = False
) -> dict[str, Part]:
    return {
        f"{ours}.{place}.{name}": Part(tuple(f"{theirs}.{place}.{source}" for source in sources), turned)
        for place in range(count)
        for name, sources in names.items()
    }


def _both(names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Weight and bias of each."""
    kinds = ("weight", "bias")
    joints = {name: "_" if name.endswith("in_proj") else "." for name in names}
    return {f"{n}{joints[n]}{kind}": [f"{s}.{kind}" for s in sources] for n, sources in names.items() for kind in kinds}


def _gpt2(config: Config, tensors: Tensors) -> nn.Module:
    _must(config, "activation_function", "gelu_new")
    _must(config, "scale_attn_weights", True)
    _must(config, "scale_attn_by_inverse_layer_idx", False)
    width, layers = config["n_embd"], config["n_layer"]
    design = Design(
        width=width,
        heads=config["n_head"],
        hidden=config.get("n_inner") or 4 * width,
        activation="gelu_tanh",
        eps=config["layer_norm_epsilon"],
    )
    position = Learned(config["n_positions"], width)
    tied = _is_tied(config, True, tensors, "wte.weight")
    return LanguageModel(config["vocab_size"], layers=layers, design=design, position=position, tied=tied)


def _is_tied(config: Config, usual: bool, tensors: Tensors, table: str) -> bool:
    """Whether the table that reads tokens also writes them. A file that has two that differ is taken at its word."""
    if not config.get("tie_word_embeddings", usual):
        return False
    other = tensors.get("lm_head.weight")
    return other is None or (table in tensors and torch.equal(other, tensors[table]))


def _gpt2_parts(config: Config) -> dict[str, Part]:
    turned = {
        "self_attn.in_proj_weight": ["attn.c_attn.weight"],
        "self_attn.out_proj.weight": ["attn.c_proj.weight"],
        "linear1.weight": ["mlp.c_fc.weight"],
        "linear2.weight": ["mlp.c_proj.weight"],
    }
    plain = {name.replace("weight", "bias"): [s.replace("weight", "bias") for s in v] for name, v in turned.items()}
    norms = _both({"norm1": ["ln_1"], "norm2": ["ln_2"]})
    return {
        "embedding.weight": Part(("wte.weight",)),
        "decoder.position.weight": Part(("wpe.weight",)),
        **_layers("decoder.layers", "h", config["n_layer"], turned, turned=True),
        **_layers("decoder.layers", "h", config["n_layer"], plain | norms),
        "decoder.norm.weight": Part(("ln_f.weight",)),
        "decoder.norm.bias": Part(("ln_f.bias",)),
        "head.weight": Part(("lm_head.weight",)),
    }


def _llama(config: Config, tensors: Tensors) -> nn.Module:
    _must(config, "hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias"):
        _must(config, name, False)
    design = Design(
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        key_heads=config.get("num_key_value_heads"),
        head_width=config.get("head_dim"),
        hidden=config["intermediate_size"],
        activation="swiglu",
        norm="rms",
        eps=config["rms_norm_eps"],
        bias=False,
        window=config.get("sliding_window", 4096) if config["model_type"] == "mistral" else None,
    )
    base, scaling = _rope(config)
    return LanguageModel(
        config["vocab_size"],
        layers=config["num_hidden_layers"],
        design=design,
        position=Rotary(design.width_of_head, base=base, scaling=scaling),
        tied=_is_tied(config, False, tensors, "embed_tokens.weight"),
    )


def _rope(config: Config) -> tuple[float, Scaling | None]:
    """The base of rotary positions and what they are stretched by, in the words of old files and new ones."""
    words = {"rope_theta": config.get("rope_theta"), **(config.get("rope_parameters") or {})}
    words |= config.get("rope_scaling") or {}
    kind = words.get("rope_type", words.get("type", "default"))
    base = float(words.get("rope_theta") or 10000.0)
    longest = words.get("original_max_position_embeddings") or config.get("max_position_embeddings", 0)
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, LinearScaling(words["factor"])
    if kind == "llama3":
        return base, Llama3Scaling(words["factor"], longest, words["low_freq_factor"], words["high_freq_factor"])
    if kind == "yarn" and not {"mscale", "attention_factor", "truncate"} & {
        k for k, v in words.items() if v is not None
    }:
        return base, YarnScaling(words["factor"], longest, words.get("beta_fast") or 32, words.get("beta_slow") or 1)
    raise LoadError(f"rotary positions must be default, linear, llama3 or plain yarn; got {words}.")


def _llama_parts(config: Config) -> dict[str, Part]:
    names = {
        "self_attn.in_proj_weight": [f"self_attn.{x}_proj.weight" for x in "qkv"],
        "self_attn.out_proj.weight": ["self_attn.o_proj.weight"],
        "linear1.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        "linear2.weight": ["mlp.down_proj.weight"],
        "norm1.weight": ["input_layernorm.weight"],
        "norm2.weight": ["post_attention_layernorm.weight"],
    }
    return {
        "embedding.weight": Part(("embed_tokens.weight",)),
        **_layers("decoder.layers", "layers", config["num_hidden_layers"], names),
        "decoder.norm.weight": Part(("norm.weight",)),
        "head.weight": Part(("lm_head.weight",)),
    }


def _encoder_design(config: Config, norm_first: bool) -> Design:
    _must(config, "hidden_act", "gelu")
    return Design(
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        hidden=config["intermediate_size"],
        activation="gelu",
        norm_first=norm_first,
        eps=config["layer_norm_eps"],
    )


def _bert(config: Config, tensors: Tensors) -> nn.Module:
    _must(config, "position_embedding_type", "absolute")
    _must(config, "is_decoder", False)
    return TextEncoder(
        config["vocab_size"],
        longest=config["max_position_embeddings"],
        layers=config["num_hidden_layers"],
        design=_encoder_design(config, norm_first=False),
        types=config["type_vocab_size"],
        pooler="pooler.dense.weight" in tensors,
    )


def _bert_parts(config: Config) -> dict[str, Part]:
    names = _both(
        {
            "self_attn.in_proj": [f"attention.self.{x}" for x in ("query", "key", "value")],
            "self_attn.out_proj": ["attention.output.dense"],
            "norm1": ["attention.output.LayerNorm"],
            "linear1": ["intermediate.dense"],
            "linear2": ["output.dense"],
            "norm2": ["output.LayerNorm"],
        }
    )
    rest = _both({"norm": ["embeddings.LayerNorm"], "pooler": ["pooler.dense"]})
    return {
        "embedding.weight": Part(("embeddings.word_embeddings.weight",)),
        "position.weight": Part(("embeddings.position_embeddings.weight",)),
        "type_embedding.weight": Part(("embeddings.token_type_embeddings.weight",)),
        **{name: Part(tuple(sources)) for name, sources in rest.items()},
        **_layers("encoder.layers", "encoder.layer", config["num_hidden_layers"], names),
    }


def _vit(config: Config, tensors: Tensors) -> nn.Module:
    _must(config, "qkv_bias", True)
    size, patch = config["image_size"], config["patch_size"]
    if not isinstance(patch, int):
        raise LoadError(f"patch_size in config.json must be one number, of a square; got {patch}.")
    sizes: dict[str, Any] = {
        "image": (size, size) if isinstance(size, int) else tuple(size),
        "patch": patch,
        "channels": config["num_channels"],
        "layers": config["num_hidden_layers"],
        "design": _encoder_design(config, norm_first=True),
    }
    if "classifier.weight" not in tensors:
        return ImageEncoder(**sizes)
    return VisionTransformer(**sizes, classes=len(config.get("id2label") or range(config.get("num_labels", 2))))


def _vit_parts(config: Config) -> dict[str, Part]:
    names = _both(
        {
            "self_attn.in_proj": [f"attention.attention.{x}" for x in ("query", "key", "value")],
            "self_attn.out_proj": ["attention.output.dense"],
            "norm1": ["layernorm_before"],
            "linear1": ["intermediate.dense"],
            "linear2": ["output.dense"],
            "norm2": ["layernorm_after"],
        }
    )
    rest = _both(
        {
            "patches": ["embeddings.patch_embeddings.projection"],
            "encoder.norm": ["layernorm"],
            "head": ["classifier"],
        }
    )
    return {
        "gathering": Part(("embeddings.cls_token",), as_rows=True),
        "position": Part(("embeddings.position_embeddings",), as_rows=True),
        **{name: Part(tuple(sources)) for name, sources in rest.items()},
        **_layers("encoder.layers", "encoder.layer", config["num_hidden_layers"], names),
    }


def _must(config: Config, name: str, value: Any) -> None:
    if config.get(name, value) != value:
        raise LoadError(f"{name} in config.json must be {value!r}; got {config[name]!r}.")


FAMILIES: dict[str, Family] = {
    "gpt2": Family(_gpt2, _gpt2_parts, r"transformer\.", r"lm_head\.weight|h\.\d+\.attn\.(masked_)?bias"),
    "llama": Family(_llama, _llama_parts, r"model\.", r"lm_head\.weight|.*rotary_emb\.inv_freq"),
    "mistral": Family(_llama, _llama_parts, r"model\.", r"lm_head\.weight|.*rotary_emb\.inv_freq"),
    "bert": Family(_bert, _bert_parts, r"bert\.", r"embeddings\.position_ids|(cls|classifier|qa_outputs)\..*"),
    "vit": Family(_vit, _vit_parts, r"vit\.", r"pooler\..*"),
}
