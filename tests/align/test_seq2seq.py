"""Alignment of an encoder-decoder's exits: rows taken apart, states, losses, and the whole run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from align_kit import RECIPE, command, config_for, endless, nothing

from collect.align.learners import (
    LensLearner,
    Seq2SeqDraftLearner,
    agreement,
    apart,
    seq2seq_states,
)
from collect.align.run import align
from decoders import Engine, Request
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend
from decoders.common.errors import DraftpickError
from decoders.models.targets import fingerprint
from decoders.sampling.draft_vocab import DraftVocab

UNSEEN = "w{0} w{2} w3"

# a prompt 5 6 7 answered 8 9, a prompt 4 answered 3 2 1; padded with 0
IDS = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 2, 1, 0]])
LABELS = torch.tensor([[-100, -100, 8, 9, -100], [3, 2, 1, -100, -100]])


@pytest.fixture(scope="module")
def t5(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random T5 of three decoder layers with the other target's tokenizer."""
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("t5")
    AutoTokenizer.from_pretrained(target).save_pretrained(folder)
    config = T5Config(
        vocab_size=43, d_model=32, d_kv=8, d_ff=64, num_heads=4, num_layers=2,
        num_decoder_layers=3, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
        eos_token_id=2,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "bias" not in name:
            parameter.data.normal_(0, 0.15)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def own(t5: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(queries, outputs): what the target itself answers to two words."""
    engine = Engine.load(str(t5), only=["autoregressive"], dtype="float32", device="cpu")
    folder, rows = tmp_path_factory.mktemp("own"), list[tuple[dict[str, Any], dict[str, Any]]]()
    for i in range(120):
        query = {"id": f"q{i}", "task": ("qa", "math")[i % 2], "turns": [f"w{i % 40} w{i % 7}"]}
        ids = engine.encode_chat([{"role": "user", "content": query["turns"][0]}])
        answer = engine.decode("autoregressive", ids, Request(10)).ids
        rows.append((query, {"id": f"q{i}", "ids": answer, "ended": answer[-1] == 2}))
    for at, name in enumerate(("queries.jsonl", "outputs.jsonl")):
        (folder / name).write_text("".join(json.dumps(row[at]) + "\n" for row in rows))
    return folder / "queries.jsonl", folder / "outputs.jsonl"


def load(t5: Path) -> HFSeq2SeqBackend:
    return HFSeq2SeqBackend.load(t5, torch.device("cpu"), torch.float32)


def test_a_row_comes_apart() -> None:
    source, of_source, written, valid = apart(IDS, LABELS)
    prompts = [row[kept].tolist() for row, kept in zip(source, of_source, strict=True)]
    answers = [row[kept].tolist() for row, kept in zip(written, valid, strict=True)]
    assert (prompts, answers) == ([[5, 6, 7], [4]], [[8, 9], [3, 2, 1]])


def test_states_are_those_of_each_row_alone(t5: Path) -> None:
    model, expected = load(t5).model, []
    for source, answer in (([5, 6, 7], [8, 9]), ([4], [3, 2, 1])):
        with torch.no_grad():
            out = model(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([[0, *answer[:-1]]]),
                output_hidden_states=True,
            )
        expected.append([out.decoder_hidden_states[at][0] for at in (1, -1)])
    states, valid = seq2seq_states(model, IDS, LABELS)
    found = states[1][valid], states[-1][valid]
    for made, parts in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(made.detach(), torch.cat(parts), atol=1e-5, rtol=1e-5)


def cut_loss(t5: Path, **layers: int) -> torch.Tensor:
    """transformers' own loss on both answers, of the model cut off after some decoder layers."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(t5, **layers)
    total = torch.zeros(())
    for source, answer in (([5, 6, 7], [8, 9]), ([4], [3, 2, 1])):
        out = model(input_ids=torch.tensor([source]), labels=torch.tensor([answer]))
        total = total + len(answer) * out.loss
    return total / 5


def test_the_ridge_start_is_near_the_target_s_own_states(t5: Path) -> None:
    """And agreement counts what the exit would draft, on answers alone."""
    learner = LensLearner(load(t5), 2, DraftVocab([*range(43)], 43))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 43, (60, 12), generator=generator)
    labels = torch.full_like(ids, -100)
    labels[:, 3:11] = ids[:, 4:]
    states, final = learner._states(ids, labels)

    @torch.no_grad()
    def error() -> float:
        return float((learner.module(states) - final).square().mean() / final.square().mean())

    before = error()
    learner.start_lens([(ids, labels)])
    assert error() < 0.5 * before
    said = final @ learner.head()[:-1].T  # what the target itself would write there
    own = torch.full_like(labels, -100)
    own[labels >= 0] = said.argmax(-1)
    with torch.no_grad():  # the states were read with the labels as the answers
        drafted = (learner.module(states) @ learner.head()[:-1].T).argmax(-1)
    hits = agreement(learner, ids, labels)
    assert hits.shape == labels.shape and not hits[labels < 0].any()
    assert hits[labels >= 0].tolist() == (drafted == labels[labels >= 0]).tolist()
    assert float((drafted == said.argmax(-1)).float().mean()) > 0.5


def accepted(target: Path, drafter: Path, kind: str = "early_exit", prompt: str = UNSEEN) -> float:
    """Share of drafts accepted; the answers are the target's own."""
    arms = drafter.parent / "arms.yaml"
    arms.write_text(f"arms:\n  mine:\n    kind: {kind}\n    drafter: {drafter}\n")
    engine = Engine.load(str(target), arms, dtype="float32", device="cpu")
    accepted = drafted = 0
    for i in range(20):
        words = prompt.format(i, i % 7, i + 9)
        ids = engine.encode_chat([{"role": "user", "content": words}])
        alone, mine = (engine.decode(name, ids, Request(10)) for name in engine.arm_names)
        assert alone.ids == mine.ids
        accepted, drafted = accepted + mine.accepted, drafted + mine.drafted
    return accepted / drafted


@pytest.mark.slow
def test_a_lens_learns_and_drafts(tmp_path: Path, t5: Path, own: tuple[Path, Path]) -> None:
    before = fingerprint(t5)
    config = config_for("exit", tmp_path / "out", t5, own, exit_layer=1)
    acceptance = align(config, RECIPE, nothing)
    model = tmp_path / "out/model"
    assert acceptance["overall"] > 0.6
    assert json.loads((model / "config.json").read_text()) == {"exit_layer": 1, "blocks": 0}
    assert json.loads((model / "card.json").read_text())["parameters"] == 32 + 32 * 32
    assert accepted(t5, model) > 0.3
    assert fingerprint(t5) == before


@pytest.mark.slow
def test_a_small_t5_learns_and_drafts(tmp_path: Path, t5: Path, own: tuple[Path, Path]) -> None:
    """Over the whole vocabulary, with the target's tokenizer beside it; and goes on from there."""
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps({"d_model": 16, "num_layers": 1, "num_decoder_layers": 1}))
    config = config_for("drafter", tmp_path / "out", t5, own, start=sizes)
    acceptance = align(config, replace(RECIPE, epochs=30), nothing)
    model = tmp_path / "out/model"
    made = json.loads((model / "config.json").read_text())
    assert (made["d_model"], made["num_decoder_layers"], made["vocab_size"]) == (16, 1, 43)
    assert (model / "tokenizer.json").is_file() and not (model / "draft_vocab.json").exists()
    assert acceptance["overall"] > 0.3 and accepted(t5, model, "neural", "w{0} w{1}") > 0.3
    further = config_for("drafter", tmp_path / "further", t5, own, start=model)
    assert align(further, replace(RECIPE, epochs=3, lr=1e-4), nothing)["overall"] > 0.3


