"""A policy folder is whole or refused, and survives a kill between any two writes."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_tables import OPTIONS, tiny

import policies
from policies import PolicyError, storage
from policies.fixed import ConstantPolicy
from policies.storage import MANIFEST


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy = policies.fit("exact", tiny(), None, 0, **OPTIONS["exact"]).policy
    return policy.save(tmp_path / "policy")


def weights(folder: Path) -> Path:
    (found,) = folder.glob("weights-*.safetensors")
    return found


def test_manifest_says_where_it_comes_from(folder: Path) -> None:
    body = json.loads((folder / MANIFEST).read_text())
    assert body["origin"]["arms"] == tiny().arms
    assert body["origin"]["embedder"] == "toy/5"
    assert body["origin"]["reward_name"] == "toy/1"
    assert body["origin"]["table_digest"] == tiny().digest
    assert body["origin"]["options"]["epochs"] == 2
    assert sorted(p.name for p in folder.iterdir()) == sorted([MANIFEST, weights(folder).name])
    assert policies.load(folder / MANIFEST).name == "exact"


def test_fingerprints_outlive_this_version() -> None:
    """Logs name policies by it: it changes neither with the code nor with new fields."""
    shipped = Path(policies.__file__).parents[1] / "router" / "default_policy"
    assert policies.load(shipped).fingerprint == "fc883fae9c6d50e0"


def test_damage_is_found(folder: Path) -> None:
    manifest, blob = folder / MANIFEST, weights(folder)
    whole, numbers = manifest.read_bytes(), blob.read_bytes()
    manifest.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PolicyError, match=r"damaged: it is not a policy manifest"):
        policies.load(folder)
    for broken in (b"[]", b"{}", b"\xff\xfe", b""):
        manifest.write_bytes(broken)
        with pytest.raises(PolicyError, match="damaged"):
            policies.load(folder)
    manifest.write_bytes(whole.replace(b"ngram", b"other"))
    with pytest.raises(PolicyError, match="does not match its checksum"):
        policies.load(folder)
    manifest.write_bytes(whole)
    for broken in (numbers[:-1], bytes([numbers[0] ^ 1]) + numbers[1:], b""):
        blob.write_bytes(broken)
        with pytest.raises(PolicyError, match="its hash is not"):
            policies.load(folder)
    blob.unlink()
    with pytest.raises(PolicyError, match="cannot be read"):
        policies.load(folder)


def test_a_missing_policy_says_what_to_give(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(PolicyError, match=r"no policy at .*models:/NAME@alias"):
            policies.load(place)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_kill_while_saving_leaves_the_old_policy(
    folder: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = policies.load(folder)
    new = policies.fit("exact", tiny(), None, 1, **OPTIONS["exact"]).policy
    done = 0

    def replace(source: Path, target: Path) -> None:
        nonlocal done
        if done == writes:
            raise KeyboardInterrupt
        done += 1
        source.rename(target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        new.save(folder)
    monkeypatch.undo()
    x = tiny().embeddings
    np.testing.assert_array_equal(policies.load(folder).scores(x), old.scores(x))
    age(folder)
    new.save(folder)
    np.testing.assert_array_equal(policies.load(folder).scores(x), new.scores(x))
    assert len(list(folder.iterdir())) == 2


def age(folder: Path) -> None:
    """As if all had been written an hour ago."""
    for path in folder.iterdir():
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)


def test_processes_that_save_and_load_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = tiny().embeddings
    one, other = (
        policies.fit("exact", tiny(), None, seed, **OPTIONS["exact"]).policy for seed in (1, 2)
    )

    def before(name: str, happens: Callable[[], object], when: str) -> None:
        """Once, before the function is called with a file of this name."""
        known, left = getattr(storage, name), [happens]

        def call(path: Path, given: Any) -> Any:
            if left and path.match(when):
                left.pop()()
            return known(path, given)

        monkeypatch.setattr(storage, name, call)

    before("write_atomically", lambda: other.save(folder), MANIFEST)
    one.save(folder)
    np.testing.assert_array_equal(policies.load(folder).scores(x), one.scores(x))
    age(folder)
    before("_arrays", lambda: other.save(folder), "weights-*")
    np.testing.assert_array_equal(policies.load(folder).scores(x), other.scores(x))


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PolicyError, match=r"cannot write the policy to .*file"):
        policies.uniform_policy(["a"]).save(tmp_path / "file")


def test_an_older_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = policies.fixed_policy(["a", "b"], "a").save(tmp_path)
    manifest = folder / "policy.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"format": 2', b'"format": 1'))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(PolicyError, match="has format 1, this version reads 2; train the policy"):
        policies.load(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_where_the_best_fixed_arm_cannot_answer_the_next_best_follows(tmp_path: Path) -> None:
    table = tiny()
    means = table.filled().rewards.mean(0)
    policies.fit("best-fixed", table).policy.save(tmp_path)
    policy = policies.load(tmp_path)
    (scores,), (chances,) = policy.scores(table.inputs[:1]), policy.distribution(table.inputs[:1])
    assert scores.tolist() == pytest.approx(means) and len(set(means)) == len(means)
    assert chances.tolist() == [float(arm == means.argmax()) for arm in range(len(means))]
    drawn = policy.choose(table.inputs[:1], np.random.default_rng(0))
    assert (drawn.index, drawn.propensity) == (means.argmax(), 1.0)
    with pytest.raises(PolicyError, match="one number per arm"):
        ConstantPolicy(policy.origin, chances, means[1:])
