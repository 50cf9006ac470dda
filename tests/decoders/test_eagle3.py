"""EAGLE-3 heads: drafts beside those worked out from scratch, on both backends, chains and
trees; distributions; and what does not fit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, FITS_INT4, edited, greedy, native, save_tiny, transformers_model
from eagle3_toys import Reference, save_head
from exactness import SAMPLINGS
from safetensors.torch import load_file, save_file

from decoders.arms import recipe
from decoders.backends.eagle3.config import Eagle3Config
from decoders.backends.eagle3.head import Eagle3Head
from decoders.backends.eagle3.model import Eagle3Backend
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import Damaged, DraftpickError
from decoders.methods.neural.drafter import Eagle3Drafter
from decoders.methods.tree.drafter import TreeDrafter
from decoders.models.drafts import TargetInfo
from decoders.protocols import Drafter, TreeBackend
from decoders.records import Request
from decoders.testing.chance import distribution_error
from decoders.testing.toys import ToyBackend, speculative

KEPT = [1, 2, 3, 5, 8, 11, 13]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "before-residual": {"norm_before_residual": True},
    "normed-together": {"norm_before_fc": True},
    "normed-each": {"fc_norm": True, "norm_output": True},
    "own-embedding": {"embedding": True},
    "two-layers": {"layers": 2},
    "reduced": {"kept": KEPT},
}
Target = Callable[[Path], Any]
TARGETS: dict[str, Target] = {
    "native": native,
    "transformers": lambda folder: HFBackend(transformers_model(folder)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("target")
    save_tiny(made, "llama", 0, {})
    return made


def drafter_of(target: Any, head: Path, **fields: Any) -> Drafter:
    arm = recipe(kind="eagle3", name="eagle", drafter=str(head), **fields)
    arm.prepare(target)
    made: Drafter = arm.make_drafter(target, None)  # type: ignore[attr-defined]
    return made


def at_work(target: Any, head: Path, prompt: list[int], **fields: Any) -> Drafter:
    """A drafter of a target that has read this."""
    drafter = drafter_of(target, head, **fields)
    target.prefill(prompt)
    drafter.reset(prompt)
    return drafter


def features(target: Any, head: Path, n: int) -> list[torch.Tensor]:
    layers = json.loads((head / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"]
    return [target.exit_hidden(layer, 0, n) for layer in layers]


@pytest.mark.every(4)
@pytest.mark.parametrize("prompt", [PROMPT, [5]])
@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_drafts_are_those_worked_out_from_scratch(
    kind: str, flags: str, backend: str, prompt: list[int], folder: Path, tmp_path: Path
) -> None:
    """Round after round, whatever the target accepted; every round with its states."""
    head = save_head(tmp_path / "head", kind, seed=3, **FLAGS[flags])
    target = TARGETS[backend](folder)
    drafter, other = drafter_of(target, head), Reference(head, target.embed)
    prefilled = target.prefill(prompt)
    drafter.reset(prompt)
    context = [*prompt, int(prefilled.logits.argmax())]
    taken = set()
    for accepted in (0, 3, 1, 4, 0, 2):
        drafts = drafter.propose(context, greedy(4)).ids.tolist()
        assert drafts == other.draft(context, features(target, head, len(context) - 1), 4)
        logits = target.extend(torch.tensor([context[-1], *drafts]))
        target.truncate(len(context) + accepted)
        context += [*drafts[:accepted], int(logits[accepted].argmax())]
        drafter.commit(context)
        taken |= set(drafts)
    assert len(taken) > 1  # or the drafts say nothing
    if flags == "reduced":
        assert taken <= set(KEPT)


@pytest.mark.parametrize("backend", TARGETS)
def test_states_follow_the_path_that_is_kept_of_a_tree(backend: str, folder: Path) -> None:
    """Those after its layers too, as those of a chain that was never a tree."""
    target, plain = TARGETS[backend](folder), TARGETS[backend](folder)
    for each in (target, plain):
        for layer in (1, 2):
            each.open_exit(layer)
        each.prefill(PROMPT)
    target.extend(torch.tensor([7, 3, 8, 2, 5]), [-1, 0, 0, 1, 2])
    target.keep([0, 2, 4])
    plain.extend(torch.tensor([7, 8, 5]))
    end = len(PROMPT) + 3
    for layer in (1, 2):
        kept, wanted = (each.exit_hidden(layer, 0, end) for each in (target, plain))
        torch.testing.assert_close(kept, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("follows", [True, False])
def test_after_sitting_out_it_reads_what_it_missed(
    follows: bool, folder: Path, tmp_path: Path
) -> None:
    """follows: told of every round, or of all at once."""
    head = save_head(tmp_path / "head", seed=3)
    target = native(folder)
    drafter, other = at_work(target, head, PROMPT), Reference(head, target.embed)
    context = [*PROMPT, 7]
    drafter.propose(context, greedy(3))
    for token in range(12):  # rounds of others
        target.extend(torch.tensor(context[-1:]))
        context.append(token)
        if follows or token == 11:
            drafter.commit(context)
    asked = replace(greedy(4), needs_raw=True)
    drafts = drafter.propose(context, asked)
    fresh = drafter_of(target, head)
    fresh.reset(context[:-1])
    again = fresh.propose(context, asked)
    torch.testing.assert_close(drafts.raw, again.raw, atol=1e-5, rtol=1e-4)
    given = features(target, head, len(context) - 1)
    assert drafts.ids.tolist() == other.draft(context, given, 4)


def test_tokens_that_the_target_has_not_read_go_on_from_its_own_states(
    folder: Path, tmp_path: Path
) -> None:
    """As inside a cascade: two more tokens are as two that it drafted."""
    head = save_head(tmp_path / "head", seed=3)
    target = native(folder)
    drafter = at_work(target, head, PROMPT)
    context = [*PROMPT, 7]
    whole = drafter.propose(context, greedy(5)).ids.tolist()
    drafter.commit(context)
    rest = drafter.propose([*context, *whole[:2]], greedy(3)).ids.tolist()
    assert rest == whole[2:]


def test_drafts_before_the_target_has_read_depend_on_nothing_earlier(
    folder: Path, tmp_path: Path
) -> None:
    """As inside a cascade, after a prompt of one token."""
    target = native(folder)
    head = Eagle3Head.load(save_head(tmp_path / "head", seed=3), target, target.layers)
    used, fresh = (Eagle3Backend(target, head) for _ in range(2))
    target.prefill(PROMPT)
    used.prefill(PROMPT)
    for model in (target, used):
        model.truncate(0)
    ids = torch.tensor([5, 7, 2])
    torch.testing.assert_close(used.extend(ids), fresh.extend(ids))


def test_a_tree_s_branches_are_chains_of_their_own(folder: Path, tmp_path: Path) -> None:
    """Each node's likeliest child is what a chain through it would draft next."""
    head = save_head(tmp_path / "head", seed=3)
    target = native(folder)
    tree = at_work(target, head, PROMPT, branch=[2, 2], every=True, length={"k": 3})
    assert isinstance(tree, TreeDrafter)
    other = Reference(head, target.embed)
    context = [*PROMPT, 7]
    proposal = tree.propose(context, greedy(3))
    ids, parents = proposal.ids.tolist(), proposal.parents
    assert parents is not None and len(ids) == 2 + 4 + 4
    given = features(target, head, len(context) - 1)
    paths: dict[int, list[int]] = {-1: []}
    for node, parent in enumerate(parents):
        paths[node] = [*paths[parent], ids[node]]
    checked = 0
    for node, path in paths.items():
        below = [ids[i] for i, parent in enumerate(parents) if parent == node]
        if below:
            assert other_after(other, context, given, path) in below
            checked += 1
    assert checked == 1 + 2 + 4


