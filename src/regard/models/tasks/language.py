"""Language modeling of State of the Union addresses and Moby-Dick, which are in the public domain.

Layers with a sliding window and rotary embeddings alternate with layers that attend to all tokens without positions.
The model therefore has no maximum length: 16,384 tokens work as well as 512. The window of the first layer has only
four tokens, so the layer quickly learns to attend to the previous token, which induction heads depend on.

Part of the training data has repeated passages or repeated random tokens. They reward induction heads, which attend to
the token after an earlier occurrence of the current token. Three measures make induction heads form in a few hundred
steps instead of thousands. Training starts with random tokens only (`CURRICULUM`), unpredictable tokens have no loss
(`repeated_random_tokens`), and layers without a window are initialized to copy (`init_copying_heads`).
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LoadError
from regard.models.language import LanguageModel
from regard.models.tokenizer import Tokenizer
from regard.models.training import BatchResult, ContextParallelModel, Recipe, classification_result
from regard.nn.block import BlockConfig
from regard.nn.position_encoding import RotaryEmbedding

HOLDOUT_EVERY = 20
VOCAB_SIZE = 4096
SLIDING_WINDOWS = (4, None, 64, None)  # per layer
ROPE_BASE = 100.0  # the longest wavelength is about the longest window

IGNORE_INDEX = -100  # the target of an unpredictable token


@dataclass(frozen=True)
class CurriculumStage:
    """A stage of the curriculum, up to `end_step`: batches of `batch_size` sequences of `seq_len` tokens.

    `random_fraction` of the sequences are repeated random tokens. `repeat_fraction` are texts with repeated passages.
    """

    end_step: int
    batch_size: int
    seq_len: int
    random_fraction: float
    repeat_fraction: float


CURRICULUM = (
    CurriculumStage(500, 16, 64, 1.0, 0.0),
    CurriculumStage(800, 32, 128, 0.5, 0.25),
    CurriculumStage(3300, 8, 512, 0.25, 0.25),
)
LONG_STAGE = CurriculumStage(3300, 1, 4096, 0.25, 0.25)  # every LONG_STAGE_INTERVAL steps of the last stage
LONG_STAGE_INTERVAL = 8
TEST_SEQ_LEN = 512
MIN_TRAIN_TOKENS = 2 * LONG_STAGE.seq_len

DATASET_FOLDERS = ("sotu", "moby-dick")  # downloaded by `make data`
PASSAGE_CHARS = 20_000  # other texts are split into passages of about this size, the unit that is held out


def build_model(config: dict[str, Any]) -> LanguageModel:
    """Return an untrained model from a saved configuration."""
    block_configs = [
        BlockConfig(**config["block_config"], sliding_window=window, has_position_encoding=window is not None)
        for window in config["sliding_windows"]
    ]
    rotary = RotaryEmbedding(block_configs[0].resolved_head_dim, base=config["rope_base"])
    return LanguageModel(
        config["vocab_size"], num_layers=config["num_layers"], block_config=block_configs, position_encoding=rotary
    )


class LanguageTask:
    """Language modeling. `data` is the folder that `make data` fills, another folder of texts, or a text file."""

    name = "language"
    supports_context_parallel = True  # every token has a target, so processes can split a sequence
    recipe = Recipe(steps=CURRICULUM[-1].end_step, lr=3e-3, warmup_steps=100, betas=(0.9, 0.95), weight_decay=0.05)

    def __init__(self, data: Path) -> None:
        self.data = data

    def model_config(self) -> dict[str, Any]:
        block_config = {"embed_dim": 256, "num_heads": 8, "activation": "swiglu", "norm": "rms", "bias": False}
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "num_layers": 4,
            "block_config": block_config,
            "sliding_windows": list(SLIDING_WINDOWS),
            "rope_base": ROPE_BASE,
        }

    def untrained_model(self) -> nn.Module:
        num_train, num_test = len(self.train_stream), len(self.test_stream)
        if num_train < MIN_TRAIN_TOKENS or num_test <= TEST_SEQ_LEN:
            raise LoadError(
                f"texts must have at least {MIN_TRAIN_TOKENS} tokens for training and {TEST_SEQ_LEN + 1} held out; got "
                f"{num_train} and {num_test} in {self.data}. Use more text."
            )
        return init_copying_heads(build_model(self.model_config()))

    @cached_property
    def splits(self) -> tuple[list[str], list[str]]:
        """The training texts and the held-out texts."""
        texts = list(_iter_texts(self.data))
        hashes = [int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in texts]
        held_out = [text_hash % HOLDOUT_EVERY == 0 for text_hash in hashes]
        if not texts:
            raise LoadError(f"texts must not be empty; got no words in {self.data}. Use other texts.")
        if not any(held_out):  # few texts: hold out one anyway
            held_out[hashes.index(min(hashes))] = True
        return (
            [text for text, is_test in zip(texts, held_out, strict=True) if not is_test],
            [text for text, is_test in zip(texts, held_out, strict=True) if is_test],
        )

    @cached_property
    def data_digest(self) -> str:
        """A hash of the texts."""
        return hashlib.sha256(repr(self.splits).encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, trained on the training texts."""
        return Tokenizer.train(self.splits[0], VOCAB_SIZE)

    @cached_property
    def train_stream(self) -> Tensor:
        """The tokens of the training texts."""
        return self._stream(self.splits[0])

    @cached_property
    def test_stream(self) -> Tensor:
        """The tokens of the held-out texts."""
        return self._stream(self.splits[1])

    def _stream(self, texts: list[str]) -> Tensor:
        """Return the concatenated tokens of all texts, each preceded by the end-of-text token."""
        tokens: list[int] = []
        for text in texts:
            tokens += [self.tokenizer.eos_token_id, *self.tokenizer.encode(text)]
        return torch.tensor(tokens)

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        tokens, targets = self.batch(stage_at(step, recipe.steps), generator)
        local_targets = model.shard(targets) if isinstance(model, ContextParallelModel) else targets
        return classification_result(model(tokens), local_targets, recipe.label_smoothing, ignore_index=IGNORE_INDEX)

    def batch(self, stage: CurriculumStage, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return tokens (batch_size, seq_len) and their targets, the next tokens."""
        stream, n = self.train_stream, stage.seq_len + 1
        starts = torch.randint(len(stream) - n, (stage.batch_size,), generator=generator)
        rows = torch.stack([stream[start : start + n] for start in starts.tolist()])
        targets = rows[:, 1:].clone()
        for i, uniform in enumerate(torch.rand(stage.batch_size, generator=generator).tolist()):
            if uniform < stage.random_fraction:
                rows[i], targets[i] = repeated_random_tokens(self.tokenizer.vocab_size, n, generator)
            elif uniform < stage.random_fraction + stage.repeat_fraction:
                repeat_passages_(rows[i], generator)
                targets[i] = rows[i, 1:]
        return rows[:, :-1], targets

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return loss, bits per byte and accuracy on held-out texts, and the largest induction score of a head."""
        assert isinstance(model, LanguageModel)
        n = TEST_SEQ_LEN
        rows = self.test_stream[: (len(self.test_stream) - 1) // n * n + 1]
        results: list[tuple[BatchResult, int]] = []
        for tokens in rows[:-1].view(-1, n).split(16):
            start = len(results) * 16 * n
            target = rows[start + 1 : start + 1 + tokens.numel()].view_as(tokens)
            results.append((classification_result(model(tokens), target, 0.0), tokens.numel()))
        total = sum(size for _, size in results)
        loss = sum(float(result.loss) * size for result, size in results) / total
        num_bytes = len(self.tokenizer.decode(rows.tolist()).encode())
        best = max(torch.stack(induction_scores(model)).flatten().tolist())
        torch.manual_seed(1)
        untrained = max(torch.stack(induction_scores(self.untrained_model().eval())).flatten().tolist())  # type: ignore[arg-type]  # a LanguageModel
        return {
            "loss": loss,
            "bits_per_byte": loss * total / num_bytes / 0.6931471805599453,
            "accuracy": sum(result.num_correct for result, _ in results) / total,
            "induction": best,
            "induction_untrained": untrained,
        }


def stage_at(step: int, steps: int = CURRICULUM[-1].end_step) -> CurriculumStage:
    """Return the stage of a step in a run of `steps` steps.

    A shorter run has proportionally shorter stages; a longer run continues with the last stage.

    >>> [(s.batch_size, s.seq_len) for s in map(stage_at, (0, 799, 800, 807))]
    [(16, 64), (32, 128), (8, 512), (1, 4096)]
    >>> stage_at(60, steps=330) == stage_at(600)
    True
    """
    fraction = min(1.0, steps / CURRICULUM[-1].end_step)
    for stage in CURRICULUM[:-1]:
        if step < stage.end_step * fraction:
            return stage
    return LONG_STAGE if step % LONG_STAGE_INTERVAL == LONG_STAGE_INTERVAL - 1 else CURRICULUM[-1]


def init_copying_heads(model: LanguageModel) -> LanguageModel:
    """Initialize the layers without a window to copy half of the vectors they attend to; return the model.

    W_o = W_v' / 2 with an orthogonal W_v. Trained layers often approach such products (Trockman and Kolter, 2023), and
    an induction head must copy a token.
    """
    with torch.no_grad():
        for block, config in zip(model.decoder.blocks, model.decoder.block_configs, strict=True):
            if config.sliding_window is None:
                layer: Any = block.self_attn
                w_v = nn.init.orthogonal_(torch.empty(config.embed_dim, config.embed_dim))
                layer.in_proj_weight[-config.embed_dim :] = w_v
                layer.out_proj.weight.copy_(w_v.mT / 2)
    return model


def repeated_random_tokens(vocab_size: int, seq_len: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `seq_len` random tokens with a period from 16 to seq_len / 2, and their seq_len - 1 targets.

    Targets in the first period are unpredictable and therefore `IGNORE_INDEX`.

    >>> tokens, targets = repeated_random_tokens(4096, 65, torch.Generator().manual_seed(0))
    >>> period = int((targets == IGNORE_INDEX).sum()) + 1
    >>> torch.equal(targets[period - 1 :], tokens[period:]), torch.equal(tokens[period:], tokens[:-period])
    (True, True)
    """
    period = int(torch.randint(16, seq_len // 2 + 1, (), generator=generator))
    tokens = torch.randint(1, vocab_size, (period,), generator=generator).repeat(-(-seq_len // period))[:seq_len]
    return tokens, tokens[1:].index_fill(0, torch.arange(period - 1), IGNORE_INDEX)


def repeat_passages_(tokens: Tensor, generator: torch.Generator) -> None:
    """Copy a random passage to a later position, four times, modifying `tokens` (n,).

    A passage has 8 to 128 tokens, and at most n / 4.
    """
    n = len(tokens)
    for _ in range(4):
        length = int(torch.randint(8, min(128, n // 4) + 1, (), generator=generator))
        first = int(torch.randint(n - 2 * length, (), generator=generator))
        second = int(torch.randint(first + length, n - length + 1, (), generator=generator))
        tokens[second : second + length] = tokens[first : first + length].clone()


def induction_scores(model: LanguageModel, *, batch_size: int = 8, period: int = 100, seed: int = 7) -> list[Tensor]:
    """Return the induction scores of the heads, a tensor (num_heads,) per layer.

    The input is a random sequence of length `period` and the same sequence again. The score is the mean attention
    weight from tokens in the second copy to the token after their first occurrence.
    """
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(1, model.embedding.num_embeddings, (batch_size, period), generator=generator)
    scores = []
    with torch.no_grad():
        for layer in model.decoder.attention_with_weights(model.embedding(torch.cat((half, half), dim=1))):
            second_half = layer.self_attention.weights[:, :, period:, :]
            scores.append(second_half.diagonal(offset=1, dim1=-2, dim2=-1)[..., :period].mean((0, 2)))
    return scores


def _iter_texts(data: Path) -> Iterator[str]:
    """Yield the speeches and chapters in a fixed order, or the passages of other texts."""
    if any((data / folder).is_dir() for folder in DATASET_FOLDERS):
        for folder in DATASET_FOLDERS:
            yield from map(_read_text, _text_paths(data / folder))
    else:
        for path in [data] if data.is_file() else _text_paths(data):
            yield from split_passages(_read_text(path))


def _text_paths(folder: Path) -> list[Path]:
    paths = sorted(folder.rglob("*.txt"))
    if not paths:
        raise LoadError(
            f"the language task needs texts, *.txt in {folder}; got none. Run make data, or pass a text file or a "
            "folder of texts with --data."
        )
    return paths


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8")
    except UnicodeDecodeError as error:
        raise LoadError(f"texts must be UTF-8; got {path}, which is invalid at byte {error.start}.") from None
    except OSError as error:
        raise LoadError(f"texts must be readable files; got {path}: {error.strerror}.") from None


def split_passages(text: str, min_chars: int = PASSAGE_CHARS) -> list[str]:
    """Split a text at spaces into passages of at least `min_chars` characters; the last may be shorter.

    >>> split_passages("one two three four", min_chars=5)
    ['one two ', 'three ', 'four']
    """
    max_word_chars = 100  # some languages have no spaces between words
    return re.findall(rf"(?s).{{{min_chars}}}\S{{0,{max_word_chars}}}\s*|.+", text)
