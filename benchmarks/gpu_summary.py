"""The figures that a folder of benchmarks/gpu.sh holds so far, in a few lines.

python benchmarks/gpu_summary.py runs/gpu
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    for path in sorted(given.out.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            for line in lines_of(found):
                print(f"{path.stem}: {line}")


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """Of one script's results, told apart by what they hold."""
    if "against" in found:
        yield from _equality(found)
    elif "tokens_per_s" in found:
        yield from _speed(found)
    elif "bandwidth_bytes_per_s" in found:
        yield from _floor(found)
    elif "unequal" in found:
        yield from _rounds(found)
    elif "rows" in found and "clients" in found.get("given", {}):
        yield from _loads(found["rows"])
    elif "faults" in found:
        checks = [name for name in found if name.startswith("check ")]
        yield f"{len(checks)} checks of fused kernels, {len(found['faults'])} faults"
        yield from found["faults"]
    elif "queries_per_s" in found:
        yield (
            f"{found['queries_per_s']:.2f} queries a second, {found['target_tokens_per_s']:.0f} "
            f"tokens a second of the target's, on {found['device']}"
        )


def _equality(found: dict[str, Any]) -> Iterator[str]:
    arms = found["arms"].values()
    same, ties = (sum(a[name] for a in arms) for name in ("equal", "part_at_a_tie"))
    failed, compared = (sum(a[name] for a in arms) for name in ("failed", "compared"))
    yield (
        f"{same} of {compared} answers of {len(arms)} arms equal, {ties} part at a tie, "
        f"{compared - same - ties} elsewhere, {failed} failed; against {found['against']}"
    )
    for label, arm in found["arms"].items():
        apart = arm["compared"] - arm["equal"] - arm["part_at_a_tie"]
        if apart or arm["failed"]:
            yield f"{label}: {apart} apart (gap {arm['largest_gap']:.3g}), {arm['failed']} failed"


def _rounds(found: dict[str, Any]) -> Iterator[str]:
    for name, row in found["arms"].items():
        us = f"{row['round_us']:.0f} us a round"
        if row["device_us"] is not None:
            us += f", {row['device_us']:.0f} of them the device's"
        tokens = f"{row['tokens_per_s']:.0f} tokens a second, {row['tokens_a_round']:.2f} a round"
        yield f"{name}: {tokens}, {us}"
    for tokens, us in found.get("choosing_us", {}).items():
        yield f"choosing {tokens} tokens: {us:.0f} us"
    yield f"unequal answers: {found['unequal'] or 'none'}"


def _loads(rows: list[dict[str, Any]]) -> Iterator[str]:
    for arm, clients in dict.fromkeys((row["arm"], row["clients"]) for row in rows):
        speeds = [
            row["tokens_per_s"] for row in rows if (row["arm"], row["clients"]) == (arm, clients)
        ]
        yield f"{clients} at once, {arm}: {max(speeds):.0f} tokens a second"


def _speed(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['prompts']} prompts {found['note']}".strip()
    for name, speed in sorted(found["tokens_per_s"].items(), key=lambda item: -item[1]):
        ratios = [f"{label} {one['ratio']:.2f}" for label, one in found["ratios"][name].items()]
        yield f"{name}: {speed:.1f} tokens a second, {', '.join(ratios)}"
    for name, why in found["failed"].items():
        yield f"{name} failed: {why[:120]}"


def _floor(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['bandwidth_bytes_per_s'] / 1e9:.0f} GB/s {found['note']}".strip()
    in_a_row = found.get("in_a_row_s", found.get("pass_s", {}))
    for dtype, seconds in in_a_row.items():
        share = found["floor_s"][dtype] / seconds[0]
        alone = found["pass_s"][dtype][0]
        yield (
            f"{dtype}: a pass of one token {seconds[0] * 1e3:.3f} ms in a row, "
            f"{alone * 1e3:.3f} ms alone; {share:.0%} of the bandwidth floor"
        )


if __name__ == "__main__":
    main()
