"""How SGLang comes to use a `StepPolicy`: its hook registry puts one in place of its own."""

from __future__ import annotations

from typing import Any

from decoders.common.errors import DraftpickError

from .options import read_options
from .steps import StepPolicy

OLDEST = "0.5.23"
MODULE = "sglang.srt.speculative.adaptive_spec_params"
NAME = "AdaptiveSpeculativeParams"  # SGLang's own policy, made by its worker


def plugin() -> None:
    """Called by SGLang in each of its processes, before it imports its workers.

    Raises DraftpickError for an SGLang without these hooks; SGLang logs it and goes on without.
    """
    from importlib import import_module

    try:
        own = getattr(import_module(MODULE), NAME)
        hooks = import_module("sglang.srt.plugins.hook_registry")
    except (ImportError, AttributeError) as error:
        raise DraftpickError(
            f"this SGLang has no {NAME} that a policy of one's own could stand for ({error}); "
            f"{OLDEST} has"
        ) from error
    hooks.HookRegistry.register(f"{MODULE}.{NAME}", policy_for(own), hooks.HookType.REPLACE)


def policy_for(own: type) -> type:
    """A class for SGLang's `own`, which makes one of that or a StepPolicy, as the file says."""

    class AdaptivePolicy:
        def __new__(cls, initial_steps: int, cfg_path: str | None = None) -> Any:
            options = read_options(cfg_path) if cfg_path is not None else None
            if options is None:
                return own(initial_steps, cfg_path)
            return StepPolicy(options, initial_steps)

    return AdaptivePolicy
