"""A decoder that looks at images: closed gates, open gates, caches, and where it looks."""

import pytest
import torch
from torch import Tensor, nn

from regard.errors import LoadError, SpecError
from regard.models.language import LanguageModel
from regard.models.multimodal import Describer, GatedLook
from regard.models.vision import ImageEncoder
from regard.nn import Design, KeyValueCache, Learned, Rotary, beam, generate

CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32 sums in another order
DESIGN = Design(width=32, heads=4, hidden=48)
TOKENS = torch.tensor([[1, 5, 2, 9, 9, 3], [4, 4, 7, 1, 0, 8]])


def _describer(layers: int = 3) -> Describer:
    eye = ImageEncoder(image=(8, 8), patch=2, channels=1, layers=1, design=DESIGN)
    return Describer(11, eye=eye, layers=layers, design=DESIGN, position=Learned(12, 32)).eval()


def _opened(model: Describer) -> Describer:
    """Open gates, and every parameter away from where it began."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for block in model.decoder.layers:
            block.look.alpha.fill_(0.8)
            block.look.beta.fill_(-0.6)
    return model


def _images() -> Tensor:
    return torch.randn(2, 1, 8, 8)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_closed_gate_leaves_the_language_model_as_it_was_to_the_bit(position: str) -> None:
    made = (lambda: Learned(12, 32)) if position == "learned" else (lambda: Rotary(8))
    language = LanguageModel(11, layers=3, design=DESIGN, position=made()).eval()
    with torch.no_grad():
        for parameter in language.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    eye = ImageEncoder(image=(8, 8), patch=2, channels=1, layers=1, design=DESIGN)
    model = Describer(11, eye=eye, layers=3, design=DESIGN, position=made()).eval()
    assert not torch.equal(model(TOKENS, _images()), language(TOKENS))
    model.adopt(language)
    assert torch.equal(model(TOKENS, _images()), language(TOKENS))


def test_one_open_gate_lets_the_image_in() -> None:
    for name in ("alpha", "beta"):
        model = _describer(layers=1)
        before = model(TOKENS, _images())
        with torch.no_grad():
            getattr(model.decoder.layers[0].look, name).fill_(0.1)
        assert not torch.equal(model(TOKENS, _images()), before)


def test_with_open_gates_another_image_gives_other_logits_at_every_word() -> None:
    model = _opened(_describer())
    difference = (model(TOKENS, _images()) - model(TOKENS, _images())).abs().amax(-1)
    assert bool((difference > 1e-3).all())


def test_each_text_sees_its_own_image_and_no_later_word() -> None:
    model, images = _opened(_describer()), _images()
    whole = model(TOKENS, images)
    for row in range(2):
        torch.testing.assert_close(model(TOKENS[row : row + 1], images[row : row + 1])[0], whole[row], **CLOSE)
    torch.testing.assert_close(model(TOKENS[:, :3], images), whole[:, :3], **CLOSE)


def test_closed_gates_learn_to_open_before_anything_behind_them_learns() -> None:
    model = _describer()
    loss = nn.functional.cross_entropy(model(TOKENS[:, :-1], _images()).flatten(0, 1), TOKENS[:, 1:].flatten())
    loss.backward()
    for block in model.decoder.layers:
        assert float(block.look.alpha.grad.abs()) > 0
        assert float(block.look.beta.grad.abs()) > 0
        assert float(block.look.attention.in_proj_weight.grad.abs().max()) == 0
    assert float(model.eye.patches.weight.grad.abs().max()) == 0


def test_a_gated_look_is_its_formula() -> None:
    look = GatedLook(DESIGN)
    with torch.no_grad():
        for parameter in look.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    theirs.load_state_dict(look.attention.state_dict())
    x, patches = torch.randn(2, 5, 32), torch.randn(2, 9, 32)
    seen, weights = theirs(look.norm1(x), patches, patches, average_attn_weights=False)
    y = x + torch.tanh(look.alpha) * seen
    inner = look.feedforward.linear2(nn.functional.gelu(look.feedforward.linear1(look.norm2(y))))
    torch.testing.assert_close(look(x, patches), y + torch.tanh(look.beta) * inner, **CLOSE)
    torch.testing.assert_close(look.attend(x, patches).weights[...], weights, **CLOSE)


def test_word_by_word_with_a_cache_gives_the_same_logits() -> None:
    model, images = _opened(_describer()), _images()
    with torch.no_grad():
        whole = model(TOKENS, images)
        seen, cache = model.seeing(images), KeyValueCache()
        steps = [seen.following(TOKENS[:, :2], cache)]
        filled = [cache.memory(layer).length for layer in range(3)]
        steps += [seen.following(TOKENS[:, i : i + 1], cache) for i in range(2, 6)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole[:, 1:], **CLOSE)
    assert filled == [16, 16, 16]
    assert [cache.memory(layer).length for layer in range(3)] == filled  # patches are projected once


def test_what_is_written_is_what_the_whole_text_would_choose() -> None:
    model, images = _opened(_describer()), _images()
    written = generate(model.seeing(images), TOKENS[:, :1], most=8)
    with torch.no_grad():
        again = model(torch.cat((TOKENS[:, :1], written), dim=1), images)[:, :-1].argmax(-1)
    assert again.tolist() == written.tolist()


def test_beams_keep_to_their_image() -> None:
    model, images = _opened(_describer()), _images()
    found = beam(model.seeing(images), TOKENS[:, :1], most=4, width=3)
    with torch.no_grad():
        for row in range(2):
            for text, score in zip(found.tokens[row], found.scores[row], strict=True):
                whole = torch.cat((TOKENS[row, :1], text))
                log = model(whole[None, :-1], images[row : row + 1])[0].log_softmax(-1)
                expected = log.gather(1, text[:, None]).sum()
                torch.testing.assert_close(score, expected, **CLOSE)


def test_where_each_word_looks_is_in_view() -> None:
    model, images = _opened(_describer()), _images()
    queries: list[Tensor] = []
    for block in model.decoder.layers:
        block.look.norm1.register_forward_hook(lambda _, __, out: queries.append(out))
    model(TOKENS, images)
    taken, patches = queries[:], model.patches(images)
    layers = model.attend(TOKENS, images)
    assert len(layers) == 3
    for layer, block, query in zip(layers, model.decoder.layers, taken, strict=True):
        theirs = nn.MultiheadAttention(32, 4, batch_first=True)
        theirs.load_state_dict(block.look.attention.state_dict())
        _, expected = theirs(query, patches, patches, average_attn_weights=False)
        assert layer.memory is not None
        torch.testing.assert_close(layer.memory.weights[...], expected, **CLOSE)
        assert layer.own.weights.shape == (2, 4, 6, 6)


def test_without_patches_the_decoder_is_the_plain_one() -> None:
    model = _opened(_describer())
    language = LanguageModel(11, layers=3, design=DESIGN, position=Learned(12, 32)).eval()
    state = model.state_dict()
    language.load_state_dict({name: state[name] for name in language.state_dict()})
    x = model.embedding(TOKENS)
    assert torch.equal(model.decoder(x), language.decoder(x))
    layers = model.decoder.attend(x)
    assert all(layer.memory is None for layer in layers)
    expected = language.decoder.attend(x)[2].own.weights[...]
    torch.testing.assert_close(layers[2].own.weights[...], expected, rtol=0, atol=0)


def test_what_cannot_go_together_is_refused() -> None:
    eye = ImageEncoder(image=(8, 8), patch=2, channels=1, layers=1, design=Design(16, heads=2))
    with pytest.raises(SpecError, match="the eye and the decoder must have the same width; got 16 and 32"):
        Describer(11, eye=eye, layers=1, design=DESIGN, position=None)
    model = _describer()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    for language, message in (
        (LanguageModel(11, layers=2, design=DESIGN, position=Learned(12, 32)), "must hold 'decoder.layers.2"),
        (LanguageModel(11, layers=4, design=DESIGN, position=Learned(12, 32)), "holds 'decoder.layers.3"),
        (LanguageModel(12, layers=3, design=DESIGN, position=Learned(12, 32)), r"'embedding.weight' must have shape"),
    ):
        with pytest.raises(LoadError, match=message):
            model.adopt(language)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
