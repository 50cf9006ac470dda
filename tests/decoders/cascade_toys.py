"""Cascades of toy models."""

from collections.abc import Callable

from decoder_toys import max_gram, reduced
from hypothesis import strategies as st

from decoders.lengths import AdaptiveLength, FixedLength
from decoders.models.drafts import MappedBackend
from decoders.papers.cs_drafting.drafters import HorizontalDrafter, Part, VerticalDrafter
from decoders.protocols import Backend, Drafter, DraftLength
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.toys import ToyBackend, neural


def vertical(
    verifier_model: Backend, inner: Drafter, length: DraftLength | int = 2, lenience: float = 1.0
) -> VerticalDrafter:
    rule = FixedLength(length) if isinstance(length, int) else length
    return VerticalDrafter(verifier_model, inner, rule, lenience)


def hierarchy(middle: Backend, small: Drafter, length: int = 2) -> VerticalDrafter:
    return VerticalDrafter(middle, small, FixedLength(length), writes_on=True)


def part_of_vocabulary(kept: list[int], target_vocab: int, seed: int) -> MappedBackend:
    """A verifying model over a part of the target's vocabulary."""
    vocab = DraftVocab(kept, target_vocab)
    return MappedBackend(ToyBackend.random(vocab.size, seed, 1.0), vocab)


def toy(seed: int, vocab: int = 3) -> ToyBackend:
    return ToyBackend.random(vocab, seed, 1.0)


V = 5
seeds = st.integers(0, 99)
tokens = st.integers(1, 5)
leniences = st.sampled_from([1.0, 1.5, 3.0, 100.0])

leaves: st.SearchStrategy[Callable[[], Drafter]] = st.one_of(
    st.builds(lambda seed: lambda: neural(V, seed), seeds),
    st.builds(lambda seed: lambda: reduced([0, 2, 3], V, seed), seeds),
    st.builds(lambda n: lambda: max_gram([1, 3, -1, 0, 2], shortest=n), st.integers(1, 2)),
    st.just(lambda: max_gram(shortest=1, earliest=True)),
)


def nested(
    inner: st.SearchStrategy[Callable[[], Drafter]],
) -> st.SearchStrategy[Callable[[], Drafter]]:
    return st.one_of(
        st.builds(
            lambda seed, make, k, lenience: lambda: vertical(toy(seed, V), make(), k, lenience),
            *(seeds, inner, tokens, leniences),
        ),
        st.builds(
            lambda seed, make, k: (
                lambda: vertical(
                    part_of_vocabulary([0, 1, 3], V, seed), make(), AdaptiveLength(k, 0.3), 2.0
                )
            ),
            *(seeds, inner, tokens),
        ),
        st.builds(
            lambda seed, make, k: lambda: hierarchy(toy(seed, V), make(), k), seeds, inner, tokens
        ),
        st.builds(
            lambda parts: lambda: HorizontalDrafter([Part(make(), k, c) for make, k, c in parts]),
            st.lists(st.tuples(inner, tokens, st.sampled_from([0.0, 0.5])), min_size=1, max_size=3),
        ),
    )


cascades = nested(st.recursive(leaves, nested, max_leaves=4))
