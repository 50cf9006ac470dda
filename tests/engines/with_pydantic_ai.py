"""Run by the environment of `make engines` with a server's address: Pydantic AI, a loop of tools,
the same streamed, and answers of a type by a call and by a JSON schema. Prints what came of them as
JSON."""

import asyncio
import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

asked: list[str] = []


def weather(city: Literal["rome", "oslo"]) -> str:
    """How warm it is in a city."""
    asked.append(city)
    return "7"


def clock(hour: Literal[1, 2]) -> str:
    """What is on at an hour."""
    asked.append(str(hour))
    return "tea"


def today() -> str:
    """The day."""
    asked.append("today")
    return "monday"


class Trip(BaseModel):
    city: Literal["rome", "oslo"]
    days: list[Literal[1, 2, 3]]
    note: Literal["a", "b"] | None = None


async def main(url: str) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    model = OpenAIChatModel("copy", provider=provider)
    settings = ModelSettings(temperature=0, max_tokens=300)
    agent = Agent(model, model_settings=settings, tools=[weather, clock, today])
    loop = await agent.run("how warm is it in oslo?")
    first = list(asked)
    async with agent.run_stream("how warm is it in oslo?") as stream:
        streamed = await stream.get_output()
    again = asked[len(first) :]
    called = await Agent(model, model_settings=settings, output_type=Trip).run("a trip")
    native = Agent(model, model_settings=settings, output_type=NativeOutput(Trip))
    schema = await native.run("a trip")
    found = {
        "text": loop.output,
        "turns": sum(message.kind == "response" for message in loop.all_messages()),
        "tools": first,
        "streamed": streamed,
        "streamed_tools": again,
        "typed": isinstance(called.output, Trip) and isinstance(schema.output, Trip),
    }
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
