"""The dispatcher's three calls: decode, act, encode."""

import time
from typing import Any

import grpc

from crowfly.errors import errors_as_status
from crowfly.v1 import dispatcher_pb2
from crowfly.v1.dispatcher_pb2_grpc import DispatcherServiceServicer
from crowfly_dispatcher import views
from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.decode import request_of
from crowfly_dispatcher.placing import Placing

Context = grpc.aio.ServicerContext[Any, Any]  # of any of the calls


class DispatcherService(DispatcherServiceServicer):
    def __init__(self, cluster: Cluster, placing: Placing) -> None:
        self._cluster = cluster
        self._placing = placing

    async def Place(
        self, request: dispatcher_pb2.PlaceRequest, context: Context
    ) -> dispatcher_pb2.PlaceResponse:
        async with errors_as_status(context):
            return await self._placing.place(request_of(request), request.kernel_hint)

    async def ListModels(
        self, request: dispatcher_pb2.ListModelsRequest, context: Context
    ) -> dispatcher_pb2.ListModelsResponse:
        return views.models(self._cluster)

    async def GetCluster(
        self, request: dispatcher_pb2.GetClusterRequest, context: Context
    ) -> dispatcher_pb2.GetClusterResponse:
        return views.everything(self._cluster, time.monotonic())
