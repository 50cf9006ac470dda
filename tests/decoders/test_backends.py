"""What every backend promises, asked of all of them; and native passes beside transformers'."""

from pathlib import Path
from typing import Any

import pytest
import torch
from backend_toys import DECODERS, MADE, PROMPT, close, held, ids, make
from decoder_toys import CPU, Tiny, greedy, native, random_exit, transformers_model
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from decoders.backends import native as llama_module
from decoders.backends.families import attention_of, unsupported
from decoders.backends.llama import model as llama_model
from decoders.backends.llama.attention import rounded
from decoders.backends.rope import Rotation, rotation_of
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.protocols import Backend, decoder_prefix

pytestmark = pytest.mark.instructions


@pytest.fixture(scope="module", params=MADE)
def backend(request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny) -> Backend:
    return make(request.param, tiny, tiny_t5)


@pytest.fixture
def careful(backend: Backend) -> Backend:
    """A backend that says what is wrong: a stranger's may leave that to the engine."""
    if type(backend).__module__ == "my_parts.rereading":
        pytest.skip("the engine checks for it")
    return backend


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny) -> Backend:
    """Reads the prompt and the answer as one sequence."""
    return make(request.param, tiny, tiny_t5)


# -- the contract ---------------------------------------------------------------------------------


def test_is_a_backend(backend: Backend) -> None:
    assert isinstance(backend, Backend)
    assert (backend.vocab_size, backend.context, backend.device) == (16, 96, CPU)
    assert backend.parameters > 0
    assert backend.dtype in (torch.bfloat16, torch.float32, torch.float64)


def test_prefill_reads_the_prompt(backend: Backend) -> None:
    read = backend.prefill(PROMPT)
    assert backend.length == held(backend)
    assert read.logits.shape == (16,)
    assert read.embedding.ndim == 1 and read.embedding.dtype == torch.float32
    assert read.prefill_s >= 0


def test_prefill_forgets_what_came_before(backend: Backend) -> None:
    first = backend.prefill(PROMPT)
    backend.prefill([7, 7, 7])
    backend.extend(ids(2))
    again = backend.prefill(PROMPT)
    assert backend.length == held(backend)
    close(again.logits, first.logits)
    close(again.embedding, first.embedding)


@pytest.mark.parametrize("prompt", [[5], PROMPT])
def test_prefill_equals_extending_from_nothing(backend: Backend, prompt: list[int]) -> None:
    read = backend.prefill(prompt).logits
    assert backend.length == held(backend, prompt)
    backend.extend(ids(8))
    backend.truncate(0)
    assert backend.length == 0
    close(backend.extend(ids(*decoder_prefix(backend, prompt)))[-1], read)


def test_an_empty_prompt_is_refused(careful: Backend) -> None:
    with pytest.raises(DraftpickError, match="empty"):
        careful.prefill([])


def test_at_once_equals_one_by_one(backend: Backend) -> None:
    more = [0, 15, 8, 8, 3]
    backend.prefill(PROMPT)
    at_once = backend.extend(ids(*more))
    assert at_once.shape == (5, 16) and backend.length == held(backend) + 5
    backend.prefill(PROMPT)
    one_by_one = torch.cat([backend.extend(ids(token)) for token in more])
    close(at_once, one_by_one)


def test_rolling_back_leaves_no_trace(backend: Backend) -> None:
    backend.prefill(PROMPT)
    backend.extend(ids(9, 9, 9))
    backend.truncate(held(backend) + 1)
    assert backend.length == held(backend) + 1
    rolled = backend.extend(ids(4, 2))
    backend.prefill(PROMPT)
    backend.extend(ids(9))
    close(rolled, backend.extend(ids(4, 2)))


def test_rolling_back_into_the_prompt(decoder: Backend) -> None:
    decoder.prefill(PROMPT)
    decoder.truncate(3)
    rolled = decoder.extend(ids(11))[-1]
    close(rolled, decoder.prefill([*PROMPT[:3], 11]).logits)


def test_a_pass_that_fails_midway_leaves_what_was_held(tiny: Tiny) -> None:
    made = HFBackend.load(tiny(), CPU, torch.float32)
    made.prefill(PROMPT)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError

    with (
        made.model.model.layers[1].register_forward_pre_hook(fail),
        pytest.raises(torch.OutOfMemoryError),
    ):
        made.prefill(PROMPT, cached=1)
    assert made.length == 1


