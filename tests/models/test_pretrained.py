"""Hugging Face checkpoints give the same outputs in this package's models; damaged checkpoints raise."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from regard.errors import LoadError
from regard.files.safetensors_header import read_header
from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.language import LanguageModel
from regard.models.pretrained import load_pretrained
from regard.models.text_encoder import TextEncoder
from regard.models.vision import VisionTransformer
from regard.nn import BlockConfig, LearnedPositionalEmbedding, beam_search, generate

CLOSE = dict(rtol=1e-3, atol=2e-5)  # float32 sums in a different order, through several layers


def _perturb_parameters(model: Any) -> Any:
    """Make norms and biases nontrivial; return the model in eval mode."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def _gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=64, **options)
    return _perturb_parameters(transformers.GPT2LMHeadModel(config))


def _llama(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 56,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **options,
        }
    )
    return _perturb_parameters(transformers.LlamaForCausalLM(config))


TOKENS = torch.randint(99, (2, 30), generator=torch.Generator().manual_seed(3))
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    "make_model",
    [
        pytest.param(_gpt2, id="gpt2"),
        pytest.param(lambda: _gpt2(tie_word_embeddings=False), id="gpt2-untied"),
        pytest.param(_llama, id="llama"),
        pytest.param(lambda: _llama(tie_word_embeddings=True), id="llama-tied"),
        pytest.param(lambda: _llama(rope_parameters=LLAMA3_SCALING), id="llama-rope-scaling"),
        pytest.param(lambda: _llama(head_dim=16), id="llama-head-dim"),
    ],
)
def test_a_language_model_gives_the_same_logits_and_tokens(make_model: Any, tmp_path: Path) -> None:
    hf_model = make_model()
    hf_model.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path)
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), hf_model(TOKENS).logits, **CLOSE)
    expected = hf_model.generate(TOKENS[:, :8], max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert generate(model, TOKENS[:, :8], max_new_tokens=12).tolist() == expected[:, 8:].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 4},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 500.0},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 90.0}, "rope_scaling": LLAMA3_SCALING},
    ],
    ids=["llama with a window", "rope_theta outside", "old keys", "two scalings"],
)
def test_unusual_options_mean_the_same_as_in_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    _llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | options))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(load_pretrained(tmp_path)(TOKENS), model(TOKENS).logits, **CLOSE)


@pytest.mark.parametrize("make_model", [_gpt2, lambda: _llama(tie_word_embeddings=True)], ids=["gpt2", "llama"])
def test_an_lm_head_that_differs_from_tied_embeddings_is_used(make_model: Any, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    embedding = model.get_input_embeddings().weight.detach().clone()
    for weight, lm_head in (
        (embedding, model.lm_head),
        (torch.randn_like(embedding), torch.nn.Linear(32, 99, bias=False)),
    ):
        _change_tensors(tmp_path, lambda t, weight=weight: t.update({"lm_head.weight": weight}))
        lm_head.weight.data = weight
        with torch.no_grad():
            hidden_states = model.base_model(TOKENS).last_hidden_state
            torch.testing.assert_close(load_pretrained(tmp_path)(TOKENS), lm_head(hidden_states), **CLOSE)


def test_the_default_window_of_mistral_is_4096(tmp_path: Path) -> None:
    sizes = dict(vocab_size=99, hidden_size=32, intermediate_size=56, num_hidden_layers=1, num_attention_heads=4)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, num_key_value_heads=2))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    expected = config.pop("sliding_window")
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_pretrained(tmp_path)
    assert isinstance(loaded, LanguageModel)
    assert loaded.decoder.block_configs[0].sliding_window == expected == 4096


def test_mistral_with_a_sliding_window_gives_the_same_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=7,
    )
    model = _perturb_parameters(transformers.MistralForCausalLM(config))
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(load_pretrained(tmp_path)(TOKENS), model(TOKENS).logits, **CLOSE)


