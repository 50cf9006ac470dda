"""vLLM's own server on the default target, in the environment of `make engines`."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from real_servers import CLIENTS, ENGINES, ROOT, Server, free_port, started

BIN = ENGINES / "vllm" / "bin"
MOST = 8  # tokens of a draft
QUERIES = 24  # every third of the shortest


@contextmanager
def served(
    folder: Path,
    proposer: str | None = None,
    speculative: dict[str, Any] | None = None,
    options: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[Server]:
    """`vllm serve` on the default target, which decodes plainly unless told.

    proposer: a class of ours, by the folder's options.json where it has one. speculative: a
    configuration of vLLM's own in its place.
    options: more words of the command line.
    """
    from decoders.zoo import fetch
    from decoders.zoo.catalogue import TARGET

    if not (BIN / "vllm").exists():
        pytest.fail(f"there is no vLLM in {BIN}; run `make engines`")
    port = port or free_port()
    words = [str(BIN / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(fetch(TARGET)), "--served-model-name", "target"]
    words += ["--port", str(port), "--enforce-eager", "--dtype", "float32"]
    words += ["--max-model-len", "1024", "--max-num-seqs", str(CLIENTS)]
    words += ["--no-enable-prefix-caching", *options]
    if speculative is not None:
        words += ["--speculative-config", json.dumps(speculative)]
    elif proposer is not None:
        chosen = {"model": proposer, "num_speculative_tokens": MOST}
        words += ["--speculative-config", json.dumps(chosen)]
        if (place := folder / "options.json").exists():
            words += ["--additional-config", json.dumps({"draftpick": str(place)})]
    paths = os.pathsep.join([str(folder), str(ROOT)])
    with started(words, port, folder, {"VLLM_CPU_KVCACHE_SPACE": "2", "PYTHONPATH": paths}) as one:
        yield one


def queries(many: int = QUERIES) -> list[str]:
    """The shortest that ship."""
    from collect.queries import shipped

    texts = sorted((query.turns[0] for query in shipped("train")), key=len)
    return texts[: 3 * many : 3]
