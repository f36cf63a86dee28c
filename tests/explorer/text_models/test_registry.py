"""Models by name: bundled models, and directories of Hugging Face with supported and unsupported models."""

import pickle
import re
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import ArgumentError, LoadError
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.session_factory import create_explorer
from regard.explorer.text_models.registry import load_text_model
from tests.explorer.recordings import make_recording
from tests.explorer.text_models.bundled_tokenizer import bundled_tokenizer

transformers = pytest.importorskip("transformers")
TEXT = " The captain saw the white whale"


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("gpt")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=4096, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    bundled_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=4096, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(folder)
    bundled_tokenizer().save_pretrained(folder)
    return str(folder)


def test_a_hugging_face_directory_gives_the_weights_of_transformers(gpt: str) -> None:
    session = load_text_model(gpt).record_text(TEXT)
    assert "".join(session.texts[0].tokens) == TEXT
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model(torch.tensor([session.token_ids]), output_attentions=True).attentions
    for layer in (0, 1):
        weights = session.head(layer, 2).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, expected[layer][0, 2], atol=1e-5, rtol=1e-4)


def test_a_hugging_face_model_continues_a_text(gpt: str) -> None:
    explorer = create_explorer(TEXT, model=gpt)
    values = dispatch(explorer, "generate", {"session": 0, "max_new_tokens": 5}).values
    continued = explorer.sessions[values["id"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt).eval()
    expected = model.generate(
        torch.tensor([explorer.sessions[0].token_ids]), max_new_tokens=5, do_sample=False, pad_token_id=0
    )
    assert continued.token_ids == expected[0].tolist()
    weights = continued.head(1, 0).weights(slice(None), slice(None))
    assert weights.shape == (len(continued.token_ids), len(continued.token_ids))
    assert not weights.triu(1).any()


def test_the_recording_of_a_hugging_face_generation_is_one_matrix(gpt: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt).eval()
    with torch.no_grad(), regard.record(model) as recording:
        ids = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, pad_token_id=0)[0, :-1]
    session = create_explorer(recording).sessions[0]
    with torch.no_grad(), regard.record(model) as expected:
        model(ids[None])
    assert session.to_json()["warnings"] == []
    weights = session.head(1, 2).weights(slice(None), slice(None))
    torch.testing.assert_close(weights, expected[1].weights[0, 2], atol=1e-5, rtol=1e-4)  # sums in another order


def test_an_encoder_cannot_generate(bert: str) -> None:
    explorer = create_explorer(TEXT, model=bert)
    state = dispatch(explorer, "state").values
    assert state["sessions"][0]["can_generate"] is False
    assert len(state["sessions"][0]["layers"]) == 2
    assert [model["name"] for model in state["models"]] == ["language", "dates", bert]
    assert explorer.sessions[0].head(0, 0).weights([0], slice(None))[0, -1] > 0, "it attends to later keys"


@pytest.fixture(scope="module", params=["T5", "Bart"])
def seq2seq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    sizes = {
        "T5": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0),
        "Bart": dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64)
        | dict(encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64),
    }
    config = getattr(transformers, f"{request.param}Config")(vocab_size=4096, **sizes[request.param])
    getattr(transformers, f"{request.param}ForConditionalGeneration")(config).save_pretrained(folder)
    bundled_tokenizer().save_pretrained(folder)
    return str(folder)


def test_a_seq2seq_model_has_a_source_and_a_target_text(seq2seq: str) -> None:
    explorer = create_explorer(TEXT, model=seq2seq)
    session = explorer.sessions[0]
    state = dispatch(explorer, "state").values["sessions"][0]
    assert state["can_generate"] is False
    assert [text["name"] for text in state["texts"]] == ["source", "target"]
    assert "".join(state["texts"][0]["tokens"]) == TEXT
    layer_texts = [(layer["query_text"], layer["key_text"], layer["is_cross_attention"]) for layer in state["layers"]]
    assert sorted(layer_texts) == [(0, 0, False)] * 2 + [(1, 0, True)] * 2 + [(1, 1, False)] * 2
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(seq2seq, attn_implementation="eager").eval()
    source = torch.tensor([bundled_tokenizer()(TEXT)["input_ids"]])
    with torch.no_grad():
        max_new_tokens = 63 if "Bart" in seq2seq else 128
        generated = model.generate(source, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1)
        if generated[0, -1] == model.generation_config.eos_token_id:
            generated = generated[:, :-1]
        expected = model(input_ids=source, decoder_input_ids=generated, output_attentions=True).cross_attentions
    cross_attention_layers = [layer["index"] for layer in state["layers"] if layer["is_cross_attention"]]
    for layer, layer_weights in zip(cross_attention_layers, expected, strict=True):
        weights = session.head(layer, 3).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, layer_weights[0, 3], atol=1e-5, rtol=1e-4)
    assert len(dispatch(explorer, "heads").values["rows"]) == 6 * 4


def save_model(class_name: str, folder: Path, **options: object) -> str:
    """Save a small T5 or Whisper model of this class."""
    model_class = getattr(transformers, class_name)
    model_class(model_class.config_class(vocab_size=4096, d_model=32, **options)).save_pretrained(folder)
    bundled_tokenizer().save_pretrained(folder)
    return str(folder)


