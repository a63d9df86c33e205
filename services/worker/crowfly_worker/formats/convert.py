"""`python -m crowfly_worker.formats.convert SRC.gguf DST`: a GGUF file into a Hugging Face folder.

Progress is one JSON object per line on stdout. Bad input is one line on stderr and exit code 2.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import save_file

from crowfly_worker.formats.config import read_config
from crowfly_worker.formats.errors import FormatError, GgufError
from crowfly_worker.formats.gguf import BROKEN, Gguf
from crowfly_worker.formats.gguf_tokenizer import tokenizer_config_of, tokenizer_of
from crowfly_worker.formats.layout import expected_tensors
from crowfly_worker.formats.weights import open_weights

Progress = Callable[[int, int], None]  # (steps done, steps in all)


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Write `target`, a folder that does not exist yet, with weights in bf16.

    It is written beside its place and renamed when it is whole and checked, so that nobody ever
    sees a half. Raises `FormatError` for a bad source, `OSError` if the target cannot be written.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists already")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _write(Gguf(source), partial, progress)
        with open_weights(partial, expected_tensors(read_config(partial))):
            partial.chmod(0o755)  # mkdtemp's own is 0700
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(gguf: Gguf, folder: Path, progress: Progress) -> None:
    try:
        tokenizer_of(gguf).save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", tokenizer_config_of(gguf))
        _write_json(folder / "config.json", gguf.config())
        _write_json(folder / "generation_config.json", gguf.special_ids())
    except GgufError:
        raise
    except BROKEN as error:
        raise GgufError(f"{gguf.path}: its metadata makes no model: {error}") from error
    total = gguf.tensor_count() + 1  # the last step writes the file
    tensors = {}
    for done, (name, tensor) in enumerate(gguf.tensors(), start=1):
        tensors[name] = tensor.contiguous()
        progress(done, total)
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # save_file's own is 0600
    progress(total, total)


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def _print_progress(done: int, total: int) -> None:
    sys.stdout.write(json.dumps({"done": done, "total": total}) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m crowfly_worker.formats.convert SRC.gguf DST_FOLDER\n")
        return 2
    try:
        convert(Path(arguments[0]), Path(arguments[1]), _print_progress)
    except (FormatError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
