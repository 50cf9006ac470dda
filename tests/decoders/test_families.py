"""Model families, windows and experts among them: their own ids, whatever drafts, and logits that
do not know what was rejected before; by transformers, and natively where they have a row."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_toys import close
from decoder_toys import CPU, edited, max_gram
from family_toys import CONTEXT, FAMILIES, VOCAB, WINDOW, family_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from decoders.backends.config import FIELDS, _whole
from decoders.backends.families import unsupported
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend, layer_kinds
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend
from decoders.common.errors import DraftpickError
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.drafter import TreeDrafter
from decoders.models.memory import need_of
from decoders.models.targets import load_backend
from decoders.protocols import Strategy, TreeBackend
from decoders.records import Request, Sampling
from decoders.testing.chance import distance, loop_distribution, reference_distribution
from decoders.testing.toys import autoregressive, run, speculative

Build = Callable[..., TreeBackend]  # `build`
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
LONG = 40  # six windows
BOUNDED = (
    *("Llama 4", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3-MoE", "Gemma 2", "Gemma 3"),
    *("Gemma 3n", "Phi-3", "gpt-oss", "Cohere2", "OLMo3", "StarCoder2"),
)
NATIVE = (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3-MoE", "OLMoE", "Gemma 2", "Gemma 3", "Phi-3"),
    *("OLMo2", "OLMo3", "Phi-4-mini", "Mixtral", "gpt-oss"),
)
WAYS = [*((name, "transformers") for name in FAMILIES), *((name, "native") for name in NATIVE)]
WINDOWED = [way for way in WAYS if way[0] in BOUNDED]
HUB_S = {  # fields of Phi-4-mini's own config
    "rope_parameters": None, "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 72,
    "rope_scaling": {
        "type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0]
    },
}  # fmt: skip
WITHOUT_TREES = {"BLOOM": "bloom takes no position ids"}
#          0   1   2  3   4  5  6   7
TOKENS = [17, 2, 11, 8, 20, 5, 13, 7]
PARENTS = [-1, 0, 0, -1, 2, 4, 5, 3]
BRANCHES = [[0], [0, 1], [0, 2], [3], [0, 2, 4], [0, 2, 4, 5], [0, 2, 4, 5, 6], [3, 7]]


@cache
def model(family: str, noise: float = 0.0) -> PreTrainedModel:
    return family_model(family, noise)


@cache
def own_ids(family: str) -> list[int]:
    """By transformers' `generate`, with a cache of its own kind."""
    ids, target = torch.tensor([PROMPT]), model(family)
    out = target.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=LONG, do_sample=False
    )
    return out[0, -LONG:].tolist()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A family's model, with this much noise, as a backend of this way."""

    @cache
    def saved(family: str, noise: float) -> Path:
        folder = tmp_path_factory.mktemp("family")
        model(family, noise).save_pretrained(folder)
        return folder

    def made(family: str, way: str, noise: float = 0.0) -> TreeBackend:
        if way == "transformers":
            kind = HFSeq2SeqBackend if family == "T5" else HFBackend
            return kind(model(family, noise), CONTEXT)
        return LlamaBackend.load(saved(family, noise), CPU, torch.float32, CONTEXT)

    return made


def strategy(method: str, drafter: TreeBackend) -> Strategy:
    if method == "plain":
        return autoregressive()
    if method == "copying":
        return speculative(max_gram([*range(1, VOCAB), 0], shortest=1), 3)
    if method == "drafter":
        return speculative(NeuralDrafter(drafter), 4)
    return speculative(TreeDrafter(drafter, None, (3, 2), CONTEXT), 4)


@pytest.mark.every(3)
@pytest.mark.parametrize("method", ["plain", "copying", "drafter", "tree"])
@pytest.mark.parametrize(("family", "way"), WAYS)
def test_ids_are_transformers_own(family: str, way: str, method: str, build: Build) -> None:
    target = build(family, way)
    assert target.trees_unsupported_reason == WITHOUT_TREES.get(family)
    if method == "tree" and target.trees_unsupported_reason:
        return
    result = run(target, strategy(method, build(family, way, 0.05)), PROMPT, Request(LONG))
    assert result.ids == own_ids(family)
    assert len(set(result.ids)) >= 4
    if method != "plain":
        assert 0 < result.accepted < result.drafted  # some were taken back, some were not