def test_an_encoder_of_a_seq2seq_model_is_loaded_as_an_encoder(tmp_path: Path) -> None:
    folder = save_model("T5EncoderModel", tmp_path, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    session = load_text_model(folder).record_text(TEXT)
    model = transformers.T5EncoderModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model(torch.tensor([session.token_ids]), output_attentions=True).attentions
    assert len(session.layers) == 2
    torch.testing.assert_close(session.head(1, 2).weights(slice(None), slice(None)), expected[1][0, 2])


def test_a_seq2seq_model_without_a_language_model_head_raises(tmp_path: Path) -> None:
    folder = save_model("T5Model", tmp_path, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    with pytest.raises(LoadError, match="must be saved with its language model head; it is a T5Model"):
        load_text_model(folder)


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such-folder", "models/no/such"])
def test_a_folder_that_does_not_exist_raises(name: str) -> None:
    with pytest.raises(LoadError, match=f"got '{re.escape(name)}': there is no such folder"):
        load_text_model(name)


def test_an_audio_model_raises(tmp_path: Path) -> None:
    sizes = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4)
    tokens = dict(pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0)
    folder = save_model("WhisperForConditionalGeneration", tmp_path, **sizes, **tokens)
    with pytest.raises(LoadError, match="its model type whisper takes input_features, not text"):
        load_text_model(folder)


def test_a_text_longer_than_the_limit_of_the_model_raises(gpt: str) -> None:
    with pytest.raises(ArgumentError, match=r"must have at most 64 tokens; got 100\. Use a part of it\."):
        load_text_model(gpt).record_text(" whale" * 100)


def test_pickled_weights_are_not_read(gpt: str, tmp_path: Path) -> None:
    for file in Path(gpt).iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    message = r"only in pytorch_model\.bin, a pickle, .* convert it to safetensors: model\.save_pretrained\("
    with pytest.raises(LoadError, match=message):
        load_text_model(str(tmp_path))


def test_a_model_without_a_tokenizer_raises(tmp_path: Path) -> None:
    sizes = dict(num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, hidden_size=32)
    options_by_class = {
        "GPT2LMHeadModel": dict(n_embd=32, n_layer=1, n_head=4),
        "BertModel": sizes,  # transformers creates a tokenizer without a vocabulary for it
        "LlamaForCausalLM": sizes,
    }
    for name, options in options_by_class.items():
        model_class, folder = getattr(transformers, name), tmp_path / name
        model_class(model_class.config_class(vocab_size=4096, **options)).save_pretrained(folder)
        with pytest.raises(LoadError, match=r"tokenizer.* Save the tokenizer beside the weights: tokenizer\.save_pre"):
            load_text_model(str(folder))


@pytest.mark.parametrize("name", ["DebertaV2Model", "MambaForCausalLM"])
def test_a_model_whose_attention_cannot_be_recorded_raises(name: str, tmp_path: Path) -> None:
    model_class = getattr(transformers, name)
    sizes = dict(num_attention_heads=4, intermediate_size=32) if "Deberta" in name else dict(state_size=4)
    config = model_class.config_class(vocab_size=4096, hidden_size=32, num_hidden_layers=1, **sizes)
    model_class(config).save_pretrained(tmp_path)
    bundled_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        LoadError, match=f"to be recorded; {name} called neither. Either it computes softmax in its own code"
    ):
        load_text_model(str(tmp_path)).record_text(TEXT)


def test_an_image_model_raises(tmp_path: Path) -> None:
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=32)
    transformers.ViTModel(transformers.ViTConfig(patch_size=8, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="its model type vit takes pixel_values, not text"):
        load_text_model(str(tmp_path))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}')
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(LoadError, match="got '"):
        load_text_model(str(tmp_path))


def test_a_missing_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(
        LoadError,
        match="a model must be language, dates, a folder written by regard train, or a Hugging Face directory",
    ):
        load_text_model(str(tmp_path / "nothing"))


def test_the_example_is_the_default() -> None:
    assert create_explorer().sessions[0].model == "language"
    assert create_explorer(model="dates").sessions[0].title.endswith("→ 1986-03-21")


def test_an_explorer_of_a_recording_or_a_saved_recording(tmp_path: Path) -> None:
    recording = make_recording(5, 5)
    recording.tokens = list("abcde")
    recording.save(tmp_path / "recording.safetensors")
    for source in (recording, regard.load_recording(tmp_path / "recording.safetensors")):
        assert create_explorer(source).sessions[0].texts[0].tokens == list("abcde")


def test_the_history_is_bounded_by_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer(load_text_model("language").record_text(" one"))
    assert dispatch(explorer, "run_model", {"text": " two"}).values == {"id": 1}
    assert dispatch(explorer, "run_model", {"text": " three", "into": 0}).values == {"id": 2}
    assert [session.text for session in explorer.sessions.values()] == [" one", " two", " three"]
    monkeypatch.setattr("regard.explorer.explorer.MAX_SESSIONS", 3)
    dispatch(explorer, "run_model", {"text": " four"})
    assert [session.text for session in explorer.sessions.values()] == [" one", " three", " four"]
    monkeypatch.setattr("regard.explorer.explorer.MAX_HISTORY_BYTES", 3 * explorer.sessions[0].nbytes - 1)
    dispatch(explorer, "run_model", {"text": " five"})
    assert [session.text for session in explorer.sessions.values()] == [" one", " five"]
