"""Helpers of the decoder tests: tiny models, small drafters, chance that walks every outcome."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quantize
from replayed import traced
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from decoders.backends.cpp_kernels import load_kernel
from decoders.backends.cuda.recorded import Run
from decoders.backends.exit_adapter import Adapter, AdapterHead
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.llama.model import Weights
from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.cell import CellConfig, RecurrentCell
from decoders.backends.recurrent.head import RecurrentHead
from decoders.backends.weights.file_blocks import FileBlocks, FileRows, to_file_blocks
from decoders.backends.weights.packed import Matrix, Rounding, dense
from decoders.costs.pass_costs import PassCosts
from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.votes import Wanted
from decoders.methods.early_exit.drafter import EarlyExitDrafter
from decoders.methods.hybrid.drafter import Copying, HybridDrafter
from decoders.methods.max_gram.copying import CopyChances
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.max_gram.next_token_table import NextTokenTable
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.recurrent.drafter import RecurrentDrafter
from decoders.methods.suffix.drafter import SuffixDrafter
from decoders.methods.tree.drafter import TreeDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.protocols import Drafter, DraftRequest, RequestScope, StateBackend
from decoders.records import DecodeResult, Proposal, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.randomness import Generator
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import Streamed, ToyBackend
from decoders.zoo.catalogue import cache_dir

CPU = torch.device("cpu")
Tiny = Callable[..., Path]  # `tiny` of conftest.py

# -- tiny transformers models ---------------------------------------------------------------------

TYPES = {"gemma3": "gemma3_text", "qwen3moe": "qwen3_moe"}  # in configs; others as here
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
    extra: dict[str, Any] = {"sliding_window": None} if kind == "mistral" else {}
    if kind in ("mixtral", "gpt_oss"):
        extra = {"num_local_experts": 4, "num_experts_per_tok": 2}
    if kind in ("qwen3moe", "olmoe"):
        extra = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    torch.manual_seed(seed)
    made = AutoConfig.for_model(TYPES.get(kind, kind), **{**SIZES, **extra, **config})
    model = AutoModelForCausalLM.from_config(made)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)  # transformers starts them at zero
            elif "norm" in name or name.endswith("sinks"):
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)


@cache
def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same one for the same folder, which nobody may change."""
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


def edited(folder: Path, **fields: Any) -> Path:
    """The folder, its config changed."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


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


def recurrent(target: StateBackend, seed: int, vocab: DraftVocab | None = None) -> RecurrentDrafter:
    """vocab: None for all of the target's."""
    every = DraftVocab(list(range(target.vocab_size)), target.vocab_size)
    cell = random_cell(target.state_size, seed, target.dtype)
    return RecurrentDrafter(target, RecurrentHead(target, cell, vocab or every))


# -- running the shipped loop ---------------------------------------------------------------------


def greedy(k: int) -> DraftRequest:
    """k likeliest tokens."""
    return DraftRequest(k, Sampling(), Generator(CPU, 0))


class Leaves(Streamed):
    """Ends the answer in its third round."""

    rounds = 0

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        self.rounds += 1
        if self.rounds == 3:
            raise InterruptedError


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
    drafter = Remembering(CPU, passes, wanted)
    drafter.kept = answers
    drafter.enter(RequestScope())
    return drafter


class Remembering(SuffixDrafter):
    """Drafts from the same earlier answers, whatever the request brings."""

    kept: EarlierAnswers

    def enter(self, scope: RequestScope) -> None:
        super().enter(replace(scope, answers=self.kept))


def balanced(result: DecodeResult, most: int) -> None:
    """What holds for every answer."""
    assert sum(result.accepted_per_position) == result.accepted <= result.drafted
    assert result.accepted_per_position == sorted(result.accepted_per_position, reverse=True)
    assert result.target_calls == 1 + result.rounds
    cut = 1 + result.accepted + result.rounds - len(result.ids)
    assert cut in ((0, 1) if result.finish_reason in ("eos", "stop") else (0,))
    assert 1 <= len(result.ids) <= most
    parts = result.prefill_s + result.draft_s + result.verify_s + result.other_s
    assert result.wall_s == pytest.approx(parts)


class Watched(ToyBackend):
    """Notes how many tokens each pass reads."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(table)
        self.widths: list[int] = []

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        self.widths.append(len(ids))
        return super().extend(ids, parents)


def watched(
    drafter: Drafter,
    before: Callable[[list[int]], None] = lambda context: None,
    after: Callable[[], None] = lambda: None,
) -> list[tuple[list[int], int, Proposal]]:
    """Fills with what is proposed after which context, and how many tokens were asked for.

    before: is told of each context first. after: is called once it was drafted for.
    """
    seen: list[tuple[list[int], int, Proposal]] = []
    propose = drafter.propose

    def noting(context: list[int], asked: DraftRequest) -> Proposal:
        before(context)
        made = propose(context, asked)
        seen.append((list(context), asked.k, made))
        after()
        return made

    drafter.propose = noting  # type: ignore[method-assign]
    return seen


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch's own, meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def some(*size: int, seed: int = 0) -> Tensor:
    """Random numbers in bfloat16."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def some_tokens(n: int, seed: int = 0, vocab: int = 16) -> Tensor:
    return torch.randint(0, vocab, (n,), generator=torch.Generator().manual_seed(seed))


def near(one: Tensor, other: Tensor) -> None:
    """Logits of tiny models apart by bfloat16's rounding; a wrong weight or position would move
    each by about 1."""
    apart = (one.float() - other.float()).abs()
    assert apart.mean() < 0.1 and apart.max() < 1
