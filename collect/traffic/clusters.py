"""Kinds of work, found by the words of what was asked: for traffic that names no tasks."""

from __future__ import annotations

from collections.abc import Sequence

from .records import LoggedAnswer

MIN_ANSWERS = 40  # answers below which all are one kind
SHOWN_CHARACTERS = 4000  # characters of what was asked, from its beginning and from its end
NAME_WORDS = 3  # that a cluster is called by
UNNAMED = "other"


def tasks_of(answers: Sequence[LoggedAnswer], most: int, seed: int = 0) -> list[str]:
    """[n] what each answer's line calls its task, else the cluster of its last user message."""
    unnamed = [at for at, each in enumerate(answers) if each.task is None]
    named = clusters([answers[at].asked for at in unnamed], most, seed)
    found = dict(zip(unnamed, named, strict=True))
    return [each.task or found[at] for at, each in enumerate(answers)]


def clusters(texts: Sequence[str], most: int, seed: int = 0) -> list[str]:
    """[n] which cluster each text is of, called by the words that are typical of it.

    most: clusters; fewer where there are few texts.

    k-means over tf-idf weighted words (scikit-learn).
    """
    import numpy as np
    from sklearn.cluster import KMeans
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

    distinct = list(dict.fromkeys(texts))
    many = min(most, len(distinct) // (MIN_ANSWERS // 4))
    if len(texts) < MIN_ANSWERS or many < 2:
        return [UNNAMED] * len(texts)
    shown = [
        text
        if len(text) <= 2 * SHOWN_CHARACTERS
        else text[:SHOWN_CHARACTERS] + text[-SHOWN_CHARACTERS:]
        for text in distinct
    ]
    # no stop words of one language: what nearly all texts have says nothing
    words = TfidfVectorizer(max_features=4096, sublinear_tf=True, max_df=0.5, min_df=2)
    try:
        weights = words.fit_transform(shown)
    except ValueError:  # no word is in two texts
        return [UNNAMED] * len(texts)
    found = KMeans(many, n_init=4, random_state=seed).fit(weights)
    vocabulary = words.get_feature_names_out()
    overall = np.asarray(weights.mean(axis=0)).ravel()
    names: list[str] = []
    for centre in found.cluster_centers_:
        typical = [at for at in np.argsort(overall - centre) if centre[at] > overall[at]]
        telling = [at for at in typical if vocabulary[at] not in ENGLISH_STOP_WORDS] or typical
        name = " ".join(str(vocabulary[at]) for at in telling[:NAME_WORDS]) or UNNAMED
        names.append(name if name not in names else f"{name} {len(names) + 1}")
    of = dict(zip(distinct, (names[label] for label in found.labels_.tolist()), strict=True))
    return [of[text] for text in texts]
