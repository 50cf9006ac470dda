"""Pack queries and what a target wrote for them into a token file, which train_recurrent.py reads.

python benchmarks/pack_tokens.py --queries queries/*.jsonl --outputs answers.jsonl --out t.npz
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from token_files import save

from collect.align.calibration import read_outputs
from collect.align.tokens import Text
from collect.queries import read_queries
from decoders.common.errors import DraftpickError
from decoders.models import targets
from decoders.zoo import TARGET


def texts(queries: list[Path], outputs: list[Path], target: str, most: int) -> Iterator[Text]:
    """Each output after its query's first turn, as the target's chat has it."""
    folder = targets.resolve(target)
    tokenizer, eos = targets.load_tokenizer(folder), targets.eos_ids(folder)
    by_id = {query.id: query for query in read_queries(queries)}
    for path in outputs:
        for number, row in enumerate(read_outputs(path)):
            if number == most:
                break
            query = by_id.get(str(row["id"]))
            if query is None:
                raise DraftpickError(f"{path}: no query has the id {row['id']!r}")
            prompt = query.prompt(partial(targets.encode_chat, tokenizer))
            answer = row.get("ids")
            if answer is None:
                answer = list(tokenizer.encode(row["output"], add_special_tokens=False))
                answer += eos[:1] if row.get("ended") else ()
            temperature = float(row.get("temperature", 0.0))
            yield Text(prompt + list(answer), len(prompt), query.task, temperature)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queries", type=Path, nargs="+", required=True, help="query files")
    parser.add_argument("--outputs", type=Path, nargs="+", required=True, help="outputs files")
    parser.add_argument("--out", type=Path, required=True, help="token file, .npz")
    parser.add_argument("--target", default=TARGET, help="whose tokens")
    parser.add_argument("--most", type=int, default=-1, help="lines of each outputs file; -1: all")
    given = parser.parse_args()
    save(given.out, texts(given.queries, given.outputs, given.target, given.most))


if __name__ == "__main__":
    main()
