"""The engine: arms built on demand, prompts checked and reused, answers streamed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, greedy, native, transformers_model
from engine_toys import (
    PROMPT,
    WORDS,
    adapter_folder,
    arms,
    reading,
    tokenizer,
    with_tokenizer,
)
from t5_toys import cut_model
from transformers import AutoModelForCausalLM

from collect.replay.batch import Batch
from collect.replay.methods.stacked import NeuralReplay
from decoders import Engine
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import ContextTooLong, DraftpickError, NoSuchName
from decoders.models import targets
from decoders.records import Request, Sampling
from decoders.testing.toys import ToyBackend

K = {"k": 3}
COPY = {"kind": "max_gram", "length": K, "shortest": 1}


def small(folder: Path) -> dict[str, Any]:
    return {"kind": "neural", "drafter": str(folder), "length": K}


def exit_at(folder: Path) -> dict[str, Any]:
    return {"kind": "early_exit", "drafter": str(folder), "length": K}


@pytest.fixture(scope="module")
def target_folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(tiny(), tmp_path_factory.mktemp("target"), WORDS)


@pytest.fixture
def engine(tiny: Tiny, target_folder: Path, tmp_path: Path) -> Engine:
    return Engine(
        native(target_folder),
        arms(
            small=small(tiny(seed=5, num_hidden_layers=2)),
            exit=exit_at(adapter_folder(tiny, tmp_path)),
            copy=COPY,
        ),
        name="tiny",
        fingerprint="abc",
        tokenizer=tokenizer(WORDS),
        eos_ids=(15,),
    )


# -- decoding -------------------------------------------------------------------------------------


def test_a_sampled_answer_tells_its_seed(engine: Engine) -> None:
    hot = Request(14, Sampling(1.0))
    one, other = (engine.decode("small", PROMPT, hot) for _ in range(2))
    assert one.seed is not None and one.seed != other.seed
    for arm in engine.arm_names:
        again = engine.decode(arm, PROMPT, Request(14, Sampling(1.0), seed=one.seed))
        assert (again.ids, again.seed) == (one.ids, one.seed)
    assert engine.decode("small", PROMPT, Request(14, seed=3)).seed is None  # nothing is drawn


def test_a_drafter_that_loads_after_the_prefill_drafts_as_well(
    tiny: Tiny, target_folder: Path, tmp_path: Path
) -> None:
    """A routed query reads its prompt first and learns its arm after."""
    folder = adapter_folder(tiny, tmp_path)
    early, late = (Engine(native(target_folder), arms(exit=exit_at(folder))) for _ in range(2))
    early.strategy("exit")
    first = early.decode("exit", PROMPT, Request(14))
    second = late.decode("exit", PROMPT, Request(14), late.prefill(PROMPT))
    assert second.accepted_per_position == first.accepted_per_position
    assert sum(first.accepted_per_position) > 0


def test_the_next_turn_reads_what_is_new(
    tiny: Tiny, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neural = small(tiny(seed=5, num_hidden_layers=2))
    tree = neural | {"kind": "tree", "branch": [2, 2]}
    exit_ = exit_at(adapter_folder(tiny, tmp_path))
    recipes = arms(small=neural, exit=exit_, copy=COPY, tree=tree)
    engine, fresh = (Engine(native(target_folder, torch.float64), recipes) for _ in range(2))
    for name in engine.arm_names:
        first = engine.decode(name, PROMPT, Request(9))
        second = [*PROMPT, *first.ids, 2, 6, 2]
        assert reading(engine, second, monkeypatch) == 4, "the last token, and three new ones"
        assert reading(engine, second, monkeypatch) == 1, "one is always read: it gives the logits"
        again = engine.prefill(second, reuse=True)
        torch.testing.assert_close(again.logits, fresh.prefill(second).logits)
        torch.testing.assert_close(again.embedding, fresh.prefill(second).embedding)
        answer = engine.decode(name, second, Request(9), again)
        assert answer.ids == fresh.decode(name, second, Request(9)).ids
        assert reading(engine, [*PROMPT[:2], 5], monkeypatch) == 1
        assert reading(engine, [9, *PROMPT], monkeypatch) == len(PROMPT) + 1


def test_what_others_read_is_not_taken_for_ours(engine: Engine) -> None:
    plain = engine.prefill(PROMPT).logits
    engine.target.prefill([1, 2, 3, 4, 5, 6])
    assert torch.equal(engine.prefill(PROMPT, reuse=True).logits, plain)
    other = Engine(ToyBackend.random(16, seed=1), arms())  # which holds nothing of use
    before = other.prefill(PROMPT).logits
    assert torch.equal(other.prefill(PROMPT, reuse=True).logits, before)


def test_a_transformers_streamer(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """What is put, and when, is in test_contract.py."""
    from transformers import TextStreamer

    streamer = TextStreamer(engine.tokenizer, skip_prompt=True, skip_special_tokens=True)
    result = engine.decode("small", PROMPT, Request(14), streamer=streamer)
    assert capsys.readouterr().out.split() == result.text.split() != []


def test_what_does_not_fit_is_refused_before_anything_runs(engine: Engine) -> None:
    with pytest.raises(DraftpickError, match="empty"):
        engine.decode("copy", [], Request(3))
    with pytest.raises(ContextTooLong, match=r"95 tokens and asks for 2 more.*96"):
        engine.decode("copy", [1] * 95, Request(2))
    assert len(engine.decode("copy", [1] * 95, Request(1)).ids) == 1
    with pytest.raises(NoSuchName, match="autoregressive, copy, exit, small"):
        engine.decode("smal", PROMPT, Request(3))


# -- names and sizes ------------------------------------------------------------------------------


def test_names_and_sizes(engine: Engine, tiny: Tiny) -> None:
    assert engine.arm_names == ["autoregressive", "small", "exit", "copy"]
    assert engine.target_fingerprint == "tiny@abc/float32"
    assert engine.embedder == "target:tiny@abc"
    assert engine.context == 96
    small = transformers_model(tiny(seed=5, num_hidden_layers=2)).num_parameters()
    assert engine.arm_parameters("small") == small
    assert engine.arm_parameters("copy") == 0
    whole = engine.arm_parameters("autoregressive")
    assert whole == engine.target.parameters and 0 < engine.arm_parameters("exit") < whole


def test_an_exit_counts_the_layers_that_it_runs(tiny: Tiny) -> None:
    """Alone, with siblings, in a row and in a cascade: layers, norm and map, and the head."""
    model = transformers_model(tiny())
    a_layer = sum(p.numel() for p in model.model.layers[0].parameters())
    adapter, head = 32 + 32 * 32, model.lm_head.weight.numel()
    drafted = 2 * a_layer + adapter + head
    bare: dict[str, Any] = {"kind": "early_exit", "layer": 2}
    exit_ = {**bare, "length": {"k": 3}}
    engine = Engine(
        native(tiny()),
        arms(
            alone=exit_,
            wide={**exit_, "branch": [2]},
            row={"kind": "horizontal", "parts": [exit_, {"kind": "max_gram"}]},
            cascade={"kind": "token_cascade", "drafter": bare, "alpha": 0.2},
            beams={"kind": "sampled_beams", "drafter": bare, "beams": 2},
        ),
    )
    for name in engine.arm_names[1:]:
        assert engine.arm_parameters(name) == drafted, name
        result = engine.decode(name, PROMPT, Request(12))
        if name == "row":
            assert drafted < result.draft_work <= result.draft_calls * drafted  # copies are free
            continue
        # the prompt, and what was sat out, is read by the adapter alone
        alone = (result.draft_calls * drafted - result.draft_work) // (drafted - adapter)
        assert 0 < alone < result.draft_calls, name
        assert result.draft_work == (result.draft_calls - alone) * drafted + alone * adapter, name


def test_the_arms_fingerprint_changes_with_a_recipe(engine: Engine) -> None:
    both = engine.arms_fingerprint(["autoregressive", "copy"])
    assert len(both) == 8 and both == engine.arms_fingerprint(["copy", "autoregressive"])
    assert both != engine.arms_fingerprint(["copy"])
    copy = engine.arms["copy"]
    engine.arms["copy"] = copy.model_copy(update={"longest": 5})
    assert both != engine.arms_fingerprint(["autoregressive", "copy"])


# -- what does not go together --------------------------------------------------------------------


def test_tokenizers_are_compared_once_for_all_seats(
    tiny: Tiny, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large vocabularies it takes seconds."""
    same = with_tokenizer(tiny(seed=5, num_hidden_layers=2), tmp_path, WORDS)
    declared, words, loads = arms(small=small(same)), tokenizer(WORDS), list[Path]()
    load = targets.load_tokenizer

    def loading(folder: Path) -> object:
        loads.append(folder)
        return load(folder)

    monkeypatch.setattr(targets, "load_tokenizer", loading)
    for _ in range(3):
        seat = Engine(native(target_folder), declared, tokenizer=words)
        assert seat.decode("small", PROMPT, Request(9)).drafted > 0
    assert loads == [same]
    tokenizer(WORDS[::-1]).save_pretrained(same)
    with pytest.raises(DraftpickError, match="another tokenizer"):  # the file has changed
        Engine(native(target_folder), declared, tokenizer=words).decode("small", PROMPT, Request(9))


