"""Making a drafter ready for the answer's first token, where no loop does it."""

from __future__ import annotations

from ..protocols import Backend, Drafter, decoder_prefix

__all__ = ["begin"]


def begin(drafter: Drafter, target: Backend, prompt_ids: list[int]) -> None:
    """Make ready to propose the answer's first token.

    In the loop the prompt's own pass gives that token. Here the prompt's last token is left unread,
    like the newest token before any round.
    """
    drafter.reset(prompt_ids)
    start = decoder_prefix(target, prompt_ids)
    target.truncate(len(start) - 1)
    drafter.commit(start)
