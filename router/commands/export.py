"""`draftpick export`: each arm as the options of another engine, where it has a counterpart.

Option names, looked up in November 2026:
vLLM: `SpeculativeConfig` in vllm/config/speculative.py and docs/features/speculative_decoding/.
SGLang: `speculative_*` in python/sglang/srt/server_args.py and docs/advanced_features/
    speculative_decoding.
llama.cpp: common/arg.cpp and docs/speculative.md since pull request 22397, which renamed
    `--draft-max` and its like; `--spec-type draft-simple` in common/speculative.cpp.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError, NoSuchName
from router.commands.draft_schedule import LOAD, DraftSchedule, draft_schedule
from router.commands.listing import Listing
from router.commands.options import AsJson, Config

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe, DraftingRecipe

MODEL = "MODEL"
LENGTH = "num_speculative_tokens"
SAFE_MATCH = 8  # tokens of a match in vLLM


@dataclass(frozen=True)
class Exported:
    """An arm in another engine's words.

    options: to be added to the server's command line.
    differs: in what the engine does otherwise than the arm, a sentence each.
    """

    options: tuple[str, ...]
    differs: tuple[str, ...] = ()


class NoCounterpart(Exception):
    """Why an arm has no counterpart in another engine."""


def vllm(arm: ArmRecipe) -> Exported:
    """Options of `vllm serve`. Raises NoCounterpart."""
    from decoders.arms.eagle3 import Eagle3Recipe
    from decoders.arms.max_gram import MaxGramRecipe
    from decoders.arms.neural import NeuralRecipe
    from decoders.arms.suffix import SuffixRecipe

    if arm.kind == "autoregressive":
        return Exported(())
    settings: dict[str, Any]
    if type(arm) is MaxGramRecipe:
        shortest = max(arm.shortest, SAFE_MATCH)
        settings = {
            "method": "ngram",
            LENGTH: arm.length.longest,
            "prompt_lookup_max": max(arm.longest, shortest),
            "prompt_lookup_min": shortest,
        }
        differs = _copying(arm)
        if arm.shortest < SAFE_MATCH:
            differs += (
                f"matches have {SAFE_MATCH} tokens or more, the arm's {arm.shortest}: with matches "
                "of 2 vLLM has corrupted tool calls of some models, and with 8 it has not "
                "(vllm-project/vllm#40875)",
            )
    elif type(arm) is SuffixRecipe:
        settings = {"method": "suffix", LENGTH: arm.length.longest}
        differs = _suffixes(arm)
    elif type(arm) is Eagle3Recipe:
        settings = {"method": "eagle3", "model": arm.drafter, LENGTH: arm.length.longest}
        differs = _chain(arm)
    elif type(arm) is NeuralRecipe:
        settings = {
            "method": "draft_model",
            "model": _whole_vocabulary(arm),
            LENGTH: arm.length.longest,
        }
        differs = ()
    else:
        raise NoCounterpart(_why_not(arm, "vLLM"))
    return Exported(
        ("--speculative-config", json.dumps(settings)), (*differs, *_length(arm), *_verifier(arm))
    )


def sglang(arm: ArmRecipe) -> Exported:
    """Options of `sglang.launch_server`. Raises NoCounterpart."""
    from decoders.arms.eagle3 import Eagle3Recipe
    from decoders.arms.max_gram import MaxGramRecipe
    from decoders.arms.neural import NeuralRecipe

    if arm.kind == "autoregressive":
        return Exported(())
    if type(arm) is MaxGramRecipe:
        # The newest token is verified too, and counted among the draft's.
        options = ["--speculative-algorithm", "NGRAM"]
        options += ["--speculative-num-draft-tokens", str(arm.length.longest + 1)]
        options += ["--speculative-ngram-max-bfs-breadth", "1"]  # a chain, not a tree
        differs = (
            *_copying(arm),
            f"matches of {arm.shortest} to {arm.longest} tokens are looked for by the arm; SGLang "
            "keeps a tree of what all requests wrote",
        )
    elif type(arm) is NeuralRecipe or type(arm) is Eagle3Recipe:
        head = type(arm) is Eagle3Recipe
        options = ["--speculative-algorithm", "EAGLE3" if head else "STANDALONE"]
        options += ["--speculative-draft-model-path"]
        options += [arm.drafter if head else _whole_vocabulary(arm)]
        options += ["--speculative-num-steps", str(arm.length.longest)]
        options += ["--speculative-eagle-topk", "1"]
        options += ["--speculative-num-draft-tokens", str(arm.length.longest + 1)]
        differs = _chain(arm) if head else ()
    else:
        raise NoCounterpart(_why_not(arm, "SGLang"))
    return Exported(tuple(options), (*differs, *_length(arm), *_verifier(arm)))


def llama_cpp(arm: ArmRecipe) -> Exported:
    """Options of `llama-server`. Raises NoCounterpart."""
    from decoders.arms.max_gram import MaxGramRecipe
    from decoders.arms.neural import NeuralRecipe

    if arm.kind == "autoregressive":
        return Exported(())
    if type(arm) is MaxGramRecipe:
        options = ["--spec-type", "ngram-simple"]
        options += ["--spec-ngram-simple-size-n", str(arm.shortest)]
        options += ["--spec-ngram-simple-size-m", str(arm.length.longest)]
        differs = _copying(arm)
        if arm.longest > arm.shortest:
            differs += (
                f"llama.cpp looks for matches of {arm.shortest} tokens alone, the arm for the "
                f"longest one up to {arm.longest}",
            )
    elif type(arm) is NeuralRecipe:
        file = _whole_vocabulary(arm)
        if not file.endswith(".gguf"):
            raise NoCounterpart(
                f"llama.cpp reads GGUF files; convert {file} with its convert_hf_to_gguf.py and "
                "name the file as `drafter`"
            )
        options = ["--spec-type", "draft-simple", "--spec-draft-model", file]
        options += ["--spec-draft-n-max", str(arm.length.longest)]
        if arm.length.min_confidence:
            options += ["--spec-draft-p-min", f"{arm.length.min_confidence:g}"]
            return Exported(tuple(options), (*_length(arm, stops=True), *_verifier(arm)))
        differs = ()
    else:
        raise NoCounterpart(_why_not(arm, "llama.cpp"))
    return Exported(tuple(options), (*differs, *_length(arm), *_verifier(arm)))


ENGINES: dict[str, Callable[[ArmRecipe], Exported]] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llama_cpp,
}
_COMMANDS = {
    "vllm": ("vllm", "serve", MODEL),
    "sglang": ("python3", "-m", "sglang.launch_server", "--model-path", MODEL),
    "llama.cpp": ("llama-server", "--model", MODEL),
}


def exported(
    engine: str, arms: Mapping[str, ArmRecipe]
) -> tuple[dict[str, Exported], dict[str, str]]:
    """The arms that the engine has a counterpart for, and why each of the others has none.

    Raises NoSuchName for an engine that is not in ENGINES.
    """
    if engine not in ENGINES:
        raise NoSuchName("engine", engine, list(ENGINES))
    found, without = dict[str, Exported](), dict[str, str]()
    for name, arm in arms.items():
        try:
            found[name] = ENGINES[engine](arm)
        except NoCounterpart as reason:
            without[name] = str(reason)
    return found, without


def command(engine: str, options: tuple[str, ...], model: str = MODEL) -> str:
    """A server's command line, for a shell."""
    words = [model if word == MODEL else word for word in _COMMANDS[engine]]
    return shlex.join([*words, *options])