@pytest.mark.parametrize("width", [12, 20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_heads_padded_differently_are_aligned(
    tiny: Tiny, target_folder: Path, tmp_path: Path, width: int, temperature: float
) -> None:
    """One tokenizer of 10 words, a target of 16 rows, a drafter of fewer or more."""
    words = WORDS[:10]
    drafter = with_tokenizer(tiny(seed=5, num_hidden_layers=2, vocab_size=width), tmp_path, words)
    engine = Engine(native(target_folder), arms(small=small(drafter)), tokenizer=tokenizer(words))
    for first in range(3):
        request = Request(12, Sampling(temperature), seed=first)
        result = engine.decode("small", [first, 2], request)
        assert result.drafted > 0
        if temperature == 0:
            assert result.ids == engine.decode("autoregressive", [first, 2], request).ids
    # a random target also writes ids of its padding, which the narrower drafter has no row for
    # the batched path aligns them too
    assert NeuralReplay(engine.strategy("small").drafter).stack is not None
    assert len(Batch(engine).arm("small", [[1, 2]], 5).ids[0]) == 5


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_an_untrained_exit_is_the_target_s_first_layers(
    kind: str, tiny: Tiny, tiny_t5: Tiny
) -> None:
    if kind == "llama":
        folder, start = tiny(num_hidden_layers=4), PROMPT
        cut = AutoModelForCausalLM.from_pretrained(folder, num_hidden_layers=2, dtype=torch.float32)
    else:
        folder, start = tiny_t5(num_decoder_layers=4), [0]
        cut = cut_model(folder, 2)
    target = targets.load_backend(folder, CPU, torch.float32)
    exit_2 = {"kind": "early_exit", "layer": 2, "length": {"k": 2}}
    parts = [exit_2, {"kind": "max_gram", "shortest": 1, "length": {"k": 2}}]
    made = arms(exit=exit_2 | {"length": K}, row={"kind": "horizontal", "parts": parts})
    engine = Engine(target, made)
    plain = engine.decode("autoregressive", PROMPT, Request(14)).ids
    for name in ("exit", "row"):
        result = engine.decode(name, PROMPT, Request(14))
        assert result.ids == plain and result.drafted > 0
    engine.prefill(PROMPT)
    drafter = engine.strategy("exit").drafter  # type: ignore[attr-defined]
    drafter.reset(PROMPT)
    context = [*start, 9]
    for token in drafter.propose(context, greedy(5)).ids.tolist():
        with torch.no_grad():
            if kind == "llama":
                logits = cut(torch.tensor([context])).logits
            else:
                ids = torch.tensor([context])
                logits = cut(input_ids=torch.tensor([PROMPT]), decoder_input_ids=ids).logits
        assert int(logits[0, -1].argmax()) == token
        context.append(token)


# -- loading --------------------------------------------------------------------------------------

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


def test_messages_that_are_joined_are_told_once(
    target_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine.load(str(target_folder), dtype="float32", device="cpu", only=["autoregressive"])
    capsys.readouterr()
    chat = [{"role": "user", "content": words} for words in ("w1 w2", None, "w3")]
    assert engine.encode_chat(chat) == engine.encode_chat(chat) == [1, 2, 3]
    said = capsys.readouterr().err
    assert "has no chat template: messages are joined by newlines" in said
    assert len(said.splitlines()) == 1 and "--chat-template" in said


def test_a_chat_template_may_be_given(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It makes other prompts, so that collections and policies made with it are told apart."""
    how = {"dtype": "float32", "device": "cpu", "only": ["autoregressive"]}
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    plain = Engine.load(str(target_folder), **how)
    made = [
        Engine.load(str(target_folder), chat_template=given, **how)
        for given in (TEMPLATE, str(file), "{{ 'x' }}" + TEMPLATE)
    ]
    capsys.readouterr()
    ids = [e.encode_chat([{"role": WORDS[2], "content": WORDS[1]}]) for e in made]
    assert ids[0] == ids[1] == [2, 1] and ids[2] != ids[0]
    assert capsys.readouterr().err == ""
    for known in ("target_fingerprint", "embedder"):
        names = [getattr(engine, known) for engine in (plain, *made)]
        assert names[1] == names[2] and len(set(names)) == 3
    # The tokenizer's own changes nothing.
    plain.tokenizer.chat_template = TEMPLATE
    kept = shutil.copytree(target_folder, tmp_path / target_folder.name)
    plain.tokenizer.save_pretrained(kept)
    own, given = (Engine.load(str(kept), chat_template=t, **how) for t in (None, TEMPLATE))
    assert own.embedder == given.embedder == plain.embedder


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nowhere.jinja", "neither a Jinja template nor a file"),
        ("{% for", "cannot be applied to a question"),
        ("{{ raise_exception('no') }}", "cannot be applied to a question"),
    ],
)
def test_a_chat_template_that_is_none_is_told(given: str, words: str, target_folder: Path) -> None:
    with pytest.raises(DraftpickError, match=words) as said:
        Engine.load(str(target_folder), device="cpu", chat_template=given)
    assert "\n" not in str(said.value)


def test_load_from_a_folder(target_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "arms.yaml"
    config.write_text("arms: {copy: {kind: max_gram, shortest: 1}}")
    engine = Engine.load(str(target_folder), config, dtype="float32", device="cpu")
    assert engine.arm_names == ["autoregressive", "copy"]
    assert engine.target_name == target_folder.name
    assert engine.target_fingerprint.endswith("/float32")
    hf = Engine.load(str(target_folder), config, dtype="float32", device="cpu", backend="hf")
    assert isinstance(hf.target, HFBackend)
    assert hf.target_fingerprint == engine.target_fingerprint
    request = Request(15)
    assert hf.decode("copy", PROMPT, request).ids == engine.decode("copy", PROMPT, request).ids


def test_a_sampled_beam_is_refused_before_anything_is_loaded_or_read(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "arms.yaml"
    config.write_text("arms: {beams: {kind: beam, beams: 2}}")
    how: dict[str, Any] = {"arms": config, "dtype": "float32", "device": "cpu"}
    sampled = Request(4, Sampling(temperature=0.5))
    engine = Engine.load(str(target_folder), **how, only=["beams"], request=Request(4))
    monkeypatch.setattr(targets, "load_backend", lambda *given: pytest.fail("it was loaded"))
    monkeypatch.setattr(engine.target, "prefill", lambda ids: pytest.fail("it was read"))
    with pytest.raises(DraftpickError, match="'beams' is a beam search"):
        Engine.load(str(target_folder), **how, only=["beams"], request=sampled)
    with pytest.raises(DraftpickError, match="'beams' is a beam search"):
        engine.decode("beams", PROMPT, sampled)


def test_load_refuses_before_it_loads(target_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "arms.yaml"
    config.write_text("arms: {copy: {kind: max_gram}}")
    with pytest.raises(NoSuchName, match="autoregressive, copy"):
        Engine.load("/no/such/folder", config, only=["cpy"])
    for wrong in ({"dtype": "float8"}, {"device": "quantum"}):
        with pytest.raises(DraftpickError, match=next(iter(wrong.values()))):
            Engine.load("/no/such/folder", config, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DraftpickError, match="no such model folder"):
        Engine.load("/no/such/folder", config)
