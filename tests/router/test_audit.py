"""The audit finds a server that corrupts one answer in fifty, and does not accuse one that only
breaks ties."""

import json
import random
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from effort import FULL
from scipy.stats import binom, permutation_test

from benchmarks import error_rates
from decoders.testing.fake_server import FakeEndpoint, listening
from router import cli
from router.engines.audit.answers import Place, Said, broken, said_in
from router.engines.audit.greedy import Parting, gaps_moved, parting, rounding, tie_of
from router.engines.audit.report import sentences
from router.engines.audit.requests import AuditRequest
from router.engines.audit.run import Audit, Compared
from router.engines.audit.sampled import Seeded, _mmd, _permuted, over, two_sample

WORDS = [" one", " two", " three", " four", " five"]
LENGTH = 10


@dataclass
class Model(FakeEndpoint):
    """A server of a random language model of five words, with the parts of an audit in its answers.

    ties: it takes the second of two words that are equally likely.
    corrupts: every so-manieth answer has a wrong word; 0 for none.
    noise: of log-probabilities, in nats.
    law: of its sampled words.
    prints: its `system_fingerprint`, with which a seed gives an answer again.
    slips: every so-manieth answer is drawn by another seed; 0 for none.
    """

    ties: bool = False
    corrupts: int = 0
    noise: float = 0.0
    logprobs: bool = True
    breaks_calls: bool = False
    takes_tools: int = 200
    law: tuple[float, ...] = (0.4, 0.3, 0.2, 0.05, 0.05)
    shaky: bool = False
    prints: str = ""
    slips: int = 0
    answers: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.replies = self.reply

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "tools" in body and self.takes_tools != 200:
            return self.takes_tools, {"error": {"message": "no tools here"}}
        return 200, self.answer(body)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.answers += 1
            number = self.answers
        prompt = json.dumps(body["messages"])
        if "tools" in body:
            return self.call(prompt)
        if "response_format" in body:
            return self.choice(['{"city":', ' "x"}'], [{}, {}], {})
        own, noise = random.Random(prompt), random.Random(number)
        drawn = random.Random(f"{prompt} {body['seed']}") if "seed" in body else noise
        if self.slips and number % self.slips == 0:
            drawn = noise
        places, words = [], []
        for at in range(min(LENGTH, body["max_tokens"])):
            first, second = own.sample(WORDS, 2)
            tie = own.random() < 0.05
            gap = 0.001 if tie else 0.5 + own.random()
            top = {first: -0.3, second: -0.3 - gap}
            word = second if tie and self.ties else first
            if body["temperature"] > 0:
                word = drawn.choices(WORDS, self.law)[0]
                top = {w: float(np.log(p)) for w, p in zip(WORDS, Model.law, strict=True)}
            wrong = self.corrupts and number % self.corrupts == 0 and at == LENGTH // 2
            if wrong or (self.shaky and at == 3 and noise.random() < 0.5):
                word = next(w for w in WORDS if w not in (first, second))
                top |= {word: -6.0}
            top = {w: p + self.noise * noise.uniform(-1, 1) for w, p in top.items()}
            words.append(word)
            places.append(top)
        return self.choice(words, places, {})

    def call(self, prompt: str) -> dict[str, Any]:
        arguments = '{"city": "x", "days": 5, "units": "metric"}'
        if self.breaks_calls:
            arguments = arguments.replace('"days": 5,', '"days": 5, "days')
        call = {"id": "1", "type": "function", "function": {"name": "weather",
                                                            "arguments": arguments}}  # fmt: skip
        return self.choice([], [], {"tool_calls": [call]})

    def choice(self, words: list[str], places: list[Any], more: dict[str, Any]) -> dict[str, Any]:
        content = [
            {
                "token": word,
                "logprob": top.get(word, 0.0),
                "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()],
            }
            for word, top in zip(words, places, strict=True)
        ]
        message = {"role": "assistant", "content": "".join(words), **more}
        made: dict[str, Any] = {"message": message, "finish_reason": "stop"}
        if self.logprobs:
            made["logprobs"] = {"content": content}
        return {"choices": [made]} | ({"system_fingerprint": self.prints} if self.prints else {})


