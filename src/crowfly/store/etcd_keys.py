"""Keys as etcd has them: bytes, and a prefix as a range."""


def encode_key(key: str) -> bytes:
    return key.encode()


def decode_key(key: bytes) -> str:
    """A stranger's key may be no text; it must not end the watch."""
    return key.decode(errors="replace")


def prefix_end(prefix: str) -> bytes:
    """The first key after all those that start with `prefix`, which is not empty."""
    raw = encode_key(prefix)
    return raw[:-1] + bytes([raw[-1] + 1])  # UTF-8 has no byte 255
