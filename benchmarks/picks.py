"""What it takes to find the likeliest of many tokens, and to draw one by its clock.

    python benchmarks/picks.py --rows 1 5 9 --temperature 0.7

Logits are those that the default target gives in a text; the least of --repeats runs counts, in
microseconds, on one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from decoders import Engine
from decoders.sampling import race
from decoders.sampling.argmax import likeliest

TEXT = (
    "The history of computing began long before the modern era. Whoever wanted to know the length "
    "of a shadow at noon counted steps, and wrote them down for those who came after."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 5, 9])
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--repeats", type=int, default=300)
    given = parser.parse_args()
    target, ids = (engine := Engine.load()).target, engine.encode_text(TEXT)
    torch.set_num_threads(1)
    target.prefill(ids[:5])
    logits = target.extend(torch.tensor(ids[5 : 5 + max(given.rows)])).clone()
    few = torch.randperm(logits.shape[1], generator=torch.Generator().manual_seed(0))[:8191]
    few = few.sort().values

    def least(work: Callable[[], object]) -> float:
        took = []
        for _ in range(given.repeats):
            started = time.perf_counter()
            work()
            took.append(time.perf_counter() - started)
        return round(min(took) * 1e6, 1)

    for count in given.rows:
        rows = logits[:count]
        print(
            f"{count} rows of {rows.shape[1]}: likeliest {least(lambda: likeliest(rows))}, "  # noqa: B023
            f"draw {least(lambda: race.pick(rows, given.temperature, 5, 0))}"  # noqa: B023
        )
    one = logits[:1, few].contiguous()
    print(f"a draw of {len(few)}: {least(lambda: race.pick(one, given.temperature, 5, 0, few))}")


if __name__ == "__main__":
    main()
