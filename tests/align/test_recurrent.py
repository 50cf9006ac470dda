"""The recurrent drafter's training: its loss, its figures and its course, against slow loops."""

import itertools
import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from align_kit import ON_STATES as RECIPE
from align_kit import command, dies_after, nothing
from torch import Tensor

from collect.align import packed_batch, recurrent, training
from collect.align import teacher as teaching
from collect.align.held_out import HeldOut
from collect.align.packed_batch import Stream, flatten, order
from collect.align.recipe import RecurrentRecipe
from collect.align.recurrent import (
    SOFTER,
    DistillationLoss,
    Distilled,
    Drafting,
    Point,
    new_cell,
)
from collect.align.teacher import Teacher
from collect.align.tokens import Text, Tokens, pack
from collect.align.training import CURVE, TrainingState
from collect.align.training_stage import (
    RESULT,
    Target,
    TrainingStage,
    commonest,
    finished,
    of_tasks,
    run_stage,
)
from collect.align.weights import DrafterModel
from decoders.backends.recurrent.cell import CellConfig, RecurrentCell
from decoders.common.errors import DraftpickError
from decoders.sampling.draft_vocab import DraftVocab

CPU = torch.device("cpu")
CONFIG = CellConfig(hidden=32, width=48)


def a_cell(teacher: Teacher, seed: int = 0) -> RecurrentCell:
    """One whose blocks say something: untrained ones hardly do."""
    cell = new_cell(teacher, CONFIG, torch.arange(3, 43).unsqueeze(0), seed)
    with torch.no_grad():
        for down in cell.down:
            down.mul_(10)
    return cell


@dataclass
class Course:
    """What a training is made of."""

    teacher: Teacher
    vocab: DraftVocab
    tokens: Tokens

    def train(
        self, folder: Path, cell: RecurrentCell, recipe: RecurrentRecipe = RECIPE, most: int = 2,
        save: Any = nothing, report: Any = nothing,
    ) -> Point:  # fmt: skip
        """The last point of the curve. most: texts of a task that are held out."""
        held_out = HeldOut(self.teacher, self.tokens, most)
        task = Drafting(cell, self.vocab, self.teacher, self.tokens, held_out, recipe, save)
        return Point(**training.train(task, recipe, folder, report).curve[-1])


@pytest.fixture
def course(teacher: Teacher, vocab: DraftVocab, tokens: Tokens) -> Course:
    return Course(teacher, vocab, tokens)


@dataclass
class Slow:
    """What is looked at position by position, step by step, text by text. model: the target by
    transformers."""

    model: Any
    teacher: Teacher
    vocab: DraftVocab

    @torch.no_grad()
    def final(self, ids: Tensor) -> Tensor:
        """[T, d], normed."""
        return self.model.model(ids[None])[0][0]

    @torch.no_grad()
    def distributions(self, ids: Tensor) -> Tensor:
        """[T, V] of the next token after each."""
        return self.model(ids[None]).logits[0].softmax(-1)

    def logits(self, cell: RecurrentCell, state: Tensor) -> Tensor:
        return self.teacher.head[self.vocab.to_target] @ cell.read(state)


@pytest.fixture
def slow(model: Any, teacher: Teacher, vocab: DraftVocab) -> Slow:
    return Slow(model, teacher, vocab)


def slow_loss(
    slow: Slow, cell: RecurrentCell, texts: list[np.ndarray], recipe: RecurrentRecipe
) -> Tensor:
    shares = [recipe.fade**step for step in range(recipe.steps)]
    parts: list[list[Tensor]] = [[] for _ in shares]
    for text in texts:
        ids = torch.from_numpy(text.astype(np.int64))
        final, p_all = slow.final(ids), slow.distributions(ids)[:, slow.vocab.to_target]
        for start in range(len(ids)):
            state = final[start]
            for step in range(1, recipe.steps + 1):
                at = start + step
                if at >= len(ids):
                    break
                state = cell(state, slow.teacher.embedding[ids[at]])
                q = slow.logits(cell, state).softmax(-1)
                p = p_all[at] / p_all[at].sum()
                parts[step - 1].append((p * (p.log() - q.log())).sum())
    means = [share * torch.stack(part).mean() for share, part in zip(shares, parts, strict=True)]
    return sum(means, torch.zeros(())) / sum(shares)