def audited(
    drafted: Model, capsys: pytest.CaptureFixture[str], *more: str, plain: Model | None = None
) -> tuple[int, dict[str, Any]]:
    plain = plain or Model()
    with listening(plain, drafted):
        words = ["audit", drafted.url, "--plain-url", plain.url, "--model", "m", "--json"]
        code = cli.main([*words, "--draws", "0", *more])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else {"error": shown.err}


def test_one_corrupted_answer_in_fifty_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audited(Model(corrupts=50), capsys)
    assert code == 1 and found["answers"] == 162
    assert 2 <= found["verdicts"]["fault"] <= 4 and found["verdicts"]["tie"] == 0
    assert found["sentences"][0].startswith("Drafting changes this server's answers")
    assert {each["at"] for each in found["partings"]} == {LENGTH // 2}


def test_parts_of_characters_are_told_apart_by_their_bytes() -> None:
    def scored(content: bytes | None) -> dict[str, Any]:
        told = None if content is None else list(content)
        return {"token": "\ufffd", "logprob": -0.5, "bytes": told, "top_logprobs": []}

    parts = [scored(b"\xe6"), scored(b"\x97\xa5"), scored("\ufffd".encode()), scored(None)]
    choice = {"message": {"content": "日"}, "logprobs": {"content": parts}}
    tokens = said_in({"choices": [choice]}, "it").tokens
    assert tokens == (r"\xe6", r"\x97\xa5", "\ufffd", "\ufffd")


def test_ties_alone_are_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is the noise of another order of summing."""
    code, found = audited(Model(ties=True, noise=0.03), capsys)
    assert code == 0 and found["verdicts"]["tie"] > 30 and found["verdicts"]["fault"] == 0
    assert 0.02 < found["tie_nats"] < 0.2 and found["least_share_seen"] < 0.05
    assert found["sentences"][0].startswith("No answer of 162 parts beyond ties")


def test_a_corruption_among_ties_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audited(Model(ties=True, noise=0.03, corrupts=20), capsys)
    assert code == 1 and 2 <= found["verdicts"]["fault"] <= 9 < found["verdicts"]["tie"]


def test_broken_calls_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audited(Model(breaks_calls=True), capsys, "--limit", "5")
    assert code == 1 and found["broken"] == 6
    for status in (400, 500):
        plain, some = Model(takes_tools=status), ("--limit", "5")
        code, found = audited(Model(takes_tools=status), capsys, *some, plain=plain)
        assert code == 0 and "no tools here" in found["refused"]["tools"] and found["answers"] == 11
    assert audited(Model(takes_tools=400), capsys, *some)[0] == 0
    code, found = audited(Model(takes_tools=500), capsys, *some)  # with drafts alone
    assert code == 2 and "HTTP 500 (no tools here)" in found["error"]


def test_a_server_that_does_not_repeat_itself_is_no_measure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where it parts from itself, it cannot say that the other one is wrong."""
    code, found = audited(Model(), capsys, "--limit", "60", plain=Model(shaky=True))
    assert found["verdicts"]["unstable"] > 15 and found["verdicts"]["fault"] < 10
    assert code == int(found["verdicts"]["fault"] > 0)


def test_servers_of_this_project_are_held_to_equality(capsys: pytest.CaptureFixture[str]) -> None:
    some = ("--limit", "12", "--draws", "12")
    ours = Model(prints="draftpick-1/weights/kernels")
    for slips, noise in ((0, 0.0), (0, 0.003), (30, 0.0003)):
        drafted = Model(prints=ours.prints, slips=slips, noise=noise)
        code, found = audited(drafted, capsys, *some, plain=Model(prints=ours.prints))
        assert found["sampled"] is None and found["seeded"]["answers"] == 96
        assert code == int(slips > 0) == int(found["seeded"]["differ"] > 1)
    assert "sampled answers differ to the same seeds" in found["sentences"][0]
    for other in ("", "draftpick-1/weights/others", "vllm-1"):  # by the distribution alone
        _, found = audited(Model(prints=other), capsys, *some, plain=Model(prints=other or "x"))
        assert (found["seeded"] is None) == (not other.startswith("draftpick"))
    _, found = audited(Model(prints=ours.prints), capsys, *some, plain=Model(prints=other))
    assert found["seeded"] is None and found["sampled"] is not None


def test_differences_that_rounding_explains_are_no_fault() -> None:
    assert not Seeded(96, 0, 0.0).parted and Seeded(96, 1, 0.0).parted
    assert not Seeded(96, 1, 0.1).parted and Seeded(96, 2, 0.1).parted
    assert not Seeded(96, 5, 4.0).parted and Seeded(96, 20, 4.0).parted


def test_log_probabilities_that_differ_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    """And held against nothing else: samples are then judged by their texts alone."""
    code, found = audited(Model(noise=0.8), capsys, "--limit", "20", "--draws", "4")
    assert code == 1 and "more than rounding" in found["sentences"][0]
    assert "another distribution" not in found["sentences"][0]
    assert found["sampled"]["p_texts"] is not None and found["sampled"]["p_logprobs"] is None


def test_without_log_probabilities_texts_can_be_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = Model(logprobs=False)
    code, found = audited(Model(), capsys, plain=silent)
    assert code == 2 and "gives no log-probabilities" in found["error"]
    code, found = audited(silent, capsys, "--limit", "5")
    assert code == 2 and "gives no log-probabilities" in found["error"]
    some = ("--texts", "--limit", "40")
    code, found = audited(Model(logprobs=False), capsys, *some, plain=silent)
    assert code == 0 and found["verdicts"]["same"] == found["answers"] > 40
    code, found = audited(Model(logprobs=False, corrupts=20), capsys, *some, plain=silent)
    assert code == 1 and found["verdicts"]["unknown"] >= 2


def test_where_one_server_says_nothing_of_its_tokens_nothing_is_judged() -> None:
    spelled, silent = said("The", " cat"), Said("The dog", (), (), "stop")
    for pair in ((spelled, silent), (silent, spelled), (silent, Said("The", (), (), "stop"))):
        assert parting(*pair, 0.02).verdict == "unknown"
    called = replace(spelled, text="", calls=(("f", "{}"),))
    assert parting(called, Said("", (("f", "[]"),), (), "stop"), 0.02).verdict == "unknown"
    assert parting(said("The"), Said("", (), (), "stop"), 0.02).verdict == "fault"  # it ended


def test_answers_without_log_probabilities_may_part_as_often_as_ties() -> None:
    silent = Said("a", (), (), "stop"), Said("b", (), (), "stop")

    def found(unknown: int, silent_same: int, ties: int, judged: int) -> Audit:
        request, places = AuditRequest("chat", "x", {}), said(" a")
        rows = [Compared(request, *silent, Parting("unknown", 0), "unknown", False)] * unknown
        rows += [Compared(request, *silent, Parting("same", 1), "same", False)] * silent_same
        rows += [Compared(request, places, places, Parting("tie", 1), "tie", False)] * ties
        whole = Compared(request, places, places, Parting("same", 1), "same", False)
        return Audit(rows + [whole] * (judged - ties), 0.02, np.zeros(0), None)

    assert found(4, 2, 1, 150).parted and not found(1, 5, 15, 150).parted
    assert found(1, 5, 0, 0).parted and not found(0, 6, 0, 0).parted


def test_a_broken_answer_behind_a_tie_is_held_against_nobody() -> None:
    request, places = AuditRequest("json", "x", {"response_format": {}}), said(" a")
    rows = [Compared(request, places, places, Parting("tie", 0), "tie", True)]
    assert not Audit(rows, 0.02, np.zeros(0), None).parted
    rows = [Compared(request, places, places, Parting("fault", 0), "fault", True)]
    assert Audit(rows, 0.02, np.zeros(0), None).spoilt == rows


def test_drafts_are_switched_off_by_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    model = Model()
    with listening(model):
        words = ["audit", model.url, "--plain-body", '{"speculative": false}', "--model", "m"]
        assert cli.main([*words, "--limit", "5", "--draws", "4"]) == 0
    shown = capsys.readouterr().out
    said = " ".join(shown.split())
    assert "Sampled answers: 5 requests, 4 draws" in said and "No answer of 17 parts" in said
    assert max(map(len, shown.splitlines()[:12])) <= 80


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "name what answers without drafts"),
        (("--plain-body", "[1]"), "--plain-body is a JSON object"),
        (("--plain-url", "http://127.0.0.1:1/v1/"), "is the audited server itself"),
        (("--plain-url", "http://127.0.0.1:1"), "is the audited server itself"),
        (("--body", '{"a": 1}', "--plain-body", '{"a": 1}'), "is the audited server itself"),
        (("--plain-body", '{"temperature": 1}'), "temperature is set by every request"),
        (("--plain-body", '{"a": 1}', "--body", '{"tools": []}'), "tools is set by every request"),
        (("--plain-url", "http://127.0.0.1:2", "--draws", "1"), "--draws is 0 or at least 2"),
        (("--plain-url", "http://127.0.0.1:2", "--temperature", "0"), "--temperature of sampled"),
    ],
)
def test_what_cannot_be_audited(
    more: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", "http://127.0.0.1:1/v1", *more]) == 2
    assert says in capsys.readouterr().err


def drawn(law: tuple[float, ...], seed: int, prompts: int = 6, draws: int = 12) -> list[list[Said]]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(prompts):
        answers = []
        for _ in range(draws):
            words = rng.choice(WORDS, 5, p=law)
            top = {w: float(np.log(p)) for w, p in zip(WORDS, Model.law, strict=True)}
            places = tuple(Place(w, top[w], top) for w in words.tolist())
            answers.append(Said("".join(words), (), places, "length"))
        made.append(answers)
    return made


def test_one_law_is_rarely_told_from_itself_and_another_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.engines.audit.sampled.PERMUTATIONS", 199)
    same = [two_sample(drawn(Model.law, 2 * n), drawn(Model.law, 2 * n + 1), n) for n in range(20)]
    assert sum(each.p_texts <= 0.1 for each in same) <= 6
    assert sum((each.p_logprobs or 0) <= 0.1 for each in same) <= 6
    monkeypatch.setattr("router.engines.audit.sampled.PERMUTATIONS", 1999)
    sharper = two_sample(drawn(Model.law, 0), drawn((0.8, 0.1, 0.08, 0.01, 0.01), 1))
    assert sharper.p_texts < 0.01 and (sharper.p_logprobs or 0.0) < 0.01 and sharper.parted
    assert not two_sample(drawn(Model.law, 0), drawn(Model.law, 1)).parted


def test_the_discrepancy_is_that_of_its_formula() -> None:
    """Of two answers each: alike within either server 0.5 and 0.25, across 0.1 to 0.4."""
    kernel = np.array(
        [[1, 0.5, 0.1, 0.2], [0.5, 1, 0.3, 0.4], [0.1, 0.3, 1, 0.25], [0.2, 0.4, 0.25, 1]]
    )
    labels = np.array([[True, True, False, False], [True, False, True, False]])
    assert _mmd(kernel, labels) == pytest.approx(
        [0.5 + 0.25 - 2 * (0.1 + 0.2 + 0.3 + 0.4) / 4, 0.1 + 0.4 - 2 * (0.5 + 0.2 + 0.3 + 0.25) / 4]
    )


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.5])
def test_p_values_are_scipys(shift: float) -> None:
    """Which counts all of the 70 ways to label four answers of each server; ours are drawn."""
    rng = np.random.default_rng(3)
    found = rng.normal(size=8) + shift * (np.arange(8) < 4)
    kernel = np.exp(-((found[:, None] - found) ** 2))

    def first(these: Any) -> Any:
        return np.isin(np.arange(8), these)[None]

    for ours, theirs in (
        (
            lambda labels: np.abs(np.where(labels[0], 1.0, -1.0) @ found / 4),
            lambda a, b: abs(found[a].mean() - found[b].mean()),
        ),
        (
            lambda labels: _mmd(kernel, labels[0]),
            lambda a, b: float(_mmd(kernel, first(a))[0]),
        ),
    ):
        exact = permutation_test(
            (np.arange(4), np.arange(4, 8)),
            lambda a, b, of=theirs: of(a.astype(int), b.astype(int)),
            n_resamples=np.inf,
            alternative="greater",
        )
        assert len(exact.null_distribution) == 70
        assert _permuted(ours, [4], rng) == pytest.approx(exact.pvalue, abs=0.03)