def other_after(
    other: Reference, context: list[int], given: list[torch.Tensor], path: list[int]
) -> int:
    """The likeliest token after a path of drafted ones, whoever chose them."""
    states = other._combined(given)
    for step in range(len(path) + 1):
        after, logits = other._run(torch.tensor([*context, *path[:step]][1:]), states)
        states = torch.cat([states, after[-1:]])
    return int(logits[-1].argmax())


@pytest.mark.every(2)
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("fields", [{}, {"branch": [2], "every": True}])
def test_sampled_answers_follow_the_target_s_law(
    fields: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """Every outcome enumerated, over a vocabulary of four."""
    folder = tmp_path / "target"
    save_tiny(folder, "llama", 0, {"vocab_size": 4})
    head = save_head(tmp_path / "head", vocab=4, kept=[0, 1, 3], seed=1)
    target = native(folder, torch.float64)
    drafter = drafter_of(target, head, **fields)
    model, asked = transformers_model(folder, torch.float64), Request(3, SAMPLINGS[name])

    def logits(context: list[int]) -> torch.Tensor:
        return model(torch.tensor([context])).logits[0, -1]

    found = distribution_error(target, speculative(drafter, 2), [1, 2], asked, (), logits)
    assert found < 1e-5


# -- the seam -------------------------------------------------------------------------------------


def test_it_is_a_backend_of_trees(folder: Path, tmp_path: Path) -> None:
    target = native(folder)
    head = save_head(tmp_path / "head", kept=KEPT)
    one = Eagle3Head.load(head, target, target.layers)
    assert Eagle3Head.load(head, target, target.layers) is one  # they share its weights
    backend = Eagle3Backend(target, one)
    assert isinstance(backend, TreeBackend)
    target.prefill(PROMPT)
    backend.prefill(PROMPT)
    assert backend.length == len(PROMPT)
    assert backend.extend(torch.tensor([7, 2])).shape == (2, len(KEPT))
    backend.truncate(9)
    assert backend.length == 9  # the target had read all before the 7
    backend.extend(torch.tensor([2, 2]), [-1, -1])
    with pytest.raises(ValueError, match="depth by depth"):
        backend.extend(torch.tensor([2, 2]), [0, 2])
    with pytest.raises(ValueError, match="cannot truncate"):
        backend.truncate(12)


@pytest.mark.parametrize("rounding", ["int8", "int4"])
def test_beside_a_rounded_target_it_is_rounded(rounding: Any, tmp_path: Path) -> None:
    save_tiny(tmp_path / "target", "llama", 0, FITS_INT4)
    target = LlamaBackend.load(tmp_path / "target", CPU, torch.bfloat16, rounding=rounding)
    drafter = at_work(target, save_head(tmp_path / "head"), PROMPT)
    assert isinstance(drafter, Eagle3Drafter) and isinstance(drafter.backend, Eagle3Backend)
    assert drafter.backend.head.layers[0].out.precision == rounding  # type: ignore[union-attr]
    assert len(drafter.propose([*PROMPT, 7], greedy(4)).ids) == 4


def test_the_authors_own_form_is_read(folder: Path, tmp_path: Path) -> None:
    """Flat config, `midlayer`, the usual layers of a target of six."""
    made = save_head(tmp_path / "head", kept=KEPT, features=(1, 2, 3))
    tensors = load_file(made / "model.safetensors")
    flat = tmp_path / "flat"
    flat.mkdir()
    renamed = {n.replace("layers.0.", "midlayer."): t for n, t in tensors.items()}
    torch.save(renamed, flat / "pytorch_model.bin")
    layer = json.loads((made / "config.json").read_text())["transformer_layer_config"]
    layer |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(KEPT)}
    (flat / "config.json").write_text(json.dumps(layer))
    found = Eagle3Config.of(flat)
    assert found.features is None and found.feature_layers(6) == (2, 3, 3)
    assert found.feature_layers(30) == (2, 15, 27)
    named = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    edited(made, **named)
    edited(flat, eagle_config=named)
    save_tiny(tmp_path / "six", "llama", 0, {"num_hidden_layers": 6})
    drafts = []
    for each in (made, flat):
        drafter = at_work(native(tmp_path / "six"), each, PROMPT)
        drafts.append(drafter.propose([*PROMPT, 7], greedy(5)).ids.tolist())
    assert drafts[0] == drafts[1]


