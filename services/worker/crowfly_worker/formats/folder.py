"""The files of one model folder; a name or a link that leads out of it is refused."""

import json
from pathlib import Path
from typing import Any

from crowfly_worker.formats.errors import FormatError

_JSON_BYTES = 64 << 20  # a tokenizer of 256 k entries has 17 MB; more is no honest file


class ModelFolder:
    """Raises `FormatError` if `path` is not a folder."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise FormatError(f"{path} is not a folder")
        self.path = path.resolve()

    def file(self, name: str) -> Path | None:
        """The file of that name, or None if there is none.

        Raises `FormatError` if it lies outside the folder.
        """
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path):
            raise FormatError(
                f"{self.path / name} leads out of its folder to {path}: copy the file itself "
                "(cp -L follows links)"
            )
        return path if path.is_file() else None

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.path.iterdir())

    def json(self, name: str) -> dict[str, Any] | None:
        """The object in a JSON file, or None if there is no such file.

        Raises `FormatError` if it holds no JSON object.
        """
        path = self.file(name)
        if path is None:
            return None
        if path.stat().st_size > _JSON_BYTES:
            raise FormatError(f"{path} is larger than {_JSON_BYTES} bytes")
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise FormatError(f"{path} holds no JSON object")
        return value