def test_truncation_goes_backwards_only(careful: Backend) -> None:
    careful.prefill(PROMPT)
    for length in (held(careful) + 1, -1):
        with pytest.raises(ValueError, match="truncate"):
            careful.truncate(length)
    careful.truncate(held(careful))
    assert careful.length == held(careful)


def test_the_context_is_filled_and_not_overrun(careful: Backend) -> None:
    careful.prefill([1] * (careful.context - 2))
    careful.extend(ids(*[1] * (careful.context - careful.length)))
    assert careful.length == careful.context
    with pytest.raises(ContextTooLong, match="96"):
        careful.extend(ids(1))
    with pytest.raises(ContextTooLong):
        careful.prefill([1] * (careful.context + 1))


# -- the same numbers as transformers -------------------------------------------------------------

LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED: dict[str, dict[str, Any]] = {  # of the 8 pairs some turn fast, some slowly, some between
    "linear": {"factor": 4.0},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 40},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 24},
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-all-kv-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-rope-theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "qwen2-tied": ("qwen2", {}),
    "qwen2-untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3-tied": ("qwen3", {}),
    "qwen3-untied": ("qwen3", {"tie_word_embeddings": False, "head_dim": 16}),
    "mistral": ("mistral", {"tie_word_embeddings": False}),
    "mistral-head-dim": ("mistral", {"head_dim": 16}),
    **{
        f"{kind}-rope": (
            "qwen2" if kind == "yarn" else "llama",
            {"head_dim": 16, "rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **scaled}},
        )
        for kind, scaled in SCALED.items()
    },
}


def folder_of(shape: str, tiny: Tiny) -> Path:
    kind, config = SHAPES[shape]
    frozen = {k: v for k, v in config.items() if k != "rope_parameters"}
    if len(frozen) == len(config):
        return tiny(kind, **frozen)
    from decoder_toys import save_tiny

    folder = tiny(kind, seed=99).parent / shape
    save_tiny(folder, kind, 99, config)
    return folder


@pytest.mark.parametrize("shape", [*SHAPES, "hf"])
def test_passes_are_transformers(shape: str, tiny: Tiny) -> None:
    """Native ones of every shape, and those through transformers with our cache."""
    folder = tiny() if shape == "hf" else folder_of(shape, tiny)
    model: Any = transformers_model(folder)
    mine = HFBackend.load(folder, CPU, torch.float32) if shape == "hf" else native(folder)
    with torch.no_grad():
        theirs = model(torch.tensor([[*PROMPT, 7, 7, 0]]), output_hidden_states=True)
    read = mine.prefill(PROMPT)
    close(read.logits, theirs.logits[0, len(PROMPT) - 1])
    close(mine.extend(ids(7, 7, 0)), theirs.logits[0, -3:])
    assert mine.parameters == model.num_parameters()
    # the embedding is the last hidden state, which transformers gives after the final norm
    close(read.embedding, theirs.hidden_states[-1][0, len(PROMPT) - 1])
    assert theirs.logits.std() > 0.3  # a model that says nothing would prove nothing


