"""What drafts inside a recorded round (backends/cuda/rounds.py): copies, a recurrent cell, a model,
or a copy and one of these; an exit of the target is in early_exit.py."""

from __future__ import annotations

import importlib.util
import itertools
from collections import deque
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backends.cuda.recorded import WIDEST, RecordedPasses
from ..backends.cuda.recurrent_recorded import RecordedSteps
from ..backends.cuda.rounds import BEFORE, Line, Shape
from ..lengths.tries import Tries
from ..sampling.draft_vocab import DraftVocab

SHORT, LONG = 7, 15  # copied tokens: as a pass takes eight, or sixteen, in one step of its kernels
LEAST = SHORT + 2  # tokens that such a model reads at least
FROM_TABLE = 4  # tokens in a row that are taken from a table of token pairs
COPY = 1  # the drafter of a draft by either, where it is not the model
GAIN = 1.0  # tokens that a draft by copying gives, until it is known
Reader = Callable[[list[int]], None]
REMEMBERED = 0.9  # of a model's record by each round; without a draft it nears the prior
PRIOR, PRIOR_WEIGHT = 0.55, 8.0  # of a model's token, and of how many tokens' evidence that is


class Nothing:
    """No draft: plain decoding."""

    calls = work = 0

    def first(self) -> list[Shape]:
        return [(0,)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        return (0,)

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: Line) -> tuple[Tensor, Tensor | None]:
        return line.ids[:0], None

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        pass

    def reset(self, prompt_ids: list[int]) -> None:
        pass


class Chain:
    """Token after token by one model.

    make: (line, k, unread) -> [k] drafted ids, within a recording, after reading the last `unread`
        tokens of the sequence, some of them perhaps again.
    parameters: of the model, as of a Drafter.
    read: reads a prompt, for one that keeps what it has read and must read every token in turn.

    A shape is (drafted, unread).
    """

    def __init__(
        self,
        make: Callable[[Line, int, int], Tensor],
        parameters: int,
        read: Reader | None = None,
    ) -> None:
        self._make, self._parameters, self._read = make, parameters, read
        self.calls = 0
        self.behind, self._tokens = Behind(), WIDEST

    @property
    def work(self) -> int:
        return self.calls * self._parameters

    def first(self) -> list[Shape]:
        return [(0, 0)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        shape = k, self.unread(k, k, 2)
        self.behind.launched(*shape)
        return shape

    def unread(self, width: int, drafted: int, least: int) -> int:
        """Tokens to be read in a round over `width` drafted tokens, so many of them its own; at
        least so many, so that there are few recordings."""
        if self._read is None:
            return int(drafted > 0)
        need = self.behind.unread(width, drafted)
        return min(0 if not need else least if need <= least else WIDEST, self._tokens)

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: Line) -> tuple[Tensor, Tensor | None]:
        return self.drafted(line, *shape), None

    def drafted(self, line: Line, k: int, unread: int) -> Tensor:
        """[k]."""
        return self._make(line, k, unread) if unread else line.ids[:0]

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        self.count(*shape)
        self.behind.read(accepted, own=True)

    def count(self, drafted: int, unread: int) -> None:
        self.calls += max(drafted, int(unread > 0))

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls = 0
        self.behind, self._tokens = Behind(), len(prompt_ids) + 1
        if self._read is not None:
            self._read(prompt_ids)
            self.calls = 1


class Behind:
    """How many tokens before the newest one a draft model has not read. The host knows it of rounds
    that were read; of those on their way it takes the most that there may be."""

    def __init__(self) -> None:
        self._known = 0
        self._flying: deque[tuple[int, int]] = deque()

    def unread(self, width: int, drafted: int) -> int:
        """Tokens to read in the coming round: 0 where it need not, as it drafts none and is still
        near enough after it."""
        behind = self._known
        for flown, read in self._flying:
            behind = max(1, flown) if read else behind + flown + 1
        return behind + 1 if drafted or behind + width + 2 > WIDEST else 0

    def launched(self, width: int, unread: int) -> None:
        """A round over so many drafted tokens, before which the model reads so many."""
        self._flying.append((width, unread))

    def read(self, accepted: int, own: bool) -> None:
        """What became of the oldest. own: whether the draft was the model's."""
        width, unread = self._flying.popleft()
        if not unread:
            self._known += accepted + 1
        else:  # its own last token is not read
            self._known = int(0 < width == accepted) if own else accepted


