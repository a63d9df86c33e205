"""host:port in every spelling that people use, and what may be told to others."""

import socket
from dataclasses import dataclass

WILDCARDS = frozenset({"0.0.0.0", "::", ""})


@dataclass(frozen=True, slots=True)
class Address:
    """`str()` is what gRPC takes: `name:port`, `1.2.3.4:port` or `[::1]:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(text: str) -> Address:
    """Raises `ValueError` that says what is wrong with `text`."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port with a port of 0..65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:8700")
    return Address(host, int(port))


def advertised(listen: str, port: int, advertise: str | None) -> Address:
    """What others are told of a server that listens on `listen` and was given `port`.

    Raises `ValueError` for a wildcard without an address that others can reach.
    """
    if advertise:
        told = parse(advertise)
        told = Address(told.host, told.port or port)
    else:
        told = Address(parse(listen).host, port)
    if told.host in WILDCARDS:
        raise ValueError(
            f"listening on {listen!r} says nothing that others can reach: set CROWFLY_ADVERTISE "
            "to a host or host:port, for example 10.0.0.7:0"
        )
    return told


def check_free(at: Address) -> None:
    """Raises `OSError` that says why nobody can listen there now."""
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    socket.create_server((at.host, at.port), family=family).close()
