"""Every seam of the decoding core: what the loop asks of a model, a drafter, a verifier and a draft
length, and what an engine asks of a strategy.

Any class with these members will do, from inside this package or from outside. The records that
pass between them are in `records.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .records import DecodeResult, Prefilled, Proposal, Request, Sampling, StepStats, Verdict
from .sampling.race import Clocks
from .sampling.randomness import RandomSource
from .sampling.stopping import Stopper

if TYPE_CHECKING:
    from .earlier.answers import EarlierAnswers
    from .earlier.prefixes import PrefixStore

# -- models ----------------------------------------------------------------------------------------


@runtime_checkable
class Backend(Protocol):
    """One sequence being decoded by one model. The cache is the backend's own.

    Positions 0..length-1 are held; `extend` appends, `truncate` takes back. After `prefill` they
    are those of `decoder_prefix`: the prompt, unless an encoder reads it apart (EncoderDecoder).
    """

    vocab_size: int
    parameters: int
    context: int
    device: torch.device
    dtype: torch.dtype

    @property
    def length(self) -> int:
        """Positions held in the cache."""

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        """Forget everything, read `prompt_ids` [S], S >= 1."""

    def extend(self, ids: Tensor) -> Tensor:
        """Append `ids` [T] int64, T >= 1 and length + T <= context.

        Returns logits [T, V] in float32 or the model's dtype, row i for what follows ids[i].
        """

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions; 0 <= length <= self.length."""


@runtime_checkable
class EncoderDecoder(Backend, Protocol):
    """A backend that reads the prompt in an encoder; its positions are the decoder's, which begin
    with `start_id`. `context` bounds the prompt and the decoder's positions each."""

    start_id: int


def decoder_prefix(backend: Backend, prompt_ids: list[int]) -> list[int]:
    """The sequence that the answer goes on from, a token for each position that `prefill` fills:
    the prompt, or an encoder-decoder's start token alone."""
    return [backend.start_id] if isinstance(backend, EncoderDecoder) else list(prompt_ids)


@runtime_checkable
class CleanedBackend(Backend, Protocol):
    """A backend whose passes read what is left of other sequences, if only to mask it, so that nan
    in it would spoil them too."""

    def clean(self) -> None:
        """Forget everything, and what is no number for good."""


@runtime_checkable
class ReusingBackend(Backend, Protocol):
    """A backend that need not read again what it holds of a prompt.

    prompts_read: how often `prefill` was called.
    """

    prompts_read: int

    @property
    def reach(self) -> int:
        """The least length above 0 that it can be taken back to: layers with windows may have let
        go what lies far behind them. 0 for any."""

    def prefill(self, prompt_ids: list[int], cached: int = 0) -> Prefilled:
        """cached: how many of the first positions hold these very ids already; fewer than there are
        ids."""


@runtime_checkable
class PartedBackend(ReusingBackend, Protocol):
    """A backend that reads a long prompt in parts, between which others may go on."""

    @property
    def part(self) -> int:
        """Tokens of a prompt that it reads at once, if it is left to it."""

    def prefill(
        self,
        prompt_ids: list[int],
        cached: int = 0,
        between: Callable[[], None] | None = None,
        part: int | None = None,
    ) -> Prefilled:
        """between: called before each part is read and once after the last, with `length` saying
            how far it has come. It may copy positions of the prompt in (CopyableBackend), but not
            its last one; what it raises ends the reading.
        part: tokens that are read at once.
        """


@runtime_checkable
class CopyableBackend(PartedBackend, Protocol):
    """A backend whose positions can be copied, into any other of the same weights and layout.

    weights: what reads a prompt; the positions of one object's stand for each other.
    """

    weights: object

    @property
    def layout(self) -> tuple[object, ...]:
        """What it has of a position, hashable."""

    @property
    def position_bytes(self) -> int:
        """Bytes of a copy of one position."""

    def copy_out(self, start: int, end: int) -> list[Tensor]:
        """The positions from `start` to before `end`, each tensor [..., end - start, d]."""

    def copy_in(self, copies: Sequence[Tensor]) -> None:
        """Append what `copy_out` gave for the positions that follow here."""


@runtime_checkable
class SharingBackend(Backend, Protocol):
    """A backend whose weights may serve several sequences."""

    def sharing_weights(self, context: int) -> Backend:
        """The same weights with its own cache, of at most that many positions."""


