"""llama.cpp's server on a GGUF file, by the package xllamacpp: a deployment to try endpoints on.

    pip install xllamacpp
    python benchmarks/llama_server.py MODEL.gguf --port 8191
    python benchmarks/llama_server.py MODEL.gguf --port 8192 --drafts ngram
    python benchmarks/llama_server.py MODEL.gguf --port 8193 --drafts model --draft SMALL.gguf

It runs until it is stopped. Prompts are read anew for every request, so that questions may be asked
again while speeds are compared.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--drafts", choices=("none", "ngram", "model"), default="none")
    parser.add_argument("--draft", type=Path, help="the draft model's GGUF file")
    parser.add_argument("--slots", type=int, default=8, help="answers at once")
    parser.add_argument("--context", type=int, default=2048, help="of each, in tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if (given.drafts == "model") != (given.draft is not None):
        parser.error("--drafts model and --draft go together")
    # Else its threads spin while others have work, which costs half of the speed or more here.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from xllamacpp import CommonParams, Server
    from xllamacpp import common_speculative_type as kinds

    params = CommonParams()
    params.model.path, params.port, params.verbosity = str(given.gguf), given.port, -1
    params.n_parallel, params.n_ctx = given.slots, given.slots * given.context
    params.cache_prompt, params.endpoint_metrics = False, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    if given.drafts == "ngram":
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    if given.drafts == "model":
        draft = params.speculative.draft
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft.mparams.path = str(given.draft)
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = given.threads
    server = Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
