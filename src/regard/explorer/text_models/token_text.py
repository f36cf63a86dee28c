"""Tokens as text: the bytes of each token, the characters they encode, and labels for parts of a character.

A byte-level tokenizer may split one character into several tokens. The text of the first of these tokens contains the
character, and each of them is labeled with its bytes in hexadecimal.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

BYTE_PIECE_PATTERN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's name of a byte
REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def _byte_level_alphabet() -> dict[str, int]:
    """Return the table of GPT-2: the byte of each letter in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """Return the bytes of a piece of a byte-level vocabulary.

    >>> byte_level_bytes("Ġcaf"), byte_level_bytes("Ã").hex()
    (b' caf', 'c3')
    """
    if all(letter in BYTE_LEVEL_ALPHABET for letter in piece):
        return bytes(BYTE_LEVEL_ALPHABET[letter] for letter in piece)
    return piece.encode()  # added tokens are stored as plain text


def piece_bytes(piece: str) -> bytes:
    """Return the bytes of a piece of any other vocabulary, with spaces as spaces.

    >>> piece_bytes("▁in"), piece_bytes("<0xC3>")
    (b' in', b'\\xc3')
    """
    byte = BYTE_PIECE_PATTERN.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()


@dataclass(frozen=True)
class PartialCharacter:
    """A token with only some bytes of a character: its label, and these bytes in hexadecimal."""

    label: str
    hex: str


@dataclass(frozen=True)
class TokenTexts:
    """The texts of tokens.

    Joining `texts` gives the text: a character is in the text of the token that has its first byte.
    `partial_characters` has the tokens with incomplete characters, by position.
    """

    texts: list[str]
    partial_characters: dict[int, PartialCharacter]

    @property
    def labels(self) -> list[str]:
        """A label for each token: its text, or for part of a character, the character and the bytes of the part."""
        return [
            self.partial_characters[n].label if n in self.partial_characters else text
            for n, text in enumerate(self.texts)
        ]

    @property
    def names(self) -> list[str]:
        """A name for each token that depends only on its bytes, so that equal tokens have equal names."""
        return [
            f"‹{self.partial_characters[n].hex}›" if n in self.partial_characters else text
            for n, text in enumerate(self.texts)
        ]


def token_texts_from_bytes(token_bytes: Sequence[bytes]) -> TokenTexts:
    """Return the texts of tokens, from the bytes of each token.

    >>> token_texts_from_bytes([b"caf", b"\\xc3", b"\\xa9"]).labels
    ['caf', 'é‹C3›', 'é‹A9›']
    """
    owner = [n for n, piece in enumerate(token_bytes) for _ in piece]
    texts, labels, partial = ([""] * len(token_bytes) for _ in range(3))
    start, data = 0, b"".join(token_bytes)
    for character, size, is_valid in _characters(data):
        end = start + size
        tokens = dict.fromkeys(owner[start:end])
        texts[owner[start]] += character
        is_complete = len(tokens) == 1 and is_valid
        for token in tokens:
            labels[token] += character
            if not is_complete:
                partial[token] += "".join(f" {data[n]:02X}" for n in range(start, end) if owner[n] == token)
        start = end
    partial_characters = {
        n: PartialCharacter(f"{labels[n]}‹{text.strip()}›", text.strip()) for n, text in enumerate(partial) if text
    }
    return TokenTexts(texts, partial_characters)


def complete_text(data: bytes) -> str:
    """Decode bytes as UTF-8, without an incomplete last character.

    >>> complete_text(b"5 \\xe2\\x82"), complete_text(b"\\xff!")
    ('5 ', '�!')
    """
    return codecs.getincrementaldecoder("utf8")("replace").decode(data)


def _characters(data: bytes) -> list[tuple[str, int, bool]]:
    """Return each character, its number of bytes, and whether they are valid UTF-8; invalid neighbors are joined."""
    characters: list[tuple[str, int, bool]] = []
    for character in data.decode("utf8", "surrogateescape"):
        is_valid = not "\udc80" <= character <= "\udcff"
        if is_valid:
            characters.append((character, len(character.encode()), True))
        elif characters and not characters[-1][2]:
            characters[-1] = (REPLACEMENT_CHARACTER, characters[-1][1] + 1, False)
        else:
            characters.append((REPLACEMENT_CHARACTER, 1, False))
    return characters
