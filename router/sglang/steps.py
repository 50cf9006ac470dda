"""How many tokens SGLang drafts in a step: the number that gives the most tokens a second, by what
was accepted lately and by what steps cost at the batch's size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from .options import StepOptions

MEMORY = 0.99  # what a step's answers count after one more step
LAG = 2  # steps after a change whose answers may be of the length before
TRY = 2 * LAG  # steps of a try, while no draft promises to pay
FIRST, LONGEST = 16, 256  # steps between tries, at first and at last
PRIOR = 0.5, 2.0  # chance of an accepted token where none was seen; the tokens that it weighs


class Acceptance:
    """The chance that a drafted token is accepted if those before it were, by its position; by the
    last seen position beyond (Kaplan and Meier's hazards, with forgetting)."""

    def __init__(self, longest: int) -> None:
        self._tried, self._accepted = np.zeros(longest), np.zeros(longest)

    def observe(self, accepted: Sequence[int], steps: int) -> None:
        """accepted: of each answer, of `steps` drafted tokens."""
        counts = np.asarray(accepted)[:, None]  # [answers, 1]
        at = np.arange(steps)
        self._tried *= MEMORY
        self._accepted *= MEMORY
        self._tried[:steps] += (counts >= at).sum(axis=0)
        self._accepted[:steps] += (counts > at).sum(axis=0)

    def tokens(self) -> np.ndarray:
        """[longest + 1] tokens that a step gives an answer, by the number of drafted ones."""
        first, weight = PRIOR
        chances, last = np.empty(len(self._tried)), first
        for at, (tried, accepted) in enumerate(zip(self._tried, self._accepted, strict=True)):
            last = chances[at] = (accepted + weight * last) / (tried + weight)
        return 1 + np.concatenate([[0.0], np.cumsum(np.cumprod(chances))])


class StepPolicy:
    """SGLang's `AdaptiveSpecPolicy` (sgl-project/sglang#37274).

    Depends on nothing but what SGLang tells, neither on a clock nor on chance, so that all ranks of
    a model that is spread over several devices take the same length.

    initial_steps: the length that the server starts with; kept until answers have been seen where
        it is among the candidates.
    """

    def __init__(self, options: StepOptions, initial_steps: int) -> None:
        self._options = options
        self._sizes = sorted(options.candidates)
        self._longest = max(self.candidate_steps)
        self._tokens, self._step_s = list(options.step_s), list(options.step_s.values())
        self._acceptance = Acceptance(self._longest)
        self._seen = False
        self._graphs: list[int] | None = None
        self._steps, self._since = initial_steps, LAG
        self._trying, self._waiting, self._wait = 0, FIRST, FIRST

    # -- SGLang's protocol ------------------------------------------------------------------------

    @property
    def candidate_steps(self) -> list[int]:
        """All lengths that may be taken, in rising order."""
        return sorted({steps for each in self._options.candidates.values() for steps in each})

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """The batch sizes that are captured; smaller batches are filled up to the next of them."""
        self._graphs = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Those of them at which this length may be taken; None without graphs."""
        if self._graphs is None:
            return None
        return [size for size in self._graphs if step in self._candidates(size)]

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Asked once before each step."""
        steps = self._best(self._padded(batch_size))
        if steps != self._steps:
            self._steps, self._since = steps, 0
        return steps

    def on_verify_complete(
        self, num_correct_drafts_per_req: list[int], batch_size: int, num_steps: int | None = None
    ) -> int | None:
        """What a step's drafts gave. num_steps: their length, where SGLang says so. None, as
        `get_steps_for_batch` takes the next length."""
        self._since += 1
        if num_steps is None and self._since > LAG:
            num_steps = self._steps
        if num_steps and num_correct_drafts_per_req:
            steps = min(num_steps, self._longest)
            self._acceptance.observe(num_correct_drafts_per_req, steps)
            self._seen = True
        return None

    def on_state_activated(self, steps: int) -> None:
        """SGLang took this length, asked or not."""
        if steps != self._steps:
            self._steps, self._since = steps, 0

    # -- the choice -------------------------------------------------------------------------------

    def _best(self, size: int) -> int:
        candidates = self._candidates(size)
        held = self._steps if self._steps in candidates else candidates[len(candidates) // 2]
        drafting = [steps for steps in candidates if steps]
        if not drafting:
            return 0
        if not self._seen:
            return held or drafting[0]
        tokens = self._acceptance.tokens()
        rates = {steps: tokens[steps] / self._seconds(size, steps) for steps in candidates}
        best = max(rates, key=rates.__getitem__)
        if rates[best] <= (1 + self._options.margin) * rates[held]:
            best = held
        if best:
            self._trying, self._waiting, self._wait = 0, FIRST, FIRST
            return best
        return drafting[0] if self._tries() else 0

    def _tries(self) -> bool:
        """Whether a step drafts though that does not promise to pay, as texts change."""
        if not self._trying and not self._waiting:
            self._trying, self._waiting = TRY, self._wait
            self._wait = min(2 * self._wait, LONGEST)
        if self._trying:
            self._trying -= 1
            return True
        self._waiting -= 1
        return False

    def _seconds(self, size: int, steps: int) -> float:
        """Of a step in which each of `size` answers drafts and verifies."""
        tokens, known, seconds = size * (steps + 1), self._tokens, self._step_s
        if tokens > known[-1]:
            a_token = (seconds[-1] - seconds[0]) / max(1, known[-1] - known[0])
            verify = seconds[-1] + a_token * (tokens - known[-1])
        else:
            verify = float(np.interp(tokens, known, seconds))
        return verify + steps * self._options.draft_s

    def _padded(self, batch_size: int) -> int:
        graphs = self._graphs or []
        at = bisect_left(graphs, batch_size)
        return graphs[at] if at < len(graphs) else batch_size

    def _candidates(self, size: int) -> tuple[int, ...]:
        at = bisect_right(self._sizes, size) - 1
        return self._options.candidates[self._sizes[max(0, at)]]
