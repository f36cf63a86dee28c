"""Speech: sound and frames against formulas, lengths and padding, voices held apart, the first steps of learning."""

import json
import wave
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import torch
from torch import Tensor, nn

from regard.errors import LoadError, SpecError
from regard.models.sound import LogMel, read_wav, resampled, triangles
from regard.models.speech import SpeechClassifier, Subsampling, levelled, tokens_of
from regard.models.tasks.speech import (
    ACCENTS,
    FAMILIES,
    HELD_OUT,
    TRAINED,
    Clip,
    Espeak,
    SpeechTask,
    clips,
    framed,
    heard,
    spoken,
    trimmed,
    varied,
)
from regard.models.train import Recipe, Training
from regard.nn import Design, Rotary

DATA = Path(__file__).parents[2] / "data"
needs_voices = pytest.mark.skipif(
    not (DATA / "espeak-ng").is_dir() or not (DATA / "asterisk").is_dir(),
    reason="espeak-ng and Asterisk's clips are fetched by make data",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of data in which nothing has been said yet."""
    for name in ("espeak-ng", "asterisk"):
        (tmp_path / name).symlink_to(DATA / name)
    return tmp_path


def _model(classes: int = 10) -> SpeechClassifier:
    torch.manual_seed(0)
    design = Design(width=32, heads=2)
    model = SpeechClassifier(bands=40, channels=4, classes=classes, layers=2, design=design, position=Rotary(16))
    return model.eval()


def _by_hand(x: np.ndarray, frames: LogMel) -> np.ndarray:
    """Log-mel frames with a sum for everything."""

    def mel(f: float) -> float:
        return 2595 * np.log10(1 + f / 700)

    first, last = mel(frames.lowest), mel(frames.rate / 2)
    steps = [first + (last - first) * m / (frames.bands + 1) for m in range(frames.bands + 2)]
    corners = [700 * (10 ** (step / 2595) - 1) for step in steps]
    i, k = np.arange(frames.window), np.arange(frames.points // 2 + 1)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * i / frames.window)
    waves = np.exp(-2j * np.pi * np.outer(k, i) / frames.points)
    found = []
    for begin in range(0, len(x) - frames.window + 1, frames.step):
        power = abs(waves @ (hann * x[begin : begin + frames.window])) ** 2
        row = []
        for left, middle, right in zip(corners, corners[1:], corners[2:], strict=False):
            total = 0.0
            for place, amount in enumerate(power):
                f = place * frames.rate / frames.points
                if left < f <= middle:
                    total += amount * (f - left) / (middle - left)
                elif middle < f < right:
                    total += amount * (right - f) / (right - middle)
            row.append(np.log(max(total, frames.floor)))
        found.append(row)
    return np.array(found)


@pytest.mark.parametrize("frames", [LogMel(), LogMel(rate=16000, window=400, step=160, bands=23, lowest=0.0)])
def test_frames_are_the_formula_written_out(frames: LogMel) -> None:
    x = 0.1 * torch.randn(1500, dtype=torch.float64)
    x[900:] = 0  # the last frames are at the floor
    found = frames(x)
    expected = torch.from_numpy(_by_hand(x.numpy(), frames))
    # float64, summed in another order
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert bool((found[-1] == np.log(frames.floor)).all())
    # float32 is good to about seven digits before the logarithm
    torch.testing.assert_close(frames(x.float()), expected.float(), rtol=1e-4, atol=1e-4)


def test_the_spectrum_is_that_of_scipy() -> None:
    frames = LogMel(floor=0.0)
    x = torch.randn(2000, dtype=torch.float64)
    _, _, theirs = scipy.signal.spectrogram(
        x.numpy(), window="hann", nperseg=200, noverlap=120, nfft=512, detrend=False, scaling="spectrum"
    )
    power = theirs * scipy.signal.get_window("hann", 200).sum() ** 2
    power[1:-1] /= 2  # it counts negative frequencies too
    expected = torch.from_numpy(power).mT @ triangles(frames).mT
    torch.testing.assert_close(frames(x).exp(), expected, rtol=1e-9, atol=1e-9)  # float64, in another order


def test_neighbouring_bands_share_every_frequency_between_them() -> None:
    bank = triangles(LogMel())
    at = torch.arange(257) * 8000 / 512
    middles = (bank * at).sum(1) / bank.sum(1)
    inside = (at > 100) & (at < 3780)  # from the middle of the first to that of the last
    # up one side and down the other: together they are 1
    torch.testing.assert_close(bank.sum(0)[inside], torch.ones(int(inside.sum()), dtype=torch.float64))
    assert bool((middles.diff() > 0).all())
    assert bool((bank > 0).any(1).all()), "a band without a frequency would always be silent"


@pytest.mark.parametrize("pitch", [200.0, 1000.0, 3000.0])
def test_a_tone_is_loudest_in_its_band(pitch: float) -> None:
    tone = torch.sin(2 * torch.pi * pitch * torch.arange(800) / 8000)
    corners = np.linspace(2595 * np.log10(1 + 60 / 700), 2595 * np.log10(1 + 4000 / 700), 42)[1:-1]
    nearest = int(np.abs(corners - 2595 * np.log10(1 + pitch / 700)).argmin())
    assert set(LogMel()(tone).argmax(-1).tolist()) <= {nearest}


def test_frames_are_counted_as_they_are_made() -> None:
    frames = LogMel()
    for samples in range(200, 700, 7):
        assert frames(torch.zeros(samples)).shape[0] == int(frames.lengths(torch.tensor(samples)))
    assert frames.lengths(torch.tensor([0, 119, 199])).tolist() == [0, 0, 0]


def test_sound_too_short_for_a_frame_is_refused() -> None:
    with pytest.raises(SpecError, match=r"at least the 200 samples of a frame; got 199. Add silence"):
        LogMel()(torch.zeros(199))
    with pytest.raises(SpecError, match="a window must fit into the transform; got window=400, points=256"):
        LogMel(window=400, points=256)


@pytest.mark.parametrize("rate, to", [(22050, 8000), (8000, 22050), (16000, 8000), (8000, 8000)])
def test_a_tone_at_another_rate_is_the_same_tone(rate: int, to: int) -> None:
    def tone(at: int) -> Tensor:
        seconds = torch.arange(at // 10, dtype=torch.float64) / at  # 0.1 s: whole waves, so that it repeats
        return torch.sin(2 * torch.pi * 440 * seconds) + 0.3 * torch.cos(2 * torch.pi * 3990 * seconds)

    torch.testing.assert_close(resampled(tone(rate), rate, to), tone(to), rtol=0, atol=1e-10)  # rounding of float64


def test_what_the_lower_rate_cannot_hold_is_gone() -> None:
    seconds = torch.arange(2205, dtype=torch.float64) / 22050
    for high in (4000, 4010, 9000):
        assert float(resampled(torch.cos(2 * torch.pi * high * seconds), 22050, 8000).abs().max()) < 1e-10


@pytest.mark.parametrize("n", [1001, 1500])
def test_resampling_is_that_of_scipy(n: int) -> None:
    x = torch.randn(n, dtype=torch.float64)
    found = resampled(x, 3, 2)
    theirs = torch.from_numpy(scipy.signal.resample(x.numpy(), len(found)))
    if len(found) % 2 == 0:  # it keeps half of what is exactly at half the new rate
        waves = torch.fft.rfft(theirs)
        waves[-1] = 0
        theirs = torch.fft.irfft(waves, len(found))
    torch.testing.assert_close(found, theirs, rtol=1e-9, atol=1e-9)  # float64, in another order


def _written(path: Path, samples: np.ndarray, *, channels: int = 1, width: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(samples.tobytes())
    return path


def test_a_file_is_read_to_the_last_bit(tmp_path: Path) -> None:
    samples = np.array([0, 1, -1, 32767, -32768], dtype="<i2")
    sound, rate = read_wav(_written(tmp_path / "a.wav", samples))
    assert rate == 8000
    assert (sound * 32768).tolist() == samples.tolist()


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    stereo = _written(tmp_path / "b.wav", np.zeros(4, dtype="<i2"), channels=2)
    with pytest.raises(LoadError, match=r"b\.wav must have 1 channel and 16 bits; got 2 and 16"):
        read_wav(stereo)
    coarse = _written(tmp_path / "c.wav", np.zeros(4, dtype="u1"), width=1)
    with pytest.raises(LoadError, match=r"c\.wav must have 1 channel and 16 bits; got 1 and 8"):
        read_wav(coarse)
    (tmp_path / "d.wav").write_bytes(b"nothing of the kind")
    for name in ("d.wav", "e.wav"):
        with pytest.raises(LoadError, match=f"{name} must be a WAV file; got: "):
            read_wav(tmp_path / name)


def test_tokens_are_counted_as_the_convolutions_make_them() -> None:
    layer = Subsampling(40, 2, 8)
    for n in range(1, 61):
        counted = int(tokens_of(torch.tensor(n)))
        if n < 7:
            assert counted == 0, n
            with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
                layer(torch.zeros(1, n, 40))
        else:
            assert layer(torch.zeros(1, n, 40)).shape == (1, counted, 8), n


def test_a_token_is_made_of_seven_frames_and_no_other() -> None:
    layer = Subsampling(40, 2, 8)
    frames = torch.randn(1, 31, 40, requires_grad=True)
    for place in range(int(tokens_of(torch.tensor(31)))):
        (slope,) = torch.autograd.grad(layer(frames)[0, place].sum(), frames)
        assert slope[0].abs().sum(-1).nonzero().flatten().tolist() == list(range(4 * place, 4 * place + 7))


@pytest.mark.parametrize("behind", [0.0, 1000.0, float("nan")])
def test_what_stands_behind_a_clip_does_not_matter(behind: float) -> None:
    model = _model()
    lengths = torch.tensor([60, 33, 7])
    clips = [torch.randn(int(n), 40) for n in lengths]
    rows = torch.full((3, 80, 40), behind)
    for row, clip in zip(rows, clips, strict=True):
        row[: len(clip)] = clip
    together = model(rows, lengths=lengths)
    for found, clip in zip(together, clips, strict=True):
        # float32, in sums over fewer rows
        torch.testing.assert_close(found, model(clip.unsqueeze(0))[0], rtol=1e-4, atol=1e-5)
        alone = model(clip.unsqueeze(0), lengths=torch.tensor([len(clip)]))[0]
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_a_microphone_that_colours_every_frame_alike_does_not_matter() -> None:
    model = _model()
    frames = torch.randn(2, 50, 40)
    lengths = torch.tensor([50, 20])
    coloured = 1.5 * frames + torch.randn(2, 1, 40)
    # the 0.001 that keeps silence from dividing by 0 is not scaled along
    torch.testing.assert_close(model(coloured, lengths=lengths), model(frames, lengths=lengths), rtol=1e-2, atol=1e-3)
    level = levelled(frames, lengths)
    assert bool((level[1, 20:] == 0).all())
    torch.testing.assert_close(level[1, :20].mean(0), torch.zeros(40), rtol=0, atol=1e-6)  # rounding of float32
    assert float(level[1, :20].square().mean()) == pytest.approx(1.0, abs=0.01)
    assert bool(torch.isfinite(levelled(torch.zeros(1, 9, 40), None)).all())


def test_clips_that_cannot_be_heard_are_refused() -> None:
    model = _model()
    for shape, lengths, message in (
        ((2, 50, 39), None, r"frames must be \(batch, n, 40\); got shape \(2, 50, 39\)"),
        ((50, 40), None, r"frames must be \(batch, n, 40\); got shape \(50, 40\)"),
        ((2, 50, 40), [50], r"lengths must be one number a clip, \(2,\); got shape \(1,\)"),
        ((2, 6, 40), None, "a clip must have at least 7 frames; got 6. Add silence behind it"),
        ((2, 50, 40), [50, 5], "a clip must have at least 7 frames; got 5. Add silence behind it"),
        ((2, 50, 40), [51, 50], "lengths must be at most the 50 frames there are; got 51"),
    ):
        with pytest.raises(SpecError, match=message):
            model(torch.zeros(shape), lengths=None if lengths is None else torch.tensor(lengths))


def test_where_each_head_looks_is_in_view() -> None:
    model = _model()
    frames, lengths = torch.randn(2, 50, 40), torch.tensor([50, 31])
    looks = model.attend(frames, lengths=lengths)
    assert len(looks) == 2
    for layer in looks:
        weights = layer.own.weights[...]
        assert weights.shape == (2, 2, 12, 12)  # a gathering token and eleven of 50 frames
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 12))
        assert bool((weights[1, :, :, 8:] == 0).all())  # seven of 31 frames
        assert bool((weights[1, :, :, :8] > 0).all())
    block = model.encoder.layers[0]
    x = block.norm1(model.tokens(frames, lengths=lengths))
    q, k = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in _projections(block, x)[:2])
    q, k = model.encoder.position.turned(q, k, torch.arange(12))
    scores = (q @ k.mT / 4)[1].masked_fill(torch.arange(12) >= 8, -torch.inf)
    # float32, in another order
    torch.testing.assert_close(looks[0].own.weights[...][1], scores.softmax(-1), rtol=1e-4, atol=1e-5)


def _projections(block: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    layer = block.self_attn
    return nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, dim=-1)


def test_no_voice_and_no_family_is_on_both_sides() -> None:
    voices = [voice for family in FAMILIES for voice in family]
    assert len(voices) == len(set(voices)) == 98
    assert not set(TRAINED) & set(HELD_OUT)
    assert set(TRAINED) | set(HELD_OUT) == set(voices)
    for family in FAMILIES:
        assert len({voice in HELD_OUT for voice in family}) == 1, family
    assert len(HELD_OUT) == 18


@needs_voices
def test_voices_with_the_same_formants_are_on_the_same_side() -> None:
    (folder,) = (DATA / "espeak-ng").glob("usr/lib/*/espeak-ng-data/voices/!v")
    # a test of speed, and two that sound like klatt
    assert {path.name for path in folder.iterdir()} - {"fast", "caleb", "klatt6"} == {*TRAINED, *HELD_OUT}
    sides: dict[tuple[str, ...], set[bool]] = {}
    for voice in (*TRAINED, *HELD_OUT):
        lines = (folder / voice).read_text(encoding="utf8", errors="replace").splitlines()
        formants = tuple(" ".join(line.split()) for line in lines if line.startswith(("formant 1", "formant 2")))
        sides.setdefault(formants, set()).add(voice in HELD_OUT)
    assert [formants for formants, found in sides.items() if len(found) > 1] == []


def test_every_voice_says_every_digit_in_every_accent_and_always_the_same_way() -> None:
    for voice in (*TRAINED, *HELD_OUT):
        said = clips(voice)
        assert said == clips(voice)
        assert {(clip.accent, clip.digit) for clip in said} == {(a, d) for a in ACCENTS for d in range(10)}
        assert {clip.voice for clip in said} == {voice}
    assert len({(clip.speed, clip.pitch) for clip in clips("f1")}) > 50
    assert [c.speed for c in clips("f1")] != [c.speed for c in clips("f2")]


def _empty_espeak(data: Path) -> Path:
    """Files of all names, without a program in them; the folder of voices."""
    voices = data / "espeak-ng" / "usr" / "lib" / "some-machine" / "espeak-ng-data" / "voices" / "!v"
    voices.mkdir(parents=True)
    (data / "espeak-ng" / "usr" / "bin").mkdir()
    (data / "espeak-ng" / "usr" / "bin" / "espeak-ng").touch()
    for voice in (*TRAINED, *HELD_OUT):
        (voices / voice).touch()
    return voices


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"espeak-ng, in .*; it is not there. Run make data, or name another folder"):
        SpeechTask(tmp_path)
    voices = _empty_espeak(tmp_path)
    with pytest.raises(LoadError, match=r"human voice must be in .*asterisk; got 0 folders of them. Run make data"):
        SpeechTask(tmp_path)
    (voices / "zac").unlink()
    with pytest.raises(LoadError, match="must hold the voice 'zac'; it does not"):
        SpeechTask(tmp_path)


def test_what_is_tested_is_never_heard_in_training(tmp_path: Path) -> None:
    _empty_espeak(tmp_path)
    (tmp_path / "asterisk" / "usr" / "share" / "asterisk" / "sounds" / "en" / "digits").mkdir(parents=True)
    (tmp_path / "spoken").mkdir()
    for number, voice in enumerate((*TRAINED, *HELD_OUT)):  # as if all had been said: samples of the voice's number
        said = clips(voice)
        plan = np.array(json.dumps([astuple(clip) for clip in said]))
        samples = np.full(1000 * len(said), number, dtype=np.int16)
        np.savez(tmp_path / "spoken" / f"{voice}.npz", samples=samples, ends=1000 * np.arange(1, 71), plan=plan)
    task = SpeechTask(tmp_path)
    assert {clip.voice for clip, _ in task.trained} == set(TRAINED)
    assert {clip.voice for clip, _ in task.held_out} == set(HELD_OUT)
    assert {int(sound[-1]) for _, sound in task.held_out} == set(range(len(TRAINED), 98))
    task.trained = [pair for pair in task.trained if pair[0].digit == 4]
    _, lengths, digits = task.batch(20, torch.Generator().manual_seed(0))
    assert digits.tolist() == [4] * 20
    assert int(lengths.min()) >= 7


def test_a_clip_is_cut_to_what_is_heard() -> None:
    sound = torch.cat((torch.zeros(50), torch.tensor([0.001, 0.1, -0.25, 0.0, 0.2]), torch.zeros(70)))
    torch.testing.assert_close(trimmed(sound), torch.tensor([0.2, -0.5, 0.0, 0.4]))
    with pytest.raises(LoadError, match="a clip must be heard; got 30 samples of silence"):
        trimmed(torch.zeros(30))


def test_a_clip_varies_by_the_draw_alone() -> None:
    sound = torch.randn(4000)
    one, same = (varied(sound, torch.Generator().manual_seed(3)) for _ in range(2))
    torch.manual_seed(9)
    assert torch.equal(one, same)
    assert torch.equal(one, varied(sound, torch.Generator().manual_seed(3)))
    others = [varied(sound, torch.Generator().manual_seed(seed)) for seed in range(50)]
    lengths = [len(other) for other in others]
    assert len(set(lengths)) > 40
    assert min(lengths) >= 3200 and max(lengths) <= 5000 + 2 * 800


def test_sounds_of_different_lengths_are_filled_up() -> None:
    long, short = torch.randn(2000), torch.randn(1000)
    frames, lengths = framed([short, long])
    assert frames.shape == (2, 23, 40)
    assert lengths.tolist() == [11, 23]
    torch.testing.assert_close(frames[0, :11], LogMel()(short), rtol=1e-4, atol=1e-4)  # rounding before the logarithm


class Three(nn.Module):
    """Hears a three in everything."""

    def forward(self, frames: Tensor, *, lengths: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.full((len(frames),), 3), 10).float()


class InTurn(nn.Module):
    """Hears zero, one, two and so on, whatever is said."""

    def forward(self, frames: Tensor, *, lengths: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.arange(len(frames)) % 10, 10).float()


def _threes() -> list[tuple[Clip, Tensor]]:
    """Seventy clips of one voice, a tenth of them threes, and of another fourteen, of which half are."""
    sound = torch.full((1000,), 9, dtype=torch.int16)
    said = clips("f1") + [clip for clip in clips("f2") if clip.digit in (3, 4)]
    return [(clip, sound) for clip in said]


def test_what_is_right_is_told_voice_by_voice() -> None:
    threes = [digit == 3 for digit in range(10)]
    assert heard(Three(), _threes()) == {"f1": 7 * threes, "f2": 7 * [True, False]}


@needs_voices
def test_a_test_says_how_many_are_right_of_how_many(data: Path) -> None:
    task = SpeechTask(data)
    task.held_out = _threes()
    found = task.test(Three())
    assert found == {"accuracy": pytest.approx(14 / 84), "worst_voice": 0.1, "asterisk": 0.1, "tested": 84}
    assert task.test(InTurn())["asterisk"] == 1.0


@needs_voices
def test_espeak_speaks_with_the_voice_that_it_is_asked_for() -> None:
    espeak = Espeak(DATA / "espeak-ng")

    def sound(voice: str, accent: str) -> bytes:
        return espeak.say(Clip(7, voice, accent, 160, 50)).numpy().tobytes()

    # with a voice that it does not know, it speaks with its own
    voices = ("none such", *TRAINED, *HELD_OUT)
    assert len({sound(voice, "en") for voice in voices}) == len(voices)
    heard = {sound(voice, accent) for accent in ACCENTS for voice in ("none such", "f1", "m3")}
    assert len(heard) == 3 * len(ACCENTS)


@needs_voices
def test_what_was_said_is_kept_and_not_said_again(data: Path) -> None:
    first = spoken("m1", data)
    assert len(first) == 70
    assert all(1200 < len(sound) < 16000 and sound.dtype == torch.int16 for sound in first)
    said = clips("m1")
    again = Espeak(data / "espeak-ng").say(said[7])
    assert torch.equal((again * 32767).round().short(), first[7])
    (data / "espeak-ng").unlink()
    for kept, sound in zip(spoken("m1", data), first, strict=True):
        assert torch.equal(kept, sound)
    assert [path.name for path in (data / "spoken").iterdir()] == ["m1.npz"]
    np.savez(data / "spoken" / "m1.npz", samples=np.zeros(70, np.int16), ends=np.arange(1, 71), plan=np.array("[]"))
    with pytest.raises(LoadError, match="Run make data"):  # another plan: it would have to speak again
        spoken("m1", data)


@needs_voices
def test_a_voice_that_espeak_refuses_is_an_error() -> None:
    with pytest.raises(LoadError, match=r"espeak-ng must say Clip\(digit=3, .*accent='xx'.*it ended with 1 and said"):
        Espeak(DATA / "espeak-ng").say(Clip(3, "f1", "xx", 150, 50))


@needs_voices
def test_a_short_training_on_a_few_clips_lowers_the_loss(data: Path) -> None:
    task = SpeechTask(data)
    task.trained = [pair for pair in zip(clips("m3"), spoken("m3", data), strict=True) if pair[0].digit < 3]
    task.held_out = task.trained[:9]
    training = Training(task, Recipe(steps=20, rate=2e-3, warmup=5))
    losses = [training.advance().loss for _ in range(20)]
    assert (
        sum(losses[-5:]) / 5 < 0.5 < 1.5 < losses[0]
    )  # ln 10 = 2.3 at first; 1.1 if it only knew that there are three
    results = training.test()
    assert results["accuracy"] > 0.6
    assert results["worst_voice"] == results["accuracy"]
    assert results["tested"] == 9
    assert results["asterisk"] * 10 == pytest.approx(round(results["asterisk"] * 10))