def test_a_server_that_favours_the_likeliest_token_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shift of six points, which the other two tests do not see in so many answers."""
    monkeypatch.setattr("router.engines.audit.sampled.PERMUTATIONS", 999)
    favours = (0.46, 0.27, 0.18, 0.045, 0.045)
    plain, shifted = drawn(Model.law, 1, 8, 50), drawn(favours, 2, 8, 50)
    found = two_sample(plain, shifted)
    assert found.parted and found.p_likeliest is not None and found.p_likeliest < 2e-3
    assert min(found.p_texts, found.p_logprobs or 0) > 0.003  # no fault by these
    assert found.likeliest_excess == pytest.approx(0.06, abs=0.02)
    assert not two_sample(plain, drawn(Model.law, 3, 8, 50)).parted
    ties = Said("", (), (Place(" a", -0.7, {" a": -0.7, " b": -0.7}),) * 400, "stop")
    assert over(ties) == pytest.approx(0, abs=3)  # one of the two is always drawn


@pytest.mark.property
@pytest.mark.parametrize("kind", ["43% end", "top-p 0.95", "prompts unlike"])
def test_ends_and_filters_are_held_against_no_server(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both servers leave their ends unspelled, or filter alike, and give raw log-probabilities: a
    test by the numbers of one server alone accuses it."""
    monkeypatch.setattr("router.engines.audit.sampled.PERMUTATIONS", 199)
    many = 40 if FULL else 12
    found = [error_rates.audit_of(kind, seed).p_likeliest for seed in range(many)]
    assert all(p is not None for p in found)
    assert sum(p is not None and p <= 0.05 for p in found) <= binom.ppf(0.99, many, 0.05)


