"""`draftpick headroom --from-logs`: from a log to figures and tables."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tokenizer

from router import cli

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


def asked(place: Path, *more: str) -> list[str]:
    log, words = str(place / "log.jsonl"), str(place / "words")
    return ["headroom", "--from-logs", log, "--tokenizer", words, *more]


def found(place: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert cli.main(asked(place, "--json", *more)) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def test_a_log_alone_says_what_is_accepted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = found(place, capsys)
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
    told = found(place, capsys, "--reward", "saved-passes", "--arms", "ngram-4,suffix-8")
    assert told["headroom"]["reward"].startswith("saved-passes")
    assert any("give --costs FILE" in sentence for sentence in made["advice"])


def test_costs_say_what_each_configuration_gives(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the log's own load, where wide passes are dear, less pays than alone."""
    costs = ("--costs", str(place / "costs.json"))
    own = found(place, capsys, *costs)["speeds"]
    assert [one["at_once"] for one in own] == [None]
    whole = found(place, capsys, *costs, "--at-once", "1,8")
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
    costs = ("--costs", str(place / "once.json"), "--at-once", "1")
    (once,) = found(place, capsys, *costs)["speeds"]
    narrow = {one["arm"]: one for one in once["arms"]}["ngram-4"]["speedup"]
    assert narrow["low"] > alone["ngram-4"]["speedup"]["low"], "the costs' error is in the interval"


def test_tables_and_a_figure(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, arms = tmp_path / "h.svg", "ngram-4,suffix-8,vllm-ngram-4,llama-mod-64"
    more = ("--arms", arms, "--reward", "saved-passes", "--out", str(picture))
    assert cli.main(asked(place, *more)) == 0
    shown = capsys.readouterr().out
    assert "What would have been accepted, 60 answers" in shown and "Tokens a pass" in shown
    assert "llama-simple-8" not in shown and "llama-mod-64" not in shown.partition("Mean rew")[2]
    assert "vllm-ngram-4: vllm serve MODEL --speculative-config '{" in shown
    assert "ngram-8" not in shown and max(map(len, shown.splitlines()[:20])) <= 80
    assert picture.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("temperature", "optimistic"), [(0, False), (1, True), (None, True)], ids=str
)
def test_one_sampled_answer_makes_the_oracle_optimistic(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], temperature: float | None,
    optimistic: bool,
) -> None:  # fmt: skip
    """The same in all lines, which is no feature; or not in the log, as where a server's default
    was taken."""
    lines = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["request"]["temperature"]
        line["request"] |= {} if temperature is None else {"temperature": temperature}
    log, tokens = tmp_path / "log.jsonl", str(place / "words")
    log.write_text("\n".join(map(json.dumps, lines)))
    words = ["--from-logs", str(log), "--tokenizer", tokens, "--reward", "saved-passes", "--json"]
    assert cli.main(["headroom", *words]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["headroom"]["optimistic"] is optimistic
    assert ("one that nobody logged" in " ".join(made["advice"])) is optimistic


def test_few_conversations_give_figures_without_a_choice(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = found(place, capsys, "--limit", "10", "--reward", "saved-passes")
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
        (("--out", "x.txt"), "a .png, .svg or .pdf file, not x.txt"),
        (("rewards",), "give either REWARDS or --from-logs"),
    ],
)
def test_options_that_do_not_go_together(
    more: tuple[str, ...], says: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(asked(place, *more)) == 2
    assert says in capsys.readouterr().err


def test_a_draft_model_needs_its_cost(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"d": {"kind": "neural", "drafter": str(tmp_path)}}
    (tmp_path / "arms.yaml").write_text(json.dumps({"arms": arms}))
    costs = ("--costs", str(place / "costs.json"), "--config", str(tmp_path / "arms.yaml"))
    assert cli.main(asked(place, *costs)) == 2
    assert "does not say what a token of d costs; give --draft-cost" in capsys.readouterr().err
    assert cli.main(["headroom", "rewards", "--costs", "x"]) == 2
    assert "--costs need --from-logs" in capsys.readouterr().err
