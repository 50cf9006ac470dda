"""An encoder-decoder from its folder to its text: arms, limits, chat, refusals, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, native
from t5_toys import generate_t5, seq2seq_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from collect.replay.batch import Batch
from collect.replay.costs import measure
from decoders import Engine
from decoders.arms import DraftingRecipe, LengthRecipe, recipe
from decoders.backends.transformers.hf import HFBackend
from decoders.backends.transformers.hf_seq2seq import CONTEXT, HFSeq2SeqBackend
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.costs.measured import Costs
from decoders.models import targets
from decoders.records import Request, Sampling

WORDS = ["<pad>", "</s>", *(f"w{i}" for i in range(2, 16))]  # ids 0 to 15, as T5 begins
EOS = 1
TEXT = "w3 w4 w5 w9 w3 w4"
SOURCE = [3, 4, 5, 9, 3, 4, EOS]
ARMS = """
arms:
  small: {kind: neural, drafter: DRAFTER, length: {kind: fixed, k: 3}}
  copy: {kind: max_gram, shortest: 1, length: {kind: fixed, k: 6}}
"""


def with_tokenizer(model: Path, place: Path) -> Path:
    """A copy of a model folder whose tokenizer ends every text with EOS, as T5's does."""
    place.mkdir(parents=True)
    for file in model.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, "w2"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", EOS)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="w2"
    )
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def folder(tiny_t5: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(tiny_t5(eos_token_id=EOS), tmp_path_factory.mktemp("t5") / "target")


@pytest.fixture(scope="module")
def arms_file(tiny_t5: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("arms")
    drafter = with_tokenizer(tiny_t5(seed=5, eos_token_id=EOS), place / "drafter")
    (place / "arms.yaml").write_text(ARMS.replace("DRAFTER", str(drafter)))
    return place / "arms.yaml"


@pytest.fixture
def engine(folder: Path, arms_file: Path) -> Engine:
    return Engine.load(str(folder), arms_file, dtype="float32", device="cpu")


def test_loads_from_its_folder(engine: Engine) -> None:
    assert isinstance(engine.target, HFSeq2SeqBackend)
    assert engine.arm_names == ["autoregressive", "small", "copy"]
    assert engine.eos_ids == (EOS,)
    assert engine.context == CONTEXT


def test_a_chat_is_plain_text_with_its_end(engine: Engine) -> None:
    assert engine.encode_chat([{"role": "user", "content": TEXT}]) == SOURCE


def test_every_arm_answers_as_transformers(engine: Engine, folder: Path) -> None:
    """On one prefill, each arm in turn and back again."""
    ended = set()
    for source in (SOURCE, [3, EOS], [7, 11, 7, 11, EOS], [*range(2, 16), EOS]):
        theirs = generate_t5(seq2seq_model(folder), source, 16)
        prefilled = engine.prefill(source)
        for name in [*engine.arm_names, *reversed(engine.arm_names)]:
            result = engine.decode(name, source, Request(16), prefilled)
            assert (result.ids, result.prompt_ids) == (theirs, source)
            assert result.text == engine.tokenizer.decode(theirs, skip_special_tokens=True)
            assert result.draft_calls > 0 or name == "autoregressive"
            ended.add(result.finish_reason)
    assert "length" in ended


COMBINED = """
arms:
  vertical: {kind: vertical, review: DRAFTER, inner: {kind: max_gram, shortest: 1}}
  hierarchy:
    kind: hierarchy
    middle: DRAFTER
    small: {kind: neural, drafter: OTHER}
  horizontal:
    kind: horizontal
    parts:
      - {kind: neural, drafter: DRAFTER, length: {k: 2}}
      - {kind: max_gram, shortest: 1, length: {k: 5}}
  lossy: {kind: neural, drafter: DRAFTER, verifier: {rule: lossy_star, alpha: 0.2}}
  tree: {kind: tree, drafter: DRAFTER, branch: [3, 2]}
  bush: {kind: tree, drafter: OTHER, branch: [2, 2], every: true, length: {k: 3}}
"""


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_drafters_of_drafters_answer_as_transformers(
    penalty: float, folder: Path, tiny_t5: Tiny, tmp_path: Path
) -> None:
    """They need nothing of their own for encoder-decoders. At temperature 0 lossy arms lose
    nothing."""
    text = COMBINED
    for name, seed in (("DRAFTER", 0), ("OTHER", 5)):  # the first drafts as the target would
        model = with_tokenizer(tiny_t5(seed=seed, eos_token_id=EOS, num_layers=3), tmp_path / name)
        text = text.replace(name, str(model))
    (tmp_path / "arms.yaml").write_text(text)
    engine = Engine.load(str(folder), tmp_path / "arms.yaml", dtype="float32", device="cpu")
    request = Request(16, Sampling(repetition_penalty=penalty))
    for source in (SOURCE, [7, 11, 7, 11, EOS], [*range(2, 16), EOS]):
        theirs = generate_t5(seq2seq_model(folder), source, 16, repetition_penalty=penalty)
        for name in engine.arm_names[1:]:
            result = engine.decode(name, source, request)
            assert result.ids == theirs, name
            assert result.drafted > 0, name


def test_beams_and_early_leavers_share_a_target(folder: Path, tiny_t5: Tiny) -> None:
    """On one prefill, each arm in turn and back again, each as if it were alone."""
    drafter = {"drafter": str(tiny_t5(seed=5, num_layers=1))}
    arms = {
        "autoregressive": recipe(kind="autoregressive"),
        "beams": recipe(name="beams", kind="beam", beams=3),
        "ahead": recipe(name="ahead", kind="beam", beams=3, drafter=drafter),
        "all": recipe(name="all", kind="calm", threshold=1),
        "few": recipe(name="few", kind="calm", threshold=0, decay=1e9, confidence="softmax"),
        "tree": recipe(name="tree", kind="tree", branch=[3], **drafter),
    }
    engine = Engine(targets.load_backend(folder, CPU, torch.float32), arms, eos_ids=(EOS,))
    greedy = generate_t5(seq2seq_model(folder), SOURCE, 14)
    beams = generate_t5(seq2seq_model(folder), SOURCE, 14, num_beams=3)
    few = engine.decode("few", SOURCE, Request(14)).ids
    assert greedy != beams and few not in (greedy, beams)
    expected = {"beams": beams, "ahead": beams, "few": few}
    prefilled = engine.prefill(SOURCE)
    for name in [*engine.arm_names, *reversed(engine.arm_names)]:
        result = engine.decode(name, SOURCE, Request(14), prefilled)
        assert result.ids == expected.get(name, greedy), name


def test_seeds_reproduce_and_differ(engine: Engine) -> None:
    requests = [Request(14, Sampling(1.5), eos_ids=(), seed=seed) for seed in (1, 1, 2)]
    for name in engine.arm_names:
        one, two, other = (engine.decode(name, SOURCE, request).ids for request in requests)
        assert one == two != other


def test_stop_strings_and_streams(engine: Engine) -> None:
    chunks: list[list[int]] = []

    class Caught:
        def put(self, ids: torch.Tensor) -> None:
            chunks.append(ids.flatten().tolist())

        def end(self) -> None:
            chunks.append([])

    free = engine.decode("autoregressive", SOURCE, Request(12, eos_ids=()))
    word = free.text.split()[3]
    for name in engine.arm_names:
        chunks.clear()
        request = Request(12, stop=(word,), eos_ids=())
        result = engine.decode(name, SOURCE, request, streamer=Caught())
        assert result.finish_reason == "stop" and result.text.split()[-1] == word
        assert result.ids == free.ids[: len(result.ids)]
        assert chunks[0] == SOURCE and chunks[-1] == []
        assert [token for chunk in chunks[1:] for token in chunk] == result.ids


def test_source_and_answer_have_a_limit_each(engine: Engine) -> None:
    engine.check([3] * CONTEXT, Request(CONTEXT - 1))
    with pytest.raises(ContextTooLong):
        engine.check([3] * (CONTEXT + 1), Request(1))
    with pytest.raises(ContextTooLong):
        engine.check([3], Request(CONTEXT))


def test_costs_are_measured(tiny_t5: Tiny) -> None:
    target = HFSeq2SeqBackend(seq2seq_model(tiny_t5(vocab_size=128)), context=256)
    small = str(tiny_t5(seed=5, vocab_size=128))
    parts = {
        "small": recipe(name="small", kind="neural", drafter=small),
        "copy": recipe(name="copy", kind="max_gram"),
    }
    drafters = {
        name: part.make_drafter(target, None)
        for name, part in parts.items()
        if isinstance(part, DraftingRecipe)
    }
    costs = measure(target, drafters)
    assert len(costs.verify_s) == 17 and min(costs.verify_s) > 0
    assert costs.draft_s["small"] > 0 and costs.draft_s["copy"] >= 0


def test_collection_reads_sources_and_copies(folder: Path) -> None:
    """The target's answers one by one, its copier alone, and its copier replayed along them."""
    copy = recipe(name="copy", kind="max_gram", shortest=1, length=LengthRecipe(k=3))
    target = targets.load_backend(folder, CPU, torch.float32)
    engine = Engine(target, {"autoregressive": recipe(kind="autoregressive"), "copy": copy})
    batch = Batch(engine, Costs((0.01,) * 4, {"copy": 0.001}))  # the length is fixed
    sources = [SOURCE, [7, 11, 7, 11, EOS], [*range(2, 16), EOS]]
    answers = batch.target(sources, 14)
    assert answers.embeddings.shape == (3, 32)
    replays = batch.replay("copy", sources, answers.ids, 14)
    for source, ids, replayed in zip(sources, answers.ids, replays, strict=True):
        live = engine.decode("copy", source, Request(14))
        assert ids == live.ids
        assert (replayed.rounds, replayed.drafted, replayed.accepted, replayed.widths) == (
            live.rounds,
            live.drafted,
            live.accepted,
            live.widths,
        )
    assert sum(replayed.accepted for replayed in replays) > 0
    assert batch.arm("copy", [[3, 4, 5, 3]], 5).ids == [[4, 5, 3, 4, 5]]


def test_collection_reads_trees(folder: Path, tiny_t5: Tiny) -> None:
    """The drafter's own answer is a chain; rounds are the loop's."""
    model = str(tiny_t5(seed=5, num_layers=1))
    small: dict[str, Any] = {"drafter": model, "length": LengthRecipe(k=3)}
    copies = {"kind": "max_gram", "shortest": 1}
    nest: dict[str, Any] = {
        "kind": "cs_drafting", "models": [model, copies], "K": [[1, 3], [0, 1]]
    }  # fmt: skip
    arms = {
        "autoregressive": recipe(kind="autoregressive"),
        "chain": recipe(name="chain", kind="neural", **small),
        "tree": recipe(name="tree", kind="tree", branch=[3, 2], **small),
        "nest": recipe(name="nest", **nest),
        "nest-tree": recipe(name="nest-tree", branch=[4, 2], **nest),
    }
    engine = Engine(targets.load_backend(folder, CPU, torch.float32), arms)
    batch = Batch(engine, Costs((0.01,) * 4, dict.fromkeys(arms, 0.001)))
    sources = [SOURCE, [3], [*range(2, 16), EOS]]
    answers = batch.target(sources, 14).ids
    for chained, branched in (("chain", "tree"), ("nest", "nest-tree")):
        alone = [batch.arm(name, sources, 9).ids for name in (chained, branched)]
        assert alone[0] == alone[1]
        trees = batch.replay(branched, sources, answers, 14)
        chains = batch.replay(chained, sources, answers, 14)
        assert [tree.agree for tree in trees] == [chain.agree for chain in chains]
        for source, tree in zip(sources, trees, strict=True):
            live = engine.decode(branched, source, Request(14))
            assert (tree.rounds, tree.drafted, tree.accepted, tree.widths) == (
                live.rounds,
                live.drafted,
                live.accepted,
                live.widths,
            )


def test_collection_at_a_temperature(folder: Path, tiny_t5: Tiny) -> None:
    """Next to temperature 0 along the greedy answers it is the greedy replay; a tree is run."""
    model = str(tiny_t5(seed=5, num_layers=1))
    small: dict[str, Any] = {"drafter": model, "length": LengthRecipe(k=3)}
    arms = {
        "autoregressive": recipe(kind="autoregressive"),
        "chain": recipe(name="chain", kind="neural", **small),
        "copy": recipe(name="copy", kind="max_gram", shortest=1),
        "tree": recipe(name="tree", kind="tree", branch=[3, 2], **small),
    }
    engine = Engine(targets.load_backend(folder, CPU, torch.float32), arms)
    batch = Batch(engine, Costs((0.01,) * 4, dict.fromkeys(arms, 0.001)))
    sources, seeds = [SOURCE, [3], [*range(2, 16), EOS]], [1, 2, 3]
    answers = batch.target(sources, 14).ids
    for name in ("chain", "copy"):
        cold = batch.expected(name, sources, answers, 14, 1e-4, seeds)
        assert cold is not None
        for one, greedy in zip(cold, batch.replay(name, sources, answers, 14), strict=True):
            assert one.how == "exact"
            assert one.rounds == pytest.approx(greedy.rounds, abs=1e-6)
            assert one.accepted == pytest.approx(greedy.accepted, abs=1e-6)
    drawn = batch.target(sources, 14, 1.0, seeds).ids
    hot = batch.expected("chain", sources, drawn, 14, 1.0, seeds)
    assert hot is not None
    for one, ids in zip(hot, drawn, strict=True):
        # an end of sequence that was drafted is accepted, and no token of the target follows it
        assert len(ids) - 1 - 1e-9 <= one.rounds + one.accepted <= len(ids) + 1e-9
    assert sum(one.accepted for one in hot) > 0
    assert batch.expected("tree", sources, drawn, 14, 1.0, seeds) is None
    assert batch.live("tree", sources, 14, 1.0, seeds).replays is not None


def test_one_drafter_s_weights_are_in_memory_once(folder: Path, tiny_t5: Tiny) -> None:
    arms = {
        name: recipe(name=name, kind="neural", drafter=str(tiny_t5(seed=5, num_layers=1)))
        for name in ("one", "two")
    }
    target = targets.load_backend(folder, CPU, torch.float32)
    engine = Engine(target, {"autoregressive": recipe(kind="autoregressive"), **arms})
    one, two = (engine.strategy(name).drafter.backend for name in arms)  # type: ignore[attr-defined]
    assert isinstance(one, HFSeq2SeqBackend)
    assert one is not two and one.model is two.model
    theirs = generate_t5(seq2seq_model(folder), SOURCE, 14)
    for name in ("one", "two", "one"):
        assert engine.decode(name, SOURCE, Request(14), engine.prefill(SOURCE)).ids == theirs


# -- what does not go together --------------------------------------------------------------------


def refused(engine: Engine, arm: str, words: str) -> None:
    with pytest.raises(DraftpickError, match=words):
        engine.decode(arm, SOURCE, Request(3))
    assert engine.decode("autoregressive", SOURCE, Request(3)).ids  # the rest still works


def engine_with(target: Any, **fields: Any) -> Engine:
    arms = {"autoregressive": recipe(kind="autoregressive"), "odd": recipe(name="odd", **fields)}
    return Engine(target, arms)


def test_a_decoder_only_drafter_is_refused(tiny: Tiny, tiny_t5: Tiny) -> None:
    target = targets.load_backend(tiny_t5(), CPU, torch.float32)
    refused(
        engine_with(target, kind="neural", drafter=str(tiny())),
        "odd",
        "model is decoder-only and the target is an encoder-decoder",
    )


def test_an_encoder_decoder_does_not_draft_for_a_decoder(tiny: Tiny, tiny_t5: Tiny) -> None:
    refused(
        engine_with(native(tiny()), kind="neural", drafter=str(tiny_t5())),
        "odd",
        "model is an encoder-decoder and the target is decoder-only",
    )


def test_the_native_backend_does_not_take_it(tiny_t5: Tiny) -> None:
    with pytest.raises(DraftpickError, match=r"cannot run model: .*T5"):
        targets.load_backend(tiny_t5(), CPU, torch.float32, "native")


def test_the_causal_backend_names_the_other(tiny_t5: Tiny) -> None:
    with pytest.raises(DraftpickError, match="HFSeq2SeqBackend"):
        HFBackend(seq2seq_model(tiny_t5()))


def test_other_encoder_decoders_are_refused(tmp_path: Path) -> None:
    config = BartConfig(
        vocab_size=16,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=32,
    )
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(DraftpickError, match="bart is no T5-like encoder-decoder"):
        targets.load_backend(tmp_path, CPU, torch.float32)


def test_attention_that_takes_no_masks_is_refused(tiny_t5: Tiny) -> None:
    model = seq2seq_model(tiny_t5())
    model.set_attn_implementation("flex_attention")
    with pytest.raises(DraftpickError, match=r"'flex_attention' takes no masks; .*eager or sdpa"):
        HFSeq2SeqBackend(model)


def test_a_model_without_a_start_token_is_refused(tiny_t5: Tiny) -> None:
    model = seq2seq_model(tiny_t5())
    model.config.decoder_start_token_id = None
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(DraftpickError, match="names no decoder_start_token_id"):
        HFSeq2SeqBackend(model)


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["autoregressive", "small", "copy"])
def test_generate_on_the_command_line(
    arm: str, folder: Path, arms_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from router import cli

    options = f"--target {folder} --config {arms_file} --arm {arm} --max-new-tokens 12"
    code = cli.main(["generate", TEXT, *options.split(), "--dtype", "float32", "--device", "cpu"])
    said = capsys.readouterr()
    theirs = generate_t5(seq2seq_model(folder), SOURCE, 12)
    tokenizer = targets.load_tokenizer(folder)
    assert code == 0
    assert said.out.split() == tokenizer.decode(theirs, skip_special_tokens=True).split()
    assert f"[arm {arm} " in said.err


def test_collecting_a_named_arm_on_the_command_line(
    folder: Path,
    arms_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The target answers too, which all are compared with."""
    from router import cli

    costs = Costs((0.01,) * 4, {"copy": 0.001})  # measuring takes a larger vocabulary
    monkeypatch.setattr("collect.replay.costs.measure", lambda *given: costs)
    (tmp_path / "q.jsonl").write_text(json.dumps({"id": "q", "task": "qa", "turns": [TEXT]}))
    out, how = tmp_path / "out", ["--max-new-tokens", "5", "--dtype", "float32", "--device", "cpu"]
    files = ["--queries", str(tmp_path / "q.jsonl"), "--config", str(arms_file), "--out", str(out)]
    given = ["collect", "--target", str(folder), "--arms", "copy", *files, *how]
    assert cli.main(given) == 0, capsys.readouterr()
    assert "0 of 1 new rows are errors" in capsys.readouterr().out