# -- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "fields", "words"),
    [
        ({"vocab": 12}, {}, "made for a vocabulary of 12, and this target's is 16"),
        ({"target_hidden": 24, "embedding": True}, {}, "reads states of 24"),
        ({"features": (1, 7)}, {}, "states after layers 1, 7, and this target's lie after 1 to 2"),
        ({}, {"speculators_model_type": "dflash"}, "of the kind dflash, not eagle3"),
        ({}, {"speculators_model_type": None}, "holds no EAGLE-3 head"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [1, 1]}, "no list of different layers"),
        ({}, {"transformer_layer_config": {"model_type": "gpt2"}}, "type gpt2 are not known"),
    ],
)
def test_another_target_s_head_is_refused_before_weights_are_read(
    made: dict[str, Any], fields: dict[str, Any], words: str, folder: Path, tmp_path: Path
) -> None:
    head = edited(save_head(tmp_path / "head", **made), **fields)
    (head / "model.safetensors").unlink()
    arm = recipe(kind="eagle3", name="eagle", drafter=str(head))
    info = TargetInfo(16, False, None, layers=3, state_size=32)
    with pytest.raises(DraftpickError, match=words) as error:
        arm.check_target(info)
    assert str(error.value).startswith("arm 'eagle': ")
    with pytest.raises(DraftpickError, match=words):
        arm.make_drafter(native(folder), None)  # type: ignore[attr-defined]


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    head = save_head(tmp_path / "head", kept=KEPT)
    tensors = load_file(head / "model.safetensors")
    for name, wrong, words in [
        ("fc.weight", None, "lacks fc.weight"),
        ("norm.weight", torch.ones(3), r"norm.weight is \[3\] and not \[32\]"),
        ("d2t", torch.zeros(len(KEPT), dtype=torch.int64) + 12, "d2t names tokens"),
    ]:
        changed = {n: t for n, t in tensors.items() if n != name}
        if wrong is not None:
            changed[name] = wrong
        save_file(changed, head / "model.safetensors")
        with pytest.raises(Damaged, match=words):
            drafter_of(native(folder), head)


def test_targets_without_layers_or_with_an_encoder_are_refused(tmp_path: Path) -> None:
    head = save_head(tmp_path / "head")
    arm = recipe(kind="eagle3", name="eagle", drafter=str(head))
    with pytest.raises(DraftpickError, match="ToyBackend does not return"):
        arm.make_drafter(ToyBackend(torch.randn(16, 16)), None)  # type: ignore[attr-defined]
    with pytest.raises(DraftpickError, match="decoder-only"):
        arm.check_target(TargetInfo(16, True, None))
