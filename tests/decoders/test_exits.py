"""What every backend promises of its exits: decoders and encoder-decoders, beside transformers."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_toys import PROMPT, close, held, ids
from decoder_toys import Tiny, native, transformers_model
from t5_toys import seq2seq, seq2seq_model
from torch import Tensor

from decoders.backends.exit_adapter import Adapter
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.protocols import ExitBackend

TOKENS, PARENTS = [9, 6, 2, 11, 7], [-1, 0, 1, -1, 0]  # the first three follow each other


@dataclass(frozen=True)
class Model:
    """Three layers on disk."""

    kind: str
    folder: Path

    def load(self, *layers: int) -> Any:
        """A backend that has read the prompt, exits opened after these layers."""
        load: Any = native if self.kind == "llama" else seq2seq
        made = load(self.folder, torch.float64)
        for layer in layers:
            made.open_exit(layer)
        made.prefill(PROMPT)
        return made

    @torch.no_grad()
    def states(self, layer: int, *answer: int) -> Tensor:
        """transformers' own, after a layer, wherever the backend holds a position."""
        shown = {"output_hidden_states": True}
        if self.kind == "llama":
            whole = ids(*PROMPT, *answer)[None]
            states = transformers_model(self.folder, torch.float64)(whole, **shown).hidden_states
        else:
            parts = {"input_ids": ids(*PROMPT)[None], "decoder_input_ids": ids(0, *answer)[None]}
            model = seq2seq_model(self.folder, torch.float64)
            states = model(**parts, **shown).decoder_hidden_states
        after: Tensor = states[layer][0]
        return after


@pytest.fixture(scope="module", params=["llama", "t5", "mt5", "umt5"])
def model(request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny) -> Model:
    kind = request.param
    folder = tiny() if kind == "llama" else tiny_t5(kind, seed=4, num_decoder_layers=3)
    return Model(kind, folder)


same = partial(close, near=1e-10)
NEAR = 1e-5  # transformers' decoders turn positions in float32


@pytest.mark.parametrize("layer", [1, 2])
def test_running_ahead_changes_nothing(model: Model, layer: int) -> None:
    plain, target = model.load(), model.load(layer)
    assert isinstance(target, ExitBackend)
    first, logits = plain.prefill(PROMPT).logits, plain.extend(ids(9, 2, 6, 1))
    for ahead in range(4):
        same(target.prefill(PROMPT).logits, first)
        for token in (9, 2, 6)[:ahead]:
            target.lower(layer, ids(token))
        start = held(target)
        assert (target.ahead, target.length) == (start + ahead, start)
        same(target.extend(ids(9, 2, 6)), logits[:3])
        assert target.ahead == target.length == start + 3
        same(target.extend(ids(1)), logits[3:])


def test_what_ran_ahead_is_rolled_back(model: Model) -> None:
    plain, target = model.load(), model.load(1)
    start = held(target)
    target.lower(1, ids(15, 15))
    target.truncate(start)
    assert target.ahead == target.length == start
    same(target.extend(ids(3, 4)), plain.extend(ids(3, 4)))
    target.lower(1, ids(9, 9, 9))  # more than the pass then reads
    same(target.extend(ids(9)), plain.extend(ids(9)))
    assert target.ahead == target.length == start + 3
    target.lower(1, ids(7))
    same(target.prefill(PROMPT).logits, plain.prefill(PROMPT).logits)
    assert target.ahead == start


def test_states_at_the_exit_are_transformers_own(model: Model) -> None:
    target, states = model.load(2), model.states(2, 9, 2)
    close(target.lower(2, ids(9, 2)), states[-2:], NEAR)
    close(target.exit_hidden(2, 0, len(states)), states, NEAR)
    if model.kind == "llama":
        several = target.lower_batch(torch.tensor([PROMPT, PROMPT]), 2)
        close(several[1], states[:-2], NEAR)