def test_the_drafter_s_loss_is_transformers_own(t5: Path) -> None:
    learner = Seq2SeqDraftLearner(t5, {}, t5)
    loss = learner.loss(IDS, LABELS)
    torch.testing.assert_close(loss, cut_loss(t5), atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(p.grad is not None for p in learner.module.parameters())


def test_a_bigram_table_needs_no_kind_of_target(
    tmp_path: Path, t5: Path, written: tuple[Path, Path]
) -> None:
    acceptance = align(config_for("bigram", tmp_path / "out", t5, written), RECIPE, nothing)
    assert acceptance["overall"] > 0.85


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        ("recurrent", {}, "--kind recurrent needs a decoder-only target, .* an encoder-decoder"),
        ("exit", {"exit_layer": 0}, "--exit-layer must be 1 to 2 for this target, not 0"),
        ("exit", {"exit_layer": 3}, "--exit-layer must be 1 to 2 for this target, not 3"),
    ],
)
def test_what_cannot_be_is_named(
    tmp_path: Path, t5: Path, written: tuple[Path, Path], kind: str, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(DraftpickError, match=says):
        align(config_for(kind, tmp_path / "out", t5, written, **more), RECIPE, nothing)


def test_the_command_lets_the_target_write_first(
    tmp_path: Path, t5: Path, written: tuple[Path, Path]
) -> None:
    given = ["--out", tmp_path / "out", "--queries", written[0], "--target", t5, "--epochs", 1]
    given += ["--kind", "exit", "--exit-layer", 1, "--max-new-tokens", 6, "--vocab-size", 44]
    assert command(*given).exit_code == 0
    assert len((tmp_path / "out/outputs.jsonl").read_text().splitlines()) == 160
    assert (tmp_path / "out/model/adapter.safetensors").is_file()


def test_a_target_without_an_end_token(
    tmp_path: Path, t5: Path, written: tuple[Path, Path]
) -> None:
    config = config_for("exit", tmp_path / "out", endless(t5, tmp_path), written, exit_layer=1)
    assert align(config, replace(RECIPE, epochs=1), nothing)
