"""Who else answers several at once: any OpenAI-compatible server, and OpenVINO GenAI.

Each is fed the prompt's ids, so that all read the same, and asked greedily.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAIT_S = 0.001  # of an idle loop


@dataclass(frozen=True)
class Answered:
    """Seconds since it was asked, and new tokens. first_s: 0 where that is not known."""

    whole_s: float
    tokens: int
    first_s: float = 0.0


class Server:
    """`/v1/completions` of a server. model: what to ask it for."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url.rstrip("/") + "/v1/completions", model

    def ask(self, ids: list[int], most: int) -> Answered:
        body = {"model": self._model, "prompt": ids, "max_tokens": most, "temperature": 0}
        started = time.perf_counter()
        asked = urllib.request.Request(
            self._url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=600) as reply:
            usage = json.load(reply)["usage"]
        return Answered(time.perf_counter() - started, int(usage["completion_tokens"]))


class OpenVINO:
    """Continuous batching of OpenVINO GenAI on a GGUF file; one thread steps it while anything is
    asked."""

    def __init__(self, gguf: Path, eos_ids: tuple[int, ...]) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.max_num_seqs = 64
        self._pipe = genai.ContinuousBatchingPipeline(str(gguf), scheduler, "CPU")
        self._eos, self._asked, self._lock = eos_ids, 0, threading.Lock()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            if self._pipe.has_non_finished_requests():
                self._pipe.step()
            else:
                time.sleep(WAIT_S)

    def ask(self, ids: list[int], most: int) -> Answered:
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = most, False
        config.stop_token_ids = set(self._eos)
        started = time.perf_counter()
        with self._lock:
            self._asked += 1
            tensor = ov.Tensor(np.array([ids], dtype=np.int64))
            handle = self._pipe.add_request(self._asked, tensor, config)
        made: list[int] = []
        running = genai.GenerationStatus.RUNNING
        while handle.get_status() == running or handle.can_read():
            if handle.can_read():
                made += [token for each in handle.read().values() for token in each.generated_ids]
            else:
                time.sleep(WAIT_S)
        tokens = len(made) + (len(made) < most and (not made or made[-1] not in self._eos))
        return Answered(time.perf_counter() - started, tokens)


def openvino(gguf: Path, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """By name; none where it is not installed."""
    try:
        return {"OpenVINO GenAI": OpenVINO(gguf, eos_ids)}
    except ImportError:
        print("OpenVINO GenAI is not installed (pip install openvino-genai): left out")
        return {}
