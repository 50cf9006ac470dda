"""SGLang's own plugin loader, hooks and controller with draftpick's policy, for test_sglang.py.

    python with_sglang.py ADAPTIVE.json STEPS

Run by a Python that has the package `sglang`. Prints a JSON object: the class of the policy, the
states that were built, and the length of each step. The worker is made up: SGLang's own needs a GPU
or its CPU build. Its `torchvision`, which reads pictures, is left out.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


class WithoutPictures(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of torchvision in which everything is found and nothing works."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return MagicMock(__name__=spec.name, __path__=[], __spec__=spec)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, WithoutPictures())

from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.speculative import adaptive_spec_params  # noqa: E402
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController  # noqa: E402

CHANCES = (0.9, 0.9, 0.9, 0.9)
SIZE = 4


class Worker:
    """speculative_num_steps: as SGLang's workers call the length in force."""

    def __init__(self) -> None:
        self.speculative_num_steps = 2
        self.built: list[tuple[int, int, list[int] | None]] = []

    def build_adaptive_runtime_state(
        self,
        speculative_num_steps: int,
        speculative_num_draft_tokens: int,
        cuda_graph_bs: list[int] | None = None,
    ) -> int:
        self.built.append((speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs))
        return speculative_num_steps

    def apply_runtime_state(self, state: int) -> None:
        self.speculative_num_steps = state


def main() -> None:
    config, steps = Path(sys.argv[1]), int(sys.argv[2])
    importer = ModuleType("a_worker_that_was_imported_before")
    importer.Policy = adaptive_spec_params.AdaptiveSpeculativeParams  # type: ignore[attr-defined]
    sys.modules[importer.__name__] = importer
    load_plugins()
    policy = importer.Policy(initial_steps=2, cfg_path=str(config))
    worker = Worker()
    controller = AdaptiveController(worker, policy)
    controller.init_states(cuda_graph_bs=[1, 4, 16])
    rng, taken, waiting = random.Random(0), list[int](), None
    for _ in range(steps):
        controller.activate_step_by_batch(SIZE)
        taken.append(worker.speculative_num_steps)
        accepted = []
        for _ in range(SIZE):
            count = 0
            while count < taken[-1] and rng.random() < CHANCES[count]:
                count += 1
            accepted.append(count)
        if waiting is not None:  # overlapped: told after the next step has begun
            controller.on_verify_complete(waiting, batch_size=SIZE)
        waiting = accepted
    print(
        json.dumps(
            {"policy": type(policy).__module__, "built": sorted(worker.built), "taken": taken}
        )
    )


if __name__ == "__main__":
    main()
