"""What one caller has been told so far, and the account at the end."""

from crowfly import wire
from crowfly.detokenizer import Detokenizer
from crowfly.errors import InternalError
from crowfly.v1 import worker_pb2
from crowfly_worker import report
from crowfly_worker.bounds import Order
from crowfly_worker.engine.port import Engine, FinishReason
from crowfly_worker.router import Arrival

_FINISH = {
    FinishReason.STOP: worker_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: worker_pb2.FINISH_REASON_LENGTH,
}


class Answer:
    """Created at admission: all times count from then, on `time.monotonic()`."""

    def __init__(self, order: Order, detokenizer: Detokenizer, admitted_at: float) -> None:
        self.order = order
        self.tokens = 0
        self._detokenizer = detokenizer
        self._admitted_at = admitted_at
        self._first_kernel_at: float | None = None
        self._first_token_at: float | None = None

    def add(self, arrival: Arrival) -> worker_pb2.GenerateResponse:
        """The message for this step, without `finish`. Raises `InternalError` if the engine
        failed."""
        event = arrival.event
        if event.finish is FinishReason.FAILED:
            raise InternalError(f"the engine failed: {event.error}")
        self._first_kernel_at = self._first_kernel_at or event.first_kernel_at
        if event.tokens or event.finish:  # an end token counts, though it is not shown
            self._first_token_at = self._first_token_at or arrival.at
        self.tokens += len(event.tokens)
        text = self._detokenizer.push(event.tokens)
        if event.finish:
            text += self._detokenizer.finish()
        return worker_pb2.GenerateResponse(token_ids=event.tokens, text=text)

    def finish(self, last: Arrival, engine: Engine, worker_id: str) -> worker_pb2.Finish:
        """For the last message."""
        assert last.event.finish is not None
        facts, load = engine.facts, engine.load()
        usage = worker_pb2.Usage(
            request_id=self.order.request_id,
            worker_id=worker_id,
            prompt_tokens=self.order.prompt_tokens,
            completion_tokens=self.tokens,
            kernel_dispatch_time_ms=self._after_ms(self._first_kernel_at),
            ttft_ms=self._after_ms(self._first_token_at),
            total_ms=self._after_ms(last.at),
            memory_fragmentation_score=report.fragmentation_score(load),
            largest_free_bytes=load.largest_free_run_pages * facts.page_bytes,
            total_free_bytes=load.free_pages * facts.page_bytes,
            kernel=wire.KERNELS[facts.kernel],
            precision=wire.PRECISIONS[facts.precision],
        )
        return worker_pb2.Finish(reason=_FINISH[last.event.finish], usage=usage)

    def _after_ms(self, moment: float | None) -> float:
        assert moment is not None, "the engine ended an answer that it never began"
        return (moment - self._admitted_at) * 1000
