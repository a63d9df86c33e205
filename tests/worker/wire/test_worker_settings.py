"""A worker needs no setting, and a bad one is named."""

import socket

import pytest

from crowfly import settings
from crowfly_worker.settings import WorkerSettings


def test_every_setting_has_a_default() -> None:
    assert settings.read(WorkerSettings, {}) == WorkerSettings(
        store="127.0.0.1:2379",
        node=socket.gethostname(),
        listen="127.0.0.1:0",
        advertise=None,
        model="smollm2",
        precision=None,
        threads=None,
        drain_seconds=600.0,
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"CROWFLY_STORE": "https://etcd:2379"}, "CROWFLY_STORE: .* only plain etcd"),
        ({"CROWFLY_NODE": "a/b"}, "CROWFLY_NODE='a/b'"),
        ({"CROWFLY_LISTEN": "8700"}, "'8700' is not host:port"),
        ({"CROWFLY_LISTEN": "0.0.0.0:0"}, "set CROWFLY_ADVERTISE"),
        ({"CROWFLY_PRECISION": "int4"}, "'int4' is none of fp32, bf16, fp16"),
        ({"CROWFLY_THREADS": "0"}, "CROWFLY_THREADS=0"),
        ({"CROWFLY_THREADS": "two"}, "CROWFLY_THREADS='two' is not an integer"),
        ({"CROWFLY_DRAIN_SECONDS": "-1"}, "CROWFLY_DRAIN_SECONDS=-1"),
        ({"CROWFLY_DRAIN_SECONDS": "nan"}, "CROWFLY_DRAIN_SECONDS=nan"),
        ({"CROWFLY_DRAIN_SECONDS": "inf"}, "CROWFLY_DRAIN_SECONDS=inf"),
    ],
)
def test_a_bad_value_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(settings.SettingsError, match=message):
        settings.read(WorkerSettings, environ)
