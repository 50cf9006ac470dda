"""The Triton kernels of a pass beside PyTorch's operations; run by test_row_kernels.py.

A process of its own, as Triton reads TRITON_INTERPRET when it is first imported: on a CPU its
interpreter runs the kernels, on CUDA they run as they are.
"""

import random
from dataclasses import replace

import pytest
import torch
import triton
from interpreter import make_cheaper
from replayed import placed
from torch import Tensor

from decoders.backends.batched.row_passes import RowPasses
from decoders.backends.cuda import race_kernel, round_kernels, row_kernels
from decoders.backends.cuda.rounds import accept
from decoders.backends.families import Attention
from decoders.backends.llama.kv import KVCache
from decoders.backends.llama.model import LayerWeights, rms_norm, rope_tables
from decoders.backends.llama.shape import Shape
from decoders.backends.rope import Rotation
from decoders.methods.max_gram.device import FROM_TABLE, Copies
from decoders.sampling import race
from decoders.sampling.race import key_of

if triton.knobs.runtime.interpret:
    make_cheaper()

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# the interpreter multiplies bfloat16's bits as if they were whole numbers
DTYPES = [torch.float32, torch.float16 if triton.knobs.runtime.interpret else torch.bfloat16]


def near(one: Tensor, other: Tensor, roundings: int = 1) -> None:
    """Apart by sums in another order, and by so many roundings of other digits."""
    wide = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[one.dtype] * roundings
    torch.testing.assert_close(one.float(), other.float(), atol=wide, rtol=wide)


def shape(heads: int, kv_heads: int, head_dim: int, layers: int = 2) -> Shape:
    frequencies = tuple(1e4 ** -(i / head_dim) for i in range(0, head_dim, 2))
    hidden, context = 40, 256
    kinds = (Attention(Rotation(frequencies, 1.0)),)
    return Shape(layers, hidden, heads, kv_heads, head_dim, 16, context, 1e-5, kinds)


def randn(*size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    made = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype).to(DEVICE)


