"""What `--backend auto` does with rounded weights and bfloat16 on a CPU; what `--dtype auto` is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, FITS_ROWS, Tiny
from safetensors.torch import load_file, save_file

from decoders.backends import cpp_kernels
from decoders.backends.native import LlamaBackend
from decoders.backends.weights.int4 import quantised
from decoders.backends.weights.packed import Rounding
from decoders.common.errors import DraftpickError
from decoders.costs.passes import CostKey
from decoders.models import loaders, precision
from decoders.models.loaders import LoadRequest, auto
from decoders.models.precision import four_bit, precision_of
from decoders.models.targets import load_backend
from decoders.sampling.race import ON_CPU

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def asked(tiny: Tiny) -> LoadRequest:
    return LoadRequest(tiny(**FITS_ROWS), CPU, torch.bfloat16, rounding="int4")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are large enough for kernels to pay."""
    monkeypatch.setattr(loaders, "WORTH_COMPILING", 1)


def test_a_small_model_does_without_kernels(
    asked: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "_blocked", lambda: pytest.fail("compiled"))
    assert auto(asked).passes == "eager"


def test_tokens_are_drawn_by_kernels_that_are_there_but_none_are_compiled_for_that(
    kernel: None, asked: LoadRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_kernels, "loaded", lambda: False)
    monkeypatch.setattr(cpp_kernels, "compile_kernels", lambda path, flags: pytest.fail("compiled"))
    monkeypatch.setattr(ON_CPU, "pick", None)
    monkeypatch.setattr(ON_CPU, "pick_chain", None)
    load_backend(asked.folder, CPU, torch.float32, "hf")
    assert ON_CPU.pick is not None and ON_CPU.pick_chain is not None
    monkeypatch.setattr(cpp_kernels, "FOLDER", tmp_path)
    assert not cpp_kernels.load_kernel(tmp_path, pytest.fail, compiling=False)


def test_a_large_one_is_run_by_kernels(kernel: None, large: None, asked: LoadRequest) -> None:
    assert auto(asked).passes == "compiled"
    plain = loaders.native(asked)
    assert plain.passes == "eager" and not plain.blocked


@pytest.mark.parametrize(
    ("best", "expected"),
    [("AMX", "eager"), ("AVX512_BF16", "compiled"), ("AVX2", "compiled"), ("NEON", "eager")],
)
def test_in_bfloat16_too_where_that_is_known_to_be_faster(
    kernel: None,
    large: None,
    asked: LoadRequest,
    best: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpp_kernels, "instructions", lambda: best)
    half = replace(asked, rounding=None)
    assert auto(half).passes == expected
    assert loaders.compiled(half).passes == "compiled"
    assert auto(replace(half, dtype=torch.float32)).passes == "eager"


def test_without_kernels_it_runs_ordinary_passes(
    large: None, asked: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "_blocked", lambda: False)  # which says why
    assert auto(asked).passes == "eager"
    with pytest.raises(DraftpickError, match=r"a C\+\+ compiler .* --backend native"):
        loaders.compiled(asked)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [({"head_dim": 16}, "16 dimensions, not a multiple of 32"), ({"hidden_size": 40}, "outputs")],
)
def test_a_model_that_kernels_do_not_fit_says_so_and_runs_ordinary_passes(
    kernel: None,
    large: None,
    tiny: Tiny,
    capsys: pytest.CaptureFixture[str],
    sizes: dict[str, int],
    why: str,
) -> None:
    rounding: Rounding = "int8" if "hidden_size" in sizes else "int4"
    asked = LoadRequest(tiny(**FITS_ROWS | sizes), CPU, torch.bfloat16, rounding=rounding)
    capsys.readouterr()  # of making it
    backend = auto(asked)
    assert backend.passes == "eager"
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("running ordinary passes: ") and why in said
    assert backend.prefill([3, 1, 4]).logits.isfinite().all()
    with pytest.raises(DraftpickError, match=why):
        loaders.compiled(asked)


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": CUDA},
        {"device": CUDA, "rounding": None},
        {"dtype": torch.float32, "rounding": None},
    ],
)
def test_the_kernels_are_for_a_cpu_and_no_more_than_16_bits(
    asked: LoadRequest, wrong: dict[str, Any]
) -> None:
    with pytest.raises(DraftpickError, match="bfloat16 weights on a CPU: add --dtype int4, int8"):
        loaders.compiled(replace(asked, **wrong))


def test_costs_of_passes_by_kernels_are_kept_apart(kernel: None, asked: LoadRequest) -> None:
    plain, backend = (
        LlamaBackend.load(asked.folder, CPU, torch.bfloat16, rounding="int4", blocked=True)
        for _ in range(2)
    )
    backend.compile_layers()
    assert CostKey.of(plain, "same").file != CostKey.of(backend, "same").file


# -- what --dtype auto chooses --------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tiny: Tiny) -> Path:
    return tiny(hidden_size=64, intermediate_size=96)


@pytest.fixture(scope="module")
def rounded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, as a 4-bit file would give it back."""
    made = tmp_path_factory.mktemp("rounded")
    for path in folder.iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    weights = load_file(made / "model.safetensors")
    for name, weight in weights.items():
        if "proj" in name:
            q, grid = quantised(weight.to(torch.bfloat16))
            scale, zero = grid.float().transpose(0, 1).repeat_interleave(32, 1).unbind(-1)
            weights[name] = ((q - 8) * scale + zero).contiguous()
    save_file(weights, made / "model.safetensors")
    return made


def test_a_four_bit_model_is_known_by_its_weights(folder: Path, rounded: Path) -> None:
    assert four_bit(rounded) and not four_bit(folder)


def test_auto_is_int4_for_a_four_bit_model_on_a_cpu(
    folder: Path, rounded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_has_kernels", lambda: True)
    assert precision_of("auto", rounded, CPU, "auto") == "int4"
    assert precision_of("auto", rounded, CPU, "native") == "int4"
    assert precision_of("auto", folder, CPU, "auto") == "bfloat16"
    assert precision_of("auto", rounded, CUDA, "auto") == "bfloat16"
    assert precision_of("auto", rounded, CPU, "hf") == "bfloat16"
    assert precision_of("float32", rounded, CPU, "auto") == "float32"
    monkeypatch.setattr(precision, "_has_kernels", lambda: False)
    assert precision_of("auto", rounded, CPU, "auto") == "bfloat16"


def test_sizes_that_do_not_fit_stay_as_they_are(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_has_kernels", lambda: True)
    monkeypatch.setattr(precision, "four_bit", lambda folder: True)
    odd = tiny(hidden_size=48, intermediate_size=40)
    assert precision_of("auto", odd, CPU, "auto") == "bfloat16"
