"""GGUF files as they are: what they say and hold, and models that run on their own blocks."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from decoder_toys import CPU, Tiny
from effort import examples
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from gguf_toys import (
    ARCHITECTURES,
    GOLDEN,
    LONGER,
    MIXED,
    Sizes,
    describe,
    random_rows,
    save_gguf,
    save_golden_gguf,
    written,
)
from hypothesis import given
from hypothesis import strategies as st

from decoders.backends import cpp_kernels
from decoders.backends.gguf.folder import files_of, saved_header
from decoders.backends.gguf.header import parts_of, read_header
from decoders.backends.llama.loading import FileStored
from decoders.backends.native import LlamaBackend
from decoders.backends.weights.file_blocks import FileBlocks, FileRows, to_file_blocks
from decoders.backends.weights.packed import linear, rows_of
from decoders.common.errors import Damaged, DraftpickError
from decoders.models import drafts, memory, precision, targets
from decoders.zoo import from_gguf

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
KIND_NAMES = [
    "IQ4_NL", "MXFP4", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0",
]  # fmt: skip
NUMBERS = {name: GGMLQuantizationType[name].value for name in KIND_NAMES}


def by_kernels(test: Any) -> Any:
    """Marks a test of the kernels in C++."""
    return pytest.mark.instructions(pytest.mark.usefixtures("kernel")(test))


def matrix(kind: str, outputs: int, inputs: int, seed: int = 0) -> tuple[FileRows, torch.Tensor]:
    """One in a file, and its numbers as the package gguf has them, float32."""
    rows = random_rows(kind, outputs, inputs, np.random.default_rng(seed))
    numbers = dequantize(rows, GGMLQuantizationType[kind])
    return FileRows(torch.from_numpy(rows), NUMBERS[kind], inputs), torch.from_numpy(numbers)


def error(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of logits [n, V], the median of the tokens': one whose experts are nearly equally likely may
    take others."""
    return float(((one - other).norm(dim=-1) / other.norm(dim=-1)).median())


# -- blocks ---------------------------------------------------------------------------------------


@by_kernels
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_blocks_hold_the_files_numbers_to_the_last_bit(kind: str) -> None:
    stored, numbers = matrix(kind, 40, 512)  # the last block is not full
    made = to_file_blocks([stored])
    assert made is not None and made.outputs == 40 and made.numel() == 40 * 512
    assert torch.equal(made.rows(torch.arange(40)), numbers)
    assert torch.equal(rows_of(made, torch.tensor([[7, 0]])), numbers[[7, 0]][None].bfloat16())
    assert torch.equal(made.dequantised(), numbers.bfloat16())


@by_kernels
@given(
    kind=st.sampled_from(KIND_NAMES),
    rows=st.integers(1, 150),
    outputs=st.sampled_from([16, 40, 160]),
    seed=st.integers(0, 99),
)
@examples(40)
def test_products_are_exact_but_for_the_rounding_of_inputs(
    kind: str, rows: int, outputs: int, seed: int
) -> None:
    """And a row's has the same bits in any company."""
    stored, numbers = matrix(kind, outputs, 512, seed)
    made, exact = to_file_blocks([stored]), numbers.double().T
    tiles = cpp_kernels.instructions() == "AMX"
    block = 256 if tiles and kind.endswith("_K") else 32  # inputs rounded by their greatest
    random = torch.Generator().manual_seed(seed)
    whole = torch.randint(-127, 128, (rows, 512), generator=random).bfloat16()
    whole[:, ::block] = 127
    product = linear(whole, made)
    least = 2.0**-8 * (whole.double() @ exact).abs()  # as bfloat16 holds it
    summed = 1e-5 * (whole.double().abs() @ exact.abs())
    assert ((product.double() - whole.double() @ exact).abs() <= least + summed).all()
    for row, alone in zip(product, whole, strict=True):
        assert torch.equal(linear(alone, made), row)
    x = torch.randn(rows, 512, generator=random).bfloat16()
    most = x.double().unflatten(-1, (-1, block)).abs().amax(-1, keepdim=True)
    half = (0.501 / 127 * most).expand(-1, -1, block).flatten(1) @ exact.abs()
    bound = half + 1e-5 * (x.double().abs() @ exact.abs()) + 2.0**-8 * (x.double() @ exact).abs()
    assert ((linear(x, made).double() - x.double() @ exact).abs() <= 1.01 * bound).all()


