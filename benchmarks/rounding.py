"""What rounding costs: a target's next-token chances by each --dtype beside those in float32.

Printed for each: the divergence of its chances from float32's (nats a token), how often the
likeliest token is the same, and the difference of the mean log loss on the texts, which are read in
windows. Standard errors take windows for independent.

    python benchmarks/rounding.py --target MODEL.gguf --texts docs/usage.md decoders/engine.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from decoders import Engine
from decoders.arms import AUTOREGRESSIVE
from decoders.common.provenance import hardware


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--texts", nargs="+", type=Path, required=True)
    parser.add_argument("--dtype", nargs="+", default=["file"], help="default: file")
    parser.add_argument("--window", type=int, default=256, help="tokens (default: 256)")
    parser.add_argument("--windows", type=int, default=8, help="read at most (default: 8)")
    given = parser.parse_args()
    texts = [path.read_text(encoding="utf-8") for path in given.texts]
    print(hardware())
    exact = list(chances(given, "float32", texts))
    for dtype in given.dtype:
        rows = [
            compared(ids, one, other)
            for (ids, one), (_, other) in zip(exact, chances(given, dtype, texts), strict=True)
        ]
        means, errors = spread(torch.stack(rows))
        print(
            f"{dtype}: divergence {means[0]:.5f} +- {errors[0]:.5f}, same likeliest token "
            f"{means[1]:.1%}, log loss {means[2]:+.5f} +- {errors[2]:.5f}"
        )


def chances(
    given: argparse.Namespace, dtype: str, texts: list[str]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each window its ids [n] and the logarithms of all tokens' chances after each [n, V]."""
    backend = "native" if dtype == "float32" else "auto"
    engine = Engine.load(
        given.target, only=[AUTOREGRESSIVE], dtype=dtype, backend=backend, device="cpu"
    )
    windows = [part for text in texts for part in parts(engine, text, given.window)]
    for ids in windows[:: max(1, len(windows) // given.windows)][: given.windows]:
        engine.target.truncate(0)
        yield ids, engine.target.extend(ids).float().log_softmax(-1)


def parts(engine: Engine, text: str, window: int) -> list[Tensor]:
    """Whole windows alone, each with the token before it that a text begins with, if one does."""
    ids = engine.encode_text(text)
    begin = [ids[0]] if ids[0] == engine.tokenizer.bos_token_id else []
    rest = ids[len(begin) :]
    starts = range(0, len(rest) - window + 1, window)
    return [torch.tensor(begin + rest[at : at + window]) for at in starts]


def compared(ids: Tensor, exact: Tensor, other: Tensor) -> Tensor:
    """A window's mean divergence, share of equal likeliest tokens, and difference of log loss."""
    divergence = (exact.exp() * (exact - other)).sum(-1).mean()
    same = (exact.argmax(-1) == other.argmax(-1)).float().mean()
    after = ids[1:, None]
    loss = (exact[:-1].gather(1, after) - other[:-1].gather(1, after)).mean()
    return torch.stack([divergence, same, loss])


def spread(rows: Tensor) -> tuple[list[float], list[float]]:
    """Means and standard errors of [windows, 3]."""
    errors = rows.std(0) / len(rows) ** 0.5
    return rows.mean(0).tolist(), errors.tolist()


if __name__ == "__main__":
    main()
