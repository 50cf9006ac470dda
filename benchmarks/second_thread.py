"""What it costs to load a model in one thread and answer in another, and what `let_go` mends.

    python benchmarks/second_thread.py

Plain decoding, tokens a second: in the thread that loaded, in another, and in another after the
first has dismissed its helpers (`decoders/backends/threads.py`). On an otherwise idle machine only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from collect.queries import shipped
from decoders import Engine, Request
from decoders.arms import AUTOREGRESSIVE
from decoders.backends.threads import let_go

QUESTIONS, TOKENS = 4, 64


def main() -> None:
    engine = Engine.load()
    asked = [[{"role": "user", "content": query.turns[0]}] for query in shipped("test")]
    prompts = [engine.encode_chat(messages) for messages in asked[:QUESTIONS]]

    def answer() -> int:
        request = Request(TOKENS)
        return sum(len(engine.decode(AUTOREGRESSIVE, ids, request).ids) for ids in prompts)

    print(f"in the thread that loaded: {speed(answer):.0f}")
    print(f"in another thread: {elsewhere(answer):.0f}")
    let_go()
    print(f"in another, the first one's helpers dismissed: {elsewhere(answer):.0f}")


def speed(answer: Callable[[], int]) -> float:
    """Tokens a second, the second time."""
    answer()
    started = time.perf_counter()
    tokens = answer()
    return tokens / (time.perf_counter() - started)


def elsewhere(answer: Callable[[], int]) -> float:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(speed(answer)))
    thread.start()
    thread.join()
    return found[0]


if __name__ == "__main__":
    main()