@by_kernels
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q5_0"])
def test_a_row_among_more_than_a_cache_holds_has_the_same_bits(kind: str) -> None:
    made = to_file_blocks([matrix(kind, 11 * 16, 3072)[0]])
    x = torch.randn(300, 3072, generator=torch.Generator().manual_seed(0)).bfloat16()
    product = made.times(x, None)
    for rows in (range(1), range(100, 105), range(250, 300)):
        assert torch.equal(made.times(x[rows], None), product[rows]), rows


@by_kernels
def test_matrices_of_different_kinds_lie_below_each_other() -> None:
    parts = [matrix("Q4_K", 32, 256), matrix("Q6_K", 16, 256, 1), matrix("Q5_0", 24, 256, 2)]
    made = to_file_blocks([part for part, _ in parts])
    assert made is not None and made.outputs == 72 and not made.whole
    numbers = torch.cat([each for _, each in parts])
    assert torch.equal(made.rows(torch.arange(72)), numbers)
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = x.double() @ numbers.double().T
    torch.testing.assert_close(made.times(x, None).double(), exact, rtol=0.02, atol=0.02)
    bias = torch.randn(72).bfloat16()
    assert torch.equal(made.times(x, bias), made.times(x, None) + bias)


@by_kernels
def test_what_the_kernels_do_not_have() -> None:
    odd, _ = matrix("Q4_0", 24, 64)  # not of whole blocks, and not the last
    assert to_file_blocks([odd, odd]) is None
    assert to_file_blocks([FileRows(torch.zeros(16, 84, dtype=torch.uint8), 10, 256)]) is None
    with pytest.raises(RuntimeError):
        made = to_file_blocks([matrix("Q4_0", 16, 64)[0]])
        FileBlocks(made.values[:-1], made.table, 16).rows(torch.arange(16))


# -- files ----------------------------------------------------------------------------------------


