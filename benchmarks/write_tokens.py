"""Let a target write training data, many answers at once, into token files.

    python benchmarks/write_tokens.py --queries train/ --out tokens --minutes 10

For every query's first turn: greedy answers, and sampled ones at temperatures 0.7 and 1. Beside
them conversations that the target makes up whole: it goes on from its own chat template where the
user's text would be, then answers that. Tasks take turns, so that a run cut short has as much of
each. Where the queries are used up, sampling begins anew with other clocks, until --minutes or
--tokens; without either, once is enough.

Shards are of the form of token_files.py: `train-NNNNN.npz`, and `held-out-NNNNN.npz` for
the fixed few percent of queries that `draftpick align` holds out too. Beside each lies a list of
what it holds, and a run started again skips that. Of the libraries that draftpick wants it takes
torch, transformers, safetensors, numpy, and gguf where the target is to be converted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from token_files import save

from collect.align.calibration import HELD_OUT_PERCENT
from collect.align.tokens import Text
from collect.queries import Query, read_queries
from collect.replay.stack import Stack
from collect.replay.writer import Answer, Ask, Writer
from decoders.backends.cuda.recorded import cuda_graphs
from decoders.backends.native import LlamaBackend
from decoders.common.errors import NotANumber
from decoders.models import targets
from decoders.records import NAN
from decoders.sampling.race import key_of
from decoders.zoo import TARGET

OWN = "own"  # the task of conversations that the target made up
COOL, WARM = 0.7, 1.0
REPORT_S = 5.0
MARK = "THE TEXT OF THE USER"


@dataclass(frozen=True)
class Template:
    """before: ids up to a user's text. after: those between it and the answer, of which the first
    is the end of the user's turn."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, tokenizer: Any, ends: Sequence[int]) -> Template:
        text = _chat(tokenizer, [MARK])[0]
        before, after = (
            list(tokenizer.encode(part, add_special_tokens=False)) for part in text.split(MARK)
        )
        if not after or after[0] not in ends:
            raise SystemExit("the chat template ends no user's turn; use --own 0")
        return cls(before, after)


@dataclass(frozen=True)
class Wanted:
    """One answer to be written. name: unlike any other's of all runs into a folder. asking: whether
    it is a user's text, to be answered next."""

    name: str
    query_id: str
    task: str
    ask: Ask
    asking: bool = False


@dataclass
class Shards:
    """Texts on their way into numbered files, a list of their names beside each."""

    out: Path
    split: str
    tokens: int  # a shard
    held: list[Text] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    size: int = 0

    def done(self) -> set[str]:
        """Names in the shards that are whole."""
        lists = [path.with_suffix(".json") for path in sorted(self.out.glob(f"{self.split}-*.npz"))]
        return {name for path in lists for name in json.loads(path.read_text(encoding="utf-8"))}

    def add(self, name: str, text: Text) -> None:
        self.held.append(text)
        self.names.append(name)
        self.size += len(text.ids)
        if self.size >= self.tokens:
            self.flush()

    def flush(self) -> None:
        if not self.held:
            return
        number = len(list(self.out.glob(f"{self.split}-*.npz")))
        path = self.out / f"{self.split}-{number:05}.npz"
        names, beside = path.with_suffix(".json"), path.with_suffix(".json.part")
        beside.write_text(json.dumps(self.names), encoding="utf-8")
        os.replace(beside, names)  # first: without its shard a list means nothing
        save(path, self.held)
        print(f"{path}: {len(self.held)} texts, {self.size / 1e6:.1f} million tokens", flush=True)
        self.held, self.names, self.size = [], [], 0


