"""The byte-level BPE tokenizer inside a GGUF file, as the two files of a Hugging Face folder."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from crowfly_worker.formats.errors import GgufError
from crowfly_worker.formats.gguf import Gguf

# How text is cut before the merges, by the name that GGUF gives it.
_SPLITS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
}

# tokenizer.ggml.token_type: control tokens are hidden from the answer's text, a user's are not.
_CONTROL, _USER_DEFINED = 3, 4


def tokenizer_of(gguf: Gguf) -> Tokenizer:
    """Raises `GgufError` for another kind of tokenizer."""
    kind, split = gguf.value("tokenizer.ggml.model"), gguf.value("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS:
        raise GgufError(
            f"{gguf.path}: tokenizer {kind!r} with pre-tokenizer {split!r} is not supported, only "
            f"'gpt2' with {' or '.join(_SPLITS)}"
        )
    if gguf.get("tokenizer.ggml.add_bos_token"):
        raise GgufError(f"{gguf.path}: tokenizer.ggml.add_bos_token is not supported")
    tokens = gguf.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in gguf.value("tokenizer.ggml.merges")]
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*_SPLITS[split], byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    types = gguf.value("tokenizer.ggml.token_type")
    for token, type_ in zip(tokens, types, strict=True):
        if type_ == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif type_ == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def tokenizer_config_of(gguf: Gguf) -> dict[str, object]:
    """tokenizer_config.json: special tokens by their text, and the chat template if there is one."""
    tokens = gguf.value("tokenizer.ggml.tokens")
    special = {name.removesuffix("_id"): tokens[id] for name, id in gguf.special_ids().items()}
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": gguf.value("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        **special,
    }
    template = gguf.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config
