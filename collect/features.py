"""Features of a request: what a policy may read of it besides the query's embedding.

Each is a function of what is known before decoding, the same while rewards become a table
(`table.py`) and while a router answers. To add one, write a function of a RequestContext and name
it in FEATURES; no new collection is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import NoSuchName
from decoders.common.plugins import watched

FEATURE_TOKENS = 1024  # tokens of a prompt, from its end, that features of its content look at


@dataclass(frozen=True)
class RequestContext:
    """What is known of a request before it is decoded.

    prompt_ids: [S] the chat as the target reads it, S >= 1.
    max_new_tokens: of the answer, at most.
    temperature: 0 for greedy.
    running: other requests that the machine decodes at the same time.
    cached: of the prompt's tokens, those at its beginning that the target need not read again.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0
    running: int = 0
    cached: int = 0


Feature = Callable[[RequestContext], float]


def temperature(context: RequestContext) -> float:
    """The sampling temperature."""
    return context.temperature


def greedy(context: RequestContext) -> float:
    """1 at temperature 0, else 0."""
    return float(context.temperature == 0)


def log_prompt_length(context: RequestContext) -> float:
    """Natural logarithm of the prompt's tokens."""
    return math.log(max(1, len(context.prompt_ids)))


def log_max_new_tokens(context: RequestContext) -> float:
    """Natural logarithm of the tokens that the answer may have."""
    return math.log(context.max_new_tokens)


def requests_running(context: RequestContext) -> float:
    """log(1 + the other requests being decoded)."""
    return math.log1p(context.running)


def repeated_bigrams(context: RequestContext) -> float:
    """The share of the prompt's pairs of tokens that occurred in it before: how well its text could
    be copied from itself. Over its last FEATURE_TOKENS tokens; 0 where it has fewer than two."""
    ids = context.prompt_ids[-FEATURE_TOKENS:]
    pairs = len(ids) - 1
    return 1 - len(set(pairwise(ids))) / pairs if pairs > 0 else 0.0


def prefix_share(context: RequestContext) -> float:
    """The share of the prompt's tokens that were read before and kept."""
    return context.cached / max(1, len(context.prompt_ids))


FEATURES: dict[str, Feature] = watched(
    "feature",
    {
        "temperature": temperature,
        "greedy": greedy,
        "log-prompt-length": log_prompt_length,
        "log-max-new-tokens": log_max_new_tokens,
        "requests-running": requests_running,
        "repeated-bigrams": repeated_bigrams,
        "prefix-share": prefix_share,
    },
)


def varying(
    names: Sequence[str], contexts: Sequence[RequestContext]
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """The names whose values are not the same for all of n requests, and their values [n, f]."""
    values = np.array([feature_vector(names, context) for context in contexts])
    varies = (values != values[0]).any(axis=0)
    return tuple(name for name, does in zip(names, varies, strict=True) if does), values[:, varies]


def feature_vector(names: Sequence[str], context: RequestContext) -> NDArray[np.float32]:
    """[f] float32, in the order of names; raises NoSuchName with the names that exist."""
    for name in names:
        if name not in FEATURES:
            raise NoSuchName("feature", name, tuple(FEATURES))
    return np.array([FEATURES[name](context) for name in names], dtype=np.float32)
