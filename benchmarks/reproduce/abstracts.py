"""Abstracts of imagined papers with a sentence that sums each up, put together from parts.

The T5 family learned to summarise mostly from abstracts of papers on machine learning. These are of
the same kind and ours to ship.
"""

from __future__ import annotations

import random
from itertools import product

from collect.queries import Query

TOPICS = (
    ("image classification", "deep convolutional networks need many labelled images"),
    ("machine translation", "neural models translate rare words poorly"),
    ("reinforcement learning", "agents need millions of steps to learn a simple task"),
    ("graph neural networks", "messages from distant nodes are lost after a few layers"),
    ("generative adversarial networks", "training is unstable and modes are dropped"),
    ("speech recognition", "models trained on clean speech fail in noisy rooms"),
    ("question answering", "models rely on shallow cues of the question"),
    ("continual learning", "networks forget old tasks when they learn new ones"),
    ("network compression", "large models do not fit on small devices"),
    ("domain adaptation", "the distribution of test data differs from that of training data"),
    ("few-shot learning", "only a handful of examples of a new class are available"),
    ("adversarial robustness", "small perturbations of the input change the prediction"),
)
METHODS = (
    ("a simple regularization method", "penalizes large changes of the hidden representation"),
    ("a new attention mechanism", "learns which parts of the input to read first"),
    ("a hierarchical latent variable model", "separates what is shared from what is specific"),
    ("a meta-learning algorithm", "adapts the learning rate of each layer"),
    ("a novel training objective", "maximizes the mutual information between two views"),
    ("a Bayesian approach", "estimates the uncertainty of every prediction"),
    ("a memory-augmented architecture", "stores useful states and retrieves them later"),
    ("an efficient search procedure", "finds small subnetworks that train as well as the whole"),
    ("a curriculum of growing difficulty", "orders the training examples by their loss"),
    ("a contrastive loss", "pulls similar examples together and pushes others apart"),
)
FINDINGS = (
    "Experiments on several benchmarks show that our method outperforms strong baselines.",
    "We show empirically that it achieves state-of-the-art results with half of the parameters.",
    "We prove that it converges under mild assumptions, and confirm this on synthetic data.",
    "Our analysis suggests that the improvement comes from better representations.",
)
HELD_OUT = 3  # topics, the last ones, that come in the test alone


def abstracts(split: str, limit: int) -> list[Query]:
    """The first `limit` in a fixed random order; those of the test have topics of their own."""
    topics = TOPICS[-HELD_OUT:] if split == "test" else TOPICS[:-HELD_OUT]
    found = list(product(topics, METHODS, FINDINGS))
    random.Random(0).shuffle(found)
    return [
        Query(
            id=f"abstracts-{split}-{number:04d}",
            task="summarization",
            turns=(
                f"A central problem of {topic} is that {problem}. In this paper, we propose "
                f"{method} for {topic}, which {does}. Unlike previous work, it needs no additional "
                f"supervision and can be combined with existing models. {finding}",
            ),
            reference=f"We propose {method} for {topic} that {does}.",
            source="draftpick",
        )
        for number, ((topic, problem), (method, does), finding) in enumerate(found[:limit], 1)
    ]
