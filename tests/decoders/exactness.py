"""Toy drafters of every kind over three tokens, and what is sampled from the target with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cascade_toys import hierarchy, part_of_vocabulary, toy, vertical
from decoder_toys import grown, hybrid, max_gram, native, recurrent, reduced, suffix
from strangers import part

from decoders.backends.native import LlamaBackend
from decoders.lengths import FixedLength
from decoders.methods.tree.widened import WidenedDrafter
from decoders.papers.cs_drafting.drafters import HorizontalDrafter, Part, cs_drafter
from decoders.protocols import Drafter, DraftLength, DraftRequest, Verifier
from decoders.records import Proposal, Request, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import ListedLengths, ToyBackend, neural
from decoders.verify import Coupled

MOST = 4  # new tokens: the first is the prompt's own, then there is room to draft two
PROMPT = [0, 1, 0]
SAMPLINGS = {
    "plain": Sampling(1.0),
    "cold": Sampling(0.6),
    "top_k": Sampling(1.2, top_k=2),  # fewer tokens than a tree's children
    "top_p": Sampling(1.0, top_p=0.7),
    "penalty": Sampling(1.0, repetition_penalty=1.7),
    "all": Sampling(1.3, top_k=3, top_p=0.9, repetition_penalty=0.8),
}
LENGTHS: dict[str, Callable[[], DraftLength]] = {
    "fixed": lambda: FixedLength(2),
    "confident": lambda: FixedLength(2, min_confidence=0.45),
    "sits-out": lambda: ListedLengths([0, 2, 1]),
}
EARLIER = [([0, 1], [0, 2, 1, 0, 0]), ([1, 0], [1, 0, 1, 2]), ([0, 1, 0], [0, 2, 2])]
CS = [[1, 1, 1], [0, 1, 1], [0, 0, 2]]


class FixedTree:
    """Drafts the same tree every round: no chance in it, so that its distributions are one-hot."""

    parameters = calls = 0
    context = 512

    def __init__(self, ids: list[int], parents: list[int]) -> None:
        self._ids, self._parents = ids, parents

    def reset(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        nodes = len(self._ids) if asked.k > 1 else sum(parent < 0 for parent in self._parents)
        return Proposal(torch.tensor(self._ids[:nodes]), parents=tuple(self._parents[:nodes]))

    def commit(self, context: list[int]) -> None:
        pass


def copier(*table: int) -> Drafter:
    return max_gram(list(table) or None, shortest=1)


def tree(*branch: int, every: bool = False, vocab: int = 3, seed: int = 7) -> Drafter:
    return grown(ToyBackend.random(vocab, seed, 1.0), None, TreeShape(branch, every), 512)


def few_tree(every: bool) -> Drafter:
    vocab = DraftVocab([0, 2], 3)
    return grown(ToyBackend.random(vocab.size, 8, 1.0), vocab, TreeShape((2,), every), 512)


def widened(inner: Drafter, *branch: int) -> WidenedDrafter:
    return WidenedDrafter(inner, branch, 512)


def parts(*each: Any) -> HorizontalDrafter:
    return HorizontalDrafter([Part(*((part, 1) if not isinstance(part, tuple) else part))
                              for part in each])  # fmt: skip


def cs_nest(vocab: int = 3) -> Drafter:
    models = [(11, 12), (1, 2)][vocab == 2]
    return cs_drafter([toy(seed, vocab) for seed in models], copier(), CS, 2.0, 8)


DRAFTERS: dict[str, Callable[[ToyBackend], Drafter]] = {
    "neural": lambda _: neural(3, 7),
    "reduced": lambda _: reduced([0, 2], 3, seed=8),
    "max-gram": lambda _: copier(),
    "bigram": lambda _: max_gram([1, 2, -1], shortest=2),
    "hybrid": lambda _: hybrid(neural(3, 7)),
    "hybrid-suffix": lambda _: hybrid(neural(3, 7), copying=suffix(*EARLIER)),
    "hybrid-dear": lambda _: hybrid(neural(3, 7), draft_cost=5.0),
    "suffix": lambda _: suffix(*EARLIER),
    "suffix-tree": lambda _: suffix(*EARLIER, width=2),
    "recurrent": lambda target: recurrent(target, 2),
    "recurrent-reduced": lambda target: recurrent(target, 2, DraftVocab([0, 2], 3)),
    "recurrent-tree": lambda target: widened(recurrent(target, 5), 2),
    "recurrent-verified": lambda target: vertical(neural(3, 7).backend, recurrent(target, 5), 1),
    "recurrent-after": lambda target: parts(neural(3, 7), recurrent(target, 5)),
    "recurrent-before": lambda target: parts(recurrent(target, 5), neural(3, 7)),
    "strict": lambda _: vertical(toy(11), neural(3, 7)),
    "lenient": lambda _: vertical(toy(11), neural(3, 7), 2, 2.0),
    "lenient-max-gram": lambda _: vertical(toy(11), copier(1, 2, -1), 2, 3.0),
    "two-deep": lambda _: vertical(toy(12), vertical(toy(11), copier(), 1, 3.0), 2, 1.5),
    "part-of-vocabulary": lambda _: vertical(
        part_of_vocabulary([0, 2], 3, 5), neural(3, 7), 2, 2.0
    ),
    "inner-sits-out": lambda _: vertical(toy(11), neural(3, 7), ListedLengths([0, 1, 2]), 2.0),
    "horizontal": lambda _: parts(neural(3, 7), copier(1, 2, -1)),
    "horizontal-unsure": lambda _: parts((neural(3, 7), 1, 0.5), reduced([0, 2], 3, 8)),
    "horizontal-of-vertical": lambda _: parts(vertical(toy(11), copier(), 2, 2.0), neural(3, 7)),
    "vertical-of-horizontal": lambda _: vertical(toy(11), parts(copier(), neural(3, 7)), 2, 2.0),
    "cs-drafting": lambda _: cs_nest(),
    "hierarchy": lambda _: hierarchy(toy(11), neural(3, 7)),
    "tree": lambda _: tree(2),
    "tree-whole": lambda _: tree(3),
    "tree-every": lambda _: tree(2, every=True),
    "tree-reduced": lambda _: few_tree(False),
    "tree-every-reduced": lambda _: few_tree(True),
    "tree-fixed": lambda _: FixedTree([0, 2, 1, 0, 2], [-1, -1, 0, 0, 1]),
    "wide-vertical": lambda _: widened(vertical(toy(11), neural(3, 7), 2, 2.0), 2),
    "wide-part-of-vocabulary": lambda _: widened(
        vertical(part_of_vocabulary([0, 2], 3, 5), neural(3, 7), 2, 2.0), 2
    ),
    "wide-horizontal": lambda _: widened(parts(neural(3, 7), copier(1, 2, -1)), 2),
    "wide-cs-drafting": lambda _: widened(cs_nest(), 2),
}
DRAFTERS["stranger"] = lambda target: part("again").AgainDrafter(target)
LENGTHS["stranger"] = lambda: part("growing").GrowingLength(2, 0.0)
SHORT = (  # many outcomes: three new tokens
    "tree-every", "tree-reduced", "tree-every-reduced", "wide-cs-drafting"
)  # fmt: skip


class Case(NamedTuple):
    """One exact distribution: a strategy over a random target of so many tokens."""

    drafter: Callable[[ToyBackend], Drafter]
    length: Callable[[], DraftLength] = LENGTHS["fixed"]
    sampling: Sampling = SAMPLINGS["plain"]
    most: int = MOST
    prompt: list[int] = PROMPT
    eos: tuple[int, ...] = ()
    seed: int = 3
    vocab: int = 3
    verifier: Callable[[], Verifier] = Coupled

    @property
    def request(self) -> Request:
        return Request(self.most, self.sampling)


def small_llama(tiny: Callable[..., Path]) -> LlamaBackend:
    folder = tiny("llama", seed=1, vocab_size=3, num_hidden_layers=2, initializer_range=0.15)
    return native(folder, torch.float64)
