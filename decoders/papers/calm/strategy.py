"""CALM (Schuster et al., Confident Adaptive Language Modeling): each token leaves the target
after as many layers as it takes to be sure of it. Lossy, and a baseline: nothing verifies a token
that left early, and the layers it skipped hold keys and values of the state at which it left."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...protocols import Job, LayeredBackend, decoder_prefix
from ...records import DecodeResult
from ...sampling.filters import choose, penalised
from ...tally import Tally


def softmax_gap(target: LayeredBackend, h: Tensor, below: Tensor) -> float:
    """The two most likely tokens' difference in probability, by the final norm and head on [d].
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
    """confidence: one of CONFIDENCES.
    threshold: in [0, 1]; a token leaves where its confidence is at least the step's threshold (see
        `threshold_at`), and at 1 never.
    decay: how fast thresholds are lowered, tau in the paper; 0 keeps them.

    The prompt's own pass gives the first token, through all layers. In the result a round is a pass
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
    def decode(self, job: Job) -> DecodeResult:
        target, sampling, stopper = job.target, job.request.sampling, job.stopper
        assert isinstance(target, LayeredBackend)
        tally = Tally(job)
        measure = CONFIDENCES[self.confidence]
        first_exit = 2 if measure is saturation else 1  # it compares two layers' states
        start = decoder_prefix(target, job.prompt_ids)
        context, layers = list(start), 0
        logits = penalised(job.prefilled.logits, context, sampling)
        tokens = [choose(logits, sampling, job.chance, len(context))]
        while True:
            context += stopper.admit(tokens)
            job.emit(tokens)
            if stopper.reason:
                break
            written = len(context) - len(start)
            least = self.threshold_at(written, job.request.max_new_tokens)

            def leaves(h: Tensor, below: Tensor, depth: int, least: float = least) -> bool:
                return depth >= first_exit and measure(target, h, below) >= least

            tally.other_s += tally.clock.lap()
            h, depth = target.extend_until(context[-1], leaves)
            logits = penalised(target.read_out(h), context, sampling)
            tokens = [choose(logits, sampling, job.chance, len(context))]
            tally.verify_s += tally.clock.lap()
            tally.rounds += 1
            tally.passed(1)
            layers += depth
        ids = context[len(start) :]
        mean_layers = layers / tally.rounds if tally.rounds else None
        return tally.close(self.name, ids, mean_layers=mean_layers)
