"""A tiny target with a real tokenizer, queries, and answers that follow a simple rule."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from collect.align.teacher import Teacher
from collect.align.tokens import Text, Tokens, pack
from decoders.backends.native import LlamaBackend
from decoders.models import targets
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.tokenizers import save_llama, word_tokenizer

WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random two-layer Llama over forty words, `</s>` ending an answer."""
    words = word_tokenizer(
        ["<unk>", "<s>", "</s>", *WORDS], "<unk>",
        unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("target")
    return save_llama(folder, words, num_hidden_layers=3, max_position_embeddings=256)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(queries, outputs): each answer counts up from its prompt's last word, then ends."""
    folder = tmp_path_factory.mktemp("written")
    queries, outputs = [], []
    for i in range(160):
        task = ("qa", "math")[i % 2]
        first = (7 * i) % 20
        asked = f"{WORDS[20 + i // 20]} {WORDS[first]}"  # no two alike
        queries.append({"id": f"q{i}", "task": task, "turns": [asked]})
        answer = " ".join(WORDS[first + 1 : first + 13])
        outputs.append({"id": f"q{i}", "task": task, "output": answer, "ended": True})
    for name, rows in (("queries.jsonl", queries), ("outputs.jsonl", outputs)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "queries.jsonl", folder / "outputs.jsonl"


@pytest.fixture(scope="session")
def model(target: Path) -> Any:
    """The toy target by transformers: another's word on what it says. Sharper than at random, so
    that something can be learnt of it."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return model.eval()


@pytest.fixture(scope="session")
def folder(model: Any, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharp")
    model.save_pretrained(folder)
    for path in target.glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def teacher(folder: Path) -> Teacher:
    backend = targets.load_backend(folder, torch.device("cpu"), torch.float32, "native", context=16)
    assert isinstance(backend, LlamaBackend)
    return Teacher(backend)


@pytest.fixture
def vocab() -> DraftVocab:
    return DraftVocab(list(range(2, 36)), 43)


@pytest.fixture(scope="session")
def tokens(model: Any) -> Tokens:
    """The target's own greedy answers to random prompts, and some that it drew."""
    chance = torch.Generator().manual_seed(0)
    texts = []
    for number in range(90):
        prompt = torch.randint(3, 43, (1, 2 + number % 4), generator=chance)
        drawn = number % 3 == 2
        torch.manual_seed(number)
        ids = model.generate(
            prompt,
            max_new_tokens=9 + number % 5,
            do_sample=drawn,
            eos_token_id=None,
            pad_token_id=0,
        )
        task = ("qa", "math")[number % 2]
        texts.append(Text(ids[0].numpy(), prompt.shape[1], task, float(drawn)))
    return pack(texts)