@given(
    st.sampled_from([None, 10_000, 1e5, 5e5, 1e6, 123.4]),
    st.sampled_from(["rope_parameters", "rope_scaling", None]),
    st.sampled_from([None, 16, 64, 80, 128]),
)
def test_plain_positions_turn_as_in_transformers(
    theta: float | None, place: str | None, head: int | None
) -> None:
    """To the last bit, wherever a config names them."""
    config: dict[str, Any] = {"hidden_size": 576, "num_attention_heads": 9}
    if head is not None:
        config["head_dim"] = head
    if theta is not None:
        named = {"rope_theta": theta}
        config |= named if place is None else {place: {"rope_type": "default", **named}}
    theirs = LlamaRotaryEmbedding(LlamaConfig.from_dict(config))
    assert rotation_of(config) == Rotation(tuple(theirs.inv_freq.tolist()), 1.0)


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_positions_are_not_the_plain_ones(kind: str) -> None:
    """Or the equality above would prove nothing; and configs of before transformers 5 are read."""
    config = {"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e4}
    plain = rotation_of(config)
    old = rotation_of({**config, "rope_scaling": {"type": kind, **SCALED[kind]}})
    new = {"rope_type": kind, "rope_theta": 1e4, **SCALED[kind]}
    assert old == rotation_of({**config, "rope_parameters": new}) != plain
    assert (old.scale == 1) == (kind != "yarn")


def test_a_long_prompt_is_read_in_chunks(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = native(tiny()).prefill(PROMPT)
    monkeypatch.setattr(llama_module, "PREFILL_CHUNK", 3)
    pieces = native(tiny()).prefill(PROMPT)
    close(pieces.logits, whole.logits)
    close(pieces.embedding, whole.embedding)


def test_bfloat16_is_near(tiny: Tiny) -> None:
    exact, rough = native(tiny()).prefill(PROMPT), native(tiny(), torch.bfloat16).prefill(PROMPT)
    assert rough.logits.dtype == torch.bfloat16 and rough.embedding.dtype == torch.float32
    assert (rough.logits.float() - exact.logits).abs().max() < 0.15 * exact.logits.abs().max()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "none named"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope without original_max"),
        ({"architectures": ["Cohere2ForCausalLM"]}, "Cohere2"),
        (
            {
                "architectures": ["Olmo3ForCausalLM"],
                "sliding_window": 64,
                "layer_types": ["chunked_attention"],
            },
            "chunked_attention",
        ),
        ({"clip_qkv": 8.0}, "clip_qkv = 8.0"),
        ({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "bidir"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "in part"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"attention_bias": True}, "bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_native_cannot_run_is_named(config: dict[str, Any], reason: str) -> None:
    said = unsupported({"architectures": ["LlamaForCausalLM"], **config})
    assert said is not None and reason in said


def test_native_takes_what_it_can_run() -> None:
    assert unsupported({"architectures": ["LlamaForCausalLM"], "attention_bias": False}) is None
    unused_window = {"sliding_window": 64, "use_sliding_window": False}
    assert unsupported({"architectures": ["Qwen2ForCausalLM"], **unused_window}) is None


@pytest.mark.parametrize(("family", "window"), [("Qwen2", 0), ("Qwen3", 0), ("Mistral", 64)])
def test_a_window_that_is_not_used_counts_where_transformers_does_not_ask(
    family: str, window: int
) -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 96}
    said = {"sliding_window": 64, "use_sliding_window": False, "max_window_layers": 0}
    config = {"architectures": [f"{family}ForCausalLM"], "num_hidden_layers": 2, **sizes, **said}
    kinds, of_layers = attention_of(config)
    assert [kind.window for kind in kinds] == [window] and of_layers == (0, 0)


# -- early exit -----------------------------------------------------------------------------------


def test_lower_kv_is_counted_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting owns the adapter's cache only, and what it runs ahead the target does not run."""
    target = native(tiny(), torch.float64)
    own = target._cache.all.data_ptr()
    drafter = random_exit(target, 1, seed=0)
    theirs = drafter.head.cache.all  # type: ignore[attr-defined]
    assert len(theirs) == len(drafter.head.adapter.blocks) == 1  # type: ignore[attr-defined]
    assert theirs.data_ptr() != own
    kept = target.shape.layers * 2 * target.shape.kv_heads * target.shape.head_dim
    assert target._cache.all.numel() == kept * rounded(target.context)

    runs: list[tuple[int, int, int]] = []  # (target layer, first position, positions)
    names = {id(w): index for index, w in enumerate(target.weights.layers)}
    real = llama_model.layer

    def noted(h: Any, w: Any, shape: Any, place: Any, slot: Any, **more: Any) -> Any:
        if id(w) in names:
            written = slot.store.__self__  # a view of the cache, by its `copy_`
            assert written.untyped_storage().data_ptr() == own
            start = written.storage_offset() // shape.head_dim % rounded(target.context)
            runs.append((names[id(w)], start, len(h)))
        return real(h, w, shape, place, slot, **more)

    monkeypatch.setattr(llama_model, "layer", noted)
    target.prefill(PROMPT)
    drafter.reset(PROMPT)
    proposal = drafter.propose([*PROMPT, 9], greedy(3))
    target.extend(torch.cat([ids(9), proposal.ids]))
    n = len(PROMPT)
    for index, first in enumerate([0, 1, 2]):
        seen = sorted(p for i, s, t in runs if i == first for p in range(s, s + t))
        assert seen == list(range(n + 4)), f"layer {index} ran a position twice or not at all"
    assert target._cache.all.data_ptr() == own
