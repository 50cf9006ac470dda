"""Recorded passes: what is replayed is what an ordinary pass gives, however long the sequence is.

On a CPU the passes are traced instead of recorded as CUDA graphs (`replayed.traced`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from backend_toys import close as backend_close
from decoder_toys import CPU, Recorder, Tiny, greedy, native, random_exit, recorded
from effort import slow_after
from replayed import traced

from decoders.backends.cuda.recorded import cuda_graphs
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.neural.recipe import NeuralRecipe
from decoders.models import targets
from decoders.records import DecodeResult, Request, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.toys import ListedLengths, run, speculative

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 3
LONG = 400  # positions: more than the fewest that a recorded pass reads


close = partial(backend_close, near=1e-10)


def test_one_recording_serves_every_position(tiny: Tiny) -> None:
    backend, recorder = recorded(tiny())
    plain = native(tiny(), torch.float64)
    close(backend.prefill(PROMPT).logits, plain.prefill(PROMPT).logits)
    for step in range(12):
        for ids in (torch.tensor([step]), torch.tensor([7, step, 2])):
            close(backend.extend(ids), plain.extend(ids))
        for model in (backend, plain):
            model.truncate(model.length - 2)  # what comes next is written over a part of it
    assert recorder.recorded == 3  # the prompt, and one a width


def test_a_longer_sequence_has_another_recording(tiny: Tiny) -> None:
    folder = tiny(max_position_embeddings=LONG)
    backend, recorder = recorded(folder)
    plain = native(folder, torch.float64)
    prompt = [i % 13 for i in range(250)]
    backend.prefill(prompt)
    plain.prefill(prompt)
    for token in range(12):
        ids = torch.tensor([token])
        close(backend.extend(ids), plain.extend(ids))
    assert recorder.recorded == 3  # the prompt's is another
    backend.prefill(PROMPT)
    backend.extend(torch.tensor([1]))
    # the short prompt's; what was recorded for short sequences is still there
    assert recorder.recorded == 4


def test_results_outlive_the_next_pass(tiny: Tiny) -> None:
    backend, _ = recorded(tiny())
    backend.prefill(PROMPT)
    drafted = [backend.draft(torch.tensor([token]), 2, 16) for token in range(8)]
    backend.prefill(PROMPT)
    again = [backend.draft(torch.tensor([token]), 2, 16).tolist() for token in range(8)]
    assert [ids.tolist() for ids in drafted] == again
    assert len({*map(tuple, again)}) > 1


PENALISED = Sampling(repetition_penalty=1.3), Sampling(0.8, repetition_penalty=1.1)


@pytest.mark.parametrize("sampling", PENALISED, ids=str)
@pytest.mark.parametrize("kind", ["another", "exit", "a part of the vocabulary"])
def test_answers_and_counts_are_those_of_ordinary_passes(
    tiny: Tiny, kind: str, sampling: Sampling
) -> None:
    """With rounds of several lengths, one of them sat out, of answers that no recorded rounds write
    (test_rounds_ahead.py has the others)."""
    results, recorders = list[DecodeResult](), list[Recorder]()

    def model(record: bool, **shape: int) -> LlamaBackend:
        if not record:
            return native(tiny(**shape), torch.float64)
        backend, recorder = recorded(tiny(**shape))
        recorders.append(recorder)
        return backend

    few = DraftVocab([0, 2, 3, 5, 8, 9, 12, 15], 16)
    for record in (True, False):
        target = model(record)
        if kind == "exit":
            drafter: Any = random_exit(target, 1, seed=0)
        elif kind == "another":
            drafter = NeuralDrafter(model(record, seed=1))
        else:
            drafter = NeuralDrafter(model(record, seed=2, vocab_size=9), few)
        strategy = speculative(drafter, ListedLengths([3, 0, 0, 0, 1]))
        results.append(run(target, strategy, PROMPT, Request(24, sampling, seed=3)))
    made, plain = results
    assert all(recorder.recorded for recorder in recorders)
    for field in (
        "ids", "rounds", "drafted", "accepted_per_position", "target_calls", "draft_calls"
    ):  # fmt: skip
        assert getattr(made, field) == getattr(plain, field), field


@pytest.mark.parametrize("layer", [1, 2])
def test_of_several_exits_any_may_run_ahead(tiny: Tiny, layer: int) -> None:
    backend, _ = recorded(tiny())
    plain = native(tiny(), torch.float64)
    for model in (backend, plain):
        for after in (1, 2):
            model.open_exit(after)
        model.prefill(PROMPT)
    close(backend.lower(layer, torch.tensor([7, 2])), plain.lower(layer, torch.tensor([7, 2])))
    more = torch.tensor([7, 2, 11])
    close(backend.extend(more), plain.extend(more))
    for after in (1, 2):
        close(backend.exit_hidden(after, 0, 27), plain.exit_hidden(after, 0, 27))


@pytest.mark.parametrize("unread", slow_after(1, [[7, 2], [7], [7, 2, 11]]))
def test_a_draft_is_the_likeliest_tokens_one_by_one(tiny: Tiny, unread: list[int]) -> None:
    backend, _ = recorded(tiny())
    plain = native(tiny(), torch.float64)
    for prompt in (PROMPT, PROMPT[1:6]):
        backend.prefill(prompt)
        plain.prefill(prompt)
        ids, chain = torch.tensor(unread), list[int]()
        while len(chain) < 4:
            chain.append(int(plain.extend(ids)[-1, :9].argmax()))
            ids = torch.tensor(chain[-1:])
        assert backend.draft(torch.tensor(unread), 4, 9).tolist() == chain
        assert backend.length == plain.length
        close(backend.extend(ids), plain.extend(ids))  # what it read lies where it belongs


def test_a_whole_draft_is_one_recording(tiny: Tiny) -> None:
    backend, recorder = recorded(tiny())
    drafter = NeuralDrafter(backend)
    drafter.reset(PROMPT)
    context = [*PROMPT, 7]
    for _ in range(5):
        proposal = drafter.propose(context, greedy(4))
        context += [*proposal.ids.tolist(), 3]
        drafter.commit(context)
    # the prompt, one token unread at first, later a draft's last and the next
    assert recorder.recorded == 3


def test_drafters_of_a_recorded_target_are_recorded_too(tiny: Tiny) -> None:
    """Each its own passes, as the cache is its own; those of an ordinary target are not."""
    recipe = NeuralRecipe(name="neural", drafter=str(tiny(seed=1)))
    target, recorder = recorded(tiny())
    one, two = (recipe.make_drafter(target, None).backend.recorded for _ in range(2))
    assert one.record is two.record is recorder
    assert one is not two
    assert recipe.make_drafter(native(tiny(), torch.float64), None).backend.recorded is None


def test_the_context_is_not_overrun(tiny: Tiny) -> None:
    backend, _ = recorded(tiny())
    backend.prefill([1] * (backend.context - 2))
    with pytest.raises(DraftpickError, match="96"):
        backend.draft(torch.tensor([1]), 3, 16)
    assert len(backend.draft(torch.tensor([1]), 2, 16)) == 2


@pytest.mark.parametrize(("context", "tokens"), [(100, 80), (300, 260)])
def test_a_recorded_prompt_ends_where_a_lowered_context_does(
    tiny: Tiny, context: int, tokens: int
) -> None:
    """What it is filled up with would lie beyond the states that are kept, or beyond the cache."""
    plain, backend = (
        LlamaBackend.load(tiny(max_position_embeddings=1024), CPU, torch.float64, context)
        for _ in range(2)
    )
    backend.record_passes(traced)
    prompt = [i % 13 for i in range(tokens)]
    for model in (plain, backend):
        model.open_exit(1)
    close(backend.prefill(prompt).logits, plain.prefill(prompt).logits)
    close(backend.exit_hidden(1, 0, tokens), plain.exit_hidden(1, 0, tokens))


@pytest.mark.parametrize("inferring", [False, True])
def test_what_reads_a_tensor_on_the_host_cannot_be_recorded(inferring: bool) -> None:
    """Or the traced passes above would prove nothing."""
    x = torch.tensor([3, 1])
    reads: list[Callable[[], Any]] = [x.tolist, x.numpy, x.nonzero, lambda: x * x.equal(x)]
    for read in (*reads, lambda: torch.ones(int(x[0])), lambda: x if x.any() else -x):
        with torch.inference_mode(inferring), pytest.raises(RuntimeError, match="on the host"):
            traced(read)
    replay = traced(lambda: x * 2)
    x.fill_(5)
    assert replay().tolist() == [10, 10]


def test_graphs_need_cuda_and_a_shape_that_native_runs(tiny: Tiny) -> None:
    with pytest.raises(DraftpickError, match="graphs are recorded on CUDA, not on cpu"):
        targets.load_backend(tiny(), CPU, torch.float32, "graphs")
    with pytest.raises(DraftpickError, match="native backend cannot run model: biases"):
        folder = tiny(attention_bias=True)
        targets.load_backend(folder, torch.device("cuda"), torch.float32, "graphs")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_on_cuda_give_what_ordinary_passes_give(tiny: Tiny, dtype: torch.dtype) -> None:
    cuda = torch.device("cuda")
    plain, backend = (LlamaBackend.load(tiny(), cuda, dtype) for _ in range(2))
    backend.record_passes(cuda_graphs())
    for model in (plain, backend):
        model.prefill(PROMPT)
    for step in range(6):
        for ids in (torch.tensor([step], device=cuda), torch.tensor([7, step, 2], device=cuda)):
            torch.testing.assert_close(backend.extend(ids), plain.extend(ids), atol=0.1, rtol=0.05)
    start = backend.length
    drafted = backend.draft(torch.tensor([5], device=cuda), 4, 16)
    backend.truncate(start)
    chain = [5, *drafted.tolist()]
    assert backend.extend(torch.tensor(chain[:-1], device=cuda)).argmax(-1).tolist() == chain[1:]
