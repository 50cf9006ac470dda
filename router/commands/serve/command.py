"""`draftpick serve`; the web framework and the model are loaded late."""

from __future__ import annotations

import sys
from functools import partial

from .options import ServeOptions
from .plan import plan
from .served import Served

LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(options: ServeOptions) -> None:
    """Serve OpenAI's API, an arm for every request, and a chat page at the root. A request's model
    is auto, where the policy picks the arm, or an arm. At SIGHUP the arms file and the policies are
    read anew.

    \b
    Examples:
      draftpick serve
      draftpick serve --policy mine=policy --port 8080 --log log
      curl localhost:8000/v1/chat/completions \\
        -H "Content-Type: application/json" \\
        -d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
    """
    run(plan(options))


def run(served: Served) -> None:
    """Take the address, load the models, and serve until a signal ends it.

    Raises DraftpickError where the address or a model is not to be had.
    """
    from ...serve import server
    from ...serve.scheduler import DEFAULT

    asked = served.asked
    listening = server.bound(asked.host, asked.port)
    if asked.host not in LOCAL and served.settings.api_key is None:
        print(
            f"anyone who reaches {asked.host} can send requests; --api-key requires a key",
            file=sys.stderr,
        )
    app, scheduler = served.make()
    try:
        reload = partial(served.reload, scheduler)
        server.serve(app, scheduler, listening, asked.drain, reload)
    finally:
        scheduler.routers[DEFAULT].save_learned()
        app.state.service.close()