@pytest.mark.every(3)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "T5"])
def test_a_prompt_is_read_in_parts_and_a_turn_where_it_is_new(family: str) -> None:
    text = [*PROMPT, *own_ids(family)]
    whole, parts = (HFBackend(model(family), CONTEXT) for _ in range(2))
    exact, told = whole.prefill(text), list[int]()
    read = parts.prefill(text, between=lambda: told.append(parts.length), part=WINDOW + 1)
    close(read.logits, exact.logits)
    close(read.embedding, exact.embedding)
    assert told == [*range(0, len(text), WINDOW + 1), len(text)]
    parts.prefill([*text[:20], 1, 2])
    close(parts.prefill(text, cached=20).logits, exact.logits)
    assert parts.prompts_read == 3


# -- windows and chunks ---------------------------------------------------------------------------


def anew(target: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """[T, V] logits of a pass without any cache."""
    with torch.no_grad():
        logits: Tensor = target(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits


def test_every_family_with_a_window_is_among_those_tried() -> None:
    kinds = {
        family: set(layer_kinds(model(family).config)) for family in FAMILIES if family != "T5"
    }
    assert {family for family in kinds if kinds[family] != {"full_attention"}} == set(BOUNDED)


def test_native_families_are_those_with_a_row() -> None:
    configs = {family: model(family).config.to_dict() for family in FAMILIES}
    names = {family: {"architectures": [type(model(family)).__name__]} for family in FAMILIES}
    assert {f for f in FAMILIES if unsupported(configs[f] | names[f]) is None} == set(NATIVE)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("Mistral", {"use_sliding_window": False}),
        ("Phi-3", {"use_sliding_window": False}),
        ("Phi-3", {"layer_types": ["full_attention"] * 3}),
        ("Gemma 2", {"use_sliding_window": False}),
        ("Gemma 3", {"attn_logit_softcapping": 0.5}),
        ("Gemma 3", {"query_pre_attn_scalar": 4}),
        ("Qwen3-MoE", {"layer_types": ["full_attention"] * 3}),
        ("Phi-4-mini", HUB_S),
        ("Qwen2", {"query_pre_attn_scalar": 4, "final_logit_softcapping": 0.5}),
    ],
)
def test_what_a_config_says_counts_where_transformers_reads_it(
    family: str, said: dict[str, Any], tmp_path: Path
) -> None:
    model(family).save_pretrained(tmp_path)
    edited(tmp_path, **said)
    own = LlamaBackend.load(tmp_path, CPU, torch.float32, CONTEXT)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    text = [*PROMPT, *own_ids(family)]
    close(own.prefill(text).logits, anew(theirs, text)[-1])


def test_longrope_is_native_as_far_as_the_first_positions_stay(tmp_path: Path) -> None:
    model("Phi-4-mini").save_pretrained(tmp_path)
    own = load_backend(tmp_path, CPU, torch.float32)
    assert isinstance(own, LlamaBackend) and own.context == 72 < CONTEXT
    assert need_of(tmp_path, CPU, torch.float32, None, None).context == 72
    assert need_of(tmp_path, CPU, torch.float32, None, 80).context == 80
    assert isinstance(load_backend(tmp_path, CPU, torch.float32, context=80), HFBackend)
    with pytest.raises(DraftpickError, match=r"in another way beyond 72 \(longrope\)"):
        load_backend(tmp_path, CPU, torch.float32, "native", context=80)


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_a_window_that_is_asked_for_and_not_given_is_transformers(family: str) -> None:
    folder = {"architectures": [f"{family}ForCausalLM"], "use_sliding_window": True}
    assert not _whole({**dict.fromkeys(FIELDS, 1), **folder, "rope_theta": 1, "eos_token_id": 0})


def test_the_page_lists_what_is_tried() -> None:
    page = (Path(__file__).parents[2] / "docs" / "targets.md").read_text().splitlines()
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in page if "| = |" in row]
    assert [row[0] for row in rows] == list(FAMILIES)
    for name, layers, _, way, *_, tree in rows:
        assert (way == "native") == (name in NATIVE)
        assert ("windows" in layers or "chunks" in layers) == (name in BOUNDED)
        assert (tree == "refused") == (name in WITHOUT_TREES)