def test_answers_without_tokens_and_without_log_probabilities() -> None:
    """An answer that ends at once has none to name; a server that names none is told."""
    empty, spelled = Said("", (), (), "stop"), drawn(Model.law, 1, 1, 4)[0]
    found = two_sample([[empty, *spelled[:3]]], [[*spelled[1:], empty]])
    assert found.p_logprobs is not None and found.p_likeliest is not None
    silent = Said("a", (), (), "stop")
    one = two_sample([[silent, *spelled[:3]]], [[*spelled[1:], empty]])
    assert one.p_logprobs is None and one.p_likeliest is None
    told = " ".join(sentences(Audit([], 0.02, np.zeros(3), one)))
    assert "judged by their texts alone" in told


def test_a_fault_is_counted_where_it_could_have_been_seen() -> None:
    """Not behind a tie, nor where the server without drafts does not repeat itself."""
    request, places = AuditRequest("chat", "x", {}), said(" a")
    of = {"same": 50, "tie": 90, "unstable": 22}
    rows = [
        Compared(request, places, places, Parting("same", 1), verdict, False)
        for verdict, many in of.items()
        for _ in range(many)
    ]
    found = Audit(rows, 0.02, np.zeros(0), None)
    assert found.rarest == pytest.approx(1 - 0.05 ** (1 / 50))
    assert "50 were compared to their end: a fault that changes 5.8%" in sentences(found)[0]
    none = Audit(rows[60:], 0.02, np.zeros(0), None)
    assert none.rarest == 1 and "says nothing" in sentences(none)[0]


