"""Classification of spoken digits, zero to nine, synthesized by espeak-ng in seven accents of English.

Voices that differ only in a few parameters form a family. Every fifth family is held out with all its voices. Accuracy
on a human voice is measured on ten Asterisk recordings.
"""

import hashlib
import io
import itertools
import json
import os
import subprocess
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from regard.errors import LoadError
from regard.files.atomic import atomic_file
from regard.models.audio import LogMelSpectrogram, read_wav, resample
from regard.models.speech import SpeechClassifier
from regard.models.training import BatchResult, Recipe, classification_result
from regard.nn.block import BlockConfig
from regard.nn.position_encoding import RotaryEmbedding

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# File names: with other names, such as en-gb, espeak-ng uses the accent without the voice.
ACCENTS = ("en", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us", "en-029")
VOICE_FAMILIES = tuple(
    tuple(voice.replace("_", " ") for voice in line.split())
    for line in """
    adam
    Alex
    Alicia
    Andrea
    Andy AnxiousAndy
    anika anikaRobot Diogo Henrique Hugo michel miguel
    Annie
    announcer
    antonio
    aunty f4
    belinda linda
    benjamin
    boris
    croak grandpa john klatt klatt2 klatt3 klatt4 klatt5 Mr_serious Tweaky
    david
    Demonic
    Denis
    ed
    edward edward2
    f1
    f2 f5 whisperf
    f3
    Gene Gene2
    grandma
    gustave
    iven iven2 iven3 iven4
    Jacky
    kaukovalta
    Lee
    m1
    m2
    m3 Mike
    m4
    m5
    m6
    m7 m8 Nguyen robosoft robosoft2 robosoft3 robosoft4 robosoft5 robosoft6
    marcelo
    Marco
    Mario Michael
    max RicishayMax RicishayMax2 RicishayMax3 robosoft7 robosoft8
    norbert
    pablo
    paul
    pedro
    quincy
    rob robert
    sandro
    shelby
    steph steph2 steph3
    Storm
    travis
    UniRobot
    victor
    whisper
    zac
    """.strip().splitlines()
)
TEST_VOICES = tuple(itertools.chain(*VOICE_FAMILIES[4::5]))
TRAIN_VOICES = tuple(voice for family in VOICE_FAMILIES for voice in family if voice not in TEST_VOICES)
SPEED_RANGE_WPM, PITCH_RANGE = (80, 221), (25, 76)  # words per minute, and espeak-ng's pitch scale from 0 to 99
BATCH_SIZE = 64
SPECTROGRAM = LogMelSpectrogram()
MARGIN_SAMPLES = SPECTROGRAM.sample_rate // 20  # silence before and after a test clip
SILENCE_THRESHOLD = 0.01  # relative to the loudest sample


@dataclass(frozen=True)
class Clip:
    """The parameters of a synthesized digit."""

    digit: int
    voice: str
    accent: str
    speed: int
    pitch: int


def clips(voice: str) -> list[Clip]:
    """Return the clips of a voice: each digit in each accent, with speeds and pitches derived from the voice's name.

    >>> clips("f1")[3]
    Clip(digit=3, voice='f1', accent='en', speed=148, pitch=68)
    """
    generator = torch.Generator().manual_seed(int(hashlib.sha256(voice.encode()).hexdigest()[:8], 16))
    count = len(ACCENTS) * len(DIGITS)
    speeds = torch.randint(*SPEED_RANGE_WPM, (count,), generator=generator).tolist()
    pitches = torch.randint(*PITCH_RANGE, (count,), generator=generator).tolist()
    accents_and_digits = itertools.product(ACCENTS, range(len(DIGITS)))
    return [
        Clip(digit, voice, accent, speed, pitch)
        for (accent, digit), speed, pitch in zip(accents_and_digits, speeds, pitches, strict=True)
    ]


class Espeak:
    """The speech synthesizer espeak-ng, which `make data` unpacks into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.executable = folder / "usr" / "bin" / "espeak-ng"
        voices = list(folder.glob("usr/lib/*/espeak-ng-data/voices/!v"))
        if not self.executable.is_file() or not voices:
            raise LoadError(
                f"the speech task needs espeak-ng in {folder}; it is not there. Run make data, or pass another folder "
                "with --data."
            )
        # espeak-ng replaces unknown voices with its default voice, which would then be in both training and test sets
        for voice in (*TRAIN_VOICES, *TEST_VOICES):
            if not (voices[0] / voice).is_file():
                raise LoadError(f"{voices[0]} must hold the voice {voice!r}; it does not. Fetch espeak-ng 1.51 again.")
        self.data_path = voices[0].parents[2]
        self.library_dirs = sorted({str(path.parent) for path in folder.rglob("*.so*")})

    def synthesize(self, clip: Clip) -> Tensor:
        """Return the waveform (samples,) of a clip at the sample rate of `SPECTROGRAM`, after `trim_silence`."""
        command = [
            *(str(self.executable), "--path", str(self.data_path), "-v", f"{clip.accent}+{clip.voice}"),
            *("-s", str(clip.speed), "-p", str(clip.pitch), "-z", "--stdout", DIGITS[clip.digit]),
        ]
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(self.library_dirs)}
        # a new session, so that Ctrl-C does not reach espeak-ng: training stops after the step
        process = subprocess.run(command, env=environment, capture_output=True, check=False, start_new_session=True)
        if process.returncode or process.stderr:
            message = process.stderr.decode(errors="replace").strip()
            raise LoadError(
                f"espeak-ng must synthesize {clip}; it exited with code {process.returncode} and the message "
                f"{message!r}. Try to run {self.executable}."
            )
        waveform, sample_rate = read_wav(io.BytesIO(process.stdout))
        return trim_silence(resample(waveform, sample_rate, SPECTROGRAM.sample_rate))


def trim_silence(waveform: Tensor) -> Tensor:
    """Return the waveform (samples,) without silence at both ends, scaled to a peak amplitude of 0.5."""
    amplitude = waveform.abs()
    audible = (amplitude > SILENCE_THRESHOLD * amplitude.max()).nonzero()
    if not len(audible):
        raise LoadError(f"a clip must not be silent; got {len(waveform)} samples of silence.")
    return waveform[int(audible[0]) : int(audible[-1]) + 1] * (0.5 / amplitude.max())


def load_or_synthesize(voice: str, data: Path) -> list[Tensor]:
    """Return the 16-bit waveforms of `clips(voice)`, loaded from data/spoken or synthesized and saved there."""
    path = data / "spoken" / f"{voice}.npz"
    description = json.dumps([astuple(clip) for clip in clips(voice)])
    if path.is_file():
        with np.load(path) as cached:
            if "clips" in cached and str(cached["clips"]) == description:
                return _split_samples(cached["samples"], cached["ends"])
    espeak = Espeak(data / "espeak-ng")
    waveforms = [(espeak.synthesize(clip) * 32767).round().short().numpy() for clip in clips(voice)]
    samples, ends = np.concatenate(waveforms), np.cumsum([len(waveform) for waveform in waveforms])
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        np.savez(file, samples=samples, ends=ends, clips=np.array(description))
    return _split_samples(samples, ends)


def _split_samples(samples: Any, ends: Any) -> list[Tensor]:
    return [torch.from_numpy(part) for part in np.split(samples, ends[:-1])]


def load_asterisk_digits(data: Path) -> list[Tensor]:
    """Return the digits spoken by Allison Smith for the telephone system Asterisk, after `trim_silence`."""
    folder = _asterisk_folder(data)
    recordings = [read_wav(folder / f"{digit}.wav") for digit in range(len(DIGITS))]
    return [
        trim_silence(resample(waveform, sample_rate, SPECTROGRAM.sample_rate)) for waveform, sample_rate in recordings
    ]


def _asterisk_folder(data: Path) -> Path:
    folders = sorted((data / "asterisk").glob("usr/share/asterisk/sounds/*/digits"))
    if len(folders) != 1:
        raise LoadError(
            f"{data / 'asterisk'} must hold one folder of recorded digits; got {len(folders)}. Run make data, or pass "
            "another folder with --data."
        )
    return folders[0]


def build_model(config: dict[str, Any]) -> SpeechClassifier:
    """Return an untrained model from a saved configuration."""
    block_config = BlockConfig(**config["block_config"])
    return SpeechClassifier(
        n_mels=SPECTROGRAM.n_mels,
        conv_channels=config["conv_channels"],
        num_classes=len(DIGITS),
        num_layers=config["num_layers"],
        block_config=block_config,
        position_encoding=RotaryEmbedding(block_config.resolved_head_dim),
    )


class SpeechTask:
    """Classification of spoken digits. `data` holds the folders espeak-ng and asterisk from `make data`.

    The first use synthesizes all clips into data/spoken, which takes minutes.
    """

    name = "speech"
    recipe = Recipe(steps=1500, lr=1e-3, warmup_steps=200, weight_decay=0.05, label_smoothing=0.1)

    def __init__(self, data: Path) -> None:
        self.data = data
        Espeak(data / "espeak-ng")
        _asterisk_folder(data)

    def model_config(self) -> dict[str, Any]:
        block_config = {"embed_dim": 96, "num_heads": 4, "ffn_dim": 192, "dropout": 0.1}
        return {"num_layers": 3, "conv_channels": 32, "block_config": block_config}

    def untrained_model(self) -> nn.Module:
        return build_model(self.model_config())

    @cached_property
    def train_clips(self) -> list[tuple[Clip, Tensor]]:
        """The training clips and their waveforms."""
        return self._load_clips(TRAIN_VOICES)

    @cached_property
    def test_clips(self) -> list[tuple[Clip, Tensor]]:
        """The clips of held-out voices and their waveforms."""
        return self._load_clips(TEST_VOICES)

    def _load_clips(self, voices: tuple[str, ...]) -> list[tuple[Clip, Tensor]]:
        return [
            pair for voice in voices for pair in zip(clips(voice), load_or_synthesize(voice, self.data), strict=True)
        ]

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        frames, lengths, digits = self.batch(BATCH_SIZE, generator)
        return classification_result(model(frames, lengths=lengths), digits, recipe.label_smoothing)

    def batch(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames of `batch_size` augmented clips, their lengths without padding, and their digits."""
        indices = torch.randint(len(self.train_clips), (batch_size,), generator=generator).tolist()
        sample = [self.train_clips[i] for i in indices]
        frames, lengths = spectrogram_batch([augment(as_float(waveform), generator) for _, waveform in sample])
        return frames, lengths, torch.tensor([clip.digit for clip, _ in sample])

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return the accuracy on all held-out voices, on the worst of them, and on a human voice."""
        by_voice = correct_by_voice(model, self.test_clips)
        is_correct = list(itertools.chain(*by_voice.values()))
        asterisk_digits = predict_digits(model, load_asterisk_digits(self.data))
        return {
            "accuracy": sum(is_correct) / len(is_correct),
            "worst_voice_accuracy": min(sum(results) / len(results) for results in by_voice.values()),
            "asterisk_accuracy": sum(predicted == digit for digit, predicted in enumerate(asterisk_digits))
            / len(DIGITS),
            "num_tested": float(len(is_correct)),
        }


def as_float(waveform: Tensor) -> Tensor:
    """Return 16-bit samples as floats from -1 to 1."""
    return waveform.float() / 32767


def augment(waveform: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random variant of a clip.

    Its duration and pitch change by a factor of up to 1.25, its spectrum is tilted, up to 0.1 s of silence is added
    before and after, and noise is added.
    """
    stretch, tilt, attenuation = torch.rand(3, generator=generator).tolist()
    n = round(len(waveform) * 1.25 ** (2 * stretch - 1))
    waveform = interpolate(waveform.view(1, 1, -1), size=n, mode="linear", align_corners=True).view(-1)
    waveform = waveform + 0.8 * (2 * tilt - 1) * pad(waveform[:-1], (1, 0))
    before, after = torch.randint(SPECTROGRAM.sample_rate // 10 + 1, (2,), generator=generator).tolist()
    noise_level = waveform.square().mean().sqrt() * 10 ** (-0.25 - 2 * attenuation)  # 5 to 45 dB below the voice
    waveform = pad(waveform, (before, after))
    noise: Tensor = noise_level * torch.randn(len(waveform), generator=generator)
    return waveform + noise


def spectrogram_batch(waveforms: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return frames (batch, n, n_mels) of waveforms, padded at the end, and their lengths without padding."""
    num_samples = torch.tensor([len(waveform) for waveform in waveforms])
    padded = nn.utils.rnn.pad_sequence(waveforms, batch_first=True)
    return SPECTROGRAM(padded), SPECTROGRAM.num_frames(num_samples)


def predict_digits(model: nn.Module, waveforms: list[Tensor]) -> list[int]:
    """Return the most likely digit of each waveform."""
    digits: list[int] = []
    for start in range(0, len(waveforms), BATCH_SIZE):
        frames, lengths = spectrogram_batch(
            [pad(waveform, (MARGIN_SAMPLES, MARGIN_SAMPLES)) for waveform in waveforms[start : start + BATCH_SIZE]]
        )
        digits += model(frames, lengths=lengths).argmax(-1).tolist()
    return digits


def correct_by_voice(model: nn.Module, pairs: list[tuple[Clip, Tensor]]) -> dict[str, list[bool]]:
    """Return, for each voice, whether each of its clips is classified correctly."""
    predicted = predict_digits(model, [as_float(waveform) for _, waveform in pairs])
    is_correct: dict[str, list[bool]] = {}
    for (clip, _), digit in zip(pairs, predicted, strict=True):
        is_correct.setdefault(clip.voice, []).append(clip.digit == digit)
    return is_correct
