"""One alignment run from start to shipped folder: examples, learner, training, card."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from collect.queries import read_queries
from decoders.backends.config import config_of
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend
from decoders.backends.weights.packed import dense
from decoders.common.text import from_json
from decoders.methods.max_gram.next_token_table import NextTokenTable
from decoders.models import targets
from decoders.models.loaders import is_encoder_decoder
from decoders.sampling.draft_vocab import DraftVocab

from . import training, training_stage
from .calibration import Example, batches, build
from .card import facts, finish
from .config import ON_STATES, AlignConfig, check
from .eagle3 import HeadHeldOut, train_head, usual_features
from .eagle3_module import HeadSizes
from .held_out import HeldOut
from .learners import (
    SMALL_T5,
    Answers,
    DraftLearner,
    ExitLearner,
    Learner,
    LensLearner,
    Seq2SeqDraftLearner,
    evaluate,
    tensors,
)
from .recipe import Recipe, RecurrentRecipe
from .resuming import content_of
from .teacher import Teacher
from .tokens import Text, pack
from .weights import training_dtype

K = TypeVar("K", bound=Hashable)
SEEN = 3  # a pair enters the table once its most frequent successor was seen so often
DOUBT = 2  # added to every total, so that what was seen once is not held certain
SMALL: dict[str, Any] = {
    "hidden_size": 320,
    "intermediate_size": 864,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


Target = LlamaBackend | HFSeq2SeqBackend


def align(
    config: AlignConfig, recipe: Recipe, report: Callable[[dict[str, float]], None]
) -> dict[str, float]:
    """Train, write the model and its card into `config.out`; held-out acceptance per task."""
    check(config)
    config.out.mkdir(parents=True, exist_ok=True)
    folder = targets.resolve(config.target)
    tokenizer = targets.load_tokenizer(folder, config.chat_template)
    device = targets.device_of(config.device)
    torch.manual_seed(recipe.seed)
    target = _load(config, folder, device)
    eos = targets.eos_ids(folder)
    examples = build(
        config.outputs,
        read_queries(list(config.queries)),
        lambda query: query.prompt(partial(targets.encode_chat, tokenizer)),
        lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        eos[0] if eos else None,
        tasks=config.tasks,
        max_prompt=config.max_prompt,
        max_answer=config.max_answer,
    )
    if config.kind == "bigram":
        return _bigram(config, examples, target.vocab_size)
    if config.kind in ON_STATES:
        return _on_states(config, recipe, folder, target, eos, examples, report)
    learner = _learner(config, recipe, folder, target, examples, eos)
    learner.module.to(device)
    started = time.time()
    texts = pack(Text(e.ids, e.start, "") for e in examples if not e.held_out)
    own = config.kind, config.vocab_size, config.exit_layer, config.blocks
    content = content_of(texts, learner.vocab, config.start, *own)
    training.train(Answers(learner, examples, recipe), recipe, config.out, report, content)
    held_out = [e for e in examples if e.held_out]
    acceptance = evaluate(learner, held_out, device)
    parameters = sum(p.numel() for p in learner.module.parameters())
    _write(config, recipe, parameters, learner.save, examples, acceptance, started)
    return acceptance


def _load(config: AlignConfig, folder: Path, device: torch.device) -> Target:
    if not is_encoder_decoder(folder):
        longest = config.max_prompt + config.max_answer
        native = targets.load_backend(
            folder, device, training_dtype(device), "native", context=longest
        )
        assert isinstance(native, LlamaBackend)
        return native
    return HFSeq2SeqBackend.load(folder, device, torch.float32)


def _learner(
    config: AlignConfig,
    recipe: Recipe,
    folder: Path,
    target: Target,
    examples: Sequence[Example],
    eos: tuple[int, ...],
) -> Learner:
    sizes, start = None, config.start  # start: a drafter's folder
    if start is not None and start.is_file():
        sizes, start = from_json(start.read_text(encoding="utf-8")), None
    if config.kind == "drafter" and isinstance(target, HFSeq2SeqBackend):
        one = Seq2SeqDraftLearner(folder, sizes or SMALL_T5, start)
        one.vocab.to(target.device)
        return one
    kept = [e for e in examples if not e.held_out]
    vocab = None if start is None else DraftVocab.load(start)
    if vocab is None:
        answers = (e.ids[e.start :] for e in kept)
        vocab = DraftVocab.commonest(answers, config.vocab_size, target.vocab_size, eos)
    vocab.to(target.device)
    if config.kind == "exit":
        return _exit_learner(config, recipe, target, kept, vocab)
    assert isinstance(target, LlamaBackend)
    if start is not None:
        return DraftLearner({}, vocab, start)
    learner = DraftLearner(sizes or SMALL, vocab)
    learner.start_embeddings(dense(target.weights.embedding))
    return learner


def _exit_learner(
    config: AlignConfig,
    recipe: Recipe,
    target: Target,
    kept: Sequence[Example],
    vocab: DraftVocab,
) -> Learner:
    first = [tensors(batch, target.device) for batch in batches(kept, 8192, recipe.seed)[:4]]
    if isinstance(target, LlamaBackend):
        learner = ExitLearner(target, AdapterConfig(config.exit_layer, config.blocks), vocab)
        learner.start_lens([ids for ids, _ in first])
        return learner
    lens_learner = LensLearner(target, config.exit_layer, vocab)
    lens_learner.start_lens(first)
    return lens_learner


def _bigram(config: AlignConfig, examples: Sequence[Example], vocab: int) -> dict[str, float]:
    started = time.time()
    table = successors([e for e in examples if not e.held_out])
    shares = bigram_acceptance([e for e in examples if e.held_out], table)
    _write(config, None, 0, lambda to: table.save(to, vocab), examples, shares, started)
    return shares


def _on_states(
    config: AlignConfig,
    recipe: Recipe,
    folder: Path,
    target: Target,
    eos: tuple[int, ...],
    examples: Sequence[Example],
    report: Callable[[dict[str, float]], None],
) -> dict[str, float]:
    """Its figures are in its card; how often its first token is right is its acceptance."""
    assert isinstance(target, LlamaBackend)
    kept, apart = (
        pack(Text(e.ids, e.start, e.task) for e in examples if e.held_out == side)
        for side in (False, True)
    )
    goal = training_stage.Target(config.target, Teacher(target), eos)
    own = RecurrentRecipe(**asdict(recipe))
    judged = HeldOut if config.kind == "recurrent" else HeadHeldOut
    held_out = judged(goal.teacher, apart, most=recipe.batch_tokens)
    if isinstance(held_out, HeadHeldOut):
        found = config_of(folder)
        heads = HeadSizes(target.shape, found["intermediate_size"], usual_features(target.layers))
        vocab = training_stage.commonest(kept, config.vocab_size, target.vocab_size, eos)
        parts = (config.target, found, goal.teacher, vocab, heads, kept, held_out)
        return train_head(config.out, *parts, own, "draftpick", report).acceptance
    sizes = (config.width, config.blocks, config.vocab_size)
    one = training_stage.TrainingStage(config.out, config.start, (), *sizes)
    texts = [e.text for e in examples if not e.held_out]
    point = training_stage.run_stage(
        one, goal, kept, held_out, own, "draftpick", report, texts=texts
    )
    return point.acceptance


def _write(
    config: AlignConfig,
    recipe: Recipe | None,
    parameters: int,
    save: Callable[[Path], None],
    examples: Sequence[Example],
    acceptance: dict[str, float],
    started: float,
) -> None:
    """The finished model next to the checkpoint: files first, `card.json` with their hashes
    last."""
    trained = [e for e in examples if not e.held_out]
    card: dict[str, Any] = {
        "kind": config.kind,
        "target": config.target,
        "parameters": parameters,
        "acceptance": {k: round(v, 4) for k, v in acceptance.items()},
        "tasks": sorted({e.task for e in trained}),
        "queries": len(trained),
        "held_out_queries": len(examples) - len(trained),
        "answer_tokens": sum(len(e.ids) - e.start for e in trained),
        **facts("draftpick", started, config.start, recipe, (e.text for e in trained)),
    }
    finish(config.out / "model", config.out.name, card, save)


def successors(examples: Sequence[Example]) -> NextTokenTable:
    """Max-Gram's fallback: what most often follows each token, or each two, in the answers."""
    one: dict[int, Counter[int]] = defaultdict(Counter)
    two: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for example in examples:
        answer = example.ids[example.start :].tolist()
        for at in range(1, len(answer)):
            one[answer[at - 1]][answer[at]] += 1
            if at > 1:
                two[answer[at - 2], answer[at - 1]][answer[at]] += 1
    return NextTokenTable(_commonest(one, 1), _commonest(two, SEEN))


def _commonest(counts: Mapping[K, Counter[int]], least: int) -> dict[K, tuple[int, float]]:
    table = {}
    for key, after in counts.items():
        token, times = after.most_common(1)[0]
        if times >= least:
            table[key] = token, times / (after.total() + DOUBT)
    return table


def bigram_acceptance(examples: Sequence[Example], table: NextTokenTable) -> dict[str, float]:
    """Share of held-out answer tokens that the table predicts, per task and `overall`."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for example in examples:
        answer = example.ids[example.start :].tolist()
        hits = 0
        for at in range(1, len(answer)):
            found = table.next(answer[:at][-2:])
            hits += found is not None and found[0] == answer[at]
        for name in (example.task, "overall"):
            right[name] += hits
            total[name] += max(0, len(answer) - 1)
    return {name: right[name] / max(1, total[name]) for name in sorted(total)}
