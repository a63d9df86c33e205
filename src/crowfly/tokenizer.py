"""Text to token ids and back, exactly as the served model's own files say."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NoReturn, Self

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from crowfly.detokenizer import Detokenizer, Pieces

_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template"  # its key there
# What an expression of a template may raise besides jinja2's own errors.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)


class Tokenizer:
    """A model's tokenizer, from the texts of its two files.

    `tokenizer_json` is the `tokenizers` library's format; `config_json` is the Hugging Face
    folder's `tokenizer_config.json`. Raises `ValueError` if one of them cannot be read.
    """

    def __init__(self, tokenizer_json: str, config_json: str) -> None:
        self.tokenizer_json = tokenizer_json
        self.config_json = config_json
        self._tokenizer = _load(tokenizer_json)
        self._pieces = Pieces(self._tokenizer)
        self._config = _object(_CONFIG, config_json)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Raises `OSError` if there is no tokenizer.json, `ValueError` if it cannot be read.

        A `chat_template.jinja` beside the configuration becomes part of it, as in newer folders.
        """
        config_json, template = "{}", folder / "chat_template.jinja"
        if (folder / _CONFIG).is_file():
            config_json = _read(folder / _CONFIG)
        if template.is_file():
            config_json = json.dumps(_object(_CONFIG, config_json) | {_TEMPLATE: _read(template)})
        return cls(_read(folder / "tokenizer.json"), config_json)

    @cached_property
    def sha256(self) -> str:
        """Hex, of both texts: equal for equal files, on every machine."""
        whole = f"{self.tokenizer_json}\0{self.config_json}"
        return hashlib.sha256(whole.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """A raw completion's ids. Special tokens in `text` count as such; a first token is added
        only if the tokenizer itself adds one. Raises `ValueError` for lone surrogates."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """The ids of a conversation and of the beginning of its answer, by the model's template.

        Raises `ValueError` if the model has none, or if it refuses these messages.
        """
        return self._encode(self._render(messages), add_special_tokens=False)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, without special tokens and unknown ids; what is not UTF-8 comes out
        as U+FFFD."""
        detokenizer = self.detokenizer()
        return detokenizer.push(ids) + detokenizer.finish()

    def detokenizer(self) -> Detokenizer:
        """For one stream of ids."""
        return Detokenizer(self._pieces)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        text.encode()  # `tokenizers` raises TypeError for lone surrogates; this is a ValueError
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def _render(self, messages: Sequence[Mapping[str, object]]) -> str:
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=self._special("bos_token"),
                eos_token=self._special("eos_token"),
            )
        except _TEMPLATE_FAULTS as error:
            raise ValueError(f"the chat template: {error}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        source = self._config.get(_TEMPLATE)
        if isinstance(source, list):  # several by name, in older folders
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if source is None:
            raise ValueError("this model has none: send a plain prompt")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        return environment.from_string(str(source))

    def _special(self, name: str) -> str:
        token = self._config.get(name)
        return str(token["content"] if isinstance(token, dict) else token or "")


def _read(file: Path) -> str:
    return file.read_bytes().decode("utf-8")  # read_text would change line ends, and the hash


def _load(tokenizer_json: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ValueError(f"tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _object(name: str, text: str) -> dict[str, object]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} is not a JSON object: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