def layers(of: Shape, dtype: torch.dtype, bias: bool) -> list[LayerWeights]:
    total = (of.heads + 2 * of.kv_heads) * of.head_dim
    wide, d = 56, of.hidden
    return [
        LayerWeights(
            1 + 0.1 * randn(d, dtype=dtype, seed=seed),
            0.2 * randn(total, d, dtype=dtype, seed=seed + 1),
            0.2 * randn(d, of.heads * of.head_dim, dtype=dtype, seed=seed + 2),
            1 + 0.1 * randn(d, dtype=dtype, seed=seed + 3),
            0.2 * randn(2 * wide, d, dtype=dtype, seed=seed + 4),
            0.2 * randn(d, wide, dtype=dtype, seed=seed + 5),
            randn(total, dtype=dtype, seed=seed + 6) if bias else None,
        )
        for seed in range(0, 10 * of.layers, 10)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_norm(dtype: torch.dtype) -> None:
    h, added = randn(5, 40, dtype=dtype), randn(5, 40, dtype=dtype, seed=1)
    weight = randn(40, dtype=dtype, seed=2)
    near(row_kernels.add_norm(h, None, weight, 1e-5), rms_norm(h, weight, 1e-5), 2)
    both = h + added
    near(row_kernels.add_norm(h, added, weight, 1e-5), rms_norm(both, weight, 1e-5), 2)
    assert torch.equal(h, both)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated(dtype: torch.dtype) -> None:
    x = 3 * randn(5, 2 * 1100, dtype=dtype)
    gate, up = x.chunk(2, -1)
    near(row_kernels.gated(x), torch.nn.functional.silu(gate) * up, 2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 16), (32, 1, 16)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pass(dtype: torch.dtype, heads: tuple[int, int, int], bias: bool) -> None:
    """States, and keys and values, as PyTorch's operations have them, for rows of any length."""
    of = shape(*heads)
    weights, rope = layers(of, dtype, bias), rope_tables(of, DEVICE, dtype)
    positions = torch.tensor([0, 63, 64, 5, 200], device=DEVICE)
    lengths = torch.tensor([1, 64, 65, 6, 1], device=DEVICE)  # the last row has ended
    parts = [(slice(0, 2), 64), (slice(2, 5), 65)]  # of the slow way
    made = []
    for fast in (False, True):
        cache = KVCache(of.layers, 6, of.kv_heads, 256, of.head_dim, dtype, DEVICE)
        cache.all.copy_(randn(*cache.all.shape, dtype=dtype, seed=7))
        cache.all[:, 1, :, 64:] = 1e4  # not to be looked at
        passes = RowPasses(of, weights, rope, cache, fast)
        h = passes.through(randn(5, of.hidden, dtype=dtype, seed=3), positions, lengths, parts)
        made.append((h, cache.all))
    (slow, held), (quick, kept) = made
    near(quick, slow, 16)
    near(kept, held, 16)
    assert torch.equal(kept[:, 5], held[:, 5])  # a row that is not asked for
    assert not torch.equal(kept[:, 0, :, 0], randn(*held.shape, dtype=dtype, seed=7)[:, 0, :, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pass_over_chains(dtype: torch.dtype) -> None:
    """Of rows in any order, one token or several of each, the last of them once more; two layers
    of three."""
    of = shape(4, 2, 16, layers=3)
    weights, rope = layers(of, dtype, True), rope_tables(of, DEVICE, dtype)
    rows = torch.tensor([4, 4, 4, 0, 2, 2, 2], device=DEVICE)
    positions = torch.tensor([63, 64, 65, 0, 199, 200, 200], device=DEVICE)
    tokens = randn(7, of.hidden, dtype=dtype, seed=3)
    tokens[6] = tokens[5]
    made = []
    for fast in (False, True):
        cache = KVCache(of.layers, 5, of.kv_heads, 256, of.head_dim, dtype, DEVICE)
        cache.all.copy_(randn(*cache.all.shape, dtype=dtype, seed=7))
        cache.all[:, 0, :, 1:] = 1e4  # not to be looked at
        passes = RowPasses(of, weights, rope, cache, fast)
        made.append((passes.chains(tokens.clone(), rows, positions, 201, 1, 3), cache.all))
    (slow, held), (quick, kept) = made
    near(quick, slow, 16)
    near(kept, held, 16)
    assert torch.equal(quick[5], quick[6])
    before = randn(*held.shape, dtype=dtype, seed=7)
    assert torch.equal(kept[0, 4], before[0, 4]) and torch.equal(kept[:, 3], before[:, 3])
    assert not torch.equal(kept[1:, 4, :, 63:66], before[1:, 4, :, 63:66])
    assert torch.equal(kept[:, 4, :, 66:], before[:, 4, :, 66:])


@pytest.mark.parametrize("size", [16, 5000])
def test_tokens_are_picked_as_on_a_cpu(size: int) -> None:
    """In rows of every temperature, of a whole vocabulary and of a part of it."""
    logits = 2 * randn(40, size + 3, dtype=torch.bfloat16)[:, :size]
    logits[3, 7] = logits[3, 11] = 30.0  # of equals the first
    logits[5:9, size // 2 :] = -torch.inf
    heats = torch.tensor([0.0, 0.7, 1.0, 0.0] * 10, dtype=torch.float64, device=DEVICE)
    keys = torch.tensor([key_of(3, i) for i in range(40)], device=DEVICE)
    places = torch.arange(40, device=DEVICE) * 50
    part = torch.randperm(3 * size, generator=torch.Generator().manual_seed(0))[:size].to(DEVICE)
    alone = race_kernel.pick(logits[1:2], heats[1:2], keys[1:2], places[1:2])
    assert alone == race_kernel.pick(logits, heats[1].expand(40), keys[1].expand(40), places)[1]
    for names in (None, part.sort().values, part):
        given = (logits.float() if names is part else logits, heats, keys, places)
        own = (None if each is None else each.cpu() for each in (*given, names))
        picked = race_kernel.pick(*given, names)[:, 0]
        assert torch.equal(picked.cpu(), race.pick(*own)[:, 0])
        assert torch.equal(picked[heats == 0], logits[heats == 0].argmax(-1))
        assert picked[3] == 7 and not torch.equal(picked, logits.argmax(-1))


@pytest.mark.parametrize("heat", [0.0, 0.6])
def test_a_row_with_a_nan_gives_its_place(heat: float) -> None:
    """Whatever else is in it. Of a row in which nothing can be drawn the first token is taken."""
    logits = randn(4, 9000, dtype=torch.float32)
    logits[0, 7000:7003], logits[1, 300], logits[1, 8999] = float("nan"), torch.inf, float("nan")
    logits[2] = -torch.inf
    heats, keys = (torch.full((4,), x, device=DEVICE) for x in (heat, 5))
    found = race_kernel.pick(logits, heats.double(), keys, torch.arange(4, device=DEVICE))[:, 0]
    assert found[:3].tolist() == [7000, 8999, 0]
    assert heat or found[3] == logits[3].argmax()


# -- recorded rounds ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("earliest", [False, True])
@pytest.mark.parametrize("how", ["nothing", "table", "draft"])
def test_rounds_copy(seed: int, earliest: bool, how: str) -> None:
    drawn = random.Random(seed)
    room = drawn.choice([64, 1024, 1500])
    line = [drawn.randrange(drawn.choice([3, 40])) for _ in range(drawn.randint(1, room - 20))]
    table = torch.tensor([drawn.randrange(40) for _ in range(30)], device=DEVICE)
    draft = None
    if how == "draft":
        draft = torch.tensor([drawn.randrange(40) for _ in range(seed % 4)], device=DEVICE).long()
    shortest = drawn.randint(1, 4)
    copies = Copies(shortest, shortest + drawn.randint(0, 9), earliest, table)
    if how == "nothing":
        copies = Copies(shortest, shortest + 3, earliest)
    place, k = placed(line, room, DEVICE), drawn.choice([1, 7, 15])
    ids, found = copies.copied(replace(place, copy=round_kernels.copy), k, draft)
    expected, was = copies.copied(place, k, draft)
    assert found.tolist() == was.tolist()
    assert ids.tolist() == expected.tolist()
    assert round_kernels._copy.arg_names.index("FROM_TABLE") and FROM_TABLE == 4


@pytest.mark.parametrize("k", [0, 1, 7, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounds_accept(k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(k)
    for right in range(k + 1):
        best = torch.randint(0, 50, (k + 1,), generator=generator)
        drafted = best[:k].clone()
        if right < k:
            drafted[right] += 1
        logits = torch.randn(k + 1, 64, generator=generator).to(dtype)
        if right % 2:
            logits[right, best[right]] = float("nan")
        results = []
        for way in (round_kernels.accept, accept):
            place = placed([1, 2, 3, 4], 64, DEVICE)
            after, record = torch.zeros(3).long().to(DEVICE), torch.zeros(3 + k).long().to(DEVICE)
            of = torch.tensor([right % 2], device=DEVICE)
            parts = (x.to(DEVICE) for x in (best, logits))
            way(drafted.to(DEVICE), of, *parts, place.ids, place.state, after, record)
            written = place.ids[4 : 5 + right].tolist()
            results.append((after.tolist(), record.tolist(), written))
        assert results[0] == results[1]
        assert results[0][1][:2] == [right, right % 2]
        assert results[0][0] == [5 + right, int(best[right]), 4 + right]
