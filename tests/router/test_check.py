"""`draftpick check`: on stand-ins for servers, and on made-up windows."""

import json
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from commands import Draftpick

from decoders.testing.fake_server import FakeEndpoint, listening
from router.engines.check.metrics import Counts
from router.engines.check.report import Findings, findings, options, sentences
from router.engines.check.timing import Window


@dataclass
class Server(FakeEndpoint):
    """A server of answers of 31 tokens, whose page of metrics is an engine's.

    accepted: of the drafts, tokens at each position that are accepted, one draft a pass; empty
        for a server that does not draft.
    """

    engine: str = "vllm"
    drafted: int = 0
    accepted: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.words, self.step_s = self.answer, lambda prompt: 0.0005
        self.metrics = self.page()

    def answer(self, prompt: str) -> list[str]:
        with self.lock:
            rounds = 30 // (1 + self.accepted)
            for name, more in (("written", 31), ("rounds", rounds)):
                self.totals[name] = self.totals.get(name, 0) + more
            self.metrics = self.page()
        return [" word"] * 31

    def page(self) -> str:
        """As the engines' documentation names them."""
        written, rounds = (self.totals.get(name, 0) for name in ("written", "rounds"))
        label = 'model_name="m"'
        if self.engine == "sglang":
            lines = {"num_running_reqs": 0, "generation_tokens_total": written}
            if self.drafted:
                rate = self.accepted / self.drafted
                lines |= {"spec_accept_length": 1 + self.accepted, "spec_accept_rate": rate}
            return "".join(f"sglang:{n}{{{label}}} {v}\n" for n, v in lines.items())
        llama = self.engine == "llama.cpp"
        lines = {
            "llamacpp:requests_processing" if llama else "vllm:num_requests_running": 0,
            "llamacpp:tokens_predicted_total" if llama else "vllm:generation_tokens_total": written,
        }
        if self.drafted:
            prefix = f"{'llamacpp' if llama else 'vllm'}:spec_decode_num"
            lines |= {
                f"{prefix}_drafts_total": rounds,
                f"{prefix}_draft_tokens_total": rounds * self.drafted,
                f"{prefix}_accepted_tokens_total": rounds * self.accepted,
            }
            for at in range(self.drafted):
                name = f'{prefix}_accepted_tokens_per_pos_total{{position="{at}"}}'
                lines[name] = rounds * (at < self.accepted)
        if self.engine == "draftpick":
            lines['draftpick_requests_total{arm="a",outcome="stop"}'] = 1
        return "".join(f"{name} {value}\n" for name, value in lines.items())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "draftpick"])
def test_drafts_are_counted(engine: str, draftpick: Draftpick) -> None:
    """Of four tokens a draft two are accepted: three tokens a pass."""
    with listening(server := Server(engine=engine, drafted=4, accepted=2)):
        made = draftpick("check", server.url.removesuffix("/v1"), "--seconds", 0, "--json").json
    assert made["engine"] == engine and made["drafts"]
    assert made["tokens_a_pass"] == pytest.approx(3, abs=0.05)
    assert made["drafted"] == pytest.approx(4, abs=0.1)
    assert made["acceptance"] == pytest.approx(0.5)
    if engine == "sglang":
        assert sum(made["accepted_per_position"]) == pytest.approx(2, abs=0.1)
    else:
        assert made["accepted_per_position"] == [1, 1, 0, 0]
    assert len(made["sentences"]) == 3
    assert {each["at_once"] for each in made["steps"]} == {1, 2, 4}


def test_thoughts_are_timed_and_a_key_may_have_any_letters(
    draftpick: Draftpick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "schlüssel")
    with listening(server := Server(named="reasoning_content")):
        how = ("--api-key-env", "THE_KEY", "--seconds", 0, "--json")
        made = draftpick("check", server.url, *how).json
    assert made["counts"]["rounds"] > 300 and made["steps"][0]["step_s"] > 0.0004
    assert server.heads[0]["Authorization"].encode("latin-1").decode() == "Bearer schlüssel"


def test_one_that_does_not_draft_is_told_how(draftpick: Draftpick, tmp_path: Path) -> None:
    with listening(server := Server(engine="llama.cpp")):
        server.step_s = lambda prompt: 0.002  # answers overlap, however busy the machine is
        how = ("--seconds", 0, "--at-once", 3, "--out", tmp_path / "report.json")
        shown = draftpick("check", server.url, *how).out
    assert "does not draft" in shown and "With 3 answers at once" in shown
    assert "--spec-type ngram-simple --spec-ngram-simple-size-n 8" in shown
    assert json.loads((tmp_path / "report.json").read_text())["running"] == 3