def test_a_header_says_what_the_package_gguf_says(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", kinds=MIXED)
    header, known = read_header(path), GGUFReader(path)
    assert {*header.metadata} == {name for name in known.fields if not name.startswith("GGUF.")}
    assert header.metadata["tokenizer.ggml.tokens"][:2] == ["</s>", "!"]
    for each in known.tensors:
        own = header.tensors[each.name]
        assert own.kind == each.tensor_type and own.offset == each.data_offset
        assert own.shape == tuple(reversed(each.shape.tolist())) and own.size == each.n_bytes


def test_rows_of_queries_and_keys_are_in_transformers_order(tmp_path: Path, cache: Path) -> None:
    """As transformers' own loader has them, tensor by tensor."""
    from safetensors.torch import load_file

    from decoders.zoo import converted

    path = save_gguf(tmp_path / "m.gguf", kinds=MIXED)
    header = saved_header(from_gguf(path))
    stored = FileStored(header, CPU, torch.float32)
    known = load_file(converted(path) / "model.safetensors")
    assert len(known) == len(header.tensors)
    for name, tensor in known.items():
        assert torch.equal(stored.one(name.removeprefix("model.")), tensor), name


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", *ARCHITECTURES[3:]])
def test_a_folder_is_made_of_the_metadata_alone(
    tmp_path: Path, cache: Path, architecture: str
) -> None:
    path = save_gguf(tmp_path / "m.gguf", architecture)
    folder = from_gguf(path)
    assert folder == from_gguf(path) and files_of(folder) == [path]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 60_000
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == 100 and config["head_dim"] == 32
    assert not config["tie_word_embeddings"] and targets.eos_ids(folder) == (0,)
    assert targets.load_tokenizer(folder).get_vocab()["ab"] == 95
    own = targets.fingerprint(folder)
    save_gguf(path, architecture, seed=1)
    assert targets.fingerprint(from_gguf(path)) != own


def test_a_file_that_is_gone_or_another_is_named(tmp_path: Path, cache: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf")
    folder = from_gguf(path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(DraftpickError, match=r"m\.gguf is not there any more, or has changed"):
        files_of(folder)
    path.unlink()
    with pytest.raises(DraftpickError, match="not there any more"):
        targets.fingerprint(folder)


def test_files_that_are_not_whole(tmp_path: Path, cache: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for size, said in ((len(whole) - 10_000, "cut short: it has"), (700, "cut short or damaged")):
        path.write_bytes(whole[:size])
        with pytest.raises(Damaged, match=said):
            from_gguf(path)
    path.write_bytes(b"PK" + whole)
    with pytest.raises(DraftpickError, match="no GGUF file"):
        from_gguf(path)
    path.write_bytes(whole[:4] + b"\x09" + whole[5:])
    with pytest.raises(DraftpickError, match="GGUF version 9"):
        from_gguf(path)
    for alignment in (0, "x"):
        with pytest.raises(Damaged, match="cut short or damaged"):
            from_gguf(save_gguf(path, metadata={"general.alignment": alignment}))
    assert not (cache / "gguf").exists()


def test_a_kind_that_nobody_knows(tmp_path: Path, cache: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf")
    content = bytearray(path.read_bytes())
    at = content.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    content[at] = 200
    path.write_bytes(bytes(content))
    with pytest.raises(DraftpickError, match=r"attn_q\.weight is quantised in a way.*kind 200"):
        from_gguf(path)


def test_models_in_parts(tmp_path: Path, cache: Path) -> None:
    name = "m-00001-of-00002.gguf"
    (tmp_path / name).touch()
    with pytest.raises(DraftpickError, match=r"one of 2 parts, and .* lacks m-00002-of-00002"):
        parts_of(tmp_path / name)
    whole = read_header(save_gguf(tmp_path / "m.gguf"))
    split(tmp_path / "m.gguf", tmp_path)
    header = read_header(tmp_path / "m-00002-of-00002.gguf")
    assert [file.name for file in header.files] == [name, "m-00002-of-00002.gguf"]
    assert {*header.tensors} == {*whole.tensors}
    one, other = (
        FileStored(each, CPU, torch.float32).one("layers.1.mlp.up_proj.weight")
        for each in (whole, header)
    )
    assert torch.equal(one, other)
    assert files_of(from_gguf(tmp_path / name)) == [*header.files]


def split(path: Path, folder: Path) -> None:
    """Into two files, as llama.cpp's tool does: the metadata in the first."""
    known = GGUFReader(path)
    for nth in (0, 1):
        writer = GGUFWriter(folder / f"m-{nth + 1:05}-of-00002.gguf", "llama")
        if nth == 0:
            describe(writer, Sizes(), {})
        for each in known.tensors[nth::2]:
            writer.add_tensor(each.name, each.data, raw_dtype=each.tensor_type)
        written(writer)


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.every(2)
@by_kernels
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("llama", "Q4_K"),
        ("qwen2", "Q5_0"),
        ("qwen3", "Q4_0"),
        ("llama", "IQ4_NL"),
        ("gemma3", "Q8_0"),
        ("olmo2", "Q5_1"),
        ("phi3", "Q4_K"),
        ("phi3-long", "Q4_K"),
        ("qwen3moe", "Q4_K"),
        ("olmoe", "Q5_0"),
        ("llama-experts", "Q4_K"),
        ("gpt-oss", "MXFP4"),
    ],
)
@pytest.mark.parametrize("backend", ["native", "compiled"])
def test_logits_are_near_those_of_the_dequantised_model(
    tmp_path: Path, cache: Path, architecture: str, kind: str, backend: str
) -> None:
    path = save_gguf(tmp_path / "m.gguf", architecture, kind, MIXED, tied=kind == "Q4_0")
    folder = from_gguf(path)
    own = targets.load_backend(folder, CPU, torch.bfloat16, backend, "file")
    exact = targets.load_backend(folder, CPU, torch.float32, "native")
    assert isinstance(own, LlamaBackend) and own.precision == "file"
    assert own.passes == ("compiled" if backend == "compiled" else "eager")
    assert own.parameters == exact.parameters
    ids = torch.tensor(PROMPT)
    one, other = own.extend(ids).float(), exact.extend(ids)
    assert error(one, other) < 0.04


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chances_are_those_of_llama_cpp(tmp_path: Path, cache: Path, architecture: str) -> None:
    """In float32, after more tokens than a window holds; llama.cpp multiplies halves."""
    folder = from_gguf(save_golden_gguf(tmp_path / "m.gguf", architecture))
    own = targets.load_backend(folder, CPU, torch.float32, "native")
    found = own.prefill(LONGER).logits.log_softmax(-1)
    wanted = torch.tensor(json.loads(GOLDEN.read_text())[architecture])
    assert (found - wanted).abs().max() < 5e-3 < wanted.std()


@by_kernels
@pytest.mark.parametrize("plain", ["ffn_gate_exps", "ffn_down_exps"])
def test_experts_that_the_kernels_do_not_have_are_run_by_pytorch(
    tmp_path: Path, cache: Path, plain: str
) -> None:
    path = save_gguf(tmp_path / "m.gguf", "qwen3moe", "Q4_K", {plain: "F16"})
    own, exact = (
        targets.load_backend(from_gguf(path), CPU, dtype, backend, rounding)
        for dtype, backend, rounding in (
            (torch.bfloat16, "compiled", "file"),
            (torch.float32, "native", None),
        )
    )
    one, other = (each.extend(torch.tensor(PROMPT)).float() for each in (own, exact))
    assert error(one, other) < 0.04


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_experts_are_not_rounded_again(tmp_path: Path, cache: Path, dtype: str) -> None:
    folder = from_gguf(save_gguf(tmp_path / "m.gguf", "olmoe"))
    with pytest.raises(DraftpickError, match=f"cannot be rounded to {dtype}: its layers' experts"):
        targets.load_backend(folder, CPU, torch.bfloat16, "auto", dtype)


@by_kernels
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3", "qwen3moe", "gpt-oss"])
def test_a_prompt_is_read_with_the_same_bits_in_any_parts(
    tmp_path: Path, cache: Path, architecture: str
) -> None:
    """One set of weights at every width, and the kernels' attention."""
    path = save_gguf(tmp_path / "m.gguf", architecture, "Q4_K", MIXED)
    own = targets.load_backend(from_gguf(path), CPU, torch.bfloat16, "compiled", "file")
    assert isinstance(own, LlamaBackend)
    ids = torch.randint(0, 100, (230,), generator=torch.Generator().manual_seed(0))
    whole = own.extend(ids)
    for sizes in ([200, 30], [5, 1, 97, 127], [100, 60, 70]):
        own.truncate(0)
        parts = [own.extend(part) for part in ids.split(sizes)]
        assert torch.equal(torch.cat(parts), whole), sizes


def test_auto_is_the_files_own_where_that_pays(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = from_gguf(save_gguf(tmp_path / "m.gguf"))
    monkeypatch.setattr(precision, "_has_kernels", lambda: True)
    assert precision.precision_of("auto", folder, CPU, "auto") == "bfloat16"  # it is small
    monkeypatch.setattr(precision, "WORTH_COMPILING", 1000)
    assert precision.precision_of("auto", folder, CPU, "auto") == "file"
    assert precision.precision_of("auto", folder, CPU, "hf") == "bfloat16"
    assert precision.precision_of("int8", folder, CPU, "auto") == "int8"
    monkeypatch.setattr(precision, "_has_kernels", lambda: False)
    assert precision.precision_of("auto", folder, CPU, "auto") == "bfloat16"


@by_kernels
def test_a_draft_model_keeps_its_own_blocks(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a target in float32, which is to be exact, it is dequantised."""
    folder = from_gguf(save_gguf(tmp_path / "m.gguf", kind="Q5_0"))
    monkeypatch.setattr(precision, "_has_kernels", lambda: True)
    monkeypatch.setattr(precision, "WORTH_COMPILING", 1000)
    for dtype, expected in ((torch.bfloat16, "file"), (torch.float32, "float32")):
        target = targets.load_backend(folder, CPU, dtype, "native")
        drafter = drafts.load_for(folder, target)
        assert isinstance(drafter, LlamaBackend) and drafter.precision == expected


def test_what_it_needs_of_memory_is_the_files_size(tmp_path: Path, cache: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf")
    need = memory.need_of(from_gguf(path), CPU, torch.bfloat16, "file", None)
    assert need.weights == pytest.approx(path.stat().st_size, rel=0.05)
    assert "in the file's blocks take" in str(need)


def test_weights_that_cannot_be_made_numbers_are_told_before_a_folder_is_made(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_gguf(tmp_path / "m.gguf")
    header = read_header(path)
    name = "blk.0.ffn_up.weight"
    odd = replace(header.tensors[name], kind=GGMLQuantizationType.Q8_K.value)
    odd_header = replace(header, tensors=header.tensors | {name: odd})
    monkeypatch.setattr("decoders.backends.gguf.header.read_header", lambda _: odd_header)
    with pytest.raises(DraftpickError, match=rf"m\.gguf .*{name} is stored as Q8_K, which cannot"):
        from_gguf(path)
    assert not list((cache / "gguf").iterdir())


def test_a_file_that_has_to_be_converted_needs_room(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliding = {"llama.attention.sliding_window": 64}
    path = save_gguf(tmp_path / "m.gguf", metadata=sliding)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DraftpickError, match=r"converting m\.gguf needs 0\.0 GB under .*cache"):
        from_gguf(path)
    module = import_module("decoders.zoo.fetch_file")  # the package has a function of its name
    monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    with pytest.raises(DraftpickError, match=r"converting m\.gguf needs 0\.0 GB of memory"):
        from_gguf(path)
    assert not cache.exists()


def test_only_files_have_blocks_of_their_own(tiny: Tiny) -> None:
    with pytest.raises(DraftpickError, match="is no GGUF file; use another --dtype"):
        targets.load_backend(tiny(), CPU, torch.bfloat16, "native", "file")
