"""Models by name: those of Hugging Face in a directory, what is read of it, and what is not."""

import pickle
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import LoadError, SpecError
from regard.explorer.explorer import Explorer
from regard.explorer.opened import opened
from regard.explorer.questions import ask
from regard.explorer.sources import of_name
from regard.models import shipped
from tests.explorer.recordings import a_tape

transformers = pytest.importorskip("transformers")
TEXT = " The captain saw the white whale"


def tokenizer() -> object:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(shipped.WEIGHTS / "language.json"))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("gpt")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=4096, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)  # type: ignore[attr-defined]
    return str(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=4096, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)  # type: ignore[attr-defined]
    return str(folder)


def test_a_directory_of_hugging_face_is_read_and_its_weights_are_its_own(gpt: str) -> None:
    found = of_name(gpt).shown(TEXT)
    assert "".join(found.texts[0].tokens) == TEXT
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt, attn_implementation="eager").eval()
    with torch.no_grad():
        right = model(torch.tensor([found.ids]), output_attentions=True).attentions
    for layer in (0, 1):
        weights = found.head(layer, 2).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, right[layer][0, 2], atol=1e-5, rtol=1e-4)


def test_a_model_of_hugging_face_goes_on_with_a_text(gpt: str) -> None:
    explorer = opened(TEXT, model=gpt)
    values = ask(explorer, "generate", {"shown": 0, "count": 5}).values
    made = explorer.shown[values["id"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt).eval()
    right = model.generate(torch.tensor([explorer.shown[0].ids]), max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert made.ids == right[0].tolist()
    weights = made.head(1, 0).weights(slice(None), slice(None))
    assert weights.shape == (len(made.ids), len(made.ids))
    assert not weights.triu(1).any()


def test_a_recording_of_a_model_of_hugging_face_that_generates_is_one_matrix(gpt: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt).eval()
    with torch.no_grad(), regard.record(model) as tape:
        ids = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, pad_token_id=0)[0, :-1]
    shown = opened(tape).shown[0]
    with torch.no_grad(), regard.record(model) as whole:
        model(ids[None])
    assert shown.said()["dropped"] == []
    weights = shown.head(1, 2).weights(slice(None), slice(None))
    torch.testing.assert_close(weights, whole[1].weights[0, 2], atol=1e-5, rtol=1e-4)  # sums in another order


def test_an_encoder_is_read_and_does_not_write(bert: str) -> None:
    explorer = opened(TEXT, model=bert)
    said = ask(explorer, "state").values
    assert said["shown"][0]["can_generate"] is False
    assert len(said["shown"][0]["layers"]) == 2
    assert [model["name"] for model in said["models"]] == ["language", "dates", bert]
    assert explorer.shown[0].head(0, 0).weights([0], slice(None))[0, -1] > 0, "it looks ahead"


@pytest.fixture(scope="module", params=["T5", "Bart"])
def translating(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    sizes = {
        "T5": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0),
        "Bart": dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64)
        | dict(encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64),
    }
    config = getattr(transformers, f"{request.param}Config")(vocab_size=4096, **sizes[request.param])
    getattr(transformers, f"{request.param}ForConditionalGeneration")(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)  # type: ignore[attr-defined]
    return str(folder)


def test_a_model_that_reads_one_text_and_writes_another_shows_both(translating: str) -> None:
    explorer = opened(TEXT, model=translating)
    shown = explorer.shown[0]
    said = ask(explorer, "state").values["shown"][0]
    assert said["can_generate"] is False
    assert [text["name"] for text in said["texts"]] == ["source", "target"]
    assert "".join(said["texts"][0]["tokens"]) == TEXT
    uses = [(layer["query_text"], layer["key_text"], layer["crosses"]) for layer in said["layers"]]
    assert sorted(uses) == [(0, 0, False)] * 2 + [(1, 0, True)] * 2 + [(1, 1, False)] * 2
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(translating, attn_implementation="eager").eval()
    source = torch.tensor([tokenizer()(TEXT)["input_ids"]])  # type: ignore[operator]
    with torch.no_grad():
        most = 63 if "Bart" in translating else 128
        written = model.generate(source, max_new_tokens=most, do_sample=False, num_beams=1)
        if written[0, -1] == model.generation_config.eos_token_id:
            written = written[:, :-1]
        right = model(input_ids=source, decoder_input_ids=written, output_attentions=True).cross_attentions
    crossing = [layer["number"] for layer in said["layers"] if layer["crosses"]]
    for number, expected in zip(crossing, right, strict=True):
        weights = shown.head(number, 3).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, expected[0, 3], atol=1e-5, rtol=1e-4)
    assert len(ask(explorer, "heads").values["rows"]) == 6 * 4


def saved(kind: str, folder: Path, **options: object) -> str:
    """A small T5 or Whisper, as one of its classes."""
    made = getattr(transformers, kind)
    made(made.config_class(vocab_size=4096, d_model=32, **options)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)  # type: ignore[attr-defined]
    return str(folder)


