"""A tree of drafts changes how fast an answer comes, never the answer or its distribution. Siblings
of a draft cost the drafter nothing more, and it does not remember what one of them overtook."""

from collections.abc import Sequence

import pytest
import torch
from backend_toys import PROMPT, close, held, ids, make
from cascade_toys import V
from decoder_toys import CPU, Tiny, Watched, greedy, grown, max_gram, native, watched
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.arms import recipe
from decoders.backends.llama.tree import Tree
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter, siblings
from decoders.papers.cs_drafting.drafters import HorizontalDrafter, Part
from decoders.protocols import Backend, Drafter, DraftRequest, TreeBackend, decoder_prefix
from decoders.recipes.mistakes import require_trees
from decoders.records import Request, Sampling
from decoders.sampling.randomness import Generator
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import ToyBackend, autoregressive, neural, run, speculative


def tree(model: Backend, *branch: int, every: bool = False, slots: int = 512) -> Drafter:
    return grown(model, None, TreeShape(branch, every), slots)


# -- T = 0 ----------------------------------------------------------------------------------------


SHAPES = None, TreeShape((3, 2)), TreeShape((3, 2), every=True)  # None: a chain


def test_branches_save_rounds() -> None:
    """A second child catches what the likeliest one misses: more children, fewer target passes."""
    rounds = {branch: 0 for branch in ((1, 1, 1), (2, 2, 2), (6, 6, 6))}
    for seed in range(5):
        target = ToyBackend.random(6, seed)
        near = ToyBackend(target.table + 1.5 * ToyBackend.random(6, seed + 50).table)
        for branch in rounds:
            chain = speculative(tree(near, *branch), 3)
            rounds[branch] += run(target, chain, [2], Request(60)).rounds
        every = run(target, speculative(tree(near, 6, 6, 6, every=True), 3), [2], Request(61))
        assert every.rounds == 15  # all tokens are in it: 4 a round
    chain, two, six = rounds.values()
    assert chain > two > six


def test_a_tree_without_branches_is_the_chain() -> None:
    target = ToyBackend.random(6, seed=1)
    for seed in range(5):
        chain = run(target, speculative(neural(6, seed, 2.0), 3), [2], Request(20))
        for every in (False, True):
            strategy = speculative(tree(ToyBackend.random(6, seed), 1, every=every), 3)
            result = run(target, strategy, [2], Request(20))
            assert (result.ids, result.rounds) == (chain.ids, chain.rounds)
            assert (result.drafted, result.accepted) == (chain.drafted, chain.accepted)


def test_a_full_context(tiny: Tiny) -> None:
    """The answer may reach its last position, drafts and all. Where a tree's nodes do not fit any
    more, a chain does."""
    target = native(tiny())
    prompt = [1 + i % 7 for i in range(target.context - 12)]
    for shape in SHAPES:
        model = native(tiny(seed=5, num_hidden_layers=2))
        drafter = NeuralDrafter(model) if shape is None else grown(model, None, shape, 96)
        alone = run(target, autoregressive(), prompt, Request(12))
        result = run(target, speculative(drafter, 5), prompt, Request(12))
        assert result.ids == alone.ids and len(alone.ids) == 12
        assert result.drafted > result.rounds  # and it did draft


# -- a round's parts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "drafts", "nodes"), [(False, [1, 1, 1], 6), (True, [1, 3, 6], 15)]
)
def test_a_pass_a_depth(every: bool, drafts: list[int], nodes: int) -> None:
    """The lead alone costs the drafter what a chain costs; every branch, one wider pass a depth."""
    model = Watched(ToyBackend.random(6, 1).table)
    drafter = tree(model, 3, 2, every=every)
    drafter.reset([1, 2])
    model.widths.clear()
    made = drafter.propose([1, 2, 3], greedy(3))
    assert model.widths == drafts
    assert (len(made.ids), made.depth) == (nodes, 3)


@pytest.mark.parametrize("every", [False, True])
def test_what_stands_is_not_read_again(every: bool) -> None:
    """A round leaves the drafter two tokens to read, also where a side branch was accepted."""
    target = ToyBackend.random(6, seed=3)
    model = Watched(target.table + 1.5 * ToyBackend.random(6, seed=53).table)
    strategy, first = speculative(tree(model, 3, 3, 3, every=every), 4), []
    before, after = lambda _: model.widths.clear(), lambda: first.append(model.widths[0])
    watched(strategy.drafter, before, after)
    result = run(target, strategy, [2], Request(60))
    assert result.ids == run(target, autoregressive(), [2], Request(60)).ids
    assert result.rounds < 40 and set(first) == {1, 2}


# -- siblings of a draft --------------------------------------------------------------------------


def widened(inner: Drafter, *branch: int, slots: int = 512) -> WidenedDrafter:
    return WidenedDrafter(inner, branch, slots)


def test_siblings_are_the_likeliest_beside_the_draft() -> None:
    model, context = ToyBackend.random(6, 3), [1, 4, 2]
    drafter = widened(NeuralDrafter(ToyBackend(model.table)), 3, 1, 2)
    drafter.reset(context[:-1])
    made = drafter.propose(context, greedy(4))
    assert made.parents == (-1, 0, 1, 2, -1, -1, 1)
    ids = made.ids.tolist()
    for depth, found in ((0, [0, 4, 5]), (1, [1]), (2, [2, 6]), (3, [3])):
        logits = model.prefill([*context, *ids[:depth]]).logits
        assert [ids[node] for node in found] == logits.topk(len(found)).indices.tolist()


@pytest.mark.parametrize("filtered", [Sampling(0.7, top_k=2), Sampling(0.7, top_p=0.5)])
def test_siblings_are_tokens_that_a_filter_leaves(filtered: Sampling) -> None:
    asked = DraftRequest(3, filtered, Generator(CPU, 3))
    raw = torch.tensor([0.02, 0.01, 0.9, 0.03, 0.04])
    assert {*siblings(raw, torch.tensor(2), 4, asked, 5).tolist()} == {3, 4}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_copies_have_no_siblings(sampling: Sampling) -> None:
    """They are certain: the chain stays one, beside a model's draft that is not."""
    context, chance = [1, 2, 3, 1, 2, 3, 1], Generator(CPU, 0)
    copies = widened(max_gram(shortest=1), 3, 3)
    parts = [Part(neural(V, 7), 1), Part(max_gram([1, 2, 3, 4, 0], shortest=1), 2)]
    mixed = widened(HorizontalDrafter(parts), 3, 3, 3)
    for drafter in (copies, mixed):
        drafter.reset(context[:-1])
    made = copies.propose(context, DraftRequest(4, sampling, chance))
    assert (made.ids.tolist(), made.parents) == ([2, 3, 1, 2], None)
    made = mixed.propose(context, DraftRequest(3, sampling, chance))
    assert made.parents == (-1, 0, 1, -1, -1)
    assert len({int(made.ids[node]) for node in (0, 3, 4)}) == 3


def test_more_children_than_tokens() -> None:
    with pytest.raises(DraftpickError, match=r"5 children a node .* not 4; lower `branch`"):
        tree(ToyBackend.random(4, 0), 5, every=True)


# -- a tree in one pass, beside each of its branches alone -----------------------------------------


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
