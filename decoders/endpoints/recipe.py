"""An OpenAI-compatible server that answers on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, ValidationInfo, field_validator

from ..common.errors import DraftpickError
from ..common.secrets import keys_in, masked
from ..common.text import to_json
from ..recipes.base import ArmRecipe

if TYPE_CHECKING:
    from ..protocols import Backend, Strategy
    from ..records import Request

MOVING = {"note", "api_key_env", "limit_field", "timeout_s", "url", "metrics_url"}
RESERVED_FIELDS = ("model", "messages", "stream", "stream_options")  # every body has them
Price = Annotated[float, Field(ge=0)]


class EndpointRecipe(ArmRecipe):
    """A server's `/chat/completions`; `decoders.endpoints` asks it. No target is loaded.

    url: up to and without `/chat/completions`, for instance http://gpu-1:8000/v1; a query behind it
        is part of every request. It is stored with what is collected, so that it may hold no key.
    model: the name that the server knows it by.
    api_key_env: the environment variable that holds the key; None where none is asked for.
    limit_field: what the server calls the most tokens of an answer.
    extra_body: more fields of every request, as the server documents them; it may hold no key.
        A `temperature` here is sent in place of the request's.
    send_temperature: false for a server that refuses the field, and goes by its own.
    prompt_price, completion_price: money for a million tokens, in a currency that all arms share.
    timeout_s: seconds without a byte after which the server counts as dead.
    tokenizer: a folder or name whose tokenizer counts an answer's tokens where the server does not;
        with none such an answer has no speed.
    metrics_url: the server's page of metrics, such as http://gpu-1:8000/metrics; how many requests
        it has under way is then read there, for the feature `requests-running`.
    same_answers: whether its answers are distributed as those of the file's first endpoint, as with
        the same weights and another lossless `speculative_config`.
    """

    kind: Literal["endpoint"] = "endpoint"
    url: str
    model: str
    api_key_env: str | None = None
    limit_field: Annotated[str, Field(pattern=r"^\w+$")] = "max_tokens"
    extra_body: dict[str, Any] = Field(default_factory=dict)
    send_temperature: bool = True
    prompt_price: Price | None = None
    completion_price: Price | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    tokenizer: str | None = None
    metrics_url: str | None = None
    same_answers: bool = False
    remote: ClassVar[bool] = True

    @field_validator("metrics_url")
    @classmethod
    def _is_a_page(cls, url: str | None) -> str | None:
        return None if url is None else _address(url, "http://localhost:8000/metrics").geturl()

    @field_validator("url")
    @classmethod
    def _is_one(cls, url: str) -> str:
        parts = _address(url, "http://localhost:8000/v1")
        path = parts.path.rstrip("/").removesuffix("/chat/completions")
        return parts._replace(path=path, fragment="").geturl()

    @field_validator("limit_field")
    @classmethod
    def _is_a_limit(cls, name: str) -> str:
        if name in (*RESERVED_FIELDS, "temperature"):
            raise ValueError(f"{name} is another field; give the one for the most tokens")
        return name

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours(cls, body: dict[str, Any], others: ValidationInfo) -> dict[str, Any]:
        ours = (*RESERVED_FIELDS, "max_tokens", others.data.get("limit_field"))
        if taken := [name for name in body if name in ours]:
            raise ValueError(f"{', '.join(taken)} is set by every request; leave it out")
        if keys := keys_in(body):
            raise ValueError(
                f"{', '.join(keys)} holds a key, and would be stored with what is collected; set "
                "it in an environment variable, and name that one in `api_key_env`"
            )
        try:
            to_json(body)
        except TypeError as error:  # a date, for instance
            raise ValueError(str(error)) from error
        return body

    @property
    def lossless(self) -> bool:
        return self.same_answers

    def identity(self, context: Any = None) -> Any:
        """Without its address: deployments move; what they serve stays."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude=MOVING)

    @property
    def takes_temperature(self) -> bool:
        """Whether a request's temperature is sent."""
        return self.send_temperature and "temperature" not in self.extra_body

    def check(self, request: Request) -> None:
        if request.logprobs is not None:
            raise DraftpickError(
                f"the arm {self.name!r} is an endpoint, whose log-probabilities are not read; "
                "leave logprobs out"
            )
        super().check(request)
        if request.eos_ids:
            raise DraftpickError(
                f"the arm {self.name!r} is an endpoint, which uses its own end-of-sequence "
                "tokens; leave `eos_ids` out, or give stop strings"
            )

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Money for one answer; None where no prices were given."""
        if self.prompt_price is None or self.completion_price is None:
            return None
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        raise DraftpickError(
            f"the arm {self.name!r} is an endpoint, which answers without a target; put endpoints "
            "into an arms file of their own"
        )


def _address(url: str, such_as: str) -> SplitResult:
    """Raises ValueError for no address, and for one that holds a password or key."""
    if masked(url) != url:
        raise ValueError(
            f"{masked(url)} holds a password or key; set it in an environment variable, and "
            "name that one in `api_key_env`"
        )
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        known = known and (parts.port or 1) > 0
    except ValueError:  # no port, no IPv6 address
        known = False
    if not known:
        raise ValueError(f"give an address such as {such_as}, not {url!r}")
    return parts
