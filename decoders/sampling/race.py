"""The token at a place of a sequence, drawn by numbers of that place which any model may use.

Every token of the vocabulary has a clock, an exponential waiting time that is a function of (key,
place, token) alone. The token whose clock, run at the rate of its probability, rings first has that
distribution: argmax of log p - log E (Gumbel-max). A target and a drafter that go by the same
clocks mostly agree, without either knowing of the other (Daliri and others, 2024, "Coupling without
communication and drafter-invariant speculative decoding"). So what is written depends on the target
and on the key, whatever is drafted.

Clocks are drawn by blocks of neighbouring tokens, to know which blocks cannot win without asking
each of their tokens: the first to ring of n equal clocks rings after E / n, each is as likely to be
that one, and the others have then waited in vain: their times to go are new ones. The numbers are
those of Philox4x32-10 (Salmon and others, 2011, "Parallel random numbers: as easy as 1, 2, 3"), the
same bits on every device. The race itself is run in float64, where the logarithms of different
devices differ in the last bit alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass
class SamplingKernels:
    """Functions of the kernels in C++ and in Triton (backends/cpp_kernels.py, and race_kernel.py in
    backends/cuda); None until they are loaded.

    pick, pick_chain: as `race.pick` of tensors, and of numbers. On CUDA of one token a row.
    """

    pick: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, int], Tensor] | None = None
    pick_chain: Callable[[Tensor, float, int, int, Tensor | None, int], Tensor] | None = None


ON_CPU, ON_CUDA = SamplingKernels(), SamplingKernels()
FLOATS = torch.bfloat16, torch.float32, torch.float64  # that the kernels in C++ take


BLOCK = 256  # tokens
LOW = 0xFFFFFFFF
ROUNDS, FACTORS, WEYL = 10, (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)  # of Philox
OF_BLOCKS, OF_TOKENS = 0, 1  # what numbers are for
CANDIDATES = 64  # tokens that are asked first, where there are no kernels


def key_of(seed: int, *names: object) -> int:
    """The key of one sequence of a run: 64 bits, signed, of the seed and of the names' print."""
    text = " ".join(map(str, (seed, *names)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class Clocks(NamedTuple):
    """What an answer's tokens are drawn by, besides their places; the likeliest are taken at
    temperature 0."""

    temperature: float = 0.0
    key: int = 0


class CellTokens(NamedTuple):
    """Draft k tokens in turn, each the first by the clocks of `key`, from those of `place` on; at
    temperature 0 the likeliest."""

    k: int
    temperature: float = 0.0
    key: int = 0
    place: int = 0


def pick(
    logits: Tensor,
    temperature: float | Tensor,
    keys: int | Tensor,
    places: int | Tensor,
    names: Tensor | None = None,
    count: int = 1,
) -> Tensor:
    """The first `count` to ring in each of T rows; [T, count] int64, indices into the row.

    logits: [T, N]; -inf for what may not be drawn. A row with a nan gives the index of one.
    temperature: 0 for the greatest logits; a number, or float64 [T].
    keys: as `key_of` makes them; a number, or int64 [T].
    places: how many tokens precede each row's in its sequence; int64 [T], or the first row's where
        those that follow are a chain.
    names: int64 [N], the tokens' ids; None where they are 0..N-1.
    count: at most N. Where fewer can be drawn, any others follow.
    """
    device, t = logits.device, len(logits)
    on_cpu = device.type == "cpu"
    if on_cpu and logits.dtype not in FLOATS:
        logits = logits.float()
    match temperature, keys, places:
        case float() | int(), int(), int() if on_cpu and ON_CPU.pick_chain is not None:
            return ON_CPU.pick_chain(logits, temperature, keys, places, names, count)
    if isinstance(places, int):
        places = torch.arange(places, places + t, device=device)
    if not isinstance(temperature, Tensor):
        temperature = torch.full((t,), temperature, dtype=torch.float64, device=device)
    if not isinstance(keys, Tensor):
        keys = torch.full((t,), keys, device=device)
    if on_cpu and ON_CPU.pick is not None:
        rows = temperature.contiguous(), keys.contiguous(), places.contiguous()
        return ON_CPU.pick(logits, *rows, names, count)
    if device.type == "cuda" and count == 1 and ON_CUDA.pick is not None:
        return ON_CUDA.pick(logits, temperature, keys, places, names, count)
    among = _among_few if on_cpu else _among_all
    return among(logits, temperature, keys, places, names, count)


def _among_all(
    logits: Tensor, heat: Tensor, keys: Tensor, places: Tensor, names: Tensor | None, count: int
) -> Tensor:
    """Ask every token, without a look at any on the host."""
    scores, ids = _scored(logits, heat, names)
    return _run(scores, ids, heat, keys, places).topk(count, -1).indices


def _among_few(
    logits: Tensor, heat: Tensor, keys: Tensor, places: Tensor, names: Tensor | None, count: int
) -> Tensor:
    """Ask the tokens alone that may ring first by their blocks' clocks; all of them where these
    were too few."""
    scores, ids = _scored(logits, heat, names)
    blocks = torch.arange(int(ids.max()) // BLOCK + 1, device=ids.device)
    first = _waits(keys, places, blocks, OF_BLOCKS)[0].div_(BLOCK).log_()  # [T, blocks]
    bounds = torch.where(heat.unsqueeze(1) > 0, scores - first[:, ids // BLOCK], scores)
    few = bounds.topk(min(CANDIDATES, bounds.shape[1]), -1)
    keyed = _run(scores.gather(1, few.indices), ids[few.indices], heat, keys, places)
    best = keyed.topk(min(count, keyed.shape[1]), -1)
    if few.values.shape[1] < bounds.shape[1] and bool(
        (~(best.values[:, -1] > few.values[:, -1])).any() or count > CANDIDATES
    ):
        return _among_all(logits, heat, keys, places, names, count)
    return few.indices.gather(1, best.indices)


def _scored(logits: Tensor, heat: Tensor, names: Tensor | None) -> tuple[Tensor, Tensor]:
    """[T, N] over the temperature, and the ids [N]."""
    cooled = logits.double() / torch.where(heat > 0, heat, 1.0).unsqueeze(1)
    if names is None:
        names = torch.arange(logits.shape[1], device=logits.device)
    return cooled, names


def _run(scores: Tensor, ids: Tensor, heat: Tensor, keys: Tensor, places: Tensor) -> Tensor:
    """How soon each of scores [T, M] rings, the greatest first. ids: [M] or [T, M]."""
    clock, first = _waits(keys, places, ids // BLOCK, OF_BLOCKS)
    more = _waits(keys, places, ids, OF_TOKENS)[0]
    clock = clock / BLOCK + torch.where(first == ids % BLOCK, 0.0, more)
    return torch.where(heat.unsqueeze(1) > 0, scores - clock.log(), scores)


def _waits(keys: Tensor, places: Tensor, of: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """Exponential times [T, M] and other numbers from 0 to BLOCK - 1. of: [M] or [T, M]."""
    words = philox(keys.unsqueeze(1), of, places.unsqueeze(1) & LOW, kind)
    share = ((words[0] << 20) | (words[1] >> 12)).double().add_(0.5).mul_(2.0**-52)
    return share.log_().neg_(), words[2] & (BLOCK - 1)


def philox(
    keys: Tensor, first: Tensor, second: Tensor, third: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 bits, as int64, for each key of 64 bits and counter (first, second, third,
    0), of 32 bits each."""
    low, high = keys & LOW, (keys >> 32) & LOW
    none = torch.zeros_like(first + second + keys)
    c0, c1, c2, c3 = none + first, none + second, none + third, none
    for _ in range(ROUNDS):
        one, two = c0 * FACTORS[0], c2 * FACTORS[1]
        c0, c1 = ((two >> 32) & LOW) ^ c1 ^ low, two & LOW
        c2, c3 = ((one >> 32) & LOW) ^ c3 ^ high, one & LOW
        low, high = (low + WEYL[0]) & LOW, (high + WEYL[1]) & LOW
    return c0, c1, c2, c3
