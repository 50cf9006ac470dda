"""Answer files as Spec-Bench writes them, so that its own scripts can read ours."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoders.common.files import write_atomically
from decoders.records import DecodeResult

from .protocol import spec_bench_category
from .records import Row


def write_answers(folder: Path, target: str, rows: Sequence[Row]) -> list[Path]:
    """One `answers/<target>-<method>.jsonl` a method; failed answers are left out of it."""
    methods = list(dict.fromkeys(method for row in rows for method in row.answers))
    written = []
    for method in methods:
        model_id = re.sub(r"[^\w.+-]+", "_", f"{target}-{method}")
        lines = [
            json.dumps(_answer(row, method, model_id), ensure_ascii=False) + "\n"
            for row in sorted(rows, key=lambda row: _question_id(row.question_id, pad=True))
            if method in row.answers and row.answers[method].error is None
        ]
        path = folder / "answers" / f"{model_id}.jsonl"
        write_atomically(path, "".join(lines))
        written.append(path)
    return written


def accept_lengths(result: DecodeResult) -> list[int]:
    """Tokens that each round gave, the target's own included, the longest first.

    Rebuilt from how often each position was accepted, so the rounds' order is not kept. A last
    round that ends inside its draft gives no token of the target's own: one length is lowered for
    it.
    """
    at_least = [result.rounds, *result.accepted_per_position, 0]  # rounds with n or more accepted
    lengths = [
        accepted + 1
        for accepted in range(len(at_least) - 2, -1, -1)
        for _ in range(at_least[accepted] - at_least[accepted + 1])
    ]
    excess = sum(lengths) - max(len(result.ids) - 1, 0)
    if lengths and 0 < excess < lengths[0]:
        lengths[0] -= excess
    return lengths


def _answer(row: Row, method: str, model_id: str) -> dict[str, Any]:
    turns = row.answers[method].turns
    return {
        "question_id": _question_id(row.question_id),
        "category": spec_bench_category(row.task, row.category),
        "answer_id": uuid.uuid5(uuid.NAMESPACE_OID, f"{model_id}/{row.question_id}").hex,
        "model_id": model_id,
        "choices": [
            {
                "index": 0,
                "turns": [turn.result.text.strip() for turn in turns],
                "decoding_steps": [turn.result.rounds for turn in turns],
                "new_tokens": [len(turn.result.ids) for turn in turns],
                "wall_time": [turn.wall_s for turn in turns],
                "accept_lengths": [n for turn in turns for n in accept_lengths(turn.result)],
            }
        ],
        "tstamp": row.tstamp,
    }


def _question_id(identity: str, pad: bool = False) -> int | str:
    """Spec-Bench's ids are numbers; ours stay as they are. pad: a string that sorts by number."""
    if not identity.isdecimal():
        return identity
    return identity.zfill(12) if pad else int(identity)
