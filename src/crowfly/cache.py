"""Where this user's cache is: models and tokenizers that can be fetched again."""

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """`$XDG_CACHE_HOME/crowfly/<kind>`; it need not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "crowfly" / kind
