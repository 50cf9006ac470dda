"""`draftpick promote`: a registered policy takes an alias if it is not worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, TrackingUri

if TYPE_CHECKING:
    from policies import RewardTable
    from policies.selection.promotion import PairedComparison
    from policies.tracking.registry import Registered


def promote(
    model: Annotated[str, typer.Argument(help="The registered name.")],
    rewards: Annotated[
        Path,
        typer.Option(metavar="DIR", help="A collection of queries that neither was trained on."),
    ],
    version: Annotated[
        int | None, typer.Option(min=1, help="Version of the candidate. Default: the newest.")
    ] = None,
    alias: Annotated[str, typer.Option(help="Alias to move.")] = "champion",
    margin: Annotated[
        float, typer.Option(help="How much worse the candidate can be, in units of the reward.")
    ] = 0.0,
    reward: Annotated[
        str | None,
        typer.Option(help="Reward to compare by. Default: the reward that both were trained on."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Weight of that reward. Default: 0.5 with --reward, else the weight that both "
            "were trained with."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Compare even on queries that one was trained on, and where the candidate may "
            "lose more.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would happen, and move nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the bootstrap.")] = 0,
    tracking_uri: TrackingUri = None,
    as_json: AsJson = False,
) -> None:
    """Make a registered policy the champion if it is not worse on queries that neither was trained
    on. MODEL's newest version is the candidate. Each further comparison asks for stronger evidence.
    The exit code is 1 if it is worse.

    \b
    Examples:
      draftpick train --rewards rewards --register drafter
      draftpick train --rewards rewards --policy knn --register drafter
      draftpick collect --queries held-out.jsonl --out held
      draftpick promote drafter --rewards held
      draftpick promote drafter --rewards held --version 1
      draftpick generate "Hello" --policy models:/drafter@champion
    """
    from collect import rewards as known
    from collect.store.collection import Collection
    from policies.mlflow_store import refusals, using
    from policies.selection.promotion import check_margin, compare_on
    from policies.tracking.registry import (
        check_alias,
        check_name,
        fetched,
        holder,
        look_at,
        note_look,
        version_of,
    )

    from .evaluate import reward_asked, table_for

    # Mistakes that need no store are reported before it is opened.
    check_name(model)
    check_alias(alias)
    check_margin(margin)
    if reward is not None:
        known.get(reward)
    if alpha is not None:
        known.check_alpha(alpha)
    collection = Collection.open(rewards)
    with using(tracking_uri, create=False) as uri:
        from mlflow import MlflowClient

        client = MlflowClient()
        wanted = version_of(client, model, version)
        held = holder(client, model, alias)
        candidate = fetched(model, wanted, uri)
        incumbent = None if held is None else fetched(model, held, uri)
        compared, passed = None, True
        if incumbent is not None and incumbent.version == candidate.version:
            words = f"{candidate.words} of {model} is @{alias} already"
        else:
            both = [one for one in (candidate, incumbent) if one is not None]
            by = reward_asked(reward, alpha, *(one.policy for one in both))
            tables = [table_for(collection, one.policy, *by) for one in both]
            _require_new(rewards, both, tables, force)
            if incumbent is not None:
                lossless = [arm.name for arm in collection.manifest.arms if arm.lossless]
                _require_bound(candidate, incumbent, lossless, alias, force)
            digests = [table.digest for table in tables]
            asked = [alias, wanted, held, *digests, margin, seed]
            look, word = look_at(client, model, asked)
            compared = compare_on(
                candidate.policy,
                tables[0],
                None if incumbent is None else incumbent.policy,
                tables[-1],
                named=f"@{alias} ({incumbent.words})" if incumbent is not None else "",
                margin=margin,
                seed=seed,
                look=look,
            )
            passed = compared.passed
            words = compared.verdict(f"{candidate.words} of {model}")
            with refusals(uri, f"did not count this look at {model}"):
                note_look(client, model, word)
            if passed and not dry_run:
                note = f"{words} ({rewards}, {tables[0].reward_name}, {tables[0].digest[:16]})"
                with refusals(uri, f"did not move @{alias}"):
                    client.set_registered_model_alias(model, alias, wanted)
                    client.set_model_version_tag(model, wanted, "draftpick.promoted", note)
    if as_json:
        found: dict[str, Any] = {
            "model": model,
            "alias": alias,
            "candidate": candidate.version,
            "holder": None if incumbent is None else incumbent.version,
            "moved": compared is not None and passed and not dry_run,
            "passed": passed,
            "words": words,
            "gain": None if compared is None else compared.gain.as_json(),
            "margin": None if compared is None else compared.margin,
            "look": None if compared is None else compared.look,
            "left_out": "" if compared is None else compared.left_out,
        }
        typer.echo(json.dumps(found))
    else:
        after = ""
        if compared is not None:
            after = _after(compared, alias, incumbent, dry_run)
            if compared.left_out:
                typer.echo(f"Note: {compared.left_out}.", err=True)
        typer.echo(f"{words}{after}.", err=not passed)
    if not passed:
        raise typer.Exit(1)


def _require_new(
    rewards: Path, both: list[Registered], tables: list[RewardTable], force: bool
) -> None:
    """Raise PolicyError where a policy was trained on queries of the collection; with --force, say
    so instead."""
    from policies import PolicyError

    for one, table in zip(both, tables, strict=True):
        if one.queries is None and one.policy.origin.table_digest != table.digest:
            if one.policy.origin.table_digest:
                _warn(f"it is unknown which queries {one.words} was trained on")
            continue
        here, known = table.known_by, one.queries
        alike = [q for q, more in here.items() if known is None or {q, *more} & known]
        if not alike:
            continue
        same = [q for q in alike if known is None or q in known]
        words = f"{one.words} was trained on {len(same)} of the {len(here)} queries in {rewards}"
        if len(same) < len(alike):
            words += f", and on others of the groups or with the texts of {len(alike) - len(same)}"
        if not force:
            raise PolicyError(
                f"{words}, which is optimistic; collect others, or compare anyway with --force"
            )
        _warn(f"{words}, which is optimistic")


def _require_bound(
    candidate: Registered, holder: Registered, lossless: list[str], alias: str, force: bool
) -> None:
    """Raise PolicyError where the candidate's answers may lose more than the holder's; with
    --force, say so instead."""
    from policies import PolicyError
    from policies.selection.promotion import loss_bound

    own, held = (loss_bound(one.policy, lossless) for one in (candidate, holder))
    if not own.looser(held):
        return
    words = f"{candidate.words} {own}, while @{alias} ({holder.words}) {held}"
    if not force:
        raise PolicyError(
            f"{words}; train one with a bound as tight (`draftpick train --max-loss`) or of "
            "lossless arms alone (--arms), or compare anyway with --force"
        )
    _warn(words)


def _warn(words: str) -> None:
    typer.echo(f"warning: {words}", err=True)


def _after(compared: PairedComparison, alias: str, holder: Registered | None, dry_run: bool) -> str:
    """Who has the alias now."""
    if compared.passed:
        return f"; it {'would be' if dry_run else 'is now'} @{alias}"
    if holder is None:
        return f"; nobody is @{alias}"
    return f"; @{alias} stays {holder.words}"
