"""Helpers of the decoder tests: tiny models, small drafters, chance that walks every outcome."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quantize
from replayed import traced
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LogitsProcessorList,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from decoders.backends.cpp_kernels import load_kernel
from decoders.backends.cuda.recorded import Run
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.llama.model import Weights
from decoders.backends.native import LlamaBackend
from decoders.backends.toy import ToyBackend
from decoders.backends.weights.file_blocks import FileBlocks, FileRows, to_file_blocks
from decoders.backends.weights.packed import Matrix, Rounding, dense
from decoders.costs.pass_costs import PassCosts
from decoders.lengths import FixedLength
from decoders.loop import SpeculativeDecoding
from decoders.methods.early_exit.drafter import EarlyExitDrafter
from decoders.methods.early_exit.head import Adapter, AdapterHead
from decoders.methods.hybrid.copying import Copying
from decoders.methods.hybrid.drafter import HybridDrafter
from decoders.methods.max_gram.copy_chances import CopyChances
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.max_gram.next_token_table import NextTokenTable
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.plain.drafter import NullDrafter
from decoders.methods.recurrent.cell import CellConfig, RecurrentCell
from decoders.methods.recurrent.drafter import RecurrentDrafter
from decoders.methods.recurrent.head import RecurrentHead
from decoders.methods.suffix.drafter import SuffixDrafter
from decoders.methods.suffix.earlier import EarlierAnswers
from decoders.methods.suffix.votes import Wanted
from decoders.methods.tree.drafter import TreeDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.protocols import (
    Backend,
    Drafter,
    DraftLength,
    DraftRequest,
    Job,
    StateBackend,
    Strategy,
    Verifier,
)
from decoders.records import DecodeResult, Request, Sampling, StepStats
from decoders.requests.context import Seat
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.randomness import Generator, RandomSource
from decoders.sampling.stopping import Stopper
from decoders.sampling.tree_shape import TreeShape
from decoders.verify import Lossless
from decoders.zoo.catalogue import cache_dir

CPU = torch.device("cpu")

# -- tiny transformers models ---------------------------------------------------------------------

CONFIGS: dict[str, type] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
}
SIZES: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FITS_INT4: dict[str, Any] = {"intermediate_size": 64, "head_dim": 16}
FITS_ROWS: dict[str, Any] = FITS_INT4 | {"head_dim": 32}
WINDOWS: dict[str, Any] = {  # of a Qwen2, behind one full layer
    "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1
}  # fmt: skip


def save_tiny(folder: Path, kind: str, seed: int, config: dict[str, Any]) -> None:
    """A random model, sharp enough that no two logits are nearly equal."""
    extra = {"sliding_window": None} if kind == "mistral" else {}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**{**SIZES, **extra, **config}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)  # transformers starts them at zero
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def by_rows(folder: Path, rounding: Rounding | None) -> LlamaBackend:
    """Of a model that FITS_ROWS: by the kernels. The test is skipped where there are none."""
    if not load_kernel(cache_dir() / "compiled", print):
        pytest.skip("this processor has no kernels, or there is no compiler")
    if rounding == "file":
        plain = LlamaBackend.load(folder, CPU, torch.bfloat16)
        backend = LlamaBackend(plain.shape, in_file_blocks(plain.weights))
    else:
        backend = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding, blocked=True)
    backend.compile_layers()
    return backend


def in_file_blocks(weights: Weights) -> Weights:
    """As if they had come from a GGUF file: of several kinds, the head tied to the embedding."""

    def made(matrix: Matrix, *kinds: str) -> FileBlocks:
        numbers = dense(matrix).float().numpy()
        parts = []
        for kind, rows in zip(kinds, np.array_split(numbers, len(kinds)), strict=True):
            number = GGMLQuantizationType[kind]
            content = torch.from_numpy(quantize(rows, number))
            parts.append(FileRows(content, int(number), numbers.shape[1]))
        blocks = to_file_blocks(parts)
        assert blocks is not None
        return blocks

    layers = [
        replace(
            w,
            qkv=made(w.qkv, "Q5_0", "Q8_0"),
            out=made(w.out, "Q5_1"),
            gate_up=made(w.gate_up, "Q8_0", "Q5_0"),
            down=made(w.down, "Q8_0"),
        )
        for w in weights.layers
    ]
    embedding = made(weights.embedding, "Q8_0")
    return Weights(embedding, layers, weights.norm, embedding, tied=True)


class Recorder:
    """`traced`, counted."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, run: Run) -> Run:
        self.recorded += 1
        return traced(run)


