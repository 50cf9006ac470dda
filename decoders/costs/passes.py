"""What a pass of the target costs at each width on this machine: measured once, kept in the cache.

Draft lengths are chosen by it (Leviathan et al., section 3.4, take a pass to cost the same at every
width; a kernel that works on four rows at a time does not).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..backends.cpp_kernels import version
from ..backends.sync import synchronize
from ..common.files import write_atomically
from ..common.identity import identity
from ..common.machine import cpu_name
from ..common.text import from_json
from ..protocols import Backend

WIDEST = 17
CONTEXT = 192  # prompt tokens held while measuring
REPEATS = 9
QUIET = 1.3  # the usual time over the least above which something else was running too


@dataclass(frozen=True)
class PassCosts:
    """verify_s: seconds of one pass of the target over i + 1 tokens; at least one.
    busy: what a pass usually took over the least of its width while this was measured, 1 on a quiet
        machine.
    """

    verify_s: tuple[float, ...]
    busy: float = 1.0

    def __call__(self, width: float) -> float:
        """Seconds of a pass over `width` >= 1 tokens, which need not be a whole number.

        A straight line between the measured widths. Beyond the widest, each token more costs what
        it did on average up to there: the last step alone may be that of a kernel which takes
        several rows at a time, and the widest pass's share per token would charge every token for
        the weights, which are read once. Where one width was measured, its share per token.
        """
        least, widest = self.verify_s[0], len(self.verify_s)
        if widest == 1:
            return least * width
        if width >= widest:
            a_token = max(0.0, self.verify_s[-1] - least) / (widest - 1)
            return self.verify_s[-1] + (width - widest) * a_token
        below = int(width)
        low, high = self.verify_s[below - 1 : below + 1]
        return low + (width - below) * (high - low)

    def turns(self) -> float:
        """What a pass of a model that reads for one answer at a time costs in passes over one
        token, over what it costs beside no other answer: each answer waits for all of them."""
        return 1.0

    def ratios(self, longest: int) -> tuple[float, ...]:
        """At index k, a pass over k + 1 tokens in passes over one, up to k = longest."""
        return _ratios(self, longest)

    def best_cut(self, chances: Sequence[float]) -> int:
        """How many drafted tokens to send to the target: the fewest that give the most tokens a
        second, as a round gives 1 + sum(chances[:k]) tokens for one pass over k + 1.

        chances: at i, that the first i + 1 drafted tokens are all accepted.
        """
        expected = itertools.accumulate(chances, initial=1.0)
        ratios = self.ratios(len(chances))
        speeds = [tokens / ratio for tokens, ratio in zip(expected, ratios, strict=True)]
        return speeds.index(max(speeds))


@lru_cache(1024)  # asked for in every round of every answer
def _ratios(costs: PassCosts, longest: int) -> tuple[float, ...]:
    one = costs(1)
    return tuple(costs(k + 1) / one for k in range(longest + 1))


@dataclass(frozen=True)
class CostKey:
    """What the costs of one target depend on. target: weights and precision."""

    target: str
    backend: str
    device: str
    threads: int
    torch: str

    @classmethod
    def of(cls, target: Backend, fingerprint: str) -> CostKey:
        cuda = target.device.type == "cuda"
        device = torch.cuda.get_device_name(target.device) if cuda else cpu_name()
        products = f"blocks {version()}" if getattr(target, "blocked", False) else ""
        parts = (type(target).__name__, getattr(target, "passes", ""), products)
        kind = " ".join(filter(None, parts))
        return cls(fingerprint, kind, device, torch.get_num_threads(), torch.__version__)

    @property
    def timed_by(self) -> str:
        """All but the target, for people."""
        return f"{self.backend} on {self.device}, {self.threads} threads, torch {self.torch}"

    @property
    def file(self) -> str:
        text = json.dumps({**asdict(self), "target": identity(self.target)}, sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


_KNOWN: WeakKeyDictionary[Backend, PassCosts] = WeakKeyDictionary()


def known(target: Backend) -> PassCosts | None:
    """The costs that were learnt for this target, if any were."""
    return _KNOWN.get(target)


def assume(target: Backend, costs: PassCosts) -> None:
    """Let `known` have these, measured or not."""
    _KNOWN[target] = costs


def learn(target: Backend, fingerprint: str, folder: Path) -> PassCosts:
    """Read the costs from `folder`, or measure and write them; `known` has them from now on.

    Measuring takes about 170 short passes and forgets what the target held. What was measured on a
    busy machine is measured again at the next loading, and the quieter of the two kept. A file that
    cannot be read is made again, one that cannot be written is done without.
    """
    place = CostKey.of(target, fingerprint)
    path = folder / place.file
    costs = _read(path)
    if costs is None or costs.busy >= QUIET:
        measured = measure(target)
        if costs is None or measured.busy < costs.busy:
            costs = measured
            write(path, place, costs)
    assume(target, costs)
    return costs


def measure(target: Backend, repeats: int = REPEATS) -> PassCosts:
    """What the target held is forgotten."""
    return undisturbed(time_passes(target, repeats))


def undisturbed(times: Sequence[Sequence[float]]) -> PassCosts:
    """By width, the least time of that width or a wider one: other work on the machine only adds
    time, and so do more tokens.

    times: seconds of each repeat, by width.
    """
    least = itertools.accumulate((min(each) for each in reversed(times)), min)
    busy = statistics.median(statistics.median(each) / min(each) for each in times)
    return PassCosts(tuple(reversed(list(least))), busy)


def time_passes(target: Backend, repeats: int = REPEATS) -> list[list[float]]:
    """Seconds of each repeat, by width; the repeats take turns."""
    prompt_tokens = max(1, min(CONTEXT, target.context - WIDEST - 1))
    target.prefill([1 + i % min(97, target.vocab_size - 1) for i in range(prompt_tokens)])
    start = target.length
    widest = min(WIDEST, target.context - start)
    ids = torch.arange(widest, device=target.device) % target.vocab_size
    times: list[list[float]] = [[] for _ in range(widest)]
    for _ in range(repeats):
        for width in range(1, widest + 1):
            times[width - 1].append(seconds_of(target, ids[:width]))
            target.truncate(start)
    return times


def seconds_of(target: Backend, ids: Tensor) -> float:
    """One pass over `ids` [T]; the target holds them afterwards."""
    started = time.perf_counter()
    target.extend(ids)
    synchronize(target.device)
    return time.perf_counter() - started


def _read(path: Path) -> PassCosts | None:
    try:
        record = from_json(path.read_text())
        costs = PassCosts(tuple(map(float, record["verify_s"])), float(record["busy"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return costs if costs.verify_s and min(costs.verify_s) > 0 else None


def write(path: Path, place: CostKey, costs: Any) -> None:
    """With what they depend on, for people."""
    with contextlib.suppress(OSError):  # measured again next time
        write_atomically(path, json.dumps({**asdict(place), **asdict(costs)}, indent=1))
