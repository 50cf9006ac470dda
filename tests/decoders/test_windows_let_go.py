"""Layers with windows give back the memory of what lies far behind them; nothing reads it after."""

from pathlib import Path

import pytest
import torch
from decoder_toys import CPU
from family_toys import VOCAB, family_model
from torch import Tensor

from decoders.backends import native
from decoders.backends.native import LlamaBackend
from decoders.earlier.prefixes import PrefixStore
from decoders.protocols import RequestScope
from decoders.requests.reading import PromptReader

LONG, PART = 1500, 256
TEXT = torch.randint(1, VOCAB, (LONG,), generator=torch.Generator().manual_seed(3)).tolist()
NEXT = torch.tensor([3, 1, 4, 1, 5])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gemma")
    family_model("Gemma 3", max_position_embeddings=2048).save_pretrained(made)
    return made


@pytest.fixture
def target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaBackend:
    monkeypatch.setattr(native, "ROLLBACK", 64)
    return LlamaBackend.load(folder, CPU, torch.float32)


@pytest.fixture(scope="module")
def whole(folder: Path) -> tuple[Tensor, Tensor]:
    """Logits after the text and after a few more tokens, where nothing is let go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "ROLLBACK", 4096)
        backend = LlamaBackend.load(folder, CPU, torch.float32)
        read = backend.prefill(TEXT, part=PART).logits, backend.extend(NEXT)
        assert backend.reach == 0
        return read


@pytest.mark.parametrize("eight_bits", [False, True])
def test_answers_stay_the_same(
    target: LlamaBackend, whole: tuple[Tensor, Tensor], eight_bits: bool
) -> None:
    if eight_bits:
        target.keep_eight_bits()
    logits, more = target.prefill(TEXT, part=PART).logits, target.extend(NEXT)
    if not eight_bits:
        assert torch.equal(logits, whole[0]) and torch.equal(more, whole[1])
    for number in range(target.layers):
        kept = target._cache.all[number, 0, :, : target.reach // 2].count_nonzero()
        assert bool(kept) is (number not in target._windowed), number
    assert 0 < target.reach <= LONG - 64 and target._windowed
    target.truncate(target.reach)
    again = target.prefill(TEXT, cached=target.reach).logits
    assert torch.allclose(again, logits, atol=1e-4)  # in another pass
    with pytest.raises(ValueError, match="let go"):
        target.truncate(target.reach - 1)
    target.truncate(0)
    assert target.reach == 0
    assert torch.equal(target.prefill(TEXT, part=PART).logits, logits)


def test_a_prompt_that_parts_early_is_read_anew(target: LlamaBackend, folder: Path) -> None:
    reader, scope = PromptReader(target), RequestScope(reuse=True)
    reader.read(TEXT, scope)
    other = [*TEXT[:200], *reversed(TEXT)]
    read = reader.read(other, scope)
    assert read.cached == 0
    fresh = LlamaBackend.load(folder, CPU, torch.float32).prefill(other)
    assert torch.equal(read.logits, fresh.logits)
    assert reader.read([*other, *NEXT.tolist()], scope).cached == len(other)


def test_what_is_kept_of_prompts_is_whole(target: LlamaBackend, folder: Path) -> None:
    store = PrefixStore(1 << 30)
    reader, scope = PromptReader(target), RequestScope(prefixes=store, reuse=True)
    logits = reader.read(TEXT, scope).logits
    assert store.tokens == LONG and target.reach
    target.extend(NEXT)
    reader.keep([*TEXT, *NEXT.tolist()], scope)
    assert store.tokens == LONG + len(NEXT)
    other = target.sharing_weights(2048)
    taken = PromptReader(other).read(TEXT, scope)
    assert taken.cached == LONG - 1 and torch.allclose(taken.logits, logits, atol=1e-4)
    bare = PrefixStore(1 << 30)
    reader.keep(TEXT, RequestScope(prefixes=bare, reuse=True))
    assert bare.tokens == 0  # its beginning was let go


def test_the_prompt_s_end_is_reached_from_any_answer(
    target: LlamaBackend, whole: tuple[Tensor, Tensor]
) -> None:
    """An arm after another, a beam after another: each begins where the prompt ends."""
    target.prefill(TEXT, part=PART)
    for token in TEXT[:400]:
        target.extend(torch.tensor([token]))
    target.truncate(LONG)
    assert torch.equal(target.extend(NEXT), whole[1])
