"""From a request to a ticket: decide, claim on that worker, on refusal decide again."""

import secrets
import time
from dataclasses import replace

from crowfly.v1 import common_pb2, dispatcher_pb2, worker_pb2
from crowfly_dispatcher.answers import failed, no_place
from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.control_stream import ClaimFailed
from crowfly_dispatcher.core.model import Candidate, Rejection, Request
from crowfly_dispatcher.core.place import place
from crowfly_dispatcher.links import Links

# Each on another worker. A refusal means that somebody else was faster; three in a row, that the
# cluster is as good as full, and a caller is told so within three answers.
TRIES = 3


class Placing:
    def __init__(self, cluster: Cluster, links: Links) -> None:
        self._cluster = cluster
        self._links = links

    async def place(
        self, request: Request, kernel_hint: common_pb2.KernelRung.ValueType
    ) -> dispatcher_pb2.PlaceResponse:
        """Raises `CrowflyError`; nothing is claimed then."""
        failures: list[ClaimFailed] = []
        while len(failures) < TRIES:
            decision = place(self._cluster.book, request, time.monotonic())
            if isinstance(decision, Rejection):
                raise no_place(decision, request, failures, self._cluster.map_stale)
            try:
                return await self._claim(request, decision, kernel_hint)
            except ClaimFailed as failure:
                failures.append(failure)
                request = replace(request, tried=request.tried | {decision.facts.id})
        raise failed(failures[-1])

    async def _claim(
        self, request: Request, chosen: Candidate, kernel_hint: common_pb2.KernelRung.ValueType
    ) -> dispatcher_pb2.PlaceResponse:
        """Raises `ClaimFailed`."""
        ticket = secrets.token_hex(16)
        claim = worker_pb2.OpenStream(
            reservation_id=ticket,
            request_id=request.id,
            prompt_tokens=request.prompt_tokens,
            max_tokens=chosen.max_tokens,
            kernel_hint=kernel_hint,
        )
        opened = await self._links.to(chosen.facts.id).open(claim, chosen.pages)
        return dispatcher_pb2.PlaceResponse(
            request_id=request.id,
            ticket=ticket,
            worker_address=chosen.facts.address,
            worker_id=chosen.facts.id,
            model=chosen.facts.model,
            max_tokens=chosen.max_tokens,
            expires_in_ms=opened.expires_in_ms,
            predicted_ttft_ms=chosen.ttft_ms,
            predicted_total_ms=chosen.total_ms,
        )
