"""Draft models with another tokenizer than the target's."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from decoder_toys import CPU, Tiny, Watched, greedy, native, watched
from effort import examples
from engine_toys import arms
from exactness import SAMPLINGS
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from collect.replay.batch import Batch
from decoders import Engine
from decoders.arms import recipe
from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.lengths import FixedLength
from decoders.methods.neural.translated import By, TranslatedDrafter
from decoders.methods.neural.translation import Translation
from decoders.models.token_texts import TokenTexts
from decoders.protocols import DraftRequest
from decoders.records import Request, Sampling
from decoders.requests.reading import PREFILL_CHUNK
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.randomness import Generator
from decoders.testing.chance import EXACT, distribution_error
from decoders.testing.toys import ToyBackend, run, speculative


class Spelled:
    """A vocabulary given as texts; the longest token that fits is taken first."""

    leading_space = False

    def __init__(self, texts: list[str], eos: int | None = None) -> None:
        self.texts = [None if i == eos else text.encode() for i, text in enumerate(texts)]
        self.specials = {} if eos is None else {texts[eos]: eos}
        self.eos = eos

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        rest = text.encode()
        while rest:
            fits = [i for i, t in enumerate(self.texts) if t and rest.startswith(t)]
            ids.append(max(fits, key=lambda i: len(self.texts[i] or b"")))
            rest = rest[len(self.texts[ids[-1]] or b"") :]
        return ids

    encode_inside = encode

    def spelled(self, ids: list[int]) -> bytes:
        return b"".join(self.texts[i] or b"" for i in ids)

    def begins(self) -> list[int]:
        return []

    def role(self, id_: int) -> str | None:
        return "eos" if id_ == self.eos else None

    def having(self, role: str | None) -> int | None:
        return self.eos if role == "eos" else None


OURS, THEIRS = ["a", "b", "ab"], ["aa", "b", "a", "ba"]


def translated(by: By, seed: int, ours: Any = None, theirs: Any = None) -> TranslatedDrafter:
    ours, theirs = ours or Spelled(OURS), theirs or Spelled(THEIRS)
    translation = Translation(ours, theirs)
    shared = translation.shared()
    vocab = DraftVocab([*shared], len(ours.texts))
    model = ToyBackend.random(len(theirs.texts), seed=seed, sharpness=1.0)
    return TranslatedDrafter(model, translation, [*shared.values()], vocab, by)


ENDS = (Spelled(["a", "b", "</s>"], eos=2), Spelled(["</s>", "b", "a", "ba"], eos=0))


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "ends"])
@pytest.mark.parametrize("by", ["text", "tokens"])
def test_the_distribution_is_the_target_s(by: By, sampling: str) -> None:
    ends = sampling == "ends"
    target = ToyBackend.random(3, seed=5 if ends else 3, sharpness=1.0)
    drafter = translated(by, 8, *ENDS) if ends else translated(by, 7)
    request = Request(4, SAMPLINGS.get(sampling, Sampling(1.0)))
    eos = (2,) if ends else ()
    assert distribution_error(target, speculative(drafter, 2), [0, 1, 0], request, eos) < EXACT


@pytest.mark.parametrize("by", ["text", "tokens"])
def test_a_cache_that_is_kept_drafts_as_one_that_is_read_anew(by: By) -> None:
    target = ToyBackend.random(3, seed=3, sharpness=2.0)
    kept = translated(by, 7)
    seen = watched(kept)
    run(target, speculative(kept, FixedLength(3)), [0, 1, 0], Request(60))
    assert len(seen) > 10
    for context, k, made in seen:
        fresh = translated(by, 7)
        fresh.reset(context)
        assert fresh.propose(context, greedy(k)).ids.tolist() == made.ids.tolist()


def test_text_is_the_likeliest_whatever_the_verifier_reads() -> None:
    drafter, context = translated("text", 7), [0, 1, 0, 1]
    drafter.reset(context)
    drawn = DraftRequest(3, Sampling(0.8), Generator(CPU, 0), needs_probs=True)
    made = [drafter.propose(context, asked).ids.tolist() for asked in (greedy(3), drawn)]
    assert made[0] == made[1]


def test_what_was_missed_is_read_in_parts() -> None:
    drafter = translated("text", 7)
    drafter.backend = model = Watched(ToyBackend.random(len(THEIRS), 7).table)
    drafter.commit([1] * (PREFILL_CHUNK + 40))
    assert len(model.widths) > 1 and max(model.widths) <= PREFILL_CHUNK


def test_text_carries_tokens_that_the_target_lacks() -> None:
    """The model is sure of "ba", which the target spells with two tokens, or joins to an "a"."""
    translation = Translation(Spelled(OURS), Spelled(THEIRS))  # type: ignore[arg-type]
    assert translation.target_ids([1], [3, 2]) == [1, 0, 0]  # b|ba a -> b a a
    assert translation.target_ids([0], [1]) == [1]  # joined it would be "ab": encoded apart
    assert translation.drafter_ids([2, 0, 0]) == [2, 3, 2]  # ab a a -> a ba a


def test_the_tokens_that_both_have() -> None:
    ours, theirs = Spelled([*OURS, "</s>"], eos=3), Spelled(["<end>", *THEIRS], eos=0)
    shared = Translation(ours, theirs).shared()  # type: ignore[arg-type]
    assert shared == {0: 3, 1: 2, 3: 0}


# -- tokenizers as files have them -----------------------------------------------------------------

TEXTS = [
    "def area(width, height):\n    return width * height\n",
    "The naïve café — 東京 🙂 costs 3.14 euros, or 12% more than it did.",
    "for item in items:\n\tprint(item, end='')\n\n# done",
]


def byte_level(size: int, texts: Iterable[str], **special: str) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special.values()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def sentencepiece(size: int, texts: Iterable[str], **special: str) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    pieces = ["<unk>", *special.values(), *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=pieces, show_progress=False)
    made.train_from_iterator(texts, trainer)
    written = json.loads(made.to_str())  # bytes are ordinary pieces
    marks = ["<unk>", *special.values()]
    written["added_tokens"] = [t for t in written["added_tokens"] if t["content"] in marks]
    made = Tokenizer.from_str(json.dumps(written))
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", **special)


KINDS = {"byte-level": (byte_level, 420), "sentencepiece": (sentencepiece, 640)}


@pytest.fixture(scope="module", params=KINDS)
def translation(request: pytest.FixtureRequest) -> Translation:
    mark = {"eos_token": "<|im_end|>"}
    ours = byte_level(330, TEXTS[:2] * 3, **mark)
    make, size = KINDS[request.param]
    return Translation(TokenTexts(ours), TokenTexts(make(size, TEXTS[1:] * 3, **mark)))


PIECES = st.lists(
    st.sampled_from(
        [*" \n\t", "a", "the", "return ", "naïve", "🙂", "東", "<|im_end|>", "12", "."]
    ),
    max_size=30,
).map("".join)


@examples(60)
@given(before=PIECES, after=PIECES)
def test_text_survives_both_ways(translation: Translation, before: str, after: str) -> None:
    """What the drafter reads, and what the target is given of its draft, spell the same text."""
    ours, theirs = translation.target, translation.drafter
    context = ours.encode_inside(before)
    read = theirs.spelled(translation.drafter_ids(context)).decode()
    assert read.removeprefix(" ") == before.removeprefix(" ")
    drafted = theirs.encode_inside(after)
    written = ours.spelled(translation.target_ids(context, drafted))
    assert written == theirs.spelled(drafted)


def test_a_long_answer_is_read_in_parts(translation: Translation) -> None:
    """Whatever is settled on the way, the text is the same. Where words are encoded apart, so are
    the ids."""
    ids = translation.target.encode("\n".join(TEXTS * 8))
    whole = Translation(translation.target, translation.drafter).drafter_ids(ids)
    in_parts = Translation(translation.target, translation.drafter)
    for end in range(10, len(ids), 7):
        in_parts.drafter_ids(ids[:end])
    made = in_parts.drafter_ids(ids)
    assert translation.drafter.spelled(made) == translation.drafter.spelled(whole)
    assert made == whole or translation.drafter.leading_space
    assert len(in_parts._settled) > len(ids) - 200  # only the end is encoded anew
    again = in_parts.drafter_ids(ids[:20])  # of another sequence, as far as it can tell
    assert again == Translation(translation.target, translation.drafter).drafter_ids(ids[:20])


def test_half_a_character_waits_for_the_other_half(translation: Translation) -> None:
    ids = translation.target.encode_inside("hi 🙂")
    read = translation.drafter.spelled(translation.drafter_ids(ids[:-1])).decode()
    assert read.strip() == "hi"


def test_marks_are_translated(translation: Translation) -> None:
    end = translation.target.specials["<|im_end|>"]
    theirs = translation.drafter.specials["<|im_end|>"]
    context = [*translation.target.encode_inside("the"), end]
    assert translation.drafter_ids(context)[-1] == theirs
    assert translation.target_ids(context, [theirs]) == [end]


# -- as arms ---------------------------------------------------------------------------------------


@pytest.fixture
def engine(tiny: Tiny, tmp_path: Path) -> Callable[..., Engine]:
    def make(theirs: PreTrainedTokenizerFast, **fields: Any) -> Engine:
        ours = byte_level(300, TEXTS)
        target = native(tiny("llama", seed=1, vocab_size=300))
        small = tiny("llama", seed=2, vocab_size=len(theirs), num_hidden_layers=2)
        folder = shutil.copytree(small, tmp_path / "small")
        theirs.save_pretrained(folder)
        arm = {"kind": "neural", "drafter": str(folder), "length": {"k": 4}, **fields}
        return Engine(target, arms(small=arm), tokenizer=ours)

    return make


@pytest.mark.parametrize("translate", ["auto", "text", "tokens"])
def test_an_arm_writes_what_the_target_writes(
    engine: Callable[..., Engine], translate: str
) -> None:
    made = engine(byte_level(340, TEXTS[1:]), translate=translate)
    prompt = made.tokenizer.encode("The naïve", add_special_tokens=False)
    plain = made.decode("autoregressive", prompt, Request(16))
    drafted = made.decode("small", prompt, Request(16))
    assert drafted.ids == plain.ids
    assert drafted.drafted > 0 and drafted.draft_calls > drafted.rounds


@pytest.mark.every(2)
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    ("temperature", "translate"),
    [(0.0, "tokens"), (0.0, "text"), (1.0, "text"), (1.0, "tokens"), (0.7, "auto")],
)
def test_its_rounds_along_an_answer_are_those_of_the_loop(
    engine: Callable[..., Engine], temperature: float, translate: str, hybrid: bool
) -> None:
    """The answer that the arm wrote has the rounds that it took."""
    made = engine(byte_level(340, TEXTS[1:]), translate=translate)
    if hybrid:
        model = {"kind": "neural", "drafter": made.arms["small"].drafter, "translate": translate}  # type: ignore[attr-defined]
        made.arms["small"] = recipe(name="small", kind="hybrid", model=model, length={"k": 4})
    prompts = [made.encode_text(text) for text in ("The naïve", "the the the the the")]
    request = Request(24, Sampling(temperature), seed=3)
    wrote = [made.decode("small", prompt, request) for prompt in prompts]
    batch = Batch(made, Costs((1.0,) * 32, {"small": 0.1}))
    answers = [one.ids for one in wrote]
    found = batch.replay("small", prompts, answers, 24, temperature, [3, 3])
    for one, replayed in zip(wrote, found, strict=True):
        assert (replayed.rounds, replayed.drafted) == (one.rounds, one.drafted)
        assert replayed.accepted == one.accepted and replayed.calls == one.draft_calls - 1
    assert all(one.drafted for one in wrote)


def test_a_vocabulary_that_shares_nothing_is_refused(tiny: Tiny) -> None:
    words = Spelled(["x", "y"])
    with pytest.raises(DraftpickError, match="share no token"):
        Translation(Spelled(OURS), words).shared()  # type: ignore[arg-type]


def test_more_draft_tokens_than_the_drafter_has_room_for() -> None:
    """The target's two tokens are the drafter's many: it drafts nothing where they do not fit."""
    ours, theirs = Spelled(["a" * 40, "b"]), Spelled(["a", "b"])
    drafter = translated("text", 3, ours, theirs)
    drafter.backend.context = drafter.context = 60
    target = ToyBackend.random(2, seed=2)
    result = run(target, speculative(drafter, FixedLength(3)), [0, 0], Request(6))
    assert result.drafted == 0 and len(result.ids) == 6


@pytest.mark.parametrize("kind", ["beam", "sequence_cascade", "tree"])
def test_arms_that_score_the_target_s_tokens_refuse_it(
    engine: Callable[..., Engine], kind: str
) -> None:
    made = engine(byte_level(340, TEXTS[1:]))
    model = {"kind": "neural", "drafter": made.arms["small"].drafter}  # type: ignore[attr-defined]
    fields: dict[str, Any] = {
        "beam": {"beams": 2, "drafter": model},
        "sequence_cascade": {"alpha": 0.5, "drafter": model},
        "tree": {"drafter": model["drafter"], "branch": [2]},
    }[kind]
    made.arms["small"] = recipe(name="small", kind=kind, **fields)
    with pytest.raises(DraftpickError, match="another tokenizer"):
        made.strategy("small")
