"""Every backend over a tiny model."""

import torch
from decoder_toys import CPU, FITS_INT4, FITS_ROWS, WINDOWS, Tiny, by_rows, native
from replayed import traced
from strangers import part
from t5_toys import seq2seq

from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend
from decoders.models.loaders import LoadRequest
from decoders.models.targets import ROUNDINGS
from decoders.protocols import Backend, decoder_prefix
from decoders.testing.toys import ToyBackend

DECODERS = (
    "toy",
    "native-float64",
    "native-float32",
    "native-with-exit",
    "native-recorded",
    "native-recorded-with-exit",
    "native-int8",
    "native-int4",
    "native-int4-recorded",
    "native-int4-with-exit",
    "native-int4-rows",
    "native-bfloat16-rows",
    "native-file-rows",
    "native-qwen3-int8-rows-with-exit",
    "native-qwen3-with-exit",
    "hf",
    "hf-windows",
    "stranger",
)

MADE = (*DECODERS, "hf-seq2seq", "hf-seq2seq-with-exit")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def make(kind: str, tiny: Tiny, tiny_t5: Tiny) -> Backend:
    family, _, how = kind.replace("hf-seq2seq", "t5").partition("-")
    if family in ("t5", "mt5", "umt5"):
        dtype = torch.float64 if how == "float64" else torch.float32
        encoder_decoder = seq2seq(tiny_t5(family), dtype)
        if how == "with-exit":
            encoder_decoder.open_exit(1)
        if how == "eager":
            encoder_decoder.model.set_attn_implementation("eager")
        return encoder_decoder
    if kind == "stranger":
        made: Backend = part("rereading").load(LoadRequest(tiny(), CPU, torch.float32))
        return made
    if kind == "toy":
        toy = ToyBackend.random(16, seed=0)
        toy.context = 96
        return toy
    if family == "hf":
        folder = tiny("qwen2", **WINDOWS) if how == "windows" else tiny()
        by_transformers = HFBackend.load(folder, CPU, torch.float32)
        if how == "eager":
            by_transformers.model.set_attn_implementation("eager")
        return by_transformers
    rounding = next((name for name in ROUNDINGS if name in kind), None)
    model = "qwen3" if "qwen3" in kind else "llama"
    if "-rows" in kind:
        backend = by_rows(tiny(model, **FITS_ROWS), rounding)
    elif rounding is not None:
        folder = tiny(model, **FITS_INT4)
        backend = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding)
    else:
        backend = native(tiny(model), torch.float64 if kind == "native-float64" else torch.float32)
    if kind.endswith("-with-exit"):
        backend.open_exit(1)
    if "-recorded" in kind:
        backend.record_passes(traced)
    return backend


def held(backend: Backend, prompt: list[int] = PROMPT) -> int:
    """Positions that a backend holds once it has read a prompt."""
    return len(decoder_prefix(backend, prompt))


def ids(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens)


def close(one: torch.Tensor, other: torch.Tensor, near: float = 1e-4) -> None:
    """Within rounding: logits reach 6, and a wrong key moves them by 1."""
    rounded = torch.bfloat16 in (one.dtype, other.dtype)
    near = 0.15 if rounded else near
    torch.testing.assert_close(one.double(), other.double(), atol=near, rtol=near)
