"""Draft lengths for SGLang's adaptive speculation, by what is accepted and what steps cost.

    python3 -m sglang.launch_server --model-path MODEL ... --speculative-adaptive \\
      --speculative-adaptive-config adaptive.json

SGLang finds `plugin` by its entry point once draftpick is installed beside it. Files without a part
`draftpick` keep SGLang's own policy. docs/engines.md has the options.
"""

from __future__ import annotations

from .plugin import plugin
from .steps import StepPolicy

__all__ = ["StepPolicy", "plugin"]
