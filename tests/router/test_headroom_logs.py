"""`draftpick headroom --from-logs`: from a log to figures and tables."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from commands import Draftpick
from tiny_models import tokenizer

COSTS = {
    "verify_s": [0.01, 0.011, 0.012, 0.013, 0.014],
    "draft_s": {},
    "at_once": {"8": {"verify_s": [0.02, 0.06], "draft_s": {}}},
}
COSTS["repeats"] = [{**COSTS, "verify_s": [0.01 * f, 0.012]} for f in (0.98, 1.0, 1.02)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, costs, and a log: half of the answers repeat what they say."""
    folder = tmp_path_factory.mktemp("logs")
    tokenizer(folder / "words", unk_token="<unk>", eos_token="</s>")
    (folder / "costs.json").write_text(json.dumps({"costs": COSTS}))
    lines = []
    for n in range(60):
        again = "river sea lake city " * 6
        said = again if n % 2 else "two three add what the is of sum"
        chat = [{"role": "user", "content": f"{'add two' if n % 2 else 'what is'} {n}"}]
        answer = {"role": "assistant", "content": said}
        line = {
            "request": {"messages": chat, "temperature": 0},
            "response": {"choices": [{"message": answer}]},
            "started": float(n),
            "ended": n + 8.0,
            "task": "copy" if n % 2 else "ask",
        }
        lines.append(json.dumps(line) + "\n")
    (folder / "log.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def headroom(place: Path, draftpick: Draftpick) -> Draftpick:
    """`draftpick headroom --from-logs`, of that log."""
    log = ("--from-logs", place / "log.jsonl", "--tokenizer", place / "words")
    return partial(draftpick, "headroom", *log)


def test_a_log_alone_says_what_is_accepted(headroom: Draftpick) -> None:
    made = headroom("--json").json
    assert made["answers"] == made["conversations"] == 60 and made["speeds"] == []
    of = {one["arm"]: one for one in made["drafting"]}
    assert of["autoregressive"]["tokens_a_pass"]["mean"] == 1
    # half of the answers have 23 tokens after the first, of which all but a few can be copied
    copied = made["tasks"]["copy"]["drafting"]
    passes = {one["arm"]: one["tokens_a_pass"]["mean"] for one in copied}
    assert passes["ngram-2"] == pytest.approx(23 / 11)
    assert passes["vllm-ngram8-8"] < 23 / 11
    assert passes["suffix-16"] > passes["suffix-2"] > passes["ngram-2"]
    figure = of["ngram-4"]["tokens_a_pass"]
    assert passes["vllm-suffix-24"] > 2 and passes["llama-mod-64"] == 1, "answers of 24 tokens"
    assert of["ngram-4"]["command"] is None
    asked = json.loads(shlex.split(of["vllm-ngram-4"]["command"])[-1])
    assert asked["num_speculative_tokens"] == 4 and asked["prompt_lookup_min"] == 2
    simple = "--spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 8"
    assert f"llama-server --model MODEL {simple}" in of["llama-simple-8"]["command"]
    assert 1 < figure["low"] < figure["mean"] < figure["high"] < 5
    assert of["ngram-4"]["acceptance"]["mean"] == pytest.approx(15 / 16)
    assert made["running"]["median"] == pytest.approx(8, abs=1)
    assert made["headroom"] is None
    told = headroom("--json", "--reward", "saved-passes", "--arms", "ngram-4,suffix-8").json
    assert told["headroom"]["reward"].startswith("saved-passes")
    assert any("give --costs FILE" in sentence for sentence in made["advice"])


def test_costs_say_what_each_configuration_gives(place: Path, headroom: Draftpick) -> None:
    """At the log's own load, where wide passes are dear, less pays than alone."""
    costs = ("--json", "--costs", place / "costs.json")
    own = headroom(*costs, "--arms", "ngram-4").json["speeds"]
    assert [one["at_once"] for one in own] == [None]
    whole = headroom(*costs, "--at-once", "1,8").json
    both = whole["speeds"]
    picked = f"the best of {len(both[0]['arms']) - 1}, for which its interval is not corrected"
    assert len(both[0]["arms"]) > 10 and picked in " ".join(whole["advice"])
    alone, eight = ({one["arm"]: one for one in each["arms"]} for each in both)
    assert alone["autoregressive"]["tokens_a_second"]["mean"] == pytest.approx(100)
    assert alone["autoregressive"]["speedup"]["mean"] == 1
    assert alone["ngram-4"]["speedup"]["low"] > 1 > eight["ngram-4"]["speedup"]["high"]
    mixed = {one["arm"]: one for one in own[0]["arms"]}["ngram-4"]["speedup"]["mean"]
    assert eight["ngram-4"]["speedup"]["mean"] <= mixed < alone["ngram-4"]["speedup"]["mean"]
    without = json.loads((place / "costs.json").read_text())
    without["costs"].pop("repeats")
    (place / "once.json").write_text(json.dumps(without))
    costs = ("--json", "--costs", place / "once.json", "--at-once", 1, "--arms", "ngram-4")
    (once,) = headroom(*costs).json["speeds"]
    narrow = {one["arm"]: one for one in once["arms"]}["ngram-4"]["speedup"]
    assert narrow["low"] > alone["ngram-4"]["speedup"]["low"], "the costs' error is in the interval"


def test_tables_and_a_figure(tmp_path: Path, headroom: Draftpick) -> None:
    picture, arms = tmp_path / "h.svg", "ngram-4,suffix-8,vllm-ngram-4,llama-mod-64"
    shown = headroom("--arms", arms, "--reward", "saved-passes", "--out", picture).out
    assert "What would have been accepted, 60 answers" in shown and "Tokens a pass" in shown
    assert "llama-simple-8" not in shown and "llama-mod-64" not in shown.partition("Mean rew")[2]
    assert "vllm-ngram-4: vllm serve MODEL --speculative-config '{" in shown
    assert "ngram-8" not in shown and max(map(len, shown.splitlines()[:20])) <= 80
    assert picture.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("temperature", "optimistic"), [(0, False), (1, True), (None, True)], ids=str
)
def test_one_sampled_answer_makes_the_oracle_optimistic(
    place: Path, tmp_path: Path, draftpick: Draftpick, temperature: float | None, optimistic: bool
) -> None:
    """The same in all lines, which is no feature; or not in the log, as where a server's default
    was taken."""
    lines = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["request"]["temperature"]
        line["request"] |= {} if temperature is None else {"temperature": temperature}
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    words = ["--from-logs", log, "--tokenizer", place / "words", "--arms", "ngram-4,suffix-8"]
    made = draftpick("headroom", *words, "--reward", "saved-passes", "--json").json
    assert made["headroom"]["optimistic"] is optimistic
    assert ("one that nobody logged" in " ".join(made["advice"])) is optimistic