def mount(app: typer.Typer) -> None:
    """Add the command to an application; it raises DraftpickError for the user's mistakes."""
    app.command("export", help=HELP, cls=Listing)(export)


def scheduled(collection: Path, reward: str | None = None) -> list[tuple[list[str], Scheduled]]:
    """For vLLM, of a collection's arms that differ in nothing but their draft length, plain
    decoding among them: their names, and the length by the number of requests that run.

    Raises DraftpickError where the collection is of one load, or has no such arms.
    """
    from collect.store.collection import Collection
    from collect.table import reward_table
    from collect.table_options import TableOptions
    from decoders.arms.kinds import recipe_of

    held = Collection.open(collection)
    plain = list[str]()
    families = dict[str, dict[str, dict[str, Any]]]()
    for info in held.manifest.arms:
        try:
            options = vllm(recipe_of({**info.recipe, "name": info.name})).options
        except NoCounterpart:
            continue
        if not options:
            plain.append(info.name)
            continue
        settings = json.loads(options[1])
        rest = {key: value for key, value in settings.items() if key != LENGTH}
        families.setdefault(json.dumps(rest), {})[info.name] = settings
    made = list[tuple[list[str], Scheduled]]()
    for family in families.values():
        names = [*plain, *family]
        if len(names) > 1:
            asked = TableOptions(reward=reward, arms=names, features=(LOAD,))
            table = reward_table(held, asked)
            lengths = {name: family[name][LENGTH] if name in family else 0 for name in names}
            found = draft_schedule(table, lengths)
            made.append((names, Scheduled(found, next(iter(family.values())), table.reward_name)))
    if not made:
        raise DraftpickError(
            f"{collection} has no two arms that vLLM has and that differ in their draft length "
            "alone; collect such arms at several loads"
        )
    return made


@dataclass(frozen=True)
class Scheduled:
    """settings: of one of the arms, in vLLM's words. reward: what the schedule is the best by."""

    found: DraftSchedule
    settings: dict[str, Any]
    reward: str

    @property
    def options(self) -> tuple[str, ...]:
        """Of `vllm serve`: none where nothing is drafted at any load."""
        longest = self.found.longest
        if not longest:
            return ()
        settings = {**self.settings, LENGTH: longest}
        if len(self.found.ranges) > 1:
            settings[f"{LENGTH}_per_batch_size"] = [list(each) for each in self.found.ranges]
        return "--speculative-config", json.dumps(settings)


