"""OpenAI's response objects for the answers of a request: whole, and chunk by chunk.

draftpick's own fields stand next to OpenAI's where a request asks for them (`explain`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from decoders.records import DecodeResult
from decoders.spelling import Piece, Places, TextStream, spelling_of

from ..records import RouteChoice
from .answers import Answer, Round
from .scheduler import GenerationRequest
from .schemas import ChatBody, CompletionBody
from .tools import CallReader

MIN_LOGPROB = -9999.0  # JSON has no minus infinity
THOUGHT = "reasoning_content"  # as llama.cpp, vLLM and DeepSeek call it
FINISHED = {"eos": "stop", "stop": "stop", "length": "length"}

Json = dict[str, Any]


class Reply:
    """The response to one request.

    requests: to the scheduler, in the order of the answers.
    fingerprint: what answers depend on besides the request, where that is known.
    tokenizer: used in the event loop alone.
    finished: why each answer ended, in OpenAI's words, by its index, once the client was told.
    call_reader: makes what reads the calls in an answer; None where there are none.
    apart: whether an encoder reads the prompts.
    """

    prefix = kind = chunk_kind = operation = ""
    opening: Json | None = None  # what a stream begins with, unless draftpick's field needs it

    def __init__(
        self,
        body: ChatBody | CompletionBody,
        requests: Sequence[GenerationRequest],
        route: RouteChoice,
        answers: Sequence[Answer],
        fingerprint: str | None,
        tokenizer: Any,
        call_reader: Callable[[], CallReader | None],
        apart: bool = False,
    ) -> None:
        self.body, self.requests, self.route, self.answers = body, requests, route, answers
        self.request_id = requests[0].id.partition("/")[0]  # as in the log of decisions
        drawn = (each.request for each in requests if not each.request.sampling.greedy)
        self.seeds = [each.seed for each in drawn if each.seed is not None]
        self.id, self._created = f"{self.prefix}-{self.request_id}", int(time.time())
        self._fingerprint, self._tokenizer = fingerprint, tokenizer
        goes_on = body.goes_on and not apart
        self._after = [each.prompt_ids if goes_on else [] for each in requests]
        self._texts = [self._stream(after) for after in self._after]
        self._call_reader = call_reader
        self._calls = [call_reader() for _ in answers]
        self._begun: set[int] = set()
        self._written = [0] * len(answers)
        self.finished: dict[int, str] = {}

    def written(self, text: str) -> Json:
        """An answer's text in a choice."""
        raise NotImplementedError

    def piece(self, text: str) -> Json:
        """A part of it in a choice of a chunk."""
        raise NotImplementedError

    def fields(self, found: Json) -> Json:
        """What an endpoint's message gets besides text, in a choice of a chunk."""
        return self.piece("")

    def thinking(self, piece: Json, thought: str) -> Json:
        """A piece with what the model thought besides."""
        return piece

    def logprobs(self, found: Sequence[ScoredToken]) -> Json:
        """Log-probabilities of an answer's tokens."""
        raise NotImplementedError

    # -- whole

    def whole(self) -> Json:
        """The response where nothing is streamed."""
        body = self._frame(self.kind, [self._choice(answer) for answer in self.answers])
        body["usage"] = self.usage()
        return body | (self._metrics() if self.body.explain else {})

    def _choice(self, answer: Answer) -> Json:
        result = decode_of(answer)
        text, thought, _ = self._text(answer)
        scored = self._logprobs(answer)
        reader = self._call_reader()
        written = self.written(text)
        if thought:
            written["message"][THOUGHT] = thought
        if reader is not None:
            written["message"] |= reader.whole(text)
        elif result.upstream is not None and "message" in written:
            fields = result.upstream.fields
            written["message"] |= fields | ({"content": text or None} if fields else {})
        ended = {"logprobs": scored, "finish_reason": self._finished(answer, reader)}
        how = {"draftpick": self._how(answer) | _load(result)} if self.body.explain else {}
        return {"index": answer.index, **written, **ended, **how}

    # -- chunk by chunk

    def chunks(self, answer: Answer, made: Round) -> Iterator[Json]:
        """What a round adds to a stream; nothing where its text is not sure yet."""
        if answer.index not in self._begun:
            self._begun.add(answer.index)
            if self.opening is not None or self.body.explain:
                opening = self.piece("") if self.opening is None else self.opening
                yield self._chunk(answer, opening, self._how(answer))
        self._written[answer.index] += len(made.ids)
        stream = self._texts[answer.index]
        tokens = [
            {"id": token, "text": stream.spell(token), "by": writer}
            for token, writer in zip(made.ids, made.writers(), strict=True)
        ]
        fields = made.fields
        piece = self.fields(fields) if fields else self._piece(answer, stream.add([]))
        if stream.thought:
            piece, stream.thought = self.thinking(piece, stream.thought), ""
        if piece != self.piece("") or self.body.explain:
            details = {"tokens": tokens, "drafted": made.drafted, "elapsed_s": made.elapsed_s}
            yield self._chunk(answer, piece, details)

    def last(self, answer: Answer) -> Iterator[Json]:
        """What ends the stream of one answer: the rest of its text, then why it ended."""
        result, text = decode_of(answer), self._texts[answer.index].finish()
        nothing: Json = {"tokens": [], "drafted": 0, "elapsed_s": answer.elapsed_s}
        reader = self._calls[answer.index]
        pieces = [self._piece(answer, text)]
        if reader is not None:
            pieces.append({"delta": reader.finish()})
        for piece in pieces:
            if piece != self.piece(""):
                yield self._chunk(answer, piece, nothing)
        reason = self._finished(answer, reader)
        logprobs = self._logprobs(answer)
        end = self._chunk(answer, self.piece(""), nothing | _load(result), reason, logprobs)
        done = all(each.result is not None for each in self.answers)
        yield end | (
            self._metrics() if done and self.body.explain and not self.body.tells_usage else {}
        )

    def counts(self) -> Json:
        """The chunk of token counts, after all others."""
        body = self._frame(self.chunk_kind, []) | {"usage": self.usage()}
        return body | (self._metrics() if self.body.explain else {})

    def _chunk(
        self,
        answer: Answer,
        piece: Json,
        details: Json,
        reason: str | None = None,
        logprobs: Json | None = None,
    ) -> Json:
        choice = {"index": answer.index, **piece, "logprobs": logprobs, "finish_reason": reason}
        chunk = self._frame(self.chunk_kind, [choice])
        if self.body.tells_usage:
            chunk["usage"] = self._so_far(answer)
        return chunk | ({"draftpick": details} if self.body.explain else {})

    # -- parts of both

    def _piece(self, answer: Answer, text: str) -> Json:
        reader = self._calls[answer.index]
        return self.piece(text) if reader is None else {"delta": reader.add(text)}

    def _text(self, answer: Answer) -> tuple[str, str, bool]:
        """An answer's text, what it thought, and whether a stop string ended it."""
        stream = self._stream(self._after[answer.index])
        text = stream.add(decode_of(answer).ids) + stream.finish()
        return text, stream.thought, stream.ended

    def _stream(self, after: Sequence[int]) -> TextStream:
        plain = isinstance(self.body, CompletionBody)
        return TextStream(self._tokenizer, self.body.stop, after, whole=plain)

    def _logprobs(self, answer: Answer) -> Json | None:
        result, after = decode_of(answer), self._after[answer.index]
        if result.upstream is not None:
            return result.upstream.logprobs
        if not result.logprobs:
            return None
        text, _, stopped = self._text(answer)
        cut = len(text) if stopped else None
        return self.logprobs(list(scored_tokens(result, self._tokenizer, cut, after)))

    def _frame(self, kind: str, choices: list[Json]) -> Json:
        named = {"id": self.id, "object": kind, "created": self._created, "model": self.body.model}
        return named | {"system_fingerprint": self._fingerprint, "choices": choices}

    def _how(self, answer: Answer) -> Json:
        """Which arm answers, and how it was chosen."""
        decision = answer.decision
        assert decision is not None
        return {
            "arm": decision.arm,
            "propensity": decision.propensity,
            "policy": self.route.policy,
            "reason": self.route.reason_for(decision),
            "scores": dict(decision.scores),
            "running": decision.context.running,
        } | ({"seed": self.seeds[answer.index]} if self.seeds else {})

    def usage(self) -> Json:
        """Every prompt counts once, however many answers it gets; of what was not read of it, only
        that of its first answer."""
        results = [decode_of(answer) for answer in self.answers]
        firsts = results[:: self.body.n or 1]
        read = sum(result.tokens_read for result in firsts)
        written = sum(len(result.ids) for result in results)
        cached = sum(result.cached_tokens or 0 for result in firsts)
        return counted(read, written) | (
            {"prompt_tokens_details": {"cached_tokens": cached}} if cached else {}
        )

    def _so_far(self, answer: Answer) -> Json | None:
        """Token counts of one answer so far, where they are asked for; None of an endpoint, which
        counts at its end alone and has no fingerprint."""
        options = self.body.stream_options
        if options is None or not options.continuous_usage_stats or self._fingerprint is None:
            return None
        read = len(self.requests[answer.index].prompt_ids)
        return counted(read, self._written[answer.index])

    def _finished(self, answer: Answer, reader: CallReader | None) -> str:
        reason = self.finished[answer.index] = finish_reason(decode_of(answer), reader)
        return reason

    def _metrics(self) -> Json:
        """How drafting went, under vLLM's names. A draft is a round in which something was
        drafted."""
        results = [decode_of(answer) for answer in self.answers]
        drafts = sum(answer.drafts for answer in self.answers)
        drafted = sum(result.drafted for result in results)
        accepted = sum(result.accepted for result in results)
        positions = [result.accepted_per_position for result in results]
        made = {
            "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "num_drafts": drafts,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "num_accepted_tokens_per_pos": list(map(sum, zip_longest(*positions, fillvalue=0))),
        }
        return {"metrics": {"speculative_decoding": made}}


