"""`draftpick check` of real servers that do not draft, that copy well, and that draft badly."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import vllm_server
from commands import Draftpick
from real_servers import GGUF, Server, llama_cpp
from vllm_server import MOST

pytestmark = pytest.mark.engines
COPIES = {"method": "ngram", "num_speculative_tokens": MOST, "prompt_lookup_min": 1}
Start = Callable[[Path], AbstractContextManager[Server]]


def vllm(**drafting: Any) -> Start:
    return lambda folder: vllm_server.served(folder, **drafting)


def llama(*options: str) -> Start:
    words = ["llama-server", "--model", str(GGUF), "--parallel", "8", "--ctx-size", "8192"]
    return lambda folder: llama_cpp([*words, *options], folder)


@pytest.mark.parametrize(
    ("start", "accepted"),
    [
        pytest.param(vllm(), None, id="vLLM-plain"),
        pytest.param(vllm(proposer="router.engines.vllm.Proposer"), (0.5, 1), id="vLLM-ours"),
        pytest.param(vllm(speculative=COPIES), (0, 0.4), id="vLLM-any-copy"),
        pytest.param(llama(), None, id="llama.cpp-plain"),
        pytest.param(llama("--spec-type", "ngram-simple"), (0.3, 1), id="llama.cpp-copies"),
    ],
)
def test_it_says_whether_a_server_drafts_and_whether_that_pays(
    start: Start, accepted: tuple[float, float] | None, tmp_path: Path, draftpick: Draftpick
) -> None:
    """accepted: the share of drafted tokens lies between these; None where none are drafted."""
    words = ["--seconds", 20, "--max-new-tokens", 48, "--json"]
    with start(tmp_path) as server:
        said = draftpick("check", server.url, *words).json
    assert said["drafts"] == (accepted is not None)
    if accepted is not None:
        assert accepted[0] < said["acceptance"] < accepted[1]
    assert said["known"] and len(said["sentences"]) == 3