HELP = """Write the arms as options of vLLM, SGLang or llama.cpp. Each arm with a counterpart
becomes a command that starts a server; the others are listed with the reason.

\b
Examples:
  draftpick export vllm
  draftpick export sglang --config arms.yaml --model Qwen/Qwen3-8B
  draftpick export llama.cpp --config arms.yaml --model qwen3-8b.gguf --json
  draftpick export vllm --rewards rewards
"""


def export(
    engine: Annotated[str, typer.Argument(help="vllm, sglang or llama.cpp.")],
    config: Config = None,
    model: Annotated[
        str, typer.Option(help="The target in the engine's words: a hub id, folder or file.")
    ] = MODEL,
    rewards: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For vLLM, in place of the arms: draft lengths by load, learnt from what "
            "`draftpick collect --at-once` wrote.",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(help="Reward of that collection to maximise: {collect.REWARDS}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    from collect import rewards as known
    from decoders.arms import arms_made_for, load_arms

    if reward is not None:
        known.get(reward)
        if rewards is None:
            raise DraftpickError("--reward is a collection's; name one with --rewards")
    if rewards is not None:
        if engine != "vllm" or config is not None:
            raise DraftpickError("--rewards is for vllm alone, and its arms are the collection's")
        _print_schedules(scheduled(rewards, reward), model, as_json)
        return
    arms_file = arms_made_for(model) if config is None else config
    found, without = exported(engine, load_arms(arms_file))
    if as_json:
        arms = {
            name: {"command": command(engine, one.options, model), **asdict(one)}
            for name, one in found.items()
        }
        print(json.dumps({"arms": arms, "without": without}, indent=2, ensure_ascii=False))
        return
    for name, one in found.items():
        print(f"# {name}")
        for sentence in one.differs:
            print(f"#   differs: {sentence}")
        print(command(engine, one.options, model))
    for name, reason in without.items():
        print(f"# {name}: no counterpart: {reason}")


def _print_schedules(found: list[tuple[list[str], Scheduled]], model: str, as_json: bool) -> None:
    if as_json:
        told = [
            {
                "arms": names,
                "command": command("vllm", one.options, model),
                "options": list(one.options),
                "ranges": one.found.ranges,
                "reward": one.reward,
                "verdict": one.found.verdict,
            }
            for names, one in found
        ]
        print(json.dumps({"schedules": told}, indent=2, ensure_ascii=False))
        return
    for names, one in found:
        print(f"# {', '.join(names)}, by requests running, for the reward {one.reward}")
        print(f"#   {one.found.verdict}")
        print("#   By the collection's passes, not vLLM's: time it there.")
        print(command("vllm", one.options, model))


# -- what gets lost -------------------------------------------------------------------------------


def _copying(arm: Any) -> tuple[str, ...]:
    lost = []
    if arm.drafter is not None:
        lost.append(f"the table {arm.drafter!r}, for where nothing matches, is left out")
    if arm.by_cost or arm.stop_below:
        lost.append("drafts do not end where their chance of being accepted no longer pays")
    if arm.earliest:
        lost.append("which of several matches is taken is the engine's choice")
    return tuple(lost)


def _suffixes(arm: Any) -> tuple[str, ...]:
    lost = ["vLLM drafts from all users' answers; it needs the package arctic-inference"]
    if arm.width > 1:
        lost.append("trees become chains")
    if arm.by_cost:
        lost.append("drafts do not end where their chance of being accepted no longer pays")
    return tuple(lost)


def _chain(arm: Any) -> tuple[str, ...]:
    return ("the tree becomes a chain",) if arm.branch else ()


def _length(arm: DraftingRecipe, stops: bool = False) -> tuple[str, ...]:
    """stops: the engine ends a draft before a token of little confidence."""
    lost = []
    if arm.length.kind != "fixed":
        lost.append(
            f"drafts have up to {arm.length.longest} tokens; the {arm.length.kind} draft length is "
            "left out"
        )
    if arm.length.min_confidence and not stops:
        lost.append("drafts do not end before a token below `min_confidence`")
    return tuple(lost)


def _verifier(arm: DraftingRecipe) -> tuple[str, ...]:
    """Raises NoCounterpart for a lossy one."""
    if not arm.lossless:
        raise NoCounterpart(f"the lossy verifier {arm.verifier.rule!r} is draftpick's own")
    return ()


def _whole_vocabulary(arm: Any) -> str:
    """The draft model as others can load it: a shipped name becomes its folder."""
    from decoders.sampling.draft_vocab import FILE
    from decoders.zoo.catalogue import shipped_folders

    folder = shipped_folders().get(arm.drafter, Path(arm.drafter).expanduser())
    if (folder / FILE).is_file():
        raise NoCounterpart(
            f"the draft model {arm.drafter!r} knows a part of the target's vocabulary "
            f"({FILE}), which only draftpick reads; train one with the target's own tokenizer"
        )
    return str(folder) if folder.is_dir() else arm.drafter


def _why_not(arm: ArmRecipe, engine: str) -> str:
    if arm.remote:
        return f"it is a server already, at {getattr(arm, 'url', 'its address')}"
    return f"{engine} has no `{arm.kind}`"
