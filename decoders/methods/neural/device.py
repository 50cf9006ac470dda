"""A draft model inside a recorded round."""

from __future__ import annotations

from torch import Tensor

from ...backends.cuda.recorded import RecordedPasses
from ...backends.cuda.rounds import Line
from ...sampling.draft_vocab import DraftVocab
from ..device import Chain, Reader


def model(
    passes: RecordedPasses, vocab: DraftVocab | None, known: int, parameters: int, read: Reader
) -> Chain:
    """A draft model's, which has a cache of its own. known: ids that it may draft."""

    def make(line: Line, k: int, unread: int) -> Tensor:
        ids = line.newest(unread)
        ids = ids if vocab is None else vocab.from_target[ids]
        start = line.start - (unread - 1)
        drafted = passes.drafted(ids, max(k, 1), known, start, line.read)[:k]
        return drafted if vocab is None else vocab.to_target[drafted]

    return Chain(make, parameters, read)
