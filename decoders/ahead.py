"""The speculative loop with the host a round behind (backends/cuda/rounds.py).

`decode` in loop.py goes this way by itself where it can: on a GPU, for a sequence whose passes are
recorded, of several in a batch the first row's, without a penalty, a grammar or logprobs, for
lossless arms whose drafts need not the host. Greedy answers are the ordinary loop's. So are sampled
ones, of arms that draft without drawing; a model drafts its most likely tokens here at any
temperature, and its answers have the same distribution.
"""

from __future__ import annotations

from .backends.batched.slots import SlotBackend
from .backends.cuda.rounds import DeviceDrafter, RecordedRounds
from .backends.native import LlamaBackend
from .protocols import Drafter, DraftLength, Job, Verifier
from .records import StepStats
from .sampling.randomness import Generator
from .tally import Tally
from .verify.lossless import Lossless


class Ahead:
    """An arm's rounds on the device, made when they are first wanted.

    length: of their drafts, which cost less there than in the ordinary loop; None for the arm's.
    rounds: None where there are none (yet).
    """

    def __init__(self, length: DraftLength | None = None) -> None:
        self.length = length
        self.rounds: RecordedRounds | None = None
        self._asked: LlamaBackend | None = None

    def of(self, target: LlamaBackend, drafter: Drafter) -> RecordedRounds | None:
        """Of this drafter on this target."""
        if self._asked is not target:
            draft = drafter.round_draft() if isinstance(drafter, DeviceDrafter) else None
            context = min(target.context, drafter.context)
            self.rounds = None if draft is None else RecordedRounds(target, draft, context)
            self._asked = target
        return self.rounds


def rounds_ahead(
    job: Job,
    drafter: Drafter,
    verifier: Verifier,
    length: DraftLength,
    ahead: Ahead,
    drafts_to: int,
) -> RecordedRounds | None:
    """The rounds by which this answer can be written ahead of the host; None where it cannot.

    drafts_to: tokens of prompt and answer up to which the arm drafts.
    """
    target, request = job.target, job.request
    if not isinstance(target, LlamaBackend) or target.recorded is None:
        return None
    if isinstance(target, SlotBackend) and target.turn is None:
        return None
    if request.sampling.repetition_penalty != 1:
        return None
    if not request.sampling.greedy and not isinstance(job.chance, Generator):
        return None
    if job.grammar is not None or request.logprobs is not None:
        return None
    if type(verifier) is not Lossless or length.min_confidence:
        return None
    if len(job.prompt_ids) + request.max_new_tokens > drafts_to:
        return None
    return ahead.of(target, drafter)


def write_ahead(
    rounds: RecordedRounds, job: Job, length: DraftLength, tally: Tally, context: list[int]
) -> None:
    """Round after round until the answer ends; `context` grows by what is written."""
    stopper, target = job.stopper, job.target
    turn = target.turn if isinstance(target, SlotBackend) else None
    chance = job.chance if isinstance(job.chance, Generator) else None
    rounds.begin(job.prompt_ids, context, job.request.sampling, chance)
    tally.prefill_s += tally.clock.lap()
    if not stopper.reason:
        rounds.launch(length.next())
    while not stopper.reason:
        room = stopper.room
        if room > 1:  # else the round on its way is the last
            rounds.launch(length.next())
        made = rounds.read()
        ids = stopper.admit(made.ids)
        drafted = min(made.drafted, room - 1)  # as if it ended where the answer must
        accepted = min(made.accepted, drafted, len(ids))
        tally.rounds += 1
        tally.passed(1 + drafted)
        tally.drafted += drafted
        tally.draft_s += made.draft_s
        tally.accept(accepted, of=drafted)
        context += ids
        job.emit(ids, accepted, drafted)
        verify_s = made.round_s - made.draft_s
        length.observe(StepStats(made.drafted, made.accepted, made.draft_s, verify_s))
        if turn is not None and not stopper.reason:
            turn()
    spent = tally.clock.lap()
    tally.draft_s = min(tally.draft_s, spent)  # by what a draft took when it was timed
    tally.verify_s = spent - tally.draft_s
