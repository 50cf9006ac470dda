"""`draftpick generate`: answers on standard output, one status line each on standard error."""

from __future__ import annotations

import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from decoders.common.seeds import derived_seed
from decoders.common.terminal import progress
from decoders.common.wording import in_words
from decoders.records import Request
from decoders.spelling import TextStream

from ...records import AskOptions, RoutedResult
from ...routing.messages import Message
from ...routing.router import Router
from .prompts import Prompt

LONG_PROMPT = 4096  # tokens of a prompt of which is shown how far it is read


def generate_all(
    router: Router,
    prompts: Sequence[Prompt],
    request: Request,
    *,
    arm: str | None = None,
    dynamic: bool = False,
    as_json: bool = False,
) -> int:
    """Answer every prompt; return how many failed.

    A single prompt's failure is raised. Among several it becomes an object with `error` (or a line
    on standard error), and the others go on.

    arm, dynamic: as in `Router.generate`.

    The request's seed is the whole run's, a fresh one where it has none. The first turn of a single
    prompt takes it as it is, as `Router.generate` does. Every later turn has one of its own, and of
    several prompts every turn: derived from the run's seed, the prompt's id (without one, its place
    among those without) and the turn. So two prompts' arms and tokens are drawn independently, and
    the same command draws the same again.
    """
    failures, alone, nth = 0, len(prompts) == 1, Counter[str]()
    request = router.seeded(request)
    for number, prompt in enumerate(prompts):
        if number and not as_json:
            print(flush=True)
        name = json.dumps(prompt.id)  # 7 and "7" are two
        seeds = partial(_seed, request.seed, alone, name, nth[name])
        nth[name] += 1
        try:
            _generate(router, prompt, request, seeds, arm, dynamic, as_json)
        except BrokenPipeError:
            raise
        except Exception as error:
            if len(prompts) == 1:
                raise
            failures += 1
            _report_failure(error, prompt, number, as_json)
    return failures


def status_line(routed: RoutedResult) -> str:
    """What the answer cost, in one line, and by which seed it is had again."""
    seed = routed.result.seed
    return (
        f"[arm {routed.arm} · propensity {routed.propensity:.2f} · "
        f"{routed.tokens_per_s:.1f} tok/s · {routed.result.mean_accepted:.2f} tokens a round · "
        f"{len(routed.result.ids)} tokens, {routed.result.finish_reason}"
        f"{'' if seed is None else f' · seed {seed}'}"
        f"{''.join(f' · {arm} skipped: {why}' for arm, why in (routed.skipped or {}).items())}]"
    )


def _seed(seed: int | None, alone: bool, name: str, nth: int, turn: int) -> int | None:
    """nth: how many prompts of that name came before."""
    if seed is None or (alone and turn == 0):
        return seed
    return derived_seed(seed, name, nth, turn)


def _generate(
    router: Router,
    prompt: Prompt,
    request: Request,
    seed: Callable[[int], int | None],
    arm: str | None,
    dynamic: bool,
    as_json: bool,
) -> None:
    """All turns of a prompt; each sees the answers before it. seed: of each turn."""
    messages: list[Message] = [dict(message) for message in prompt.history]
    group = uuid.uuid4().hex if prompt.id is None else str(prompt.id)
    for turn, words in enumerate(prompt.turns):
        messages.append({"role": "user", "content": words})
        streamer = None if as_json else _Printed(router.engine.tokenizer)
        own = replace(request, seed=seed(turn))
        asked = AskOptions(
            arm,
            dynamic,
            reuse=turn > 0,
            streamer=streamer,
            request_id=None if prompt.id is None else f"{prompt.id}/{turn}",
            group=group,
        )
        with nullcontext() if streamer is None else streamer.progress:
            routed = router.respond(messages, own, asked)
        if as_json:
            named = {} if prompt.id is None else {"id": prompt.id}
            if len(prompt.turns) > 1:
                named["turn"] = turn
            print(json.dumps(named | routed.to_json(), ensure_ascii=False), flush=True)
        else:
            sys.stdout.flush()
            print(status_line(routed), file=sys.stderr, flush=True)
        messages.append({"role": "assistant", "content": routed.result.text.strip()})


def _report_failure(error: Exception, prompt: Prompt, number: int, as_json: bool) -> None:
    words = in_words(error)
    if as_json:
        named = {} if prompt.id is None else {"id": prompt.id}
        print(json.dumps(named | {"error": words}, ensure_ascii=False), flush=True)
    else:
        which = number + 1 if prompt.id is None else prompt.id
        print(f"error: prompt {which}: {words}", file=sys.stderr, flush=True)


class _Printed:
    """A streamer, as transformers' `generate` takes one, that prints the text which a server would
    send; the prompt comes first and is left out. How far a long one is read is told on standard
    error, and what the model thinks.

    progress: ends what is shown of it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._text, self._prompted = TextStream(tokenizer), False
        self._thinks = False
        self.progress = ExitStack()
        self._tick: Callable[..., None] | None = None

    def put_read(self, read: int, total: int) -> None:
        if read == 0 and total >= LONG_PROMPT and self._tick is None:
            self._tick = self.progress.enter_context(progress("reading the prompt", "tokens"))
        if self._tick is not None:
            self._tick(read, total)
        if read == total:
            self._tick = None
            self.progress.close()

    def put(self, ids: Any) -> None:
        if self._prompted:
            text = self._text.add(ids.tolist())
            thought, self._text.thought = self._text.thought, ""
            self._thinks |= bool(thought)
            if self._thinks:  # a blank line before the answer
                end = "\n\n" if text else ""
                print(thought, end=end, file=sys.stderr, flush=True)
                self._thinks = not text
            print(text, end="", flush=True)
        self._prompted = True

    def end(self) -> None:
        print(self._text.finish(), flush=True)
