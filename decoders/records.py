"""The records that pass between target, drafter, verifier and caller."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .common.errors import DraftpickError, GrammarError, NotANumber
from .common.text import whole

if TYPE_CHECKING:
    from torch import Tensor


NAN = -1  # in the place of a token whose score is no number


COLDEST, PENALTIES = 1e-30, (0.01, 100)  # beyond these scores overflow


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; each field means what it means in transformers.

    temperature: 0 is greedy; else at least COLDEST.
    top_k: 0 keeps every token.
    top_p: nucleus mass, 1 keeps every token.
    repetition_penalty: 1 changes nothing; within PENALTIES.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not COLDEST <= self.temperature < math.inf:
            raise DraftpickError(
                f"temperature must be 0 or at least {COLDEST:g}, not {self.temperature}"
            )
        if self.top_k < 0:
            raise DraftpickError(f"top_k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise DraftpickError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not PENALTIES[0] <= self.repetition_penalty <= PENALTIES[1]:
            raise DraftpickError(
                f"repetition_penalty must be from {PENALTIES[0]} to {PENALTIES[1]}, not "
                f"{self.repetition_penalty}"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def unfiltered(self) -> bool:
        """Whether any token may be drawn."""
        return self.top_k == 0 and self.top_p == 1


@dataclass(frozen=True)
class Grammar:
    """What a whole answer must be; made by one of the functions below.

    kind: what `source` is: a JSON schema, a regular expression in the syntax of Rust's crate
        `regex`, a JSON list of strings to choose from, a context-free grammar in Lark's or
        llama.cpp's notation, or calls (see `calls`).
    """

    kind: Literal["json_schema", "regex", "choice", "grammar", "calls"]
    source: str

    @classmethod
    def json_schema(cls, schema: dict[str, Any]) -> Grammar:
        """JSON that a schema takes, on one line, with a space after each comma and colon."""
        return cls("json_schema", json.dumps(schema))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of these texts."""
        if not texts or not all(texts):
            raise GrammarError("a choice needs at least one text, and none of them empty")
        return cls("choice", json.dumps(list(texts)))

    @classmethod
    def calls(
        cls,
        begin: str,
        calls: Sequence[tuple[str, dict[str, Any], str]],
        between: str | None = None,
        other: dict[str, Any] | Literal["text"] | None = None,
    ) -> Grammar:
        """Calls of functions: `begin`, then one of `calls`, each a text, the schema of the JSON
        that follows it, and a text that ends it.

        between: of several calls, each with its `begin`; None for one call at most.
        other: what the answer may be instead: JSON of a schema, or text, which may also come before
            the first call. Text goes over into a call where it spells `begin`; where `begin` is
            empty, it does not begin with a brace.
        """
        made = {"begin": begin, "calls": list(calls), "between": between, "other": other}
        return cls("calls", json.dumps(made))


@dataclass(frozen=True)
class Request:
    """What one call asks for.

    sampling: how tokens are chosen.
    stop: strings that end the answer (kept in the text, as in transformers).
    eos_ids: tokens that end the answer; None takes the target's own, () never ends early.
    seed: None for a fresh one, which the result tells; ignored at temperature 0.
    logprobs: number of most probable tokens reported with each token's log-probability (0 reports
        the token's only); None reports none. Lossless arms of the speculative loop can.
    user: whose earlier answers may be drafted from and whose prompts need not be read again, where
        any are kept, and who may do so with this one later; None for nobody. It changes no answer
        of a lossless arm.
    grammar: what the answer must be; None for any text. Each token is then drawn from the target's
        distribution over those tokens alone that the grammar takes next.
    passed: more fields of OpenAI's request (`tools`, `response_format`), which an endpoint is sent
        as they are. Arms that do not answer elsewhere refuse them.
    trace: headers of HTTP by which an endpoint's request belongs to the caller's trace.
    """

    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    eos_ids: tuple[int, ...] | None = None
    seed: int | None = None
    logprobs: int | None = None
    user: str | None = ""
    grammar: Grammar | None = None
    passed: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.grammar is not None and self.eos_ids is not None:
            raise GrammarError(
                "an answer in a grammar ends where the grammar does, with the target's own end "
                "token; leave eos_ids (ignore_eos) out"
            )
        if self.logprobs is not None and self.logprobs < 0:
            raise DraftpickError(f"logprobs must be 0 or more, not {self.logprobs}")
        if self.max_new_tokens < 1:
            raise DraftpickError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if any(not s for s in self.stop):
            raise DraftpickError("a stop string is empty; leave it out or give it characters")
        if not all(map(whole, self.stop)):
            raise DraftpickError(
                "a stop string holds half a surrogate pair or bytes that are no UTF-8; write "
                "whole characters"
            )


@dataclass(frozen=True)
class Prefilled:
    """What a backend knows after reading a prompt.

    logits: [V], for the first new token.
    embedding: [d] float32, the last prompt token's final hidden state after the final norm, or the
        mean of an encoder's states (Huang et al., section 3.1).
    prefill_s: seconds, synchronised.
    load_s: as in DecodeResult, meanwhile.
    cached: tokens of the prompt that were not read, because they were held or kept from before.
    """

    logits: Tensor
    embedding: Tensor
    prefill_s: float = 0.0
    load_s: float = 0.0
    cached: int = 0


