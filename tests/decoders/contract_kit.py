"""Every method on every backend, for suites that hold for all."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from backend_toys import make
from decoder_toys import Tiny, random_cell, save_cell
from eagle3_toys import save_head
from t5_toys import seq2seq

from decoders import Engine
from decoders.arms import recipe
from decoders.backends.exit_adapter import Adapter
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.seq2seq_exit import plain_lens
from decoders.protocols import DraftLength, EncoderDecoder
from decoders.records import StepStats
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.tokenizers import Letters

Engines = Callable[[str], Engine]  # `engines`
SMALL = {"kind": "neural", "drafter": "small"}
COPY = {"kind": "max_gram", "shortest": 1}
CELL = {"kind": "recurrent", "drafter": "cell"}
HEAD = {"kind": "eagle3", "drafter": "head"}
METHODS: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "neural": {"length": {"k": 3}, **SMALL},
    "neural-adaptive": {"length": {"kind": "adaptive", "k": 5}, **SMALL},
    "neural-scheduled": {"length": {"kind": "scheduled", "k": 2}, **SMALL},
    "neural-near": {"length": {"k": 3}, "prompt_window": 4, **SMALL},
    "neural-unsure": {"length": {"k": 5, "min_confidence": 0.6}, **SMALL},
    "max-gram": {"length": {"k": 4}, **COPY},
    "max-gram-unsure": {"length": {"k": 6}, "stop_below": 0.4, **COPY},
    "early-exit": {"kind": "early_exit", "drafter": "exit", "length": {"k": 3}},
    "early-exit-tree": {
        "kind": "early_exit", "drafter": "exit", "length": {"k": 3}, "branch": [3, 2]
    },
    "recurrent": {"length": {"k": 3}, **CELL},
    "recurrent-tree": {"length": {"k": 3}, "branch": [3, 2], **CELL},
    "recurrent-unsure": {"length": {"k": 5, "min_confidence": 0.4}, **CELL},
    "recurrent-verified": {
        "kind": "vertical", "review": "small", "inner": CELL, "length": {"k": 5},
    },
    "recurrent-after-copy": {
        "kind": "horizontal", "parts": [{"length": {"k": 2}, **COPY}, {"length": {"k": 3}, **CELL}]
    },
    "eagle3": {"length": {"k": 3}, **HEAD},
    "eagle3-tree": {"length": {"k": 3}, "branch": [2, 2], "every": True, **HEAD},
    "eagle3-unsure": {"length": {"k": 5, "min_confidence": 0.4}, **HEAD},
    "eagle3-after-copy": {
        "kind": "horizontal", "parts": [{"length": {"k": 2}, **COPY}, {"length": {"k": 3}, **HEAD}]
    },
    "hybrid-eagle3": {"kind": "hybrid", "model": HEAD, "shortest": 1, "length": {"k": 4}},
    "lossy": {"verifier": {"rule": "lossy", "alpha": 0.3}, **SMALL},
    "lossy-star": {"verifier": {"rule": "lossy_star", "kl_budget": 0.1}, **SMALL},
    "chow": {"verifier": {"rule": "chow", "alpha": 0.6}, **SMALL},
    "diff": {"verifier": {"rule": "diff", "alpha": 0.2}, **SMALL},
    "opt": {"verifier": {"rule": "opt", "alpha": 0.2, "log_loss": True}, **SMALL},
    "bild-star": {"verifier": {"rule": "bild_star", "alpha": 2}, **SMALL},
    "bild": {
        "length": {"k": 10, "min_confidence": 0.3},
        "verifier": {"rule": "bild", "rollback": 2},
        **SMALL,
    },
    "vertical": {
        "kind": "vertical", "review": "small", "lenience": 2, "inner": COPY, "length": {"k": 5},
    },
    "suffix": {"length": {"k": 4}},
    "suffix-tree": {"kind": "suffix", "width": 3, "nodes": 6, "length": {"k": 4}},
    "hybrid-suffix": {"kind": "hybrid", "model": SMALL, "suffix": True, "length": {"k": 4}},
    "hybrid": {"kind": "hybrid", "model": SMALL, "shortest": 1, "length": {"k": 4}},
    "horizontal": {
        "kind": "horizontal", "parts": [{"length": {"k": 2}, **SMALL}, {"length": {"k": 3}, **COPY}]
    },
    "cs-drafting": {
        "kind": "cs_drafting", "models": ["small", COPY], "K": [[2, 3], [0, 3]], "lenience": 2
    },
    "cs-drafting-tree": {
        "kind": "cs_drafting", "models": ["small", COPY], "K": [[1, 3], [0, 1]], "branch": [4]
    },
    "hierarchy": {"kind": "hierarchy", "middle": "small", "small": COPY, "length": {"k": 4}},
    "tree": {"kind": "tree", "drafter": "small", "branch": [3, 2], "length": {"k": 4}},
    "tree-every": {
        "kind": "tree", "drafter": "small", "branch": [2, 2], "every": True, "length": {"k": 3}
    },
    "token-cascade": {"kind": "token_cascade", "alpha": 0.6, "drafter": SMALL},
    "sequence-cascade": {"kind": "sequence_cascade", "alpha": 0.5, "drafter": SMALL},
    "oracle-cascade": {"kind": "oracle_cascade", "alpha": 0.1, "drafter": SMALL},
    "calm": {"kind": "calm", "threshold": 0.9},
    "beam": {"kind": "beam", "beams": 3},
    "beam-drafted": {"kind": "beam", "beams": 2, "drafter": SMALL, "length": {"k": 2}},
    "sampled-beams": {
        "kind": "sampled_beams", "beams": 2, "drafter": {"length": {"k": 3}, **SMALL}
    },
}  # fmt: skip
BACKENDS = (
    "native-float32",
    "native-recorded",
    "native-int8",
    "native-int4-rows",
    "native-file-rows",
    "hf",
    "hf-windows",
    "hf-seq2seq",
)
ON_ITS_LAYERS = (
    "early-exit",
    "early-exit-tree",
    "calm",
)  # which transformers' decoders do not let run
EVERYWHERE = (
    "autoregressive",
    "neural",
    "tree",
    "early-exit",
    "recurrent",
    "eagle3",
    "calm",
    "beam",
    "token-cascade",
)
TOKEN_BY_TOKEN = ("token-cascade", "oracle-cascade", "calm")  # an end changes nothing before it
SAME_TWICE = [m for m in METHODS if not m.startswith("beam") and m != "neural-adaptive"]
PROMPTS = ([3], [3, 1, 4, 1, 5, 1])
LONG = 12
IN_BATCHES = ("native-float32", "hf", "hf-seq2seq")  # others have near-ties in a batch


@pytest.fixture(scope="module")
def engines(tiny: Tiny, tiny_t5: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """backend -> an engine with every strategy that it has; its arms are built when asked for."""

    @cache
    def engine(backend: str) -> Engine:
        target = make(backend, tiny, tiny_t5)
        exit_folder, cell_folder, head_folder = (
            tmp_path_factory.mktemp(kind) for kind in ("exit", "cell", "head")
        )
        save_head(head_folder, kept=[*range(1, 15)])
        save_cell(cell_folder, random_cell(32, 1), DraftVocab([*range(1, 15)], 16))
        if isinstance(target, EncoderDecoder):
            small = tiny_t5(seed=5)
            plain_lens(seq2seq(tiny_t5()), 1).save(exit_folder)
        else:
            small = tiny(seed=5, num_hidden_layers=2)
            if isinstance(target, LlamaBackend):
                Adapter.begin(target, AdapterConfig(1)).save(exit_folder)
        places = {"small": str(small), "exit": str(exit_folder), "cell": str(cell_folder)}
        places["head"] = str(head_folder)
        known = {name: placed({"kind": name, **body}, places) for name, body in METHODS.items()}
        if backend in ("hf", "hf-windows"):
            known = {name: body for name, body in known.items() if name not in ON_ITS_LAYERS}
        if isinstance(target, EncoderDecoder):
            known = {name: body for name, body in known.items() if "eagle3" not in name}
        arms = {name: recipe(name=name, **body) for name, body in known.items()}
        return Engine(target, arms, tokenizer=Letters())

    return engine


def placed(value: Any, places: dict[str, str]) -> Any:
    """A recipe's mapping with folders for names."""
    if isinstance(value, list):
        return [placed(part, places) for part in value]
    if isinstance(value, dict):
        return {key: placed(part, places) for key, part in value.items()}
    return places.get(value, value) if isinstance(value, str) else value


