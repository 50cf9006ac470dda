"""A test bed for encoder-decoders: a T5 target and two small drafters, trained from nothing.

    python benchmarks/train_t5_family.py --data FOLDER --out t5 --minutes 24
    python benchmarks/train_t5_family.py --data FOLDER --out t5 --minutes 4 --size large

The second is for a GPU: a target of 16 million parameters, with dropout and held-out pairs by which
the best weights are kept, as minutes are many epochs there. All three models are written in
bfloat16, together less than 40 MB.

--data holds `en-de.{train,test}.jsonl` and `sum.{train,test}.jsonl`, an object a line with `input`
(task prefix included) and `target`. In turn: a tokenizer, the target on both tasks, the target's
greedy answers to the training inputs, a drafter for each task trained on those answers, held-out
BLEU and ROUGE of all three, and how far each arm's drafts are accepted. Each stage leaves a file in
--out and is skipped where that exists; training goes on from its last checkpoint. Where rouge-score
is missing the scores are left out, with a word: the same command, run where it is installed, adds
them from the answers that were kept.

For other commands it leaves query files there: `en-de.jsonl` and `sum.jsonl`, the test inputs, and
`train.jsonl` with `answers.jsonl`, what the target wrote for them (`draftpick align --outputs`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from muon import Muon
from recorded_steps import Recorded, Step
from t5_scores import acceptance, can_score, quality, write_card
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import UnigramTrainer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from collect.align import checkpoint
from decoders.common.provenance import hardware, versions
from decoders.models import targets

TASKS = ("en-de", "sum")
CALLED = {"en-de": "translation", "sum": "summarization"}  # in query files
PAD, EOS, UNK = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2, as in T5
WHAT = {
    "target": "T5 for English-German translation and summaries.",
    "en-de": "Drafts translations: trained on what the target wrote, the references unseen.",
    "sum": "Drafts summaries: trained on what the target wrote, the references unseen.",
}
FOLLOWED = 30  # test inputs a task that every arm answers
ANSWERED = 12_000  # training inputs a task that the target answers for its drafter
CHECKPOINT, TRAINING, SAVE_EVERY_S = "training.pt", "training.json", 90.0
SAID_EVERY = 100  # steps; the loss is read no oftener, as the device is waited for then
LOOKED_AT = 25  # times that the held-out pairs are, in one training
HIDDEN = -1e9  # added to the scores of positions that are not attended to
WIDTHS = (24, 40, 64, 96, 192, 320)  # that recorded batches are padded to, inputs and answers
ANSWERED_TOKENS = 400_000  # of inputs, padding included, answered at once on a GPU

Pair = tuple[list[int], list[int]]  # input ids, answer ids, both closed by end-of-sequence


@dataclass(frozen=True)
class Shape:
    """One model's size; `minutes` of training, the learning rate being at its end by then."""

    d_model: int
    d_ff: int
    heads: int
    layers: int
    decoder_layers: int
    minutes: float
    lr: float = 1e-2
    matrix_lr: float = 2e-2
    dropout: float = 0.0


@dataclass(frozen=True)
class Size:
    """A family. shares: of the minutes, the target's and each drafter's. longest: input and answer
    tokens kept. batch_tokens: of inputs and answers, padding included. held: pairs a task that are
    not trained on, by whose loss the best weights are kept; 0 keeps the last ones. smoothing: of
    labels."""

    target: tuple[int, int, int, int, int]  # d_model, d_ff, heads, layers, decoder layers
    drafter: tuple[int, int, int, int, int]
    shares: tuple[float, float]
    longest: dict[str, tuple[int, int]]
    batch_tokens: int
    lr: float = 1e-2
    matrix_lr: float = 2e-2
    dropout: float = 0.0
    held: int = 0
    smoothing: float = 0.0

    def shapes(self, minutes: float) -> dict[str, Shape]:
        rates = {"lr": self.lr, "matrix_lr": self.matrix_lr}
        target = Shape(*self.target, self.shares[0] * minutes, **rates, dropout=self.dropout)
        drafter = Shape(*self.drafter, self.shares[1] * minutes, **rates)
        return {"target": target, **dict.fromkeys(TASKS, drafter)}


