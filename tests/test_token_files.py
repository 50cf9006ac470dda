"""Token files keep what was written into them, and a damaged one is refused."""

from pathlib import Path

import numpy as np
import pytest
from token_files import held_out, join, load, save

from collect.align.tokens import Text, Tokens, pack
from decoders.common.errors import DraftpickError

TEXTS = [
    Text([1, 2, 3, 65535], 2, "math", 0.0),
    Text(np.array([7, 8], np.int32), 2, "qa", 0.7),  # no answer
    Text([5, 6, 9], 1, "math", 1.0),
]


def as_texts(tokens: Tokens) -> list[tuple[list[int], int, str, float]]:
    names = tokens.names()
    return [
        (
            tokens.text(row).tolist(),
            int(tokens.answer[row]),
            str(names[row]),
            round(float(tokens.temperature[row]), 6),
        )
        for row in range(len(tokens))
    ]


def wanted(texts: list[Text]) -> list[tuple[list[int], int, str, float]]:
    return [(list(map(int, t.ids)), t.answer, t.task, t.temperature) for t in texts]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "a" / "one.npz", TEXTS)
    assert as_texts(load([tmp_path / "a" / "one.npz"])) == wanted(TEXTS)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["one.npz"]  # nothing else is left


def test_shards_are_joined_by_the_names_of_their_tasks(tmp_path: Path) -> None:
    more = [Text([4, 4, 4], 1, "chat"), Text([3], 0, "qa")]
    save(tmp_path / "one.npz", TEXTS)
    save(tmp_path / "two.npz", pack(more))
    save(tmp_path / "none.npz", [])
    got = load([tmp_path / "one.npz", tmp_path / "none.npz", tmp_path / "two.npz"])
    assert as_texts(got) == wanted([*TEXTS, *more])
    assert got.tasks == ("chat", "math", "qa")


def test_some_texts_are_picked() -> None:
    tokens = pack(TEXTS)
    assert as_texts(tokens.pick(np.array([2, 0]))) == wanted([TEXTS[2], TEXTS[0]])
    assert as_texts(tokens.pick(tokens.names() == "qa")) == wanted([TEXTS[1]])


def test_large_vocabularies_take_32_bits(tmp_path: Path) -> None:
    """As of Qwen2.5; beside shards whose ids happen to be small, the same prompts are held out."""
    small, large = [Text([i, 4, 5], 2, "qa") for i in range(300)], Text([1, 151_900], 1, "qa")
    save(tmp_path / "one.npz", small)
    save(tmp_path / "two.npz", [large, *small])
    one, two = load([tmp_path / "one.npz"]), load([tmp_path / "two.npz"])
    assert (one.ids.itemsize, two.ids.itemsize) == (2, 4)
    both = join([one, two])
    assert as_texts(both) == wanted([*small, large, *small])
    assert both.pick(np.array([300])).text(0).tolist() == [1, 151_900]
    held = held_out(both, 10)
    assert held.any() and (held[:300] == held[301:]).all()


def test_answers_to_one_prompt_are_held_out_together() -> None:
    texts = [
        Text([prompt, prompt % 7, 11, answer], 3, "qa")
        for prompt in range(400)
        for answer in (1, 2, 3)
    ]
    held = held_out(pack(texts), 10).reshape(400, 3)
    assert (held == held[:, :1]).all()
    assert 20 <= held[:, 0].sum() <= 60
    backwards = held_out(join([pack(texts[600:]), pack(texts[:600])]), 10)
    assert (np.roll(backwards, 600) == held.ravel()).all()  # in whichever shard they lie


@pytest.mark.parametrize(
    "text", [Text([1 << 32], 0, "qa"), Text([-1], 0, "qa"), Text([1, 2], 3, "qa")]
)
def test_what_the_format_does_not_hold_is_refused(text: Text) -> None:
    with pytest.raises(DraftpickError):
        pack([text])


def test_a_file_cut_short_or_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    save(path, TEXTS)
    whole = path.read_bytes()
    for damaged in (b"", b"no archive", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(DraftpickError, match="token file"):
            load([path])
    at = whole.index(np.array(TEXTS[0].ids, np.uint16).tobytes())
    path.write_bytes(whole[:at] + b"\xff\xfe" + whole[at + 2 :])
    with pytest.raises(DraftpickError, match="token file"):
        load([path])
    with pytest.raises(DraftpickError, match="no such token file"):
        load([tmp_path / "other.npz"])
    with pytest.raises(DraftpickError, match="at least one"):
        load([])


@pytest.mark.parametrize(
    "key, value",
    [
        ("starts", np.array([0, 4, 6], np.int64)),
        ("starts", np.array([0, 6, 4, 9], np.int64)),
        ("answer", np.array([2, 2, 9], np.int32)),
        ("task", np.array([0, 1, 7], np.uint8)),
        ("temperature", np.zeros(2, np.float32)),
        ("ids", np.zeros(9, np.float32)),
        ("ids", np.zeros(9, np.uint64)),
        ("tasks", np.array(["math"])),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    tmp_path: Path, key: str, value: np.ndarray
) -> None:
    save(tmp_path / "one.npz", TEXTS)
    with np.load(tmp_path / "one.npz") as file:
        arrays = {**file, key: value}
    np.savez(tmp_path / "two.npz", **arrays)
    with pytest.raises(DraftpickError, match=r"two\.npz"):
        load([tmp_path / "one.npz", tmp_path / "two.npz"])
