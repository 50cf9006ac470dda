"""Agent libraries against the server, by the environment of `make engines`: a toy model that calls
tools twice and then says `ok`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from grammar_toys import HERMES, toy_engine
from serve_toys import served

from router.serve.app import Settings
from router.serve.parsing import Limits

HERE = Path(__file__).resolve().parent
ENGINES = Path(os.environ.get("DRAFTPICK_ENGINES", HERE.parents[1] / ".engines"))
PYTHON = ENGINES / "agents" / "bin" / "python"
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"no agent libraries in {PYTHON.parent}; run `make engines`"
    ),
]
TWICE = HERMES.removesuffix("assistant:") + (
    "{% if messages | selectattr('role', 'equalto', 'tool') | list | length > 1 %}o"
    "{% else %}assistant:{% endif %}"
)


def run(script: str) -> dict[str, Any]:
    """What it prints."""
    engine = toy_engine(TWICE, words=("ok",))
    with served(Settings(Limits(most_tokens=400)), engine=engine) as server:
        words = [str(PYTHON), str(HERE / script), server.url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("script", ["with_openai_agents.py", "with_pydantic_ai.py"])
def test_a_loop_of_two_calls_ends(script: str) -> None:
    found = run(script)
    assert found["text"] == found["streamed"] == "k"
    assert found["turns"] == 3 and len(found["tools"]) == 2
    assert found["streamed_tools"] == found["tools"]
    assert found["typed"] is True