@runtime_checkable
class TreeBackend(Backend, Protocol):
    """A backend whose sequence may end in a tree: several continuations that share prefixes.

    The tree begins where the sequence ends when `extend` is first given parents. Its nodes are
    numbered from 0 in the order in which they are read, over all calls, until the sequence is
    truncated or a chain is appended. Before either, the nodes kept must be a path. `length` counts
    every node.
    """

    @property
    def trees_unsupported_reason(self) -> str | None:
        """Why this model cannot read one, in a few words; None where it can."""

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        """Append `ids`, as a Backend, or as nodes of a tree.

        parents: [T] the node that each of `ids` follows, -1 for what comes before the tree; one of
            `ids` may follow an earlier one. None appends a chain.
        """

    def keep(self, nodes: Sequence[int]) -> None:
        """Keep these nodes of the tree, in growing order and each with its ancestors, and forget
        the others; nodes[i] becomes node i."""

    def truncate(self, length: int) -> None:
        """Keep the first positions; a tree with branches can only be taken back whole."""


@runtime_checkable
class LayeredBackend(Backend, Protocol):
    """A backend whose tokens may leave before its last layer."""

    def extend_until(
        self, token: int, leaves: Callable[[Tensor, Tensor, int], bool]
    ) -> tuple[Tensor, int]:
        """Append one token, run through no more layers than it needs.

        leaves: (h, below, depth) -> whether to stop at h [d], the state after `depth` layers; below
            [d] is the state before the last of them. Not asked after the last layer.

        The layers above get keys and values of the state it stopped at. Returns that state [d] and
        how many layers it took.
        """

    def read_out(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., d] after any layer, by the final norm and head."""


@runtime_checkable
class LayerStatesBackend(Backend, Protocol):
    """A backend that hands on the states after some of its layers."""

    def open_exit(self, exit_layer: int) -> None:
        """From the next prompt on, keep the states after `exit_layer` layers, besides those after
        other ones. Raises DraftpickError where there is no layer above it."""

    def exit_hidden(self, exit_layer: int, start: int, end: int) -> Tensor:
        """States [end - start, d] after the exit layer, of positions already run."""


@runtime_checkable
class ExitBackend(LayerStatesBackend, Protocol):
    """A backend whose lower layers may run ahead of the rest, so that an early exit can draft.

    When `extend` is given the same tokens, it goes on from what they ran. `truncate` takes that
    back, also where `length` stays. There may be several exits; one at a time runs ahead, and when
    another one does, it starts at `length`.
    """

    def lower_parameters(self, exit_layer: int) -> int:
        """Weights that `lower` reads for a token: those of the layers below the exit."""

    @property
    def ahead(self) -> int:
        """Positions that the layers below the exit have seen; `length` where none runs ahead."""

    def lower(self, exit_layer: int, ids: Tensor) -> Tensor:
        """Run `ids` [T] through the layers below the exit only, ahead of `length`; their [T, d]."""


@runtime_checkable
class StateBackend(Backend, Protocol):
    """A backend that hands on its final states, so that a drafter can go on from them.

    A final state [d] is what the head reads, after the last norm: `final_states(...) @
    head_rows(ids).T` are the logits of `ids`, but for a bias or scale that a model gives its
    logits. A token that left early has the state that `read_out` made of the one it left with.
    """

    state_size: int  # d

    def keep_states(self) -> None:
        """From the next prompt on, keep final states. Where they are kept already, nothing changes;
        else what the backend holds is forgotten."""

    def final_states(self, start: int, end: int) -> Tensor:
        """[end - start, d] of positions that were read, in a sequence that ends in no branches."""

    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, d], as the first layer is given them."""

    def head_rows(self, ids: Tensor) -> Tensor:
        """The head's rows [n, d] of `ids` [n], as an ordinary tensor."""


@runtime_checkable
class DescribedBackend(Backend, Protocol):
    """A backend that says how it computes, on which answers' last bits and seconds depend.

    precision: of its weights, a dtype's name or that of a rounding.
    eight_bits: whether it keeps keys and values in 8 bits.
    passes: how passes over a few tokens are run, in a word.
    products: which of draftpick's kernels multiply, by their version; "" for PyTorch's.
    """

    @property
    def precision(self) -> str: ...

    @property
    def eight_bits(self) -> bool: ...

    @property
    def passes(self) -> str: ...

    @property
    def products(self) -> str: ...


@runtime_checkable
class TellingBackend(Backend, Protocol):
    """A backend whose passes may tell the host which tokens the target writes, found for all
    answers of a pass at once.

    clocks: of the answer that is being written; None where a pass cannot tell its tokens.
    """

    clocks: Clocks | None

    @property
    def told(self) -> list[int] | None:
        """The token after each row that `extend` gave last, as `numbered` has it; None where that
        pass tells nothing."""


# -- grammars --------------------------------------------------------------------------------------


class GrammarState(Protocol):
    """State of an answer in its grammar."""

    def allowed(self) -> Tensor:
        """[V] bool on the host, at least one of them: the tokens that may come next, those that end
        an answer where it may end here. It follows from the tokens taken alone. Raises GrammarError
        where there are none."""

    def forced(self) -> list[int]:
        """Tokens of which each is the only one that may come next."""

    def take(self, token: int) -> bool:
        """Go on by an allowed token; whether the answer goes on after it."""

    def copy(self) -> GrammarState:
        """Another that stands at the same place and goes its own way."""


