"""A guard for loops that try again after errors: grpc.aio may report an error where it was told to
stop."""

import asyncio


def asked_to_stop() -> bool:
    """Whether the running task was cancelled and has not ended yet.

    grpc.aio swallows a cancellation that meets the end of the call, and raises `AioRpcError`
    instead; a loop that then tries again would never end. Ask this before trying again.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
