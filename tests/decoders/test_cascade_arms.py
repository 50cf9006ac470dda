"""Arms that are cascades: their YAML, its mistakes, and what is built of it."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, native
from engine_toys import WORDS, adapter_folder, tokenizer, with_tokenizer

from decoders import Engine
from decoders.arms import load_arms
from decoders.arms.file import fingerprint
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import DraftpickError
from decoders.loop import SpeculativeDecoding
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.models import targets
from decoders.models.drafts import MappedBackend
from decoders.options import EngineOptions
from decoders.papers.cs_drafting.drafters import HorizontalDrafter, VerticalDrafter
from decoders.records import Request
from decoders.sampling.draft_vocab import DraftVocab
from router.commands.arms import arms_json

PROMPT = [7, 11, 7, 11, 7]

GOOD = """
arms:
  vertical:
    kind: vertical
    review: {one}
    lenience: 2
    inner: {{kind: neural, drafter: {two}, length: {{k: 3}}}}
    length: {{kind: adaptive, k: 8}}
  two-deep:
    kind: vertical
    review: {one}
    inner:
      kind: vertical
      review: {two}
      inner: {{kind: max_gram, shortest: 1, length: {{k: 2}}}}
      length: {{k: 3}}
    length: {{k: 6}}
  horizontal:
    kind: horizontal
    parts:
      - {{kind: early_exit, drafter: {exit}, length: {{k: 2, min_confidence: 0.3}}}}
      - {{kind: neural, drafter: {part}, length: {{k: 2}}}}
      - {{kind: max_gram, shortest: 1, length: {{k: 4}}}}
  nest:
    kind: cs_drafting
    models: [{one}, {part}, {{kind: max_gram, shortest: 1}}]
    K: [[1, 2, 3], [0, 2, 2], [0, 0, 4]]
    lenience: 3
  nest-of-a-tree:
    kind: cs_drafting
    models: [{one}, {{kind: max_gram, shortest: 1}}]
    K: [[1, 3], [0, 1]]
    branch: [8, 8]
  hierarchy:
    kind: hierarchy
    small: {{kind: neural, drafter: {two}}}
    middle: {part}
    length: {{k: 5}}