@dataclass(frozen=True)
class GrammarAt:
    """A grammar's state after the first `length` tokens of a sequence."""

    state: GrammarState
    length: int

    def after(self, context: list[int]) -> GrammarState | None:
        """The state after all of `context`; None where the grammar does not take it."""
        state = self.state.copy()
        for token in context[self.length :]:
            if not state.allowed()[token] or not state.take(token):
                return None
        return state


# -- drafters --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftRequest:
    """The draft that the loop wants in one round.

    k: most tokens, at least one.
    sampling, chance: how tokens are chosen.
    min_confidence: stop before a token that the drafter gives less.
    needs_raw: the verifier reads `Proposal.raw`.
    needs_probs: it reads `Proposal.probs`, so that a drafter draws its tokens in turn and says from
        what. Else they are drawn by the clocks of their places.
    grammar: what the answer must be. A drafter need not look at it: what the grammar refuses is
        never accepted. One that does draws from the tokens that it takes.
    """

    k: int
    sampling: Sampling
    chance: RandomSource
    min_confidence: float = 0.0
    needs_raw: bool = False
    needs_probs: bool = False
    grammar: GrammarAt | None = None

    @property
    def likeliest(self) -> bool:
        """Whether k most likely tokens in turn are all that is wanted, whatever they depend on."""
        return self.sampling.greedy and self._of_logits_alone

    @property
    def clocked(self) -> bool:
        """Whether k tokens in turn are wanted, each the first of all by the clocks of its place."""
        by_clocks = not self.sampling.greedy and not self.needs_probs
        return by_clocks and self.sampling.unfiltered and self._of_logits_alone

    @property
    def _of_logits_alone(self) -> bool:
        plain = self.sampling.repetition_penalty == 1 and self.grammar is None
        return plain and self.min_confidence == 0 and not self.needs_raw


@dataclass(frozen=True)
class RequestScope:
    """What a request brings besides its words, for what reads its prompt and drafts for it.

    user: whose earlier answers it may be drafted from, and whose prompts it may reuse; None for
        nobody's.
    answers: earlier ones of all users; None where none are kept.
    prefixes: what is kept of all users' prompts; None where nothing is.
    reuse: whether what is held or kept of a prompt is not read again, by the target and by those
        who draft for it.
    exact: reuse only whole parts of prompts, read in the very passes in which a fresh reading would
        read them, so that not a bit depends on what came before.
    watch: called before each part of a prompt, with how many tokens the target has read and of how
        many; what it raises ends the reading.
    pause: called before each part of a prompt, whichever model reads it, with the part's tokens, so
        that others may go on.
    """

    user: str | None = ""
    answers: EarlierAnswers | None = None
    prefixes: PrefixStore | None = None
    reuse: bool = False
    exact: bool = False
    watch: Callable[[int, int], None] | None = None
    pause: Callable[[int], None] | None = None


class Drafter(Protocol):
    """Drafts for one sequence at a time.

    parameters: weights read for one drafted token, those that it shares with the target included.
    calls: forward passes made since `reset`.
    context: the longest sequence it can follow.
    """

    @property
    def parameters(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def calls(self) -> int: ...

    def reset(self, prompt_ids: list[int]) -> None:
        """A new query; the target has just read its prompt (an encoder-decoder's source)."""

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        """Tokens to follow `context`: the prompt, the answer so far, and what a grammar is certain
        to add to it. An encoder-decoder's context begins with its start token instead; only `reset`
        is given the source."""

    def commit(self, context: list[int]) -> None:
        """Keep `context`, which is what is accepted after the round; forget drafts beyond it.

        A drafter that sat out many tokens catches up here, not in `propose`. Inside a cascade the
        target may reject what a draft model accepted: a later `context` may be shorter, or go on
        otherwise from some point after the target's last round.
        """


@runtime_checkable
class Scoped(Protocol):
    """A drafter that reads prompts, or drafts from earlier answers, or has a part that does."""

    def enter(self, scope: RequestScope) -> None:
        """The requests that follow are of this scope; `reset` comes next."""


def enter(drafter: object, scope: RequestScope) -> None:
    """Let a drafter have the scope, if it has a use for it."""
    if isinstance(drafter, Scoped):
        drafter.enter(scope)


@runtime_checkable
class Composed(Protocol):
    """A drafter whose passes do not all cost the same. work: as the function of that name."""

    @property
    def work(self) -> int: ...


@runtime_checkable
class ModelDrafter(Protocol):
    """A drafter by a model, of which it is told what a token costs. backend: that model."""

    @property
    def backend(self) -> Backend: ...


def work(drafter: Drafter) -> int:
    """Its passes since `reset`, each counted with the parameters that it read."""
    if isinstance(drafter, Composed):
        return drafter.work
    return drafter.calls * drafter.parameters


# -- verifiers and draft lengths -------------------------------------------------------------------


class Verifier(Protocol):
    """Decides how many drafted tokens are accepted, and what follows them."""

    @property
    def lossless(self) -> bool:
        """Whether answers are distributed as the target's own."""

    @property
    def needs_raw(self) -> bool:
        """Whether it reads `Proposal.raw`."""

    @property
    def needs_probs(self) -> bool:
        """Whether it reads `Proposal.probs` when sampling."""

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        sampling: Sampling,
        chance: RandomSource,
        place: int,
    ) -> Verdict:
        """Judge a proposal of K tokens.

        target_logits: [K + 1, V], row i for the token after the first i drafted ones, any
            repetition penalty applied.
        place: tokens of the sequence before the first of them.
        """


