"""What keys and values in 8 bits lose: along the plain model's own greedy answers, how far the
distributions are apart and how often the likeliest token is another, by the length of the context.

    python benchmarks/kv_loss.py --target MODEL --context 1000 8000 --out kv_loss.json

The contexts are shipped queries, one after the other up to the length. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from itertools import cycle, islice
from pathlib import Path

import torch
from rich.progress import track

from collect.queries import shipped
from decoders import Engine, EngineOptions
from decoders.records import Request

PLAIN = ("autoregressive",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default=EngineOptions.target)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--context", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--texts", type=int, default=8, help="of each length")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    options = EngineOptions(given.target, dtype=given.dtype)
    plain, small = (
        Engine.load(given.target, only=list(PLAIN), dtype=given.dtype, kv_dtype=kv)
        for kv in ("auto", "int8")
    )
    request = Request(given.max_new_tokens)
    found = []
    for length in given.context:
        apart: list[torch.Tensor] = []
        others = 0
        for start in track(range(given.texts), f"{length} tokens"):
            ids = context(plain, length, start)
            answer = plain.decode(PLAIN[0], ids, request).ids
            exact, rough = (log_p(each, ids, answer) for each in (plain, small))
            apart.append((exact.exp() * (exact - rough)).sum(-1))
            others += int((exact.argmax(-1) != rough.argmax(-1)).sum())
        nats = torch.cat(apart)
        found.append(
            {
                "context": length,
                "tokens": len(nats),
                "mean_nats": float(nats.mean()),
                "p99_nats": float(nats.quantile(0.99)),
                "other_token_share": others / len(nats),
            }
        )
        print(json.dumps(found[-1]), flush=True)
    told = {"target": small.target_fingerprint, "dtype": options.dtype, "lengths": found}
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def context(engine: Engine, length: int, start: int) -> list[int]:
    """A chat of so many tokens at most."""
    queries = [query.turns[0] for query in shipped("test")]
    text = "\n\n".join(islice(cycle(queries), start, start + 1 + length // 50))
    ids = engine.encode_chat([{"role": "user", "content": text}])
    return ids[-length:]


@torch.inference_mode()
def log_p(engine: Engine, ids: list[int], answer: list[int]) -> torch.Tensor:
    """[T, V] log-probabilities in front of each of the answer's tokens, in float64."""
    first = engine.prefill(ids).logits.unsqueeze(0)
    rest = [engine.target.extend(torch.tensor([token])) for token in answer[:-1]]
    return torch.cat([first, *rest]).double().log_softmax(-1)


if __name__ == "__main__":
    main()
