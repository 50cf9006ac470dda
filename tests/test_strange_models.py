"""Models of other people's making, through the commands: what is written, refused, gone on with."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from commands import Draftpick
from endpoint_toys import events
from safetensors.torch import load_file, save_file
from serve_toys import Served, served
from stored_tables import rows, table_of
from tiny_models import target_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import policies
from collect.align.write import write_outputs
from collect.queries import Query
from collect.replay.batch import Batch
from collect.store.tables import read_table
from collect.sweeps.batch import SweepOptions
from collect.sweeps.run import SweepReport, sweep
from decoders import Engine
from decoders.arms import load_arms
from decoders.arms.file import fingerprint
from decoders.common.errors import DraftpickError, NotANumber
from decoders.common.identity import identity
from decoders.models.targets import TemplateRefused, encode_chat, load_tokenizer
from decoders.options import EngineOptions
from decoders.records import Request
from policies import PolicyError
from router.routing.router import Router
from router.specbench.journal import Journal

PIECES = ["▁", ".", "▁.", "x", "▁x", "▁y", "n't", "▁do", "▁n't", ",", "▁,", "\n", "▁'s", "é", "z"]
ARMS = "arms: {copy: {kind: max_gram, shortest: 1, length: {kind: fixed, k: 3}}}"


def unigram(folder: Path) -> None:
    """A tokenizer that cleans up what it decodes, where it is asked to."""
    vocab = [("<unk>", 0.0), ("</s>", 0.0), *((p, -1.0 - at / 99) for at, p in enumerate(PIECES))]
    plain = Tokenizer(models.Unigram(vocab, unk_id=0))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", eos_token="</s>",
        clean_up_tokenization_spaces=True,
    ).save_pretrained(folder)  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes any of the pieces; those that have no text are as likely as others."""
    folder = target_model(tmp_path_factory.mktemp("made") / "target")
    unigram(folder)
    return folder


@pytest.fixture
def arms(tmp_path: Path) -> Path:
    path = tmp_path / "arms.yaml"
    path.write_text(ARMS)
    return path


def load(target: Path, arms: Path | None = None) -> Engine:
    return Engine.load(str(target), arms, dtype="float32", device="cpu")


def generate(prompt: list[object], target: Path, arms: Path, *more: object) -> list[object]:
    """The command."""
    how = ["--target", target, "--config", arms, "--device", "cpu"]
    return ["generate", *prompt, "--arm", "copy", *how, "--dtype", "float32", *more]


def collect(engine: Engine, texts: list[str], out: Path, **options: Any) -> SweepReport:
    queries = [Query(f"q{at}", "qa", (text,)) for at, text in enumerate(texts)]
    return sweep(engine, Batch(engine), queries, out, SweepOptions(**options))


def chat(server: Served, text: str, tokens: int, **more: Any) -> httpx.Response:
    body = {"model": "copy", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body | more, timeout=30)


def change(folder: Path) -> None:
    """Every weight of the model."""
    state = load_file(folder / "model.safetensors")
    save_file({k: v + 1 for k, v in state.items()}, folder / "model.safetensors", {"format": "pt"})


# -- one text -------------------------------------------------------------------------------------


