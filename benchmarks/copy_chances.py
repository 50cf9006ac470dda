"""How often a copied token is accepted, by the length of the match that it follows and by
temperature.

    python benchmarks/copy_chances.py --tokens tokens/held-out-*.npz

Along answers that the target wrote (token files, `benchmarks/write_tokens.py`), at every place: the
longest earlier match of the last tokens, and whether what followed it then follows again. At a
temperature above 0 that is the chance that the target draws a copied token. Printed by match length
as decoders/drafters/copy_chances.py holds them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import torch
from rich.progress import track

from collect.align.tokens import load
from decoders.drafters import MaxGramDrafter

LONGEST = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", nargs="+", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=600, help="a temperature, at most")
    given = parser.parse_args()
    tokens = load(given.tokens)
    tried: dict[float, Counter[int]] = {}
    copied: dict[float, Counter[int]] = {}
    seen: Counter[float] = Counter()
    for row in track(range(len(tokens)), description="matching"):
        warmth = round(float(tokens.temperature[row]), 2)
        seen[warmth] += 1
        if seen[warmth] > given.texts:
            continue
        ids, answer = tokens.text(row).tolist(), int(tokens.answer[row])
        drafter = MaxGramDrafter(torch.device("cpu"), shortest=1, longest=LONGEST)
        drafter.reset(ids[:answer])
        for at in range(answer + 1, len(ids)):
            drafter.commit(ids[:at])
            match = drafter.match(ids[max(0, at - LONGEST) : at])
            if match is not None:
                source, length = match
                tried.setdefault(warmth, Counter())[length] += 1
                copied.setdefault(warmth, Counter())[length] += ids[source] == ids[at]
    for warmth in sorted(tried):
        counts = tried[warmth]
        shares = ", ".join(
            f"{copied[warmth][n] / counts[n]:.2f}" if counts[n] else "-"
            for n in range(1, LONGEST + 1)
        )
        print(f"temperature {warmth:g}, {min(seen[warmth], given.texts)} texts: {shares}")


if __name__ == "__main__":
    main()