def said(*words: str, top: dict[str, float] | None = None) -> Said:
    places = tuple(Place(word, -0.1, {word: -0.1, **(top or {" b": -3.0})}) for word in words)
    return Said("".join(words), (), places, "stop")


def test_an_answer_that_ends_early_is_judged_by_the_place_where_it_ends() -> None:
    assert parting(said(" a", " a"), said(" a", " a"), 0.02).verdict == "same"
    assert parting(said(" a", " a"), said(" a"), 0.02).verdict == "fault"
    near = {" b": -0.1001}
    assert parting(said(" a", " a", top=near), said(" a"), 0.02).verdict == "tie"
    assert parting(said(" a"), said(" a", " a", top=near), 0.02).verdict == "tie"
    assert parting(said(" a"), said(" a", " a"), 0.02).verdict == "fault"


def test_a_server_that_does_not_take_its_own_likeliest_token_is_no_tie() -> None:
    plain, other = said(" a", top={" b": -0.1}), said(" b", top={" a": -0.01, " c": 2.0})
    assert parting(plain, other, 0.02).verdict == "fault"


def test_ties_are_as_wide_as_what_rounding_moves() -> None:
    def one(logprob: float, second: float) -> Said:
        top = {" a": logprob, " b": second, " c": -9.0}
        return Said(" a", (), (Place(" a", logprob, top),), "stop")

    pair = one(-0.1, -2.4), one(-0.14, -2.34)  # a gap of 2.3, and one of 2.2
    assert gaps_moved([pair]) == pytest.approx([0.1]) and rounding([pair]) == pytest.approx([0.04])
    none = np.zeros(0)
    assert tie_of(gaps_moved([pair]), none) == pytest.approx(0.1)
    assert tie_of(none, gaps_moved([pair])) == pytest.approx(0.2)
    assert tie_of(none, none) == 0.02 and tie_of(np.full(5, 9.0), none) == 0.5