"""


@pytest.fixture(scope="module")
def file(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cascades")
    part = with_tokenizer(tiny(seed=7, num_hidden_layers=1, vocab_size=8), folder / "part", None)
    DraftVocab([1, 2, 3, 5, 8, 13, 15], 16).save(part)
    (folder / "exit").mkdir()
    places = {
        "one": tiny(seed=15, num_hidden_layers=2),
        "two": tiny(seed=16, num_hidden_layers=1),
        "part": part,
        "exit": adapter_folder(tiny, folder / "exit"),
    }
    (folder / "arms.yaml").write_text(GOOD.format(**places))
    return folder / "arms.yaml"


@pytest.fixture
def engine(tiny: Tiny, file: Path) -> Engine:
    return Engine(native(tiny()), load_arms(file), eos_ids=(15,))


def test_what_is_built(engine: Engine) -> None:
    def drafter(name: str) -> Any:
        strategy = engine.strategy(name)
        assert isinstance(strategy, SpeculativeDecoding) and strategy.verifier.lossless
        return strategy.drafter

    deep = drafter("two-deep")
    assert isinstance(deep, VerticalDrafter) and isinstance(deep.inner, VerticalDrafter)
    assert isinstance(deep.inner.inner, MaxGramDrafter)
    assert (deep.strategy.length.next(), deep.inner.strategy.length.next()) == (3, 2)
    one, part, last = (p.drafter for p in drafter("nest").parts)
    assert isinstance(one.inner, HorizontalDrafter)
    assert [p.drafter for p in one.inner.parts] == [part, last]  # the same, not its like
    assert [p.tokens for p in one.inner.parts] == [2, 2]
    assert [p.tokens for p in drafter("nest").parts] == [1, 2, 3]
    assert [p.tokens for p in part.inner.parts] == [4]
    assert one.strategy.verifier.lenience == part.strategy.verifier.lenience == 3
    tree = drafter("nest-of-a-tree")
    assert isinstance(tree, WidenedDrafter) and [p.tokens for p in tree.inner.parts] == [1, 3]
    assert isinstance(part.verifier_model, MappedBackend)
    assert [p.min_confidence for p in drafter("horizontal").parts] == [0.3, 0.0, 0.0]
    small = drafter("hierarchy").inner
    assert isinstance(small, NeuralDrafter)
    assert drafter("hierarchy").strategy.length.next() == 5  # the arm's, as it has none of its own
    assert drafter("vertical").context == min(engine.target.context, 96)


def test_one_checkpoint_s_weights_are_in_memory_once(engine: Engine) -> None:
    """Each user has a cache of its own."""
    users = [engine.strategy(name).drafter for name in ("vertical", "two-deep", "nest")]  # type: ignore[attr-defined]
    models = [
        users[0].verifier_model,
        users[1].verifier_model,
        users[2].parts[0].drafter.verifier_model,
    ]
    assert all(isinstance(model, LlamaBackend) for model in models)
    assert len({id(model.weights.embedding) for model in models}) == 1
    assert len({model._cache.all.data_ptr() for model in models}) == 3


def test_a_transformers_model_s_weights_too(
    tiny: Tiny, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = targets.load_backend
    gc.collect()  # no native model of these files, which others do not use, is left
    monkeypatch.setattr(targets, "load_backend", lambda *args, **more: real(*args, "hf", **more))
    engine = Engine(native(tiny()), load_arms(file), eos_ids=(15,))
    users = [engine.strategy(name).drafter for name in ("vertical", "two-deep")]  # type: ignore[attr-defined]
    assert all(isinstance(user.verifier_model, HFBackend) for user in users)
    assert users[0].verifier_model.model is users[1].verifier_model.model
    expected = engine.decode("autoregressive", PROMPT, Request(20)).ids
    for name in ("vertical", "two-deep", "vertical"):
        assert engine.decode(name, PROMPT, Request(20)).ids == expected


def test_a_mapped_verifying_model(tiny: Tiny) -> None:
    vocab = DraftVocab([1, 4, 6], 8)
    inner = native(tiny(seed=7, vocab_size=4), torch.float64)
    model, alone = MappedBackend(inner, vocab), native(tiny(seed=7, vocab_size=4), torch.float64)
    first = model.prefill([4, 0, 6]).logits  # 0 is not in the list: the model's id 3, "other"
    assert torch.equal(first[[1, 4, 6]], alone.prefill([1, 3, 2]).logits[:3])
    assert first.isneginf().nonzero().flatten().tolist() == [0, 2, 3, 5, 7]
    rows = model.extend(torch.tensor([1, 7]))
    assert rows.shape == (2, 8) and model.length == 5
    assert torch.equal(rows[:, [1, 4, 6]], alone.extend(torch.tensor([0, 3]))[:, :3])
    model.truncate(3)
    assert (model.length, inner.length) == (3, 3)


def test_the_view_names_what_drafts(file: Path) -> None:
    said = {arm["name"]: arm["drafter"] for arm in arms_json(EngineOptions(arms=file))}
    assert "verifying neural" in said["vertical"]
    assert "verifying vertical" in said["two-deep"] and "max_gram" in said["two-deep"]
    assert said["horizontal"].startswith("early_exit") and "then max_gram" in said["horizontal"]
    assert said["nest"].endswith(", max_gram") and "after neural" in said["hierarchy"]


def test_what_is_nested_counts_as_part_of_the_recipe(tmp_path: Path) -> None:
    def print_of(tokens: int) -> str:
        body = f"{{kind: vertical, review: x, inner: {{kind: max_gram, shortest: {tokens}}}}}"
        (tmp_path / "a.yaml").write_text(f"arms: {{a: {body}}}")
        return fingerprint(load_arms(tmp_path / "a.yaml"))

    assert print_of(1) != print_of(3) == print_of(3)


# -- mistakes -------------------------------------------------------------------------------------

MAX_GRAM = "{kind: max_gram}"
PARTS = "kind: horizontal, parts"


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object, **more: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(targets, "load_backend", load)


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    """The target's."""
    return with_tokenizer(tiny(), tmp_path / "target", WORDS)


def refused(tiny: Tiny, folder: Path, body: str) -> str:
    """What is said of an arm, the same with the target loaded and before it is."""
    path = folder.with_name("arms.yaml")
    path.write_text(f"arms: {{a: {{{body}}}}}")
    engine = Engine(native(tiny()), load_arms(path), tokenizer=tokenizer(WORDS))
    with pytest.raises(DraftpickError) as caught:
        engine.strategy("a")
    with pytest.raises(DraftpickError) as early:
        Engine.load(str(folder), path, only=["a"], dtype="float32", device="cpu")
    assert str(early.value) == str(caught.value)
    assert str(caught.value).startswith("arm 'a': ") and "\n" not in str(caught.value)
    return str(caught.value)


