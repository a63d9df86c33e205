"""The dispatcher as a process: settings, readiness, signals."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

import grpc

from crowfly.v1.dispatcher_pb2 import GetClusterRequest, PlaceRequest
from crowfly.v1.dispatcher_pb2_grpc import DispatcherServiceStub

COMMAND = [sys.executable, "-m", "crowfly_dispatcher"]
SECONDS = 60


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _ends(**settings: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        COMMAND, env=os.environ | settings, capture_output=True, timeout=SECONDS, check=False
    )
    return done.returncode, done.stderr.decode().splitlines()


async def _scene(settings: Mapping[str, str], sign: signal.Signals) -> tuple[int, str]:
    """Start it, ask it, end it with `sign`: its exit code and the answer."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        env=os.environ | settings,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(SECONDS):
            assert process.stdout is not None
            ready = json.loads(await process.stdout.readline())
            assert ready["service"] == "dispatcher"
            answer = await _ask(ready["address"])
            process.send_signal(sign)
            return await process.wait(), answer
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ask(address: str) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        dispatcher = DispatcherServiceStub(channel)
        assert (await dispatcher.GetCluster(GetClusterRequest())).map_stale
        try:
            await dispatcher.Place(PlaceRequest(prompt_tokens=1))
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "placed"


def test_without_a_store_it_serves_says_so_and_ends_on_a_signal() -> None:
    settings = {"CROWFLY_STORE": f"127.0.0.1:{_free_port()}", "CROWFLY_LISTEN": "127.0.0.1:0"}
    for sign in (signal.SIGTERM, signal.SIGINT):
        code, answer = asyncio.run(_scene(settings, sign))
        assert code == 0
        assert answer == (
            "UNAVAILABLE: no worker is known: the store does not answer, see CROWFLY_STORE"
        )


def test_a_taken_port_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = _ends(CROWFLY_LISTEN=f"127.0.0.1:{port}")
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"CROWFLY_LISTEN: cannot listen on 127.0.0.1:{port}: ")
    assert "in use" in lines[0]


def test_a_bad_setting_is_one_line_and_exit_code_2() -> None:
    assert _ends(CROWFLY_LISTEN="nowhere") == (
        2,
        ["CROWFLY_LISTEN: 'nowhere' is not host:port with a port of 0..65535"],
    )
    code, lines = _ends(CROWFLY_STORE="https://x:1")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("CROWFLY_STORE: 'https://x:1'")
