"""`draftpick train`; heavy imports wait until the command runs."""

from __future__ import annotations

import json

import typer

from ..options import AsJson
from .plan import TrainOptions, plan


def train(options: TrainOptions, as_json: AsJson = False) -> None:
    """Train a policy that picks an arm for each query. It is saved only if its gain over the best
    fixed arm, measured on queries that it was not trained on, is above zero with 95% confidence;
    otherwise the best fixed arm is saved.

    \b
    Examples:
      draftpick train --rewards rewards --out policy
      draftpick train --rewards rewards --policy knn --register drafter
      draftpick train --rewards rewards --features temperature,greedy
      draftpick train --rewards rewards --paper --judge-by modelled
      draftpick train --rewards rewards --max-loss 0.05 --out policy
    """
    from .output import print_outcome, to_json
    from .run import run

    outcome = run(plan(options))
    if as_json:
        typer.echo(json.dumps(to_json(outcome)))
    else:
        print_outcome(outcome)
