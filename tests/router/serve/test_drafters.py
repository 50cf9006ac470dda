"""Drafters in a server: warmed, told where somebody waited for one, passed
over where one cannot be loaded."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decoder_toys import native, save_tiny
from serve_toys import EOS, LETTERS, ToyPolicy, served

from decoders import Engine
from decoders.arms import arms_of
from decoders.common.errors import DraftpickError
from decoders.continuous_batching import batch_engine
from decoders.testing.tokenizers import Letters
from router.commands.serve.served import warm_up
from router.logs.reader import read_log
from router.logs.record import LoggedDecision
from router.routing.router import Router

CHAT = "/v1/chat/completions"
SIZES = {"vocab_size": len(LETTERS) + 1, "max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for seed, name in enumerate(("target", "copy", "other")):
        made[name] = tmp_path_factory.mktemp(name)
        layers = 2 if name == "target" else 1
        save_tiny(made[name], "llama", seed, SIZES | {"num_hidden_layers": layers})
    return made


def engine_of(folders: dict[str, Path]) -> Engine:
    """The arms that the toy policy knows, `copy` with a draft model, and one it never picks."""
    kinds: dict[str, Any] = {
        name: {"kind": "neural", "drafter": str(folders[name]), "length": {"k": 3}}
        for name in ("other", "copy")
    }
    arms = arms_of({"arms": kinds}, Path("toys"))
    own = {"tokenizer": Letters(LETTERS), "eos_ids": (EOS,)}
    return Engine(native(folders["target"]), arms, name="tiny", **own)


def logged(folder: Path) -> list[LoggedDecision]:
    """The lines of the log below the folder."""
    return read_log(folder / "log").decisions


def asked(prompt: str, **named: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, **named}


def test_a_wait_for_a_drafter_is_told_and_counted(folders: dict[str, Path]) -> None:
    with served(engine=engine_of(folders), slots=2) as server, server.http() as http:
        assert "draftpick_drafter_load_seconds" in http.get("/metrics").text  # before any
        told = asked("ab", explain=True)  # of even length: the policy picks `copy`
        first, second = (http.post(CHAT, json=told) for _ in range(2))
        assert first.headers["x-draftpick-arm"] == "copy"
        waited = float(first.headers["x-draftpick-load-s"])
        assert waited > 0
        assert first.json()["choices"][0]["draftpick"]["load_s"] == pytest.approx(waited, rel=1e-4)
        assert "x-draftpick-load-s" not in second.headers
        assert "load_s" not in second.json()["choices"][0]["draftpick"]
        metrics = http.get("/metrics").text
        assert "draftpick_drafter_load_seconds_count 1.0" in metrics
        arm = http.get("/stats").json()["arms"]["copy"]
        assert arm["requests"] == 2
        streamed = http.post(CHAT, json=asked("ab", model="other", explain=True, stream=True))
        last = [line for line in streamed.text.splitlines() if line.startswith("data: {")][-1]
        assert json.loads(last[6:])["draftpick"]["load_s"] > 0


@pytest.fixture
def broken(folders: dict[str, Path], tmp_path: Path) -> Iterator[dict[str, Path]]:
    yield {**folders, "copy": tmp_path}


def test_an_arm_that_cannot_be_loaded_is_passed_over(
    broken: dict[str, Path], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    engine = engine_of(broken)
    engine.strategy("autoregressive")  # so that only the failed attempt takes time
    router = Router(engine, ToyPolicy(), log=tmp_path / "log")
    result = router.generate("ab", max_new_tokens=6)
    assert result.arm == "autoregressive"
    assert result.skipped is not None and "holds no config.json" in result.skipped["copy"]
    assert result.result.load_s is not None and result.result.load_s > 0
    err = capfd.readouterr().err
    assert "the arm 'copy' cannot be loaded, and the next best answers" in err
    again = router.generate("ab", max_new_tokens=6)  # asleep: nobody tries, nobody waits for it
    assert again.arm == "autoregressive" and again.skipped is not None
    assert again.result.load_s is None
    with pytest.raises(DraftpickError, match=r"holds no config\.json"):
        router.generate("ab", arm="copy")
    lines = logged(tmp_path)
    assert [line.arm for line in lines] == ["autoregressive", "autoregressive", "copy"]
    assert lines[0].outcome.wall_s == pytest.approx(result.wall_s)  # without the wait


@pytest.mark.parametrize("from_its_config", [False, True])
def test_an_arm_that_the_prompt_outgrows_is_passed_over(
    folders: dict[str, Path], tmp_path: Path, from_its_config: bool
) -> None:
    """And drafts nothing where it is named; of the draft model's own context that is known once it
    is loaded."""
    short = tmp_path / "copy"
    shutil.copytree(folders["copy"], short)
    if from_its_config:
        config = json.loads((short / "config.json").read_text())
        (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 9}))
    engine = engine_of({**folders, "copy": short})
    if not from_its_config:
        engine.arms["copy"] = engine.arms["copy"].model_copy(update={"context_to": 9})
    router = Router(engine, ToyPolicy(), log=tmp_path / "log")
    brief = router.generate("ab", max_new_tokens=12)
    assert brief.arm == "copy" and brief.skipped is None
    assert brief.result.drafted > 0  # until prompt and answer have nine tokens
    long = "abcdefghij"
    made = router.generate(long, max_new_tokens=12)
    plain = router.generate(long, max_new_tokens=12, arm="autoregressive")
    named = router.generate(long, max_new_tokens=12, arm="copy")
    assert made.arm == "autoregressive" and made.skipped is not None
    assert made.skipped["copy"] == "it drafts up to 9 tokens, and the prompt has 10"
    assert made.result.ids == plain.result.ids == named.result.ids
    assert (named.arm, named.result.drafted, named.result.draft_work) == ("copy", 0, 0)
    drawn = [router.generate(long, max_new_tokens=2, dynamic=True, seed=s) for s in range(4)]
    assert {(each.arm, each.propensity) for each in drawn} == {("autoregressive", 1.0)}
    arms = [line.arm for line in logged(tmp_path)[:4]]
    assert arms == ["copy", "autoregressive", "autoregressive", "copy"]


class Reads(ToyPolicy):
    """Keeps the share of each prompt that it was told of."""

    origin = SimpleNamespace(arms_fingerprint="", features=("log-prompt-length", "prefix-share"))

    def __init__(self) -> None:
        self.shares: list[float] = []

    def choose(self, x: Any, rng: Any = None) -> Any:
        self.shares.append(float(x[1]))
        return super().choose(x, rng)


def test_a_policy_knows_what_of_a_prompt_is_kept(folders: dict[str, Path], tmp_path: Path) -> None:
    policy = Reads()
    router = Router(engine_of(folders), policy, log=tmp_path / "log")
    for prompt in ("abcdef", "abcdefgh"):
        router.generate(prompt, max_new_tokens=1, reuse=True)
    shares = [line.features["prefix-share"] for line in logged(tmp_path)]
    assert shares == policy.shares == [0.0, 0.75]


def test_a_forced_arm_that_cannot_be_loaded_is_the_servers_fault(broken: dict[str, Path]) -> None:
    with served(engine=engine_of(broken)) as server, server.http() as http:
        answer = http.post(CHAT, json=asked("ab", model="copy"))
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "arm_down"
        assert http.post(CHAT, json=asked("ab")).headers["x-draftpick-arm"] == "autoregressive"


def test_the_reward_is_not_charged_for_loading(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(folders)
    build = type(engine.arms["copy"]).build

    def slow(*given: Any) -> Any:
        time.sleep(0.5)
        return build(*given)

    monkeypatch.setattr(type(engine.arms["copy"]), "build", slow)
    router = Router(engine, ToyPolicy(), log=tmp_path / "log")
    started = time.perf_counter()
    result = router.generate("ab", max_new_tokens=6)
    took_s = time.perf_counter() - started
    assert result.arm == "copy"
    assert result.result.load_s is not None and result.result.load_s >= 0.5
    (line,) = logged(tmp_path)
    assert line.outcome.wall_s <= took_s - 0.5


def test_every_arm_answers_once_in_all_slots(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_of({**folders, "other": tmp_path})
    batch = batch_engine(engine, 2)
    warm_up({"default": Router(engine, ToyPolicy())}, batch)
    assert "arm other cannot answer" in capsys.readouterr().err
    assert all(slot.engine.made("copy") is not None for slot in batch.slots)