SIZES = {
    "small": Size(
        target=(192, 768, 4, 3, 3),
        drafter=(96, 384, 3, 1, 1),
        shares=(0.75, 0.125),
        longest={"en-de": (96, 64), "sum": (96, 48)},
        batch_tokens=3072,
    ),
    "large": Size(
        target=(384, 1536, 6, 4, 3),
        drafter=(128, 512, 2, 1, 1),
        shares=(0.7, 0.15),
        longest={"en-de": (96, 64), "sum": (320, 64)},
        batch_tokens=8192,
        lr=5e-3,
        matrix_lr=1e-2,
        dropout=0.3,
        held=300,
        smoothing=0.1,
    ),
}


# -- data and tokenizer ---------------------------------------------------------------------------


def read(data: Path, task: str, split: str) -> list[dict[str, str]]:
    lines = (data / f"{task}.{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def make_tokenizer(data: Path, out: Path, vocab: int) -> PreTrainedTokenizerFast:
    """A unigram model as SentencePiece builds it: spaces are part of the pieces."""
    folder = out / "tokenizer"
    if not folder.is_dir():
        raw = Tokenizer(models.Unigram())
        raw.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        )
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        raw.decoder = decoders.Metaspace()
        rows = [row for task in TASKS for row in read(data, task, "train")]
        raw.train_from_iterator(
            (row[side] for row in rows for side in ("input", "target")),
            UnigramTrainer(
                vocab_size=vocab,
                special_tokens=[PAD, EOS, UNK],
                unk_token=UNK,
                show_progress=False,
            ),
        )
        raw.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", special_tokens=[(EOS, raw.token_to_id(EOS))]
        )
        made = PreTrainedTokenizerFast(
            tokenizer_object=raw, pad_token=PAD, eos_token=EOS, unk_token=UNK
        )
        made.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode(tokenizer: Any, rows: Sequence[dict[str, str]], most: tuple[int, int]) -> list[Pair]:
    """most: input and answer tokens kept."""
    inputs = tokenizer([row["input"] for row in rows])["input_ids"]
    answers = tokenizer([row["target"] for row in rows])["input_ids"]
    return [(_cut(i, most[0]), _cut(a, most[1])) for i, a in zip(inputs, answers, strict=True)]


def _cut(ids: list[int], most: int) -> list[int]:
    return ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]


