"""Tokenizers of the served models, fetched once from a worker and kept on disk by their hash."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpc

from crowfly.cache import cache_folder
from crowfly.client.channels import Channels
from crowfly.errors import InternalError
from crowfly.tokenizer import Tokenizer
from crowfly.v1 import dispatcher_pb2, worker_pb2, worker_pb2_grpc

_FETCH_SECONDS = 30.0  # up to 64 MB from a worker
_FILES = ("tokenizer.json", "tokenizer_config.json")


class TokenizerCache:
    """In memory for this session, on disk for the next one."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._loaded: dict[str, Tokenizer] = {}

    async def get(self, served: dispatcher_pb2.ServedModel) -> Tokenizer:
        """Raises `grpc.aio.AioRpcError` if none of the workers that have it answers."""
        sha256 = served.model.tokenizer_sha256
        if sha256 not in self._loaded:
            self._loaded[sha256] = _from_disk(sha256) or await self._fetch(served)
        return self._loaded[sha256]

    async def _fetch(self, served: dispatcher_pb2.ServedModel) -> Tokenizer:
        answer = await self._ask_any(served.worker_addresses)
        tokenizer = Tokenizer(answer.tokenizer_json, answer.tokenizer_config_json)
        if tokenizer.sha256 != served.model.tokenizer_sha256:
            raise InternalError(f"{served.model.name}: the worker sent another tokenizer")
        _to_disk(tokenizer.sha256, answer.tokenizer_json, answer.tokenizer_config_json)
        return tokenizer

    async def _ask_any(self, addresses: Sequence[str]) -> worker_pb2.GetTokenizerResponse:
        *others, last = addresses
        for address in others:
            try:
                return await self._ask(address)
            except grpc.aio.AioRpcError:
                continue
        return await self._ask(last)

    async def _ask(self, address: str) -> worker_pb2.GetTokenizerResponse:
        stub = worker_pb2_grpc.WorkerServiceStub(self._channels.to(address))
        return await stub.GetTokenizer(worker_pb2.GetTokenizerRequest(), timeout=_FETCH_SECONDS)


def _from_disk(sha256: str) -> Tokenizer | None:
    """None if it is not there, or not what it was: it is fetched again then."""
    folder = cache_folder("tokenizers") / sha256
    try:
        tokenizer = Tokenizer(*((folder / name).read_bytes().decode() for name in _FILES))
    except (OSError, ValueError):
        return None
    return tokenizer if tokenizer.sha256 == sha256 else None


def _to_disk(sha256: str, *texts: str) -> None:
    """Best effort: a read-only home costs a fetch per session, no more."""
    target = cache_folder("tokenizers") / sha256
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / sha256
            made.mkdir()
            for name, text in zip(_FILES, texts, strict=True):
                (made / name).write_bytes(text.encode())
            if target.exists():  # damaged: what was sound would have been used
                shutil.rmtree(target)
            made.rename(target)
    except OSError:
        return