def test_of_a_sure_model_ties_are_as_wide() -> None:
    """Its likely tokens' log-probabilities hardly move, and the gap at a tie does all the same."""
    rng = np.random.default_rng(0)

    def drawn_at(sure: float) -> tuple[float, float]:
        gaps = rng.exponential(sure, 20_000)
        moved = gaps + rng.normal(scale=0.05, size=len(gaps))
        pairs = [
            (_two(gap), _two(other)) for gap, other in zip(gaps, moved, strict=True) if other > 0
        ]
        return tie_of(np.zeros(0), gaps_moved(pairs)), float(gaps[moved < 0].max())

    for sure in (0.5, 5.0):
        tie, worst = drawn_at(sure)
        assert worst < tie < 0.25


def _two(gap: float) -> Said:
    most = -float(np.log1p(np.exp(-gap)))
    return Said(" a", (), (Place(" a", most, {" a": most, " b": most - gap}),), "stop")


def test_a_fault_does_not_make_its_own_ties() -> None:
    """Drafts move eleven of ten thousand log-probabilities by a quarter of a nat."""
    apart = np.concatenate([np.full(9989, 0.001), np.full(11, 0.25)])
    assert tie_of(np.full(4000, 0.001), apart) == 0.02


def test_broken_answers() -> None:
    tools = {"tools": [{"function": {"name": "f"}}]}
    whole, half = Said("", (("f", "{}"),), (), "tool_calls"), Said("", (("f", "{"),), (), "stop")
    assert not broken(whole, tools) and broken(half, tools)
    assert broken(Said("", (("g", "{}"),), (), "stop"), tools)
    assert not broken(Said("", (("f", "{"),), (), "length"), tools)
    for text, whole in (("[", False), ('{"a": 1', False), ('{"a": 1}', True)):
        message = {"content": text, "reasoning_content": "{ hm"}
        thinking = said_in({"choices": [{"message": message, "finish_reason": "stop"}]}, "it")
        for each in (thinking, Said(text, (), (), "stop")):
            assert broken(each, {"response_format": {}}) is not whole
