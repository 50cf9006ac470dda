"""Engines' own drafting, replayed, against references that look at everything anew each round."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Self

import numpy as np
import pytest

from collect.traffic.engine_rules.llama_cpp import MapKey, Mod, Simple
from collect.traffic.engine_rules.recipe import RULES, engine_rows
from collect.traffic.engine_rules.rule import Rule
from collect.traffic.engine_rules.vllm import Ngram, Suffix
from collect.traffic.logged import AbsentTarget, LoggedReplay
from collect.traffic.records import KnownText

Round = tuple[list[int], list[int], list[int], int]  # prompt, text so far, newest tokens, k


def conversations(seed: int, many: int = 40) -> Iterator[list[Round]]:
    """Texts that repeat themselves and each other, in rounds."""
    chance, earlier = Random(seed), list[int](range(8))
    for _ in range(many):
        size = chance.choice([2, 4, 12])
        text = [chance.randrange(size) for _ in range(chance.randrange(1, 40))]
        prompt, rounds = list(text), list[Round]()
        for _ in range(30):
            count, source = chance.randrange(1, 7), chance.choice([text, earlier])
            start = chance.randrange(len(source))
            new = source[start : start + count] if chance.random() < 0.7 else []
            new = new or [chance.randrange(size) for _ in range(count)]
            text = text + new
            rounds.append((prompt, text, new, chance.choice([0, 1, 3, 8, 24])))
        earlier = text
        yield rounds


def assert_drafts(rule: Rule, rounds: list[Round], expected: Callable[..., list[int]]) -> int:
    rule.begin(rounds[0][0])
    drafted = 0
    for at, (_, text, new, k) in enumerate(rounds):
        made = rule.draft(new, k)
        assert made == expected(text, k, new, at), (text, k)
        drafted += len(made)
    return drafted


def test_vllms_ngrams_copy_what_followed_the_first_of_the_longest() -> None:
    def expected(text: list[int], k: int, *_: object) -> list[int]:
        for n in range(4, 1, -1):
            for end in range(n, len(text)):
                if text[end - n : end] == text[-n:]:
                    return text[end : end + min(k, 6)]
        return []

    assert sum(assert_drafts(Ngram(2, 4, 6), each, expected) for each in conversations(1)) > 100


class Node:
    """Of a tree of suffixes, token by token: children in the order of their counts."""

    def __init__(self) -> None:
        self.count, self.children = 0, list[tuple[int, Node]]()

    def child(self, token: int) -> Self | None:
        return dict(self.children).get(token)

    def grow(self, token: int) -> Self:
        found = self.child(token)
        if found is None:
            found = Node()
            found.count = 1
            self.children.append((token, found))
            return found
        at = [each for _, each in self.children].index(found)
        before = self.children[at - 1][1].count if at else None
        if before is not None and before <= found.count + 1:
            group = [each.count for _, each in self.children].index(before)
            self.children.insert(group, self.children.pop(at))
        found.count += 1
        return found


class Tree:
    def __init__(self, depth: int = 24) -> None:
        self.root, self._depth, self._open = Node(), depth, list[Node]()

    def begin(self) -> None:
        self._open = []

    def write(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._open = [*self._open, self.root][-self._depth :]
            self._open = [node.grow(token) for node in self._open]

    def best(self, tail: list[int], most: int) -> tuple[np.float32, list[int]]:
        best = np.float32(0), list[int]()
        for matched in range(1, len(tail)):
            node: Node | None = self.root
            for token in tail[-matched:]:
                node = node and node.child(token)
            if node is None:
                break
            ids, chance, score = list[int](), np.float32(1), np.float32(0)
            while len(ids) < min(most, matched) and node.children:
                token, child = node.children[0]
                chance *= np.float32(child.count) / np.float32(node.count)
                if chance < np.float32(0.1):
                    break
                ids.append(token)
                score, node = score + chance, child
            if score >= best[0]:
                best = score, ids
        return best


def test_vllms_suffixes_are_those_of_a_tree() -> None:
    rule, everything, drafted = Suffix(24), Tree(), 0
    for rounds in conversations(2):
        own = Tree()
        own.write(rounds[0][0])
        everything.begin()
        rule.begin(rounds[0][0])
        for _, text, new, k in rounds:
            own.write(new)
            everything.write(new)
            made = rule.draft(new, k)
            one, other = (tree.best(text[-24:], k) for tree in (own, everything))
            assert made == (one if one[0] >= other[0] else other)[1]
            drafted += len(made)
        rule.remember(rule.end([]))
    assert drafted > 500


def test_llamas_simple_ngrams() -> None:
    """The last earlier place, never the first token's, of the text without its newest token."""

    def expected(text: list[int], k: int, *_: object) -> list[int]:
        known, n, m = text[:-1], 2, 5
        if k < 1 or len(known) <= n + m + 1:
            return []
        for at in range(len(known) - n - 1, 0, -1):
            if known[at : at + n] == text[-n:]:
                ids = known[at + n : at + n + m]
                return ids[:k] if len(ids) >= n else []
        return []

    assert sum(assert_drafts(Simple(2, 5), each, expected) for each in conversations(3)) > 100


