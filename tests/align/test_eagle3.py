"""Training of EAGLE-3 heads: its steps beside those of drafting, its course, and what it writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from align_kit import ON_STATES as RECIPE
from align_kit import command, nothing
from torch import Tensor

from collect.align.eagle3 import HeadHeldOut, HeadLoss, new_head, train_head, usual_features
from collect.align.eagle3_module import Eagle3Module, HeadSizes
from collect.align.packed_batch import flatten
from collect.align.teacher import Teacher
from collect.align.tokens import Tokens
from decoders.backends.config import config_of
from decoders.backends.eagle3.head import Eagle3Head
from decoders.backends.eagle3.model import Eagle3Backend
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.sampling.draft_vocab import DraftVocab

CPU = torch.device("cpu")


def a_head(teacher: Teacher, seed: int = 0) -> Eagle3Module:
    """Untrained, and loud enough that attention matters."""
    torch.manual_seed(seed)
    module = Eagle3Module(HeadSizes(teacher.shape, 48, (1, 2)))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            parameter.copy_(parameter.bfloat16())  # as it is saved
        module.out.mul_(8)
        module.down.mul_(8)
    return module


def test_steps_are_those_of_drafting(
    teacher: Teacher, tokens: Tokens, folder: Path, vocab: DraftVocab, tmp_path: Path
) -> None:
    """From every position of some texts, three steps: what training reads at once is what a draft
    from there computes, a step at a time, from the files that were written."""
    module = a_head(teacher)
    rows = teacher.head[vocab.to_target]
    module.save(tmp_path, vocab, rows, "toy", config_of(folder))
    target = LlamaBackend.load(folder, CPU, torch.float32)
    backend = Eagle3Backend(target, Eagle3Head.load(tmp_path, target, target.layers))
    texts = [tokens.text(row) for row in range(3)]
    batch = flatten(texts)
    features, _ = teacher.layers(batch.rows, (1, 2))
    with torch.no_grad():
        read = module(torch.cat(features, -1), teacher.embedding[batch.rows], 3)  # [3, B, T, d]
    wanted = read @ rows.bfloat16().float().T
    compared = 0
    for row, text in enumerate(texts):
        ids = text.tolist()
        for n in range(1, len(ids) - 3):
            target.prefill(ids[:n])
            backend.prefill(ids[:n])
            logits = backend.extend(torch.tensor(ids[n : n + 3]))
            at = [wanted[step, row, n + step] for step in range(3)]
            torch.testing.assert_close(logits, torch.stack(at), atol=2e-3, rtol=2e-3)
            backend.truncate(n)
            compared += 1
    assert compared > 15


def test_a_new_head_hands_on_the_final_state(teacher: Teacher, tokens: Tokens) -> None:
    """As nearly as the features have it: far better than a head at random."""
    rows = flatten([tokens.text(row) for row in range(40)]).rows
    module = new_head(teacher, HeadSizes(teacher.shape, 48, (1, 2)), rows, 0)
    features, final = teacher.layers(rows, (1, 2))
    near = torch.cat(features, -1) @ module.fc.detach().T
    error = (near - final).square().mean() / final.square().mean()
    assert float(error) < 0.3


def test_the_loss_is_by_the_target_s_distribution_and_reaches_every_weight(
    teacher: Teacher, tokens: Tokens, vocab: DraftVocab
) -> None:
    module = a_head(teacher)
    batch = flatten([tokens.text(row) for row in range(4)])
    loss = HeadLoss(teacher, vocab, replace(RECIPE, steps=2)).loss(module, batch)
    loss.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, name
    assert loss.item() == pytest.approx(slow_loss(module, teacher, tokens, vocab), rel=1e-4)


@torch.no_grad()
def slow_loss(
    module: Eagle3Module, teacher: Teacher, tokens: Tokens, vocab: DraftVocab, fade: float = 0.8
) -> float:
    """Text by text: the mean divergence of each of two steps, over the places that it predicts."""
    rows, sums, counts = teacher.head[vocab.to_target], [0.0, 0.0], [0, 0]
    for row in range(4):
        ids = torch.from_numpy(tokens.text(row).astype("int64"))[None]
        features, final = teacher.layers(ids, (1, 2))
        read = module(torch.cat(features, -1), teacher.embedding[ids], 2)
        for step in range(2):
            for at in range(step + 1, ids.shape[1]):
                p, q = ((x @ rows.T).log_softmax(-1) for x in (final[0, at], read[step, 0, at]))
                sums[step] += float((p.exp() * (p - q)).sum())
                counts[step] += 1
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    return (means[0] + fade * means[1]) / (1 + fade)


@pytest.mark.slow
def test_training_improves_figures_which_are_those_of_what_it_writes(
    teacher: Teacher, tokens: Tokens, folder: Path, vocab: DraftVocab, tmp_path: Path
) -> None:
    held_out = HeadHeldOut(teacher, tokens, 20)
    sizes = HeadSizes(teacher.shape, 48, (1, 2))
    flat = flatten([tokens.text(row) for row in range(32)])
    before = held_out.figures(new_head(teacher, sizes, flat.rows, 0), vocab)["overall"]
    parts = ("toy", config_of(folder), teacher, vocab, sizes, tokens, held_out)
    point = train_head(tmp_path, *parts, RECIPE, "test", nothing)
    after = point.figures["overall"]
    assert after["first"] > before["first"] and after["overlap"] > before["overlap"] + 0.03
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert card["kind"] == "eagle3" and set(card["files"]) == {"config.json", "model.safetensors"}
    assert "vLLM loads it" in (tmp_path / "model" / "README.md").read_text()
    # the share of first drafted tokens that are right, drafted live
    target = LlamaBackend.load(folder, CPU, torch.float32)
    backend = Eagle3Backend(target, Eagle3Head.load(tmp_path / "model", target, target.layers))
    right = counted = 0
    names = tokens.names()
    for task in ("qa", "math"):
        rows = [r for r in range(len(tokens)) if names[r] == task and tokens.temperature[r] == 0]
        for row in rows[:20]:
            ids = tokens.text(row).tolist()
            for n in range(int(tokens.answer[row]) + 1, len(ids)):
                target.prefill(ids[: n - 1])
                backend.prefill(ids[: n - 1])
                first = vocab.to_target[backend.extend(torch.tensor(ids[n - 1 : n]))[0].argmax()]
                best = target.extend(torch.tensor(ids[n - 1 : n]))[0].argmax()
                right += int(first == best)
                counted += 1
    assert right / counted == pytest.approx(after["first"], abs=0.03)  # written in bfloat16


def test_positions_of_other_texts_and_later_tokens_change_nothing(teacher: Teacher) -> None:
    module = a_head(teacher)
    ids = torch.randint(3, 43, (2, 9), generator=torch.Generator().manual_seed(1))

    def steps(rows: Tensor) -> Tensor:
        features, _ = teacher.layers(rows, (1, 2))
        with torch.no_grad():
            made: Tensor = module(torch.cat(features, -1), teacher.embedding[rows], 3)
        return made

    whole = steps(ids)
    other = ids.clone()
    other[0, 6:] = 5
    other[1] = 7
    changed = steps(other)
    torch.testing.assert_close(whole[:, 0, 1:6], changed[:, 0, 1:6])
    assert not torch.allclose(whole[:, 0, 6:], changed[:, 0, 6:])


def test_a_text_shorter_than_the_steps(teacher: Teacher) -> None:
    module = a_head(teacher)
    features, _ = teacher.layers(torch.tensor([[5, 6]]), (1, 2))
    read = module(torch.cat(features, -1), teacher.embedding[torch.tensor([[5, 6]])], 4)
    assert read.shape == (4, 1, 2, 32) and bool(read.isfinite().all())


@pytest.mark.parametrize(("layers", "found"), [(30, (2, 15, 27)), (3, (1, 2)), (2, (1,))])
def test_the_usual_layers(layers: int, found: tuple[int, ...]) -> None:
    assert usual_features(layers) == found


def test_the_command(tmp_path: Path, folder: Path, written: tuple[Path, Path]) -> None:
    queries, outputs = written
    given = ["--kind", "eagle3", "--out", tmp_path / "out", "--target", folder, "--epochs", 1]
    given += ["--queries", queries, "--outputs", outputs, "--vocab-size", 30]
    assert command(*given).exit_code == 0
    made = tmp_path / "out" / "model"
    card = json.loads((made / "card.json").read_text())
    assert set(card["acceptance"]) == {"qa", "math", "overall"}
    target = LlamaBackend.load(folder, CPU, torch.float32)
    head = Eagle3Head.load(made, target, target.layers)
    assert head.vocab is not None and head.vocab.size == 31


def test_it_goes_on_from_no_other_head(tmp_path: Path, folder: Path) -> None:
    given = ["--kind", "eagle3", "--out", tmp_path / "out", "--target", folder]
    with pytest.raises(DraftpickError, match="begins a new head"):
        command(*given, "--start", folder)
