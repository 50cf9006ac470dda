"""What is fetched of a hub's model: whatever transformers reads of it, and no other weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects
from tiny_models import target_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from collect.align.learners import copy_texts
from collect.embedders import load_sentence
from decoders.models import targets

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
CHAT = [{"role": "user", "content": "ab"}]
JUNK = (
    "README.md", "flax_model.msgpack", "model.onnx", "tf_model.h5", "rust_model.ot", "a.gguf",
    "pytorch_model.bin", "training_args.bin",
)  # fmt: skip


class Hub:
    """Serves a folder as the hub client does, by the patterns that it is given."""

    def __init__(self, repository: Path, here: Path) -> None:
        self.repository, self.here = repository, here

    def __call__(
        self, name: str, allow_patterns: Any = None, ignore_patterns: Any = None, **_: Any
    ) -> str:
        files = [
            path.relative_to(self.repository).as_posix()
            for path in self.repository.rglob("*")
            if path.is_file()
        ]
        for file in filter_repo_objects(
            files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            place = self.here / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.repository / file, place)
        return str(self.here)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "repository", tmp_path / "here")
    made.here.mkdir()
    monkeypatch.setattr("huggingface_hub.snapshot_download", made)
    return made


def byte_level(folder: Path) -> None:
    """GPT-2's: a vocabulary and merges, and no tokenizer.json."""
    vocab = {c: i for i, c in enumerate([*"abcdefgh <>:usr", "ab", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))


def word_pieces(folder: Path) -> None:
    """BERT's: a list of words alone."""
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "ab", "##b", "user"])
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


def whole(folder: Path) -> None:
    """One file, and special tokens in another."""
    plain = Tokenizer(models.BPE({c: i for i, c in enumerate("abuser<>")}, []))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.Whitespace(), decoders.ByteLevel()
    plain.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a"})
    )
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "a"}))


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", [byte_level, word_pieces, whole])
@pytest.mark.parametrize("template", ["none", "file", "config", "several"])
def test_a_hub_models_tokenizer_is_the_folders(kind: Any, template: str, hub: Hub) -> None:
    """Ids, chats and text of what was fetched are those of the whole repository."""
    folder = target_model(hub.repository)
    for old in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / old).unlink(missing_ok=True)
    kind(folder)
    if template == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    elif template == "config":
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    elif template == "several":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    for junk in JUNK:
        (folder / junk).write_bytes(b"junk")
    fetched = targets.resolve("some/model")
    assert fetched == hub.here and not {p.name for p in fetched.iterdir()} & set(JUNK)
    ours, theirs = (targets.load_tokenizer(each) for each in (fetched, folder))
    assert ours.get_vocab() == theirs.get_vocab() and len(ours.get_vocab()) > 5
    assert ours.chat_template == theirs.chat_template
    assert (ours.chat_template is None) == (template == "none")
    ids = targets.encode_chat(theirs, CHAT)
    assert targets.encode_chat(ours, CHAT) == ids and ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize(
    "name",
    [
        "chat_template.jinja", "additional_chat_templates/rag.jinja", "merges.txt", "vocab.txt",
        "vocab.json", "spiece.model", "sentencepiece.bpe.model", "source.spm", "qwen.tiktoken",
        "tekken.json", "bpe.codes", "vocab.bpe", "tokenizer", "added_tokens.json",
        "generation_config.json", "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    ],
)  # fmt: skip
def test_each_file_that_transformers_may_read(name: str, hub: Hub, tmp_path: Path) -> None:
    place = hub.repository / name
    place.parent.mkdir(parents=True)
    place.write_text("here")
    (hub.repository / "model.safetensors").write_text("")
    assert (targets.resolve("some/model") / name).read_text() == "here"
    if "safetensors" not in name:  # and what `align` writes next to a copy of the model
        (tmp_path / "copy").mkdir()
        copy_texts(hub.repository, tmp_path / "copy")
        assert (tmp_path / "copy" / name).exists() or name == "tokenizer"


def test_an_embedder_likewise(hub: Hub) -> None:
    hub.repository.mkdir()
    for name in ("modules.json", "config.json", "merges.txt", "vocab.json", "x.spm", "README.md"):
        (hub.repository / name).write_text("{}")
    (hub.repository / "model.safetensors").write_text("")
    (hub.repository / "onnx").mkdir()
    (hub.repository / "onnx" / "model.json").write_text("{}")
    folder = load_sentence("some/embedder").folder
    held = {path.name for path in folder.iterdir()}
    assert held == {p.name for p in hub.repository.iterdir()} - {"README.md", "onnx"}
