"""Token ids to text while they come: exact bytes, whole characters."""

import codecs
import re
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders


class Pieces:
    """The bytes that each token stands for.

    Byte-level vocabularies spell one byte per character. Others spell text, whose blanks depend on
    the token before, and single bytes as <0x41>; `tokenizers`' own stream decoder raises for some
    sequences of these (seen with 0.23), so it is not used.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._byte_fallback = "ByteFallback" in repr(tokenizer.decoder)
        added = tokenizer.get_added_tokens_decoder()
        self._special = {id for id, token in added.items() if token.special}

    def of(self, id: int, previous: int | None) -> bytes | None:
        """None for an id without text: a special token, or none of the vocabulary."""
        token = None if id in self._special else self._tokenizer.id_to_token(id)
        if token is None:
            return None
        if self._byte_level:
            return _spelled_bytes(token)
        if self._byte_fallback and (byte := re.fullmatch("<0x([0-9A-F]{2})>", token)):
            return bytes.fromhex(byte[1])
        before = [] if previous is None else [previous]
        known = len(self._tokenizer.decode(before))
        return self._tokenizer.decode([*before, id])[known:].encode()


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTES = _byte_of_character()


def _spelled_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:  # an added token, spelled as itself
        return token.encode()


class Detokenizer:
    """Text from ids that come a few at a time: the pieces joined are `Tokenizer.decode` of all.

    An unfinished character is held back, at most 3 bytes; an invalid byte comes out as U+FFFD at
    once.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._previous: int | None = None

    def push(self, ids: Iterable[int]) -> str:
        """What can be shown after these ids; often empty."""
        return "".join(self._one(id) for id in ids)

    def finish(self) -> str:
        """What was held back."""
        return self._decoder.decode(b"", final=True)

    def _one(self, id: int) -> str:
        piece = self._pieces.of(id, self._previous)
        if piece is None:
            return ""
        self._previous = id
        return self._decoder.decode(piece)
