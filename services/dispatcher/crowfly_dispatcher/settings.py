"""The dispatcher's settings; each has a default that works."""

from dataclasses import dataclass

from crowfly import address, wire
from crowfly.settings import SettingsError


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    store: str = wire.STORE  # CROWFLY_STORE: etcd, host:port, several with commas
    listen: str = wire.DISPATCHER  # CROWFLY_LISTEN: host:port; port 0 takes a free one

    def __post_init__(self) -> None:
        try:
            address.parse(self.listen)
        except ValueError as error:
            raise SettingsError(f"CROWFLY_LISTEN: {error}") from None
