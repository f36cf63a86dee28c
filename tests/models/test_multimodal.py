"""The image captioner: gates, caches, beams and attention weights."""

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, LoadError
from regard.models.language import LanguageModel
from regard.models.multimodal import GatedCrossAttention, ImageCaptioner
from regard.models.vision import ImageEncoder
from regard.nn import BlockConfig, KeyValueCache, LearnedPositionalEmbedding, RotaryEmbedding, beam_search, generate

CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32 sums in a different order
CONFIG = BlockConfig(embed_dim=32, num_heads=4, ffn_dim=48)
TOKENS = torch.tensor([[1, 5, 2, 9, 9, 3], [4, 4, 7, 1, 0, 8]])


def _captioner(num_layers: int = 3) -> ImageCaptioner:
    vision = ImageEncoder(image_size=(8, 8), patch_size=2, num_channels=1, num_layers=1, block_config=CONFIG)
    return ImageCaptioner(
        11,
        vision_encoder=vision,
        num_layers=num_layers,
        block_config=CONFIG,
        position_encoding=LearnedPositionalEmbedding(12, 32),
    ).eval()


def _open_gates(model: ImageCaptioner) -> ImageCaptioner:
    """Perturb all parameters and open the gates; return the model."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for block in model.decoder.layers:
            block.gated_cross_attn.alpha.fill_(0.8)
            block.gated_cross_attn.beta.fill_(-0.6)
    return model


def _images() -> Tensor:
    return torch.randn(2, 1, 8, 8)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_closed_gates_leave_the_language_model_unchanged(position: str) -> None:
    make_position = (
        (lambda: LearnedPositionalEmbedding(12, 32)) if position == "learned" else (lambda: RotaryEmbedding(8))
    )
    language_model = LanguageModel(11, num_layers=3, block_config=CONFIG, position_encoding=make_position()).eval()
    with torch.no_grad():
        for parameter in language_model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    vision = ImageEncoder(image_size=(8, 8), patch_size=2, num_channels=1, num_layers=1, block_config=CONFIG)
    model = ImageCaptioner(
        11, vision_encoder=vision, num_layers=3, block_config=CONFIG, position_encoding=make_position()
    ).eval()
    assert not torch.equal(model(TOKENS, _images()), language_model(TOKENS))
    model.load_language_model(language_model)
    assert torch.equal(model(TOKENS, _images()), language_model(TOKENS))


def test_each_open_gate_changes_the_logits() -> None:
    for name in ("alpha", "beta"):
        model = _captioner(num_layers=1)
        before = model(TOKENS, _images())
        with torch.no_grad():
            getattr(model.decoder.layers[0].gated_cross_attn, name).fill_(0.1)
        assert not torch.equal(model(TOKENS, _images()), before)


def test_logits_at_every_token_depend_on_the_image() -> None:
    model = _open_gates(_captioner())
    difference = (model(TOKENS, _images()) - model(TOKENS, _images())).abs().amax(-1)
    assert bool((difference > 1e-3).all())


def test_logits_depend_only_on_earlier_tokens_and_the_own_image() -> None:
    model, images = _open_gates(_captioner()), _images()
    logits = model(TOKENS, images)
    for b in range(2):
        torch.testing.assert_close(model(TOKENS[b : b + 1], images[b : b + 1])[0], logits[b], **CLOSE)
    torch.testing.assert_close(model(TOKENS[:, :3], images), logits[:, :3], **CLOSE)


def test_only_the_gates_get_gradients_while_they_are_closed() -> None:
    model = _captioner()
    loss = nn.functional.cross_entropy(model(TOKENS[:, :-1], _images()).flatten(0, 1), TOKENS[:, 1:].flatten())
    loss.backward()
    for block in model.decoder.layers:
        assert float(block.gated_cross_attn.alpha.grad.abs()) > 0
        assert float(block.gated_cross_attn.beta.grad.abs()) > 0
        assert float(block.gated_cross_attn.cross_attn.in_proj_weight.grad.abs().max()) == 0
    assert float(model.vision_encoder.patch_embedding.weight.grad.abs().max()) == 0


def test_gated_cross_attention_follows_its_formula() -> None:
    layer = GatedCrossAttention(CONFIG)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    torch_layer = nn.MultiheadAttention(32, 4, batch_first=True)
    torch_layer.load_state_dict(layer.cross_attn.state_dict())
    x, patches = torch.randn(2, 5, 32), torch.randn(2, 9, 32)
    attended, weights = torch_layer(layer.norm1(x), patches, patches, average_attn_weights=False)
    y = x + torch.tanh(layer.alpha) * attended
    hidden = layer.feedforward.linear2(nn.functional.gelu(layer.feedforward.linear1(layer.norm2(y))))
    torch.testing.assert_close(layer(x, patches), y + torch.tanh(layer.beta) * hidden, **CLOSE)
    torch.testing.assert_close(layer.attention_with_weights(x, patches).weights[...], weights, **CLOSE)


def test_decoding_with_a_cache_equals_one_forward_pass() -> None:
    model, images = _open_gates(_captioner()), _images()
    with torch.no_grad():
        expected = model(TOKENS, images)
        encoded, cache = model.encode_images(images), KeyValueCache()
        logits = [encoded.next_token_logits(TOKENS[:, :2], cache)]
        lengths = [cache.cross_attention_cache(layer).length for layer in range(3)]
        logits += [encoded.next_token_logits(TOKENS[:, i : i + 1], cache) for i in range(2, 6)]
    torch.testing.assert_close(torch.stack(logits, dim=1), expected[:, 1:], **CLOSE)
    assert lengths == [16, 16, 16]
    assert [cache.cross_attention_cache(layer).length for layer in range(3)] == lengths  # patches are projected once


def test_greedy_generation_matches_the_forward_pass() -> None:
    model, images = _open_gates(_captioner()), _images()
    output = generate(model.encode_images(images), TOKENS[:, :1], max_new_tokens=8)
    with torch.no_grad():
        expected = model(torch.cat((TOKENS[:, :1], output), dim=1), images)[:, :-1].argmax(-1)
    assert output.tolist() == expected.tolist()


def test_beam_scores_are_log_probabilities_for_the_own_image() -> None:
    model, images = _open_gates(_captioner()), _images()
    result = beam_search(model.encode_images(images), TOKENS[:, :1], max_new_tokens=4, num_beams=3)
    with torch.no_grad():
        for b in range(2):
            for tokens, score in zip(result.tokens[b], result.scores[b], strict=True):
                sequence = torch.cat((TOKENS[b, :1], tokens))
                log_probs = model(sequence[None, :-1], images[b : b + 1])[0].log_softmax(-1)
                expected = log_probs.gather(1, tokens[:, None]).sum()
                torch.testing.assert_close(score, expected, **CLOSE)


def test_cross_attention_weights_match_torch() -> None:
    model, images = _open_gates(_captioner()), _images()
    hook_outputs: list[Tensor] = []
    for block in model.decoder.layers:
        block.gated_cross_attn.norm1.register_forward_hook(lambda _, __, output: hook_outputs.append(output))
    model(TOKENS, images)
    queries, patches = hook_outputs[:], model.image_features(images)
    layers = model.attention_with_weights(TOKENS, images)
    assert len(layers) == 3
    for layer, block, query in zip(layers, model.decoder.layers, queries, strict=True):
        torch_layer = nn.MultiheadAttention(32, 4, batch_first=True)
        torch_layer.load_state_dict(block.gated_cross_attn.cross_attn.state_dict())
        _, expected = torch_layer(query, patches, patches, average_attn_weights=False)
        assert layer.cross_attention is not None
        torch.testing.assert_close(layer.cross_attention.weights[...], expected, **CLOSE)
        assert layer.self_attention.weights.shape == (2, 4, 6, 6)


def test_without_image_features_the_decoder_is_a_plain_decoder() -> None:
    model = _open_gates(_captioner())
    language_model = LanguageModel(
        11, num_layers=3, block_config=CONFIG, position_encoding=LearnedPositionalEmbedding(12, 32)
    ).eval()
    state = model.state_dict()
    language_model.load_state_dict({name: state[name] for name in language_model.state_dict()})
    x = model.embedding(TOKENS)
    assert torch.equal(model.decoder(x), language_model.decoder(x))
    layers = model.decoder.attention_with_weights(x)
    assert all(layer.cross_attention is None for layer in layers)
    expected = language_model.decoder.attention_with_weights(x)[2].self_attention.weights[...]
    torch.testing.assert_close(layers[2].self_attention.weights[...], expected, rtol=0, atol=0)


def test_mismatched_models_raise() -> None:
    vision = ImageEncoder(
        image_size=(8, 8), patch_size=2, num_channels=1, num_layers=1, block_config=BlockConfig(16, num_heads=2)
    )
    with pytest.raises(ArgumentError, match="must have the same embed_dim; got 16 and 32"):
        ImageCaptioner(11, vision_encoder=vision, num_layers=1, block_config=CONFIG, position_encoding=None)
    model = _captioner()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    for language_model, message in (
        (
            LanguageModel(11, num_layers=2, block_config=CONFIG, position_encoding=LearnedPositionalEmbedding(12, 32)),
            "must hold the tensor 'decoder.layers.2",
        ),
        (
            LanguageModel(11, num_layers=4, block_config=CONFIG, position_encoding=LearnedPositionalEmbedding(12, 32)),
            "holds the tensor 'decoder.layers.3",
        ),
        (
            LanguageModel(12, num_layers=3, block_config=CONFIG, position_encoding=LearnedPositionalEmbedding(12, 32)),
            r"'embedding.weight' must have shape",
        ),
    ):
        with pytest.raises(LoadError, match=message):
            model.load_language_model(language_model)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