def on_backends(names: Iterable[str], backends: Sequence[str] = BACKENDS) -> pytest.MarkDecorator:
    """Each method on the first backend, and on the others those that touch a backend in a way of
    their own, of which each on every third of them."""

    def usual(name: str, backend: str) -> bool:
        if backend == BACKENDS[0] or name not in EVERYWHERE:
            return backend == BACKENDS[0]
        return (EVERYWHERE.index(name) + BACKENDS.index(backend)) % 3 == 0

    return pytest.mark.parametrize(
        ("name", "backend"),
        [
            pytest.param(
                name,
                backend,
                id=f"{backend}-{name}",
                marks=[
                    pytest.mark.xdist_group(backend),  # its engine is made once
                    *(() if usual(name, backend) else (pytest.mark.slow,)),
                ],
            )
            for backend in backends
            for name in names
        ],
    )


def ready(engines: Engines, backend: str, name: str) -> Engine:
    engine = engines(backend)
    if name not in engine.arms:
        pytest.skip("it needs a target whose layers can be run apart")
    return engine


class Untimed:
    """A draft length by a clock that stands still, so that a loop can be repeated."""

    def __init__(self, length: DraftLength) -> None:
        self._length, self.min_confidence = length, length.min_confidence
        self.next, self.reset = length.next, length.reset

    def observe(self, stats: StepStats) -> None:
        self._length.observe(replace(stats, draft_s=0.001 * stats.drafted, verify_s=0.01))