@dataclass(frozen=True)
class Plan:
    """greedy, cool, warm: answers to each query at each temperature. own: conversations made up for
    each query. most, asking: new tokens of an answer, and of a user's text, at most."""

    greedy: int
    cool: int
    warm: int
    own: int
    most: int
    asking: int
    seed: int
    once: bool

    def of_query(self, query: Query, prompt: list[int], again: int) -> Iterator[Wanted]:
        """again: how often all queries were used before. Greedy answers would be the same."""
        amounts = {0.0: 0 if again else self.greedy, COOL: self.cool, WARM: self.warm}
        for temperature, amount in amounts.items():
            for i in range(again * amount, (again + 1) * amount):
                name = f"{query.id} {temperature:g} {i}"
                ask = Ask(prompt, self.most, temperature, key_of(self.seed, name))
                yield Wanted(name, query.id, query.task, ask)

    def of_own(self, number: int, before: list[int]) -> Wanted:
        name = f"{OWN}-{number}"
        ask = Ask(before, self.asking, WARM, key_of(self.seed, f"{name} text"))
        return Wanted(name, name, OWN, ask, asking=True)

    def answer_to(self, wanted: Wanted, text: list[int], template: Template) -> Wanted:
        """text: the user's, its end included. Temperatures take turns."""
        number = int(wanted.name.rpartition("-")[2])
        temperature = (0.0, COOL, WARM)[number % 3]
        prompt = template.before + text + template.after[1:]
        ask = Ask(prompt, self.most, temperature, key_of(self.seed, f"{wanted.name} answer"))
        return Wanted(wanted.name, wanted.query_id, OWN, ask)


def in_turns(
    asked: dict[str, list[tuple[Query, list[int]]]], plan: Plan, template: Template | None
) -> Iterator[Wanted]:
    """All that is wanted: a query of each task, then another of each, with as many conversations
    made up in between."""
    rng = random.Random(plan.seed)
    number = 0
    for again in count():
        queues = [rng.sample(pairs, len(pairs)) for pairs in asked.values()]
        longest = max(map(len, queues), default=0)
        for at in range(longest):
            turn = [queue[at] for queue in queues if at < len(queue)]
            for query, prompt in rng.sample(turn, len(turn)):
                yield from plan.of_query(query, prompt, again)
                for _ in range(plan.own if template is not None else 0):
                    assert template is not None
                    yield plan.of_own(number, template.before)
                    number += 1
        if plan.once or plan.cool + plan.warm + plan.own == 0:
            return


def main() -> None:
    given = _arguments()
    device, dtype = targets.device_of(given.device), targets.dtype_of(given.dtype)
    folder = targets.resolve(given.target)
    tokenizer, ends = targets.load_tokenizer(folder), targets.eos_ids(folder)
    queries = read_queries(given.queries)
    asked = read_prompts(tokenizer, queries, given.max_prompt)
    template = Template.of(tokenizer, ends) if given.own else None
    plan = Plan(
        given.greedy,
        given.cool,
        given.warm,
        given.own,
        given.max_new_tokens,
        given.max_asking,
        given.seed,
        once=given.minutes is None and given.tokens is None,
    )
    target = targets.load_backend(folder, device, dtype, "native", context=given.context)
    assert isinstance(target, LlamaBackend)
    given.out.mkdir(parents=True, exist_ok=True)
    record = cuda_graphs() if device.type == "cuda" and not given.eager else None
    capacity = given.max_prompt + given.max_new_tokens
    stack = Stack.of_backend(target)
    fast = False if given.plain else None
    writer = Writer(stack, given.rows, capacity, ends, record, fast)
    Run(writer, plan, template, ends, given).write(in_turns(asked, plan, template))


