"""A server whose answers are known beforehand, for the scripts beside this one.

    python benchmarks/survive/toys.py --pause 0.001 --log log

Its model is no model: the answer to a prompt is how many special tokens the prompt has, and then
the first number in it, several times over: `3:4711 4711 4711 4711`. So a client can tell whether
the answer is its own, and whether something that it wrote became a special token. `--tiny` serves a
random Llama of a few thousand weights instead, whose passes answers share.

What those need who ask it is in toy_server.py, which imports nothing large.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from toy_server import SPECIAL, expected

from decoders import Engine
from decoders.arms import arms_of
from decoders.continuous_batching import batch_engine
from decoders.records import Prefilled
from decoders.testing.toys import ToyBackend
from policies import uniform_policy
from router.logs.writer import DecisionLog
from router.routing.router import Router
from router.serve.app import Settings, make_app
from router.serve.parsing import Limits
from router.serve.queue import FairQueue
from router.serve.scheduler import DEFAULT, Scheduler
from router.serve.server import bound, serve

END = 256 + SPECIAL.index("<|im_end|>")  # bytes come first
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ARMS = {"copy": {"kind": "max_gram", "shortest": 1, "length": {"k": 4}}}
CONTEXT = 4096
PLACES = 256  # of the queue


def tokenizer() -> Any:
    """A token a byte, three special ones, and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in SPECIAL])
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>")
    made.chat_template = TEMPLATE
    return made


class Echo(ToyBackend):
    """A target that is sure of `expected`. pause_s: what every pass takes."""

    def __init__(self, spoken: Any, pause_s: float) -> None:
        vocab = 256 + len(SPECIAL)
        super().__init__(torch.zeros(1, 1, vocab), CONTEXT)
        self._spoken, self._pause_s = spoken, pause_s
        self._prompt, self._answer = 0, [END]

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        special = sum(token >= 256 for token in prompt_ids)
        text = self._spoken.decode([token for token in prompt_ids if token < 256])
        self._answer = [*self._spoken.encode(expected(special, text)), END]
        self._prompt = len(prompt_ids)
        return super().prefill(prompt_ids)

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        assert parents is None
        time.sleep(self._pause_s)
        start = self.length
        self._ids += ids.tolist()
        rows = torch.zeros(len(ids), self.vocab_size)
        for row, at in enumerate(range(start, start + len(ids))):
            said = min(max(at + 1 - self._prompt, 0), len(self._answer) - 1)
            rows[row, self._answer[said]] = 1e4
        return rows


def echo_engine(pause_s: float = 0.0) -> Engine:
    """Answers as `expected`, at any temperature."""
    spoken = tokenizer()
    arms = arms_of({"arms": ARMS}, Path("toys"))
    return Engine(Echo(spoken, pause_s), arms, name="echo", tokenizer=spoken, eos_ids=(END,))


def tiny_engine(folder: Path, seed: int = 3) -> Engine:
    """A random Llama in float32, on the native backend. folder: where its weights are kept."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from decoders.models.targets import load_backend

    if not (folder / "config.json").is_file():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=256 + len(SPECIAL), hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=1024, initializer_range=0.3,
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
    backend = load_backend(folder, torch.device("cpu"), torch.float32, "native")
    arms = arms_of({"arms": ARMS}, Path("toys"))
    return Engine(backend, arms, name="tiny", tokenizer=tokenizer(), eos_ids=(END,))


def serving(
    engine: Engine,
    held: socket.socket,
    log: Path | None = None,
    slots: int = 1,
    timeout_s: float = 60.0,
) -> None:
    """Serve an engine at a bound socket until a signal. log: as of `draftpick serve`."""
    torch.set_num_threads(1)
    book = None if log is None else DecisionLog(log, text=True)
    router = Router(engine, uniform_policy(engine.arm_names), log=book)
    scheduler = Scheduler({DEFAULT: router}, FairQueue(PLACES), batch_engine(engine, slots))
    settings = Settings(Limits(most_tokens=256), timeout_s=timeout_s)
    serve(make_app(scheduler, settings), scheduler, held, drain_s=5.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a pass takes")
    parser.add_argument("--slots", type=int, default=1, help="answers at once, with --tiny")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one request")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="serve a random Llama")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="write decisions there")
    given = parser.parse_args()

    engine = echo_engine(given.pause) if given.tiny is None else tiny_engine(given.tiny)
    serving(engine, bound("127.0.0.1", 0), given.log, given.slots, given.timeout)


if __name__ == "__main__":
    main()
