"""The tensors of a Hugging Face folder, memory-mapped; checked one and all before the first use."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from crowfly_worker.formats.errors import WeightsError
from crowfly_worker.formats.folder import ModelFolder
from crowfly_worker.formats.layout import Shape

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_FLOATS = ("F32", "BF16", "F16")


class Weights:
    """Open files; `with` closes them. A tensor is a read-only view of its file."""

    def __init__(self, files: Mapping[str, Any], stack: ExitStack) -> None:
        self._files = files
        self._stack = stack

    def tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def open_weights(folder: Path, expected: Mapping[str, Shape]) -> Weights:
    """Open the safetensors of `folder` and check that each expected tensor is there.

    Tensors that nobody expects are ignored. Raises `FormatError` (mostly `WeightsError`) that
    names the file and the tensor: a missing, truncated or malformed file, a missing tensor,
    another shape, a type that is not float, or a folder that holds pickles alone.
    """
    homes = _homes(ModelFolder(folder), expected)
    with ExitStack() as stack:
        opened = {path: _open(path, stack) for path in sorted(set(homes.values()))}
        for name, shape in expected.items():
            _check(opened[homes[name]], homes[name], name, shape)
        files = {name: opened[homes[name]] for name in expected}
        return Weights(files, stack.pop_all())


def _homes(folder: ModelFolder, expected: Mapping[str, Shape]) -> dict[str, Path]:
    """Which file holds each expected tensor."""
    single = folder.file(_ONE_FILE)
    if single is not None:
        return dict.fromkeys(expected, single)
    index = folder.json(_INDEX)
    if index is None:
        raise WeightsError(_nothing_to_read(folder))
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        raise WeightsError(f"{folder.path / _INDEX}: weight_map is missing")
    return {name: _shard(folder, shards, name) for name in expected}


def _shard(folder: ModelFolder, shards: Mapping[str, object], name: str) -> Path:
    file = shards.get(name)
    if not isinstance(file, str):
        raise WeightsError(f"{folder.path / _INDEX}: no file for tensor {name}")
    path = folder.file(file)
    if path is None:
        raise WeightsError(f"{folder.path / file} is missing; it should hold tensor {name}")
    return path


def _nothing_to_read(folder: ModelFolder) -> str:
    pickles = [name for name in folder.names() if name.endswith(_PICKLES)]
    if not pickles:
        return f"{folder.path} has neither {_ONE_FILE} nor {_INDEX}"
    return (
        f"{folder.path} holds its weights as pickles only ({', '.join(pickles[:3])}). A pickle can "
        "run code, so Crowfly opens none: get the model as safetensors"
    )


def _open(path: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except (SafetensorError, OSError) as error:  # truncated, or a header that lies
        raise WeightsError(f"{path} is not a whole safetensors file: {error}") from error


def _check(file: Any, path: Path, name: str, shape: Shape) -> None:
    try:
        entry = file.get_slice(name)
    except SafetensorError as error:
        raise WeightsError(f"{path}: tensor {name} is missing") from error
    found = tuple(entry.get_shape())
    if found != shape:
        raise WeightsError(
            f"{path}: tensor {name} has shape {list(found)}, config.json makes it {list(shape)}"
        )
    if entry.get_dtype() not in _FLOATS:
        raise WeightsError(
            f"{path}: tensor {name} is {entry.get_dtype()}, not one of {', '.join(_FLOATS)}"
        )
