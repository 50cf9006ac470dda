"""What the config.json of an EAGLE-3 head says (Li et al., "EAGLE-3", 2503.01840).

Two forms are read: that of the package `speculators`, which vLLM loads too, with the sizes of the
layers in `transformer_layer_config`, and the flat one of the authors' own checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.errors import DraftpickError
from ...common.tensor_files import Shape as TensorShape
from ..config import config_of, with_defaults
from ..families import Family, family_of, unsupported
from ..llama.contents import of_layer
from ..llama.shape import Shape, shape_of

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
FROM_BOTH = tuple(f"self_attn.{name}_proj.weight" for name in "qkv")
NESTED = "transformer_layer_config"
LAYERS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Eagle3Config:
    """shape: of the head's own layers; its vocabulary is the target's.
    intermediate: width of their gated blocks.
    draft_vocab: tokens that it scores.
    features: after which of the target's layers states are read, None for the usual ones.
    count: how many those are.
    target_hidden: size of the target's states.
    family: of the head's own layers.
    norm_before_residual: whether the normed state is what the first layer adds to.
    norm_before_fc, fc_norm: whether the features are normed together, or each on its own.
    norm_output: whether a step hands on the normed state.
    """

    shape: Shape
    intermediate: int
    draft_vocab: int
    features: tuple[int, ...] | None
    count: int
    target_hidden: int
    family: Family
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def of(cls, folder: Path) -> Eagle3Config:
        """Raises DraftpickError where the folder holds no such head, or one that is not known."""
        config = config_of(folder)
        layers = _layers_of(folder, config)
        reason = unsupported(layers)
        if reason is not None:
            raise DraftpickError(f"{folder.name}: {reason}")
        shape = shape_of(layers)
        if any(kind.window for kind in shape.kinds):
            raise DraftpickError(f"{folder.name}: sliding-window attention is not supported")
        where = {**config, **(config.get("eagle_config") or {})}
        features = where.get(LAYERS)
        if features is not None and not _some_layers(features):
            raise DraftpickError(f"{folder.name}: {LAYERS} is no list of different layers")
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        return cls(
            shape,
            int(layers["intermediate_size"]),
            int(config.get("draft_vocab_size") or shape.vocab),
            None if features is None else tuple(features),
            3 if features is None else len(features),
            int(config.get("target_hidden_size") or shape.hidden),
            family_of(layers),
            **{name: bool(where.get(name, False)) for name in flags},
        )

    def feature_layers(self, layers: int) -> tuple[int, ...]:
        """After which layers of a target with that many states are read. Raises ValueError where it
        has not those."""
        found = self.features or (2, layers // 2, layers - 3)
        if not all(0 < each < layers for each in found):
            told = ", ".join(map(str, found))
            raise ValueError(
                f"it reads the states after layers {told}, and this target's lie after 1 to "
                f"{layers - 1}"
            )
        return found

    def needed(self) -> dict[str, TensorShape]:
        """Names and shapes of what the files must hold; embeddings and d2t may be left out."""
        d, n = self.shape.hidden, self.count
        whole: dict[str, TensorShape] = {
            "fc.weight": (d, n * self.target_hidden),
            "norm.weight": (d,),
            "lm_head.weight": (self.draft_vocab, d),
            "layers.0.hidden_norm.weight": (d,),
        }
        if self.norm_before_fc:
            whole["input_norm.weight"] = (n * self.target_hidden,)
        if self.fc_norm:
            whole |= {f"fc_norm.{i}.weight": (self.target_hidden,) for i in range(n)}
        for i in range(self.shape.layers):
            layer = of_layer(self.shape, self.intermediate, self.family)
            if i == 0:  # it reads the token's embedding next to the state
                layer |= {name: (layer[name][0], 2 * d) for name in FROM_BOTH}
            whole |= {f"layers.{i}.{name}": size for name, size in layer.items()}
        return whole


def _layers_of(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The config of the head's layers, with transformers' defaults."""
    kind = config.get("speculators_model_type")
    nested = config.get(NESTED)
    if kind is not None and (kind != "eagle3" or not isinstance(nested, dict)):
        raise DraftpickError(f"{folder.name} holds a speculator of the kind {kind}, not eagle3")
    if kind is None and not str((config.get("architectures") or [""])[0]).endswith("Eagle3"):
        raise DraftpickError(
            f"{folder.name} holds no EAGLE-3 head: its config.json says neither "
            "speculators_model_type nor an architecture that ends in Eagle3"
        )
    own = config if kind is None else nested
    assert isinstance(own, dict)
    model_type = own.get("model_type", "llama" if kind is None else "qwen3")
    if model_type not in ARCHITECTURES:
        raise DraftpickError(
            f"{folder.name}: layers of the type {model_type} are not known; those of "
            f"{' and '.join(ARCHITECTURES)} are"
        )
    known = {**own, "model_type": model_type, "architectures": [ARCHITECTURES[model_type]]}
    return with_defaults(folder / "config.json", known)


def _some_layers(found: Any) -> bool:
    whole = isinstance(found, list) and all(isinstance(each, int) for each in found)
    return whole and 0 < len(found) == len(set(found))
