"""Run by the environment of `make engines` with a server's address: OpenAI's Agents SDK, a loop of
tools, the same streamed, and an answer of a type. Prints what came of them as JSON."""

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

asked: list[str] = []


@function_tool
def weather(city: Literal["rome", "oslo"]) -> str:
    """How warm it is in a city."""
    asked.append(city)
    return "7"


@function_tool
def clock(hour: Literal[1, 2]) -> str:
    """What is on at an hour."""
    asked.append(str(hour))
    return "tea"


@function_tool
def today() -> str:
    """The day."""
    asked.append("today")
    return "monday"


class Trip(BaseModel):
    city: Literal["rome", "oslo"]
    days: list[Literal[1, 2, 3]]
    note: Literal["a", "b"] | None


async def main(url: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    model = OpenAIChatCompletionsModel(model="copy", openai_client=client)
    settings = ModelSettings(temperature=0, max_tokens=300)
    tools = [weather, clock, today]
    agent = Agent(name="a", model=model, model_settings=settings, tools=tools)
    loop = await Runner.run(agent, "how warm is it in oslo?", max_turns=6)
    first = list(asked)
    stream = Runner.run_streamed(agent, "how warm is it in oslo?", max_turns=6)
    events = [event.type async for event in stream.stream_events()]
    typed = Agent(name="t", model=model, model_settings=settings, output_type=Trip)
    trip = (await Runner.run(typed, "a trip", max_turns=2)).final_output
    found = {
        "text": loop.final_output,
        "turns": len(loop.raw_responses),
        "tools": first,
        "streamed": stream.final_output,
        "streamed_tools": asked[len(first) :],
        "events": len(events),
        "typed": isinstance(trip, Trip),
    }
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