class Run:
    """From what is wanted to shards, until time or tokens are up."""

    def __init__(
        self,
        writer: Writer,
        plan: Plan,
        template: Template | None,
        ends: Sequence[int],
        given: argparse.Namespace,
    ) -> None:
        self._writer, self._plan, self._template, self._ends = writer, plan, template, ends
        self._given = given
        self._shards = {
            held: Shards(given.out, split, given.shard_tokens)
            for held, split in ((False, "train"), (True, "held-out"))
        }
        self._done = self._shards[False].done() | self._shards[True].done()
        self._asked: dict[int, Wanted] = {}
        self._next: deque[Wanted] = deque()  # answers to users' texts
        self._began = self._told = time.monotonic()
        self._told_tokens = 0
        self._counts: Counter[str] = Counter()

    def write(self, wanted: Iterator[Wanted]) -> None:
        todo = (one for one in wanted if one.name not in self._done)

        def take(free: int) -> list[Ask]:
            asks: list[Ask] = []
            while len(asks) < free and not self._enough():
                one = self._next.popleft() if self._next else next(todo, None)
                if one is None:
                    break
                self._asked[self._counts["taken"]] = one
                self._counts["taken"] += 1
                asks.append(one.ask)
            return asks

        for answer in self._writer.serve(take):
            self._keep(answer)
            if time.monotonic() - self._told >= REPORT_S:
                self._tell()
        for shards in self._shards.values():
            shards.flush()
        self._tell()

    def _enough(self) -> bool:
        limit, minutes = self._given.tokens, self._given.minutes
        if limit is not None and self._writer.new_tokens >= limit:
            return True
        return minutes is not None and time.monotonic() - self._began >= 60 * minutes

    def _keep(self, answer: Answer) -> None:
        wanted = self._asked.pop(answer.index)
        if answer.ids[-1] == NAN:
            raise NotANumber  # what follows in its row would read what is left of it
        if not wanted.asking:
            prompt = wanted.ask.prompt
            text = Text(prompt + answer.ids, len(prompt), wanted.task, wanted.ask.temperature)
            held = zlib.crc32(wanted.query_id.encode()) % 100 < self._given.held_out_percent
            self._shards[held].add(wanted.name, text)
            self._counts[wanted.task] += 1
        elif answer.ids[-1] in self._ends and len(answer.ids) > 1:
            assert self._template is not None
            self._next.append(self._plan.answer_to(wanted, answer.ids, self._template))
        else:
            self._counts["own texts without an end"] += 1

    def _tell(self) -> None:
        now, tokens = time.monotonic(), self._writer.new_tokens
        lately = (tokens - self._told_tokens) / max(now - self._told, 1e-9)
        whole = tokens / max(now - self._began, 1e-9)
        counts = ", ".join(f"{name} {n}" for name, n in sorted(self._counts.items()))
        print(
            f"{now - self._began:7.1f} s  {tokens / 1e6:8.2f} million tokens written, "
            f"{lately:,.0f} a second lately, {whole:,.0f} on the whole, {self._writer.steps} steps,"
            f" {self._writer.prefill_s:.1f} s of reading; {counts}",
            flush=True,
        )
        self._told, self._told_tokens = now, tokens


def read_prompts(
    tokenizer: Any, queries: Sequence[Query], most: int
) -> dict[str, list[tuple[Query, list[int]]]]:
    """By task: queries with the ids of their first turn as a chat, those of up to `most` tokens."""
    texts = _chat(tokenizer, [query.turns[0] for query in queries])
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    asked: dict[str, list[tuple[Query, list[int]]]] = {}
    for query, prompt in zip(queries, prompts, strict=True):
        if len(prompt) <= most:
            asked.setdefault(query.task, []).append((query, list(prompt)))
    kept = sum(map(len, asked.values()))
    left = len(queries) - kept
    print(f"{kept} prompts, {left} longer than {most} tokens left out", flush=True)
    return asked


def _chat(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Each text as a user's only message, up to where the answer starts."""
    chats = [[{"role": "user", "content": text}] for text in texts]
    return list(tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--queries", type=Path, nargs="+", required=True, help="files or folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="no new answers are begun after so many")
    parser.add_argument("--tokens", type=int, help="nor after so many tokens written")
    parser.add_argument("--rows", type=int, default=1024, help="sequences at once")
    parser.add_argument("--greedy", type=int, choices=(0, 1), default=1, help="answers a query")
    parser.add_argument("--cool", type=int, default=5, help=f"at temperature {COOL}")
    parser.add_argument("--warm", type=int, default=5, help=f"at temperature {WARM:g}")
    parser.add_argument("--own", type=int, default=2, help="conversations made up, for each query")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--max-asking", type=int, default=128, help="tokens of a made-up question")
    parser.add_argument("--max-prompt", type=int, default=768)
    parser.add_argument("--held-out-percent", type=int, default=HELD_OUT_PERCENT)
    parser.add_argument("--shard-tokens", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--eager", action="store_true", help="record no graph")
    parser.add_argument("--plain", action="store_true", help="PyTorch's operations, no kernels")
    given = parser.parse_args()
    given.context = max(given.max_prompt, given.max_asking + 256) + given.max_new_tokens
    return given


if __name__ == "__main__":
    main()