def test_no_question_is_asked_again(draftpick: Draftpick, tmp_path: Path) -> None:
    """A server may have the answer in mind: it would be accepted whole."""
    texts = [f"why {i}" for i in range(4 + 2 * 12)]
    lines = [json.dumps({"id": text, "task": "qa", "turns": [text]}) for text in texts]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    with listening(server := Server(drafted=4, accepted=2)):
        shown = draftpick("check", server.url, "--queries", tmp_path / "many.jsonl").out
    asked = [each["messages"][0]["content"] for each in server.asked if "messages" in each]
    assert sorted(asked) == sorted(texts)
    assert "Note: it ended when its questions were used up" in shown


LLAMA = '{"error":{"code":501,"message":"not supported. Start it with `--metrics`"}}'


@pytest.mark.parametrize(
    ("page", "status", "says"),
    [
        (LLAMA, 501, "is llama.cpp with its metrics off; start it with --metrics"),
        ("no", 404, "answers with status 404"),
        ("no", 401, "--api-key-env"),
        ("process_cpu_seconds_total 1\n", 200, "no metrics of a server that is known here"),
        ("{ nonsense", 200, "is no page of metrics"),
        ("vllm:num_requests_running 1\n", 200, "start it without --disable-log-stats"),
    ],
)
def test_a_page_that_says_nothing_is_one_sentence(
    page: str, status: int, says: str, draftpick: Draftpick
) -> None:
    with listening(server := FakeEndpoint(metrics=page, metrics_status=status)):
        assert says in draftpick("check", server.url, code=2).error


def test_nothing_that_listens_is_one_sentence(draftpick: Draftpick) -> None:
    told = draftpick("check", "http://127.0.0.1:1", code=2).error
    assert "nothing answers at http://127.0.0.1:1/v1 " in told


BASE, TOKEN = 0.010, 0.001


def looked_at(running: float, drafted: int, chances: list[float]) -> Findings:
    """A server whose step takes BASE and TOKEN more for each token that it reads."""
    windows = []
    for at_once in (1, 2, 4):
        rounds = 1000.0
        drafts = rounds if drafted else 0.0
        accepted = rounds * sum(chances[:drafted])
        counts = Counts(
            rounds + accepted + 4, drafts, drafts * drafted, accepted,
            tuple(rounds * each for each in chances[:drafted]),
        )  # fmt: skip
        step_s = BASE + TOKEN * at_once * (1 + drafted)
        decode_s = step_s * rounds
        windows.append(Window(at_once, 4, decode_s, decode_s / at_once, counts))
    return findings("vllm", "http://h", running, windows)


def test_one_answer_at_a_time_says_nothing_of_cost() -> None:
    found = looked_at(1, 4, [0.8, 0.6, 0.4, 0.2])
    alone = findings("vllm", "http://h", 1, found.windows[:1] * 3)
    assert not alone.known and "not known" in sentences(alone)[1] and not options(alone)
    assert "gain" not in alone.as_json() and "gain" in found.as_json()


def test_lengths_that_a_server_chooses_are_left_to_it() -> None:
    """Three drafts of four have one token and the others 12: no length for all is as good."""
    chances = [0.55, *[0.1] * 11]
    found = looked_at(1, 12, chances)
    counts = replace(found.counts, drafted=found.counts.drafts * 3.75)
    assert sentences(found)[2].startswith("Try drafts of 1 token")
    assert sentences(replace(found, counts=counts))[2].startswith("Leave it as it is")


def test_what_a_pass_costs_is_found_again() -> None:
    found = looked_at(1, 4, [0.8, 0.6, 0.4, 0.2])
    assert found.cost.base == pytest.approx(BASE) and found.cost.token == pytest.approx(TOKEN)
    assert found.gain == pytest.approx(3.0 / (15 / 11))


@pytest.mark.parametrize(
    ("running", "chances", "best", "says"),
    [
        (1, [0.9, 0.8, 0.75, 0.7], 4, "Try longer drafts"),
        (8, [0.9, 0.1, 0.05, 0.01], 1, "Try drafts of 1 token:"),
        (64, [0.3, 0.1, 0.0, 0.0], 0, "Try it without drafts"),
        (1, [0.9, 0.6, 0.3, 0.15], 3, "Leave it as it is"),
    ],
)
def test_what_to_change(running: int, chances: list[float], best: int, says: str) -> None:
    found = looked_at(running, 4, chances)
    assert found.best == best and says in sentences(found)[2]
    assert bool(options(found)) is not says.startswith("Leave")
    if best == 1:
        assert options(found) == ['"num_speculative_tokens": 1 in --speculative-config']
        assert 1 <= found.break_even < 4
    if best == 0:
        assert found.break_even == 0 and found.gain < 1