@pytest.mark.parametrize(("family", "way"), WINDOWED)
def test_rejected_drafts_leave_no_trace_at_the_window_s_edge(
    family: str, way: str, build: Build
) -> None:
    target, text = model(family), [*PROMPT, *own_ids(family)]
    backend, truth = build(family, way), anew(target, text)
    wider = anew(family_model(family, **unbounded(family)), text)
    assert (wider[WINDOW + 2 :] - truth[WINDOW + 2 :]).abs().max() > 0.1  # the window matters
    for start in range(WINDOW - 2, 2 * WINDOW + 2):
        for rejected, back in ((1, 0), (2 * WINDOW, 0), (3, 2), (WINDOW, WINDOW - 2)):
            backend.prefill(text[:start])
            backend.extend(torch.tensor([(token + 1) % VOCAB for token in text[:rejected]]))
            kept = start - back  # what had been read before may be taken back too
            backend.truncate(kept)
            close(backend.extend(torch.tensor(text[kept : start + 3])), truth[kept : start + 3])


@pytest.mark.parametrize(("family", "way"), WINDOWED)
def test_a_branch_sees_its_own_window(family: str, way: str, build: Build) -> None:
    target, text = model(family), [*PROMPT, *own_ids(family)]
    backend = build(family, way)
    for start in (WINDOW - 2, WINDOW, 2 * WINDOW - 1):
        backend.prefill(text[:start])
        first = backend.extend(torch.tensor(TOKENS[:4]), PARENTS[:4])
        logits = torch.cat([first, backend.extend(torch.tensor(TOKENS[4:]), PARENTS[4:])])
        for node, branch in enumerate(BRANCHES):
            alone = anew(target, [*text[:start], *(TOKENS[at] for at in branch)])
            close(logits[node], alone[-1])
        path = [0, 2, 4, 5]
        backend.keep(path)
        more = backend.extend(torch.tensor([1, 2]))
        again = anew(target, [*text[:start], *(TOKENS[at] for at in path), 1, 2])
        close(more, again[-2:])


def unbounded(family: str) -> dict[str, Any]:
    """Sizes of the same model without its window."""
    return {"attention_chunk_size" if family == "Llama 4" else "sliding_window": CONTEXT}


@pytest.mark.parametrize("branches", [(), (2,)])
def test_samples_follow_a_sliding_model_s_own_law(branches: tuple[int, ...]) -> None:
    """Every outcome, over a window of two positions that the answer leaves behind."""
    small = {"vocab_size": 3, "sliding_window": 2}
    target = family_model("Gemma 2", **small).double()
    drafter = HFBackend(family_model("Gemma 2", 0.1, **small).double(), CONTEXT)
    tree = TreeDrafter(drafter, None, branches, CONTEXT) if branches else NeuralDrafter(drafter)
    prompt, request = [0, 1, 0], Request(3, Sampling(2.0))
    found = loop_distribution(HFBackend(target, CONTEXT), speculative(tree, 2), prompt, request)
    truth = reference_distribution(lambda context: anew(target, context)[-1], prompt, request)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(found, truth) < 1e-6
    full = family_model("Gemma 2", **small | unbounded("Gemma 2")).double()
    other = reference_distribution(lambda context: anew(full, context)[-1], prompt, request)
    assert distance(other, truth) > 1e-3


# -- what cannot be rolled back -------------------------------------------------------------------

STATES: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({}, "mamba has layers of linear_attention, which cannot roll back"),
    "jamba": ({}, "jamba has layers of linear_attention, which"),
    "recurrent_gemma": ({}, "recurrent_gemma has layers of linear_attention, which"),
    "qwen3_next": ({}, "qwen3_next has layers of linear_attention, which"),
    "lfm2": ({"full_attn_idxs": [1]}, "lfm2 has layers of conv, which"),
    "deepseek_v32": ({}, "deepseek_v32 has layers of indexed_attention, which"),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_is_refused_before_weights_are_read(kind: str, tmp_path: Path) -> None:
    config, said = STATES[kind]
    AutoConfig.for_model(kind, num_hidden_layers=3, **config).save_pretrained(tmp_path)
    with pytest.raises(DraftpickError, match=said):
        HFBackend.load(tmp_path, CPU, torch.float32)


def test_a_model_without_keys_and_values_is_refused() -> None:
    from transformers import RwkvConfig, RwkvForCausalLM

    rwkv = RwkvForCausalLM(RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2))
    with pytest.raises(DraftpickError, match="rwkv keeps no keys and values"):
        HFBackend(rwkv)


def test_a_model_that_names_no_greatest_length_needs_one() -> None:
    bloom = family_model("BLOOM")
    del bloom.config.max_position_embeddings
    assert HFBackend(bloom, 40).context == 40
    with pytest.raises(DraftpickError, match="bloom does not say how many"):
        HFBackend(bloom)