def gradients(cell: RecurrentCell, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(cell.parameters())))


def test_the_loss_is_the_slow_loops(slow: Slow, tokens: Tokens) -> None:
    texts = [tokens.text(row) for row in (0, 5, 11)] + [np.array([4, 9]), np.array([7])]
    cell = a_cell(slow.teacher)
    wanted = slow_loss(slow, cell, texts, RECIPE)
    fast = DistillationLoss(slow.teacher, slow.vocab, RECIPE).loss(cell, flatten(texts, 64))
    torch.testing.assert_close(fast, wanted, rtol=2e-4, atol=1e-5)
    for one, other in zip(gradients(cell, fast), gradients(cell, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("cap", [None, 0.7])
def test_the_gradient_is_that_of_the_loss(cap: float | None) -> None:
    """By autograd itself, chunks and all, in float64; of a target whose logits are capped too."""
    torch.manual_seed(0)
    read = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    final, rows = torch.randn(7, 5, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    weights = torch.rand(2, 7, dtype=torch.float64)
    fast = Distilled.apply(read, final, rows, weights, 3, cap)
    told = final @ rows.T
    p = (told if cap is None else cap * (told / cap).tanh()).softmax(-1)
    q = (read @ rows.T).softmax(-1)
    slow = (weights * (p * (p.log() - q.log())).sum(-1)).sum()
    torch.testing.assert_close(fast, slow)
    one, other = (torch.autograd.grad(loss, read)[0] for loss in (2 * fast, 2 * slow))
    torch.testing.assert_close(one, other)


def test_an_epoch_has_every_text_once_and_no_batch_too_large(tokens: Tokens) -> None:
    lengths = tokens.lengths
    for seed in range(3):
        batches = order(lengths, 60, np.random.default_rng(seed))
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        assert max(lengths[rows].max() * len(rows) for rows in batches) <= 60
    assert len(order(np.array([90, 5]), 60, np.random.default_rng(0))) == 2  # one text at least


def test_a_stream_goes_on_where_it_was_left(tokens: Tokens) -> None:
    stream = Stream(tokens, 100, 12, 8, seed=4)
    epoch = stream.steps(1)
    count = stream.steps(2) + 3
    whole = list(itertools.islice(stream.batches(), count))
    for skipped in (1, epoch, epoch + 2):
        rest = itertools.islice(stream.batches(skipped), count - skipped)
        for one, other in zip(whole[skipped:], rest, strict=True):
            assert torch.equal(one.rows, other.rows) and torch.equal(one.at, other.at)
    assert sum(flat.positions for flat in whole[:epoch]) == np.minimum(tokens.lengths, 12).sum()
    assert all(len(flat.where) % 8 == 0 for flat in whole)
    kept = {tuple(tokens.text(row)[-12:].tolist()) for row in range(len(tokens))}  # their ends
    for flat in whole[:epoch]:
        starts = torch.cat([(flat.at == 0).nonzero()[:, 0], torch.tensor([flat.positions])])
        for first, last in itertools.pairwise(starts.tolist()):
            assert tuple(flat.ids[first:last].tolist()) in kept


def test_a_prompt_with_many_answers_is_trained_on_once() -> None:
    prompt, other = [5, 6, 7, 8], [5, 6, 9]
    texts = [
        Text([*prompt, 1, 2, 3], 4, "a"),
        Text([*other, 1], 3, "a"),
        Text([*prompt, 2, 2], 4, "a", 1.0),
    ]
    stream = Stream(pack(texts), 100, 12, 1, seed=0)
    (flat,) = itertools.islice(stream.batches(), stream.steps(1))
    assert flat.rows.shape == (3, 7)  # the target reads all of it
    assert flat.positions == 7 + 4 + 3  # of the third from its prompt's last token on
    starts = [*(flat.at == 0).nonzero()[:, 0].tolist(), flat.positions]
    read = sorted(flat.ids[a:b].tolist() for a, b in itertools.pairwise(starts))
    assert read == sorted([[*prompt, 1, 2, 3], [*other, 1], [8, 2, 2]])
    short = Stream(pack(texts), 100, 4, 1, seed=0)  # texts keep their ends
    (flat,) = itertools.islice(short.batches(), short.steps(1))
    assert flat.positions == 4 + 4 + 3


def test_batches_come_in_order_from_their_thread() -> None:
    made = packed_batch._ahead(each for each in itertools.count())
    assert list(itertools.islice(made, 20)) == list(range(20))
    made.close()


@torch.no_grad()
def live_counts(
    slow: Slow, cell: RecurrentCell, text: np.ndarray, answer: int
) -> list[tuple[int, int]]:
    """(right, possible) for 1, 2 and 3 tokens in a row: drafts are fed on, as in decoding."""
    ids = torch.from_numpy(text.astype(np.int64))
    final = slow.final(ids)
    counts = [[0, 0] for _ in range(3)]
    for known in range(answer, len(ids) - 1):  # the newest token, not yet read by the target
        state, token, right = final[known - 1], int(ids[known]), True
        for deep in range(3):
            if known + 1 + deep >= len(ids):
                break
            state = cell(state, slow.teacher.embedding[token])
            token = int(slow.vocab.to_target[slow.logits(cell, state).argmax()])
            right = right and token == int(ids[known + 1 + deep])
            counts[deep][0] += right
            counts[deep][1] += 1
    return [(right, possible) for right, possible in counts]


@torch.no_grad()
def slow_overlap(slow: Slow, cell: RecurrentCell, text: np.ndarray, answer: int) -> list[float]:
    ids = torch.from_numpy(text.astype(np.int64))
    final, p, found = slow.final(ids), slow.distributions(ids), []
    for known in range(answer, len(ids) - 1):
        state = cell(final[known - 1], slow.teacher.embedding[ids[known]])
        q = torch.zeros(43)
        q[slow.vocab.to_target] = slow.logits(cell, state).softmax(-1)
        found.append(float(torch.minimum(p[known], q).sum()))
    return found


def test_held_out_figures_are_those_of_a_live_loop(
    slow: Slow, teacher: Teacher, vocab: DraftVocab, tokens: Tokens
) -> None:
    cell = trained(teacher, vocab, tokens)
    found = HeldOut(teacher, tokens, 6, most=60).figures(cell, vocab)
    names = tokens.names()
    for task in ("qa", "math"):
        rows = np.flatnonzero(names == task)
        greedy = [row for row in rows if tokens.temperature[row] == 0][:6]
        drawn = [row for row in rows if tokens.temperature[row] > 0][:6]
        counted = [
            live_counts(slow, cell, tokens.text(row), int(tokens.answer[row])) for row in greedy
        ]
        for deep, name in enumerate(("first", "two", "three")):
            right, possible = (sum(c[deep][part] for c in counted) for part in (0, 1))
            assert 0 < right < possible
            assert found[task][name] == pytest.approx(right / possible)
        overlaps = [
            slow_overlap(slow, cell, tokens.text(row), int(tokens.answer[row]))
            for row in (*greedy, *drawn)
        ]
        both = [value for one in overlaps for value in one]
        assert found[task]["overlap"] == pytest.approx(np.mean(both), rel=1e-4)
        alone = [value for one in overlaps[len(greedy) :] for value in one]
        assert found[task]["overlap_drawn"] == pytest.approx(np.mean(alone), rel=1e-4)
    assert min(found[t]["first"] for t in ("qa", "math")) <= found["overall"]["first"]
    assert max(found[t]["first"] for t in ("qa", "math")) >= found["overall"]["first"]


def test_a_long_held_out_text_keeps_its_end(
    teacher: Teacher, vocab: DraftVocab, tokens: Tokens
) -> None:
    cell, cut, ends = a_cell(teacher), 6, list[Text]()
    for row in range(len(tokens)):
        gone = max(0, int(tokens.lengths[row]) - cut)
        answer, task = max(0, int(tokens.answer[row]) - gone), str(tokens.names()[row])
        ends.append(Text(tokens.text(row)[gone:], answer, task, float(tokens.temperature[row])))
    one = HeldOut(teacher, tokens, 99, longest=cut).figures(cell, vocab)
    other = HeldOut(teacher, pack(ends), 99).figures(cell, vocab)
    assert one.keys() == other.keys()
    for task in one:
        assert one[task] == pytest.approx(other[task], rel=1e-5)


def trained(teacher: Teacher, vocab: DraftVocab, tokens: Tokens, steps: int = 60) -> RecurrentCell:
    student = DrafterModel(a_cell(teacher), teacher.dtype, RECIPE)
    lesson = DistillationLoss(teacher, vocab, RECIPE)
    stream = Stream(tokens, 160, 64, 32, 0)
    for flat in itertools.islice(stream.batches(), steps):
        lesson.loss(student.work, flat).backward()
        student.step(1.0)
    return student.work


@pytest.mark.slow
def test_training_improves_agreement(
    tmp_path: Path, teacher: Teacher, vocab: DraftVocab, tokens: Tokens
) -> None:
    """On texts at random, where the target is asked what it would say; judged on what it says."""
    held_out = HeldOut(teacher, tokens, 99)
    random = np.random.default_rng(0).integers(3, 43, (600, 12))
    texts = pack(Text(ids, 12, "none") for ids in random)
    cell, seen = a_cell(teacher), list[Any]()
    before = held_out.figures(cell, vocab)["overall"]
    task = Drafting(cell, vocab, teacher, texts, held_out, RECIPE, nothing)
    point = Point(**training.train(task, RECIPE, tmp_path, seen.append).curve[-1])
    after = point.figures["overall"]
    assert after["first"] > before["first"] + 0.1
    assert after["overlap"] > before["overlap"] + 0.05
    assert seen[-1]["loss"] < 0.8 * seen[0]["loss"]
    assert point.positions == 6 * 600 * 12


def test_figures_take_a_small_share_of_the_time(
    teacher: Teacher, vocab: DraftVocab, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten seconds each they are taken 200 seconds apart, where they are due, and at the end."""
    clock = [0.0]
    monkeypatch.setattr(recurrent.time, "monotonic", lambda: clock[0])
    held_out = HeldOut(teacher, tokens, 1)

    class Slow:
        def figures(self, *given: Any) -> Any:
            clock[0] += 10
            return held_out.figures(*given)

    task = Drafting(a_cell(teacher), vocab, teacher, tokens, Slow(), RECIPE, nothing)
    state = TrainingState()
    for step, seconds in enumerate((60, 120, 240, 261, 300)):
        state.step, state.seconds = step, seconds
        task.mark(state, last=False)
    assert [point["seconds"] for point in state.curve] == [60, 261]
    state.step, state.positions = 5, recurrent.FIRST_POINT
    task.mark(state, last=False)
    state.step = 6
    task.mark(state, last=False)
    assert len(state.curve) == 3
    task.mark(state, last=True)
    assert len(state.curve) == 4


def test_a_killed_run_goes_on_to_the_same_weights(
    tmp_path: Path, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "FIRST_POINT", 300)
    results: list[list[Tensor]] = []

    def run(folder: Path) -> None:
        saved: list[RecurrentCell] = []
        recipe = replace(RECIPE, epochs=3)
        course.train(folder, a_cell(course.teacher), recipe, save=lambda one, _: saved.append(one))
        results.append([p.detach().clone() for p in saved[-1].parameters()])

    run(tmp_path / "whole")
    dies_after(monkeypatch, DrafterModel, 12, lambda: run(tmp_path / "killed"))
    points = (tmp_path / "killed" / CURVE).read_text().splitlines()
    assert len(points) > 1  # it had come so far
    run(tmp_path / "killed")
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    curves = [
        [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (tmp_path / name / CURVE).read_text().splitlines()
        ]
        for name in ("whole", "killed")
    ]
    assert curves[0] == curves[1]
    counted = [point["positions"] for point in curves[0]]
    assert counted == sorted(set(counted))


def test_another_recipe_and_a_loss_that_is_none_are_refused(tmp_path: Path, course: Course) -> None:
    once, twice = (replace(RECIPE, epochs=epochs) for epochs in (1, 2))
    course.train(tmp_path / "one", a_cell(course.teacher), once)
    with pytest.raises(DraftpickError, match="another recipe"):
        course.train(tmp_path / "one", a_cell(course.teacher), twice)
    broken = a_cell(course.teacher)
    with torch.no_grad():
        broken.norm.fill_(torch.nan)
    with pytest.raises(DraftpickError, match="the loss is nan"):
        course.train(tmp_path / "two", broken, once)
    assert not (tmp_path / "two" / "training.pt").exists()


def test_minutes_bound_a_run(
    tmp_path: Path, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that moves a tenth of a second whenever it is read. Each step looks at the
    neighbours, so that a core is taken back that they had when training began."""
    looked: list[str] = []
    for place in (training, teaching):
        own = SimpleNamespace(adapt=partial(looked.append, place.__name__))
        monkeypatch.setattr(place, "threads", lambda own=own: own)
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) / 10)
    monkeypatch.setattr(training, "time", clock)
    recipe, told = replace(RECIPE, minutes=0.1), list[dict[str, float]]()
    point = course.train(tmp_path, a_cell(course.teacher), recipe, 1, report=told.append)
    assert 6 <= point.seconds < 6.3
    assert 25 < point.step <= 60 and looked.count(training.__name__) == point.step
    assert looked.count(teaching.__name__) >= point.step  # it reads each batch
    assert told and all(0 <= now["progress"] < 1 for now in told)
    again = course.train(tmp_path, a_cell(course.teacher), recipe, 1)
    assert again.step == point.step  # its time is spent
    assert len((tmp_path / CURVE).read_text().splitlines()) == 1


def test_a_new_cell_hands_on_what_it_is_given(teacher: Teacher) -> None:
    rows = torch.arange(3, 43).unsqueeze(0)
    cell = new_cell(teacher, CONFIG, rows, 0)
    states = teacher.states(rows)[0]
    read = cell.read(states).detach()
    shares = (read / states)[0]
    torch.testing.assert_close(shares, shares[:1].expand_as(shares))
    size = float(read.square().mean() / states.square().mean()) ** 0.5
    assert size == pytest.approx(SOFTER, rel=0.1)


def test_the_vocabulary_is_of_answers(tokens: Tokens) -> None:
    vocab = commonest(tokens, 20, 43, (2,))
    counts = np.zeros(43, int)
    for row in range(len(tokens)):
        for token in tokens.text(row)[tokens.answer[row] :]:
            counts[token] += 1
    kept = vocab.to_target.tolist()
    assert len(kept) == 20 and 2 in kept and kept == sorted(kept)
    left = [i for i in range(43) if i not in kept]
    assert min(counts[i] for i in kept if i != 2) >= max(counts[i] for i in left)
    few = commonest(pack([Text([9, 5, 5], 1, "qa")]), 20, 43, (2,))
    assert few.to_target.tolist() == [2, 5]  # none that was never seen in an answer


def a_target(teacher: Teacher) -> Target:
    return Target("toy", teacher, (2,))


def test_a_specialist_goes_on_from_a_generalist(
    tmp_path: Path, teacher: Teacher, tokens: Tokens
) -> None:
    held_out = HeldOut(teacher, tokens, 3)
    recipe = replace(RECIPE, epochs=2)
    general = TrainingStage(tmp_path / "general", width=48, vocab_size=30)
    run_stage(general, a_target(teacher), tokens, held_out, recipe, "test", nothing)
    math = TrainingStage(tmp_path / "math", tmp_path / "general/model", ("math",))
    assert finished(math, recipe) is None
    point = run_stage(math, a_target(teacher), tokens, held_out, recipe, "test", nothing)
    assert finished(math, recipe) == point
    assert finished(math, replace(recipe, seed=9)) is None
    card = json.loads((math.out / "model/card.json").read_text())
    assert card["start"] == "general" and card["tasks"] == ["math"]
    assert {"qa", "math", "overall"} == set(card["acceptance"])  # judged on every task
    assert point.positions == 2 * int(of_tasks(tokens, ["math"]).lengths.sum())
    for stage in (general, math):
        record = json.loads((stage.out / RESULT).read_text())
        assert record["finished"] and record["recipe"] == asdict(recipe)
    vocabs = [DraftVocab.load(stage.out / "model") for stage in (general, math)]
    assert vocabs[0] and vocabs[1] and torch.equal(vocabs[0].to_target, vocabs[1].to_target)
    own = replace(math, out=tmp_path / "own", new_rows=True)
    run_stage(own, a_target(teacher), tokens, held_out, recipe, "test", nothing)
    chosen, old = DraftVocab.load(own.out / "model"), set(vocabs[0].to_target.tolist())
    assert chosen is not None and chosen.size == vocabs[0].size
    assert set(chosen.to_target.tolist()) != old  # the commonest of its own answers
    # figures are those of what was written
    loaded = RecurrentCell.load(math.out / "model", CPU, torch.float32)
    again = held_out.figures(loaded, vocabs[1])["overall"]["overlap"]
    assert again == pytest.approx(point.figures["overall"]["overlap"], abs=0.02)  # in bfloat16


@pytest.mark.parametrize(
    ("stage", "texts", "says"),
    [
        (TrainingStage(Path("x"), tasks=("mat",)), None, "no text is of mat; use math, qa"),
        (TrainingStage(Path("x"), Path("nowhere")), None, "holds no recurrent drafter"),
        (TrainingStage(Path("x")), [Text([5, 50], 1, "qa")], "the id 50, and toy knows 43"),
        (TrainingStage(Path("x")), [Text([5], 1, "qa")], "no text of two tokens"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, teacher: Teacher, tokens: Tokens, stage: TrainingStage,
    texts: list[Text] | None, says: str,
) -> None:  # fmt: skip
    given, held_out = tokens if texts is None else pack(texts), HeldOut(teacher, tokens, 1)
    stage = replace(stage, out=tmp_path / "out")
    with pytest.raises(DraftpickError, match=says):
        run_stage(stage, a_target(teacher), given, held_out, RECIPE, "test", nothing)


def test_another_targets_drafter_is_no_start(
    tmp_path: Path, teacher: Teacher, tokens: Tokens
) -> None:
    RecurrentCell(CellConfig(hidden=16, width=8)).save(tmp_path)
    DraftVocab([2, 3], 43).save(tmp_path)
    stage, held_out = TrainingStage(tmp_path / "out", tmp_path), HeldOut(teacher, tokens, 1)
    with pytest.raises(DraftpickError, match="drafts for another target than toy"):
        run_stage(stage, a_target(teacher), tokens, held_out, RECIPE, "test", nothing)


def test_align_makes_a_recurrent_drafter(
    tmp_path: Path, folder: Path, written: tuple[Path, Path]
) -> None:
    queries, outputs = written
    given = ["--kind", "recurrent", "--out", tmp_path / "out", "--target", folder]
    given += ["--queries", queries, "--outputs", outputs, "--vocab-size", 38, "--width", 32]
    done = command(*given, "--epochs", 4, "--batch-tokens", 256)
    assert done.exit_code == 0 and "acceptance" in done.output
    made = tmp_path / "out/model"
    card = json.loads((made / "card.json").read_text())
    assert card["kind"] == "recurrent"
    assert card["queries"] + card["held_out_queries"] == 160 and card["held_out_queries"] > 0
    assert set(card["acceptance"]) == {"qa", "math", "overall"}
    assert set(card["files"]) == {"recurrent.safetensors", "config.json", "draft_vocab.json"}
    page = (made / "README.md").read_text()
    assert "recurrent cell" in page and "| overall |" in page
    cell = RecurrentCell.load(made, CPU, torch.bfloat16)
    assert cell.config == CellConfig(32, 32, 2)
    vocab = DraftVocab.load(made)
    assert vocab is not None and vocab.target_vocab == 43 and 2 in vocab.to_target.tolist()
