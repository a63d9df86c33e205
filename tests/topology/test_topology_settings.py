import socket

import pytest

from crowfly import settings
from crowfly_topology.settings import TopologySettings


def test_every_setting_has_a_default() -> None:
    read = settings.read(TopologySettings, {})
    assert read == TopologySettings("127.0.0.1:2379", socket.gethostname(), "127.0.0.1:0", None)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"CROWFLY_NODE": ""}, "CROWFLY_NODE=''"),
        ({"CROWFLY_NODE": "a/b"}, "CROWFLY_NODE='a/b' is not a name"),
        ({"CROWFLY_LISTEN": "8700"}, "'8700' is not host:port"),
        ({"CROWFLY_LISTEN": "0.0.0.0:0"}, "set CROWFLY_ADVERTISE"),
        ({"CROWFLY_ADVERTISE": "host"}, "'host' is not host:port"),
    ],
)
def test_a_bad_value_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(settings.SettingsError, match=message):
        settings.read(TopologySettings, environ)


def test_a_wildcard_with_an_address_for_others_is_accepted() -> None:
    environ = {"CROWFLY_LISTEN": "0.0.0.0:0", "CROWFLY_ADVERTISE": "10.0.0.7:0"}
    assert settings.read(TopologySettings, environ).advertise == "10.0.0.7:0"
