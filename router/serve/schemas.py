"""What clients may send: OpenAI's fields, vLLM's that mean something here, and draftpick's own.

A field that is not known is refused. One that asks for something draftpick cannot do is accepted at
the value that asks for nothing, since many clients send all they know.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from decoders.common.text import whole
from decoders.records import PENALTIES

LONGEST_SEED = 2**63 - 1
STOPS, STOP_LENGTH = 16, 1000  # at most
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
PASSED = (  # of a request to an endpoint, which reads them itself
    "response_format", "tools", "tool_choice", "parallel_tool_calls", "structured_outputs",
)  # fmt: skip


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
    """Refuse a field that asks for what is not done here; `nothing` and null do not ask."""

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
    """continuous_usage_stats: vLLM's; token counts so far in every chunk, with `include_usage`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[Any, _only(False)] = None


class CalledFunction(Body):
    """arguments: JSON. parsed_arguments, here and below: what the official client makes of it."""

    name: Words
    arguments: Words
    parsed_arguments: Any = None

    @field_validator("arguments")
    @classmethod
    def _of_an_object(cls, arguments: str) -> str:
        try:
            found = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError("must be the text of a JSON object")
        return arguments


class ToolCall(Body):
    """A call in an answer that a client sends back."""

    id: Words
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        called = self.function
        arguments = json.loads(called.arguments or "{}")
        function = {"name": called.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}

    def sent(self) -> dict[str, Any]:
        """The call as servers know it, whose arguments are text."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": self.type, "function": function}


class Message(Body):
    """name, but of a tool, and refusal are accepted and not read. The fields after tool_calls are
    those of an answer that a client sends back as it came; thoughts go on to endpoints alone."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Words, BeforeValidator(_joined)]
    name: Words | None = None
    tool_call_id: Words | None = None
    tool_calls: list[ToolCall] = []
    refusal: Words | None = None
    reasoning_content: Words | None = None
    reasoning: Words | None = None
    annotations: Annotated[Any, _only([])] = None
    audio: Annotated[Any, _only()] = None
    function_call: Annotated[Any, _only()] = None
    parsed: Any = None

    @model_validator(mode="before")
    @classmethod
    def _calls_are_enough(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or fields.get("content") is not None:
            return fields
        if fields.get("tool_calls"):
            return fields | {"content": ""}
        refusal = fields.get("refusal")
        return fields | {"content": refusal} if isinstance(refusal, str) else fields

    @model_validator(mode="after")
    def _of_its_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls are an assistant's; leave them out")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id is a tool's; leave it out")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        made: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            made["tool_calls"] = [call.plain() for call in self.tool_calls]
        if self.role == "tool":
            named = {"tool_call_id": self.tool_call_id, "name": self.name}
            made |= {name: value for name, value in named.items() if value is not None}
        return made

    def sent(self) -> dict[str, Any]:
        """The message as servers know it."""
        calls = [call.sent() for call in self.tool_calls]
        more = {"reasoning_content": self.reasoning_content, "reasoning": self.reasoning}
        sent = {name: thoughts for name, thoughts in more.items() if thoughts is not None}
        return self.plain() | ({"tool_calls": calls} if calls else {}) | sent


class Function(Body):
    """parameters: the JSON schema of its arguments, an object; without one, or with an empty one,
    it takes none. They are held to it whether strict is set or not."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Words = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_parameters(self) -> Function:
        if self.parameters and self.parameters.get("type") != "object":
            raise ValueError(
                "must have parameters of type object; for a function without any, leave them out"
            )
        return self

    def plain(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        parameters = self.parameters or NO_PARAMETERS
        return {"name": self.name, "description": self.description, "parameters": parameters}


class Tool(Body):
    type: Literal["function"]
    function: Function


def _choice_of_tool(value: Any) -> Any:
    """none, auto, required, or what names a function."""
    named = value.get("function") if isinstance(value, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    one = {"type": "function", "function": {"name": name}}
    if value in ("none", "auto", "required") or (isinstance(name, str) and value == one):
        return value
    raise ValueError(
        'must be none, auto, required or {"type": "function", "function": {"name": ...}}'
    )


class JsonSchema(Body):
    """name, description and strict are accepted and not read: an answer is always held to its
    schema."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _agrees(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('json_schema belongs to {"type": "json_schema"}, and has a schema')
        return self


def _read(schema: Any) -> Any:
    """A JSON schema, which may be given as its text."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise ValueError("must be a JSON schema or the text of one") from error


Schema = Annotated[dict[str, Any], BeforeValidator(_read)]
Choices = Annotated[list[Annotated[Words, Field(min_length=1)]], Field(min_length=1)]


class StructuredOutputs(Body):
    """vLLM's: what the whole answer must be."""

    json_: Schema | None = Field(default=None, alias="json")
    regex: Words | None = None
    choice: Choices | None = None
    grammar: Words | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        given = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(each is not None for each in given) != 1:
            raise ValueError("give one of json, regex, choice, grammar and json_object: true")
        return self


class CommonFields(Body):
    """What both endpoints take.

    model: auto, or an arm.
    arm, policy, dynamic, explain: draftpick's own.
    speculative: False asks for no drafts, by the autoregressive arm.
    repetition_penalty, top_k, ignore_eos, structured_outputs: vLLM's.
    """

    model: str = "auto"
    arm: str | None = None
    policy: str | None = None
    dynamic: bool = False
    explain: bool = False
    speculative: bool = True

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=PENALTIES[0], le=10)] | None = None
    seed: Annotated[int, Field(ge=-LONGEST_SEED - 1, le=LONGEST_SEED)] | None = None
    stop: Annotated[list[Words], BeforeValidator(_listed_stops)] = []
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None

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
    def passed(self) -> dict[str, Any]:
        """What an endpoint is sent as it came."""
        given = self.model_dump(include=set(PASSED), exclude_unset=True, by_alias=True)
        if not given.get("tools"):  # what is said of none is refused elsewhere
            for name in ("tools", "tool_choice", "parallel_tool_calls"):
                given.pop(name, None)
        return given

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

    response_format: ResponseFormat | None = None
    tools: list[Tool] = []
    tool_choice: Annotated[Any, AfterValidator(_choice_of_tool)] = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[Any, _only(["text"])] = None

    unasked_tokens: ClassVar[int | None] = None

    @property
    def goes_on(self) -> bool:
        """Whether an answer goes on a text of the prompt."""
        return self.messages[-1].role == "assistant"

    @model_validator(mode="after")
    def _agree(self) -> ChatBody:
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name; give each its own")
        if self.must_call and not names:
            raise ValueError("tool_choice asks for a call, and there are no tools; give some")
        if self.called_tool is not None and self.called_tool not in names:
            known = ", ".join(names)
            raise ValueError(f"tool_choice names no tool of the request, which are: {known}")
        return self

    @property
    def passed(self) -> dict[str, Any]:
        scored = {"logprobs": self.logprobs or None, "top_logprobs": self.top_logprobs}
        return super().passed | {name: each for name, each in scored.items() if each is not None}

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The functions that may be called."""
        if self.tool_choice == "none":
            return []
        return [tool.function.plain() for tool in self.tools]

    @property
    def called_tool(self) -> str | None:
        """The function that must be called."""
        choice = self.tool_choice
        return str(choice["function"]["name"]) if isinstance(choice, dict) else None

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice == "required" or self.called_tool is not None

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
    goes_on: ClassVar[bool] = True

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """`Request.logprobs`."""
        return self.logprobs