class DraftLength(Protocol):
    """Decides how many tokens a round drafts.

    min_confidence: a drafter stops before a token less probable than this; 0 never does.
    """

    min_confidence: float

    def next(self) -> int:
        """How many tokens to draft in the coming round, at most."""

    def observe(self, stats: StepStats) -> None:
        """Learn from what the round gave."""

    def reset(self) -> None:
        """A new query begins."""


@runtime_checkable
class LearningLength(DraftLength, Protocol):
    """A draft length that learns what drafts cost, from answer to answer."""

    def apart(self) -> DraftLength:
        """One with the same options that has learnt nothing, for drafts of other costs."""


# -- strategies ------------------------------------------------------------------------------------


class Emit(Protocol):
    def __call__(self, ids: list[int], accepted: int = 0, drafted: int = 0) -> None:
        """ids: new tokens.
        accepted: how many of them, from the left, are accepted drafts.
        drafted: tokens of the draft, in a tree along its longest branch.
        """


@runtime_checkable
class RoundStreamer(Protocol):
    """A streamer that receives the source of each token, besides transformers' `put` and `end`."""

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        """The new tokens of a round, in the place of `put`. As in Emit."""


@runtime_checkable
class ReadStreamer(Protocol):
    """A streamer that is told how far a prompt is read, before each of its parts."""

    def put_read(self, read: int, total: int) -> None:
        """The target has read, or need not read, `read` of `total` tokens. What is raised here ends
        the reading, a drafter's too."""


@runtime_checkable
class FieldStreamer(Protocol):
    """A streamer that receives what an endpoint's message holds besides text."""

    def put_fields(self, ids: list[int], fields: dict[str, Any]) -> None:
        """A part of a message: `tool_calls`, `refusal`, thoughts. ids: as many as it may have
        tokens, of no text."""


@dataclass(frozen=True)
class Job:
    """One prompt to answer.

    target: has just read the prompt; it holds the positions of `decoder_prefix`.
    prefilled: what reading it gave.
    stopper: of this answer; it admits tokens and says when to stop.
    emit: called with the new tokens of each round, as soon as they are accepted.
    grammar: where the answer stands in what it must be, at its beginning; None for any text.
    scope: in which the prompt was read, for what drafts.
    """

    target: Backend
    prompt_ids: list[int]
    prefilled: Prefilled
    request: Request
    stopper: Stopper
    chance: RandomSource
    emit: Emit
    grammar: GrammarState | None = None
    scope: RequestScope = RequestScope()


class AnswerWriter(Protocol):
    """Writes answers of one arm on one target in the loop's place, to the same effect: the same
    greedy answers, the same distribution of sampled ones."""

    def takes(self, job: Job, drafts_to: int) -> bool:
        """Whether it can write this answer. drafts_to: tokens of prompt and answer up to which the
        arm drafts."""

    def write(self, arm: str, job: Job) -> DecodeResult:
        """Write a whole answer, as `decode` of a Strategy of that name."""


@runtime_checkable
class WritesAnswers(Protocol):
    """A backend on whose device whole answers can be written."""

    def answer_writer(
        self, drafter: Drafter, verifier: Verifier, length: DraftLength
    ) -> AnswerWriter:
        """For an arm of these parts, which keeps it."""


class Strategy(Protocol):
    """How an arm answers: the arm's moving parts.

    parameters: what it runs besides the target.
    context: the longest sequence it can follow.
    """

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> int: ...

    @property
    def context(self) -> int: ...

    def decode(self, job: Job) -> DecodeResult:
        """Answer one prompt; the result's `text` is the stopper's."""


@runtime_checkable
class Drafts(Protocol):
    """A strategy with a part that drafts or writes besides the target."""

    @property
    def drafter(self) -> Drafter: ...