def counted(read: int, written: int) -> Json:
    """Tokens as OpenAI counts them."""
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


class ChatReply(Reply):
    """Reply of /v1/chat/completions."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    operation = "chat"
    opening = {"delta": {"role": "assistant", "content": ""}}  # noqa: RUF012

    def written(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def piece(self, text: str) -> Json:
        return {"delta": {"content": text} if text else {}}

    def fields(self, found: Json) -> Json:
        return {"delta": found}

    def thinking(self, piece: Json, thought: str) -> Json:
        return {"delta": {THOUGHT: thought} | piece["delta"]}

    def logprobs(self, found: Sequence[ScoredToken]) -> Json:
        tokens = []
        for each in found:
            top = [_scored(piece, logprob) for piece, logprob in each.top]
            tokens.append(_scored(each.piece, each.logprob) | {"top_logprobs": top})
        return {"content": tokens, "refusal": None}


class TextReply(Reply):
    """Reply of /v1/completions."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"
    operation = "text_completion"

    def written(self, text: str) -> Json:
        return {"text": text}

    def piece(self, text: str) -> Json:
        return {"text": text}

    def logprobs(self, found: Sequence[ScoredToken]) -> Json:
        return {
            "tokens": [each.piece.text for each in found],
            "token_logprobs": [max(each.logprob, MIN_LOGPROB) for each in found],
            "top_logprobs": [
                {piece.text: max(logprob, MIN_LOGPROB) for piece, logprob in reversed(each.top)}
                for each in found  # of two with the same spelling the more probable one stays
            ],
            "text_offset": [each.at for each in found],
        }


