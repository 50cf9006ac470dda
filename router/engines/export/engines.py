"""Arms in the words of other engines: a table of how each spells the kinds that it has.

vLLM: `SpeculativeConfig` in vllm/config/speculative.py, as of November 2026. SGLang:
`speculative_*` in python/sglang/srt/server_args.py, and for lengths by load
speculative/adaptive_spec_params.py, as of 0.5.23. TensorRT-LLM: `DecodingBaseConfig` and its kinds
in tensorrt_llm/llmapi/llm_args.py, as of 1.4; `draft_len_schedule` as in pull request 10860.
llama.cpp: common/arg.cpp and docs/speculative.md since pull request 22397.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoders.common.errors import NoSuchName

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe

MODEL = "MODEL"
SAFE_MATCH = 8  # tokens of a match, in vLLM
Ranges = Sequence[tuple[int, int, int]]  # (least, most, tokens of a draft) by requests running
Spelled = tuple[dict[str, Any], Sequence[str]]  # settings, and what differs


@dataclass(frozen=True)
class Exported:
    """An arm in another engine's words.

    options: to be added to the server's command line.
    differs: in what the engine does otherwise than the arm, a sentence each.
    file: the name and the text of a file that the options name.
    """

    options: tuple[str, ...]
    differs: tuple[str, ...] = ()
    file: tuple[str, str] | None = None


PLAIN = Exported(())


class NoCounterpart(Exception):
    """Why an arm has no counterpart in another engine."""


@dataclass(frozen=True)
class Engine:
    """How an engine takes arms.

    command: the words that start its server.
    kinds: for each kind that it has, the settings of an arm and what is lost.
    written: options, and a file that they name, of settings.
    scheduled: the settings with draft lengths by the number of requests that run, and what is lost;
        raises NoCounterpart where the engine has none for them.
    stops: whether a draft ends before a token of little confidence.
    """

    name: str
    command: tuple[str, ...]
    kinds: Mapping[str, Callable[[Any], Spelled]]
    written: Callable[[dict[str, Any]], Exported]
    scheduled: Callable[[dict[str, Any], Ranges], Spelled]
    stops: bool = False

    def exported(self, arm: Any, ranges: Ranges | None = None) -> Exported:
        """ranges: draft lengths by load, in place of the arm's own. Raises NoCounterpart."""
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
        if ranges is not None:
            settings, more = self.scheduled(settings, ranges)
            lost += more
        made = self.written(settings)
        return Exported(made.options, tuple(lost), made.file)


def _of_length(arm: Any, stops: bool) -> list[str]:
    """What is lost of a draft length. stops: as of `Engine`."""
    lost = []
    if arm.length.kind != "fixed":
        lost.append(
            f"drafts have up to {arm.length.longest} tokens; the {arm.length.kind} draft length is "
            "left out"
        )
    if arm.length.min_confidence and not stops:
        lost.append("drafts do not end before a token below `min_confidence`")
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


def _vllm_scheduled(settings: dict[str, Any], ranges: Ranges) -> Spelled:
    lengths = {"num_speculative_tokens_per_batch_size": [list(each) for each in ranges]}
    return settings | lengths, ()


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


def _sglang_scheduled(settings: dict[str, Any], ranges: Ranges) -> Spelled:
    """Candidate steps of the adaptive configuration, one for each range, which SGLang keeps."""
    if settings["speculative-algorithm"] != "EAGLE3":
        raise NoCounterpart("SGLang changes draft lengths by load for EAGLE heads alone")
    steps = {str(least): {"candidate_steps": [tokens]} for least, _, tokens in ranges}
    return settings | {"file": json.dumps(steps)}, ()


def _sglang_written(settings: dict[str, Any]) -> Exported:
    steps = settings.pop("file", None)
    if steps is None:
        return Exported(_flags(settings))
    file = "adaptive.json"
    adaptive = ("--speculative-adaptive", "--speculative-adaptive-config", file)
    return Exported((*_flags(settings), *adaptive), file=(file, steps))


# TensorRT-LLM


def _tensorrt(decoding_type: str, arm: Any, **more: Any) -> dict[str, Any]:
    return {"decoding_type": decoding_type, **more, "max_draft_len": arm.length.longest}


def _tensorrt_copies(arm: Any) -> Spelled:
    differs = _copying(arm)
    if arm.shortest > 1:
        differs.append(
            f"TensorRT-LLM copies after a match of any length, the arm after {arm.shortest} "
            "tokens or more"
        )
    own = {"max_matching_ngram_size": arm.longest, "is_public_pool": False}  # not others' tokens
    return _tensorrt("NGram", arm, **own), differs


def _tensorrt_scheduled(settings: dict[str, Any], ranges: Ranges) -> Spelled:
    """From the most requests of a range to its length; above the last one nothing is drafted."""
    drafting = {most: tokens for _, most, tokens in ranges if tokens}
    above = f"TensorRT-LLM drafts nothing while more than {max(drafting)} requests run"
    return settings | {"draft_len_schedule": drafting}, [above]


def _tensorrt_written(settings: dict[str, Any]) -> Exported:
    import yaml

    file = "speculation.yaml"
    text = yaml.safe_dump({"speculative_config": settings}, sort_keys=False)
    return Exported(("--extra_llm_api_options", file), file=(file, text))


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


def _llama_scheduled(settings: dict[str, Any], ranges: Ranges) -> Spelled:
    raise NoCounterpart("llama.cpp has one draft length for all loads")


def _flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
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
        lambda settings: Exported(("--speculative-config", json.dumps(settings))),
        _vllm_scheduled,
    ),
    "sglang": Engine(
        "SGLang",
        ("python3", "-m", "sglang.launch_server", "--model-path", MODEL),
        {
            "max_gram": _sglang_copies,
            "eagle3": lambda arm: (_sglang("EAGLE3", arm, arm.drafter), _chain(arm)),
            "neural": lambda arm: (_sglang("STANDALONE", arm, _draft_model(arm)), ()),
        },
        _sglang_written,
        _sglang_scheduled,
    ),
    "tensorrt-llm": Engine(
        "TensorRT-LLM",
        ("trtllm-serve", MODEL),
        {
            "max_gram": _tensorrt_copies,
            "eagle3": lambda arm: (
                _tensorrt("Eagle3", arm, speculative_model=arm.drafter),
                _chain(arm),
            ),
            "neural": lambda arm: (
                _tensorrt("Draft_Target", arm, speculative_model=_draft_model(arm)),
                (),
            ),
        },
        _tensorrt_written,
        _tensorrt_scheduled,
    ),
    "llama.cpp": Engine(
        "llama.cpp",
        ("llama-server", "--model", MODEL),
        {
            "max_gram": _llama_copies,
            "neural": lambda arm: ({"spec-type": "draft-simple", **_llama_model(arm, arm)}, ()),
            "hybrid": _llama_hybrid,
        },
        lambda settings: Exported(_flags(settings)),
        _llama_scheduled,
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
    """A server's command line, for a shell; before it, what writes the file that it reads.

    words: the engine's command.
    """
    line = shlex.join([*(model if word == MODEL else word for word in words), *one.options])
    if one.file is None:
        return line
    name, text = one.file
    return f"cat > {shlex.quote(name)} <<'END'\n{text.rstrip()}\nEND\n{line}"
