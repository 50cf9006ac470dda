"""A loaded target with its arms: encode, prefill, decode.

engine = Engine.load()
ids = engine.encode_chat([{"role": "user", "content": "Why is the sky blue?"}])
result = engine.decode("max-gram", ids, Request(max_new_tokens=64))
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .arms import AUTOREGRESSIVE, ArmRecipe
from .arms.file import LoadedFingerprints
from .common.errors import ArmDown, ContextTooLong, DraftpickError, NoSuchName, NotANumber
from .costs import passes as pass_costs
from .earlier.answers import EarlierAnswers
from .earlier.prefixes import PrefixStore
from .loop import SpeculativeDecoding
from .models import memory, plain_text, targets
from .models.drafter_memory import DrafterMemory
from .models.drafts import TargetInfo
from .models.grammars import Grammars
from .models.loaders import loader_of
from .models.precision import precision_of
from .options import Arms, EngineOptions
from .protocols import (
    Backend,
    CleanedBackend,
    CopyableBackend,
    DescribedBackend,
    Drafts,
    EncoderDecoder,
    Job,
    RequestScope,
    RoundStreamer,
    Strategy,
    decoder_prefix,
)
from .recipes.base import DraftingRecipe
from .records import DecodeResult, Prefilled, Request
from .requests.reading import PromptReader
from .sampling.randomness import Generator, seeded
from .sampling.stopping import Stopper
from .zoo.catalogue import cache_dir


class Engine:
    """One target, one sequence at a time, any number of arms; drafters load when first used.

    drafters: what they may take, and which are loaded; None for memory of this engine's own,
        without a limit.
    scope: what all requests have in common.
    """

    def __init__(
        self,
        target: Backend,
        arms: dict[str, ArmRecipe],
        *,
        name: str = "custom",
        fingerprint: str = "unnamed",
        tokenizer: Any = None,
        eos_ids: tuple[int, ...] = (),
        drafters: DrafterMemory | None = None,
        scope: RequestScope = RequestScope(),
    ) -> None:
        self.target, self.arms, self.tokenizer = target, arms, tokenizer
        self.target_name, self.eos_ids = name, eos_ids
        self._fingerprint = fingerprint
        self._strategies: dict[str, Strategy] = {}
        self._arms_fingerprints = LoadedFingerprints()
        self._scope = scope  # of the prompt that the target has read
        self._prompts = PromptReader(target, counts=True)
        self._warned = False  # that messages are joined
        self._grammars = Grammars(tokenizer, target.vocab_size, eos_ids)
        self.drafters = DrafterMemory() if drafters is None else drafters
        self.drafters.join(self)
        for recipe in arms.values():
            recipe.prepare(target)  # before any prompt is read

    @classmethod
    def load(
        cls,
        target: str = EngineOptions.target,
        arms: Arms = EngineOptions.arms,
        *,
        only: Sequence[str] | None = None,
        request: Request | None = None,
        **options: Any,
    ) -> Engine:
        """`from_options`, the other options of `EngineOptions` as keywords."""
        made = EngineOptions(target, arms, **options)
        return cls.from_options(made, only=only, request=request)

    @classmethod
    def from_options(
        cls,
        options: EngineOptions,
        *,
        only: Sequence[str] | None = None,
        request: Request | None = None,
    ) -> Engine:
        """Load a target with its arms.

        only: these arms of the options' arms, which will all be used.
        request: what `only` will be asked for.

        Where an arm goes by what the target's passes cost, they are measured at the first loading
        on a machine.
        Raises DraftpickError before anything is loaded where the arms file or a name is wrong, an
        arm of `only` cannot answer such a request or its drafters do not fit the target, and
        OutOfMemory where the target does not fit the memory.
        """
        recipes = options.resolved().recipes(only)
        loader_of(options.backend)  # an unknown one should show before anything is fetched
        where = targets.device_of(options.device)
        targets.check_dtype(options.dtype)
        targets.check_kv_dtype(options.kv_dtype, where)
        targets.check_template(options.chat_template)
        if only and request is not None:
            for recipe in recipes.values():
                recipe.check(request)
        target, backend, context = options.target, options.backend, options.context
        folder = targets.resolve(target)
        dtype = precision_of(options.dtype, folder, where, backend)
        kind, rounding = targets.dtype_of(dtype), targets.ROUNDINGS.get(dtype)
        if context is not None:
            targets.check_context(folder, context)
        tokenizer, own = targets.tokenizer_and_fingerprint(folder, options.chat_template)
        if only and any(name != AUTOREGRESSIVE for name in recipes):
            reading = TargetInfo.of_folder(folder, tokenizer, backend)
            for recipe in recipes.values():
                recipe.check_target(reading)
        loaded = targets.load_backend(folder, where, kind, backend, rounding, context)
        targets.keep_kv(loaded, options.kv_dtype)
        engine = cls(
            loaded,
            recipes,
            name=target if not Path(target).exists() else Path(target).name,
            fingerprint=own,
            tokenizer=tokenizer,
            eos_ids=targets.eos_ids(folder),
        )
        if any(recipe.uses_cost_model for recipe in recipes.values()):
            pass_costs.learn(engine.target, engine.target_fingerprint, cache_dir() / "costs")
        return engine

    @staticmethod
    def unsupported_reason(options: EngineOptions, *arms: str) -> str | None:
        """Why the drafters of one of these arms do not fit the options' target, by its files; None
        where all do. Nothing is loaded but the tokenizer, once: a large one takes seconds."""
        recipes = options.recipes(arms)
        targets.check_template(options.chat_template)
        folder = targets.resolve(options.target)
        tokenizer = targets.load_tokenizer(folder, options.chat_template)
        about = TargetInfo.of_folder(folder, tokenizer, options.backend)
        try:
            for recipe in recipes.values():
                recipe.check_target(about)
        except DraftpickError as error:
            return str(error)
        return None

    def with_target(
        self, target: Backend, exact: bool = False, pause: Callable[[int], None] | None = None
    ) -> Engine:
        """The same arms on another sequence of the same model, with drafters of their own.

        exact, pause: as of RequestScope, for all requests.
        """
        made = Engine(
            target,
            self.arms,
            name=self.target_name,
            fingerprint=self._fingerprint,
            tokenizer=self.tokenizer,
            eos_ids=self.eos_ids,
            drafters=self.drafters,
            scope=replace(self._scope, exact=exact, pause=pause),
        )
        made._warned = self._warned
        made._grammars = self._grammars
        return made

    @property
    def earlier(self) -> EarlierAnswers | None:
        """The answers that arms may copy from; None where none are kept."""
        return self._scope.answers

    def remember(self, answers: EarlierAnswers | None) -> None:
        """Keep answers here from now on, for arms that draft from earlier ones (`kind: suffix`);
        None keeps none. They may be those of other engines of this target."""
        self._scope = replace(self._scope, answers=answers)

    @property
    def prefixes(self) -> PrefixStore | None:
        """The store of what was read of prompts; None where nothing is kept."""
        return self._scope.prefixes

    def keep_prefixes(self, store: PrefixStore | None) -> None:
        """Keep what is read of prompts here from now on, for later ones that begin alike and may be
        reused; None keeps what the target holds alone. It may be the store of other engines.

        Raises DraftpickError where the target's positions cannot be copied, or the store has no
        room for a single one.
        """
        target = self.target
        if store is not None:
            if not isinstance(target, CopyableBackend):
                raise DraftpickError(
                    f"prefixes are kept by the native backend alone, and this target runs by "
                    f"{type(target).__name__}"
                )
            if store.limit < target.position_bytes:
                raise DraftpickError(
                    f"a position of {self.target_name} takes {target.position_bytes} bytes, and "
                    f"kept prefixes may take {store.limit}; allow more, or keep none"
                )
        self._scope = replace(self._scope, prefixes=store)

    def reuse_exactly(self, exact: bool) -> None:
        """Whether of what is held or kept of a prompt that alone is not read again which was read
        in the same passes (`RequestScope.exact`)."""
        self._scope = replace(self._scope, exact=exact)

    # -- what it is ---------------------------------------------------------------------------

    @property
    def arm_names(self) -> list[str]:
        return list(self.arms)

    @property
    def context(self) -> int:
        return self.target.context

    @property
    def target_fingerprint(self) -> str:
        """Name, weights and dtype: outputs of two targets are comparable where this agrees."""
        precision = str(self.target.dtype).removeprefix("torch.")
        if isinstance(self.target, DescribedBackend):
            precision = self.target.precision + ("+kv8" if self.target.eight_bits else "")
        return f"{self.target_name}@{self._fingerprint}/{precision}"

    @property
    def system_fingerprint(self) -> str:
        """Names what answers depend on besides prompt, settings and seed: weights and
        precision, then a print of the kernels, the machine's name and torch."""
        key = pass_costs.CostKey.of(self.target, self.target_fingerprint)
        computed = " ".join((key.backend, key.device, key.torch))
        print_of = hashlib.sha256(computed.encode()).hexdigest()[:8]
        return f"draftpick-{version('draftpick')}/{self.target_fingerprint}/{print_of}"

    @property
    def timed_by(self) -> str:
        """What seconds depend on besides the target: how its passes are made, and on what."""
        return pass_costs.CostKey.of(self.target, self.target_fingerprint).timed_by

    @property
    def embedder(self) -> str:
        """The space of `Prefilled.embedding`; a policy fits where it was trained in this space."""
        return f"target:{self.target_name}@{self._fingerprint}"

    def arms_fingerprint(self, names: Sequence[str]) -> str:
        """Eight hex digits over the named arms' recipes, with the weights that their models had
        when first asked for."""
        return self._arms_fingerprints.of({name: self.arm(name) for name in names})

    def arm(self, name: str) -> ArmRecipe:
        """Raises NoSuchName."""
        if name not in self.arms:
            raise NoSuchName("arm", name, list(self.arms))
        return self.arms[name]

    def arm_parameters(self, name: str) -> int:
        """What the arm drafts with: 0 for Max-Gram; the target itself where nothing drafts, as for
        autoregressive."""
        strategy = self.strategy(name)
        if isinstance(strategy, Drafts) and self.arm(name).kind != "autoregressive":
            return strategy.parameters
        return strategy.parameters or self.target.parameters

    def strategy(self, name: str) -> Strategy:
        """The arm's moving parts, made when first asked for. Raises LoadFailed."""
        recipe = self.arm(name)
        if name not in self._strategies:
            self._strategies[name] = self.drafters.load(
                self, name, lambda: recipe.build(self.target, self.tokenizer)
            )
        return self._strategies[name]

    def made(self, arm: str) -> Strategy | None:
        """The arm's moving parts, None where they are not loaded."""
        return self._strategies.get(arm)

    def declare(self, arms: Mapping[str, ArmRecipe]) -> None:
        """Have these arms from now on, whose files are read anew. No answer may be under way."""
        for name in [*self._strategies]:
            self.forget(name)
        self._prompts.holds([])  # it was read without the states that a new arm may ask for
        self.arms, self._arms_fingerprints = dict(arms), LoadedFingerprints()
        for recipe in arms.values():
            recipe.prepare(self.target)

    def forget(self, arm: str) -> None:
        """Let the arm's moving parts go; they are made again on request."""
        self._strategies.pop(arm, None)

    @property
    def asleep(self) -> Mapping[str, ArmDown]:
        """Why each arm's models could not be loaded and when they will be tried again."""
        return self.drafters.asleep

    # -- decoding -----------------------------------------------------------------------------

    def encode_chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Prompt ids [S] of a chat, the generation prompt included.

        tools: the functions that the model may call, as in OpenAI's API, for a chat template that
            has them.

        Where the tokenizer has no chat template, the messages' texts are joined by newlines, with
        one warning on standard error. A single message to an encoder-decoder needs no template and
        gives no warning.
        """
        unwarned = not self._warned and getattr(self.tokenizer, "chat_template", "") is None
        if unwarned and (len(messages) > 1 or not isinstance(self.target, EncoderDecoder)):
            self._warned = True
            print(
                f"{self.target_name} has no chat template: messages are joined by newlines; give "
                "one with --chat-template",
                file=sys.stderr,
            )
        return targets.encode_chat(self.tokenizer, messages, tools)

    def encode_text(self, text: str) -> list[int]:
        """Prompt ids [S] of a text that is no chat, with the tokens that the tokenizer puts around
        every text. A special token that the text spells is text."""
        return plain_text.encode(self.tokenizer, text)

    def check(self, prompt_ids: Sequence[int], request: Request) -> None:
        """Raises DraftpickError where the prompt is empty, holds an id that is no token's or does
        not fit with its answer, GrammarError where the answer's grammar cannot be compiled."""
        if not prompt_ids:
            raise DraftpickError("the prompt is empty; give it at least one token")
        for end in (min(prompt_ids), max(prompt_ids)):
            if not 0 <= end < self.target.vocab_size:
                raise DraftpickError(
                    f"the prompt holds the id {end}, but tokens are 0 to "
                    f"{self.target.vocab_size - 1}; encode it with the target's own tokenizer"
                )
        if self._needs(prompt_ids, request) > self.context:
            raise ContextTooLong(len(prompt_ids), request.max_new_tokens, self.context)
        if request.grammar is not None:
            self._grammars.begin(request.grammar)

    def why_too_long(self, name: str, prompt_ids: Sequence[int], request: Request) -> str | None:
        """Why the arm is of no use for so long a prompt, as far as is known before its models are
        loaded; None where it is of use."""
        recipe, made = self.arm(name), self.made(name)
        most = made.drafts_to if isinstance(made, SpeculativeDecoding) else None
        if most is None and isinstance(recipe, DraftingRecipe):
            most = recipe.context_to
        if most is not None and len(prompt_ids) > most:
            return f"it drafts up to {most} tokens, and the prompt has {len(prompt_ids)}"
        if made is not None and self._needs(prompt_ids, request) > made.context:
            words = f"the {len(prompt_ids)} of the prompt with {request.max_new_tokens} new ones"
            return f"it follows at most {made.context} tokens, fewer than {words}"
        return None

    def _needs(self, prompt_ids: Sequence[int], request: Request) -> int:
        """Positions of the longest sequence; an encoder's is the prompt, apart from the answer."""
        answer = len(decoder_prefix(self.target, list(prompt_ids))) + request.max_new_tokens
        return max(len(prompt_ids), answer)

    def prefill(
        self,
        prompt_ids: list[int],
        reuse: bool = False,
        user: str | None = "",
        watch: Callable[[int, int], None] | None = None,
    ) -> Prefilled:
        """Let the target read a prompt; the result may be passed to the next `decode`.

        reuse: do not read again what the target holds, or `prefixes` keep, of the same beginning,
            as at the next turn of a conversation (a ReusingBackend); and keep the prompt likewise.
            A reused position was computed in another pass, so that logits may differ from a fresh
            reading's in the last bits.
        user: for whom, as of Request; what was read for another is read again.
        watch: called before each part that is read, with how many of how many tokens are; what it
            raises ends the reading, of this prompt's drafters too.
        """
        self._scope = replace(self._scope, user=user, reuse=reuse, watch=watch)
        loaded_s = self.drafters.load_s
        with memory.explained(self.target.device, f"reading a prompt of {len(prompt_ids)} tokens"):
            prefilled = self._prompts.read(prompt_ids, self._scope)
        if not bool(prefilled.embedding.sum().isfinite()):  # one host read a prompt
            self._clean()
            raise NotANumber("the model's embedding of the prompt and its scores")
        waited_s = self.drafters.load_s - loaded_s  # for another answer's arm
        if not waited_s:
            return prefilled
        read_s = max(0.0, prefilled.prefill_s - waited_s)
        return replace(prefilled, prefill_s=read_s, load_s=waited_s)

    def _clean(self) -> None:
        """Let no other answer read what is no number."""
        self._prompts.forget()
        if isinstance(self.target, CleanedBackend):
            self.target.clean()

    def cached_prefix(self, prompt_ids: Sequence[int], user: str | None = "") -> int:
        """How many of a prompt's first tokens the target holds already, for this user; never the
        last one, which is always read."""
        return self._prompts.held(prompt_ids, user)

    def decode(
        self,
        arm: str,
        prompt_ids: list[int],
        request: Request,
        prefilled: Prefilled | None = None,
        streamer: Any = None,
    ) -> DecodeResult:
        """Answer one prompt through one arm.

        prefilled: what `prefill` returned for these very ids after `check`, the target still
            holding them (an answer that came after them is rolled back); None for neither yet.
        streamer: as transformers' (`put`, `end`), or a RoundStreamer.
        """
        if prefilled is None:
            self.check(prompt_ids, request)
        self.arm(arm).check(request)
        request = seeded(request)
        with self.drafters.at_work(arm):
            result = self._decode(arm, prompt_ids, request, prefilled, streamer)
        return result if request.sampling.greedy else replace(result, seed=request.seed)

    def _decode(
        self,
        arm: str,
        prompt_ids: list[int],
        request: Request,
        prefilled: Prefilled | None,
        streamer: Any,
    ) -> DecodeResult:
        loaded_s = self.drafters.load_s
        strategy = self.strategy(arm)
        own_s = self.drafters.load_s - loaded_s
        too_long = self.why_too_long(arm, prompt_ids, request)
        if too_long is not None and not isinstance(strategy, SpeculativeDecoding):
            raise DraftpickError(
                f"arm {arm!r} cannot answer this: {too_long}; choose another arm or lower "
                "--max-new-tokens"
            )
        if prefilled is None:
            prefilled = self.prefill(prompt_ids)
        else:
            self.target.truncate(len(decoder_prefix(self.target, prompt_ids)))
        self._prompts.holds([])  # until the answer is whole
        self._scope = scope = replace(self._scope, user=request.user)
        before_s = self.drafters.load_s
        chance = Generator(self.target.device, request.seed)
        stopper = Stopper(request, self.eos_ids, self.tokenizer)
        if streamer is not None:
            streamer.put(torch.tensor([prompt_ids]))  # transformers' skip or show the prompt

        by_rounds = streamer if isinstance(streamer, RoundStreamer) else None

        def emit(ids: list[int], accepted: int = 0, drafted: int = 0) -> None:
            if by_rounds is not None:
                by_rounds.put_round(ids, accepted, drafted)
            elif streamer is not None:
                streamer.put(torch.tensor(ids))

        grammar = None if request.grammar is None else self._grammars.begin(request.grammar)
        job = Job(
            self.target, prompt_ids, prefilled, request, stopper, chance, emit, grammar, scope
        )
        with memory.explained(
            self.target.device, f"answering a prompt of {len(prompt_ids)} tokens"
        ):
            try:
                result = strategy.decode(job)
            except NotANumber:
                self._clean()
                self.forget(arm)  # its drafter's cache likewise
                raise
        others_s = self.drafters.load_s - before_s
        if scope.answers is not None and scope.user is not None:
            scope.answers.add(scope.user, prompt_ids, result.ids)
        if streamer is not None:
            streamer.end()
        if isinstance(
            strategy, SpeculativeDecoding
        ):  # others may leave what is not the target's own
            self._prompts.keep([*prompt_ids, *result.ids[:-1]], scope)
        result = without(result, prefilled.load_s + own_s, others_s)
        return replace(result, cached_tokens=prefilled.cached) if prefilled.cached else result


def without(result: DecodeResult, own_s: float, others_s: float) -> DecodeResult:
    """The result, with the time that models took to load.

    own_s: before the answer began.
    others_s: while it was written, for other answers that the same thread writes; this is taken out
        of its passes, which had to wait.
    """
    if not own_s + others_s:
        return result
    verify_s = max(0.0, result.verify_s - others_s)
    left_s = others_s - (result.verify_s - verify_s)
    draft_s = max(0.0, result.draft_s - left_s)
    left_s -= result.draft_s - draft_s
    other_s = max(0.0, result.other_s - left_s)
    return replace(
        result, verify_s=verify_s, draft_s=draft_s, other_s=other_s, load_s=own_s + others_s
    )
