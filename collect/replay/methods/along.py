"""Drafters asked from round to round along a known answer, as the loop would ask them: those whose
drafts follow from the text alone, and others one after another."""

from __future__ import annotations

import time

import torch

from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.neural.translated import TranslatedDrafter
from decoders.methods.suffix.drafter import SuffixDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.protocols import Drafter, DraftRequest, decoder_prefix
from decoders.records import Sampling
from decoders.sampling.randomness import Generator

from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Replay, ToWrite, Written
from ..registry import ReplayAdapter, adapter_of
from ..replay import Draft, replay_each


def along(
    drafter: Drafter, answers: KnownAnswers, row: int, min_confidence: float, counted: bool = True
) -> Draft:
    """Ask the drafter from round to round along one of the answers.

    counted: whether a model takes steps to draft.
    """
    target, prompt, answer = answers.target, answers.prompts[row], answers.ids[row]
    drafter.reset(prompt)
    before = drafter.calls  # reading the prompt is none of its steps
    start, chance = decoder_prefix(target, prompt), Generator(target.device, answers.seeds[row])
    sampling = Sampling(answers.temperature)

    def draft(at: int, k: int) -> list[int]:
        context = start + answer[:at]
        if at > 1:
            drafter.commit(context)
        if k < 1:
            return []
        asked = DraftRequest(k, sampling, chance, min_confidence)
        ids: list[int] = drafter.propose(context, asked).ids.tolist()
        return ids

    return Draft(draft, (lambda: drafter.calls - before) if counted else None)


@torch.inference_mode()
def all_along(
    drafter: Drafter, answers: KnownAnswers, loop: ReplayedLoop, counted: bool = True
) -> list[Replay]:
    """Replay the loop along each answer, of a drafter that reads nothing along with the target."""

    def begin(row: int, min_confidence: float) -> Draft:
        return along(drafter, answers, row, min_confidence, counted)

    return replay_each(answers, begin, loop)


class CopiedReplay(ReplayAdapter):
    """Copies follow from the text, those of suffixes also from earlier answers, and from how often
    the answer's own copies were right."""

    drafter: MaxGramDrafter | SuffixDrafter

    def write(self, asked: ToWrite) -> Written:
        """Token by token, until nothing matches."""
        started, answers = time.perf_counter(), []
        for prompt in asked.prompts:
            self.drafter.reset(prompt)
            start = decoder_prefix(asked.target, prompt)
            context = list(start)
            while len(context) < len(start) + asked.max_new_tokens:
                self.drafter.commit(context)
                token = self.drafter.copy(context, 1).ids
                context += token
                if not token or token[0] in asked.eos_ids:
                    break
            answers.append(context[len(start) :])
        return Written(answers, decode_s=time.perf_counter() - started)

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        """None for trees, of which a token that is not the first child may be accepted too."""
        if isinstance(self.drafter, SuffixDrafter) and self.drafter.branches:
            return None
        return all_along(self.drafter, answers, loop, counted=False)


class TranslatedReplay(ReplayAdapter):
    """A draft model with another tokenizer: every place is read anew, as the tokenizers may cut the
    text differently from each. Its calls are counted, as the target's tokens are fewer or more than
    the model's."""

    drafter: TranslatedDrafter
    counts_calls = True

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay]:
        return all_along(self.drafter, answers, loop)


class WidenedReplay(ReplayAdapter):
    """Trees are run as they are, since any branch may be accepted; their tokens are the chain's."""

    drafter: WidenedDrafter

    def steps(self, answers: int) -> float:
        return adapter_of(self.drafter.inner).steps(answers)
