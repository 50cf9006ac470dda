"""`draftpick export`: arms in the words of other engines, by a table of how each spells the kinds
that it has.

vLLM: `SpeculativeConfig` in vllm/config/speculative.py, as of November 2026. SGLang:
`speculative_*` in python/sglang/srt/server_args.py, as of 0.5.23. llama.cpp:
common/arg.cpp and docs/speculative.md since pull request 22397.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import NoSuchName

from ..commands.options import AsJson, Config
from ..tabulated import print_json

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe

MODEL = "MODEL"
SAFE_MATCH = 8  # tokens of a match, in vLLM
Spelled = tuple[dict[str, Any], Sequence[str]]  # settings, and what differs


@dataclass(frozen=True)
class Exported:
    """An arm in another engine's words.

    options: to be added to the server's command line.
    differs: in what the engine does otherwise than the arm, a sentence each.
    """

    options: tuple[str, ...]
    differs: tuple[str, ...] = ()


PLAIN = Exported(())


class NoCounterpart(Exception):
    """Why an arm has no counterpart in another engine."""


@dataclass(frozen=True)
class Engine:
    """How an engine takes arms.

    command: the words that start its server.
    kinds: for each kind that it has, the settings of an arm and what is lost.
    written: options of settings.
    stops: whether a draft ends before a token of little confidence.
    """

    name: str
    command: tuple[str, ...]
    kinds: Mapping[str, Callable[[Any], Spelled]]
    written: Callable[[dict[str, Any]], tuple[str, ...]]
    stops: bool = False

    def exported(self, arm: Any) -> Exported:
        """Spell an arm. Raises NoCounterpart."""
        if arm.kind == "autoregressive":
            return PLAIN
        if arm.remote:
            raise NoCounterpart(f"it is a server already, at {arm.url}")
        if arm.kind not in self.kinds:
            raise NoCounterpart(f"{self.name} has no `{arm.kind}`")
        settings, differs = self.kinds[arm.kind](arm)
        if not arm.lossless:
            raise NoCounterpart(f"the lossy verifier {arm.verifier.rule!r} is draftpick's own")
        lost = [*differs, *_of_length(arm, self.stops and arm.kind == "neural")]
        return Exported(self.written(settings), tuple(lost))


def _of_length(arm: Any, stops: bool) -> list[str]:
    """Sentences on what is lost of a draft length. stops: as of `Engine`."""
    lost = []
    if arm.length.kind != "fixed":
        lost.append(
            f"drafts have up to {arm.length.longest} tokens; the {arm.length.kind} draft length is "
            "left out"
        )
    if arm.length.min_confidence and not stops:
        lost.append("drafts do not end before a token below `min_confidence`")
    window = getattr(getattr(arm, "model", arm), "prompt_window", None)
    if window is not None:
        lost.append(f"the draft model reads all of a prompt, not its last {window} tokens")
    if arm.context_to is not None:
        lost.append(f"contexts above {arm.context_to} tokens (`context_to`) have drafts too")
    return lost


def _copying(arm: Any) -> list[str]:
    lost = []
    if arm.drafter is not None:
        lost.append(f"the table {arm.drafter!r}, for where nothing matches, is left out")
    if arm.by_cost or arm.stop_below:
        lost.append("drafts do not end where their chance of being accepted no longer pays")
    if arm.earliest:
        lost.append("which of several matches is taken is the engine's choice")
    return lost


def _chain(arm: Any) -> list[str]:
    return ["the tree becomes a chain"] if arm.branch else []


def _draft_model(arm: Any) -> str:
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


# vLLM


def _vllm(method: str, arm: Any, **more: Any) -> dict[str, Any]:
    return {"method": method, **more, "num_speculative_tokens": arm.length.longest}


def _vllm_copies(arm: Any) -> Spelled:
    shortest, differs = max(arm.shortest, SAFE_MATCH), _copying(arm)
    if arm.shortest < SAFE_MATCH:
        differs.append(
            f"matches have {SAFE_MATCH} tokens or more, the arm's {arm.shortest}: with matches "
            "of 2 vLLM has corrupted tool calls of some models, and with 8 it has not "
            "(vllm-project/vllm#40875)"
        )
    longest = {"prompt_lookup_max": max(arm.longest, shortest), "prompt_lookup_min": shortest}
    return _vllm("ngram", arm) | longest, differs


def _vllm_suffixes(arm: Any) -> Spelled:
    lost = ["vLLM drafts from all users' answers; it needs the package arctic-inference"]
    if arm.width > 1:
        lost.append("trees become chains")
    if arm.by_cost:
        lost.append("drafts do not end where their chance of being accepted no longer pays")
    return _vllm("suffix", arm), lost


# SGLang, whose drafts count the newest token, which is verified too


def _sglang(algorithm: str, arm: Any, model: str) -> dict[str, Any]:
    return {
        "speculative-algorithm": algorithm,
        "speculative-draft-model-path": model,
        "speculative-num-steps": arm.length.longest,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": arm.length.longest + 1,
    }


def _sglang_copies(arm: Any) -> Spelled:
    settings = {
        "speculative-algorithm": "NGRAM",
        "speculative-num-draft-tokens": arm.length.longest + 1,
        "speculative-ngram-max-bfs-breadth": 1,  # a chain, not a tree
    }
    return settings, [
        *_copying(arm),
        f"matches of {arm.shortest} to {arm.longest} tokens are looked for by the arm; SGLang "
        "keeps a tree of what all requests wrote",
    ]


# llama.cpp, whose `--spec-type` takes several kinds, joined by commas


def _llama_ngrams(arm: Any) -> dict[str, Any]:
    lengths = {"spec-ngram-simple-size-n": arm.shortest}
    return lengths | {"spec-ngram-simple-size-m": arm.length.longest}


def _llama_matches(arm: Any) -> str:
    return (
        f"llama.cpp looks for matches of {arm.shortest} tokens alone, the arm for the longest one "
        f"up to {arm.longest}"
    )


def _llama_copies(arm: Any) -> Spelled:
    longer = [_llama_matches(arm)] if arm.longest > arm.shortest else []
    return {"spec-type": "ngram-simple", **_llama_ngrams(arm)}, [*_copying(arm), *longer]


def _llama_model(model: Any, arm: Any) -> dict[str, Any]:
    """model: the recipe that names it. arm: whose length bounds its drafts."""
    file = _draft_model(model)
    if not file.endswith(".gguf"):
        raise NoCounterpart(
            f"llama.cpp reads GGUF files; convert {file} with its convert_hf_to_gguf.py and name "
            "the file as `drafter`"
        )
    settings = {"spec-draft-model": file, "spec-draft-n-max": arm.length.longest}
    sure = arm.length.min_confidence
    return settings | ({"spec-draft-p-min": f"{sure:g}"} if sure else {})


def _llama_hybrid(arm: Any) -> Spelled:
    if arm.suffix or arm.model.kind != "neural":
        raise NoCounterpart("llama.cpp has no `hybrid`")
    kinds = {"spec-type": "draft-simple,ngram-simple"}
    return kinds | _llama_model(arm.model, arm) | _llama_ngrams(arm), [
        _llama_matches(arm),
        "llama.cpp copies wherever something matches and asks the model elsewhere; the arm takes "
        "what promises more",
    ]


def _written(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(word for name, value in settings.items() for word in (f"--{name}", str(value)))


ENGINES = {
    "vllm": Engine(
        "vLLM",
        ("vllm", "serve", MODEL),
        {
            "max_gram": _vllm_copies,
            "suffix": _vllm_suffixes,
            "eagle3": lambda arm: (_vllm("eagle3", arm, model=arm.drafter), _chain(arm)),
            "neural": lambda arm: (_vllm("draft_model", arm, model=_draft_model(arm)), ()),
        },
        lambda settings: ("--speculative-config", json.dumps(settings)),
    ),
    "sglang": Engine(
        "SGLang",
        ("python3", "-m", "sglang.launch_server", "--model-path", MODEL),
        {
            "max_gram": _sglang_copies,
            "eagle3": lambda arm: (_sglang("EAGLE3", arm, arm.drafter), _chain(arm)),
            "neural": lambda arm: (_sglang("STANDALONE", arm, _draft_model(arm)), ()),
        },
        _written,
    ),
    "llama.cpp": Engine(
        "llama.cpp",
        ("llama-server", "--model", MODEL),
        {
            "max_gram": _llama_copies,
            "neural": lambda arm: ({"spec-type": "draft-simple", **_llama_model(arm, arm)}, ()),
            "hybrid": _llama_hybrid,
        },
        _written,
        stops=True,
    ),
}


def engine_named(name: str) -> Engine:
    """Raises NoSuchName for one that is not in ENGINES."""
    if name not in ENGINES:
        raise NoSuchName("engine", name, list(ENGINES))
    return ENGINES[name]


def exported(
    engine: str, arms: Mapping[str, ArmRecipe]
) -> tuple[dict[str, Exported], dict[str, str]]:
    """The arms that the engine has a counterpart for, and why each of the others has none.

    Raises NoSuchName for an engine that is not in ENGINES.
    """
    of_engine = engine_named(engine)
    found, without = dict[str, Exported](), dict[str, str]()
    for name, arm in arms.items():
        try:
            found[name] = of_engine.exported(arm)
        except NoCounterpart as reason:
            without[name] = str(reason)
    return found, without


def command_line(words: Sequence[str], one: Exported, model: str = MODEL) -> str:
    """A server's command line, for a shell. words: the engine's command."""
    return shlex.join([*(model if word == MODEL else word for word in words), *one.options])


def export(
    engine: Annotated[str, typer.Argument(help="vllm, sglang or llama.cpp.")],
    config: Config = None,
    model: Annotated[
        str, typer.Option(help="The target in the engine's words: a hub id, folder or file.")
    ] = MODEL,
    as_json: AsJson = False,
) -> None:
    """Write the arms as options of vLLM, SGLang or llama.cpp: a command that starts a
    server for each, or why there is none.

    \b
    Examples:
      draftpick export vllm
      draftpick export sglang --config arms.yaml --model Qwen/Qwen3-8B
      draftpick export llama.cpp --config arms.yaml --model qwen3-8b.gguf --json
    """
    from decoders.arms import arms_made_for, load_arms

    words = engine_named(engine).command
    arms_file = arms_made_for(model) if config is None else config
    found, without = exported(engine, load_arms(arms_file))
    if as_json:
        arms = {
            name: {"command": command_line(words, one, model)} | asdict(one)
            for name, one in found.items()
        }
        print_json({"arms": arms, "without": without})
        return
    for name, one in found.items():
        print(f"# {name}")
        for sentence in one.differs:
            print(f"#   differs: {sentence}")
        print(command_line(words, one, model))
    for name, reason in without.items():
        print(f"# {name}: no counterpart: {reason}")
