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
    *("hf", "hf-eager", "hf-windows", "t5-float64", "t5-eager", "mt5", "umt5-float64"),
)
#         0  1  2   3  4  5  6
TOKENS = [9, 2, 6, 11, 2, 0, 7]
PARENTS = [-1, 0, 0, -1, 2, 4, 3]


@pytest.fixture(scope="module", params=MADE)
def pair(request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny) -> list[TreeBackend]:
    made = [make(request.param, tiny, tiny_t5) for _ in range(2)]
    assert all(isinstance(m, TreeBackend) and m.trees_unsupported_reason is None for m in made)
    return made  # type: ignore[return-value]


@pytest.fixture(scope="module")
def backend(pair: list[TreeBackend]) -> TreeBackend:
    return pair[0]


@pytest.fixture(scope="module")
def plain(pair: list[TreeBackend]) -> TreeBackend:
    """The same, which reads no trees."""
    return pair[1]


def alone(backend: TreeBackend, tokens: Sequence[int]) -> torch.Tensor:
    """[V] logits after the prompt and these tokens, read as a chain."""
    backend.prefill(PROMPT)
    return backend.extend(ids(*tokens))[-1]


@given(st.data())
@examples(40)
def test_any_tree_and_what_is_kept_of_it(
    backend: TreeBackend, plain: TreeBackend, data: st.DataObject
) -> None:
    """A tree grows in parts, and some of its nodes may be given up before the next one: any node
    says what its branch does alone. What follows a path, or the beginning of one, goes on from it;
    twice, and to the last digit in float64."""
    near = 1e-10 if backend.dtype == torch.float64 else 1e-4
    start, answer = len(decoder_prefix(backend, PROMPT)), list[int]()
    for model in (backend, plain):
        model.prefill(PROMPT)
    for _ in range(2):
        parents, branches = list[int](), list[list[int]]()
        for _ in range(data.draw(st.integers(1, 2))):
            kept = list[int]()
            for node, parent in enumerate(parents):
                if parent in (-1, *kept) and data.draw(st.booleans()):
                    kept.append(node)
            if parents and data.draw(st.booleans()):
                backend.keep(kept)
                parents = [kept.index(parents[n]) if parents[n] >= 0 else -1 for n in kept]
                branches = [branches[node] for node in kept]
            tokens = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=5))
            old = len(parents)
            for node, token in enumerate(tokens, old):
                parents.append(data.draw(st.integers(-1, node - 1)))
                branches.append([*(branches[parents[-1]] if parents[-1] >= 0 else []), token])
            logits = backend.extend(ids(*tokens), parents[old:])
            assert backend.length == start + len(answer) + len(parents)
            node = data.draw(st.integers(old, len(parents) - 1))
            close(logits[node - old], plain.extend(ids(*branches[node]))[-1], near)
            plain.truncate(start + len(answer))
        path = [data.draw(st.integers(0, len(parents) - 1))]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        backend.keep(path)
        more = branches[path[-1]][: data.draw(st.integers(0, len(path)))]
        answer += more
        backend.truncate(start + len(answer))
        if more:
            plain.extend(ids(*more))
        close(backend.extend(ids(8, 15)), plain.extend(ids(8, 15)), near)
        for model in (backend, plain):
            model.truncate(start + len(answer))


def test_a_tree_from_nothing(backend: TreeBackend) -> None:
    backend.prefill([9])
    one = backend.extend(ids(2))[-1]
    backend.truncate(0)
    [first] = decoder_prefix(backend, [9])
    close(backend.extend(ids(first, first, 2, 3), [-1, -1, 1, 0])[2], one)


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