def test_an_exit_opened_again_and_one_that_cannot_be(model: Model) -> None:
    target = model.load(1)
    before = target.exit_hidden(1, 0, held(target)).clone()
    target.open_exit(1)  # a drafter may load after the prompt was read
    assert torch.equal(target.exit_hidden(1, 0, held(target)), before)
    for layer in (0, 3, 7):
        with pytest.raises(DraftpickError, match=f"1 to 2, not {layer}"):
            target.open_exit(layer)


@pytest.mark.parametrize("order", [(1, 2), (2, 1), (1, 2, 1), (2, 1, 2)])
def test_exits_take_turns(model: Model, order: tuple[int, ...]) -> None:
    """Whichever ran ahead, and whichever before it, the target and both exits see the same."""
    plain, target = model.load(), model.load(2, 1)
    start = held(target)
    for layer in order:
        target.lower(layer, ids(5))  # another exit's is forgotten
        target.truncate(start)
    for layer in order:
        target.lower(layer, ids(9, 2))
    same(target.extend(ids(9, 2, 6)), plain.extend(ids(9, 2, 6)))
    for layer in (1, 2):
        close(target.exit_hidden(layer, 0, start + 3), model.states(layer, 9, 2, 6), NEAR)


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_a_tree_over_what_ran_ahead(model: Model, ahead: int) -> None:
    plain, target, chain = model.load(), model.load(1), model.load(1)
    if ahead:
        target.lower(1, ids(*TOKENS[:ahead]))
    same(target.extend(ids(*TOKENS), PARENTS), plain.extend(ids(*TOKENS), PARENTS))
    target.keep([0, 4])
    chain.extend(ids(9, 7))
    end = held(target) + 2
    assert target.ahead == target.length == end
    same(target.exit_hidden(1, 0, end), chain.exit_hidden(1, 0, end))
    same(target.lower(1, ids(1)), chain.lower(1, ids(1)))
    same(target.extend(ids(1, 5)), chain.extend(ids(1, 5)))


def test_a_token_may_leave_early_where_an_exit_is_open(model: Model) -> None:
    """CALM after a draft that was not verified: as on a target without an exit."""
    plain, target = model.load(), model.load(1)
    target.lower(1, ids(5, 5, 5))
    for token in (4, 2):
        same(*(b.extend_until(token, lambda h, below, at: at == 2)[0] for b in (plain, target)))
    assert target.ahead == target.length == held(target) + 2
    same(target.extend(ids(8)), plain.extend(ids(8)))


@pytest.mark.parametrize("model", ["t5", "mt5", "umt5"], indirect=True)
def test_the_context_is_not_overrun(model: Model) -> None:
    target = model.load(1)
    target.extend(ids(*[2] * (target.context - 1 - target.length)))
    target.lower(1, ids(3))
    with pytest.raises(ContextTooLong):
        target.lower(1, ids(3))
    assert target.extend(ids(3)).shape == (1, 16)


@pytest.mark.parametrize(("exit_layer", "blocks"), [(1, 1), (1, 2), (2, 1)])
def test_an_adapter_s_layers_attend_as_those_that_they_replace(
    exit_layer: int, blocks: int, tiny: Tiny, tmp_path: Path
) -> None:
    """Windows and rotation differ between a Gemma's layers; in training and after loading."""
    target = native(tiny("gemma3", sliding_window=4, sliding_window_pattern=2))
    assert [w.kind for w in target.weights.layers] == [0, 1, 0]
    following = target.weights.layers[exit_layer : exit_layer + blocks]
    adapter = Adapter.begin(target, AdapterConfig(exit_layer, blocks=blocks))
    adapter.save(tmp_path)
    for each in (adapter, Adapter.load(tmp_path, target)):
        assert [w.kind for w in each.weights()] == [w.kind for w in following]
    states = torch.randn(1, 9, target.shape.hidden)
    with torch.no_grad():
        off = (Adapter.load(tmp_path, target)(states) - adapter(states)).abs().max()
    assert off < 0.2  # stored in bfloat16; another window moved states by 0.7 and more
