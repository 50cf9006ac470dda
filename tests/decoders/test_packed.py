"""Packed weights multiply as ordinary ones, and a token's logits do not depend on its neighbours.

The second is what makes bfloat16 answers the same whichever arm wrote them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from decoder_toys import CPU, FITS_INT4

from decoders.backends.llama import attention
from decoders.backends.llama.attention import KEYS_ROUND, attend, attention_mask, rounded
from decoders.backends.llama.shape import Shape
from decoders.backends.native import LlamaBackend
from decoders.backends.weights import packed
from decoders.backends.weights.blocked import Int4Blocks, Int8Blocks
from decoders.backends.weights.int8 import WIDE, Int8Weight, to_int8
from decoders.backends.weights.packed import Rounding, can_pack, dense, linear, narrowed, pack

pytestmark = pytest.mark.instructions

BF16 = pytest.mark.skipif(
    not can_pack(CPU, torch.bfloat16), reason="this CPU does not multiply bfloat16"
)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("inputs", [96, 1536])
def test_a_packed_weight_multiplies_as_an_ordinary_one(rows: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, inputs, generator=generator)
    bias = torch.randn(40, generator=generator)
    x = torch.randn(2, rows, inputs, generator=generator)
    torch.testing.assert_close(
        linear(x, pack(weight), bias),
        torch.nn.functional.linear(x, weight, bias),
        rtol=1e-5,
        atol=1e-4,
    )


def test_packing_is_undone_without_loss() -> None:
    weight = torch.randn(33, 65)
    assert torch.equal(dense(pack(weight)), weight)
    assert pack(pack(weight)).shape == weight.shape


def test_what_cannot_be_packed_stays_as_it_is() -> None:
    weight = torch.randn(4, 4, dtype=torch.float64)
    assert pack(weight) is weight


@BF16
@pytest.mark.parametrize(("most", "left"), [("AVX2", False), ("avx2", False), ("ALL", True)])
def test_onednn_told_to_do_without_avx512_has_no_bfloat16(
    most: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    assert packed._has_bfloat16.__wrapped__() == left


@pytest.fixture
def no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor whose oneDNN has none (AVX2)."""
    monkeypatch.setattr(packed, "can_pack", lambda device, dtype: False)