def test_beam_search_matches_hugging_face(tmp_path: Path) -> None:
    model = _gpt2()
    model.save_pretrained(tmp_path)
    prompt = TOKENS[:, :6]
    expected = model.generate(
        prompt,
        max_new_tokens=8,
        num_beams=4,
        num_return_sequences=4,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    loaded = load_pretrained(tmp_path)
    assert isinstance(loaded, LanguageModel)
    result = beam_search(loaded, prompt, max_new_tokens=8, num_beams=4)
    assert result.tokens.flatten(0, 1).tolist() == expected[:, 6:].tolist()


def _bert(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        **options,
    )
    return _perturb_parameters(getattr(transformers, kind)(config))


def test_bert_gives_the_same_hidden_states(tmp_path: Path) -> None:
    hf_model = _bert("BertModel")
    hf_model.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path)
    assert isinstance(model, TextEncoder)
    lengths = torch.tensor([30, 11])
    types = (torch.arange(30) >= 7).long().expand(2, -1)
    with torch.no_grad():
        expected = hf_model(TOKENS, attention_mask=(torch.arange(30) < lengths[:, None]).long(), token_type_ids=types)
        hidden_states = model(TOKENS, lengths=lengths, token_type_ids=types)
        for b, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(hidden_states[b, :length], expected.last_hidden_state[b, :length], **CLOSE)
        torch.testing.assert_close(model.pool(hidden_states), expected.pooler_output, **CLOSE)


@pytest.mark.parametrize("task", ["MaskedLM", "TokenClassification", "QuestionAnswering", "SequenceClassification"])
def test_bert_with_a_task_head_loads_as_its_encoder(tmp_path: Path, task: str) -> None:
    hf_model = _bert(f"BertFor{task}")
    hf_model.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path)
    assert isinstance(model, TextEncoder)
    assert (model.pooler is not None) == (task == "SequenceClassification")  # the others have no pooling layer
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), hf_model.bert(TOKENS).last_hidden_state, **CLOSE)


def _vit(kind: str) -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
        num_labels=7,
    )
    return _perturb_parameters(getattr(transformers, kind)(config))


def test_vit_without_a_classifier_gives_the_same_hidden_states(tmp_path: Path) -> None:
    model = _vit("ViTModel")
    model.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(load_pretrained(tmp_path)(images), model(images).last_hidden_state, **CLOSE)


def test_vit_gives_the_same_logits_for_several_image_sizes(tmp_path: Path) -> None:
    hf_model = _vit("ViTForImageClassification")
    hf_model.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path)
    assert isinstance(model, VisionTransformer)
    with torch.no_grad():
        images = torch.randn(2, 3, 16, 16)
        torch.testing.assert_close(model(images), hf_model(images).logits, **CLOSE)
        images = torch.randn(2, 3, 24, 32)
        torch.testing.assert_close(model(images), hf_model(images, interpolate_pos_encoding=True).logits, **CLOSE)


def test_a_sharded_checkpoint_loads(tmp_path: Path) -> None:
    model = _llama()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    with torch.no_grad():
        torch.testing.assert_close(load_pretrained(tmp_path)(TOKENS), model(TOKENS).logits, **CLOSE)


def test_gpt2_small_and_vit_base_have_the_published_parameter_counts() -> None:
    with torch.device("meta"):
        gpt2 = LanguageModel(
            50257,
            num_layers=12,
            block_config=BlockConfig(768, num_heads=12, activation="gelu_tanh"),
            position_encoding=LearnedPositionalEmbedding(1024, 768),
        )
        vit = VisionTransformer(
            image_size=(224, 224),
            patch_size=16,
            num_channels=3,
            num_classes=1000,
            num_layers=12,
            block_config=BlockConfig(768, num_heads=12),
        )
    assert sum(p.numel() for p in gpt2.parameters()) == 124_439_808
    assert sum(p.numel() for p in vit.parameters()) == 86_567_656


