"""The target's answers, what a group has to gain, and the drafters: one for all, one for each."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from collect.align.calibration import read_outputs
from collect.align.held_out import Figures, HeldOut
from collect.align.kept_states import KeptStates
from collect.align.recipe import RecurrentRecipe
from collect.align.recurrent import Point
from collect.align.resuming import require_same_target
from collect.align.teacher import Teacher
from collect.align.tokens import Text, Tokens, pack
from collect.align.training_stage import Target, TrainingStage, run_stage
from collect.align.weights import training_dtype
from collect.align.write import OUTPUTS, write_outputs
from collect.queries import Query, read_queries, text_name
from collect.traffic.logged import NGRAM, AbsentTarget, LoggedReplay, configurations
from collect.traffic.records import KnownText
from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.cell import RecurrentCell
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically
from decoders.models import targets
from decoders.options import EngineOptions
from decoders.sampling.draft_vocab import DraftVocab

from .traffic import Traffic

DRAFTERS = "drafters"  # folder of all of them
UNION = "union"  # the drafter that is trained on all groups
COMMON = 0.6  # of the minutes, in which all groups are learnt, before drafters part
GENTLER = 0.3  # of the usual learning rates, where training goes on from a drafter
OWN_SHARE = 0.9  # of a greedy answer's tokens that are the likeliest, in one that the target wrote
NOT_NATIVE = (
    "{} does not run on the native backend, which a recurrent drafter needs; train a draft model "
    "with `draftpick align`"
)


@dataclass(frozen=True)
class Gain:
    """Room for improvement in a group, before any training.

    tokens: of its answers.
    outside: the share of them that the drafter that ships has no row for; None where none ships.
    accepted: how often its first, its first two, its first three drafted tokens are right.
    copied: the share of the target's passes that copying from prompt and answer saves.
    """

    tokens: int
    outside: float | None
    accepted: tuple[float, ...]
    copied: float


class Lesson:
    """The target, and what it wrote.

    out: folder of the run.
    start: the drafter that ships for it, None to begin anew.
    most_prompt: tokens of a prompt that are read, from its end.

    Raises DraftpickError where `out` holds another target's.
    """

    def __init__(
        self, options: EngineOptions, out: Path, start: Path | None, most_prompt: int, most_new: int
    ) -> None:
        self._options, self._out, self.start = options, out, start
        self._most_prompt, self._most_new = most_prompt, most_new
        self.folder = targets.resolve(options.target)
        self.tokenizer = targets.load_tokenizer(self.folder, options.chat_template)
        require_same_target(out, self.folder, self.tokenizer)

    @cached_property
    def states(self) -> KeptStates:
        """States of the target along its answers."""
        device = targets.device_of(self._options.device)
        size = targets.state_size_of(self.folder)
        if size is None:
            raise DraftpickError(NOT_NATIVE.format(self._options.target))
        return KeptStates(self._out / "states", size, training_dtype(device))

    @cached_property
    def target(self) -> Target:
        device = targets.device_of(self._options.device)
        longest = self._most_prompt + self._most_new
        backend = targets.load_backend(
            self.folder, device, training_dtype(device), "native", context=longest
        )
        if not isinstance(backend, LlamaBackend):
            raise DraftpickError(NOT_NATIVE.format(self._options.target))
        return Target(self._options.target, Teacher(backend), targets.eos_ids(self.folder))

    @property
    def begun(self) -> bool:
        """Whether a drafter is begun."""
        return (self._out / DRAFTERS).is_dir()

    def write(self, queries: Path, minutes: float | None) -> Path:
        """Let the target answer what is not answered yet; the file of answers. Once a drafter is
        begun nothing is added, as it goes on with the texts that it has."""
        where = self._out / "answers" / queries.stem
        if self.begun and (where / OUTPUTS).is_file():
            return where / OUTPUTS
        options, kept = replace(self._options, dtype="bfloat16", arms=None), self.states
        return write_outputs([queries], where, options, self._most_new, None, minutes, kept)

    def take_over(self, queries: Sequence[Query], traffic: Traffic, part: str) -> int | None:
        """Keep the log's answers that the target wrote, as if it had written them now; how many,
        None where an earlier call has.

        Those of its weights, where the log names them. Else a greedy answer is the target's where
        OWN_SHARE of its tokens are the likeliest; of one that was drawn that cannot be told, and
        the target answers anew.
        """
        path = self._out / "answers" / part / OUTPUTS
        if path.is_file() or not traffic.written:
            return None
        _, weights = targets.tokenizer_and_fingerprint(self.folder, self._options.chat_template)
        rows = list[str]()
        for query in queries:
            if (known := traffic.written.get(query.id)) is None:
                continue
            ids = known.ids[: self._most_new]
            target, temperature = known.logged.target, known.logged.temperature
            if target is not None:
                own = target.partition("@")[2].partition("/")[0] == weights
            else:
                own = temperature == 0 and self._likeliest(query, ids) >= OWN_SHARE
            if own:
                row: dict[str, object] = {"id": query.id, "task": query.task, "ids": ids}
                row |= {"ended": ids[-1] in self.target.eos, "temperature": temperature or 0}
                rows.append(json.dumps(row) + "\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(rows))
        return len(rows)

    def _likeliest(self, query: Query, ids: list[int]) -> float:
        """The share of an answer's tokens that are the target's likeliest."""
        teacher = self.target.teacher
        prompt = list(query.prompt_ids or ())[-self._most_prompt :]
        text = torch.tensor([prompt + ids[:-1]], device=teacher.device)
        states = teacher.states(text)[0, -len(ids) :]
        best: list[int] = (states @ teacher.head.T).argmax(-1).tolist()
        return float(sum(map(operator.eq, best, ids))) / len(ids)

    def tokens(self, queries: Path, outputs: Path) -> Tokens:
        """Prompts with the answers to them."""
        by_id = {query.id: query for query in read_queries(queries)}
        encode = partial(targets.encode_chat, self.tokenizer)
        texts = []
        for row in read_outputs(outputs):
            query = by_id[str(row["id"])]
            prompt = query.prompt(encode)[-self._most_prompt :]
            ids = prompt + list(row["ids"])[: self._most_new]
            texts.append(Text(ids, len(prompt), query.task, float(row.get("temperature", 0.0))))
        return pack(texts)

    def _texts(self, tasks: Sequence[str]) -> list[str]:
        queries = read_queries(self._out / "queries" / "train.jsonl")
        return [text_name(q.turns[0]) for q in queries if not tasks or q.task in tasks]

    def held_out(self, tokens: Tokens) -> HeldOut:
        """Figures of these answers, which no drafter is trained on."""
        return HeldOut(self.target.teacher, tokens, most=4096)

    def gains(self, held_out: HeldOut, tokens: Tokens) -> dict[str, Gain]:
        """Count by group, in answers that no drafter is trained on."""
        vocab, figures = None, Figures()
        if self.start is not None:
            teacher = self.target.teacher
            vocab = DraftVocab.load(self.start)
            cell = RecurrentCell.load(self.start, teacher.device, teacher.dtype)
            assert vocab is not None
            figures = held_out.figures(cell, vocab.to(teacher.device))
        made = {}
        for task in tokens.tasks:
            some = tokens.pick(tokens.names() == task)
            answers = [some.text(row)[some.answer[row] :] for row in range(len(some))]
            ids = np.concatenate(answers)
            outside = None if vocab is None else float(np.mean(~np.isin(ids, vocab.to_target)))
            found = figures.get(task, {})
            accepted = tuple(found[name] for name in ("first", "two", "three") if name in found)
            made[task] = Gain(len(ids), outside, accepted, self._copied(some))
        return made

    def _copied(self, tokens: Tokens) -> float:
        arm = f"{NGRAM}-16"
        texts = []
        for row in range(len(tokens)):
            ids, answer = tokens.text(row).tolist(), int(tokens.answer[row])
            texts.append(KnownText(ids[:answer], ids[answer:]))
        target = AbsentTarget(self.target.teacher.vocab_size)
        replay = LoggedReplay(target, self.tokenizer, {arm: configurations()[arm]})
        found = [each for each in replay.replay(arm, texts, range(len(texts))) if each is not None]
        rounds = sum(each.rounds for each in found)
        return 1 - rounds / max(1, sum(len(each.ids) - 1 for each in texts))

    def stages(
        self, groups: Sequence[str], minutes: float
    ) -> list[tuple[TrainingStage, RecurrentRecipe]]:
        """Drafters to train: OUT/drafters/NAME/model is the folder of each.

        One for all groups. Where there are several, COMMON of the time goes to what all drafters
        begin with; then the union goes on with all groups and one drafter with each, for equal
        times. The union does so at rates that are gentler still, as it learns nothing new.
        """
        rate = 1.0 if self.start is None else GENTLER
        if len(groups) < 2:
            return [self._stage(UNION, (), minutes, self.start, rate)]
        common = self._stage("common", (), COMMON * minutes, self.start, rate)
        each, begun = (1 - COMMON) * minutes / (1 + len(groups)), common[0].out / "model"
        union = self._stage(UNION, (), each, begun, GENTLER**2)
        own = [self._stage(group, (group,), each, begun, GENTLER) for group in groups]
        return [common, union, *own]

    def _stage(
        self, name: str, tasks: tuple[str, ...], minutes: float, start: Path | None, rate: float
    ) -> tuple[TrainingStage, RecurrentRecipe]:
        """rate: of the usual learning rates."""
        usual = RecurrentRecipe()
        recipe = replace(
            usual,
            minutes=minutes,
            batch_tokens=4096 if self.target.teacher.device.type == "cpu" else usual.batch_tokens,
            lr=rate * usual.lr,
            matrix_lr=rate * usual.matrix_lr,
            prompts=False,
        )
        where, anew = self._out / DRAFTERS / name, start is not None
        return TrainingStage(where, start, tasks, new_rows=anew), recipe

    def train(
        self,
        stage: TrainingStage,
        recipe: RecurrentRecipe,
        tokens: Tokens,
        held_out: HeldOut,
        report: Callable[[dict[str, float]], None],
    ) -> Point:
        """Train it, or go on."""
        parts = (tokens, held_out, recipe, "draftpick", report, self.states)
        return run_stage(stage, self.target, *parts, texts=self._texts(stage.tasks))
