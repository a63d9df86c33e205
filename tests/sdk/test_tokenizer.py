"""Text to ids and back: exact for every byte, in one piece or in many."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from crowfly.tokenizer import Tokenizer

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
ALPHABET = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(256 + index) for index, byte in enumerate(OTHERS)
}
END = 256  # <|end|>, special
ADDED = 257  # "plain €", added but not special
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + m.role) }}{% endif %}"
    "{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_level() -> tokenizers.Tokenizer:
    """Token 0..255 is the byte of that value."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={character: byte for byte, character in ALPHABET.items()}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["plain €"])
    return tokenizer


def sentence_piece() -> tokenizers.Tokenizer:
    """Token 0..255 is the byte of that value, spelled <0x..>; a few words follow."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {word: 256 + index for index, word in enumerate(["▁", "▁fly", "crow", "é", "▁€"])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def crowfly(tokenizer: tokenizers.Tokenizer, **config: object) -> Tokenizer:
    return Tokenizer(tokenizer.to_str(), json.dumps(config))


BYTE_LEVEL = crowfly(byte_level())
SENTENCE_PIECE = crowfly(sentence_piece())
CHAT = crowfly(
    byte_level(), chat_template=TEMPLATE, bos_token={"content": "<|end|>"}, eos_token="\n"
)


def in_parts(tokenizer: Tokenizer, parts: Sequence[Sequence[int]]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join([detokenizer.push(part) for part in parts] + [detokenizer.finish()])


@given(st.lists(st.lists(st.integers(0, ADDED + 2))))
def test_parts_of_byte_level_ids_join_to_the_librarys_whole(parts: list[list[int]]) -> None:
    ids = [id for part in parts for id in part]
    whole = byte_level().decode(ids, skip_special_tokens=True)
    assert in_parts(BYTE_LEVEL, parts) == whole == BYTE_LEVEL.decode(ids)


@given(st.text())
def test_every_text_survives_the_way_there_and_back(text: str) -> None:
    ids = BYTE_LEVEL.encode(text)
    assert BYTE_LEVEL.decode(ids) == text.replace("<|end|>", "")
    assert in_parts(BYTE_LEVEL, [[id] for id in ids]) == text.replace("<|end|>", "")


@given(st.binary())
def test_at_most_three_bytes_are_held_back(data: bytes) -> None:
    detokenizer = BYTE_LEVEL.detokenizer()
    shown = "".join(detokenizer.push([byte]) for byte in data)
    assert data.decode(errors="replace").removeprefix(shown) == detokenizer.finish()
    assert any(data[: len(data) - held].decode(errors="replace") == shown for held in range(4))


def test_an_invalid_byte_is_shown_at_once() -> None:
    assert BYTE_LEVEL.detokenizer().push([0xFF]) == "\N{REPLACEMENT CHARACTER}"


def test_a_special_token_does_not_break_a_character() -> None:
    assert in_parts(BYTE_LEVEL, [[0xE2, END], [0x82, END, 0xAC]]) == "€"


@given(st.lists(st.sampled_from([*"€é crow", "▁fly", "crow", "▁€", "▁"]), min_size=1))
def test_other_vocabularies_join_to_the_librarys_whole(pieces: list[str]) -> None:
    library = sentence_piece()
    words = [library.token_to_id(piece) for piece in pieces]
    encoded = [
        [word] if word is not None else list(piece.encode())
        for word, piece in zip(words, pieces, strict=True)
    ]
    ids = [256, *(id for part in encoded for id in part)]
    assert in_parts(SENTENCE_PIECE, [[id] for id in ids]) == library.decode(ids)


@given(st.lists(st.integers(0, 262)))
def test_other_vocabularies_survive_any_ids(ids: list[int]) -> None:
    assert in_parts(SENTENCE_PIECE, [[id] for id in ids]) == SENTENCE_PIECE.decode(ids)


def test_a_raw_completion_gets_a_first_token_only_from_the_tokenizer_itself() -> None:
    adds_one = byte_level()
    adds_one.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", END)]
    )
    assert BYTE_LEVEL.encode("hi") == [104, 105]
    assert crowfly(adds_one).encode("hi") == [END, 104, 105]
    assert crowfly(adds_one, bos_token="<|end|>").encode("hi") == [END, 104, 105]


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    short = byte_level()
    short.enable_truncation(2)
    short.enable_padding(length=9)
    assert crowfly(short).encode("crow") == list(b"crow")


def test_a_chat_is_the_models_template() -> None:
    ids = CHAT.encode_chat([{"role": "user", "content": "hi €"}])
    assert ids == [END, *"user:hi €\nassistant:".encode()]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (TEMPLATE, "no system"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "expression"),
        (None, "send a plain prompt"),
    ],
)
def test_what_a_template_refuses_is_a_value_error(template: str | None, said: str) -> None:
    tokenizer = crowfly(byte_level(), chat_template=template)
    with pytest.raises(ValueError, match=said):
        tokenizer.encode_chat([{"role": "system", "content": "x"}])


def test_a_lone_surrogate_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        BYTE_LEVEL.encode("\ud800")


@pytest.mark.parametrize("files", [("{}", "{}"), (byte_level().to_str(), "[1]"), ("", "{}")])
def test_files_that_cannot_be_read_are_a_value_error(files: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="json"):
        Tokenizer(*files)


def test_a_folders_hash_is_that_of_its_texts(tmp_path: Path) -> None:
    config = '{"eos_token": "<|end|>"}\r\n'
    (tmp_path / "tokenizer.json").write_text(byte_level().to_str())
    (tmp_path / "tokenizer_config.json").write_bytes(config.encode())
    folder = Tokenizer.from_folder(tmp_path)
    assert folder.sha256 == Tokenizer(byte_level().to_str(), config).sha256
    assert folder.sha256 != Tokenizer(byte_level().to_str(), "{}").sha256


def test_a_template_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level().to_str())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    folder = Tokenizer.from_folder(tmp_path)
    again = Tokenizer(folder.tokenizer_json, folder.config_json)
    assert again.encode_chat([{"role": "user", "content": "hi"}]) == list(b"hi!")