def batches(pairs: Sequence[Pair], seed: int, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(input ids [B, S], labels [B, T]), pairs of like length together, in random order."""
    chance = random.Random(seed)
    keyed = sorted(pairs, key=lambda pair: (len(pair[0]) + len(pair[1]), chance.random()))
    made: list[list[Pair]] = [[]]
    for pair in keyed:
        if (len(made[-1]) + 1) * (len(pair[0]) + len(pair[1])) > tokens:
            made.append([])
        made[-1].append(pair)
    chance.shuffle(made)
    for batch in made:
        yield padded([i for i, _ in batch], 0), padded([a for _, a in batch], -100)


def shaped(pairs: Sequence[Pair], seed: int, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same in few shapes: S and T of WIDTHS and, for each two of them, one B. The last batch of
    a shape is filled up with rows without labels."""
    chance = random.Random(seed)
    alike: dict[tuple[int, int], list[Pair]] = {}
    for pair in pairs:
        widths = [next(w for w in WIDTHS if w >= len(side)) for side in pair]
        alike.setdefault((widths[0], widths[1]), []).append(pair)
    made = []
    for (wide, long), group in sorted(alike.items()):
        chance.shuffle(group)
        rows = max(1, tokens // (wide + long))
        made += [(wide, long, rows, group[at : at + rows]) for at in range(0, len(group), rows)]
    chance.shuffle(made)
    for wide, long, rows, batch in made:
        batch = batch + [([1], [])] * (rows - len(batch))
        yield padded([i for i, _ in batch], 0, wide), padded([a for _, a in batch], -100, long)


def padded(rows: Sequence[list[int]], fill: int, width: int = 0) -> Tensor:
    """[B, width] int64; the longest row's width by default."""
    width = width or max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


# -- training -------------------------------------------------------------------------------------


def new_model(shape: Shape, vocab: int, seed: int) -> T5ForConditionalGeneration:
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=vocab,
        d_model=shape.d_model,
        d_kv=shape.d_model // shape.heads,
        d_ff=shape.d_ff,
        num_heads=shape.heads,
        num_layers=shape.layers,
        num_decoder_layers=shape.decoder_layers,
        dropout_rate=shape.dropout,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        attn_implementation="eager",  # the masks of `loss_of` are added to its scores
    )
    return T5ForConditionalGeneration(config)


def optimizers(model: nn.Module, shape: Shape) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, position biases and norms."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inner = parameter.ndim == 2 and "shared" not in name and "bias" not in name
        (matrices if inner else rest).append(parameter)
    device = rest[0].device
    rates = [torch.tensor(rate, device=device) for rate in (shape.matrix_lr, shape.lr)]
    on_gpu = device.type == "cuda"
    kind = {"betas": (0.9, 0.98), "weight_decay": 0.0, "fused": on_gpu, "capturable": on_gpu}
    return [Muon(matrices, rates[0]), torch.optim.AdamW(rest, rates[1], **kind)]


def train(
    name: str, model: Any, pairs: Sequence[Pair], size: Size, shape: Shape, out: Path, seed: int
) -> None:
    """Until the shape's minutes are spent; the state is kept in `out/name.training.pt`.
    The weights that do best on the held-out pairs stay, in bfloat16."""
    device = model.device
    chance = random.Random(seed)
    held = set(chance.sample(range(len(pairs)), min(size.held, len(pairs) // 10)))
    shown = [pair for at, pair in enumerate(pairs) if at not in held]
    unseen = [pairs[at] for at in sorted(held)]
    rules = optimizers(model, shape)
    peaks = [float(rule.param_groups[0]["lr"]) for rule in rules]
    path = out / f"{name}.{CHECKPOINT}"
    step, epoch, spent, looks = 0, 0, 0.0, 0
    best: dict[str, Any] = {"loss": float("inf"), "model": None}
    state = checkpoint.kept(path, device)
    if state is not None:
        if state["shape"] != asdict(shape):
            sys.exit(f"{path} is of another shape or budget; delete it or name another --out")
        model.load_state_dict(state["model"])
        for rule, saved in zip(rules, state["rules"], strict=True):
            rule.load_state_dict(saved)
        step, epoch, spent = state["step"], state["epoch"], state["spent"]
        looks, best = state["looks"], state["best"]
    model.train()
    summed, smooth = torch.zeros((), device=device), 0.0

    def plain_step(ids: Tensor, labels: Tensor) -> None:
        loss = loss_of(model, ids.to(device), labels.to(device), size.smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for rule in rules:
            rule.step()
            rule.zero_grad(set_to_none=True)
        summed.add_(loss.detach())

    recorded = device.type == "cuda"
    one_step: Step = Recorded(plain_step, device) if recorded else plain_step
    in_order = shaped if recorded else batches
    saved_at = last = time.monotonic()
    while True:
        for ids, labels in in_order(shown, seed + epoch, size.batch_tokens):
            now = time.monotonic()
            spent, last = spent + now - last, now
            progress = spent / (60 * shape.minutes)
            if unseen and progress * LOOKED_AT >= looks + 1:
                looks = int(progress * LOOKED_AT)
                found = held_out_loss(model, unseen, size.batch_tokens)
                if found < best["loss"]:
                    kept = {k: v.detach().clone() for k, v in model.state_dict().items()}
                    best = {"loss": found, "model": kept, "epoch": epoch}
                say(f"{name}: {progress:.0%}, epoch {epoch}, held-out loss {found:.3f}")
            if progress >= 1:
                if best["model"] is not None:
                    model.load_state_dict(best["model"])
                model.to(torch.bfloat16).save_pretrained(out / name)
                facts = {"steps": step, "epochs": epoch, "pairs": len(shown)} | asdict(shape)
                if best["model"] is not None:
                    facts |= {"held_out_loss": best["loss"], "best_epoch": best["epoch"]}
                facts |= {"hardware": hardware(), "versions": versions()}
                (out / name / TRAINING).write_text(json.dumps(facts), encoding="utf-8")
                path.unlink(missing_ok=True)
                if step % SAID_EVERY:
                    smooth = float(summed) / (step % SAID_EVERY)
                say(f"{name}: {step} steps, {epoch} whole epochs, loss {smooth:.3f}")
                return
            rate = min(1.0, progress / 0.03) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
            for rule, peak in zip(rules, peaks, strict=True):
                for group in rule.param_groups:
                    group["lr"].fill_(peak * rate)
            one_step(ids, labels)
            step += 1
            if step % SAID_EVERY == 0:
                smooth = float(summed) / SAID_EVERY
                summed.zero_()
                say(f"{name}: step {step}, epoch {epoch}, {progress:.1%}, loss {smooth:.3f}")
            if now - saved_at > SAVE_EVERY_S:
                saved_at = now
                state = {
                    "shape": asdict(shape),
                    "model": model.state_dict(),
                    "rules": [rule.state_dict() for rule in rules],
                    "step": step,
                    "epoch": epoch,
                    "spent": spent,
                    "looks": looks,
                    "best": best,
                }
                checkpoint.keep(path, state)
        epoch += 1


def loss_of(model: Any, ids: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of the answers' tokens. ids: [B, S], padded with 0. labels: [B, T], padded
    with -100.

    The masks are made here, as transformers' own making of them looks at their contents, which
    cannot be recorded.
    """
    shifted = F.pad(labels[:, :-1], (1, 0)).clamp(min=0)
    wide = labels.shape[1]
    ahead = torch.full((wide, wide), HIDDEN, device=ids.device).triu(1)
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, cache_enabled=False):
        logits = model(
            input_ids=ids,
            attention_mask=((ids == 0) * HIDDEN)[:, None, None],
            decoder_input_ids=shifted,
            decoder_attention_mask=ahead[None, None],
            use_cache=False,
        ).logits
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, label_smoothing=smoothing
    )


@torch.no_grad()
def held_out_loss(model: Any, pairs: Sequence[Pair], tokens: int) -> float:
    """Mean over the pairs' batches, each by its pairs."""
    model.eval()
    summed = torch.zeros((), device=model.device)
    for ids, labels in batches(pairs, 0, tokens):
        summed += loss_of(model, ids.to(model.device), labels.to(model.device)) * len(ids)
    model.train()
    return float(summed) / len(pairs)


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


# -- answers --------------------------------------------------------------------------------------


@torch.inference_mode()
def answers(model: Any, inputs: Sequence[list[int]], most: int) -> list[list[int]]:
    """Greedy answers, end-of-sequence included where one was written."""
    made: list[list[int]] = [[] for _ in inputs]
    order = sorted(range(len(inputs)), key=lambda at: len(inputs[at]))
    longest = max(map(len, inputs), default=1)
    at_once = 128 if model.device.type == "cpu" else max(128, ANSWERED_TOKENS // longest)
    for start in range(0, len(order), at_once):
        rows = order[start : start + at_once]
        ids = padded([inputs[at] for at in rows], 0).to(model.device)
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            out = model.generate(
                ids, attention_mask=ids != 0, do_sample=False, num_beams=1, max_new_tokens=most
            )
        for at, row in zip(rows, out[:, 1:].tolist(), strict=True):
            made[at] = row[: row.index(1) + 1] if 1 in row else row
        if start // at_once % 20 == 0:
            say(f"answered {start + len(rows)} of {len(inputs)}")
    return made


def kept_answers(path: Path, model: Any, inputs: Sequence[list[int]], most: int) -> list[list[int]]:
    """As `answers`, kept in a file and read from there where it exists."""
    if not path.is_file():
        made = answers(model, inputs, most)
        path.with_suffix(".tmp").write_text(json.dumps(made), encoding="utf-8")
        os.replace(path.with_suffix(".tmp"), path)
    return list(json.loads(path.read_text(encoding="utf-8")))


def written_by_target(
    model: Any, task: str, pairs: Sequence[Pair], out: Path, most: int
) -> list[Pair]:
    """The training inputs with the target's own answers, cut off as it would be."""
    inputs_only = [inputs for inputs, _ in pairs]
    kept = kept_answers(out / f"{task}.answers.json", model, inputs_only, most)
    return [(inputs, answer) for (inputs, _), answer in zip(pairs, kept, strict=True)]


def write_queries(data: Path, out: Path, answered_of_each: int) -> None:
    """Test and training inputs as query files, and the target's answers to the latter."""
    train, answered = [], []
    for task in TASKS:
        write_lines(out / f"{task}.jsonl", queries(data, task, "test"))
        asked = queries(data, task, "train")[:answered_of_each]
        kept = json.loads((out / f"{task}.answers.json").read_text(encoding="utf-8"))
        train += asked
        answered += [
            {"id": query["id"], "ids": ids, "ended": ids[-1:] == [1]}
            for query, ids in zip(asked, kept, strict=True)
        ]
    write_lines(out / "train.jsonl", train)
    write_lines(out / "answers.jsonl", answered)


def queries(data: Path, task: str, split: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{task}-{split}-{number}",
            "task": CALLED[task],
            "turns": [row["input"]],
            "reference": row["target"],
        }
        for number, row in enumerate(read(data, task, split))
    ]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.with_suffix(".tmp").write_text(text, encoding="utf-8")
    os.replace(path.with_suffix(".tmp"), path)


def test_answers(
    trained: dict[str, Any], inputs: dict[str, list[list[int]]], size: Size, out: Path
) -> dict[str, dict[str, list[list[int]]]]:
    """model -> task -> what it answers to the test inputs of its tasks, kept in files."""
    found: dict[str, dict[str, list[list[int]]]] = {name: {} for name in trained}
    for task in TASKS:
        for name in ("target", task):
            path, most = out / f"{name}.{task}.test.json", size.longest[task][1]
            found[name][task] = kept_answers(path, trained[name], inputs[task], most)
    return found


def scores(
    answered: dict[str, dict[str, list[list[int]]]],
    inputs: dict[str, list[list[int]]],
    tokenizer: Any,
    data: Path,
    out: Path,
) -> dict[str, Any]:
    """Held-out quality of each model on its tasks, and the arms' figures, kept in results.json."""
    path = out / "results.json"
    if path.is_file():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    worth: dict[str, dict[str, Any]] = {name: {} for name in answered}
    for task in TASKS:
        references = [row["target"] for row in read(data, task, "test")]
        for name in ("target", task):
            words = tokenizer.batch_decode(answered[name][task], skip_special_tokens=True)
            worth[name][task] = quality(task, words, references)
            say(f"{name} on {task}: {worth[name][task]}")
    sources = {task: inputs[task][:FOLLOWED] for task in TASKS}
    found = {"quality": worth, "arms": acceptance(out, TASKS, sources)}
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of TASK.train.jsonl and TASK.test.jsonl"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for models, answers and query files"
    )
    parser.add_argument("--minutes", type=float, default=48, help="of training, three models")
    parser.add_argument("--size", choices=SIZES, default="small", help="large is for a GPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--vocab", type=int, default=6000, help="subwords of the tokenizer")
    parser.add_argument("--answered", type=int, default=ANSWERED, help="inputs a task, at most")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    size, device = SIZES[given.size], targets.device_of(given.device)

    tokenizer = make_tokenizer(given.data, given.out, given.vocab)
    rows = {task: read(given.data, task, "train") for task in TASKS}
    pairs = {task: encode(tokenizer, rows[task], size.longest[task]) for task in TASKS}
    trained: dict[str, Any] = {}
    for name, shape in size.shapes(given.minutes).items():
        if not (given.out / name / TRAINING).is_file():
            lessons = (
                [pair for task in TASKS for pair in pairs[task]]
                if name == "target"
                else written_by_target(
                    trained["target"],
                    name,
                    pairs[name][: given.answered],
                    given.out,
                    size.longest[name][1],
                )
            )
            model = new_model(shape, len(tokenizer), given.seed).to(device)
            train(name, model, lessons, size, shape, given.out, given.seed)
        loaded = T5ForConditionalGeneration.from_pretrained(given.out / name, dtype=torch.float32)
        trained[name] = loaded.to(device).eval()
        tokenizer.save_pretrained(given.out / name)

    write_queries(given.data, given.out, given.answered)
    inputs = {
        task: [i for i, _ in encode(tokenizer, read(given.data, task, "test"), size.longest[task])]
        for task in TASKS
    }
    answered = test_answers(trained, inputs, size, given.out)
    if not can_score() and not (given.out / "results.json").is_file():
        say("no scores without rouge-score: the answers are kept for later")
        return
    found = scores(answered, inputs, tokenizer, given.data, given.out)
    for name in trained:
        read_by = TASKS if name == "target" else (name,)
        most = None if name == "target" else given.answered
        read_rows = [row for task in read_by for row in rows[task][:most]]
        write_card(
            given.out / name,
            {
                "kind": "target" if name == "target" else "drafter",
                "what": WHAT[name],
                "parameters": trained[name].num_parameters(),
                "training": json.loads((given.out / name / TRAINING).read_text(encoding="utf-8")),
                "seed": given.seed,
                "data": Counter(row.get("source", "unnamed") for row in read_rows),
                "quality": found["quality"][name],
                "arms": found["arms"],
            },
        )
    for task, arms in found["arms"].items():
        for arm, figures in arms.items():
            print(f"{task:6} {arm:15} " + "  ".join(f"{k} {v}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
