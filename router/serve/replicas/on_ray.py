"""Replicas on a Ray cluster: an actor for each device, which serves the whole application.

Plain actors, not Ray Serve, whose own proxy would come on top of ours, and whose dependencies
(`ray[serve]`) are many.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from collect.sweeps.ray_cluster import connect, ray_module, shares
from decoders.common.errors import DraftpickError
from decoders.common.openmp import spin_briefly
from decoders.common.wording import first_line

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..server import Drains

Make = Callable[[], "tuple[ASGIApp, Drains]"]


class _Replica:
    """One device: the application over a scheduler of its own, served from a thread."""

    def __init__(self, make: Make, head: str) -> None:
        self._make, self._head = make, head

    def start(self) -> str:
        """Load, listen, and say where: on this machine alone where the head is here too."""
        import ray
        import uvicorn

        from ..server import BACKLOG, bound

        spin_briefly()
        app, self._scheduler = self._make()
        here = ray.get_runtime_context().get_node_id() == self._head
        util: Any = ray.util
        held = bound("127.0.0.1" if here else util.get_node_ip_address(), 0)
        config = uvicorn.Config(
            app,
            log_level="warning",
            backlog=BACKLOG,
            lifespan="off",
            forwarded_allow_ips="*",  # only the head knows this address
        )
        server = uvicorn.Server(config)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [held]}, daemon=True)
        serving.start()
        while not server.started and serving.is_alive():
            time.sleep(0.01)
        host, port = held.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class OnRay:
    """A Starter of replicas, which connects to a cluster.

    make: the application and what it answers through; called in every replica.
    address: as in `collect.sweeps.on_ray.OnRay`.
    replicas: None for one a GPU of the cluster, or one a machine where there are none; `n` is how
        many there are.

    Raises DraftpickError where Ray is not installed or not reached, or has fewer GPUs than replicas
    are asked for.
    """

    def __init__(self, make: Make, address: str | None = None, replicas: int | None = None) -> None:
        self._ray = ray = ray_module("serving")
        self._make = make
        self._ours = connect(ray, address)
        self.n, cores, gpus = shares(ray, replicas)
        there = ray.cluster_resources()
        if gpus and self.n > there["GPU"]:
            self.close()
            raise DraftpickError(
                f"{self.n} replicas want a GPU each, and the cluster has {there['GPU']:.0f}; lower "
                "--replicas"
            )
        cores = min(cores, there["CPU"] / self.n)  # or one of many would wait for its cores forever
        self._head = ray.get_runtime_context().get_node_id()
        self._actor = ray.remote(_Replica).options(num_cpus=cores, num_gpus=gpus)

    def start(self) -> tuple[str, Any]:
        errors = self._ray.exceptions
        actor = self._actor.remote(self._make, self._head)
        try:
            return self._ray.get(actor.start.remote()), actor
        except errors.RayTaskError as error:
            self.stop(actor)
            raise error.cause from error
        except errors.RayActorError as error:
            raise DraftpickError(f"a replica could not start: {first_line(error)}") from error

    def stop(self, handle: Any) -> None:
        with suppress(Exception):
            self._ray.kill(handle)

    def close(self) -> None:
        """Leave the cluster, which ends where it was started here."""
        if self._ours:
            self._ray.shutdown()