def test_every_way_to_an_answer_writes_the_same_text(
    target: Path, arms: Path, tmp_path: Path, draftpick: Draftpick
) -> None:
    prompts = ["x y", "do x .", "y y y", "x , z"]
    engine = load(target, arms)
    collect(engine, prompts, tmp_path / "out", arms=("copy",), max_new_tokens=24)
    stored = read_table(tmp_path / "out", "queries").to_pylist()
    kept = {row["query_id"]: row["target_text"] for row in stored}
    (file := tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    words = generate(["--prompts", file], target, arms, "--max-new-tokens", 24, "--json")
    texts = {
        each: line["text"] for each, line in zip(prompts, draftpick(*words).lines, strict=True)
    }
    cleaned = [p for p in prompts if engine.tokenizer.clean_up_tokenization(texts[p]) != texts[p]]
    assert cleaned, "no answer that a clean-up would change"
    words = generate(cleaned[:1], target, arms, "--max-new-tokens", 24)
    assert draftpick(*words).out == f"{texts[cleaned[0]]}\n"
    with served(engine=load(target, arms)) as server:
        for at, prompt in enumerate(prompts):
            once = chat(server, prompt, 24).json()["choices"][0]["message"]["content"]
            deltas = [each["choices"] for each in events(chat(server, prompt, 24, stream=True))]
            streamed = "".join(c["delta"].get("content") or "" for each in deltas for c in each)
            assert texts[prompt] == once == streamed == kept[f"q{at}"]


# -- templates that refuse ------------------------------------------------------------------------

REFUSALS = (
    "{{ raise_exception('System role not supported') }}",
    "{{ messages[0].content + 1 }}",
    "{{ messages[0].nothing.more }}",
    "{{ 1 // 0 }}",
    "{{ [][3].content }}",
)


def test_a_template_that_refuses_a_system_message(
    target: Path, arms: Path, tmp_path: Path, draftpick: Draftpick
) -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    for refusal in REFUSALS:
        template = (
            "{% if messages[0].role == 'system' %}" + refusal + "{% endif %}"
            "{% for m in messages %}{{ m.content }} {% endfor %}"
        )
        tokenizer, says = load_tokenizer(target, template), r"refuses these messages .*system, user"
        with pytest.raises(TemplateRefused, match=f"chat template {says}"):
            encode_chat(tokenizer, messages)
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"messages": messages}))
    words = generate(["--prompts", file], target, arms, "--chat-template", template)
    said = draftpick(*words, code=2).err
    assert "refuses these messages" in said and "--debug" not in said
    engine = load(target, arms)
    engine.tokenizer = tokenizer
    with served(engine=engine) as server:
        made = chat(server, "y", 3, messages=messages)
        assert made.status_code == 400 and made.json()["error"]["param"] == "messages"
        assert "refuses these messages" in made.json()["error"]["message"]
        assert chat(server, "y", 3).status_code == 200


# -- names are for people -------------------------------------------------------------------------


def test_the_same_weights_in_another_folder(target: Path, arms: Path, tmp_path: Path) -> None:
    """The collection goes on, the policy serves; other weights of the old name are refused."""
    moved = shutil.copytree(target, tmp_path / "moved")
    texts, out = ["x y", "do x .", "y y y", "x , z", "z z"], tmp_path / "out"
    engine, other = load(target, arms), load(moved, arms)
    assert engine.embedder != other.embedder
    assert identity(engine.embedder) == identity(other.embedder)
    collect(engine, texts[:3], out, max_new_tokens=4)
    report = collect(other, texts, out, max_new_tokens=4)
    assert (report.already, report.collected) == (3, 2)
    table = table_of(out, "modelled")
    assert table.embedder == engine.embedder and len(table.query_ids) == 5
    assert table_of(out, "modelled", embedder=other.embedder).embedder == engine.embedder
    policy = policies.fit("regression", table).policy
    assert Router(other, policy).generate("x y", max_new_tokens=2).arm in policy.arms
    changed = shutil.copytree(target, tmp_path / "else" / "target")
    change(changed)
    third = load(changed, arms)
    with pytest.raises(PolicyError, match="was trained on embeddings"):
        Router(third, policy)
    with pytest.raises(DraftpickError, match="other settings: target"):
        collect(third, texts, out, max_new_tokens=4)


def test_the_same_drafter_in_another_place(target: Path, tmp_path: Path) -> None:
    """Its arm is the same one; other weights in the same place make another."""

    def drafted(folder: Path) -> str:
        inner = f"{{kind: neural, drafter: '{folder}', length: {{k: 2}}}}"
        file = tmp_path / "arms.yaml"
        file.write_text(f"arms: {{two: {inner}, deep: {{kind: hybrid, model: {inner}}}}}")
        return fingerprint(load_arms(file))

    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(target, here)
    known = drafted(here)
    here.rename(there)
    assert drafted(there) == known
    change(there)
    assert drafted(there) != known
    there.rename(here)
    assert drafted(here) != known


