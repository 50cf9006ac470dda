"""An encoder-decoder from its folder to its text: arms, limits, chat, refusals, the command."""

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny
from engine_toys import arms
from serve_toys import served
from t5_toys import generate_t5, seq2seq_model
from tokenizers import processors
from transformers import BartConfig, BartForConditionalGeneration

from decoders import Engine
from decoders.backends.transformers.hf import HFBackend
from decoders.backends.transformers.hf_seq2seq import CONTEXT, HFSeq2SeqBackend
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.costs.measured import Costs
from decoders.models import targets
from decoders.records import Request
from decoders.testing.tokenizers import word_tokenizer

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
    shutil.copytree(model, place)
    tokenizer = word_tokenizer(WORDS, "w2", pad_token="<pad>", eos_token="</s>", unk_token="w2")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", EOS)]
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


@pytest.fixture(scope="module")
def engine(folder: Path, arms_file: Path) -> Engine:
    return Engine.load(str(folder), arms_file, dtype="float32", device="cpu")


def test_loads_from_its_folder(engine: Engine) -> None:
    assert isinstance(engine.target, HFSeq2SeqBackend)
    assert engine.arm_names == ["autoregressive", "small", "copy"]
    assert engine.eos_ids == (EOS,)
    assert engine.context == CONTEXT


def test_a_completion_does_not_go_on_the_prompt(engine: Engine) -> None:
    """So that no space comes before its first word."""
    text = engine.decode("copy", engine.encode_text(TEXT), Request(5)).text
    with served(engine=engine) as toy:
        asked: Any = {"model": "copy", "prompt": TEXT, "max_tokens": 5}
        assert toy.client().completions.create(**asked).choices[0].text == text
        chunks = list(toy.client().completions.create(**asked, stream=True))
        assert "".join(each.choices[0].text for each in chunks) == text


def test_a_chat_is_plain_text_with_its_end(engine: Engine) -> None:
    assert engine.encode_chat([{"role": "user", "content": TEXT}]) == SOURCE


def test_source_and_answer_have_a_limit_each(engine: Engine) -> None:
    engine.check([3] * CONTEXT, Request(CONTEXT - 1))
    with pytest.raises(ContextTooLong):
        engine.check([3] * (CONTEXT + 1), Request(1))
    with pytest.raises(ContextTooLong):
        engine.check([3], Request(CONTEXT))


def test_one_drafter_s_weights_are_in_memory_once(folder: Path, tiny_t5: Tiny) -> None:
    body = {"kind": "neural", "drafter": str(tiny_t5(seed=5, num_layers=1))}
    engine = Engine(targets.load_backend(folder, CPU, torch.float32), arms(one=body, two=body))
    one, two = (engine.strategy(name).drafter.backend for name in ("one", "two"))  # type: ignore[attr-defined]
    assert isinstance(one, HFSeq2SeqBackend)
    assert one is not two and one.model is two.model
    theirs = generate_t5(seq2seq_model(folder), SOURCE, 14)
    for name in ("one", "two", "one"):
        assert engine.decode(name, SOURCE, Request(14), engine.prefill(SOURCE)).ids == theirs


# -- what does not go together --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafts_for", "words"),
    [
        ("t5", "model is decoder-only and the target is an encoder-decoder"),
        ("llama", "model is an encoder-decoder and the target is decoder-only"),
    ],
)
def test_drafters_of_the_other_kind_are_refused(
    drafts_for: str, words: str, tiny: Tiny, tiny_t5: Tiny
) -> None:
    target, other = (tiny_t5(), tiny()) if drafts_for == "t5" else (tiny(), tiny_t5())
    made = arms(odd={"kind": "neural", "drafter": str(other)})
    engine = Engine(targets.load_backend(target, CPU, torch.float32), made)
    with pytest.raises(DraftpickError, match=words):
        engine.decode("odd", SOURCE, Request(3))
    assert engine.decode("autoregressive", SOURCE, Request(3)).ids  # the rest still works


def test_what_a_backend_does_not_take_is_named(tiny_t5: Tiny) -> None:
    with pytest.raises(DraftpickError, match=r"cannot run model: .*T5"):
        targets.load_backend(tiny_t5(), CPU, torch.float32, "native")
    model = deepcopy(seq2seq_model(tiny_t5()))
    with pytest.raises(DraftpickError, match="HFSeq2SeqBackend"):
        HFBackend(model)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(DraftpickError, match=r"'flex_attention' takes no masks; .*eager or sdpa"):
        HFSeq2SeqBackend(model)
    model.set_attn_implementation("eager")
    model.config.decoder_start_token_id = None
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(DraftpickError, match="names no decoder_start_token_id"):
        HFSeq2SeqBackend(model)


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


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["autoregressive", "small"])
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