def test_few_conversations_give_figures_without_a_choice(headroom: Draftpick) -> None:
    made = headroom("--json", "--limit", 10, "--reward", "saved-passes").json
    assert made["answers"] == 10 and made["headroom"] is None
    assert any("too few" in sentence for sentence in made["advice"])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--target", "x"), "either --tokenizer"),
        (("--draft-cost", "0.1"), "--draft-cost goes with --costs"),
        (("--at-once", "8"), "8 answers at once is not known (it is for 1)"),
        (("--reward", "measured"), "'measured' is not known of logs"),
        (("--reward", "modelled"), "needs what passes cost"),
        (("--embedder", "hashing"), "--embedder is for REWARDS"),
        (("--alpha", "0.7"), "--alpha is for REWARDS"),
        (("--by", "colour"), "unknown feature 'colour'"),
        (("--out", "x.txt"), "a .png, .svg or .pdf file, not x.txt"),
        (("rewards",), "give either REWARDS or --from-logs"),
    ],
)
def test_options_that_do_not_go_together(
    more: tuple[str, ...], says: str, headroom: Draftpick
) -> None:
    assert says in headroom("--arms", "ngram-4", *more, code=2).err


@pytest.mark.parametrize(
    ("arm", "more", "says"),
    [
        ({"kind": "suffix", "width": 2}, (), "drafts trees"),
        ({"kind": "max_gram"}, ("--reward", "measured"), "'measured' is not known of logs"),
        ({"kind": "max_gram"}, ("--reward", "nice"), "unknown reward 'nice'"),
    ],
)
def test_mistakes_are_told_before_passes_are_timed(
    place: Path, tmp_path: Path, draftpick: Draftpick, monkeypatch: pytest.MonkeyPatch,
    arm: dict[str, Any], more: tuple[str, ...], says: str,
) -> None:  # fmt: skip
    timed = Mock()
    monkeypatch.setattr("router.engines.logs.replaying.timed_costs", timed)
    (tmp_path / "arms.yaml").write_text(json.dumps({"arms": {"a": arm}}))
    log = ("--from-logs", place / "log.jsonl", "--target", place / "words")
    told = draftpick("headroom", *log, "--config", tmp_path / "arms.yaml", *more, code=2).err
    assert says in told and not timed.called


def test_options_of_logs_need_logs(draftpick: Draftpick) -> None:
    told = draftpick("headroom", "rewards", "--limit", 9, "--clusters", 2, code=2).err
    assert "--clusters, --limit need --from-logs FILE" in told


def test_a_draft_model_needs_its_cost(
    place: Path, tmp_path: Path, headroom: Draftpick, draftpick: Draftpick
) -> None:
    arms = {"d": {"kind": "neural", "drafter": str(tmp_path)}}
    (tmp_path / "arms.yaml").write_text(json.dumps({"arms": arms}))
    costs = ("--costs", place / "costs.json", "--config", tmp_path / "arms.yaml")
    told = headroom(*costs, code=2).err
    assert "does not say what a token of d costs; give --draft-cost" in told
    told = draftpick("headroom", "rewards", "--costs", "x", code=2).err
    assert "--costs need --from-logs" in told
