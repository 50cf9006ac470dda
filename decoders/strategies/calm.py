"""CALM (D19; Schuster et al., Confident Adaptive Language Modeling): each token leaves the target
after as many layers as it takes to be sure of it. Lossy, and a baseline: nothing reviews a token
that left early, and the layers it skipped hold keys and values of the state at which it left."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..chance import Chance
from ..loop import Clock
from ..protocols import Backend, Emit, LayeredBackend, opening
from ..records import DecodeResult, Prefilled, Request
from ..sampling import choose, penalised
from ..stopping import Stopper
from .tally import Books


def softmax_gap(target: LayeredBackend, h: Tensor, below: Tensor) -> float:
    """The two likeliest tokens' probabilities apart, read from [d] by the final norm and head.
    Costs a product with the head after every layer."""
    top = target.read_out(h).float().softmax(-1).topk(2).values
    return float(top[0] - top[1])


def saturation(target: LayeredBackend, h: Tensor, below: Tensor) -> float:
    """Cosine of the states [d] after and before a layer: near 1 where it hardly changed it."""
    return float(F.cosine_similarity(h.float(), below.float(), dim=-1))


CONFIDENCES: dict[str, Callable[[LayeredBackend, Tensor, Tensor], float]] = {
    "softmax": softmax_gap,
    "saturation": saturation,
}


@dataclass(frozen=True)
class Calm:
    """confidence: one of CONFIDENCES. threshold: in [0, 1]; a token leaves where its confidence is
    at least the step's threshold (see `threshold_at`), and at 1 never. decay: how fast thresholds
    fall, tau in the paper; 0 keeps them.

    The first token is the prompt's own pass's, through all layers. In the result a round is a pass
    of the target, whole or not, and `mean_layers` says how much of it was run.
    """

    name: str
    threshold: float
    confidence: str = "saturation"
    decay: float = 4.0

    parameters = 0
    context = sys.maxsize

    def threshold_at(self, step: int, most: int) -> float:
        """For the token after `step` written ones, of at most `most` (equation 5): early tokens
        matter more, as later ones are read after them."""
        if self.threshold == 1:
            return math.inf
        return min(1.0, 0.9 * self.threshold + 0.1 * math.exp(-self.decay * step / most))

    @torch.inference_mode()
    def decode(
        self,
        target: Backend,
        prompt_ids: list[int],
        prefilled: Prefilled,
        request: Request,
        stopper: Stopper,
        chance: Chance,
        emit: Emit,
    ) -> DecodeResult:
        assert isinstance(target, LayeredBackend)
        books = Books(Clock(target.device), prefilled.prefill_s)
        measure = CONFIDENCES[self.confidence]
        first_exit = 2 if measure is saturation else 1  # it compares two layers' states
        start = opening(target, prompt_ids)
        context, layers = list(start), 0
        logits = penalised(prefilled.logits, context, request.sampling)
        tokens = [choose(logits, request.sampling, chance)]
        while True:
            context += stopper.admit(tokens)
            emit(tokens)
            if stopper.reason:
                break
            written = len(context) - len(start)
            least = self.threshold_at(written, request.max_new_tokens)

            def leaves(h: Tensor, below: Tensor, depth: int, least: float = least) -> bool:
                return depth >= first_exit and measure(target, h, below) >= least

            books.other_s += books.clock.lap()
            h, depth = target.extend_until(context[-1], leaves)
            logits = penalised(target.read_out(h), context, request.sampling)
            tokens = [choose(logits, request.sampling, chance)]
            books.verify_s += books.clock.lap()
            books.rounds += 1
            books.target_calls += 1
            layers += depth
        ids = context[len(start) :]
        mean_layers = layers / books.rounds if books.rounds else None
        return books.close(self.name, prompt_ids, ids, stopper, mean_layers=mean_layers)
