"""An embedder without a model: which groups of letters a text has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DraftpickError

SETTINGS: dict[str, Any] = {
    "n_features": 512,
    "analyzer": "char_wb",
    "ngram_range": (2, 4),
    "lowercase": True,
    "norm": "l2",
    "alternate_sign": True,
}


class HashingEmbedder:
    """Letters in groups of two to four, hashed into 512 signed counts of norm 1 (Weinberger et al.,
    Feature Hashing, 2009), by scikit-learn. Nothing is downloaded, and a text takes well under a
    millisecond."""

    name = f"hashing@{hashlib.sha256(json.dumps(SETTINGS).encode()).hexdigest()[:12]}"
    dimension = int(SETTINGS["n_features"])

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[n, d] float32."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return np.asarray(self._vectorizer.transform(list(texts)).toarray(), dtype=np.float32)

    @cached_property
    def _vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import HashingVectorizer

        return HashingVectorizer(**SETTINGS)


def load(argument: str = "", device: str = "auto") -> HashingEmbedder:
    """Raises DraftpickError where an argument is given."""
    if argument:
        raise DraftpickError(f"the embedder `hashing` takes nothing after it, not {argument!r}")
    return HashingEmbedder()
