"""The kernels of recorded rounds against the same by PyTorch. Run by test_row_kernels.py, in a
process of its own that interprets them where there is no GPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from decoders.backends.cuda import round_kernels as kernels
from decoders.backends.cuda.rounds import accept
from decoders.device_rounds import BEFORE, WIDEST, DeviceSequence
from decoders.methods.max_gram.device import FROM_TABLE, Copies

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def placed(line: list[int], room: int) -> DeviceSequence:
    padded = torch.full((BEFORE + room + WIDEST,), 7)
    padded[:BEFORE] = -1
    padded[BEFORE : BEFORE + len(line)] = torch.tensor(line)
    state = torch.tensor([len(line), line[-1], len(line) - 1])
    return DeviceSequence(padded.to(DEVICE), state.to(DEVICE), room, 0)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("earliest", [False, True])
@pytest.mark.parametrize("how", ["nothing", "table", "draft"])
def test_copies(seed: int, earliest: bool, how: str) -> None:
    drawn = random.Random(seed)
    room = drawn.choice([64, 1024, 1500])
    line = [drawn.randrange(drawn.choice([3, 40])) for _ in range(drawn.randint(1, room - 20))]
    table = torch.tensor([drawn.randrange(40) for _ in range(30)], device=DEVICE)
    draft = None
    if how == "draft":
        draft = torch.tensor([drawn.randrange(40) for _ in range(seed % 4)], device=DEVICE).long()
    shortest = drawn.randint(1, 4)
    copies = Copies(shortest, shortest + drawn.randint(0, 9), earliest, table)
    if how == "nothing":
        copies = Copies(shortest, shortest + 3, earliest)
    place, k = placed(line, room), drawn.choice([1, 7, 15])
    ids, found = copies.copied(replace(place, copy=kernels.copy), k, draft)
    expected, was = copies.copied(place, k, draft)
    assert found.tolist() == was.tolist()
    assert ids.tolist() == expected.tolist()
    assert kernels._copy.arg_names.index("FROM_TABLE") and FROM_TABLE == 4


@pytest.mark.parametrize("k", [0, 1, 7, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_becomes_of_a_draft(k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(k)
    for right in range(k + 1):
        best = torch.randint(0, 50, (k + 1,), generator=generator)
        drafted = best[:k].clone()
        if right < k:
            drafted[right] += 1
        logits = torch.randn(k + 1, 64, generator=generator).to(dtype)
        if right % 2:
            logits[right, best[right]] = float("nan")
        results = []
        for way in (kernels.accept, accept):
            place = placed([1, 2, 3, 4], 64)
            after, record = torch.zeros(3).long().to(DEVICE), torch.zeros(3 + k).long().to(DEVICE)
            of = torch.tensor([right % 2], device=DEVICE)
            parts = (x.to(DEVICE) for x in (best, logits))
            way(drafted.to(DEVICE), of, *parts, place.ids, place.state, after, record)
            written = place.ids[4 : 5 + right].tolist()
            results.append((after.tolist(), record.tolist(), written))
        assert results[0] == results[1]
        assert results[0][1][:2] == [right, right % 2]
        assert results[0][0] == [5 + right, int(best[right]), 4 + right]
