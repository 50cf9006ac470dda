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
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..common.files import write_atomically
from ..common.identity import identity
from ..common.machine import cpu_name
from ..common.sync import synchronize
from ..common.text import from_json
from ..protocols import Backend, DescribedBackend, Drafter, ModelDrafter
from .pass_costs import PassCosts

WIDEST = 17
CONTEXT = 192  # prompt tokens held while measuring
REPEATS = 9
LONGEST_S = 2.0  # of measuring, from the second repeat on: a first answer waits for it
QUIET = 1.3  # the usual time over the least above which something else was running too


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
        parts = [type(target).__name__]
        if isinstance(target, DescribedBackend):
            parts += [target.passes, target.products]
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

    Measuring takes about two seconds and forgets what the target held. What was measured on a
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
    """The least time of each width or a wider one: other work on the machine only adds time, and so
    do more tokens.

    times: seconds of each repeat, by width.
    """
    least = itertools.accumulate((min(each) for each in reversed(times)), min)
    busy = statistics.median(statistics.median(each) / min(each) for each in times)
    return PassCosts(tuple(reversed(list(least))), busy)


def time_passes(target: Backend, repeats: int = REPEATS) -> list[list[float]]:
    """Seconds of each repeat, by width; the repeats take turns. They are fewer, but two at least,
    where LONGEST_S is over: those of a large model, whose passes vary less."""
    prompt_tokens = max(1, min(CONTEXT, target.context - WIDEST - 1))
    target.prefill([1 + i % min(97, target.vocab_size - 1) for i in range(prompt_tokens)])
    start = target.length
    widest = min(WIDEST, target.context - start)
    ids = torch.arange(widest, device=target.device) % target.vocab_size
    times: list[list[float]] = [[] for _ in range(widest)]
    started = time.perf_counter()
    for done in range(repeats):
        if done > 1 and time.perf_counter() - started > LONGEST_S:
            break
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
        record = from_json(path.read_text(encoding="utf-8"))
        costs = PassCosts(tuple(map(float, record["verify_s"])), float(record["busy"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return costs if len(costs.verify_s) == WIDEST and min(costs.verify_s) > 0 else None


def write(path: Path, place: CostKey, costs: Any) -> None:
    """Write the costs with what they depend on, for people."""
    with contextlib.suppress(OSError):  # measured again next time
        write_atomically(path, json.dumps({**asdict(place), **asdict(costs)}, indent=1))


ON_STATES = 0.06  # a cell or the target's first layers; the default target's, measured
HELD = 32  # tokens read before

_STEPS: WeakKeyDictionary[Backend, float] = WeakKeyDictionary()


def in_turn(drafter: Drafter, target: Backend) -> bool:
    """Whether it has a model of its own, which reads for one answer after the other."""
    return _own_model(drafter, target) is not None


def _own_model(drafter: Drafter, target: Backend) -> Backend | None:
    if not isinstance(drafter, ModelDrafter) or drafter.backend is target:
        return None
    return drafter.backend


def draft_cost(drafter: Drafter, target: Backend) -> float:
    """The least of REPEATS passes of the drafter's own model over the target's pass, where that is
    known, else their share of parameters. ON_STATES for a drafter without a model of its own.

    What the model held is forgotten.
    """
    model = _own_model(drafter, target)
    if model is None:
        return ON_STATES
    passes = known(target)
    if passes is None:
        return min(1.0, float(model.parameters / target.parameters))
    if model not in _STEPS:
        _STEPS[model] = _step_s(model)
    return _STEPS[model] / passes.verify_s[0]  # alone, whatever runs now


@torch.inference_mode()
def _step_s(model: Backend) -> float:
    held = min(HELD, model.context - 1)
    model.prefill([1 + i % min(97, model.vocab_size - 1) for i in range(held)])
    start, token, times = model.length, torch.zeros(1, dtype=torch.int64, device=model.device), []
    for _ in range(REPEATS):
        times.append(seconds_of(model, token))
        model.truncate(start)
    return min(times)
