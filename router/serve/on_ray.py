"""The server as a Ray Serve application. Each replica is the whole application over a scheduler of
its own; Serve's ingress hands requests on, and Serve checks, drains, replaces and scales replicas.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from collect.sweeps.ray_cluster import connect, ray_module, shares
from decoders.common.errors import DraftpickError
from decoders.common.openmp import spin_briefly

from .metrics import Reading
from .server import IDLE_S, STOPPING, notify, ready

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client.metrics_core import Metric

    from .scheduler import Scheduler

NAME = "draftpick"  # of the Serve application and of its one deployment
REPORT_S = 3.0  # in which all replicas report their figures
SIGNALS = (signal.SIGTERM, signal.SIGINT)

Make = Callable[[], "tuple[FastAPI, Scheduler]"]


@dataclass(frozen=True)
class Report:
    """A replica's figures: its /stats, and the families of its /metrics."""

    replica: str
    stats: dict[str, Any]
    metrics: Sequence[Metric]


class Replica:
    """The deployment's class. make: loads the application and what it answers through."""

    def __init__(self, make: Make) -> None:
        spin_briefly()
        self._app, self._scheduler = make()
        self._app.router.routes[:0] = [  # before those of one replica, behind the key
            Route("/stats", self._stats),
            Route("/metrics", self._metrics),
        ]

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    def check_health(self) -> None:
        """Raise where this replica answers no more, so that Serve replaces it."""
        if not self._scheduler.alive:
            raise RuntimeError("the scheduler's thread has ended")

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more requests and end those accepted; False where some had to be cut off."""
        done = await asyncio.to_thread(self._scheduler.drain, timeout_s)
        if not done:
            await asyncio.to_thread(self._scheduler.close)
        return done

    def __del__(self) -> None:
        with suppress(AttributeError):  # nothing was loaded
            self._scheduler.close()
            self._app.state.service.close()

    async def report(self) -> Report:
        service = self._app.state.service
        replica = serve.get_replica_context().replica_id.unique_id
        return Report(replica, service.stats(), list(service.metrics.registry.collect()))

    @cached_property
    def _everyone(self) -> Any:
        return serve.get_deployment_handle(NAME)

    async def _reports(self) -> list[Report]:
        """Every replica's, or this one's alone where one of them is silent."""
        try:
            asked = self._everyone.broadcast("report")
            found = await asked.results_async(timeout_s=REPORT_S, return_exceptions=True)
        except Exception:
            found = []
        return [each for each in found if isinstance(each, Report)] or [await self.report()]

    async def _stats(self, request: Request) -> Response:
        return JSONResponse({each.replica: each.stats for each in await self._reports()})

    async def _metrics(self, request: Request) -> Response:
        families = labelled({each.replica: each.metrics for each in await self._reports()})
        everyone: Any = Reading(lambda: families)
        return Response(generate_latest(everyone), media_type=CONTENT_TYPE_LATEST)


def labelled(metrics: Mapping[str, Sequence[Metric]]) -> list[Metric]:
    """The families of several replicas, whose samples get the label `replica`: so a counter never
    falls, because a replica that ends takes its series with it."""
    families: dict[str, Metric] = {}
    for replica, those in metrics.items():
        for family in those:
            own = [
                each._replace(labels={**each.labels, "replica": replica}) for each in family.samples
            ]
            first = families.setdefault(family.name, family)
            first.samples = own if first is family else [*first.samples, *own]
    return list(families.values())


def application(make: Make, replicas: int | None, ongoing: int, drain_s: float) -> Any:
    """The Serve application, on a cluster that is connected.

    make: called in every replica.
    replicas: None for one a GPU of the cluster, or one a machine where there are none.
    ongoing: most requests at a replica; others wait at the ingress.
    drain_s: how long answers may take once their replica is stopped.

    Raises DraftpickError where there are fewer GPUs than replicas.
    """
    ray = ray_module("serving")
    n, cores, gpus = shares(ray, replicas)
    there = ray.cluster_resources()
    if gpus and n > there["GPU"]:
        raise DraftpickError(
            f"{n} replicas want a GPU each, and the cluster has {there['GPU']:.0f}; lower "
            "--replicas"
        )
    cores = min(cores, there["CPU"] / n)  # or one of many would wait for its cores forever
    deployment = serve.deployment(
        name=NAME,
        num_replicas=n,
        max_ongoing_requests=ongoing,
        graceful_shutdown_timeout_s=drain_s,
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": cores, "num_gpus": gpus},
    )
    return deployment(serve.ingress()(Replica)).bind(make)


def run(
    application: Callable[[], Any], address: str | None, host: str, port: int, drain_s: float
) -> None:
    """Serve the application behind one port until a signal. At the first SIGTERM or SIGINT running
    answers finish, for drain_s seconds at most, while new requests get 503; at the second it ends
    at once.

    application: makes it, once the cluster is connected.
    address: as in `collect.sweeps.on_ray.OnRay`.

    Raises DraftpickError where Ray cannot be reached, runs Serve already, or loads no replica.
    """
    ray = ray_module("serving")
    ours = connect(ray, address)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        if serve.status().proxies:
            raise DraftpickError(
                "Ray Serve runs on this cluster already: deploy this application by a "
                "configuration file (docs/serving.md), or end what runs there: serve shutdown"
            )
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": host, "port": port, "keep_alive_timeout_s": IDLE_S},
        )
        try:
            handle = started(application())
            signalled = threading.Event()

            def first(number: int, frame: FrameType | None) -> None:
                signalled.set()
                for each in SIGNALS:
                    signal.signal(each, signal.default_int_handler)

            for each in SIGNALS:
                signal.signal(each, first)
            ready(host, port)
            signalled.wait()
            print("shutting down after the running answers", file=sys.stderr, flush=True)
            notify(STOPPING)
            with suppress(KeyboardInterrupt):  # the second signal
                if not all(handle.broadcast("drain", drain_s).results()):
                    print("some answers did not finish in time", file=sys.stderr, flush=True)
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]
    finally:
        if ours:
            ray.shutdown()


def started(application: Any) -> Any:
    """Its handle, once every replica answers; raises DraftpickError with a replica's own words."""
    try:
        return serve.run(application, name=NAME, route_prefix="/")
    except RuntimeError as error:
        (deployment,) = serve.status().applications[NAME].deployments.values()
        last = deployment.message.strip().splitlines()[-1]
        raise DraftpickError(last.partition("DraftpickError: ")[2] or last) from error
