"""Broken weights are refused before they are used, and nothing is ever unpickled."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from crowfly_worker.formats.config import read_config
from crowfly_worker.formats.errors import FormatError, WeightsError
from crowfly_worker.models.llama import Llama, load_llama

UP = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(byte_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(byte_model, tmp_path / "model"))


def load(folder: Path) -> Llama:
    return load_llama(folder, read_config(folder), torch.float32, torch.device("cpu"))


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in weights_of(folder).items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def weights_of(folder: Path) -> Tensors:
    tensors: Tensors = load_file(folder / "model.safetensors")
    return tensors


def shard(folder: Path) -> None:
    """Two files and an index, as large models have."""
    tensors = weights_of(folder)
    names = sorted(tensors)
    parts = {"a.safetensors": names[:17], "b.safetensors": names[17:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "model.safetensors").unlink()


def test_one_file_and_many_give_the_same_network(byte_model: Path, folder: Path) -> None:
    shard(folder)
    one, many = load(byte_model), load(folder)
    for ours, theirs in zip(one._layers, many._layers, strict=True):
        assert torch.equal(ours.qkv, theirs.qkv)
        assert torch.equal(ours.gate_up, theirs.gate_up)


def test_weights_are_copied_out_of_their_file(folder: Path) -> None:
    network = load(folder)
    before = network._layers[0].down.clone()
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1_000_000, os.SEEK_END)
        file.write(b"\xff" * 1_000_000)
    assert torch.equal(network._layers[0].down, before)


@pytest.mark.parametrize("keep", [0, 4, 100, 10_000, 1_000_000])
def test_a_truncated_file_is_refused(folder: Path, keep: int) -> None:
    os.truncate(folder / "model.safetensors", keep)
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole safetensors file"):
        load(folder)


@pytest.mark.parametrize("length", [2**63, 2**40, 100_000_001, 10_000_000])
def test_a_header_of_absurd_length_is_refused(folder: Path, length: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole"):
        load(folder)


def test_a_header_whose_offsets_lie_is_refused(folder: Path) -> None:
    header = json.dumps({UP: {"dtype": "F32", "shape": [9, 9], "data_offsets": [0, 1 << 50]}})
    data = struct.pack("<Q", len(header)) + header.encode() + b"\0" * 64
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole"):
        load(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop(UP))
    with pytest.raises(WeightsError, match=rf"model\.safetensors: tensor {UP} is missing"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({UP: torch.zeros(352, 127)}))
    expected = rf"{UP} has shape \[352, 127\], config\.json makes it \[352, 128\]"
    with pytest.raises(WeightsError, match=expected):
        load(folder)


def test_a_vocabulary_of_another_size_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = 300
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(WeightsError, match=r"embed_tokens\.weight has shape \[260, 128\].*\[300"):
        load(folder)


def test_a_tensor_of_integers_is_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({UP: torch.zeros(352, 128, dtype=torch.int8)}))
    with pytest.raises(WeightsError, match=rf"{UP} is I8, not one of F32, BF16, F16"):
        load(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"b\.safetensors is missing; it should hold tensor"):
        load(folder)


def test_a_shard_that_lacks_its_tensor_is_named(folder: Path) -> None:
    shard(folder)
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    with pytest.raises(WeightsError, match=r"b\.safetensors: tensor model\.\S+ is missing"):
        load(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, {UP: 7}])
def test_an_index_that_leads_nowhere_is_refused(folder: Path, weight_map: object) -> None:
    shard(folder)
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(WeightsError, match=r"index\.json: (weight_map is missing|no file for)"):
        load(folder)


@pytest.mark.parametrize("way", ["link", "dots", "absolute"])
def test_a_file_outside_the_folder_is_refused(folder: Path, way: str) -> None:
    shard(folder)
    outside = Path(shutil.move(folder / "a.safetensors", folder.parent / "a.safetensors"))
    if way == "link":
        (folder / "a.safetensors").symlink_to(outside)
    else:
        name = "../a.safetensors" if way == "dots" else str(outside)
        index = folder / "model.safetensors.index.json"
        text = index.read_text(encoding="utf-8").replace("a.safetensors", name)
        index.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match="leads out of its folder"):
        load(folder)


class Marker:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_refused_and_never_opened(folder: Path, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "unpickled"
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Marker(marker)))
    with pytest.raises(WeightsError, match=f"pickles only .{name}.*as safetensors"):
        load(folder)
    assert not marker.exists()


def test_a_pickle_in_the_name_of_safetensors_is_refused(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "unpickled"
    (folder / "model.safetensors").write_bytes(pickle.dumps(Marker(marker)) * 100)
    with pytest.raises(WeightsError, match="is not a whole safetensors file"):
        load(folder)
    assert not marker.exists()


def test_a_folder_without_weights_says_what_it_lacks(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"has neither model\.safetensors nor"):
        load(folder)
