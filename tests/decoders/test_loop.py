"""The loop's traps and its books: drafts in vain, sitting out, prompt windows, counts, clocks."""

from collections.abc import Callable

import pytest
import torch
from decoder_toys import (
    SlowToy,
    TickingClock,
    Tiny,
    Watched,
    balanced,
    greedy,
    grown,
    native,
    random_exit,
    watched,
)

from decoders.methods.chain import LATER
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.protocols import Drafter
from decoders.records import Request
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import (
    ListedLengths,
    ToyBackend,
    autoregressive,
    cycle,
    neural,
    run,
    speculative,
)


@pytest.mark.parametrize("most", range(1, 12))
@pytest.mark.parametrize("k", [1, 4, 9])
def test_never_more_than_asked_and_never_drafted_in_vain(most: int, k: int) -> None:
    target = cycle(0, 1, 2)
    strategy = speculative(NeuralDrafter(ToyBackend(target.table)), k)
    result = run(target, strategy, [0], Request(most))
    assert len(result.ids) == most
    assert result.drafted + result.rounds + 1 <= most  # each draft left room for the bonus
    balanced(result, most)


# -- sitting out ----------------------------------------------------------------------------------


CATCH_UP: dict[str, Callable[[Watched], Drafter]] = {
    "a chain": NeuralDrafter,
    "a tree": lambda model: grown(model, None, TreeShape((2, 2)), 512),
    "a tree of every branch": lambda model: grown(model, None, TreeShape((2, 2), True), 512),
}


@pytest.mark.parametrize("kind", CATCH_UP)
def test_a_drafter_that_sat_out_catches_up_in_commit(kind: str) -> None:
    target = ToyBackend.random(5, seed=2)
    model = Watched(ToyBackend.random(5, seed=3).table)
    drafter = CATCH_UP[kind](model)
    proposed: list[list[int]] = []
    watched(drafter, lambda _: model.widths.clear(), lambda: proposed.append([*model.widths]))
    strategy = speculative(drafter, ListedLengths([2, 0, 0, 0, 0, 3, 0, 1]))
    result = run(target, strategy, [1, 4, 2], Request(40))
    assert result.ids == run(target, autoregressive(), [1, 4, 2], Request(40)).ids
    assert len(proposed) > 4
    # a timed draft pays for few tokens of the rounds that it sat out
    assert all(widths[0] <= LATER for widths in proposed)
    if kind == "a chain":
        assert all(set(widths[1:]) <= {1} for widths in proposed)
    balanced(result, 40)


def test_only_what_a_model_has_not_seen_is_fed_to_it() -> None:
    """A round feeds the target the newest token and the draft, and the drafter the newest token
    and all drafted ones but the last; where all were accepted, that last one comes with the next
    round."""
    for sharpness, agree in ((-1.0, 0), (1.0, 1)):  # a drafter that is always wrong, or right
        table = ToyBackend.random(5, seed=2).table
        target, model = Watched(table), Watched(sharpness * table)
        result = run(target, speculative(NeuralDrafter(model), 3), [1, 4, 2], Request(21))
        assert result.acceptance_rate == agree
        assert sum(target.widths) == 3 + result.drafted + result.rounds
        full = result.rounds - 1 if agree else 0
        assert sum(model.widths) == 3 + result.drafted + full


@pytest.mark.parametrize("branch", [(), (3, 3)])
@pytest.mark.parametrize("pattern", [[0, 0, 0, 3], [2, 0, 0, 1, 0], [4, 0]])
def test_an_early_exit_that_sat_out_drafts_as_if_it_had_not(
    tiny: Tiny, pattern: list[int], branch: tuple[int, ...]
) -> None:
    """Its drafts equal those of one that reads the same context from the start, also where siblings
    of them were accepted."""
    target, fresh_target = (native(tiny(), torch.float64) for _ in range(2))
    drafter, fresh = (random_exit(t, 1, seed=3, noise=0.1) for t in (target, fresh_target))

    def caught_up(context: list[int]) -> None:
        assert target.length - drafter._read <= 1  # before, not on this draft's time

    seen = watched(drafter, caught_up)
    whole: Drafter = WidenedDrafter(drafter, branch, 512) if branch else drafter
    result = run(target, speculative(whole, ListedLengths(pattern)), [3, 1, 4], Request(30))
    assert result.ids == run(fresh_target, autoregressive(), [3, 1, 4], Request(30)).ids
    assert len(seen) >= 3 and (result.accepted > 0 or not branch)
    for context, k, made in seen:
        fresh_target.prefill(context[:-1])
        fresh.reset(context[:-1])
        assert fresh.propose(context, greedy(k)).ids.tolist() == made.ids.tolist()


def test_a_draft_model_that_reads_the_end_of_a_prompt_drafts_as_after_that_end() -> None:
    prompt, answer = [5, 3, 9, 1, 7, 2, 8, 4], [6, 0, 5, 9, 3]
    near, short = neural(12, 3), neural(12, 3)
    near.prompt_window = 4
    near.reset(prompt)
    short.reset(prompt[-4:])
    assert near.backend.length == short.backend.length == 4
    for written in range(1, len(answer) + 1):
        drafts = [
            drafter.propose([*read, *answer[:written]], greedy(3)).ids.tolist()
            for drafter, read in ((near, prompt), (short, prompt[-4:]))
        ]
        assert drafts[0] == drafts[1] and len(drafts[0]) == 3
        near.commit([*prompt, *answer[:written]])
        short.commit([*prompt[-4:], *answer[:written]])
        assert near.backend.length == short.backend.length
    near.reset(prompt[:3])
    assert near.backend.length == 3


def test_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = TickingClock()
    monkeypatch.setattr("time.perf_counter", clock)
    target, model = (SlowToy(ToyBackend.random(4, seed=seed).table, clock) for seed in (0, 1))
    strategy = speculative(NeuralDrafter(model), 2)
    started = clock()
    result = run(target, strategy, [1, 2], Request(12))
    wall = clock() - started
    parts = result.prefill_s + result.draft_s + result.verify_s + result.other_s
    # the toy does not report its own prefill's second; all else is accounted for
    assert parts == pytest.approx(wall - 1.0, abs=10 * clock.tick)
    near = 1000 * clock.tick
    assert result.verify_s == pytest.approx(result.rounds, abs=near)
    assert result.draft_s == pytest.approx(result.draft_calls - 1, abs=near)
    assert result.prefill_s == pytest.approx(1.0, abs=near)  # the drafter reads the prompt
    assert result.tokens_per_s == pytest.approx(len(result.ids) / parts)
