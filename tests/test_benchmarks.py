"""The scripts that measure, on a model of a few random weights: they run, their books add up."""

import ast
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from json_answers import Answered, ratio
from ratios import faster

from decoders.testing.tokenizers import word_tokenizer

ROOT = Path(__file__).resolve().parent.parent
Main = Callable[..., None]
WORDS = ["a", "boat", "car", "house", "red", "blue", "green", "white", "sees", "the", "and", "?"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %} ?"
VOCAB = 128
OURS = ("collect", "decoders", "policies", "router")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, script: Main) -> Path:
    """A random Llama with a tokenizer of a few words."""
    place = tmp_path_factory.mktemp("model")
    source = place / "source"
    word_tokenizer(
        ["<unk>", "<s>", "</s>", *WORDS], "<unk>", TEMPLATE,
        unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    ).save_pretrained(source)  # fmt: skip
    config = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    (source / "config.json").write_text(json.dumps(config))
    folder = place / "model"
    sizes = ["--hidden", 64, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--mlp", 96]
    script("random_llama", folder, "--tokenizer-of", source, *sizes, "--device", "cpu")
    return folder


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    rows = [
        {"id": f"{task}-{n}", "task": task, "turns": [" ".join(WORDS[n : n + 3 + n])]}
        for task in ("qa", "math")
        for n in range(3)
    ]
    path = tmp_path / "queries.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def arms(tmp_path: Path) -> Path:
    path = tmp_path / "arms.yaml"
    path.write_text("arms:\n  copy: {kind: max_gram, length: {k: 3}}\n")
    return path


def held(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_a_random_llama_is_one_that_transformers_reads(model: Path, script: Main) -> None:
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        states = read(torch.tensor([[1, 5, 9, 4]]), output_hidden_states=True).hidden_states
    assert 0.2 < float(states[-1].std()) < 5
    before = (model / "model.safetensors").stat().st_mtime_ns
    script("random_llama", model)
    assert (model / "model.safetensors").stat().st_mtime_ns == before


def test_equality_is_counted_and_gone_on_with(
    model: Path, queries: Path, arms: Path, tmp_path: Path, script: Main
) -> None:
    options = ["--target", model, "--queries", queries, "--config", arms, "--max-new-tokens", 8]
    out = tmp_path / "equal.jsonl"
    script("lossless", *options, "--limit", 1, "--backend", "native", "hf", "--out", out)
    assert len(out.read_text().splitlines()) == 2
    with out.open("a") as stream:
        stream.write('{"id": "cut o')
    options += ["--backend", "native", "hf", "--out", out]
    script("lossless", *options, "--batch", 3)
    found = held(out.with_suffix(".json"))
    assert found["queries"] == 6
    labels = {f"{a}, float32 {b}" for a in ("autoregressive", "copy") for b in ("native", "hf")}
    assert set(found["arms"]) == labels
    for arm in found["arms"].values():
        assert arm["equal"] + arm["part_at_a_tie"] == arm["compared"] == 6

    with pytest.raises(SystemExit):
        script("lossless", *options, "--arms", "copy", "--backend", "native")
    with pytest.raises(SystemExit):
        script("lossless", *options, "--batch", 3, "--max-new-tokens", 9)


def test_turns_and_what_8_bits_lose_are_measured(model: Path, tmp_path: Path, script: Main) -> None:
    turns, loss = tmp_path / "turns.json", tmp_path / "loss.json"
    options = ["--target", model, "--dtype", "float32"]
    script("turns", *options, "--tokens", 60, "--new", 5, "--repeats", 1, "--out", turns)
    (found,) = held(turns)["lengths"]
    assert found["tokens"] == 60 and found["new_s"] > 0 and found["kept_over_new"] > 0
    script("kv_loss", *options, "--context", 30, "--texts", 2, "--max-new-tokens", 4,
           "--out", loss)  # fmt: skip
    (found,) = held(loss)["lengths"]
    assert 2 <= found["tokens"] <= 8 and 0 < found["mean_nats"] < 0.01
    assert held(loss)["target"].endswith("float32+kv8")


def test_a_wrong_answer_is_told(
    model: Path, queries: Path, arms: Path, tmp_path: Path, script: Main,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from dataclasses import replace

    from decoders import DecodeResult, Engine

    honest = Engine.decode

    def decode(engine: Engine, arm: str, *rest: Any, **more: Any) -> DecodeResult:
        if arm == "copy" and engine.target.dtype == torch.bfloat16:
            raise RuntimeError("no kernel")
        result = honest(engine, arm, *rest, **more)
        wrong = [(token + 1) % VOCAB for token in result.ids]
        return replace(result, ids=wrong) if arm == "copy" else result

    monkeypatch.setattr(Engine, "decode", decode)
    out = tmp_path / "self.jsonl"
    options = ["--target", model, "--queries", queries, "--config", arms, "--max-new-tokens", 4]
    with queries.open("a") as stream:
        stream.write(json.dumps({"id": "long", "task": "qa", "turns": ["a " * 9000]}) + "\n")
    dtypes = ["--dtype", "float32", "auto", "--backend", "native"]
    script("lossless", *options, *dtypes, "--against", "self", "--out", out)
    assert len(out.read_text().splitlines()) == 7
    found = held(out.with_suffix(".json"))["arms"]
    assert found["autoregressive, auto native"]["equal"] == 6
    assert found["autoregressive, auto native"]["failed"] == 1  # the prompt that is too long
    lied = found["copy, float32 native"]
    assert (lied["equal"], lied["compared"], lied["part_at_a_tie"]) == (0, 6, 0)
    assert lied["largest_gap"] > 0
    assert found["copy, auto native"]["failed"] == 7


def test_speed_is_kept_prompt_by_prompt(
    model: Path, queries: Path, arms: Path, tmp_path: Path, script: Main
) -> None:
    out = tmp_path / "speed.json"
    options = ["--target", model, "--queries", queries, "--config", arms, "--max-new-tokens", 4]
    options += ["--device", "cpu", "--exit-layer", 0, "--no-compile", "--out", out, "--resume"]
    options += ["--dtype", "float32", "bfloat16:native", "float32:graphs"]
    script("decode", *options, "--repeats", 1, "--minutes", 0)  # no prompt fits into that
    assert not out.exists()
    script("decode", *options, "--repeats", 1)
    first = held(out)
    script("decode", *options, "--repeats", 3)
    found = held(out)
    assert found["prompts"] == 4  # two a task
    assert found["memory_mb"].keys() == found["tokens_per_s"].keys()
    own = {"autoregressive", "copy", "autoregressive, bfloat16, native", "copy, bfloat16, native"}
    assert own | {"transformers", "transformers prompt lookup"} <= set(found["tokens_per_s"])
    for name, seconds in found["seconds"].items():
        assert [len(times) for times in seconds] == [3] * 4
        assert [times[:1] for times in seconds] == first["seconds"][name]
    plain = found["ratios"]["autoregressive"]["x our plain"]
    assert plain == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    assert found["tokens_per_round"]["autoregressive"] == 1.0

    longer = arms.with_name("longer.yaml")
    longer.write_text(arms.read_text().replace("k: 3", "k: 4"))
    for other in (["--note", "another"], ["--gguf-draft", "a.gguf"], ["--config", longer]):
        with pytest.raises(SystemExit):
            script("decode", *options, "--seed", 1, *other)


def test_every_engine_is_charged_for_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import decode

    held = [100.0]

    def load(*given: Any, dtype: str, **more: Any) -> str:
        held[0] += 10 if dtype == "bfloat16" else 3
        return dtype

    monkeypatch.setattr(decode.Engine, "load", load)
    monkeypatch.setattr(decode, "held_mb", lambda: held[0])
    given = Namespace(target="x", config=None, arms="", device="cpu", dtype=["bfloat16", "int4"])
    assert [(dtype, grew) for dtype, _, grew in decode.loaded(given)] == [
        ("bfloat16", 10), ("int4", 3)
    ]  # fmt: skip


def test_floors_and_shares(model: Path, arms: Path, tmp_path: Path, script: Main) -> None:
    out = tmp_path / "floor.json"
    options = ["--target", model, "--config", arms, "--device", "cpu", "--max-new-tokens", 4]
    script("floor", *options, "--dtype", "float32", "bfloat16", "--out", out)
    found = held(out)
    matrices = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64  # of a layer
    read = 2 * (matrices + 2 * 64) + 64 + VOCAB * 64
    assert found["weights_bytes"] == {"float32": 4 * read, "bfloat16": 2 * read}
    assert all(len(widths) == len(found["widths"]) for widths in found["pass_s"].values())
    for shares in found["rounds"].values():
        assert sum(shares[part] for part in ("draft", "verify", "other")) == pytest.approx(1)


def test_collection_is_timed_by_its_parts(
    model: Path, queries: Path, arms: Path, tmp_path: Path, script: Main
) -> None:
    out = tmp_path / "collect.json"
    options = ["--target", model, "--queries", queries, "--config", arms, "--max-new-tokens", 4]
    script("collect_speed", *options, "--batch", 2, "--device", "cpu", "--out", out)
    found = held(out)
    assert found["queries"] == 6 and found["failed"] == {}
    parts = {"target", "copy, alone", "copy, replayed"}
    assert set(found["seconds_of"]) == parts
    assert sum(found["seconds_of"].values()) < found["seconds"]


def timed(place: Path, seed: int, count: int = 60) -> None:
    """Made-up times: `one` is best where the first number of the embedding is above 0."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        vector = rng.normal(size=4).astype(np.float32)
        seconds = {"autoregressive": 1.0, "one": 0.9, "two": 0.8}
        seconds["one" if vector[0] > 0 else "two"] = 0.5
        arms = {name: [[10, 10 * s, 9, 0, 0]] for name, s in seconds.items()}
        row = {"id": f"q{number}", "task": "qa", "prompt": 5, "arms": arms, "looped": number == 0}
        row |= {"group": row["id"], "embedding": vector.tolist()}
        lines.append(json.dumps(row))
    Path(f"{place}.jsonl").write_text("\n".join(lines) + "\n")
    Path(f"{place}.about.json").write_text(json.dumps({"embedder": "e", "arms": "f"}))


def test_policies_are_judged_on_other_queries_times(tmp_path: Path, script: Main) -> None:
    for name, seed in (("train", 0), ("held", 1)):
        timed(tmp_path / name, seed)
    out = tmp_path / "routed.json"
    options = ["--train", tmp_path / "train", "--held-out", tmp_path / "held", "--out", out]
    script("routed", "judge", *options, "--seeds", 1)
    rows = held(out)["rows"]
    assert rows["autoregressive"]["gain"] == pytest.approx(1)
    assert rows["best for each query"]["gain"] == pytest.approx(2)
    assert rows["best fixed (two)"]["gain"] == pytest.approx(rows["two"]["gain"])
    assert rows["two"]["over_fixed"] == pytest.approx(1)
    assert rows["two"]["gain"] < rows["regression"]["gain"] <= 2  # there is something to learn
    assert rows["regression"]["low"] > 1
    assert all(took > 0 for took in held(out)["choosing_s"].values())
    script("routed", "judge", *options, "--seeds", 1, "--leave-out", "two")
    assert "two" not in held(out)["rows"]


def test_every_arm_is_timed_once_a_query_and_a_run_goes_on(
    model: Path, queries: Path, arms: Path, tmp_path: Path, script: Main
) -> None:
    place = tmp_path / "timed"
    options = ["--queries", queries, "--target", model, "--config", arms, "--max-new-tokens", 4]
    options += ["--device", "cpu", "--dtype", "float32", "--out", place]
    script("routed", "measure", *options, "--limit", 1)
    journal = Path(f"{place}.jsonl")
    first = journal.read_text()
    journal.write_text(first + '{"id": "cut o')
    script("routed", "measure", *options)
    whole = journal.read_text()
    assert whole.startswith(first) and len(whole) > len(first)
    rows = [json.loads(line) for line in whole.splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) == 6
    for row in rows:
        assert {len(turns) for turns in row["arms"].values()} == {1}
        assert len({turns[0][0] for turns in row["arms"].values()}) == 1  # lossless arms
        assert len(row["embedding"]) == 64
    with pytest.raises(SystemExit, match="other settings"):
        script("routed", "measure", *options, "--temperature", 1)


def test_a_check_of_fused_kernels_says_what_is_wrong() -> None:
    pytest.importorskip("triton")
    from fused_check import faults
    from gpu_summary import lines_of

    right = {"errors": {"gated": 0.004}, "same bits at every width": True, "counts at zero": True}
    wrong = {
        "errors": {"gated": 0.004, "head": float("inf"), "norm": float("nan"), "added": 0.3},
        "same bits at every width": False,
    }
    found: dict[str, Any] = {"device": "one", "compiling": [], "check a": right}
    assert [*faults(found)] == []
    passes = {"bytes": 7, "fused": {"failed": "Traceback"}, "kernels": []}
    found |= {"check b": wrong, "a": passes, "compiling": ["a: no compiler"]}
    found["faults"] = [*faults(found)]
    assert found["faults"] == [
        "a: no compiler", "check b: head is inf off", "check b: norm is nan off",
        "check b: added is 0.3 off", "check b: not same bits at every width", "a: fused: failed",
    ]  # fmt: skip
    assert [*lines_of(found)] == ["2 checks of fused kernels, 6 faults", *found["faults"]]


def test_the_gpu_script_is_whole(tmp_path: Path) -> None:
    """Its steps have a time each, a step that is not known is told, and a done one is passed."""
    path = ROOT / "benchmarks" / "gpu.sh"
    text = path.read_text()
    timed = set(text.partition("declare -A SECONDS_OF=(")[2].partition("\n)")[0].split("[")[1:])
    names = {entry.partition("]")[0] for entry in timed}
    started = {line.split()[1] for line in text.splitlines() if line.strip().startswith("run ")}
    literal = {name for name in started if "$" not in name}
    assert literal | {name for name in names if name.startswith("rounds-")} == names
    for name in names:
        (tmp_path / f"{name}.done").touch()
    command = ["bash", str(path), str(tmp_path), "collect", "sweep"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "collect: done before" in done.stdout
    assert "no such step: sweep" in done.stdout
    assert (tmp_path / "figures.tar.gz").is_file()
    (tmp_path / "arms.yaml").touch()
    environment["ARMS"] = "arms.yaml"  # where it is called from
    again = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1 and "measured with other variables" in again.stderr
    assert f"ARMS={tmp_path / 'arms.yaml'}" in again.stderr


def test_risk_control_over_many_splits(script: Main, capsys: pytest.CaptureFixture[str]) -> None:
    script("risk_control_splits", "--simulate", 600, "--splits", 200, "--max-loss", 0.1)
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    told = [row for row in rows if row and row[0] == "0.1,"]
    assert [row[1] for row in told] == ["in", "0.8", "0.95"]
    for row in told[1:]:
        assert row[2] == "300" and float(row[3]) <= 1 - float(row[1])
        assert float(row[4]) <= 0.1 and row[6].startswith("+")


def test_prompts_are_timed_by_their_length(
    model: Path, script: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ["--target", model, "--backend", "native", "hf", "--dtype", "float32"]
    script("prompts", *ways, "--tokens", 5, 40, "--repeats", 1)
    told = capsys.readouterr().out
    assert "native, float32" in told and "hf, float32" in told
    assert [line.split("│")[1].strip() for line in told.splitlines() if "│" in line] == ["5", "40"]


def test_answers_in_json_are_validated(
    tmp_path: Path, script: Main, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from grammar_toys import toy_engine
    from serve_toys import served

    from router.serve.app import Settings
    from router.serve.parsing import Limits

    out = tmp_path / "json.json"
    with served(Settings(Limits(most_tokens=1000)), engine=toy_engine(seed=1)) as server:
        options = ["--url", server.url, "--model", "copy", "--max-new-tokens", 1000, "--out", out]
        with pytest.raises(SystemExit) as ended:
            script("json_answers", *options, "--requests", 5)
        assert ended.value.code == 0
        assert "python benchmarks/json_answers.py" in capsys.readouterr().out
        found = held(out)["figures"]
        assert set(found) == {"all", "person", "order", "meeting", "review", "journey"}
        assert found["all"]["valid"] == found["all"]["requests"] == 5
        assert found["all"]["cut"]["tokens"] <= found["all"]["json"]["tokens"]
        for way in ("cut", "free"):
            over = found["all"][way]["json_over_it"]
            assert over["low"] <= over["ratio"] <= over["high"]
        monkeypatch.setattr("json_answers.what_is_wrong", lambda *_: "all of it")
        with pytest.raises(SystemExit) as ended:
            script("json_answers", *options, "--requests", 1)
        assert ended.value.code == 1


@pytest.mark.slow
def test_the_default_target_writes_valid_json(tmp_path: Path, script: Main) -> None:
    out = tmp_path / "json.json"
    with pytest.raises(SystemExit) as ended:
        script("json_answers", "--requests", 3, "--ways", "json", "--temperature", 1, "--out", out,
               "--", "--slots", 2)  # of more it would measure what their passes cost  # fmt: skip
    assert ended.value.code == 0 and held(out)["figures"]["all"]["valid"] == 3


@pytest.mark.slow
def test_agents_traffic_is_counted_and_timed(
    tmp_path: Path, script: Main, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One session of each kind, by every arm; a second turn finds its first one read."""
    out = tmp_path / "agents.json"
    few = ["--limit", 1, "--plain", 1, "--max-new-tokens", 8, "--out", out]
    with monkeypatch.context() as patch:
        edits = import_module("agents").EDITS
        assert len(edits) == 8
        patch.setattr("agents.EDITS", edits[:3])  # counting reads all before each answer anew
        script("agents", *few)
    assert held(out)["edits: hybrid-suffix"]["tokens"] == 3 * 7
    script("agents", "--live", *few)
    found = held(out)["traffic"]
    assert set(found) == {"jobs", "edits", "tools", "questions", "all"}
    assert found["edits"]["cached_tokens"] > 0.5 * found["edits"]["prompt_tokens"]
    assert found["all"]["requests"] == 1 + 8 + 3 + 1
    for each in found["all"]["arms"].values():
        assert each["low"] <= each["over_plain"] <= each["high"] and each["differ"] == 0
    assert "suffix in the hybrid" in capsys.readouterr().out


def test_a_ratio_of_speeds_and_its_interval() -> None:
    ours, theirs = [[10, 1.0], [10, 1.0]], [[10, 3.0], [10, 1.0]]
    assert faster(ours, theirs) == {"ratio": 2.0, "low": 1.0, "high": 3.0}

    def asked(seconds: float, many: int) -> list[Answered]:
        return [
            Answered(f"s{n // many}", seconds * (1 + n // many), 10, "", None)
            for n in range(2 * many)
        ]

    uneven = [Answered(one.schema, 1.0, 10, "", None) for one in asked(1.0, 50)]
    found = ratio(asked(1.0, 50), uneven)  # two schemas, however many requests
    assert found == ratio(asked(1.0, 1), uneven[::50]) and found["low"] < found["high"] - 0.4
    one = ratio(asked(1.0, 50)[:50], uneven[:50])
    assert one["low"] == one["ratio"] == one["high"] == pytest.approx(1)
    alone = faster([[3, 0.7], [7, 0.1], [1, 0.3]], [[3, 0.9], [7, 0.3], [1, 0.7]], ["one"] * 3)
    assert alone["low"] == alone["ratio"] == alone["high"]  # a unit alone shows no spread


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda p: p.stem)
def test_what_a_script_imports_of_the_packages_exists(path: Path) -> None:
    """Inside its functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
            module = import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    import_module(f"{node.module}.{name.name}")
