"""What the wiring of every service shares: logs, signals, the port, and saying that it is ready."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Mapping

import grpc

from crowfly import address
from crowfly.ended_call import shorten_ended_calls
from crowfly.settings import naming


def configure_logging() -> None:
    """One line per event on stderr; prompts, tickets and keys are never logged."""
    shorten_ended_calls()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
    )


def announce(service: str, facts: Mapping[str, object]) -> None:
    """Tell whoever started this process that it serves: one JSON line on stdout."""
    sys.stdout.write(json.dumps({"service": service, **facts}) + "\n")
    sys.stdout.flush()


def bind(server: grpc.aio.Server, listen: str) -> int:
    """Listen there; the port that it is. Raises `SettingsError` that says why it cannot."""
    at = address.parse(listen)
    with naming("listen"):
        try:  # a plain socket says what is wrong; gRPC says that something is
            address.check_free(at)
            return server.add_insecure_port(str(at))
        except (OSError, RuntimeError) as error:
            raise ValueError(f"cannot listen on {listen}: {error}") from error


def check_listen_or_exit(listen: str) -> None:
    """Before long work, whether `bind` will do: if not, one line on stderr and exit code 2."""
    try:
        address.check_free(address.parse(listen))
    except OSError as error:
        sys.stderr.write(f"CROWFLY_LISTEN: cannot listen on {listen}: {error}\n")
        sys.exit(2)


class Stop:
    """The signals that end a service.

    SIGTERM asks it to drain; a second SIGTERM, or SIGINT, to stop at once.
    """

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _terminate(self) -> None:
        if self.drain.is_set():
            self.now.set()
        self.drain.set()

    def _interrupt(self) -> None:
        self.drain.set()
        self.now.set()
