"""Addresses in every spelling; a wildcard is never told to others."""

import pytest

from crowfly.address import Address, advertised, parse


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8700", "127.0.0.1", 8700),
        ("[::1]:0", "::1", 0),
        ("node-7.example:65535", "node-7.example", 65535),
        (":8700", "", 8700),
    ],
)
def test_an_address_reads_back_as_it_was_written(text: str, host: str, port: int) -> None:
    assert parse(text) == Address(host, port)
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80"])
def test_what_is_no_address_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"port of 0\.\.65535|brackets") as refused:
        parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        ("127.0.0.1:0", None, "127.0.0.1:41234"),
        ("[::1]:0", None, "[::1]:41234"),
        ("0.0.0.0:0", "10.0.0.7:0", "10.0.0.7:41234"),
        ("[::]:0", "node-7:99", "node-7:99"),
    ],
)
def test_others_are_told_what_they_can_reach(listen: str, advertise: str | None, told: str) -> None:
    assert str(advertised(listen, 41234, advertise)) == told


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ":0"])
def test_a_wildcard_alone_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="CROWFLY_ADVERTISE"):
        advertised(listen, 41234, None)
