"""A proposer for vLLM: which requests get drafts, and from which drafter.

    vllm serve MODEL --additional-config '{"draftpick": "options.json"}' \\
      --speculative-config '{"model": "router.engines.vllm.Proposer", "num_speculative_tokens": 8}'

docs/engines/vllm.md has the options, and what is needed beside vLLM.
"""

from __future__ import annotations

from .proposer import Proposer

__all__ = ["Proposer"]