def test_half_of_a_model_is_that_half(tmp_path: Path) -> None:
    folder = saved("T5EncoderModel", tmp_path, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    shown = of_name(folder).shown(TEXT)
    model = transformers.T5EncoderModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        right = model(torch.tensor([shown.ids]), output_attentions=True).attentions
    assert len(shown.layers) == 2
    torch.testing.assert_close(shown.head(1, 2).weights(slice(None), slice(None)), right[1][0, 2])


def test_a_model_that_cannot_write_though_it_should_is_refused(tmp_path: Path) -> None:
    folder = saved("T5Model", tmp_path, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    with pytest.raises(LoadError, match="it has an encoder and a decoder, and was not saved to write, but as T5Model"):
        of_name(folder)


def test_a_model_that_hears_is_refused(tmp_path: Path) -> None:
    sizes = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4)
    tokens = dict(pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0)
    folder = saved("WhisperForConditionalGeneration", tmp_path, **sizes, **tokens)
    with pytest.raises(LoadError, match="its model type whisper reads input_features, and not a text"):
        of_name(folder)


def test_a_text_longer_than_the_model_takes_is_refused_with_both_numbers(gpt: str) -> None:
    with pytest.raises(SpecError, match=r"must have at most 64 tokens; got 100\. Take a part of it\."):
        of_name(gpt).shown(" whale" * 100)


def test_pickled_weights_are_not_read(gpt: str, tmp_path: Path) -> None:
    for file in Path(gpt).iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    said = r"only in pytorch_model\.bin, a pickle, .* convert it to safetensors once: model\.save_pretrained\("
    with pytest.raises(LoadError, match=said):
        of_name(str(tmp_path))


def test_a_model_without_a_tokenizer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    sizes = dict(num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, hidden_size=32)
    kinds = {
        "GPT2LMHeadModel": dict(n_embd=32, n_layer=1, n_head=4),
        "BertModel": sizes,  # transformers makes a tokenizer for it that knows no word
        "LlamaForCausalLM": sizes,
    }
    for name, options in kinds.items():
        kind, folder = getattr(transformers, name), tmp_path / name
        kind(kind.config_class(vocab_size=4096, **options)).save_pretrained(folder)
        with pytest.raises(LoadError, match=r"tokenizer.* Save the tokenizer beside the weights: tokenizer\.save_pre"):
            of_name(str(folder))


@pytest.mark.parametrize("name", ["DebertaV2Model", "MambaForCausalLM"])
def test_a_model_whose_attention_cannot_be_recorded_is_refused_by_its_class(name: str, tmp_path: Path) -> None:
    kind = getattr(transformers, name)
    sizes = dict(num_attention_heads=4, intermediate_size=32) if "Deberta" in name else dict(state_size=4)
    kind(kind.config_class(vocab_size=4096, hidden_size=32, num_hidden_layers=1, **sizes)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    with pytest.raises(LoadError, match=f"to be recorded; {name} called neither. It computes softmax in code of its"):
        of_name(str(tmp_path)).shown(TEXT)


def test_a_model_that_reads_pictures_is_refused_for_that_and_not_for_its_tokenizer(tmp_path: Path) -> None:
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=32)
    transformers.ViTModel(transformers.ViTConfig(patch_size=8, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="its model type vit reads pixel_values, and not a text"):
        of_name(str(tmp_path))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}')
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(LoadError, match="got '"):
        of_name(str(tmp_path))


def test_a_directory_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        LoadError,
        match="a model must be language, dates, the folder of a finished regard train, or a Hugging Face directory",
    ):
        of_name(str(tmp_path / "nothing"))


def test_an_example_opens_where_nothing_is_given() -> None:
    assert opened().shown[0].model == "language"
    assert opened(model="dates").shown[0].title.endswith("→ 1986-03-21")


def test_a_recording_opens_and_one_that_was_saved_too(tmp_path: Path) -> None:
    tape = a_tape(5, 5)
    tape.tokens = list("abcde")
    tape.save(tmp_path / "tape.safetensors")
    for given in (tape, regard.load_tape(tmp_path / "tape.safetensors")):
        assert opened(given).shown[0].texts[0].tokens == list("abcde")


def test_texts_are_added_to_a_history_that_is_bounded_by_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer(of_name("language").shown(" one"))
    assert ask(explorer, "run", {"text": " two"}).values == {"id": 1}
    assert ask(explorer, "run", {"text": " three", "into": 0}).values == {"id": 2}
    assert [shown.text for shown in explorer.shown.values()] == [" one", " two", " three"]
    monkeypatch.setattr("regard.explorer.explorer.SHOWN", 3)
    ask(explorer, "run", {"text": " four"})
    assert [shown.text for shown in explorer.shown.values()] == [" one", " three", " four"]
    monkeypatch.setattr("regard.explorer.explorer.HISTORY_BYTES", 3 * explorer.shown[0].nbytes - 1)
    ask(explorer, "run", {"text": " five"})
    assert [shown.text for shown in explorer.shown.values()] == [" one", " five"]
