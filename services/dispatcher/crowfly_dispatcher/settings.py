"""The dispatcher's settings; each has a default that works."""

from dataclasses import dataclass

from crowfly import address, wire
from crowfly.settings import SettingsError
from crowfly.store.etcd_members import parse_endpoints


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """Raises `SettingsError`."""

    store: str = wire.STORE  # etcd: host:port, several with commas
    listen: str = wire.DISPATCHER  # port 0: any free one

    def __post_init__(self) -> None:
        for name, parse in (("STORE", parse_endpoints), ("LISTEN", address.parse)):
            try:
                parse(getattr(self, name.lower()))
            except ValueError as error:
                raise SettingsError(f"CROWFLY_{name}: {error}") from None
