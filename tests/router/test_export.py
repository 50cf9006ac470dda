"""Arms in the words of vLLM, SGLang and llama.cpp, and what is said of those that have none."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands import Draftpick

from decoders.arms import recipe
from decoders.common.errors import NoSuchName
from router.engines.export import ENGINES, command_line, exported

COPY: dict[str, Any] = {"kind": "max_gram", "shortest": 3, "longest": 5, "length": {"k": 8}}
DRAFT: dict[str, Any] = {"kind": "neural", "drafter": "org/small", "length": {"k": 4}}
GGUF: dict[str, Any] = {
    "kind": "neural", "drafter": "small.gguf", "length": {"k": 4, "min_confidence": 0.4}
}  # fmt: skip
SUFFIX: dict[str, Any] = {"kind": "suffix", "by_cost": False, "length": {"k": 6}}
HEAD: dict[str, Any] = {"kind": "eagle3", "drafter": "org/head", "length": {"k": 3}}
GOLDEN = {
    ("vllm", "suffix"): "vllm serve M --speculative-config "
    '\'{"method": "suffix", "num_speculative_tokens": 6}\'',
    ("vllm", "head"): "vllm serve M --speculative-config "
    '\'{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}\'',
    ("sglang", "head"): "python3 -m sglang.launch_server --model-path M --speculative-algorithm "
    "EAGLE3 --speculative-draft-model-path org/head --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    ("vllm", "plain"): "vllm serve M",
    ("vllm", "copy"): "vllm serve M --speculative-config "
    '\'{"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 8, '
    '"prompt_lookup_min": 8}\'',
    ("vllm", "draft"): "vllm serve M --speculative-config "
    '\'{"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}\'',
    ("sglang", "plain"): "python3 -m sglang.launch_server --model-path M",
    ("sglang", "copy"): "python3 -m sglang.launch_server --model-path M --speculative-algorithm "
    "NGRAM --speculative-num-draft-tokens 9 --speculative-ngram-max-bfs-breadth 1",
    ("sglang", "draft"): "python3 -m sglang.launch_server --model-path M --speculative-algorithm "
    "STANDALONE --speculative-draft-model-path org/small --speculative-num-steps 4 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
    ("llama.cpp", "plain"): "llama-server --model M",
    ("llama.cpp", "copy"): "llama-server --model M --spec-type ngram-simple "
    "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8",
    ("llama.cpp", "gguf"): "llama-server --model M --spec-type draft-simple "
    "--spec-draft-model small.gguf --spec-draft-n-max 4 --spec-draft-p-min 0.4",
    ("llama.cpp", "hybrid"): "llama-server --model M --spec-type draft-simple,ngram-simple "
    "--spec-draft-model small.gguf --spec-draft-n-max 8 --spec-ngram-simple-size-n 3 "
    "--spec-ngram-simple-size-m 8",
}
ARMS = {"plain": {"kind": "autoregressive"}, "copy": COPY, "draft": DRAFT, "gguf": GGUF}
ARMS |= {"suffix": SUFFIX, "head": HEAD}
ARMS["hybrid"] = {
    "kind": "hybrid", "shortest": 3, "longest": 5, "length": {"k": 8},
    "model": {"kind": "neural", "drafter": "small.gguf"},
}  # fmt: skip


def arm(name: str, **body: Any) -> Any:
    return recipe(name=name, **body)


@pytest.mark.parametrize(("engine", "name"), GOLDEN, ids=" ".join)
def test_the_commands(engine: str, name: str) -> None:
    found, without = exported(engine, {name: arm(name, **ARMS[name])})
    assert not without
    assert command_line(ENGINES[engine].command, found[name], "M") == GOLDEN[engine, name]


def test_what_an_engine_does_otherwise_is_said() -> None:
    arms = {
        "exact": arm("exact", **{**COPY, "shortest": 9, "longest": 12}),
        "table": arm("table", **COPY, drafter="bigram", by_cost=True, earliest=True),
        "adaptive": arm("adaptive", **{**DRAFT, "length": {"kind": "adaptive", "k": 4}}),
        "doubting": arm("doubting", **{**DRAFT, "length": {"k": 4, "min_confidence": 0.4}}),
        "bounded": arm("bounded", **DRAFT, context_to=4096),
        "window": arm("window", **DRAFT, prompt_window=256),
    }
    arms["branches"] = arm("branches", **HEAD, branch=[2])
    arms["suffixes"] = arm("suffixes", kind="suffix", width=2)
    found, _ = exported("vllm", arms)
    assert found["branches"].differs == ("the tree becomes a chain",)
    assert [words.partition(";")[0] for words in found["suffixes"].differs] == [
        "vLLM drafts from all users' answers",
        "trees become chains",
        "drafts do not end where their chance of being accepted no longer pays",
    ]
    assert found["exact"].differs == ()
    assert [words.partition(",")[0] for words in found["table"].differs] == [
        "the table 'bigram'",
        "drafts do not end where their chance of being accepted no longer pays",
        "which of several matches is taken is the engine's choice",
        "matches have 8 tokens or more",
    ]
    assert '"prompt_lookup_min": 9' in found["exact"].options[1]
    assert "vllm-project/vllm#40875" in found["table"].differs[-1]
    assert found["adaptive"].differs == (
        "drafts have up to 4 tokens; the adaptive draft length is left out",
    )
    assert found["doubting"].differs == ("drafts do not end before a token below `min_confidence`",)
    assert found["bounded"].differs == (
        "contexts above 4096 tokens (`context_to`) have drafts too",
    )
    assert found["window"].differs == (
        "the draft model reads all of a prompt, not its last 256 tokens",
    )
    hybrid = {**ARMS["hybrid"], "model": {**GGUF, "prompt_window": 9}}
    (both,) = exported("llama.cpp", {"hybrid": arm("hybrid", **hybrid)})[0].values()
    assert "the draft model reads all of a prompt, not its last 9 tokens" in both.differs
    assert exported("llama.cpp", {"gguf": arm("gguf", **GGUF)})[0]["gguf"].differs == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_arms_without_a_counterpart_have_a_reason(engine: str) -> None:
    arms = {
        "cell": arm("cell", kind="recurrent", drafter="recurrent-general"),
        "part": arm("part", kind="neural", drafter="draft-general"),
        "lossy": arm("lossy", **COPY, verifier={"rule": "lossy", "alpha": 0.1}),
        "tree": arm("tree", kind="tree", drafter="org/small", branch=[2]),
        "server": arm("server", kind="endpoint", url="http://h:1/v1", model="m"),
    }
    found, without = exported(engine, arms)
    assert not found
    assert "has no `recurrent`" in without["cell"] and "has no `tree`" in without["tree"]
    assert "knows a part of the target's vocabulary" in without["part"]
    assert without["lossy"] == "the lossy verifier 'lossy' is draftpick's own"
    assert without["server"] == "it is a server already, at http://h:1/v1"


def test_llama_cpp_wants_a_gguf_file() -> None:
    _, without = exported("llama.cpp", {"draft": arm("draft", **DRAFT)})
    assert "convert org/small with its convert_hf_to_gguf.py" in without["draft"]


def test_every_arm_that_ships_is_answered_for() -> None:
    from decoders.arms import load_arms

    for engine in ENGINES:
        found, without = exported(engine, load_arms())
        assert found.keys() | without.keys() == set(load_arms()) and not found.keys() & without
        assert "max-gram" in found and "hybrid" in without


def test_the_command_prints_a_script_and_json(tmp_path: Path, draftpick: Draftpick) -> None:
    config = tmp_path / "arms.yaml"
    config.write_text(json.dumps({"arms": {"copy": COPY, "beams": {"kind": "beam", "beams": 2}}}))
    words = ["export", "vllm", "--config", config, "--model", "my model"]
    lines = draftpick(*words).out.splitlines()
    runs = [line for line in lines if not line.startswith("#")]
    assert [shlex.split(line)[2] for line in runs] == ["my model"] * 2
    assert "# beams: no counterpart: vLLM has no `beam`" in lines
    told = draftpick(*words, "--json").json
    assert list(told["arms"]) == ["autoregressive", "copy"] and list(told["without"]) == ["beams"]
    assert json.loads(told["arms"]["copy"]["options"][1])["method"] == "ngram"
    assert "known: llama.cpp, sglang, vllm" in draftpick("export", "tgi", code=2).err
    with pytest.raises(NoSuchName):
        exported("tgi", {})


def test_a_known_model_has_its_own_arms(draftpick: Draftpick) -> None:
    told = draftpick("export", "vllm", "--model", "qwen2.5-coder-1.5b-instruct", "--json").json
    assert "draft-0.5b" in told["arms"] and "draft-general" not in told["without"]
