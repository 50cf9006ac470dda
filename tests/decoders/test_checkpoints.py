"""What a checkpoint may lack or hold: weights that are not all there, weights in a form that cannot
be run, configs that leave to transformers' defaults what they do not say."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, TYPES, Tiny, edited, save_tiny, transformers_model
from family_toys import FAMILIES, family_model
from safetensors.torch import load_file, save_file
from t5_toys import seq2seq_model
from tiny_models import target_model
from torch import Tensor

from decoders import Engine, load_arms
from decoders.arms import AUTOREGRESSIVE
from decoders.backends.config import config_of
from decoders.backends.exit_adapter import Adapter
from decoders.backends.llama.contents import needed
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.cell import CellConfig, RecurrentCell
from decoders.backends.recurrent.head import require_size
from decoders.common.errors import Damaged, DraftpickError
from decoders.methods.max_gram.next_token_table import NextTokenTable
from decoders.models import targets
from decoders.records import Request

State = dict[str, Tensor]
LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
OTHERS = (
    *("qwen3moe", "olmoe", "mixtral", "gpt_oss", "gemma2", "gemma3", "olmo2", "olmo3", "phi3"),
)


def changed(folder: Path, out: Path, change: Callable[[State], None], part: str = "model") -> Path:
    """A copy of a model whose tensors have been changed."""
    shutil.copytree(folder, out)
    file = out / f"{part}.safetensors"
    state = load_file(file)
    change(state)
    save_file({k: v.contiguous() for k, v in state.items()}, file, metadata={"format": "pt"})
    return out


def without(*names: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        for name in [each for each in state if any(n in each for n in names)]:
            del state[name]

    return change


def shorter(name: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        for each in [each for each in state if name in each]:
            state[each] = state[each][:-1]

    return change


LACKS: dict[str, tuple[Callable[[State], None], str]] = {  # what is done to it, what is named
    "bias of a qwen2": (without("q_proj.bias"), r"lacks .*layers\.0\.self_attn\.q_proj\.bias"),
    "norm of a qwen3": (without("k_norm"), r"lacks .*layers\.0\.self_attn\.k_norm"),
    "head": (without("lm_head"), r"lacks lm_head\.weight"),
    "layer": (without("layers.1."), r"lacks (model\.)?layers\.1\..* and 6 more"),
    "last layer": (without("layers.2."), r"lacks (model\.)?layers\.2\."),
    "matrix": (without("layers.0.mlp.up_proj"), r"lacks (model\.)?layers\.0\.mlp\.up_proj\.weight"),
    "embedding": (without("embed_tokens"), r"lacks (model\.)?embed_tokens\.weight"),
    "norm": (without("model.norm"), r"lacks (model\.)?norm\.weight"),
    "shape": (shorter("layers.0.self_attn.k_proj.weight"), r"k_proj\.weight is \[15, 32\] and not"),
    "vocabulary": (shorter("embed_tokens"), r"embed_tokens\.weight is \[15, 32\] and not \[16, 32"),
}


@pytest.mark.parametrize("backend", ["native", "hf"])
@pytest.mark.parametrize("lacks", LACKS)
def test_a_model_that_is_not_all_there_answers_nothing(
    backend: str, lacks: str, tiny: Tiny, tmp_path: Path
) -> None:
    change, said = LACKS[lacks]
    kind = lacks.split()[-1] if "qwen" in lacks else "llama"
    folder = changed(tiny(kind, tie_word_embeddings=False), tmp_path / "model", change)
    with pytest.raises(Damaged, match=said) as error:
        targets.load_backend(folder, CPU, torch.float32, backend)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


@pytest.mark.parametrize("kind", LLAMAS + OTHERS)
def test_what_the_native_backend_needs_is_what_transformers_saves(kind: str, tiny: Tiny) -> None:
    for tied in (False, True):
        folder = tiny(kind, tie_word_embeddings=tied)
        state = load_file(folder / "model.safetensors")
        held = {name.removeprefix("model."): tuple(t.shape) for name, t in state.items()}
        assert needed(config_of(folder)) == held


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", LLAMAS)
@pytest.mark.parametrize("head", ["another", "the same"])
def test_a_head_is_taken_where_there_is_one(
    kind: str, head: str, tiny: Tiny, tmp_path: Path
) -> None:
    """Its config says that the embedding is the head, as merged fine-tunes do; transformers takes
    the head."""

    def with_a_head(state: dict[str, torch.Tensor]) -> None:
        embedding = state["model.embed_tokens.weight"]
        state["lm_head.weight"] = embedding.clone() if head == "the same" else embedding.flip(0)

    folder = changed(tiny(kind, tie_word_embeddings=True), tmp_path / "model", with_a_head)
    own, exact = (
        targets.load_backend(folder, CPU, torch.float32, backend) for backend in ("native", "hf")
    )
    plain = targets.load_backend(tiny(kind, tie_word_embeddings=True), CPU, torch.float32, "native")
    found, wanted, other = (
        each.extend(torch.tensor([3, 1, 4, 1, 5])) for each in (own, exact, plain)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert torch.allclose(found, other) == (head == "the same")
    if head == "the same":
        assert own.parameters == plain.parameters


def test_what_a_model_does_not_need_changes_nothing(tiny: Tiny, tmp_path: Path) -> None:
    """A stray bias is not added, by either backend."""

    def stray(state: State) -> None:
        state["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)
        state["model.layers.7.self_attn.q_proj.weight"] = torch.ones(2, 2)

    folder = changed(tiny(), tmp_path / "model", stray)
    for backend in ("native", "hf"):
        got, usual = (
            targets.load_backend(each, CPU, torch.float32, backend).prefill([3, 5]).logits
            for each in (folder, tiny())
        )
        assert torch.equal(got, usual)


# The first two in the fast run: one plain, one whose experts transformers stacks as it loads.
@pytest.mark.every(12)
@pytest.mark.parametrize("family", ["GPT-2", *(f for f in FAMILIES if f != "GPT-2")])
def test_every_family_lacks_a_matrix(family: str, tmp_path: Path) -> None:
    family_model(family).save_pretrained(tmp_path / "whole")
    state = load_file(tmp_path / "whole" / "model.safetensors")
    matrix = max((n for n in state if ".1." in n), key=lambda n: (state[n].ndim, state[n].numel()))
    for name, change in (("gone", without(matrix)), ("cut", shorter(matrix))):
        folder = changed(tmp_path / "whole", tmp_path / name, change)
        with pytest.raises(DraftpickError) as said:
            targets.load_backend(folder, CPU, torch.float32)
        assert "\n" not in str(said.value)
    assert targets.load_backend(tmp_path / "whole", CPU, torch.float32).vocab_size


@pytest.mark.parametrize("kind", ["llama", "t5"])
@pytest.mark.parametrize("harm", ["shard", "index", "cut", "tensor of no shard"])
def test_shards(kind: str, harm: str, tiny: Tiny, tiny_t5: Tiny, tmp_path: Path) -> None:
    model = transformers_model(tiny()) if kind == "llama" else seq2seq_model(tiny_t5())
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="20KB")
    index = folder / "model.safetensors.index.json"
    last = sorted(folder.glob("model-*.safetensors"))[-1]
    if harm == "shard":
        last.unlink()
    elif harm == "index":
        index.write_text("[]")
    elif harm == "cut":
        last.write_bytes(last.read_bytes()[:-8])
    else:
        weights = load_file(last)
        weights.popitem()
        save_file(weights, last, metadata={"format": "pt"})
    named = last.name if harm in ("shard", "cut") else None
    with pytest.raises(DraftpickError, match=named) as said:
        targets.load_backend(folder, CPU, torch.float32)
    assert "\n" not in str(said.value) and "again" in str(said.value)


@pytest.mark.parametrize("lacks", ["head", "encoder", "shape"])
def test_a_t5_that_is_not_all_there(lacks: str, tiny_t5: Tiny, tmp_path: Path) -> None:
    change = {
        "head": without("lm_head"),
        "encoder": without("encoder.block.1.layer.0.SelfAttention.v"),
        "shape": shorter("decoder.block.0.layer.1.EncDecAttention.q"),
    }[lacks]
    whole = tiny_t5(tie_word_embeddings=False, own_head=True)
    folder = changed(whole, tmp_path / "model", change)
    edited(folder, tie_word_embeddings=False)  # as transformers wrote it before version 5
    with pytest.raises(Damaged, match=r"lacks|other shapes"):
        targets.load_backend(folder, CPU, torch.float32)


def test_a_drafter_that_is_not_all_there(tmp_path: Path) -> None:
    """The arm is refused; the others answer."""
    target = target_model(tmp_path / "target")
    folder = changed(target, tmp_path / "small", without("layers.1."))
    (tmp_path / "arms.yaml").write_text(
        f"arms:\n  small: {{kind: neural, drafter: {folder}, length: {{kind: fixed, k: 3}}}}\n"
    )
    engine = Engine.load(str(target), load_arms(tmp_path / "arms.yaml"), dtype="float32")
    with pytest.raises(DraftpickError, match=r"lacks layers\.1\."):
        engine.decode("small", [3, 4], Request(4))
    assert len(engine.decode(AUTOREGRESSIVE, [3, 4], Request(4)).ids) == 4


HEADS = {  # shipped name -> its file, a tensor of it
    "exit-2": ("adapter", "blocks.0.gate_up"),
    "recurrent-general": ("recurrent", "down.1"),
    "bigram": ("bigram", "two_next"),
}


@pytest.mark.parametrize("harm", [without, shorter])
@pytest.mark.parametrize("name", HEADS)
def test_heads_and_tables(
    name: str, harm: Callable[[str], Callable[[State], None]], tiny: Tiny, tmp_path: Path
) -> None:
    (tmp_path / "made").mkdir()
    target = LlamaBackend.load(tiny(), CPU, torch.float32)
    load: Callable[[Path], Any]
    if name == "exit-2":
        Adapter.begin(target, AdapterConfig(1)).save(tmp_path / "made")
        load = lambda folder: Adapter.load(folder, target)  # noqa: E731
    elif name == "bigram":
        pairs = {(1, 2): (3, 0.5), (2, 3): (4, 0.5)}
        NextTokenTable({1: (2, 0.5)}, pairs).save(tmp_path / "made", 16)
        load = lambda folder: NextTokenTable.load(folder, 16)  # noqa: E731
    else:
        RecurrentCell(CellConfig(32, 16)).save(tmp_path / "made")
        load = lambda folder: RecurrentCell.load(folder, CPU, torch.float32)  # noqa: E731
    assert load(tmp_path / "made")
    file, tensor = HEADS[name]
    broken = changed(tmp_path / "made", tmp_path / "broken", harm(tensor), file)
    with pytest.raises(Damaged, match=tensor):
        load(broken)


@pytest.mark.parametrize(
    "config", ["{}", "[]", "{", '{"hidden": 32, "exit_layer": 1, "width": 16}', "null"]
)
def test_a_config_of_another_form_is_told(config: str, tiny: Tiny, tmp_path: Path) -> None:
    target = LlamaBackend.load(tiny(), CPU, torch.float32)
    cell, made = tmp_path / "cell", tmp_path / "exit"
    for folder in (cell, made):
        folder.mkdir()
    RecurrentCell(CellConfig(32, 16)).save(cell)
    Adapter.begin(target, AdapterConfig(1)).save(made)
    for folder in (cell, made):
        (folder / "config.json").write_text(config)
    loads: list[Callable[[], Any]] = [
        lambda: RecurrentCell.load(cell, CPU, torch.float32),
        lambda: require_size(cell, 32),
        lambda: Adapter.load(made, target),
    ]
    for load in loads:
        with pytest.raises(Damaged, match=r"config\.json is no config of such a drafter"):
            load()


# -- stored in a form that cannot be run --------------------------------------------------------

QUANTISED: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "bitsandbytes of old": {"load_in_8bit": True},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8"},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "unknown": {"bits": 4},
}


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("backend", "nested"), [("auto", False), ("auto", True), ("native", False), ("hf", True)]
)
@pytest.mark.parametrize("method", QUANTISED)
def test_quantised_weights_are_refused_by_name(
    method: str,
    backend: str,
    nested: bool,
    tiny: Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "model")
    capsys.readouterr()  # what saving it wrote
    held: dict[str, Any] = {"quantization_config": QUANTISED[method]}
    edited(folder, **{"text_config": held} if nested else held)
    said = f"model holds weights quantised by {method.partition(' ')[0]}, .* --dtype int8 or int4"
    with pytest.raises(DraftpickError, match=said) as error:
        targets.load_backend(folder, CPU, torch.float32, backend)
    assert "\n" not in str(error.value) and not capsys.readouterr().err


# -- configs that leave things to transformers' defaults ------------------------------------------

LEFT_OUT = [
    "rms_norm_eps", "head_dim", "num_key_value_heads", "tie_word_embeddings", "hidden_act",
    "rope_parameters", "max_position_embeddings", "sliding_window", "model_type", "architectures",
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("field", LEFT_OUT)
@pytest.mark.parametrize("kind", LLAMAS + OTHERS)
def test_what_a_config_leaves_out_is_as_in_transformers(
    kind: str, field: str, tmp_path: Path
) -> None:
    """Sizes such that the weights fit both the default and what is left out."""
    few = {"mistral": 8, "mixtral": 8, "gpt_oss": 8, "qwen3moe": 4, "gemma2": 4, "gemma3": 4}
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": few.get(kind, 32),
        "tie_word_embeddings": field != "tie_word_embeddings",
    } | {"qwen3": {"head_dim": 128}, "gpt_oss": {"head_dim": 64}}.get(kind, {})
    save_tiny(tmp_path / "model", kind, 0, sizes)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config.pop(field, None)
    path.write_text(json.dumps(config))
    if field == "model_type":
        config["model_type"] = TYPES.get(kind, kind)  # transformers asks for it
        path.write_text(json.dumps(config))
    expected = transformers_model(tmp_path / "model")
    if field == "model_type":
        path.write_text(json.dumps({k: v for k, v in config.items() if k != field}))
    made = targets.load_backend(tmp_path / "model", CPU, torch.float32)
    want = expected(torch.tensor([[3, 5, 7]])).logits[0, -1]
    torch.testing.assert_close(made.prefill([3, 5, 7]).logits, want, rtol=1e-4, atol=1e-4)
