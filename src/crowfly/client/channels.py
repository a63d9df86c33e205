"""One channel per address for as long as a session lives."""

import grpc

from crowfly import wire

_OPTIONS = (*wire.CHANNEL_OPTIONS, ("grpc.max_receive_message_length", wire.TOKENIZER_BYTES))


class Channels:
    def __init__(self) -> None:
        self._open: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to `address`, opened at the first call."""
        if address not in self._open:
            self._open[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return self._open[address]

    async def close(self) -> None:
        """Close all; streams still running on them are cancelled."""
        while self._open:
            _, channel = self._open.popitem()
            await channel.close()
