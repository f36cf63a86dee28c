"""Ten spoken digits, zero to nine, said by the voices of espeak-ng in seven accents of English.

Voices that are copies of each other with a few numbers changed are a family. Every fifth family is held out, with all
its voices: none of them is heard in training. How well a model does on a human voice, which none of these is, is
measured on ten clips of Asterisk.
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
from regard.models.sound import LogMel, read_wav, resampled
from regard.models.speech import SpeechClassifier
from regard.models.train import Outcome, Recipe, answers
from regard.nn.block import Design
from regard.nn.position import Rotary

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Names of files, British first: by other names, such as en-gb, espeak-ng finds the accent and forgets the voice.
ACCENTS = ("en", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us", "en-029")
FAMILIES = tuple(
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
HELD_OUT = tuple(itertools.chain(*FAMILIES[4::5]))
TRAINED = tuple(voice for family in FAMILIES for voice in family if voice not in HELD_OUT)
SPEEDS, PITCHES = (80, 221), (25, 76)  # words a minute, and espeak-ng's own scale from 0 to 99
BATCH = 64
FRAMES = LogMel()
MARGIN = FRAMES.rate // 20  # samples of silence on both sides of a clip that is tested
QUIET = 0.01  # of the loudest sample: what is below it before and after a clip is cut off


@dataclass(frozen=True)
class Clip:
    """A digit as one voice says it."""

    digit: int
    voice: str
    accent: str
    speed: int
    pitch: int


def clips(voice: str) -> list[Clip]:
    """All that a voice says: each digit in each accent, at speeds and pitches that its name settles.

    >>> clips("f1")[3]
    Clip(digit=3, voice='f1', accent='en', speed=148, pitch=68)
    """
    draw = torch.Generator().manual_seed(int(hashlib.sha256(voice.encode()).hexdigest()[:8], 16))
    count = len(ACCENTS) * len(DIGITS)
    speeds = torch.randint(*SPEEDS, (count,), generator=draw).tolist()
    pitches = torch.randint(*PITCHES, (count,), generator=draw).tolist()
    said = itertools.product(ACCENTS, range(len(DIGITS)))
    return [
        Clip(digit, voice, accent, speed, pitch)
        for (accent, digit), speed, pitch in zip(said, speeds, pitches, strict=True)
    ]


class Espeak:
    """espeak-ng as `make data` unpacks it into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "usr" / "bin" / "espeak-ng"
        voices = list(folder.glob("usr/lib/*/espeak-ng-data/voices/!v"))
        if not self.program.is_file() or not voices:
            raise LoadError(
                f"digits are spoken by espeak-ng, in {folder}; it is not there. Run make data, or name another folder "
                "with --data."
            )
        # espeak-ng speaks with its own voice where it does not know one, and so would those held out and those not
        for voice in (*TRAINED, *HELD_OUT):
            if not (voices[0] / voice).is_file():
                raise LoadError(f"{voices[0]} must hold the voice {voice!r}; it does not. Fetch espeak-ng 1.51 again.")
        self.voices_in = voices[0].parents[2]
        self.libraries = sorted({str(path.parent) for path in folder.rglob("*.so*")})

    def say(self, clip: Clip) -> Tensor:
        """Samples at the rate of `FRAMES`, as `trimmed` leaves them."""
        command = [
            *(str(self.program), "--path", str(self.voices_in), "-v", f"{clip.accent}+{clip.voice}"),
            *("-s", str(clip.speed), "-p", str(clip.pitch), "-z", "--stdout", DIGITS[clip.digit]),
        ]
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(self.libraries)}
        # in a session of its own: Ctrl-C stops a training after its step, not the speaker in the middle of a word
        done = subprocess.run(command, env=environment, capture_output=True, check=False, start_new_session=True)
        if done.returncode or done.stderr:
            said = done.stderr.decode(errors="replace").strip()
            raise LoadError(
                f"espeak-ng must say {clip}; it ended with {done.returncode} and said {said!r}. "
                f"Try {self.program} alone."
            )
        sound, rate = read_wav(io.BytesIO(done.stdout))
        return trimmed(resampled(sound, rate, FRAMES.rate))


def trimmed(sound: Tensor) -> Tensor:
    """Sound (samples,) from where it begins to where it ends, its loudest sample at 1/2."""
    loud = sound.abs()
    heard = (loud > QUIET * loud.max()).nonzero()
    if not len(heard):
        raise LoadError(f"a clip must be heard; got {len(sound)} samples of silence.")
    return sound[int(heard[0]) : int(heard[-1]) + 1] * (0.5 / loud.max())


def spoken(voice: str, data: Path) -> list[Tensor]:
    """The sound of `clips(voice)`: as 16 bits from data/spoken if it was made before, else made and kept there."""
    path = data / "spoken" / f"{voice}.npz"
    plan = json.dumps([astuple(clip) for clip in clips(voice)])
    if path.is_file():
        with np.load(path) as kept:
            if str(kept["plan"]) == plan:
                return _divided(kept["samples"], kept["ends"])
    espeak = Espeak(data / "espeak-ng")
    sounds = [(espeak.say(clip) * 32767).round().short().numpy() for clip in clips(voice)]
    samples, ends = np.concatenate(sounds), np.cumsum([len(sound) for sound in sounds])
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        np.savez(file, samples=samples, ends=ends, plan=np.array(plan))
    return _divided(samples, ends)


def _divided(samples: Any, ends: Any) -> list[Tensor]:
    return [torch.from_numpy(part) for part in np.split(samples, ends[:-1])]