def test_llamas_map_of_keys() -> None:
    def hashed(gram: Sequence[int]) -> int:
        made = 0
        for token in gram:
            made = (made * 2654435761 + token) % 2**32
        return made % 262144

    n, m, drafted = 2, 4, 0
    for rounds in conversations(4):
        prompt = len(rounds[0][0])
        table, accepted, last, known = dict[int, int](), dict[tuple[int, ...], int](), None, 0

        def expected(text: list[int], k: int, new: list[int], at: int) -> list[int]:
            nonlocal last, known
            if last is not None:
                accepted[last] = len(new) - 1  # noqa: B023
            last = None
            held = text[:-1]
            end = len(held) - n - m - 1
            if k < 1 or len(held) < 2 * n + m:
                return []
            key, places = tuple(text[-n:]), list[int]()
            if prompt > n + m + 1:  # noqa: B023
                places += range(prompt - n - m - 1, known, -1)  # noqa: B023
            places += range(end, max(prompt, known), -1)  # noqa: B023
            fits = [p for p in places if tuple(held[p : p + n]) == key]
            slot = table.get(hashed(key), 0)  # noqa: B023
            if 0 < slot < end and tuple(held[slot : slot + n]) == key:
                fits = [slot]
            for place in places:
                table.setdefault(hashed(held[place : place + n]), place)  # noqa: B023
            known = max(known, end)
            if not fits:
                return []
            ids = held[fits[0] + n :][: min(m, accepted.setdefault(key, m))][:k]  # noqa: B023
            last = key if ids else None
            return ids

        drafted += assert_drafts(MapKey(n, m), rounds, expected)
    assert drafted > 100


@pytest.mark.parametrize("least", [0, 2])
def test_llamas_shared_hashes(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers one after the other, some of which reset the table; n-grams share its few slots."""
    from collect.traffic.engine_rules import llama_cpp

    size, n, most = 1 << 7, 3, 6
    monkeypatch.setattr(llama_cpp, "SLOTS", size)
    monkeypatch.setattr(llama_cpp, "MULTIPLIER", 6364136223846793005 % size)
    monkeypatch.setattr(llama_cpp, "LAG", 4)
    monkeypatch.setattr(llama_cpp, "FULL", 0.9)
    table, low, drafted, resets = [-1] * size, 0, 0, 0

    def slot(gram: Sequence[int]) -> int:
        made = 0
        for token in gram:
            made = (made * 6364136223846793005 + token) % 2**64
        return made % size

    rule = Mod(n, least, most)
    for rounds in conversations(5):
        prompt, entered, before = rounds[0][0], 0, 0
        if len(prompt) >= n:
            for at in range(len(prompt) - n):
                table[slot(prompt[at : at + n])] = prompt[at + n]
            entered = len(prompt) - n
            if sum(each >= 0 for each in table) / size > 0.9:
                table, resets = [-1] * size, resets + 1

        def expected(text: list[int], k: int, new: list[int], at: int) -> list[int]:
            nonlocal table, low, entered, before, resets
            if before:
                low = low + 1 if (len(new) - 1) / before < 0.25 else 0
                if low == 5:
                    table, low, entered, resets = [-1] * size, 0, 0, resets + 1
            before, held = 0, text[:-1]
            if k < 1 or len(held) < n:
                return []
            if entered + 4 < len(held):
                for place in range(entered, len(held) - n):
                    table[slot(held[place : place + n])] = held[place + n]
                entered = len(held) - n
            line = text[-n:]
            while len(line) < n + most and table[slot(line[-n:])] >= 0:
                line.append(table[slot(line[-n:])])
            ids = line[n:] if len(line) - n >= min(least, most) else []
            before = len(ids)
            return ids[:k]

        drafted += assert_drafts(rule, rounds, expected)
        rule.remember(rule.end([]))
    assert drafted > 100 and resets > 3


def test_answers_under_way_do_not_see_each_other() -> None:
    """Two alike, of which the second is asked for before and after the first is complete."""
    one = list(range(80))
    for rule in ("suffix", "ngram-mod"):
        (row,) = [each for each in engine_rows().values() if each.rule == rule][-1:]
        row = row.model_copy(update={"settings": (24,) if rule == "suffix" else (4, 1, 8)})
        replay = LoggedReplay(AbsentTarget(99), None, {"a": row})
        accepted = []
        for start in (1.0, 3.0):
            texts = [
                KnownText([40], one, None, (0.0, 2.0)),
                KnownText([41], one, None, (start, 9.0)),
            ]
            last = replay.replay("a", texts, [1])[0]
            assert last is not None and replay.replay("a", texts, [0, 1])[1] == last
            accepted.append(last.accepted)
        assert accepted[0] == 0 < accepted[1], rule


def test_rows_name_the_rules_settings() -> None:
    for row in engine_rows().values():
        assert row.rule in RULES and str(row.settings[-1]) in " ".join(row.options)
        assert row.longest == row.settings[-1] and row.name.endswith(f"-{row.longest}")
