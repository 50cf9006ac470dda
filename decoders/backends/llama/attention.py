"""At what tokens look, and attention by PyTorch's operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cpp_kernels import has_tiles
from ..weights.int8 import WIDE
from ..weights.packed import float32_pays
from .shape import Shape

KEYS_ROUND = 128
ROWS_ROUND = 4
QUERIES = 128  # positions of a prompt whose attention is computed at once


def attention_masks(seen: Tensor, shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """`attention_mask` for each of `Shape.kinds`: of seen, bool [..., T, S], at what a token looks,
    a window keeps the last."""
    return [attention_mask(_within(seen, kind.window), shape, dtype) for kind in shape.kinds]


def _within(seen: Tensor, window: int) -> Tensor:
    """The last of what each token looks at: a path's positions follow one another."""
    if not window:
        return seen
    nth = seen.cumsum(-1)
    return seen & (nth[..., -1:] - nth < window)


def attention_mask(allowed: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    """allowed: bool [T, S] or [B, T, S], True where a query may look -> [B or 1, 1, rows, S'].

    Added to the scores. The query heads that share a key head are rows of it (`attend`). Rows are
    repeated up to a multiple of ROWS_ROUND, of which the kernel sums fewer in another order, and
    columns up to a multiple of KEYS_ROUND masked. So a token's scores are summed in one order
    however many tokens are read with it, and its logits are the same to the last bit (on a CPU in
    bfloat16: docs/lossless.md). A prompt's are computed in blocks and left as they are.
    """
    allowed = allowed if allowed.dim() == 3 else allowed.unsqueeze(0)
    b, t, s = allowed.shape
    mask = torch.full((b, 1, t, rounded(s)), -torch.inf, dtype=dtype, device=allowed.device)
    mask[:, 0, :, :s].masked_fill_(allowed, 0.0)
    rows = t * (shape.heads // shape.kv_heads)
    if t <= QUERIES // 2:
        rows = -(-rows // ROWS_ROUND) * ROWS_ROUND
    return _repeated(mask, rows)


def _repeated(lines: Tensor, rows: int) -> Tensor:
    """[B, H, T, D] -> [B, H, rows, D], the lines over and over."""
    return lines.repeat(1, 1, -(-rows // lines.shape[2]), 1)[:, :, :rows]


def rounded(positions: int) -> int:
    """Capacity of a cache that holds this number of positions."""
    return -(-positions // KEYS_ROUND) * KEYS_ROUND


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None = None,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q: [B, H, T, D], or [H, T, D] for a B of 1; k and v: [B, KV, S, D] -> [B, H, T, D]; mask as
    in `Place`, scale as `Shape.attention_scale`, cap as `Shape.score_cap`, sinks as
    `LayerWeights.sinks`."""
    b, kv_heads = k.shape[:2]
    heads, t, d = q.shape[-3:]
    if cap is not None or sinks is not None:
        return _by_scores(q.reshape(b, heads, t, d), k, v, mask, scale or d**-0.5, cap, sinks)
    long = t > QUERIES // 2 and q.dtype == torch.bfloat16 and q.device.type == "cpu"
    if long and not has_tiles():
        q = q.reshape(b, kv_heads, -1, t, d)
        if not float32_pays(q):
            return _in_blocks(q, k, v, mask, scale)
        added = None if mask is None else mask.float()
        return _in_blocks(q.float(), k.float(), v.float(), added, scale).to(q.dtype)
    if long or mask is None:
        q, grouped = q.reshape(b, heads, t, d), heads != kv_heads
        lines = None if mask is None else mask[:, :, :t]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=lines, is_causal=mask is None, enable_gqa=grouped, scale=scale
        )
    # As rows of their key head, query heads read the keys once, not once each: on a CPU 5 times
    # faster for one token (docs/notes/performance.md).
    own = heads // kv_heads * t
    rows = q.reshape(b, kv_heads, own, d)
    if mask.shape[-2] > rows.shape[-2]:
        rows = _repeated(rows, mask.shape[-2])
    if t > WIDE and float32_pays(rows):
        rows, k, v, mask = rows.float(), k.float(), v.float(), mask.float()
    a = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=scale)
    return a[:, :, :own].reshape(b, heads, t, d).to(q.dtype)


def _by_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """`attend` with scores of cap * tanh(score / cap), as Gemma 2 has them, or with sinks."""
    b, heads, t, d = q.shape
    own = heads // k.shape[1] * t
    wide = torch.promote_types(q.dtype, torch.float32)  # scores of 50 in bfloat16 are off by 0.1
    scores = q.reshape(b, -1, own, d).to(wide) @ k.to(wide).transpose(-1, -2) * scale
    if cap is not None:
        scores = (scores / cap).tanh() * cap
    if mask is None:
        later = scores.new_full((t, t), -torch.inf).triu(1)
        scores = scores + later.repeat(own // t, 1)
    else:
        scores = scores + mask[:, :, :own]
    if sinks is not None:
        more = sinks.to(wide).view(k.shape[1], -1, 1).expand(-1, -1, t).reshape(1, -1, own, 1)
        scores = torch.cat([scores, more.expand(b, -1, -1, -1)], -1)
    shares = scores.softmax(-1)[..., : k.shape[2]].to(v.dtype)
    return (shares @ v).view(b, heads, t, d)


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """`attend` for a prompt, as products of QUERIES positions with what they may see: on a CPU
    without tiles (AMX) PyTorch's attention kernel multiplies bfloat16 at a tenth of the speed of
    its matrix products. With them it is 2 to 3 times faster than this.

    q: [B, KV, H / KV, T, D], k and v: [B, KV, S, D]; the T positions are the last of the S.
    """
    b, kv_heads, group, t, d = q.shape
    s = k.shape[2]
    keys, values = k.reshape(-1, s, d), v.reshape(-1, s, d)
    made = torch.empty_like(q)
    later = q.new_full((QUERIES, QUERIES), -torch.inf).triu(1)
    for first in range(0, t, QUERIES):
        last = min(first + QUERIES, t)
        n, end = last - first, s - t + last
        rows = q[:, :, :, first:last].reshape(-1, group * n, d) * (scale or d**-0.5)
        scores = torch.bmm(rows, keys[:, :end].transpose(1, 2))
        seen = scores.view(b, kv_heads, group, n, end)
        if mask is None:
            seen[..., first:] += later[:n, :n]
        else:
            seen += mask.view(-1, 1, group, t, s)[:, :, :, first:last, :end]
        a = torch.bmm(scores.softmax(-1), values[:, :end])
        made[:, :, :, first:last] = a.view(b, kv_heads, group, n, d)
    return made.view(b, -1, t, d)