def asterisk(data: Path) -> list[Tensor]:
    """The digits as Allison Smith says them on the telephone, trimmed like the others."""
    folder = _asterisk_folder(data)
    found = [read_wav(folder / f"{digit}.wav") for digit in range(len(DIGITS))]
    return [trimmed(resampled(sound, rate, FRAMES.rate)) for sound, rate in found]


def _asterisk_folder(data: Path) -> Path:
    found = sorted((data / "asterisk").glob("usr/share/asterisk/sounds/*/digits"))
    if len(found) != 1:
        raise LoadError(
            f"digits of a human voice must be in {data / 'asterisk'}; got {len(found)} folders of them. Run make data, "
            "or name another folder with --data."
        )
    return found[0]


def made(words: dict[str, Any]) -> SpeechClassifier:
    """The model that a file of weights is for."""
    design = Design(**words["design"])
    return SpeechClassifier(
        bands=FRAMES.bands,
        channels=words["channels"],
        classes=len(DIGITS),
        layers=words["layers"],
        design=design,
        position=Rotary(design.width_of_head),
    )


class SpeechTask:
    """`data` holds the folders that `make data` fetched: espeak-ng and asterisk.

    The first time, the voices speak all clips, which takes minutes; data/spoken keeps them.
    """

    name = "speech"
    recipe = Recipe(steps=1500, rate=1e-3, warmup=200, decay=0.05, smoothing=0.1)

    def __init__(self, data: Path) -> None:
        self.data = data
        Espeak(data / "espeak-ng")
        _asterisk_folder(data)

    def words(self) -> dict[str, Any]:
        design = {"width": 96, "heads": 4, "hidden": 192, "dropout": 0.1}
        return {"layers": 3, "channels": 32, "design": design}

    def model(self) -> nn.Module:
        return made(self.words())

    @cached_property
    def trained(self) -> list[tuple[Clip, Tensor]]:
        """Clips that are trained on, and how they sound."""
        return self._spoken(TRAINED)

    @cached_property
    def held_out(self) -> list[tuple[Clip, Tensor]]:
        """Clips of voices that are never heard in training."""
        return self._spoken(HELD_OUT)

    def _spoken(self, voices: tuple[str, ...]) -> list[tuple[Clip, Tensor]]:
        return [pair for voice in voices for pair in zip(clips(voice), spoken(voice, self.data), strict=True)]

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        frames, lengths, digits = self.batch(BATCH, draw)
        return answers(model(frames, lengths=lengths), digits, recipe.smoothing)

    def batch(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Frames of `count` clips, each `varied`, how many of them are real, and the digits that are said."""
        chosen = [self.trained[place] for place in torch.randint(len(self.trained), (count,), generator=draw).tolist()]
        frames, lengths = framed([varied(as_float(sound), draw) for _, sound in chosen])
        return frames, lengths, torch.tensor([clip.digit for clip, _ in chosen])

    def test(self, model: nn.Module) -> dict[str, float]:
        """Shares of digits that are recognised: of voices held out, of the worst of them, and of a human voice."""
        right = heard(model, self.held_out)
        every = [is_right for each in right.values() for is_right in each]
        human = recognised(model, asterisk(self.data))
        return {
            "accuracy": sum(every) / len(every),
            "worst_voice": min(sum(each) / len(each) for each in right.values()),
            "asterisk": sum(found == digit for digit, found in enumerate(human)) / len(DIGITS),
            "tested": float(len(every)),
        }


def as_float(sound: Tensor) -> Tensor:
    """Samples of 16 bits as numbers between -1 and 1."""
    return sound.float() / 32767


def varied(sound: Tensor, draw: torch.Generator) -> Tensor:
    """A clip as it could have been: up to a fourth longer or shorter, which also lowers or raises it, duller or
    sharper, up to 0.1 s of silence before and after it, and noise."""
    stretch, tilt, loud = torch.rand(3, generator=draw).tolist()
    n = round(len(sound) * 1.25 ** (2 * stretch - 1))
    sound = interpolate(sound.view(1, 1, -1), size=n, mode="linear", align_corners=True).view(-1)
    sound = sound + 0.8 * (2 * tilt - 1) * pad(sound[:-1], (1, 0))
    before, after = torch.randint(FRAMES.rate // 10 + 1, (2,), generator=draw).tolist()
    level = sound.square().mean().sqrt() * 10 ** (-0.25 - 2 * loud)  # 5 to 45 decibels below the voice
    sound = pad(sound, (before, after))
    noise: Tensor = level * torch.randn(len(sound), generator=draw)
    return sound + noise


def framed(sounds: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Frames (batch, longest, bands) of sounds, filled up at the end, and how many of each are real."""
    samples = torch.tensor([len(sound) for sound in sounds])
    filled = nn.utils.rnn.pad_sequence(sounds, batch_first=True)
    return FRAMES(filled), FRAMES.lengths(samples)


def recognised(model: nn.Module, sounds: list[Tensor]) -> list[int]:
    """The likeliest digit of each sound."""
    found: list[int] = []
    for begin in range(0, len(sounds), BATCH):
        frames, lengths = framed([pad(sound, (MARGIN, MARGIN)) for sound in sounds[begin : begin + BATCH]])
        found += model(frames, lengths=lengths).argmax(-1).tolist()
    return found


def heard(model: nn.Module, pairs: list[tuple[Clip, Tensor]]) -> dict[str, list[bool]]:
    """For each voice, which of its clips are recognised."""
    found = recognised(model, [as_float(sound) for _, sound in pairs])
    right: dict[str, list[bool]] = {}
    for (clip, _), digit in zip(pairs, found, strict=True):
        right.setdefault(clip.voice, []).append(clip.digit == digit)
    return right