def test_an_engine_stands_for_the_weights_that_it_loaded(target: Path, tmp_path: Path) -> None:
    """It reads a drafter's files once, not at every answer's line in a log."""
    drafter = shutil.copytree(target, tmp_path / "drafter")
    file = tmp_path / "arms.yaml"
    file.write_text(f"arms: {{two: {{kind: neural, drafter: '{drafter}', length: {{k: 2}}}}}}")
    engine = load(target, file)
    known = engine.arms_fingerprint(["two"])
    change(drafter)
    assert engine.arms_fingerprint(["two"]) == known
    assert load(target, file).arms_fingerprint(["two"]) != known


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a@0123abcd/float32", "b/c@0123abcd/float32", True),
        ("a@0123abcd/float32", "a@0123abcd/bfloat16", False),
        ("a@0123abcd+00112233/float32", "b@0123abcd+00112233/float32", True),
        ("a@0123abcd+00112233/float32", "a@0123abcd/float32", False),
        ("target:a@0123abcd", "target:b@0123abcd", True),
        ("target:a@0123abcd", "sentence:a@0123abcd", False),
        ("custom@unnamed/float32", "other@unnamed/float32", False),
        ("any", "any", True),
    ],
)
def test_identities(one: str, other: str, same: bool) -> None:
    assert (identity(one) == identity(other)) == same


def test_a_benchmark_goes_on_likewise(tmp_path: Path) -> None:
    Journal(tmp_path, {"target": "a@0123abcd/float32", "seed": 1})
    Journal(tmp_path, {"target": "b@0123abcd/float32", "seed": 1})
    for other in ({"target": "a@0123abce/float32", "seed": 1}, {"target": "a@0123abcd/float32"}):
        with pytest.raises(DraftpickError, match="other settings"):
            Journal(tmp_path, other)


# -- nan ------------------------------------------------------------------------------------------


def test_one_token_of_nan(
    target: Path, arms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    draftpick: Draftpick,
) -> None:  # fmt: skip
    """Its queries fail and no others; the table is made of the rest."""
    broken = shutil.copytree(target, tmp_path / "broken")
    state = load_file(broken / "model.safetensors")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    state["lm_head.weight"][2 + PIECES.index("z")] = -state["lm_head.weight"].mean(0)
    state["model.embed_tokens.weight"][2 + PIECES.index("z")] = torch.nan
    save_file(state, broken / "model.safetensors", {"format": "pt"})
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    engine = load(broken, arms)
    out, texts = tmp_path / "out", ["x y", "do x .", "y y y", "x z", "x , x"]
    assert collect(engine, texts, out, max_new_tokens=2).errors == 2
    errors = {key[0]: row["error"] for key, row in rows(out).items() if row["error"]}
    assert set(errors) == {"q3"} and "no numbers (nan)" in errors["q3"]
    assert len(table_of(out, "modelled").query_ids) == 4
    lines = tmp_path / "queries.jsonl"
    asked = [{"id": f"q{at}", "task": "qa", "turns": [text]} for at, text in enumerate(texts)]
    lines.write_text("".join(json.dumps(row) + "\n" for row in asked))
    own = EngineOptions(str(broken), dtype="float32", device="cpu")
    written = write_outputs([lines], tmp_path / "align", own, 2, None).read_text().splitlines()
    assert {json.loads(line)["id"] for line in written} == {"q0", "q1", "q2", "q4"}
    assert "the query 'q3' is left out" in capsys.readouterr().err
    policy = policies.fit("regression", table_of(out, "modelled")).policy
    with pytest.raises(NotANumber):
        Router(engine, policy).generate("x z")
    assert Router(engine, policy).generate("x y", max_new_tokens=2).result.ids
    assert "no numbers (nan)" in draftpick(*generate(["x z"], broken, arms), code=2).err
    for slots in (1, 2):
        with served(engine=load(broken, arms), slots=slots) as server:
            for prompt, status in (("x z", 500), ("x y", 200), ("x z", 500), ("x y", 200)):
                made = chat(server, prompt, 2)
                assert made.status_code == status, made.text
                if status == 500:
                    assert made.json()["error"]["code"] == "not_a_number"


def test_a_target_without_an_end_token_answers(target: Path, arms: Path, tmp_path: Path) -> None:
    endless = shutil.copytree(target, tmp_path / "endless")
    for name in ("config.json", "generation_config.json"):
        config = json.loads((endless / name).read_text())
        (endless / name).write_text(json.dumps(config | {"eos_token_id": None}))
    engine = load(endless, arms)
    assert engine.eos_ids == ()
    for arm in engine.arm_names:
        result = engine.decode(arm, [3, 4], Request(9))
        assert len(result.ids) == 9 and result.finish_reason == "length"
    out = tmp_path / "out"
    assert collect(engine, ["x y", "x", "y"], out, max_new_tokens=5).errors == 0
    policy = policies.fit("regression", table_of(out, "modelled")).policy
    assert len(Router(engine, policy).generate("x y", max_new_tokens=5).result.ids) == 5