@dataclass(frozen=True)
class Proposal:
    """A drafter's guess at the next tokens.

    ids: [K] int64 on the target's device, K may be 0.
    probs: [K, V] the distributions that ids were drawn from, or None where the draft is
        deterministic (a one-hot at each id).
    raw: [K, V] the drafter's distributions at temperature 1 without filters, the repetition penalty
        applied; None where the verifier does not need them, or the drafter has none (a one-hot,
        again).
    parents: None for a chain; in a tree, for each of ids the index of the one that it follows, -1
        for the newest token. A node's children are distinct tokens, each drawn knowing those with
        smaller indices.
    """

    ids: Tensor
    probs: Tensor | None = None
    raw: Tensor | None = None
    parents: tuple[int, ...] | None = None

    @property
    def depth(self) -> int:
        """Tokens along the longest branch."""
        if self.parents is None:
            return len(self.ids)
        depths = [0]  # of the newest token, then of each node
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return max(depths)


@dataclass(frozen=True)
class Verdict:
    """A verifier's answer, read from the device in one go.

    accepted: how many drafted ids are accepted, from the left.
    next_token: the one that follows them; NAN where its scores were no numbers.
    draft_ids: the drafted ids on the host.
    distribution: [accepted + 1, V], what each of `ids` is distributed as, given that its position
        was reached; None at temperature 0, and from verifiers that serve no cascade.
    path: in a tree, the indices of the accepted ids.
    """

    accepted: int
    next_token: int
    draft_ids: list[int]
    distribution: Tensor | None = None
    path: list[int] | None = None

    def __post_init__(self) -> None:
        """Raises NotANumber where there is no next token (see sampling/argmax.py)."""
        if self.next_token == NAN:
            raise NotANumber

    @property
    def ids(self) -> list[int]:
        """What the round adds to the answer."""
        kept = self.draft_ids[: self.accepted]
        if self.path is not None:
            kept = [self.draft_ids[node] for node in self.path]
        return [*kept, self.next_token]


@dataclass(frozen=True)
class StepStats:
    """One round, as a draft-length rule sees it. Times in seconds.

    drafted: tokens, in a tree along its longest branch.
    accepted: how many of them were accepted.
    """

    drafted: int
    accepted: int
    draft_s: float
    verify_s: float


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the target held one token of an answer, in nats: of its distribution at
    temperature 1, without filters and after any repetition penalty.

    top: (id, log-probability) of the most likely tokens, most likely first.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Upstream:
    """What an endpoint says of its answer besides its text.

    fields: `tool_calls`, `refusal` and thoughts of its message, where it has them.
    finish_reason: OpenAI's word for its own; None where it gives none.
    logprobs: its object of that name; None where it gives none.
    words: keeps the texts of the answer's ids.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    words: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class DecodeResult:
    """An answer and what it cost. Times are wall seconds, device-synchronised.

    ids: the new tokens, the end-of-sequence token included where one was written.
    text: ids decoded without special tokens; behind it an endpoint's tool calls as JSON.
    finish_reason: "eos", "stop" or "length".
    rounds: passes of the loop that drafted and verified; the prompt's own pass gives the first
        token.
    drafted: tokens, those of all branches of a tree.
    accepted: drafted tokens that are in ids.
    accepted_per_position: at index i, how often the (i+1)-th drafted token was accepted (in a tree,
        one at that depth); their sum is accepted.
    target_calls: forward passes of the target, the prefill included.
    draft_calls: the drafter's.
    prefill_s: the target's and the drafter's reading of the prompt.
    mean_layers: target layers that a decoded token went through, for an arm that leaves early.
    draft_work: the drafter's passes, each counted with the parameters that it read.
    logprobs: of each of ids, where the request asks for them.
    prompt_tokens: of the prompt as an endpoint counts them, whose tokenizer is not known here.
    cost: money that an endpoint asks for the answer, by its recipe's prices.
    counted: False where an endpoint did not count its tokens, so that ids are no count of them.
    load_s: seconds that the answer waited while models were loaded, its own arm's or another
        answer's; none of the other times holds them. None where nothing was.
    widths: at index i, how many of the target's passes after the prompt's read i + 1 tokens; their
        sum is target_calls - 1.
    cached_tokens: of the prompt, that the target did not read, because they were held or kept from
        before; None where it read all.
    upstream: None where no endpoint answered.
    seed: by which the answer is had again; None where nothing was drawn, and from an endpoint that
        was sent none.
    """

    arm: str
    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: str
    rounds: int
    drafted: int
    accepted: int
    accepted_per_position: list[int]
    target_calls: int
    draft_calls: int
    prefill_s: float
    draft_s: float
    verify_s: float
    other_s: float
    mean_layers: float | None = None
    draft_work: int = 0
    logprobs: list[TokenLogprob] | None = None
    prompt_tokens: int | None = None
    cost: float | None = None
    counted: bool = True
    load_s: float | None = None
    widths: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    upstream: Upstream | None = None
    seed: int | None = None

    @property
    def tokens_read(self) -> int:
        """Tokens of the prompt: an endpoint's own count where it gives one, as `prompt_ids` are
        bytes there."""
        return len(self.prompt_ids) if self.prompt_tokens is None else self.prompt_tokens

    @property
    def decode_s(self) -> float:
        """Seconds after the prompt was read."""
        return self.draft_s + self.verify_s + self.other_s

    @property
    def wall_s(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def tokens_per_s(self) -> float:
        """New tokens over all seconds, the prefill included."""
        return len(self.ids) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def mean_accepted(self) -> float:
        """Tokens a round gives, the target's own included: 1.0 for autoregressive decoding."""
        return (len(self.ids) - 1) / self.rounds if self.rounds else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens (Huang et al., A.6); 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0
