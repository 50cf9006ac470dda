"""`draftpick align`: train a drafter or an exit adapter on what the target writes."""

from __future__ import annotations

import typer

from decoders.common.terminal import progress, show, tables

from ..with_records import with_records
from .plan import AlignPlan
from .plan import plan as planned


@with_records(plan=planned)
def align(plan: AlignPlan) -> None:
    """Train a drafter to predict what the target writes. The folder OUT/model can then be an arm's
    drafter; its card gives the acceptance on held-out answers. The same command resumes a run that
    was stopped.

    \b
    Examples:
      draftpick align --out drafts/general --minutes 30
      draftpick align --out drafts/math --start drafts/general/model --tasks math
      draftpick align --out drafts/exit4 --kind exit --exit-layer 4 --minutes 20
      draftpick align --out drafts/cell --kind recurrent --minutes 20
    """
    from .run import run

    acceptance = run(plan, progress("aligning", "%"))
    title = "Held-out acceptance (share of the target's tokens predicted)"
    rows = [[name, f"{share:.3f}"] for name, share in acceptance.items()]
    show(lambda width: tables(title, ["task", "acceptance"], rows, width))
    typer.echo(f"model: {plan.config.out / 'model'}")
