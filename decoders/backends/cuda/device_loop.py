"""The speculative loop with the host a round behind (rounds.py).

`decode` in decoders/loop.py goes this way by itself where it can: on a GPU, for a sequence whose
passes are recorded, of several in a batch the first row's, without a penalty, a grammar or
logprobs, for arms whose drafts need not the host. Answers are the ordinary loop's.
"""

from __future__ import annotations

from ...device_rounds import DeviceDrafter
from ...protocols import Drafter, DraftLength, Job, LearningLength, Verifier
from ...records import DecodeResult
from ...sampling.filters import choose
from ...sampling.randomness import Generator
from ...tally import Tally
from ...verify.coupled import Coupled
from .rounds import RecordedRounds, Rounded


class DeviceLoop:
    """Writes an arm's answers; its rounds are made when they are first wanted.

    length: of its drafts, which cost less here than in the ordinary loop.
    rounds: None where there are none (yet).
    """

    def __init__(
        self, target: Rounded, drafter: Drafter, verifier: Verifier, length: DraftLength
    ) -> None:
        self._target, self._drafter, self._verifier = target, drafter, verifier
        self._ordinary = length
        self.length = length.apart() if isinstance(length, LearningLength) else length
        self.rounds: RecordedRounds | None = None
        self._asked = False

    def takes(self, job: Job, drafts_to: int) -> bool:
        request, sampling = job.request, job.request.sampling
        if self._target.recorded is None or self._target.turn is None:
            return False
        if sampling.repetition_penalty != 1:
            return False
        if not sampling.greedy and not isinstance(job.chance, Generator):
            return False
        if job.grammar is not None or request.logprobs is not None:
            return False
        if type(self._verifier) is not Coupled or self._ordinary.min_confidence:
            return False
        if len(job.prompt_ids) + request.max_new_tokens > drafts_to:
            return False
        if not self._asked:
            self._asked, drafter = True, self._drafter
            draft = drafter.round_draft() if isinstance(drafter, DeviceDrafter) else None
            if draft is not None:
                context = min(self._target.context, drafter.context)
                self.rounds = RecordedRounds(self._target, draft, context)
        return self.rounds is not None

    def write(self, arm: str, job: Job) -> DecodeResult:
        rounds, length, turn, stopper = self.rounds, self.length, self._target.turn, job.stopper
        assert rounds is not None and turn is not None
        tally, sampling, start = Tally(job), job.request.sampling, len(job.prompt_ids)
        length.reset()
        tally.prefill_s += tally.clock.lap()
        ids = stopper.admit([choose(job.prefilled.logits, sampling, job.chance, start)])
        context = [*job.prompt_ids, *ids]
        job.emit(ids)
        chance = job.chance if isinstance(job.chance, Generator) else None
        rounds.begin(job.prompt_ids, context, sampling, 0 if chance is None else chance.key)
        tally.prefill_s += tally.clock.lap()
        if not stopper.reason:
            rounds.launch(length.next())
        while not stopper.reason:
            room = stopper.room
            if room > 1:  # else the round on its way is the last
                rounds.launch(length.next())
            written, stats = rounds.read()
            ids = stopper.admit(written)
            drafted = min(stats.drafted, room - 1)  # as if it ended where the answer must
            accepted = min(stats.accepted, drafted, len(ids))
            tally.rounds += 1
            tally.passed(1 + drafted)
            tally.drafted += drafted
            tally.draft_s += stats.draft_s
            tally.accept(accepted, of=drafted)
            context += ids
            job.emit(ids, accepted, drafted)
            length.observe(stats)
            if not stopper.reason:
                turn()
        spent = tally.clock.lap()
        tally.draft_s = min(tally.draft_s, spent)  # by what a draft took when it was timed
        tally.verify_s = spent - tally.draft_s
        return tally.close(arm, context[start:], rounds.draft.calls, rounds.draft.work)
