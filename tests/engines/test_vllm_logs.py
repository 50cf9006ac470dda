"""What is said of vLLM from its answers alone, and what it does: minutes on two cores."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from real_servers import CLIENTS
from vllm_server import served

from collect.queries import shipped
from decoders.zoo import fetch
from decoders.zoo.catalogue import TARGET
from router import cli

pytestmark = pytest.mark.engines

LENGTH, SHORTEST, LONGEST = 4, 2, 5
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": LENGTH,
    "prompt_lookup_min": SHORTEST,
    "prompt_lookup_max": LONGEST,
}
# vLLM takes the first of several matches
ARM = {"kind": "max_gram", "shortest": SHORTEST, "longest": LONGEST, "earliest": True,
       "length": {"k": LENGTH}}  # fmt: skip


def ask(url: str, texts: list[str], tokens: int) -> list[dict[str, Any]]:
    """Requests with responses, as a client logs them."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=900, max_retries=0)

    def one(text: str) -> dict[str, Any]:
        request = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens,
                   "temperature": 0, "model": "target"}  # fmt: skip
        response = client.chat.completions.create(**request)  # type: ignore[call-overload]
        return {"request": request, "response": response.model_dump()}

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(one, texts))


def test_acceptance_is_predicted_from_answers_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has texts, no ids; vLLM's counters say what it drafted and accepted."""
    texts = [query.turns[0] for query in shipped("test")][::2]
    with served(tmp_path, speculative=NGRAM) as server:
        lines = ask(server.url, texts, 64)
        drafted = server.counted("num_draft_tokens")
        accepted = server.counted("num_accepted_tokens")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (tmp_path / "arms.yaml").write_text(json.dumps({"arms": {"ngram": ARM}}))
    words = ["headroom", "--from-logs", str(tmp_path / "log.jsonl"), "--json"]
    words += ["--tokenizer", str(fetch(TARGET)), "--config", str(tmp_path / "arms.yaml")]
    assert cli.main(words) == 0
    made = json.loads(capsys.readouterr().out)
    found = {one["arm"]: one["acceptance"] for one in made["drafting"]}["ngram"]
    with capsys.disabled():
        print(f"\npredicted {found}, measured {accepted} of {drafted}: {accepted / drafted:.4f}")
    assert made["answers"] == len(texts) and drafted > 200
    assert found["low"] <= accepted / drafted <= found["high"]


def test_vllms_drafts_change_no_greedy_answer_and_its_steps_can_be_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Greedy answers are whole. Sampled ones are not in this version: on a CPU it divides by
    temperatures that nobody wrote (`sampling_fault`), which the audit finds from outside."""
    with served(tmp_path) as plain:
        out = tmp_path / "costs.json"
        words = ["costs", f"{plain.url}/v1", "--out", str(out), "--most", "8", "--tokens", "24"]
        assert cli.main(words) == 0
        costs = json.loads(out.read_text())["costs"]
        assert costs["verify_s"][0] > 0 and "4" in costs["at_once"]
        with served(tmp_path, speculative=NGRAM) as drafting:
            words = ["audit", f"{drafting.url}/v1", "--plain-url", f"{plain.url}/v1"]
            words += ["--max-new-tokens", "48", "--json"]
            codes = [cli.main([*words, "--limit", "24", "--draws", "0"])]
            codes.append(cli.main([*words, "--limit", "8", "--draws", "24"]))
        shown = capsys.readouterr()
        greedy, sampled = map(json.loads, shown.out.splitlines()[-2:])
        with capsys.disabled():
            print(f"\n{greedy['verdicts']} {greedy['refused']}\n{sampled['sampled']}")
            print({n: each[:4] for n, each in [("1", costs["verify_s"])]})
        assert codes == [0, 1], (greedy, sampled)
        assert sampled["sampled"]["parted"]
