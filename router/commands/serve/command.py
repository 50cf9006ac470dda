"""`draftpick serve`; the web framework and the model are loaded late."""

from __future__ import annotations

from .plan import ServeOptions, plan


def serve(options: ServeOptions) -> None:
    """Serve OpenAI's API, an arm for every request. A request's model is auto, where the policy
    picks the arm, or the name of an arm. The chat page is at the server's root.

    \b
    Examples:
      draftpick serve
      draftpick serve --policy mine=policy --port 8080 --log log
      draftpick serve --engine ray --ray-address auto
      curl localhost:8000/v1/chat/completions \\
        -H "Content-Type: application/json" \\
        -d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
    """
    from .run import run

    run(plan(options))