def _change_tensors(folder: Path, change: Any) -> None:
    """Apply a function to the dict of tensors in a checkpoint, in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _gpt2().save_pretrained(tmp_path)
    return tmp_path


def test_a_tensor_of_the_wrong_shape_raises(folder: Path) -> None:
    _change_tensors(folder, lambda t: t.update({"transformer.h.1.mlp.c_fc.weight": torch.zeros(32, 100)}))
    with pytest.raises(LoadError, match=r"'h.1.mlp.c_fc.weight' \(32, 100\) must have shape \(32, 128\)"):
        load_pretrained(folder)


def test_parts_of_a_tensor_that_cannot_be_concatenated_raise(tmp_path: Path) -> None:
    _llama().save_pretrained(tmp_path)
    _change_tensors(tmp_path, lambda t: t.update({"model.layers.2.self_attn.k_proj.weight": torch.zeros(16, 31)}))
    with pytest.raises(
        LoadError, match=r"'layers.2.self_attn.k_proj.weight' \(16, 31\).*, concatenated, must have shape \(64, 32\)"
    ):
        load_pretrained(tmp_path)


def test_a_missing_tensor_raises(folder: Path) -> None:
    _change_tensors(folder, lambda t: t.pop("transformer.h.2.ln_1.bias"))
    with pytest.raises(LoadError, match=r"must hold the tensor 'h.2.ln_1.bias'; it does not"):
        load_pretrained(folder)


def test_an_unexpected_tensor_raises(folder: Path) -> None:
    _change_tensors(folder, lambda t: t.update({"transformer.h.9.ln_1.bias": torch.zeros(3)}))
    with pytest.raises(LoadError, match=r"holds the tensor 'h.9.ln_1.bias', which this model does not have"):
        load_pretrained(folder)


def test_a_truncated_file_raises_with_the_truncated_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    last = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"][1])
    with pytest.raises(LoadError, match=rf"{last}' ends at byte \d+ of the data, and only \d+ are there"):
        load_pretrained(folder)


def test_pickled_files_raise(folder: Path) -> None:
    path = folder / "model.safetensors"
    torch.save({"x": torch.zeros(3)}, path)
    with pytest.raises(LoadError, match=r"it is pickled, and opening it could run any program"):
        load_pretrained(folder)
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(LoadError, match=r"got pytorch_model.bin, a pickle, which can run arbitrary code"):
        load_pretrained(folder)


DEEPLY_NESTED = struct.pack("<Q", 100_000) + b"[" * 100_000


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 64, struct.pack("<Q", 10) + b"not json!!" + b"\0" * 20, DEEPLY_NESTED]
)
def test_a_file_that_is_not_safetensors_raises(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"model.safetensors must be a safetensors file; it"):
        read_header(path)


@pytest.mark.parametrize(
    "kind, name, value, message",
    [
        ("gpt2", "activation_function", "relu", "must be 'gelu_new'; got 'relu'"),
        ("gpt2", "scale_attn_weights", False, "must be True; got False"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True, "must be False; got True"),
        ("llama", "attention_bias", True, "must be False; got True"),
        ("bert", "is_decoder", True, "must be False; got True"),
        ("vit", "qkv_bias", False, "must be True; got False"),
        ("vit", "patch_size", [4, 2], r"must be an integer, for square patches; got \[4, 2\]"),
        ("vit", "hidden_act", "relu", "must be 'gelu'; got 'relu'"),
    ],
)
def test_unsupported_options_raise(tmp_path: Path, kind: str, name: str, value: Any, message: str) -> None:
    models = {"gpt2": _gpt2, "llama": _llama, "bert": lambda: _bert("BertModel"), "vit": lambda: _vit("ViTModel")}
    models[kind]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(LoadError, match=rf"{name} in config.json {message}"):
        load_pretrained(tmp_path)


def test_a_damaged_folder_raises(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(LoadError, match=r"config.json must be a JSON object; got list"):
        load_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "n_embd"}))
    with pytest.raises(LoadError, match=r"config.json of .* must have the key 'n_embd'; it does not"):
        load_pretrained(folder)
    for options in ({"n_head": "4"}, {"n_layer": None}, {"vocab_size": -5}):
        (folder / "config.json").write_text(json.dumps(config | options))
        with pytest.raises(LoadError, match=r"config.json of .* must describe a valid model: "):
            load_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    with pytest.raises(LoadError, match=r"weights must be floats; got quantized weights \(quantization_config\) in"):
        load_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    valid_bytes = (folder / "model.safetensors").read_bytes()
    _change_tensors(folder, lambda t: t.update({"transformer.ln_f.bias": t["transformer.ln_f.bias"].to(torch.int8)}))
    with pytest.raises(LoadError, match=r"'decoder.norm.bias' must hold floats; got torch.int8"):
        load_pretrained(folder)
    (folder / "model.safetensors").write_bytes(valid_bytes)
    _change_tensors(folder, lambda t: t.update({"ln_f.bias": torch.zeros(32)}))
    with pytest.raises(LoadError, match=r"must hold each tensor once; got 'ln_f.bias' with and without its prefix"):
        load_pretrained(folder)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    for content, message in (
        ("{}", "must map tensor names to file names in weight_map"),
        ("{", "a checkpoint must be a folder with"),
    ):
        index.write_text(content)
        with pytest.raises(LoadError, match=message):
            load_pretrained(folder)


def _write_safetensors(path: Path, header: object, data: bytes = b"") -> Path:
    header_bytes = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header_bytes)) + header_bytes + data)
    return path


F32 = {"dtype": "F32", "shape": [1]}


@pytest.mark.parametrize(
    "header, message",
    [
        ([1, 2], "its header is not a JSON object"),
        ({"a": F32}, "'a' in .* must have a dtype, a shape and offsets; its header has {'dtype': 'F32'"),
        ({"a": [0, 4]}, r"'a' in .* must have a dtype, a shape and offsets; its header has \[0, 4\]"),
        ({"a": {**F32, "data_offsets": [0, 2]}}, r"'a' in .* must take 4 bytes, for its shape \(1,\) .* gives it 2"),
        ({"a": {**F32, "dtype": "X", "data_offsets": [0, 4]}}, "'a' in .* must have a dtype of F64, .*; got 'X'"),
        ({"a": {**F32, "dtype": [1], "data_offsets": [0, 4]}}, r"a dtype such as 'F32'; its header has \[1\]"),
        ({"a": {**F32, "data_offsets": [0, math.inf]}}, r"must have two offsets in order; its header has \[0, inf\]"),
        ({"a": {**F32, "data_offsets": [4, 0]}}, r"must have two offsets in order; its header has \[4, 0\]"),
        ({"a": {**F32, "shape": "1", "data_offsets": [0, 4]}}, "must have a shape of integers .* header has '1'"),
        ({"a": {**F32, "shape": [-1, -1], "data_offsets": [0, 4]}}, r"shape of integers .* has \[-1, -1\]"),
        ({"a": {**F32, "shape": [0, 2**62], "data_offsets": [0, 0]}}, "must take 0 bytes, for its shape"),
        ({"a": {**F32, "shape": [1] * 65, "data_offsets": [0, 4]}}, "must have a shape of integers"),
        (
            {n: {**F32, "data_offsets": [0, 4]} for n in "ab"},
            "must not have overlapping tensors; 'a' and 'b' share bytes",
        ),
        ({"__metadata__": {"x": 1}}, "its __metadata__ must map names to strings"),
        ({"__metadata__": {"regard": "no json"}}, "must have a JSON object as its 'regard' metadata"),
        ({"__metadata__": {"regard": "[1]"}}, "must have a JSON object as its 'regard' metadata"),
        ({"__metadata__": {"checksum": "crc32:0"}}, "is damaged: its checksum must be crc32:0; got"),
    ],
)
def test_an_invalid_header_raises(tmp_path: Path, header: object, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load_tensors_and_metadata(_write_safetensors(tmp_path / "x.safetensors", header, b"\0" * 4))


def test_unknown_model_types_and_missing_folders_raise(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(LoadError, match=r"the model must be one of gpt2, llama, mistral, bert, vit; got 'mamba'"):
        load_pretrained(folder)
    with pytest.raises(LoadError, match=r"a checkpoint must be a folder with config.json and model.safetensors; got"):
        load_pretrained(folder / "nothing")
