"""Carry out a plan of `draftpick serve`."""

from __future__ import annotations

import sys

from ...serve.scheduler import DEFAULT
from ...serve.server import bound, serve
from .plan import ServePlan
from .served import save_earlier

LOCAL = ("127.0.0.1", "localhost", "::1")


def run(plan: ServePlan) -> None:
    """Take the address, load the models, and serve until a signal ends it.

    Raises DraftpickError where the address or a model is not to be had.
    """
    listening = bound(plan.host, plan.port)
    if plan.host not in LOCAL and plan.served.settings.api_key is None:
        print(
            f"anyone who reaches {plan.host} can send requests; --api-key requires a key",
            file=sys.stderr,
        )
    if not plan.on_ray:
        app, scheduler = plan.served.make()
        try:
            serve(app, scheduler, listening, plan.drain_s)
        finally:
            scheduler.routers[DEFAULT].save_learned()
            save_earlier(scheduler.routers[DEFAULT].engine)
        return
    from ...serve.replicas.on_ray import OnRay
    from ...serve.replicas.proxy import Proxy
    from ...serve.replicas.replicas import Replicas

    cluster = OnRay(plan.served.placed().make, plan.ray_address, plan.replicas)
    try:
        several = Replicas(cluster, cluster.n)
        serve(Proxy(several, plan.served.settings), several, listening, plan.drain_s)
    finally:
        cluster.close()
