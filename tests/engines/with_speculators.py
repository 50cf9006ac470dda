"""Random EAGLE-3 heads of the package `speculators` and what they draft, for test_speculators.py.

    python with_speculators.py OUT

Run by a Python that has the package. Each case is a folder in OUT with the head,
`given.safetensors` (features [n, count * d] and ids [n + 1]) and `drafts.json`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
}
KINDS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "before-residual": {"norm_before_residual": True},
    "normed-together": {"norm_before_fc": True},
    "normed-each": {"fc_norm": True, "norm_output": True},
    "whole-vocabulary": {"draft_vocab_size": 40},
}
N, DRAFTED = 11, 5


def head(kind: str, fields: dict[str, Any]) -> Any:
    layer = KINDS[kind](**SIZES)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        **{"draft_vocab_size": 24, **fields},
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DRAFTED)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    model = Eagle3DraftModel(config=config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(0, 0.4)
    if model.d2t is not None:
        kept = torch.randperm(40)[:24].sort().values
        known = torch.zeros(40, dtype=torch.bool)
        known[kept] = True
        model.load_vocab_mappings(known, kept - torch.arange(24))
    return model.eval()


@torch.no_grad()
def drafts(model: Any, features: torch.Tensor, ids: list[int]) -> list[int]:
    """A step at a time: what follows the drafted tokens hangs on no position after the last."""
    made: list[int] = []
    for step in range(DRAFTED):
        line = torch.tensor([ids[1:] + made + [0] * (DRAFTED - step)])
        more = torch.zeros(1, line.shape[1] - len(features), features.shape[1])
        steps = model(
            torch.cat([features[None], more], 1), line, torch.zeros_like(line), ttt_steps=DRAFTED
        )
        best = int(steps[step][0, len(features) - 1])
        made.append(best if model.d2t is None else best + int(model.d2t[best]))
    return made


def main() -> None:
    out = Path(sys.argv[1])
    for kind in KINDS:
        for number, (name, fields) in enumerate(CASES.items()):
            torch.manual_seed(number)
            folder = out / f"{kind}-{name}"
            model = head(kind, fields)
            model.save_pretrained(folder)
            features, ids = torch.randn(N, 3 * 32), torch.randint(40, (N + 1,)).tolist()
            given = {"features": features, "ids": torch.tensor(ids)}
            save_file(given, folder / "given.safetensors")
            (folder / "drafts.json").write_text(json.dumps(drafts(model, features, ids)))


if __name__ == "__main__":
    main()
