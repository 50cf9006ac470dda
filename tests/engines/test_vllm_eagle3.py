"""A head that `draftpick align` trains, in vLLM: minutes on two cores."""

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_server import queries, served

from decoders import Engine
from decoders.arms import recipe
from decoders.options import EngineOptions
from decoders.records import Request
from decoders.zoo.catalogue import TARGET
from router import cli

pytestmark = pytest.mark.engines

LENGTH = 4
NEW = 24  # tokens of an answer, as of `Server.ask`


def loaded(**arm: Any) -> Engine:
    """The target in float32 with one arm."""
    arms = {"arm": recipe(name="arm", **arm)}
    return Engine.from_options(
        EngineOptions(TARGET, arms=arms, dtype="float32", device="cpu", context=1024)
    )


def trained(folder: Path, engine: Engine, texts: list[str]) -> Path:
    """On the target's own answers to these questions, for three minutes."""
    lines: dict[str, list[dict[str, object]]] = {"queries": [], "outputs": []}
    for number, text in enumerate(texts):
        ids = engine.encode_chat([{"role": "user", "content": text}])
        made = engine.decode("arm", ids, Request(max_new_tokens=NEW))
        name = {"id": str(number), "task": "any"}
        lines["queries"].append({**name, "turns": [text]})
        ended = made.finish_reason == "stop"
        lines["outputs"].append({**name, "ids": made.ids, "ended": ended})
    words = ["align", "--kind", "eagle3", "--out", str(folder / "heads"), "--minutes", "3"]
    for option, rows in lines.items():
        path = folder / f"{option}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words += [f"--{option}", str(path)]
    assert cli.main([*words, "--target", TARGET, "--device", "cpu"]) == 0
    return folder / "heads" / "model"


def test_vllm_accepts_what_we_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = queries(32)
    head = trained(tmp_path, loaded(kind="autoregressive"), queries(96))
    engine = loaded(kind="eagle3", drafter=str(head), length={"k": LENGTH})
    drafted = accepted = 0
    ours = []
    for text in asked:
        ids = engine.encode_chat([{"role": "user", "content": text}])
        made = engine.decode("arm", ids, Request(max_new_tokens=NEW))
        drafted, accepted = drafted + made.drafted, accepted + made.accepted
        ours.append(made.ids)
    settings = {"method": "eagle3", "model": str(head), "num_speculative_tokens": LENGTH}
    with served(tmp_path, speculative=settings) as server:
        assert server.ask(asked) == ours
        theirs = server.counted("num_accepted_tokens") / server.counted("num_draft_tokens")
    with capsys.disabled():
        print(f"\naccepted by vLLM {theirs:.3f}, here {accepted / drafted:.3f} of {drafted}")
    assert accepted > 20
    assert theirs == pytest.approx(accepted / drafted, abs=0.05)
