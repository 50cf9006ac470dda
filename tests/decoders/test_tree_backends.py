"""A tree in one pass: the same numbers as each of its branches read alone; and what is kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from backend_toys import PROMPT, close, held, ids, make
from decoder_toys import CPU, Tiny, native
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.arms import recipe
from decoders.backends.llama.tree import Tree
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.protocols import TreeBackend, decoder_prefix
from decoders.recipes.mistakes import require_trees

MADE = (
    *("toy", "native-float64", "native-float32", "native-with-exit", "native-int4-rows"),
    *("hf", "hf-eager", "hf-windows", "t5", "t5-eager", "mt5", "umt5"),
)
#         0  1  2   3  4  5  6
TOKENS = [9, 2, 6, 11, 2, 0, 7]
PARENTS = [-1, 0, 0, -1, 2, 4, 3]
BRANCHES = {0: [9], 1: [9, 2], 2: [9, 6], 3: [11], 4: [9, 6, 2], 5: [9, 6, 2, 0], 6: [11, 7]}


def tree_backend(kind: str, tiny: Tiny, tiny_t5: Tiny) -> TreeBackend:
    made = make(kind, tiny, tiny_t5)
    assert isinstance(made, TreeBackend) and made.trees_unsupported_reason is None
    return made


@pytest.fixture(scope="module", params=MADE)
def backend(request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny) -> TreeBackend:
    return tree_backend(request.param, tiny, tiny_t5)


def alone(backend: TreeBackend, tokens: Sequence[int]) -> torch.Tensor:
    """[V] logits after the prompt and these tokens, read as a chain."""
    backend.prefill(PROMPT)
    return backend.extend(ids(*tokens))[-1]


def test_each_branch_as_if_read_alone(backend: TreeBackend) -> None:
    backend.prefill(PROMPT)
    logits = backend.extend(ids(*TOKENS), PARENTS)
    assert logits.shape == (7, 16) and backend.length == held(backend) + 7
    for node, branch in BRANCHES.items():
        close(logits[node], alone(backend, branch))


def test_a_tree_read_in_several_passes(backend: TreeBackend) -> None:
    backend.prefill(PROMPT)
    passes = [
        backend.extend(ids(*TOKENS[start:end]), PARENTS[start:end])
        for start, end in ((0, 1), (1, 4), (4, 7))
    ]
    backend.prefill(PROMPT)
    close(torch.cat(passes), backend.extend(ids(*TOKENS), PARENTS))


def test_a_chain_is_a_tree_without_branches(backend: TreeBackend) -> None:
    backend.prefill(PROMPT)
    chain = backend.extend(ids(*TOKENS))
    backend.prefill(PROMPT)
    close(backend.extend(ids(*TOKENS), range(-1, 6)), chain)


def test_a_tree_from_nothing(backend: TreeBackend) -> None:
    backend.prefill([9])
    one = backend.extend(ids(2))[-1]
    backend.truncate(0)
    [first] = decoder_prefix(backend, [9])
    close(backend.extend(ids(first, first, 2, 3), [-1, -1, 1, 0])[2], one)


@pytest.mark.parametrize("path", [[], [0], [3], [0, 1], [0, 2, 4], [0, 2, 4, 5], [3, 6]])
def test_a_kept_path_as_if_read_alone(backend: TreeBackend, path: list[int]) -> None:
    backend.prefill(PROMPT)
    backend.extend(ids(*TOKENS), PARENTS)
    backend.keep(path)
    assert backend.length == held(backend) + len(path)
    more = backend.extend(ids(8, 15))
    again = alone(backend, [*(TOKENS[node] for node in path), 8])
    close(more[0], again)
    close(more[1], backend.extend(ids(15))[-1])


def test_a_kept_part_stays_a_tree(backend: TreeBackend) -> None:
    backend.prefill(PROMPT)
    backend.extend(ids(*TOKENS), PARENTS)
    backend.keep([0, 2, 3, 6])
    assert backend.length == held(backend) + 4
    logits = backend.extend(ids(13, 14, 1), [3, 1, 5])
    backend.keep([0, 1, 5, 6])  # 9 6 14 1
    more = backend.extend(ids(4))[-1]
    close(logits[0], alone(backend, [11, 7, 13]))
    close(logits[2], alone(backend, [9, 6, 14, 1]))
    close(more, alone(backend, [9, 6, 14, 1, 4]))


def test_a_kept_path_may_be_cut_short(backend: TreeBackend) -> None:
    backend.prefill(PROMPT)
    backend.extend(ids(*TOKENS), PARENTS)
    backend.keep([0, 2, 4, 5])
    backend.truncate(held(backend) + 2)
    logits = backend.extend(ids(1, 8), [-1, -1])
    close(logits[1], alone(backend, [9, 6, 8]))


def test_a_tree_taken_back_leaves_no_trace(backend: TreeBackend) -> None:
    backend.prefill(PROMPT)
    backend.extend(ids(*TOKENS), PARENTS)
    for length in (held(backend) + 1, held(backend) + 7):
        with pytest.raises(ValueError, match="truncate"):
            backend.truncate(length)  # which of the branches?
    backend.truncate(held(backend))
    close(backend.extend(ids(5, 6))[-1], alone(backend, [5, 6]))


def test_a_prompt_read_over_an_open_tree(backend: TreeBackend) -> None:
    one = alone(backend, [7])
    backend.extend(ids(*TOKENS), PARENTS)
    close(alone(backend, [7]), one)


def test_an_open_tree_takes_no_chain(backend: TreeBackend) -> None:
    backend.prefill(PROMPT)
    backend.extend(ids(*TOKENS), PARENTS)
    with pytest.raises(ValueError, match="keep a path"):
        backend.extend(ids(1))


def test_a_tree_that_does_not_fit_is_refused_whole(backend: TreeBackend) -> None:
    backend.prefill([1])
    backend.extend(ids(*[1] * 89))
    with pytest.raises(ContextTooLong):
        backend.extend(ids(*TOKENS), PARENTS)
    backend.extend(ids(*TOKENS[:6]), PARENTS[:6])  # and nothing was left open
    assert backend.length == backend.context


@pytest.mark.parametrize("kind", ["native-float64", "t5-float64", "umt5-float64"])
@given(st.data(), st.integers(1, 12))
@examples(40)
def test_any_tree_and_any_path(
    kind: str, tiny: Tiny, tiny_t5: Tiny, data: st.DataObject, nodes: int
) -> None:
    """Several rounds, to the last digit."""
    backend, plain = (tree_backend(kind, tiny, tiny_t5) for _ in range(2))
    backend.prefill(PROMPT)
    answer: list[int] = []
    for _ in range(2):
        tokens = data.draw(st.lists(st.integers(0, 15), min_size=nodes, max_size=nodes))
        parents = [data.draw(st.integers(-1, node - 1)) for node in range(nodes)]
        logits = backend.extend(ids(*tokens), parents)
        path = [data.draw(st.integers(0, nodes - 1))]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        answer += [tokens[node] for node in path]
        plain.prefill(PROMPT)
        torch.testing.assert_close(
            logits[path[-1]], plain.extend(ids(*answer))[-1], atol=1e-10, rtol=1e-10
        )
        backend.keep(path)
        backend.truncate(held(backend) + len(answer))  # the next tree begins after the path


# -- the shape's own book -------------------------------------------------------------------------


def test_a_mask_shows_ancestors_only() -> None:
    depths, mask = Tree(2).grow([-1, 0, 0, 2])
    assert depths == [2, 3, 3, 4]
    assert mask.int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]


@pytest.mark.parametrize("parents", [[0], [-2], [-1, 2], [-1, 1]])
def test_a_parent_comes_first(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parent"):
        Tree(3).grow(parents)


@pytest.mark.parametrize("nodes", [[1], [2, 0], [0, 0], [4], [-1], [0, 3]])
def test_what_cannot_be_kept(nodes: list[int]) -> None:
    tree = Tree(3)
    tree.grow([-1, 0, 0, 2])
    with pytest.raises(ValueError, match="cannot keep"):
        tree.keep(nodes)


# -- models that cannot ---------------------------------------------------------------------------


def test_a_backend_without_trees_is_refused_in_a_sentence() -> None:
    with pytest.raises(DraftpickError, match=r"arm 'oak' needs a target .*no tree masks"):
        require_trees("oak", object(), "a target")  # type: ignore[arg-type]


def test_a_transformers_model_whose_attention_takes_no_mask(tiny: Tiny) -> None:
    """Nor is an arm built that would read trees with it."""
    backend = HFBackend.load(tiny(), CPU, torch.float32)
    backend.model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(DraftpickError, match="'flash_attention_2' takes no masks"):
        require_trees("oak", backend, "a target")
    tree = {"kind": "tree", "drafter": str(tiny(seed=5)), "branch": [2]}
    for fields in (tree, {"kind": "beam", "beams": 2}):
        with pytest.raises(DraftpickError, match=r"'oak' needs a target that can read a tree"):
            recipe(name="oak", **fields).build(backend, None)


def test_a_transformers_model_without_position_ids() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    bloom = BloomForCausalLM(BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=1))
    bloom.config.max_position_embeddings = 32
    with pytest.raises(DraftpickError, match="bloom takes no position ids"):
        require_trees("oak", HFBackend(bloom), "a target")


def test_the_same_backend_comes_back(tiny: Tiny) -> None:
    backend: LlamaBackend = native(tiny())
    assert require_trees("oak", backend, "a target") is backend
