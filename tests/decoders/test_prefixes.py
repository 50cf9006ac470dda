"""What is kept of prompts: later ones that begin alike are not read again, their answers stay the
same, and nobody's are another's."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, native
from effort import examples
from engine_toys import PROMPT, Gone, Leaving, arms, engine_over, places_in, reading, together
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders import Engine
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import DraftpickError, NotANumber
from decoders.continuous_batching import ContinuousBatch, SingleSlot, batch_engine
from decoders.earlier.prefixes import Owner, PrefixStore
from decoders.records import DecodeResult, Prefilled, Request
from decoders.requests import reading as reading_module
from decoders.testing.toys import ToyBackend

ANN, BEA = Owner(1, (), "ann"), Owner(1, (), "bea")
OWNERS = [ANN, BEA, Owner(2, (), "ann"), Owner(1, ("exit",), "ann")]  # of another model, and state
EACH = 16  # bytes of a position in the tests of the store
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=12)

# -- the store ------------------------------------------------------------------------------------


class Text:
    """Positions that say which text they are of: each a number of the text up to it."""

    def __init__(self, owner: Owner, ids: list[int]) -> None:
        self.owner, self.ids = owner, ids

    def copy_out(self, start: int, end: int) -> list[Tensor]:
        rows = [hash((self.owner, *self.ids[: at + 1])) % 2**31 for at in range(start, end)]
        return [torch.tensor(rows, dtype=torch.float64).view(1, -1, 1).expand(1, -1, 2).clone()]

    def is_in(self, taken: list[tuple[int, list[Tensor]]]) -> bool:
        at = 0
        for start, (copy,) in taken:
            end = start + copy.shape[-2]
            if start != at or not torch.equal(copy, self.copy_out(start, end)[0]):
                return False
            at = end
        return True


def nodes(store: PrefixStore) -> list[Any]:
    found, todo = [], list(store._roots.values())
    while todo:
        node = todo.pop()
        todo += node.children.values()
        found.append(node)
    return found


def check(store: PrefixStore) -> None:
    kept = [node for node in nodes(store) if node.ids]
    assert set(kept) == set(store._order) and len(store) == len(kept)
    assert store.bytes == sum(node.bytes for node in kept) <= store.limit
    assert store.tokens == sum(len(node.ids) for node in kept) == store.bytes // EACH
    order = list(store._order)
    for at, node in enumerate(order):
        assert node.parent is not None and (not node.parent.ids or node.parent in order[at:])
        assert node.parent.children[node.ids[0]] is node
    assert all(root.children for root in store._roots.values())


@examples(200)
@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(OWNERS), TEXTS, st.booleans()), max_size=30),
)
def test_what_is_taken_is_what_was_kept(
    room: int, by: int, asked: list[tuple[Owner, list[int], bool]]
) -> None:
    store = PrefixStore(room * EACH)
    for owner, ids, keeps in asked:
        text, known = Text(owner, ids), store.match(owner, ids)
        taken = store.take(owner, ids)
        assert text.is_in(taken) and sum(each[0].shape[-2] for _, each in taken) == known
        if keeps:
            end = store.keep(owner, ids, text.copy_out, EACH, by)
            assert end == store.match(owner, ids) <= len(ids)
        check(store)
    store.forget(1, "ann")
    check(store)
    assert all(store.match(ANN, ids) == 0 for _, ids, _ in asked)
    store.clear()
    check(store)
    assert store.bytes == store.users == 0


def test_the_least_recently_used_goes_first_and_ends_before_beginnings() -> None:
    store = PrefixStore(12 * EACH)

    def keep(*ids: int) -> int:
        return store.keep(ANN, ids, Text(ANN, list(ids)).copy_out, EACH)

    keep(1, 1, 1, 2, 2)
    keep(1, 1, 1, 3, 3)
    keep(5, 5, 5)
    assert store.tokens == 10 and store.evicted == 0
    store.take(ANN, [1, 1, 1, 2])
    keep(6, 6, 6, 6)
    assert store.match(ANN, [1, 1, 1, 3, 3]) == 3 and store.evicted == 2
    assert store.match(ANN, [1, 1, 1, 2, 2]) == 5 and store.match(ANN, [5, 5, 5]) == 3
    assert keep(*range(20)) == 12, "as much of the beginning as there is room for"
    assert store.tokens == 12 and store.match(ANN, [6]) == 0


# -- an engine's prompts --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    places = places_in(tmp_path_factory.mktemp("arms"), tiny)
    return places | {"target": tiny(max_position_embeddings=256)}


def made(folders: dict[str, Path], dtype: torch.dtype = torch.float64) -> Engine:
    return engine_over(native(folders["target"], dtype), folders)


@pytest.fixture(scope="module")
def fresh(folders: dict[str, Path]) -> Engine:
    """Reads every prompt whole."""
    return made(folders)


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Engine:
    return made(folders)


@contextmanager
def parts_of(size: int) -> Iterator[None]:
    """Prompts are read in parts of so many tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoders.backends.native.PREFILL_CHUNK", size)
        patch.setattr(reading_module, "PREFILL_CHUNK", size)
        yield