class Copies:
    """Prompt lookup (max_gram.py): what followed the longest earlier match of the last
    tokens, and on into what is copied; where nothing matches, the token that follows the last one
    most often, and so on.

    after: int64 [n], the token that follows each of the first n most often, 0 where none is known;
        None for no table.
    by_cost: draft SHORT tokens where that pays, by what was accepted lately and what rounds took
        when they were recorded; LONG ones after a draft that was accepted whole; and where it does
        not pay, when `Tries` says so. Without it as many as are asked for.
    """

    work = 0

    def __init__(
        self,
        shortest: int,
        longest: int,
        earliest: bool = False,
        after: Tensor | None = None,
        by_cost: bool = True,
    ) -> None:
        assert longest <= BEFORE
        self._by_cost = by_cost
        self._shortest, self._longest, self._earliest = shortest, longest, earliest
        self._table = after
        self.reset([])

    def first(self) -> list[Shape]:
        return [(0,), *((k,) for k in (SHORT, LONG) if self._by_cost)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        if not self._by_cost:
            return (k,)
        if self._whole:
            return (min(k, LONG),)
        short, plain = ((min(k, width),) for width in (SHORT, 0))
        if k and short in seconds and 1 + self._gain < seconds[short] / seconds[plain]:
            return short if self._tries.due() else plain
        self._tries.pays()
        return short

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: Line) -> tuple[Tensor, Tensor | None]:
        (k,) = shape
        if k == 0:
            return line.ids[:0], None
        return self.copied(line, k)[0], None

    def copied(self, line: Line, k: int, draft: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[k] ids, and [1] whether they are copied. draft: [m <= k] what is taken where nothing
        matches, instead of the table's tokens."""
        if line.padded.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
            return self._by_kernel(line, k, draft)
        source, matched = self.match(line)
        steps = torch.arange(k, device=matched.device)
        copy = line.ids.index_select(0, source + steps % (line.count - source))
        if draft is None:
            draft = self._tabled(line, min(k, FROM_TABLE))
        other = F.pad(draft, (0, k - len(draft)))
        return torch.where(matched > 0, copy, other), (matched > 0).long()

    def _by_kernel(self, line: Line, k: int, draft: Tensor | None) -> tuple[Tensor, Tensor]:
        from ..backends.cuda import round_kernels as kernels

        other, how = draft, kernels.DRAFT
        if draft is None:
            other = self._table
            how = kernels.NOTHING if other is None else kernels.TABLE
        made, found = (torch.empty(n, dtype=torch.int64, device=line.state.device) for n in (k, 1))
        matches = self._shortest, self._longest, self._earliest
        kernels.copy(line.ids, line.state, line.room, matches, other, how, made, found)
        return made, found

    def _tabled(self, line: Line, most: int) -> Tensor:
        """The tokens that the table has in turn after the newest one."""
        token, tabled = line.newest(1), [line.ids[:0]]
        while self._table is not None and len(tabled) <= most:
            last = len(self._table) - 1
            token = torch.where(token > last, 0, self._table[token.clamp(max=last)])
            tabled.append(token)
        return torch.cat(tabled)

    def match(self, line: Line) -> tuple[Tensor, Tensor]:
        """[1] where the longest earlier match of the last tokens was followed by a token, and [1]
        how long it is; of equal ones the latest, or the earliest. (0, 0) where none is."""
        n = self._longest
        # row i is what stands before position i, its last token last
        room = line.room
        grams = line.padded[BEFORE - n :].unfold(0, n, 1)[:room]  # [room, n]
        place, back = (torch.arange(m, device=grams.device) for m in (room, n))
        differs = grams != grams.index_select(0, line.count)
        same = n - 1 - torch.where(differs, back, -1).amax(1)  # tokens that agree from the end on
        known = (same >= self._shortest) & (place < line.count)
        rank = -place if self._earliest else place
        best = torch.where(known, same * room + rank, -room).argmax(0, keepdim=True)
        found = known.index_select(0, best)
        return best * found, same.index_select(0, best) * found

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        self.calls += 1
        self._whole = 0 < shape[0] == accepted
        if shape[0]:
            self._gain += (1 - REMEMBERED) * (accepted - self._gain)
            if accepted == 0:
                self._tries.rejected()

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls, self._whole = 0, False
        self._tries, self._gain = Tries(), GAIN


class Either:
    """A copy where there is a match, else a model's draft (hybrid.py).

    A round makes both, so that the model's tokens cost their time even where a copy is taken: how
    many there are follows from how often that is, how often they are accepted, and what rounds of
    each length took when they were recorded. None after a copy that was accepted whole.

    A shape is (width, drafted by the model, unread by it).
    """

    _copied: float  # share of rounds that copy
    _gain: float  # tokens that a copy gives
    _right: float  # the model's tokens that were accepted lately
    _tried: float  # and those that were verified

    def __init__(self, copies: Copies, model: Chain) -> None:
        self._copies, self._model = copies, model
        self._begin()

    @property
    def calls(self) -> int:
        return self._model.calls

    @property
    def work(self) -> int:
        return self._model.work

    def first(self) -> list[Shape]:
        drafts = [(SHORT, m, self._model.unread(SHORT, m, LEAST)) for m in range(1, SHORT + 1)]
        return [(0, 0, 0), (SHORT, 0, 0), *drafts, (LONG, 0, 0)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        width, drafted = min(k, LONG if self._whole else SHORT), 0
        if not self._whole:
            drafted = self._best(width, seconds)
        unread = self._model.unread(width, drafted, LEAST)
        self._model.behind.launched(width, unread)
        return width, drafted, unread

    def _best(self, width: int, seconds: dict[Shape, float]) -> int:
        """How many tokens the model drafts, by the most tokens a second."""
        share = self._right / self._tried
        accepted = [0.0, *itertools.accumulate(share**m for m in range(1, width + 1))]
        worth = {
            m: (1 + (1 - self._copied) * accepted[m] + self._copied * self._gain) / round_s
            for (copied, m, _), round_s in seconds.items()
            if copied == SHORT and m <= width
        }
        return max(worth, key=worth.__getitem__, default=0)

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: Line) -> tuple[Tensor, Tensor | None]:
        width, drafted, unread = shape
        made = self._model.drafted(line, drafted, unread)
        if width == 0:
            return made, None
        return self._copies.copied(line, width, made)

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        width, drafted, unread = shape
        self._model.count(drafted, unread)
        own = of != COPY and drafted == width
        self._model.behind.read(accepted, own)
        self._whole = of == COPY and 0 < width == accepted
        if width:
            self._copied += (1 - REMEMBERED) * ((of == COPY) - self._copied)
        if of == COPY:
            self._gain += (1 - REMEMBERED) * (accepted - self._gain)
        right, tried = float(min(accepted, drafted)), float(min(accepted + 1, drafted))
        if of == COPY or not drafted:  # nears the prior, so that a model given up is asked again
            right, tried = (1 - REMEMBERED) * PRIOR * PRIOR_WEIGHT, (1 - REMEMBERED) * PRIOR_WEIGHT
        self._right = REMEMBERED * self._right + right
        self._tried = REMEMBERED * self._tried + tried

    def reset(self, prompt_ids: list[int]) -> None:
        self._copies.reset(prompt_ids)
        self._model.reset(prompt_ids)
        self._begin()

    def _begin(self) -> None:
        self._whole = False
        self._copied, self._gain = 0.3, 2 * GAIN
        self._right, self._tried = PRIOR * PRIOR_WEIGHT, PRIOR_WEIGHT


def cell(steps: RecordedSteps, states: Tensor, parameters: int) -> Chain:
    """A recurrent drafter's. states: [context, d], the target's final ones."""

    def make(line: Line, k: int, unread: int) -> Tensor:
        return steps.drafted(states.index_select(0, line.start - 1), line.newest(1), k)

    return Chain(make, parameters)


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
