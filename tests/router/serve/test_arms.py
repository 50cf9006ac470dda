"""Who answers, who chose, and what is told of it."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serve_toys import Served, ToyPolicy, served, until

from decoders.records import Request
from router.logs.reader import read_log
from router.logs.writer import DecisionLog
from router.routing.router import Router

EVEN, ODD = "abcabcab", "abcabca"


def ask(toy: Served, text: str = EVEN, **named: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 20} | named
    with toy.http() as http:
        return http.post("/v1/chat/completions", json=body)


def copied(toy: Served) -> Any:
    return toy.engine.decode("copy", toy.engine.tokenizer.encode(EVEN), Request(20))


def who(toy: Served, text: str = EVEN, **named: Any) -> tuple[str, str, str, str]:
    told = ask(toy, text, **named).headers
    names = ("arm", "propensity", "policy", "reason")
    return tuple(told[f"x-draftpick-{name}"] for name in names)


@pytest.mark.parametrize("stream", [False, True])
def test_headers_say_who_answers_and_why(toy: Served, stream: bool) -> None:
    assert who(toy, EVEN, stream=stream) == ("copy", "1", "default", "best")
    assert who(toy, ODD, stream=stream)[0] == "autoregressive"
    assert who(toy, model="copy", stream=stream) == ("copy", "1", "none", "forced")
    assert who(toy, ODD, arm="copy", stream=stream)[::3] == ("copy", "forced")
    plain = who(toy, stream=stream, speculative=False)
    assert plain[::3] == ("autoregressive", "no-speculation")
    assert unquote(who(toy, model="größer/日本", stream=stream)[0]) == "größer/日本"


def test_drawn_arms_have_their_propensity(toy: Served) -> None:
    drawn = {who(toy, EVEN, dynamic=True, seed=seed) for seed in range(20)}
    assert drawn == {
        ("copy", "0.75", "default", "drawn"),
        ("autoregressive", "0.25", "default", "drawn"),
    }


def test_a_policy_that_learns_draws_and_says_so() -> None:
    class Learns(Router):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._learning = Mock()

    with served(kind=Learns) as toy:
        assert {who(toy, EVEN)[3] for _ in range(3)} == {"drawn"}
        assert who(toy, model="copy")[3] == "forced"


def test_an_answer_is_found_in_the_log_by_its_id(tmp_path: Path) -> None:
    with served(log=tmp_path / "log") as toy:
        told = ask(toy, n=2, temperature=1)
        assert told.json()["id"] == f"chatcmpl-{told.headers['x-request-id']}"
    logged = {row.id: row.request.seed for row in read_log(tmp_path / "log").decisions}
    seeds = map(int, told.headers["x-draftpick-seed"].split(", "))
    assert logged == {f"{told.headers['x-request-id']}/{n}": seed for n, seed in enumerate(seeds)}


def test_turns_of_a_conversation_are_told_in_the_log_and_prompts_are_whole(tmp_path: Path) -> None:
    log: Any = DecisionLog(tmp_path / "log", text=True)
    first, then = ({"role": "user", "content": words} for words in (EVEN, ODD))
    chat = [first, {"role": "assistant", "content": "c"}, then]
    with served(log=log) as toy:
        for messages in ([first], chat, [then]):
            assert ask(toy, messages=messages).status_code == 200
        whole = toy.engine.encode_chat(chat)
    one, two, other = read_log(log.folder).decisions
    assert one.group is not None and one.group == two.group != other.group
    assert two.text.prompt == ODD and two.text.prompt_ids == whole


def test_a_registered_policy_may_be_asked_for() -> None:
    class Other(ToyPolicy):
        def distribution(self, x: Any) -> Any:
            return super().distribution(x)[:, ::-1]

    with served(others={"日本": Other()}) as toy:
        told = who(toy, EVEN, policy="日本")
        assert tuple(map(unquote, told)) == ("autoregressive", "1", "日本", "best")
        assert who(toy, EVEN, policy="default")[0] == "copy"
        refused = ask(toy, policy="yours")
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "policy"
        assert "default, 日本" in refused.json()["error"]["message"]


def test_metrics_of_an_answer_add_up(toy: Served) -> None:
    assert "metrics" not in ask(toy).json()
    told = ask(toy, explain=True).json()
    result = copied(toy)
    found = told["metrics"]["speculative_decoding"]
    assert found["num_draft_tokens"] == result.drafted > 0
    assert found["num_accepted_draft_tokens"] == result.accepted > 0
    assert found["num_accepted_tokens_per_pos"] == result.accepted_per_position
    assert found["draft_acceptance_rate"] == result.accepted / result.drafted
    assert 0 < found["num_drafts"] <= result.rounds
    assert found["mean_acceptance_length"] == 1 + result.accepted / found["num_drafts"]
    how = told["choices"][0]["draftpick"]
    assert how["arm"] == "copy" and how["scores"] == {"autoregressive": 0.25, "copy": 0.75}
    plain = ask(toy, explain=True, speculative=False).json()
    assert plain["metrics"]["speculative_decoding"]["num_drafts"] == 0


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("usage", [False, True])
def test_every_chunk_is_explained(toy: Served, path: str, usage: bool) -> None:
    body: dict[str, Any] = {"max_tokens": 20, "stream": True, "explain": True}
    body |= {"stream_options": {"include_usage": usage}}
    message = {"role": "user", "content": EVEN}
    asked = {"messages": [message]} if "chat" in path else {"prompt": EVEN}
    with toy.http() as http:
        lines = http.post(f"/v1/{path}", json=body | asked).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert "metrics" in chunks[-1] and not any("metrics" in chunk for chunk in chunks[:-1])
    told = [chunk["draftpick"] for chunk in (chunks[:-1] if usage else chunks)]
    assert told[0]["arm"] == "copy" and told[0]["running"] == 0
    assert told[0]["scores"] == {"autoregressive": 0.25, "copy": 0.75}
    result = copied(toy)
    tokens = [token for each in told[1:] for token in each["tokens"]]
    assert [token["id"] for token in tokens] == result.ids
    assert "".join(token["text"] for token in tokens) == result.text
    assert sum(token["by"] == "draft" for token in tokens) == result.accepted
    times = [each["elapsed_s"] for each in told[1:]]
    assert times == sorted(times)
    for each in told[1:]:
        own = [token["by"] for token in each["tokens"]]
        whole = own.count("draft") == each["drafted"] > 0
        assert own[-1:] in ([], ["bonus"] if whole else ["target"], ["draft"])
        assert set(own[:-1]) <= {"draft"}


def test_what_was_asked_is_counted() -> None:
    with served() as toy:
        results = [ask(toy, EVEN, explain=True).json() for _ in range(2)]
        ask(toy, ODD)
        ask(toy, model="nothing")
        ask(toy, model="beams", logprobs=True)
        with toy.http() as http:
            assert until(lambda: not http.get("/stats").json()["requests_running"])
            stats, text = http.get("/stats").json(), http.get("/metrics").text
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    ends = {"stop": "eos"}.get(results[0]["choices"][0]["finish_reason"], "length")
    assert found["draftpick_requests_total", "copy", ends] == 2
    assert found["draftpick_requests_total", "", "refused"] == 1
    assert found["draftpick_requests_total", "beams", "error"] == 1
    assert found["draftpick_requests_undrafted_total",] == 1
    drafting = results[0]["metrics"]["speculative_decoding"]
    for name, field in (
        ("vllm:spec_decode_num_drafts_total", "num_drafts"),
        ("vllm:spec_decode_num_draft_tokens_total", "num_draft_tokens"),
        ("vllm:spec_decode_num_accepted_tokens_total", "num_accepted_draft_tokens"),
    ):
        assert found[name, "copy"] == 2 * drafting[field]
    at_first = found["vllm:spec_decode_num_accepted_tokens_per_pos_total", "0", "copy"]
    assert at_first == 2 * drafting["num_accepted_tokens_per_pos"][0]
    assert found["vllm:num_requests_running",] == found["vllm:num_requests_waiting",] == 0
    assert found["vllm:time_to_first_token_seconds_count",] == 3
    assert found["vllm:prompt_tokens_total",] == 23

    copy = stats["arms"]["copy"]
    assert (stats["target"], stats["policy"]) == ("toy", "even-odd")
    assert (stats["requests_running"], stats["requests_waiting"]) == (0, 0)
    assert stats["uptime_s"] > 0 and stats["tokens_per_s"] > 0
    assert list(stats["arms"]) == ["autoregressive", "copy", "beams", "größer/日本"]
    assert copy["requests"] == 2 and copy["share"] == pytest.approx(2 / 4)
    assert copy["acceptance_rate"] == pytest.approx(drafting["draft_acceptance_rate"])
    assert copy["mean_acceptance_length"] == pytest.approx(drafting["mean_acceptance_length"])
    assert copy["accepted_per_position"][0] == pytest.approx(
        drafting["num_accepted_tokens_per_pos"][0] / drafting["num_drafts"]
    )
    assert copy["tokens_per_s"] > 0