@pytest.mark.parametrize("rows", [WIDE, WIDE + 2, 300])
def test_where_onednn_has_no_bfloat16_many_rows_are_multiplied_in_float32(
    no_bfloat16: None, rows: int
) -> None:
    weight, bias = torch.randn(48, 64).bfloat16(), torch.randn(48).bfloat16()
    x = torch.randn(2, rows // 2, 64).bfloat16()
    made = linear(x, weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    assert made.dtype == torch.bfloat16 and made.shape == exact.shape
    assert torch.allclose(made.double(), exact, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("tokens", [WIDE + 8, 2 * WIDE, 150])
def test_where_onednn_has_no_bfloat16_prompts_are_attended_to_in_float32(
    no_bfloat16: None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "has_tiles", lambda: False)
    shape = Shape(1, 6 * 32, 6, 2, 32, 1, 256, 1e-5, ())
    q, k, v = (torch.randn(1, heads, tokens, 32).bfloat16() for heads in (6, 2, 2))
    mask = None
    exact = F.scaled_dot_product_attention(
        *(x.double() for x in (q, k, v)), is_causal=True, enable_gqa=True
    )
    if tokens <= 2 * WIDE:
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        mask = attention_mask(seen, shape, q.dtype)
        k, v = (F.pad(x, (0, 0, 0, mask.shape[-1] - tokens)) for x in (k, v))
    made = attend(q, k, v, mask)
    assert made.dtype == q.dtype
    assert (made == exact.bfloat16()).float().mean() > 0.99  # in bfloat16 it is below 0.8


@pytest.mark.parametrize("rounding", ["int8", "int4"])
def test_where_onednn_has_no_bfloat16_prompts_go_by_weights_in_blocks(
    kernel: None, no_bfloat16: None, rounding: Rounding
) -> None:
    weight, x = torch.randn(32, 64).bfloat16(), torch.randn(300, 64).bfloat16()
    made = narrowed(rounding, weight, partial(packed.rounded, blocked=True))
    assert isinstance(made, Int4Blocks | Int8Blocks) and made.wide is None
    assert torch.equal(linear(x, made)[:5], linear(x[:5], made))


@BF16
@pytest.mark.parametrize("inputs", [576, 1536, 4096])
def test_a_row_s_product_does_not_depend_on_the_others(inputs: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = pack(torch.randn(200, inputs, generator=generator).bfloat16())
    x = torch.randn(1, 17, inputs, generator=generator).bfloat16()
    together = linear(x, weight)
    for width in (1, 2, 3, 5, 9):
        parts = [linear(x[:, i : i + width], weight) for i in range(0, 17, width)]
        assert torch.equal(torch.cat(parts, 1), together), width


@BF16
@pytest.mark.parametrize("rounding", [None, "int8", "int4"])
def test_logits_do_not_depend_on_how_many_tokens_are_read_at_once(
    tiny: Callable[..., Path], rounding: Rounding | None
) -> None:
    folder = tiny(**FITS_INT4, max_position_embeddings=256)
    model = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding)
    assert model.precision == (rounding or "bfloat16")
    model.prefill([1, 5, 9, 2, 7])
    ids = torch.randint(0, 16, (KEYS_ROUND - 40,), generator=torch.Generator().manual_seed(1))

    def read(width: int) -> torch.Tensor:
        model.truncate(5)
        return torch.cat([model.extend(part) for part in ids.split(width)])

    one_by_one = read(1)
    for width in (2, 3, 5, 9, 17):
        assert torch.equal(read(width), one_by_one), width


@BF16
@pytest.mark.parametrize("kv_heads", [14, 7, 2, 1], ids=lambda n: f"{14 // n} to a key head")
@pytest.mark.parametrize("held", [40, 250, 700])
def test_a_query_s_attention_does_not_depend_on_the_others(kv_heads: int, held: int) -> None:
    most, d = 24, 64
    shape = Shape(1, 14 * d, 14, kv_heads, d, 1, 1024, 1e-5, ())
    generator = torch.Generator().manual_seed(held)
    q = torch.randn(14, most, d, generator=generator).bfloat16()
    k, v = torch.randn(2, 1, kv_heads, rounded(held), d, generator=generator).bfloat16()
    seen = torch.ones(most, held, dtype=torch.bool).tril(held - most)

    def by_widths(width: int) -> torch.Tensor:
        parts = zip(q.split(width, 1), seen.split(width), strict=True)
        made = [attend(p, k, v, attention_mask(s, shape, q.dtype)) for p, s in parts]
        return torch.cat(made, 2)

    one_by_one = by_widths(1)
    differing = [w for w in range(2, most + 1) if not torch.equal(by_widths(w), one_by_one)]
    assert not differing


@pytest.mark.parametrize("inputs", [8, 16, 40, 100])
def test_int8_weights_may_have_any_number_of_inputs(inputs: int) -> None:
    """PyTorch's kernel takes 16 at once, and reads beyond the end of others."""
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(24, inputs, generator=generator).bfloat16()
    x = torch.randn(3, inputs, generator=generator).bfloat16()
    made = to_int8(weight)
    for _ in range(100):  # what lies beyond is at times zeros
        product = made.times(x, None)
        exact = x.double() @ made.dequantised().double().T
        assert torch.allclose(product.double(), exact, rtol=0.02, atol=0.1)


@BF16
@pytest.mark.parametrize("biased", [False, True])
def test_an_int8_product_is_that_of_the_rounded_weight(biased: bool) -> None:
    """At every width. A row of zeros stays one."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(48, 576, generator=generator).bfloat16()
    weight[7] = 0
    bias = torch.randn(48, generator=generator).bfloat16() if biased else None
    made = narrowed("int8", weight)
    assert isinstance(made, Int8Weight) and narrowed("int8", made) is made and pack(made) is made
    assert made.numel() == weight.numel()
    rounded = made.values.float() * made.scale.float().unsqueeze(1)
    assert torch.equal(dense(made), rounded.bfloat16())
    assert bool(((rounded - weight.float()).abs() <= 0.51 * made.scale.float()[:, None]).all())
    for batch, rows in ((1, 1), (2, WIDE // 2), (1, WIDE + 1)):
        x = torch.randn(batch, rows, 576, generator=generator).bfloat16()
        exact = torch.nn.functional.linear(
            x.float(), rounded, None if bias is None else bias.float()
        )
        torch.testing.assert_close(linear(x, made, bias).float(), exact, rtol=0.02, atol=0.2)
        assert bool((linear(x, made)[..., 7] == 0).all())


@BF16
@pytest.mark.parametrize("inputs", [576, 1536])
def test_an_int8_row_s_product_does_not_depend_on_the_others(inputs: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = narrowed("int8", torch.randn(200, inputs, generator=generator).bfloat16())
    x = torch.randn(1, WIDE, inputs, generator=generator).bfloat16()
    together = linear(x, weight)
    for width in (1, 2, 3, 4, 5, 9, 17):
        assert torch.equal(torch.cat([linear(p, weight) for p in x.split(width, 1)], 1), together)
