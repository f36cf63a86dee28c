"""Tokens as text: the bytes of each token, the characters they spell, and labels for parts of a character.

A byte-level tokenizer may split one character into several tokens. The character is shown on the first of them, and
each of them is labeled with its bytes in hexadecimal.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece spells a byte that is no piece of its own
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _byte_letters() -> dict[str, int]:
    """GPT-2's table: the letter that byte-level vocabularies write for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_LETTERS = _byte_letters()


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a piece of a byte-level vocabulary.

    >>> byte_level_bytes("Ġcaf"), byte_level_bytes("Ã").hex()
    (b' caf', 'c3')
    """
    if all(letter in BYTE_LETTERS for letter in piece):
        return bytes(BYTE_LETTERS[letter] for letter in piece)
    return piece.encode()  # added tokens are stored as plain text


def piece_bytes(piece: str) -> bytes:
    """The bytes of a piece of any other vocabulary, with spaces as spaces.

    >>> piece_bytes("▁in"), piece_bytes("<0xC3>")
    (b' in', b'\\xc3')
    """
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()


@dataclass(frozen=True)
class Part:
    """A token that has only some bytes of a character: its label, and those bytes in hexadecimal."""

    label: str
    hex: str


@dataclass(frozen=True)
class TokenTexts:
    """Tokens as text.

    `texts` joined are the text: a character is in the text of the token that has its first byte. `parts` are the tokens
    with incomplete characters, by position.
    """

    texts: list[str]
    parts: dict[int, Part]

    @property
    def labels(self) -> list[str]:
        """A label for each token: its text, or the character that it is a part of with the bytes it has."""
        return [self.parts[n].label if n in self.parts else text for n, text in enumerate(self.texts)]

    @property
    def names(self) -> list[str]:
        """A name for each token that depends on its bytes alone, so that equal tokens have equal names."""
        return [f"‹{self.parts[n].hex}›" if n in self.parts else text for n, text in enumerate(self.texts)]


def spell(pieces: Sequence[bytes]) -> TokenTexts:
    """The characters that the bytes of tokens spell together.

    >>> spell([b"caf", b"\\xc3", b"\\xa9"]).labels
    ['caf', 'é‹C3›', 'é‹A9›']
    """
    owner = [n for n, piece in enumerate(pieces) for _ in piece]
    texts, labels, partial = ([""] * len(pieces) for _ in range(3))
    place, data = 0, b"".join(pieces)
    for character, size, is_valid in _characters(data):
        tokens = dict.fromkeys(owner[place : place + size])
        texts[owner[place]] += character
        is_whole = len(tokens) == 1 and is_valid
        for token in tokens:
            labels[token] += character
            if not is_whole:
                own = (data[at] for at in range(place, place + size) if owner[at] == token)
                partial[token] += "".join(f" {byte:02X}" for byte in own)
        place += size
    parts = {n: Part(f"{labels[n]}‹{text.strip()}›", text.strip()) for n, text in enumerate(partial) if text}
    return TokenTexts(texts, parts)


def complete_text(data: bytes) -> str:
    """The text of some bytes, without a last character whose bytes are not all there.

    >>> complete_text(b"5 \\xe2\\x82"), complete_text(b"\\xff!")
    ('5 ', '�!')
    """
    return codecs.getincrementaldecoder("utf8")("replace").decode(data)


def _characters(data: bytes) -> list[tuple[str, int, bool]]:
    """Each character, the number of its bytes, and whether they are valid UTF-8; neighbors that are not are joined."""
    characters: list[tuple[str, int, bool]] = []
    for character in data.decode("utf8", "surrogateescape"):
        is_valid = not "\udc80" <= character <= "\udcff"
        if is_valid:
            characters.append((character, len(character.encode()), True))
        elif characters and not characters[-1][2]:
            characters[-1] = (REPLACEMENT, characters[-1][1] + 1, False)
        else:
            characters.append((REPLACEMENT, 1, False))
    return characters
