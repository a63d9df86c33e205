"""The one thread that drives an engine."""

import logging
import threading
from collections.abc import Callable

from crowfly_worker.engine.port import Engine, StepEvent

# How long a sleeping thread takes to see that it shall stop.
_WAIT_SECONDS = 0.05

_log = logging.getLogger(__name__)


class EngineThread:
    """Steps `engine` until stopped, and hands each step's events to `on_events` in one call.

    Both callbacks run in the engine's thread and should only pass on what they get. A sequence
    that fails is an event; an error that escapes from a step ends the thread, and `on_failure` is
    told, once: no stream would get another event. After `stop` neither is called: whoever listened
    may be gone when a long step ends.
    """

    def __init__(
        self,
        engine: Engine,
        on_events: Callable[[list[StepEvent]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._on_events = on_events
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Let the step in progress end, and join. What still runs gets no further event.

        Raises `TimeoutError` if the step takes longer than `seconds`.
        """
        self._stopping.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's step did not end within {seconds} s")

    def _run(self) -> None:
        try:
            self._step_until_stopped()
        except Exception as error:  # noqa: BLE001 - nothing may end this thread in silence
            if self._stopping.is_set():
                _log.warning("the last step, after the end of all streams, failed: %r", error)
            else:
                self._on_failure(error)

    def _step_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._engine.wait(_WAIT_SECONDS)
            events = self._engine.step()
            if events and not self._stopping.is_set():
                self._on_events(events)