def anew(engine: Engine, store: PrefixStore | None) -> None:
    """The engine with this store, its target holding nothing of use."""
    engine.keep_prefixes(store)
    engine.target.prefill([0])


def ask(
    engine: Engine, prompt: list[int], user: str | None = "", arm: str = "autoregressive"
) -> tuple[Prefilled, DecodeResult]:
    prefilled = engine.prefill(prompt, reuse=True, user=user)
    return prefilled, engine.decode(arm, prompt, Request(6, user=user), prefilled)


POSITION = 2 * 3 * 2 * 8 * 8  # bytes of the tiny model's keys and values in float64, at least

turns = st.tuples(
    st.integers(0, 2),  # which conversation goes on
    st.lists(st.integers(0, 14), min_size=1, max_size=5),  # with what
    st.sampled_from(["autoregressive", "copy", "small", "tree", "exit", "cell", "calm"]),
    st.sampled_from(["ann", "bea", None]),
    st.sampled_from([99, 99, 99, 1, 3]),  # after how many tokens whoever asked leaves
)


@pytest.fixture(scope="module", params=[1, 3])
def room(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Any:
    """Where answers are written, one at a time or three."""
    engine = made(folders)
    return SingleSlot(engine) if request.param == 1 else ContinuousBatch(engine, request.param)


@pytest.mark.property
@examples(40)
@given(limit=st.integers(0, 60), part=st.integers(1, 9), asked=st.lists(turns, max_size=6))
def test_answers_are_those_without_a_store(
    limit: int, part: int, asked: list[Any], room: Any, fresh: Engine
) -> None:
    """Whatever conversations go on, whoever leaves in the middle and whatever has to make room."""
    store = PrefixStore(limit * 4 * POSITION) if limit > 9 else None
    for slot in room.slots:
        slot.engine.keep_prefixes(store)
    lines: dict[int, list[int]] = {0: [1, 2, 3, 4, 5, 6], 1: [1, 2, 3, 4, 9], 2: [7]}
    with parts_of(part):
        while asked:
            group = []
            for which, more, arm, user, leaves in asked[: len(room.slots)]:
                lines[which] = [*lines[which], *more]
                request, reads = Request(6, user=user), 4 if leaves == 1 else 999
                group.append(
                    (which, Leaving(arm, lines[which], request, leaves, user=user, reads=reads))
                )
            together(room, [one for _, one in group])
            for which, one in group:
                expected = fresh.decode(one.arm, one.prompt, Request(6)).ids
                assert one.written == expected[: len(one.written)], one.arm
                if one.result is not None:
                    assert one.result.ids == expected
                    lines[which] = [*one.prompt, *expected]
            assert store is None or store.bytes <= store.limit
            asked = asked[len(room.slots) :]


def test_a_later_prompt_is_read_where_it_differs(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arm in ("autoregressive", "small", "tree", "exit", "cell"):
        store = PrefixStore(2**20)
        anew(engine, store)
        first, written = ask(engine, PROMPT * 3, arm=arm)
        assert first.cached == 0 and written.cached_tokens is None
        ask(engine, [9, 9, 9], arm=arm)  # the target holds something else now
        turn = [*PROMPT * 3, *written.ids, 2, 6]
        second, answer = ask(engine, turn, arm=arm)
        assert second.cached == answer.cached_tokens == 15 + 5, "but the answer's last token"
        torch.testing.assert_close(second.logits, fresh.prefill(turn).logits)
        assert answer.ids == fresh.decode(arm, turn, Request(6)).ids
        assert (store.lookups, store.hits) == (3, 1)
        assert (store.asked, store.saved) == (15 + 3 + len(turn), 20)
        assert reading(engine, turn, monkeypatch) == 1


def test_drafters_read_what_is_new(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew(engine, PrefixStore(2**20))
    backend: Any = engine.strategy("small").drafter.backend  # type: ignore[attr-defined]
    read, hidden = list[int](), backend._hidden
    monkeypatch.setattr(
        backend, "_hidden", lambda ids, *a: read.append(len(ids)) or hidden(ids, *a)
    )
    prompt = PROMPT * 3

    def drafts(ids: list[int], user: str | None = "ann", reuse: bool = True) -> int:
        """What the drafter reads before the answer."""
        read.clear()
        prefilled = engine.prefill(ids, reuse, user)
        made = engine.decode("small", ids, Request(9, user=user), prefilled)
        assert made.ids == fresh.decode("small", ids, Request(9)).ids
        return read[0]

    assert drafts(prompt) == 15
    assert drafts([*prompt, 3]) == 1, "what it holds"
    assert drafts([8, 8]) == 2
    assert drafts([*prompt, 4, 4]) == 2, "what the store keeps"
    assert drafts([*prompt, 5], user="bea") == 16
    assert drafts([*prompt, 5], user=None) == 16
    assert drafts([*prompt, 5], user="bea", reuse=False) == 16


@pytest.mark.parametrize("store", [None, 2**20])
def test_nobody_finds_what_another_was_read(engine: Engine, store: int | None) -> None:
    anew(engine, None if store is None else PrefixStore(store))
    prompt = [3, *PROMPT * 3]
    assert ask(engine, prompt, "ann")[0].cached == 0
    assert ask(engine, prompt, "bea")[0].cached == 0
    assert ask(engine, prompt, None)[0].cached == 0
    assert ask(engine, prompt, None)[0].cached == 0, "of nobody nothing is kept"
    assert ask(engine, prompt, "ann")[0].cached == (0 if store is None else 15)
    assert ask(engine, prompt, "ann")[0].cached == 15
    assert engine.cached_prefix(prompt, "ann") == 15
    assert engine.cached_prefix(prompt, "bea") == engine.cached_prefix(prompt, None) == 0
    assert engine.prefill(prompt, user="ann").cached == 0, "where it is not asked for"


def test_a_turn_through_transformers_is_read_where_it_is_new(folders: dict[str, Path]) -> None:
    backend = HFBackend.load(folders["target"], CPU, torch.float64)
    own = Engine(backend, arms(), name="tiny")
    _, written = ask(own, PROMPT * 3)
    second, answer = ask(own, [*PROMPT * 3, *written.ids, 2])
    assert second.cached == answer.cached_tokens == 15 + 5
    assert answer.ids == own.decode("autoregressive", answer.prompt_ids, Request(6)).ids
    assert ask(own, answer.prompt_ids, user="bea")[0].cached == 0


def test_what_new_arms_need_is_read_again(folders: dict[str, Path], fresh: Engine) -> None:
    """The states at an exit that nobody had opened yet."""
    target = native(folders["target"], torch.float64)
    engine, store = Engine(target, arms(), tokenizer=fresh.tokenizer), PrefixStore(2**20)
    engine.keep_prefixes(store)
    engine.prefill(PROMPT * 3, reuse=True)
    engine.declare({name: fresh.arms[name] for name in ("autoregressive", "exit")})
    turn = [*PROMPT * 3, 2, 6]
    for _ in range(2):  # from the store the second time
        assert engine.prefill(turn, reuse=True).logits.isfinite().all()
        fresh.prefill(turn)
        made = [each.target.exit_hidden(1, 0, len(turn)) for each in (engine, fresh)]  # type: ignore[attr-defined]
        torch.testing.assert_close(*made)
        target.prefill([0])


def test_prompts_that_come_at_once_are_read_once(engine: Engine) -> None:
    store = PrefixStore(2**20)
    anew(engine, store)
    batch = ContinuousBatch(engine, 3)
    shared, request = [1 + i % 13 for i in range(80)], Request(3)
    group = [Leaving("copy", [*shared, each], request, user="") for each in range(3)]
    with parts_of(8):
        together(batch, group)  # type: ignore[arg-type]
    assert [one.prefilled.cached for one in group if one.prefilled] == [0, 80, 80]


def test_what_was_read_of_a_prompt_that_was_given_up_is_kept(engine: Engine) -> None:
    anew(engine, PrefixStore(2**20))
    told: list[tuple[int, int]] = []

    def watch(read: int, total: int) -> None:
        told.append((read, total))
        if read >= 8:
            raise Gone

    with parts_of(4):
        with pytest.raises(Gone):
            engine.prefill(PROMPT * 3, True, "", watch)
        assert told == [(0, 15), (4, 15), (8, 15)]
        assert engine.cached_prefix(PROMPT * 3) == 8
        ask(engine, [9])
        assert ask(engine, PROMPT * 3)[0].cached == 8


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slots", [1, 3])
def test_exact_prefixes_change_no_bit(
    folders: dict[str, Path], dtype: torch.dtype, slots: int
) -> None:
    ours, theirs = (made(folders, dtype) for _ in range(2))
    store = PrefixStore(2**20)
    ours.keep_prefixes(store)
    prompts = [
        [1 + (i * i + 3) % 13 for i in range(30)],
        [*(1 + (i * i + 3) % 13 for i in range(17)), 2, 2],
        [1 + (i * i + 3) % 13 for i in range(16)],  # whole parts
        [*(1 + (i * i + 3) % 13 for i in range(30)), 4, 9, 9, 1],
    ]
    saved = []
    with parts_of(8):
        rooms = [batch_engine(each, slots, batch_invariant=True) for each in (ours, theirs)]
        for prompt in prompts:
            pair = [Leaving("cell", prompt, Request(5, user=""), user="") for _ in rooms]
            for one, room in zip(pair, rooms, strict=True):
                together(room, [one])  # type: ignore[arg-type]
            mine, other = (one.prefilled for one in pair)
            assert torch.equal(mine.logits, other.logits)
            assert torch.equal(mine.embedding, other.embedding)
            assert pair[0].written == pair[1].written
            saved.append(mine.cached)
    assert saved == [0, 16, 8, 24], "whole parts, and never the last token's"
    assert all(len(node.ids) % 8 == 0 for node in store._order)


def test_what_is_no_number_is_not_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PrefixStore(2**20)
    anew(engine, store)
    with monkeypatch.context() as patch:
        real = engine.target.final_norm  # type: ignore[attr-defined]
        patch.setattr(engine.target, "final_norm", lambda hidden: real(hidden) * torch.nan)
        with pytest.raises(NotANumber):
            engine.prefill(PROMPT * 3, True)
    assert store.tokens == 0
    assert ask(engine, PROMPT * 3)[0].cached == 0


def test_where_memory_runs_out_the_answer_goes_first(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PrefixStore(2**20)
    anew(engine, store)
    ask(engine, PROMPT * 3)
    assert store.tokens

    def full(start: int, end: int) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "copy_out", full)
        _, answer = ask(engine, [4, *PROMPT * 3])
    assert answer.ids == fresh.decode("autoregressive", [4, *PROMPT * 3], Request(6)).ids
    assert store.tokens == 0


def test_what_is_kept_of_a_model_goes_with_it(folders: dict[str, Path]) -> None:
    own, store = made(folders), PrefixStore(2**20)
    own.keep_prefixes(store)
    ask(own, PROMPT * 3)
    gone = weakref.ref(own.target.weights)  # type: ignore[attr-defined]
    assert store.tokens
    del own
    gc.collect()
    assert gone() is None and store.tokens == store.bytes == 0


def test_a_store_that_fits_no_target_is_refused(engine: Engine) -> None:
    with pytest.raises(DraftpickError, match="need room for some bytes, not 0"):
        PrefixStore(0)
    with pytest.raises(DraftpickError, match=r"a position of tiny takes \d+ bytes, and kept pref"):
        engine.keep_prefixes(PrefixStore(100))
    other = Engine(ToyBackend.random(16, seed=1), engine.arms, name="toy")
    with pytest.raises(DraftpickError, match=r"the native backend alone, .* runs by ToyBackend"):
        other.keep_prefixes(PrefixStore(2**20))
