"""What clients may send: OpenAI's fields, vLLM's that mean something here, and draftpick's own.

A field that is not known is refused. One that asks for something draftpick cannot do is accepted at
the value that asks for nothing, since many clients send all they know.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from decoders.common.text import whole

LONGEST_SEED = 2**63 - 1
STOPS, STOP_LENGTH = 16, 1000  # at most


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_asks_for_nothing(cls, fields: Any) -> Any:
        """Clients send null for what they do not use, whatever its name."""
        if not isinstance(fields, dict):
            return fields
        known = cls.model_fields
        return {
            k: v
            for k, v in fields.items()
            if v is not None or (k in known and known[k].is_required())
        }


def _unicode(text: str) -> str:
    """JSON may spell half a character, which no tokenizer reads."""
    if not whole(text):
        raise ValueError("holds half a surrogate pair; send whole characters")
    return text


Words = Annotated[str, AfterValidator(_unicode)]


def _only(*nothing: Any) -> AfterValidator:
    """Of a field that asks for what is not done here; `nothing` and null do not ask."""

    def refuse(value: Any) -> Any:
        if value is None or value in nothing:
            return None
        raise ValueError("not supported here; leave it out")

    return AfterValidator(refuse)


def _joined(content: Any) -> Any:
    """A message's content as one text, from a text or from parts of text."""
    if not isinstance(content, list):
        return content
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str) or part != {"type": "text", "text": text}:
            raise ValueError('its parts must be {"type": "text", "text": ...}; only text is read')
    return "".join(part["text"] for part in content)


def _listed_stops(stop: Any) -> Any:
    listed = [stop] if isinstance(stop, str) else stop
    if listed is None:
        return []
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ValueError("must be a string or a list of strings")
    if len(listed) > STOPS or any(not 1 <= len(one) <= STOP_LENGTH for one in listed):
        raise ValueError(f"give at most {STOPS} strings of 1 to {STOP_LENGTH} characters")
    return listed


def _listed_prompts(prompt: Any) -> Any:
    """One or more prompts, each a text or token ids."""
    one = isinstance(prompt, str) or (isinstance(prompt, list) and prompt and _is_id(prompt[0]))
    listed = [prompt] if one else prompt
    if not listed or not isinstance(listed, list) or any(each in ("", []) for each in listed):
        raise ValueError("is empty; write what the model should go on from")
    for each in listed:
        if not isinstance(each, str) and not (
            isinstance(each, list) and all(_is_id(part) for part in each)
        ):
            raise ValueError("must be a text or a list of token ids, or a list of either")
    return listed


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Annotated[Any, _only(False)] = None


class Message(Body):
    """name is accepted and not read. The fields after it are those of an answer that a client sends
    back as it came."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Words, BeforeValidator(_joined)]
    name: str | None = None
    refusal: Annotated[Any, _only()] = None
    annotations: Annotated[Any, _only([])] = None
    audio: Annotated[Any, _only()] = None
    function_call: Annotated[Any, _only()] = None
    tool_calls: Annotated[Any, _only([])] = None

    def plain(self) -> dict[str, str]:
        """As chat templates know it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content}


class CommonFields(Body):
    """What both endpoints take.

    model: auto, or an arm.
    arm, policy, dynamic, explain: draftpick's own.
    speculative, disable_spec_decode, disable_speculative_decoding: without drafts, by the
        autoregressive arm.
    repetition_penalty, top_k, ignore_eos: vLLM's.
    """

    model: str = "auto"
    arm: str | None = None
    policy: str | None = None
    dynamic: bool = False
    explain: bool = False
    speculative: bool = True
    disable_spec_decode: bool = False
    disable_speculative_decoding: bool = False

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-LONGEST_SEED - 1, le=LONGEST_SEED)] | None = None
    stop: Annotated[list[Words], BeforeValidator(_listed_stops)] = []
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    frequency_penalty: Annotated[Any, _only(0)] = None
    presence_penalty: Annotated[Any, _only(0)] = None
    logit_bias: Annotated[Any, _only({})] = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _streamed(self) -> CommonFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for stream: true; leave them out")
        return self

    @property
    def plain_decoding(self) -> bool:
        """Whether one of the ways to ask for no drafts is taken."""
        off = self.disable_spec_decode or self.disable_speculative_decoding
        return off or not self.speculative

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(CommonFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    response_format: Annotated[Any, _only({"type": "text"})] = None
    tools: Annotated[Any, _only([])] = None
    tool_choice: Annotated[Any, _only("none", "auto")] = None
    parallel_tool_calls: Annotated[Any, _only(True, False)] = None
    modalities: Annotated[Any, _only(["text"])] = None

    unasked_tokens: ClassVar[int | None] = None

    @model_validator(mode="after")
    def _agree(self) -> ChatBody:
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens or self.max_completion_tokens

    @property
    def likeliest(self) -> int | None:
        """`Request.logprobs`."""
        return self.top_logprobs or 0 if self.logprobs else None


class CompletionBody(CommonFields):
    """POST /v1/completions. prompt: a text or token ids, or several of either."""

    prompt: Annotated[list[Words | list[int]], BeforeValidator(_listed_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    best_of: Annotated[Any, _only(1)] = None
    echo: Annotated[Any, _only(False)] = None
    suffix: Annotated[Any, _only("")] = None

    unasked_tokens: ClassVar[int | None] = 16  # of an answer for which no number is asked

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """`Request.logprobs`."""
        return self.logprobs