def recorded(folder: Path, dtype: torch.dtype = torch.float64) -> tuple[LlamaBackend, Recorder]:
    """A model whose passes are recorded so."""
    backend, recorder = native(folder, dtype), Recorder()
    backend.record_passes(recorder)
    return backend, recorder


def native(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaBackend:
    return LlamaBackend.load(folder, CPU, dtype)


def generate(model: PreTrainedModel, prompt: list[int], most: int, **options: Any) -> list[int]:
    """transformers' own greedy answer, the prompt left out."""
    return answer_of(model, prompt, most, options)[len(prompt) :]


_ANSWERS: dict[str, tuple[list[int], Any]] = {}


def answer_of(
    model: PreTrainedModel, prompt: list[int], most: int, options: dict[str, Any]
) -> list[int]:
    """The greedy ids of `generate`, a decoder's prompt or start token included. Tests of several
    arms ask for the same ones: of one file's model they are written once."""
    weights = Path(model.name_or_path, "model.safetensors")
    of = [str(weights), weights.stat().st_mtime_ns, model.num_parameters(), str(model.dtype)]
    key = json.dumps([*of, prompt, most, options], default=id)
    if key not in _ANSWERS:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
        _ANSWERS[key] = out[0].tolist(), options  # kept, so that no other tokenizer has its id
    return list(_ANSWERS[key][0])


def random_exit(
    target: LlamaBackend, layer: int, seed: int, vocab: DraftVocab | None = None, noise: float = 0.3
) -> EarlyExitDrafter:
    """The target's next layer as adapter, its lens pushed off the identity."""
    adapter = Adapter.begin(target, AdapterConfig(layer)).to(target.dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    push = torch.randn(adapter.lens.shape, generator=generator, dtype=torch.float64)
    adapter.lens += noise * push.to(target.dtype)
    return EarlyExitDrafter(target, AdapterHead(target, adapter, vocab))


def random_cell(
    size: int, seed: int, dtype: torch.dtype = torch.float64, width: int = 32, blocks: int = 2
) -> RecurrentCell:
    """Untrained, and loud enough that tokens matter."""
    torch.manual_seed(seed)
    cell = RecurrentCell(CellConfig(size, width, blocks)).to(dtype).requires_grad_(False)
    for down in cell.down:
        down.mul_(20.0)
    for norm in (cell.embed_norm, cell.norm, *cell.norms):
        norm.uniform_(0.5, 1.5)
    return cell


def save_cell(folder: Path, cell: RecurrentCell, vocab: DraftVocab) -> None:
    """As a recipe names it."""
    cell.save(folder)
    vocab.save(folder)


def arms_with_a_cell(folder: Path) -> list[dict[str, Any]]:
    """Fields of an arm of every kind, for a target of 32 numbers a state and 128 tokens; the cell
    is saved in the folder."""
    save_cell(folder, random_cell(32, 1), DraftVocab([*range(1, 15)], 128))
    cell = {"kind": "recurrent", "drafter": str(folder)}
    return [
        {"kind": "autoregressive", "name": "autoregressive"},
        {"kind": "max_gram", "name": "copy", "by_cost": True},
        {"kind": "hybrid", "name": "both", "model": cell},
        {"name": "cell", "length": {"k": 3}, **cell},
    ]


def recurrent(target: StateBackend, seed: int, vocab: DraftVocab | None = None) -> RecurrentDrafter:
    """vocab: None for all of the target's."""
    every = DraftVocab(list(range(target.vocab_size)), target.vocab_size)
    cell = random_cell(target.state_size, seed, target.dtype)
    return RecurrentDrafter(target, RecurrentHead(target, cell, vocab or every))


# -- running the shipped loop ---------------------------------------------------------------------


def speculative(
    drafter: Drafter, length: DraftLength | int = 2, verifier: Verifier | None = None
) -> SpeculativeDecoding:
    rule = FixedLength(length) if isinstance(length, int) else length
    return SpeculativeDecoding("test", drafter, verifier or Lossless(), rule)


def greedy(k: int) -> DraftRequest:
    """k likeliest tokens."""
    return DraftRequest(k, Sampling(), Generator(CPU, 0))


def autoregressive() -> SpeculativeDecoding:
    return speculative(NullDrafter(CPU), 0)


def run(
    target: Backend,
    strategy: Strategy,
    prompt: list[int],
    request: Request,
    *,
    eos_ids: tuple[int, ...] = (),
    tokenizer: Any = None,
    chance: RandomSource | None = None,
    emit: Callable[[list[int]], None] = lambda ids: None,
) -> DecodeResult:
    prefilled = target.prefill(prompt)
    stopper = Stopper(request, eos_ids, tokenizer)
    chance = chance or Generator(CPU, request.seed)
    return strategy.decode(
        Job(target, prompt, prefilled, request, stopper, chance, lambda ids, *told: emit(ids))
    )


class Leaves:
    """A streamer that ends the answer in its third round."""

    rounds = 0

    def put(self, value: Tensor) -> None:
        pass

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        self.rounds += 1
        if self.rounds == 3:
            raise InterruptedError

    def end(self) -> None:
        raise AssertionError("the answer is not whole")


class TickingClock:
    """time.perf_counter's part: moves one tick whenever it is read, and as far as it is told."""

    tick = 2.0**-20  # sums are exact

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowToy(ToyBackend):
    """Each pass takes a second by the clock."""

    def __init__(self, table: Tensor, clock: TickingClock) -> None:
        super().__init__(table)
        self.clock = clock

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        self.clock.sleep(1.0)
        return super().extend(ids, parents)


class ListedLengths:
    """Lengths from a list, over and over: a rule that sits out rounds and comes back."""

    min_confidence = 0.0

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)
        self.reset()

    def next(self) -> int:
        self._round += 1
        return self._lengths[(self._round - 1) % len(self._lengths)]

    def observe(self, stats: StepStats) -> None:
        pass

    def reset(self) -> None:
        self._round = 0


def neural(vocab: int, seed: int, sharpness: float = 1.0) -> NeuralDrafter:
    return NeuralDrafter(ToyBackend.random(vocab, seed, sharpness))


def reduced(kept: list[int], target_vocab: int, seed: int) -> NeuralDrafter:
    """A drafter over a part of the target's vocabulary."""
    vocab = DraftVocab(kept, target_vocab)
    return NeuralDrafter(ToyBackend.random(vocab.size, seed, 1.0), vocab)


def grown(model: Any, vocab: DraftVocab | None, shape: TreeShape, slots: int) -> Drafter:
    """A model's tree, of whichever sort."""
    if shape.every:
        return TreeDrafter(model, vocab, shape.branch, slots)
    return WidenedDrafter(NeuralDrafter(model, vocab), shape.branch, slots)


def max_gram(table: list[int] | None = None, **options: Any) -> MaxGramDrafter:
    """table: what follows each token, -1 for nothing."""
    if table is None:
        return MaxGramDrafter(CPU, None, **options)
    after = {token: (next_, 0.5) for token, next_ in enumerate(table) if next_ >= 0}
    return MaxGramDrafter(CPU, NextTokenTable(after), **options)


def hybrid(
    model: Drafter,
    draft_cost: float = 0.06,
    passes: PassCosts | None = None,
    copying: Copying | None = None,
    in_turn: bool = False,
) -> HybridDrafter:
    """Copies after single tokens too; a pass costs the same at every width unless told."""
    passes = passes or PassCosts((1.0,) * 32)
    if copying is None:
        copying = MaxGramDrafter(CPU, shortest=1, passes=passes, chances=CopyChances())
    return HybridDrafter(copying, model, passes, draft_cost, in_turn)


def suffix(*earlier: tuple[list[int], list[int]], width: int = 1) -> SuffixDrafter:
    """earlier: prompts and answers that were kept; a pass costs the same at every width."""
    answers = EarlierAnswers(1000)
    for prompt, answer in earlier:
        answers.add("", prompt, answer)
    passes, wanted = PassCosts((1.0,) * 32), Wanted(1, width=width, nodes=6)
    return SuffixDrafter(CPU, Seat(answers), passes, wanted)


# -- every outcome of chance ----------------------------------------------------------------------


@dataclass
class _Choice:
    weights: list[float]
    taken: int = 0


class Walk:
    """Chance that follows a script and remembers the roads not taken.

    Both questions become a choice among weighted outcomes; impossible outcomes are left out.
    """

    def __init__(self, script: list[_Choice]) -> None:
        self._script, self._at = script, 0
        self.weight = 1.0

    def _choose(self, weights: list[float]) -> int:
        if self._at == len(self._script):
            self._script.append(_Choice(weights, next(i for i, w in enumerate(weights) if w > 0)))
        choice = self._script[self._at]
        self._at += 1
        self.weight *= choice.weights[choice.taken]
        return choice.taken

    def draw(self, probs: Tensor) -> Tensor:
        return torch.tensor(self._choose((probs / probs.sum()).tolist()))

    def follow(self, probs: Tensor, ids: Tensor) -> Tensor:
        drawn: list[int] = []
        for row, wanted in zip(probs, [*ids.tolist(), None], strict=True):
            drawn.append(int(self.draw(row)))
            if drawn[-1] != wanted:
                break
        return torch.tensor(drawn + [-1] * (len(probs) - len(drawn)))

    def use(self, count: int) -> None:
        pass

    def accept(self, probability: Tensor) -> Tensor:
        """One choice a token, the later ones too: nothing may look past a rejected one."""
        accepted = [self._choose([1 - p, p]) == 1 for p in probability.clamp(max=1).tolist()]
        return torch.tensor(accepted, dtype=torch.bool)


def every_outcome(once: Callable[[RandomSource], Any]) -> Iterator[tuple[float, Any]]:
    """(weight, result) of `once` under every way that its chance may fall; depth first."""
    script: list[_Choice] = []
    while True:
        walk = Walk(script)
        result = once(walk)
        yield walk.weight, result
        while script:  # the deepest choice that has another possible outcome takes it
            last = script[-1]
            after = [i for i in range(last.taken + 1, len(last.weights)) if last.weights[i] > 0]
            if after:
                last.taken = after[0]
                break
            script.pop()
        if not script:
            return


Distribution = dict[tuple[int, ...], float]


def loop_distribution(
    target: Backend,
    strategy: Strategy,
    prompt: list[int],
    request: Request,
    eos: tuple[int, ...] = (),
) -> Distribution:
    """The exact distribution of a shipped strategy's answers, the loop's or another's."""
    distribution: Distribution = defaultdict(float)
    outcomes = every_outcome(
        lambda chance: run(target, strategy, prompt, request, eos_ids=eos, chance=chance).ids
    )
    for weight, ids in outcomes:
        distribution[tuple(ids)] += weight
    return distribution


def transformers_filters(sampling: Sampling) -> LogitsProcessorList:
    """What `generate` would build, in its order."""
    made = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        made.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    made.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        made.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        made.append(TopPLogitsWarper(sampling.top_p))
    return made


def reference_distribution(
    next_logits: Callable[[list[int]], Tensor],
    prompt: list[int],
    request: Request,
    eos: tuple[int, ...] = (),
) -> Distribution:
    """The target's own distribution, from its next-token logits and transformers' filters alone."""
    filters = transformers_filters(request.sampling)
    distribution: Distribution = {}

    def go_on(made: tuple[int, ...], weight: float) -> None:
        if len(made) == request.max_new_tokens or (made and made[-1] in eos):
            distribution[made] = weight
            return
        context = [*prompt, *made]
        scores = filters(torch.tensor([context]), next_logits(context).unsqueeze(0))
        for token, p in enumerate(scores.softmax(-1)[0].tolist()):
            if p > 0:
                go_on((*made, token), weight * p)

    go_on((), 1.0)
    return distribution


def distance(one: Distribution, other: Distribution) -> float:
    """The greatest difference in any answer's probability."""
    return max(abs(one.get(ids, 0.0) - other.get(ids, 0.0)) for ids in {*one, *other})
