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
    listening = bound(plan.asked.host, plan.asked.port)
    if plan.asked.host not in LOCAL and plan.served.settings.api_key is None:
        print(
            f"anyone who reaches {plan.asked.host} can send requests; --api-key requires a key",
            file=sys.stderr,
        )
    if not plan.asked.on_ray:
        app, scheduler = plan.served.make()
        try:
            serve(app, scheduler, listening, plan.asked.drain)
        finally:
            scheduler.routers[DEFAULT].save_learned()
            save_earlier(scheduler.routers[DEFAULT].engine)
        return
    from ...serve import on_ray
    from .ray import application_of

    host, port = listening.getsockname()[:2]
    listening.close()  # Serve's ingress listens there, in a process of its own
    asked = plan.asked
    on_ray.run(lambda: application_of(plan), asked.ray_address, host, port, asked.drain)