SMALL = "{kind: neural, drafter: MODEL}"
BODIES = {
    "vertical": f"kind: vertical, review: MODEL, inner: {MAX_GRAM}",
    "inner": f"kind: vertical, review: FITS, inner: {SMALL}",
    "part": f"kind: horizontal, parts: [{MAX_GRAM}, {SMALL}]",
    "nest": f"kind: cs_drafting, models: [MODEL, {MAX_GRAM}], K: [[1, 1], [0, 1]]",
    "hierarchy": f"kind: hierarchy, middle: MODEL, small: {MAX_GRAM}",
    "small": f"kind: hierarchy, middle: FITS, small: {SMALL}",
    "plain": "kind: neural, drafter: MODEL",
    "tree": "kind: tree, drafter: MODEL, branch: [2]",
    "beam": f"kind: beam, beams: 2, drafter: {SMALL}",
    "beams": f"kind: sampled_beams, beams: 2, drafter: {SMALL}",
    "cascade": f"kind: token_cascade, alpha: 0.3, drafter: {SMALL}",
}
FAULTS = {
    "tokenizer": "has another tokenizer than the target",
    "width": "has another tokenizer than the target",
    "reduced": "target vocabulary of 20, this target has 16",
    "missing": "holds no config.json",
}
CASES = [
    (kind, fault)
    for kind in BODIES  # the same is asked of every place in an arm
    for fault in FAULTS
    if fault == "tokenizer" or kind in ("plain", "vertical")
]


@pytest.mark.parametrize(("kind", "fault"), CASES)
@pytest.mark.usefixtures("nothing_loads")
def test_a_model_that_does_not_fit_is_refused_before_any_is_loaded(
    kind: str, fault: str, tiny: Tiny, folder: Path, tmp_path: Path
) -> None:
    """Another tokenizer; none, and another width; a part of another vocabulary; no such folder."""
    model, fits = tmp_path / "model", tmp_path / "fits"
    for place, words in ((model, WORDS[::-1]), (fits, WORDS)):
        with_tokenizer(tiny(seed=5, num_hidden_layers=2), place, words)
    if fault == "width":
        model = tiny(seed=5, num_hidden_layers=2, vocab_size=20)
    elif fault == "reduced":
        DraftVocab([*range(7)], 20).save(model)
    elif fault == "missing":
        (model / "config.json").unlink()
    body = BODIES[kind].replace("MODEL", str(model)).replace("FITS", str(fits))
    assert FAULTS[fault] in refused(tiny, folder, body)


EARLY = "leaving early needs the native backend"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("kind: early_exit, layer: 3", "an exit must lie after layer 1 to 2, not 3"),
        ("kind: early_exit, drafter: nowhere/exit", "nowhere/exit"),
        ("kind: early_exit, drafter: EXIT", "made for a target vocabulary of 99"),
        ("kind: max_gram, drafter: nowhere/table", "nowhere/table"),
        (
            "kind: cs_drafting, models: [TARGET, {kind: max_gram, drafter: nowhere/table}], "
            "K: [[1, 1], [0, 1]]",
            "nowhere/table",
        ),
        (f"{PARTS}: [{MAX_GRAM}, {{kind: early_exit, layer: 7}}]", "after layer 1 to 2, not 7"),
        ("kind: token_cascade, alpha: 0.1, drafter: {kind: early_exit, layer: 7}", "2, not 7"),
        ("kind: early_exit, layer: 1", EARLY),
        ("kind: calm, threshold: 0.9", EARLY),
        (f"{PARTS}: [{MAX_GRAM}, {{kind: early_exit, layer: 1}}]", EARLY),
        ("kind: sampled_beams, beams: 2, drafter: {kind: early_exit, layer: 1}", EARLY),
    ],
)
@pytest.mark.usefixtures("nothing_loads")
def test_exits_and_tables_too(
    body: str, says: str, tiny: Tiny, folder: Path, tmp_path: Path
) -> None:
    """Leaving early through transformers is."""
    (tmp_path / "exit").mkdir()
    DraftVocab([1, 2], 99).save(adapter_folder(tiny, tmp_path / "exit"))
    body = body.replace("EXIT", str(tmp_path / "exit")).replace("TARGET", str(folder))
    (tmp_path / "arms.yaml").write_text(f"arms: {{a: {{{body}}}}}")
    how = {"dtype": "float32", "device": "cpu", "backend": "hf" if says == EARLY else "auto"}
    with pytest.raises(DraftpickError, match=f"^arm 'a': .*{says}"):
        Engine.load(str(folder), tmp_path / "arms.yaml", only=["a"], **how)


def test_an_exit_in_a_row_is_opened_before_the_first_prompt(tiny: Tiny, file: Path) -> None:
    target = native(tiny())
    engine = Engine(target, load_arms(file))
    prompt = engine.prefill(PROMPT)  # before any arm is built
    assert engine.decode("horizontal", PROMPT, Request(12), prompt).drafted > 0
    assert target.device == CPU
