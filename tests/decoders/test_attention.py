"""A prompt's attention, in blocks of positions, is attention: against PyTorch's in float64."""

import pytest
import torch
import torch.nn.functional as F

from decoders.backends.llama.attention import QUERIES, attend, attention_mask, rounded
from decoders.backends.llama.shape import Shape

HEAD = 64
SHAPES = {  # sequences, heads, key heads, new positions, positions seen
    "a prompt": (1, 9, 3, 3 * QUERIES + 37, 3 * QUERIES + 37),
    "whole blocks": (1, 4, 4, 2 * QUERIES, 2 * QUERIES),
    "shorter than a block": (1, 6, 1, QUERIES - 1, QUERIES - 1),
    "behind others": (1, 9, 3, 2 * QUERIES + 5, 4 * QUERIES),
    "padded": (3, 4, 2, QUERIES + 9, QUERIES + 9),
    "padded, behind others": (2, 4, 2, QUERIES, 2 * QUERIES + 3),
}


@pytest.mark.parametrize("by", ["tiles", "blocks", "blocks in float32"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_attention_in_blocks_is_attention(
    name: str, masked: bool, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 where oneDNN has no bfloat16, and then rounded but once."""
    monkeypatch.setattr("decoders.backends.llama.attention.has_tiles", lambda: by == "tiles")
    monkeypatch.setattr("decoders.backends.weights.packed.can_pack", lambda *of: by == "blocks")
    b, heads, kv_heads, t, s = SHAPES[name]
    if not masked and (b > 1 or s > t):
        pytest.skip("only a lone prompt from position 0 on goes without a mask")
    generator = torch.Generator().manual_seed(t)
    q, k, v = (
        torch.randn(b, n, length, HEAD, generator=generator).bfloat16()
        for n, length in ((heads, t), (kv_heads, rounded(s)), (kv_heads, rounded(s)))
    )
    allowed = torch.ones(b, t, s, dtype=torch.bool).tril(s - t)
    if b > 1:  # the first sequence is shorter: a row of padding sees itself alone
        allowed[0, :, :20] = False
        allowed |= torch.eye(s, dtype=torch.bool)[s - t :]
    shape = Shape(1, heads * HEAD, heads, kv_heads, HEAD, 1, s, 1e-5, ())
    if masked:
        a = attend(q, k, v, attention_mask(allowed, shape, q.dtype))
    else:
        a = attend(q[0], k[:, :, :s], v[:, :, :s], None)
    exact = F.scaled_dot_product_attention(
        q.double(),
        k[:, :, :s].double(),
        v[:, :, :s].double(),
        attn_mask=allowed.unsqueeze(1),
        enable_gqa=True,
    )
    near = {"atol": 1e-3, "rtol": 0.005} if "float32" in by else {"atol": 0.04, "rtol": 0}
    torch.testing.assert_close(a.double(), exact, **near)
