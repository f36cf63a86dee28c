"""Weights of others: files that Hugging Face writes, in our models, to the same numbers."""

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
from regard.files.header import read_header
from regard.models.encoder import TextEncoder
from regard.models.language import LanguageModel
from regard.models.load import load
from regard.models.store import read
from regard.models.vision import VisionTransformer
from regard.nn import Design, Learned, beam, generate

CLOSE = dict(rtol=1e-3, atol=2e-5)  # float32, in another order, through several layers


def _shaken(model: Any) -> Any:
    """Norms and biases that do something."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def _gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=64, **options)
    return _shaken(transformers.GPT2LMHeadModel(config))


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
    return _shaken(transformers.LlamaForCausalLM(config))


TOKENS = torch.randint(99, (2, 30), generator=torch.Generator().manual_seed(3))
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(_gpt2, id="gpt2"),
        pytest.param(lambda: _gpt2(tie_word_embeddings=False), id="gpt2, a table of its own to write with"),
        pytest.param(_llama, id="llama"),
        pytest.param(lambda: _llama(tie_word_embeddings=True), id="llama, tied"),
        pytest.param(lambda: _llama(rope_parameters=STRETCHED), id="llama, stretched"),
        pytest.param(lambda: _llama(head_dim=16), id="llama, wide heads"),
    ],
)
def test_a_language_model_gives_the_same_logits_and_text(theirs: Any, tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert isinstance(ours, LanguageModel)
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), model(TOKENS).logits, **CLOSE)
    expected = model.generate(TOKENS[:, :8], max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert generate(ours, TOKENS[:, :8], most=12).tolist() == expected[:, 8:].tolist()


@pytest.mark.parametrize(
    "words",
    [
        {"sliding_window": 4},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 500.0},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 90.0}, "rope_scaling": STRETCHED},
    ],
    ids=["a window that Llama has not", "base beside", "old words", "two ways to stretch"],
)
def test_unusual_words_mean_what_they_mean_to_transformers(words: dict[str, Any], tmp_path: Path) -> None:
    _llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | words))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(TOKENS), model(TOKENS).logits, **CLOSE)


@pytest.mark.parametrize("theirs", [_gpt2, lambda: _llama(tie_word_embeddings=True)], ids=["gpt2", "llama"])
def test_a_second_table_in_the_file_is_used_if_it_differs(theirs: Any, tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    same = model.get_input_embeddings().weight.detach().clone()
    for table, expected in ((same, model.lm_head), (torch.randn_like(same), torch.nn.Linear(32, 99, bias=False))):
        _changed(tmp_path, lambda t, table=table: t.update({"lm_head.weight": table}))
        expected.weight.data = table
        with torch.no_grad():
            states = model.base_model(TOKENS).last_hidden_state
            torch.testing.assert_close(load(tmp_path)(TOKENS), expected(states), **CLOSE)


def test_mistral_sees_4096_tokens_unless_told_otherwise(tmp_path: Path) -> None:
    sizes = dict(vocab_size=99, hidden_size=32, intermediate_size=56, num_hidden_layers=1, num_attention_heads=4)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, num_key_value_heads=2))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    expected = config.pop("sliding_window")
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load(tmp_path)
    assert isinstance(ours, LanguageModel)
    assert ours.decoder.designs[0].window == expected == 4096


def test_mistral_sees_a_window(tmp_path: Path) -> None:
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
    model = _shaken(transformers.MistralForCausalLM(config))
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(TOKENS), model(TOKENS).logits, **CLOSE)


def test_beams_are_those_of_hugging_face(tmp_path: Path) -> None:
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
    ours = load(tmp_path)
    assert isinstance(ours, LanguageModel)
    found = beam(ours, prompt, most=8, width=4)
    assert found.tokens.flatten(0, 1).tolist() == expected[:, 6:].tolist()


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
    return _shaken(getattr(transformers, kind)(config))


def test_bert_gives_the_same_vectors(tmp_path: Path) -> None:
    model = _bert("BertModel")
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert isinstance(ours, TextEncoder)
    lengths = torch.tensor([30, 11])
    types = (torch.arange(30) >= 7).long().expand(2, -1)
    with torch.no_grad():
        expected = model(TOKENS, attention_mask=(torch.arange(30) < lengths[:, None]).long(), token_type_ids=types)
        found = ours(TOKENS, lengths=lengths, types=types)
        for b, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(found[b, :length], expected.last_hidden_state[b, :length], **CLOSE)
        torch.testing.assert_close(ours.pooled(found), expected.pooler_output, **CLOSE)


@pytest.mark.parametrize("task", ["MaskedLM", "TokenClassification", "QuestionAnswering", "SequenceClassification"])
def test_bert_trained_for_a_task_is_the_encoder_inside_it(tmp_path: Path, task: str) -> None:
    model = _bert(f"BertFor{task}")
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert isinstance(ours, TextEncoder)
    assert (ours.pooler is not None) == (task == "SequenceClassification")  # the others are trained without one
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), model.bert(TOKENS).last_hidden_state, **CLOSE)


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
    return _shaken(getattr(transformers, kind)(config))


def test_vit_without_a_classifier_gives_the_same_vectors(tmp_path: Path) -> None:
    model = _vit("ViTModel")
    model.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(images), model(images).last_hidden_state, **CLOSE)


def test_vit_gives_the_same_classes_also_for_other_sizes(tmp_path: Path) -> None:
    model = _vit("ViTForImageClassification")
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert isinstance(ours, VisionTransformer)
    with torch.no_grad():
        images = torch.randn(2, 3, 16, 16)
        torch.testing.assert_close(ours(images), model(images).logits, **CLOSE)
        wide = torch.randn(2, 3, 24, 32)
        torch.testing.assert_close(ours(wide), model(wide, interpolate_pos_encoding=True).logits, **CLOSE)


def test_several_files_are_one_model(tmp_path: Path) -> None:
    model = _llama()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(TOKENS), model(TOKENS).logits, **CLOSE)


def test_gpt2_small_and_vit_base_have_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        gpt2 = LanguageModel(
            50257, layers=12, design=Design(768, heads=12, activation="gelu_tanh"), position=Learned(1024, 768)
        )
        vit = VisionTransformer(
            image=(224, 224), patch=16, channels=3, classes=1000, layers=12, design=Design(768, heads=12)
        )
    assert sum(p.numel() for p in gpt2.parameters()) == 124_439_808
    assert sum(p.numel() for p in vit.parameters()) == 86_567_656


def _changed(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _gpt2().save_pretrained(tmp_path)
    return tmp_path


def test_a_tensor_of_another_shape_is_refused_by_name(folder: Path) -> None:
    _changed(folder, lambda t: t.update({"transformer.h.1.mlp.c_fc.weight": torch.zeros(32, 100)}))
    with pytest.raises(LoadError, match=r"'h.1.mlp.c_fc.weight' \(32, 100\) must have shape \(32, 128\)"):
        load(folder)


def test_parts_of_a_tensor_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    _llama().save_pretrained(tmp_path)
    _changed(tmp_path, lambda t: t.update({"model.layers.2.self_attn.k_proj.weight": torch.zeros(16, 31)}))
    with pytest.raises(LoadError, match=r"'layers.2.self_attn.k_proj.weight' \(16, 31\).*must have shape \(64, 32\)"):
        load(tmp_path)


def test_a_missing_tensor_is_refused_by_name(folder: Path) -> None:
    _changed(folder, lambda t: t.pop("transformer.h.2.ln_1.bias"))
    with pytest.raises(LoadError, match=r"must hold 'h.2.ln_1.bias'; it does not"):
        load(folder)


def test_a_tensor_too_many_is_refused_by_name(folder: Path) -> None:
    _changed(folder, lambda t: t.update({"transformer.h.9.ln_1.bias": torch.zeros(3)}))
    with pytest.raises(LoadError, match=r"holds 'h.9.ln_1.bias', and a model of this kind has no such tensor"):
        load(folder)


def test_a_file_that_is_cut_off_is_refused_by_the_tensor_that_is_not_whole(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
    last = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"][1])
    with pytest.raises(LoadError, match=rf"{last}' ends at byte \d+ of the data, and only \d+ are there"):
        load(folder)


def test_pickled_files_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    torch.save({"x": torch.zeros(3)}, path)
    with pytest.raises(LoadError, match=r"it is pickled, and opening it could run any program"):
        load(folder)
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(LoadError, match=r"got pytorch_model.bin, which is pickled"):
        load(folder)


DEEP = struct.pack("<Q", 100_000) + b"[" * 100_000


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 64, struct.pack("<Q", 10) + b"not json!!" + b"\0" * 20, DEEP]
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
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
        ("vit", "patch_size", [4, 2], r"must be one number, of a square; got \[4, 2\]"),
        ("vit", "hidden_act", "relu", "must be 'gelu'; got 'relu'"),
    ],
)
def test_words_that_would_make_another_model_are_refused(
    tmp_path: Path, kind: str, name: str, value: Any, message: str
) -> None:
    made = {"gpt2": _gpt2, "llama": _llama, "bert": lambda: _bert("BertModel"), "vit": lambda: _vit("ViTModel")}
    made[kind]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(LoadError, match=rf"{name} in config.json {message}"):
        load(tmp_path)


def test_a_folder_that_is_damaged_is_refused_in_a_sentence(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(LoadError, match=r"config.json must be an object, with names and values; got list"):
        load(folder)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "n_embd"}))
    with pytest.raises(LoadError, match=r"config.json of .* must say 'n_embd'; it does not"):
        load(folder)
    for words in ({"n_head": "4"}, {"n_layer": None}, {"vocab_size": -5}):
        (folder / "config.json").write_text(json.dumps(config | words))
        with pytest.raises(LoadError, match=r"config.json of .* must describe a model; it does not \("):
            load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    with pytest.raises(LoadError, match=r"weights must be floats; got .* says that they are quantised"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    whole = (folder / "model.safetensors").read_bytes()
    _changed(folder, lambda t: t.update({"transformer.ln_f.bias": t["transformer.ln_f.bias"].to(torch.int8)}))
    with pytest.raises(LoadError, match=r"'decoder.norm.bias' must hold floats; got torch.int8"):
        load(folder)
    (folder / "model.safetensors").write_bytes(whole)
    _changed(folder, lambda t: t.update({"ln_f.bias": torch.zeros(32)}))
    with pytest.raises(LoadError, match=r"must hold each tensor once; got 'ln_f.bias' with and without its prefix"):
        load(folder)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    for content, message in (("{}", "must say in which files tensors are"), ("{", "a model is a folder with")):
        index.write_text(content)
        with pytest.raises(LoadError, match=message):
            load(folder)


def _file(path: Path, header: object, data: bytes = b"") -> Path:
    written = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(written)) + written + data)
    return path


F32 = {"dtype": "F32", "shape": [1]}


@pytest.mark.parametrize(
    "header, message",
    [
        ([1, 2], "its header names no tensors"),
        ({"a": F32}, "'a' in .* must have a dtype, a shape and offsets; its header has {'dtype': 'F32'"),
        ({"a": [0, 4]}, r"'a' in .* must have a dtype, a shape and offsets; its header has \[0, 4\]"),
        ({"a": {**F32, "data_offsets": [0, 2]}}, r"'a' in .* must take 4 bytes, for its shape \(1,\) .* gives it 2"),
        ({"a": {**F32, "dtype": "X", "data_offsets": [0, 4]}}, "'a' in .* must have a dtype of F64, .*; got 'X'"),
        ({"a": {**F32, "dtype": [1], "data_offsets": [0, 4]}}, r"a dtype such as 'F32'; its header has \[1\]"),
        ({"a": {**F32, "data_offsets": [0, math.inf]}}, r"must have two offsets in order; its header has \[0, inf\]"),
        ({"a": {**F32, "data_offsets": [4, 0]}}, r"must have two offsets in order; its header has \[4, 0\]"),
        ({"a": {**F32, "shape": "1", "data_offsets": [0, 4]}}, "must have a shape of whole numbers .* header has '1'"),
        ({"a": {**F32, "shape": [-1, -1], "data_offsets": [0, 4]}}, r"shape of whole numbers .* has \[-1, -1\]"),
        ({"a": {**F32, "shape": [0, 2**62], "data_offsets": [0, 0]}}, "must take 0 bytes, for its shape"),
        ({"a": {**F32, "shape": [1] * 65, "data_offsets": [0, 4]}}, "must have a shape of whole numbers"),
        ({n: {**F32, "data_offsets": [0, 4]} for n in "ab"}, "must hold its tensors apart; 'a' and 'b' share bytes"),
        ({"__metadata__": {"x": 1}}, "its __metadata__ must be text by name"),
        ({"__metadata__": {"regard": "no json"}}, "must have an object of JSON as its 'regard' metadata"),
        ({"__metadata__": {"regard": "[1]"}}, "must have an object of JSON as its 'regard' metadata"),
        ({"__metadata__": {"checksum": "crc32:0"}}, "is damaged: its checksum must be crc32:0, and its content has"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_in_a_sentence(tmp_path: Path, header: object, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read(_file(tmp_path / "x.safetensors", header, b"\0" * 4))


def test_what_this_package_does_not_know_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(LoadError, match=r"the model must be one of gpt2, llama, mistral, bert, vit; got 'mamba'"):
        load(folder)
    with pytest.raises(LoadError, match=r"a model is a folder with config.json and model.safetensors; got"):
        load(folder / "nothing")