def finish_reason(result: DecodeResult, reader: CallReader | None) -> str:
    """Why an answer ended, in OpenAI's words."""
    if result.upstream is not None and result.upstream.finish_reason is not None:
        return result.upstream.finish_reason
    reason = FINISHED[result.finish_reason]
    return "tool_calls" if reader is not None and reader.ended and reason == "stop" else reason


def _load(result: DecodeResult) -> Json:
    """How long an answer waited for drafters to be loaded, where it did."""
    return {} if result.load_s is None else {"load_s": result.load_s}


def decode_of(answer: Answer) -> DecodeResult:
    """Decoder of an answer that is whole."""
    assert answer.result is not None
    return answer.result.result


@dataclass(frozen=True)
class ScoredToken:
    """A token of an answer's text. at: where it begins there, in characters. top: the most likely
    in its place."""

    piece: Piece
    at: int
    logprob: float
    top: list[tuple[Piece, float]]


def scored_tokens(
    result: DecodeResult, tokenizer: Any, cut: int | None = None, after: Sequence[int] = ()
) -> Iterator[ScoredToken]:
    """Tokens of the answer's text, without the end of the sequence.

    cut: characters in front of the stop string, where one ended it; what begins there is left out.
    after: as of `TextStream`.
    """
    assert result.logprobs is not None
    spelling, before, places = spelling_of(tokenizer), list(after), Places()
    count = len(result.ids) - (result.finish_reason == "eos")
    for token, scored in zip(result.ids[:count], result.logprobs, strict=False):
        piece = Piece.of(spelling, token, before)
        at = places.add(piece.content or b"")
        if cut is not None and at >= cut:
            return
        top = [(Piece.of(spelling, each, before), logprob) for each, logprob in scored.top]
        yield ScoredToken(piece, at, scored.logprob, top)
        before.append(token)


def _scored(piece: Piece, logprob: float) -> Json:
    content = None if piece.content is None else list(piece.content)
    return {"token": piece.text, "logprob": max(logprob, MIN_LOGPROB), "bytes": content}
