"""EAGLE-3 heads beside the package `speculators`, whose form they have."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from vllm_server import BIN

from decoders.backends.eagle3.head import Eagle3Head
from decoders.backends.eagle3.model import Eagle3Backend
from decoders.methods.neural.drafter import Eagle3Drafter
from decoders.protocols import DraftRequest
from decoders.records import Sampling
from decoders.sampling.randomness import Generator

pytestmark = pytest.mark.engines


class Stored:
    """A target of six layers that has read some tokens, whose states are a file's."""

    layers, vocab_size, state_size, context = 6, 40, 32, 64
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, features: Tensor) -> None:
        self._features = dict(zip((1, 2, 4), features.chunk(3, -1), strict=True))
        self.length = len(features)

    def open_exit(self, exit_layer: int) -> None:
        assert exit_layer in self._features

    def exit_hidden(self, exit_layer: int, start: int, end: int) -> Tensor:
        return self._features[exit_layer][start:end]

    def embed(self, ids: Tensor) -> Tensor:
        raise AssertionError("the head has an embedding of its own")


def test_drafts_are_the_packages_own(tmp_path: Path) -> None:
    """Ten random heads, five tokens each."""
    script = Path(__file__).with_name("with_speculators.py")
    subprocess.run([BIN / "python", script, tmp_path], check=True, timeout=600)
    seen = 0
    for folder in sorted(tmp_path.iterdir()):
        given = load_file(folder / "given.safetensors")
        (folder / "given.safetensors").unlink()
        target, ids = Stored(given["features"]), given["ids"].tolist()
        head = Eagle3Head.load(folder, target, target.layers)  # type: ignore[arg-type]
        model = Eagle3Backend(target, head)  # type: ignore[arg-type]
        drafter = Eagle3Drafter(model, head.vocab)
        drafter.reset(ids[:-1])
        asked = DraftRequest(5, Sampling(), Generator(torch.device("cpu"), 0))
        drafts = drafter.propose(ids, asked).ids.tolist()
        assert drafts == json.loads((folder / "drafts.json").read_text()), folder.name
        seen += 1
    assert seen == 10
