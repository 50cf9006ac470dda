"""What a model is said to need is what it takes, and running out is told with the numbers."""

import json
import mmap
import sys
from pathlib import Path

import pytest
import torch
from decoder_toys import CPU, FITS_INT4, Tiny, generate, native, transformers_model
from safetensors.torch import load_file, save_file

from decoders import Engine
from decoders.arms import recipe
from decoders.backends.llama.kv import KVCache
from decoders.backends.llama.loading import Stored, load
from decoders.backends.native import LlamaBackend
from decoders.backends.weights.packed import Rounding, dense
from decoders.common.errors import ContextTooLong, Damaged, DraftpickError
from decoders.models import memory, targets
from decoders.models.memory import GIB, Need, OutOfMemory, explained, need_of, require
from decoders.records import Request

CUDA = torch.device("cuda")
PROMPT = [7, 11, 7, 11, 7]


# -- what is needed -------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", [None, "int8", "int4"])
def test_what_is_needed_is_what_is_taken(tiny: Tiny, rounding: Rounding | None) -> None:
    folder = tiny(**FITS_INT4)
    need = need_of(folder, CPU, torch.bfloat16, rounding, 40)
    model = LlamaBackend.load(folder, CPU, torch.bfloat16, 40, rounding)
    assert need.parameters == model.parameters
    cache = model._cache
    assert need.context == model.context == 40
    assert need.position == cache.all.nbytes // cache.capacity
    taken = sum(t.nbytes for t in _matrices(model)) + model.weights.embedding.nbytes
    assert 0.9 * taken < need.weights < 1.1 * taken


def _matrices(model: LlamaBackend) -> list[torch.Tensor]:
    """Every tensor of the layers' matrices, the packed ones of a CPU as ordinary ones."""
    kept: list[torch.Tensor] = []
    for layer in model.weights.layers:
        for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
            kept.append(dense(matrix))
            kept += getattr(matrix, "stored", ())
    return kept


def test_off_the_cpu_rounded_weights_are_all_there_is(tiny: Tiny) -> None:
    folder = tiny(**FITS_INT4)
    whole, rounded = (need_of(folder, CUDA, torch.bfloat16, how, None) for how in (None, "int4"))
    assert rounded.weights == int(rounded.parameters * 0.625) < whole.weights / 3
    assert whole.context == 96 and need_of(folder, CUDA, torch.bfloat16, None, 500).context == 96


# -- too little -----------------------------------------------------------------------------------

BIG = Need(8_030_000_000, "bfloat16", 16_060_000_000, 131_072, 131_072)


def test_a_model_that_fits_with_a_shorter_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 24 * GIB)
    with pytest.raises(OutOfMemory) as said:
        require("llama", BIG, CUDA)
    assert str(said.value) == (
        "llama does not fit: 8.03 billion parameters in bfloat16 take 15.0 GiB and the keys and "
        "values of 131072 positions 16.0 GiB, but 24.0 GiB of cuda are free; lower --context to "
        "73728"
    )
    fits = Need(8_030_000_000, "bfloat16", 16_060_000_000, 131_072, 73_728)
    require("llama", fits, CUDA)
    require("llama", BIG, CPU)  # where keys and values take memory as they come
    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    require("llama", BIG, CUDA)  # unknown is not too little


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_model_that_does_not_fit_at_all(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 12 * GIB)
    with pytest.raises(OutOfMemory, match=r"12\.0 GiB of .* are free; use a smaller model or"):
        require("llama", BIG, device)


def test_a_load_is_refused_at_the_door(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(LlamaBackend, "load", lambda *given: pytest.fail("it was loaded"))
    for backend in ("native", "hf"):
        with pytest.raises(OutOfMemory, match=r"model does not fit: 0\.00 billion parameters"):
            targets.load_backend(tiny(), CPU, torch.float32, backend)


def test_the_machine_says_what_is_free() -> None:
    free = memory.free_bytes(CPU)
    if sys.platform == "linux":
        assert free is not None and free > GIB / 100
    assert memory.free_bytes(torch.device("meta")) is None


def take_too_much(how: str) -> None:
    if how == "torch":
        torch.empty(2**60, dtype=torch.uint8)
    elif how == "mmap":
        mmap.mmap(-1, 2**60)
    elif how == "python":
        bytearray(2**60)
    else:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("how", ["torch", "mmap", "python", "cuda"])
def test_running_out_is_told(how: str) -> None:
    with (
        pytest.raises(OutOfMemory, match=r"^cpu ran out of memory at work; .* GiB are free now; "),
        explained(CPU, "at work"),
    ):
        take_too_much(how)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), FileNotFoundError(2, "none")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error.args[-1])), explained(CPU, "at work"):
        raise error


