"""The next token of many sequences at once, each with a noise of its own.

A sequence's draws depend only on its key and the position, not on the other sequences or the
device. So the noise is a hash of the two and of the token, in 32-bit integers, which every device
computes the same way. It is added to the logits and the greatest sum wins (Gumbel 1954; Maddison et
al., A* Sampling, 2014): a token is drawn without computing the probabilities. The hash is
MurmurHash3's last step (Appleby), taken twice.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

from ..sampling.argmax import likeliest

GOLDEN = 0x9E3779B9
FIRST, SECOND = 0x85EBCA6B, 0xC2B2AE35
ALMOST_ONE = 1 - 2**-24
SERIES_BELOW = 2**-6  # below it a series has more of the logarithm's bits than the logarithm


def key_of(seed: int, name: int | str) -> tuple[int, int]:
    """Two numbers of 32 bits, signed, for one sequence of a run."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    first, second = struct.unpack("<ii", digest)
    return first, second


def choose(logits: Tensor, temperature: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """logits: [B, N].
    temperature: float32 [B], 0 for the most likely token.
    keys: int32 [B, 2].
    positions: int64 [B], of the token that each row has read last.

    Returns [B] int64.
    """
    if logits.device.type != "cpu":
        return race(logits, temperature, keys, positions)
    chosen = likeliest(logits)
    for row in temperature.nonzero().flatten().tolist():  # one at a time: they stay in the cache
        one = slice(row, row + 1)
        chosen[one] = race(logits[one], temperature[one], keys[one], positions[one])
    return chosen


def race(logits: Tensor, temperature: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Choose with noise for every row, without a look at any on the host."""
    noise = gumbel(keys, positions, logits.shape[-1])
    return (logits.float() + temperature.unsqueeze(1) * noise).argmax(-1)


def gumbel(keys: Tensor, positions: Tensor, size: int) -> Tensor:
    """Noise [B, size] float32 for the token after each row's position; keys and positions as in
    `choose`."""
    first, second = keys.unbind(1)
    first = _mixed(first + positions.to(torch.int32) * _signed(GOLDEN)).unsqueeze(1)
    second = _mixed(second.unsqueeze(1) ^ first)
    tokens = torch.arange(size, dtype=torch.int32, device=keys.device)
    bits = _mixed(_mixed(tokens ^ first) + second) & 0x7FFFFFFF
    w = ((bits.float() + 0.5) * 2**-31).clamp_(max=ALMOST_ONE)  # uniform
    # -log(1 - w) is the time of an exponential clock; the first one to ring wins
    clock = torch.where(w < SERIES_BELOW, w * (1 + w * (0.5 + w / 3)), -torch.log(1 - w))
    return -torch.log(clock)


def _mixed(x: Tensor) -> Tensor:
    """A hash of each number, int32 taken for unsigned."""
    x = x ^ (x >> 16 & 0xFFFF)
    x = x.mul_(_signed(FIRST))
    x ^= x >> 13 & 0x7FFFF
    x *= _signed(SECOND)
    x ^= x >> 16 & 0xFFFF
    return x


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number