def test_an_answer_that_ran_out_is_told_and_the_next_is_whole(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = native(tiny())
    engine = Engine(target, {"copy": recipe(name="copy", kind="max_gram", shortest=1)})
    for name, doing in (("prefill", "reading"), ("extend", "answering")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, lambda *given: take_too_much("torch"))
            with pytest.raises(OutOfMemory, match=f"{doing} a prompt of 5 tokens"):
                engine.decode("copy", PROMPT, Request(8))
        expected = generate(transformers_model(tiny()), PROMPT, 8)
        assert engine.decode("copy", PROMPT, Request(8)).ids == expected


# -- a context of one's own -----------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "hf"])
def test_a_shorter_context(tiny: Tiny, backend: str, tmp_path: Path) -> None:
    small = recipe(name="small", kind="neural", drafter=str(tiny(seed=5, num_hidden_layers=2)))
    folder = str(_named(tiny(), tmp_path))
    engine = Engine.load(folder, {"small": small}, dtype="float32", backend=backend, context=20)
    assert engine.context == engine.strategy("small").drafts_to == 20
    expected = generate(transformers_model(tiny()), PROMPT, 15)
    assert engine.decode("small", PROMPT, Request(15)).ids == expected
    with pytest.raises(ContextTooLong, match=r"the context holds 20; .* or raise --context"):
        engine.decode("small", PROMPT, Request(16))


@pytest.mark.parametrize("context", [0, 1, 97])
def test_a_context_that_the_model_does_not_have(tiny: Tiny, context: int, tmp_path: Path) -> None:
    folder = _named(tiny(), tmp_path)
    with pytest.raises(DraftpickError, match=f"--context {context}: .* at least 2 and at most 96"):
        Engine.load(str(folder), {}, dtype="float32", context=context)


def test_an_encoder_decoder_may_be_given_more(tiny_t5: Tiny) -> None:
    targets.check_context(tiny_t5(), 5000)
    target = targets.load_backend(tiny_t5(), CPU, torch.float32, context=2000)
    assert target.context == 2000 and target.prefill([3] * 1500).logits.isfinite().all()
    assert targets.load_backend(tiny_t5(), CPU, torch.float32).context == 1024


def _named(model: Path, place: Path) -> Path:
    from engine_toys import WORDS, with_tokenizer

    return with_tokenizer(model, place, WORDS)


# -- what is taken only when needed ---------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cache_takes_memory_as_it_is_written() -> None:
    def taken() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = taken()
    cache = KVCache(8, 1, 2, 2**17, 64, torch.bfloat16, CPU)
    assert cache.all.nbytes == 2**29 and cache.all.data_ptr() % 64 == 0
    cache.all[:, :, :, :100] = 1
    assert taken() - before < 2**25
    assert cache.all[:, :, :, 100:300].count_nonzero() == 0


def test_a_model_in_parts_beside_another_copy_of_it(tiny: Tiny, tmp_path: Path) -> None:
    """As a hub's folders have it: the index names the parts, and the copy is not read."""
    state = load_file(tiny() / "model.safetensors")
    (tmp_path / "config.json").write_bytes((tiny() / "config.json").read_bytes())
    index = {name: f"model-{1 + i % 2}-of-2.safetensors" for i, name in enumerate(state)}
    for part in set(index.values()):
        save_file({n: state[n] for n in state if index[n] == part}, tmp_path / part)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    save_file({n: t + 1 for n, t in state.items()}, tmp_path / "consolidated.safetensors")
    split, whole = native(tmp_path), native(tiny())
    assert torch.equal(split.prefill(PROMPT).logits, whole.prefill(PROMPT).logits)
    assert need_of(tmp_path, CPU, torch.float32, None, None).parameters == whole.parameters


@pytest.mark.parametrize("kept", [0, 7, 200, -1, "version https://git-lfs.github.com/spec/v1"])
def test_a_file_that_is_not_whole(tiny: Tiny, tmp_path: Path, kept: int | str) -> None:
    whole = (tiny() / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_bytes((tiny() / "config.json").read_bytes())
    with pytest.raises(DraftpickError, match="holds no safetensors files"):
        load(tmp_path, CPU, torch.float32)
    part = whole[:kept] if isinstance(kept, int) else kept.encode()
    (tmp_path / "model.safetensors").write_bytes(part)
    for backend in ("native", "hf"):
        with pytest.raises(Damaged, match=r"model\.safetensors is cut short"):
            targets.load_backend(tmp_path, CPU, torch.float32, backend)


def test_what_was_read_is_apart_from_the_file(tiny: Tiny, tmp_path: Path) -> None:
    state = load_file(tiny() / "model.safetensors")
    copy = tmp_path / "model.safetensors"
    save_file(state, copy)
    norm = Stored(tmp_path, CPU, torch.float32, {"norm.weight": (32,)}).tensors("norm.")["weight"]
    with copy.open("r+b") as file:
        file.write(b"\0" * copy.stat().st_size)
    assert torch.equal(norm, state["model.norm.weight"])
