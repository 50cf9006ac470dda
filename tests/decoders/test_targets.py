"""From a name to a model, and what is said where there is none."""

import json
from pathlib import Path

import pytest
import torch
from decoder_toys import CPU, FITS_INT4, Tiny, generate, max_gram, transformers_model

from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend
from decoders.backends.weights.packed import Rounding
from decoders.common.errors import DraftpickError
from decoders.models import targets
from decoders.records import Request
from decoders.testing.toys import run, speculative


def test_a_local_folder(tiny: Tiny) -> None:
    assert targets.resolve(str(tiny())) == tiny()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", r"holds no config\.json"),
        ("a/b", "no such model folder"),
        ("none.gguf", r"no such file: .*none\.gguf"),
    ],
)
def test_a_place_that_holds_no_model(place: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match=said):
        targets.resolve(str(tmp_path / place))


@pytest.mark.parametrize("name", ["nobody/nothing", "smolm2-135m"])
def test_a_name_that_is_nowhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> str:
        raise ConnectionError("no route to the hub\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(DraftpickError, match=r"smollm2-135m-instruct.*no route to the hub") as said:
        targets.resolve(name)
    assert "\n" not in str(said.value) and name in str(said.value)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert targets.device_of("auto") == targets.device_of("cpu") == CPU
    with pytest.raises(DraftpickError, match="unknown device 'tpu9'; use auto, cpu or cuda"):
        targets.device_of("tpu9")
    with pytest.raises(DraftpickError, match="no CUDA device"):
        targets.device_of("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert targets.device_of("auto").type == targets.device_of("cuda:0").type == "cuda"
    with pytest.raises(DraftpickError, match=r"first GPU .* not on cuda:1.*CUDA_VISIBLE_DEVICES"):
        targets.device_of("cuda:1")


def test_dtypes() -> None:
    assert targets.dtype_of("bfloat16") is torch.bfloat16
    with pytest.raises(
        DraftpickError, match="unknown dtype 'int2'; use one of auto, float32, bfloat16"
    ):
        targets.dtype_of("int2")


@pytest.mark.parametrize("rounding", ["int8", "int4"])
def test_rounded_weights(tiny: Tiny, rounding: Rounding) -> None:
    folder = tiny(**FITS_INT4)
    made = targets.load_backend(folder, CPU, targets.dtype_of(rounding), rounding=rounding)
    assert isinstance(made, LlamaBackend) and made.precision == rounding
    assert made.dtype == torch.bfloat16
    with pytest.raises(DraftpickError, match=f"{rounding} weights need the native backend"):
        targets.load_backend(folder, CPU, torch.bfloat16, "hf", rounding)
    with pytest.raises(DraftpickError, match=f"{rounding} weights are for CPU and CUDA"):
        targets.load_backend(folder, torch.device("meta"), torch.bfloat16, rounding=rounding)


def test_sizes_that_int4_does_not_fit(tiny: Tiny) -> None:
    said = "model cannot be rounded to int4: its intermediate size of 48 is no multiple of 32; use"
    with pytest.raises(DraftpickError, match=said):
        targets.load_backend(tiny(), CPU, torch.bfloat16, rounding="int4")


def test_an_older_gpu_is_told_that_int4_is_not_for_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(DraftpickError, match=r"capability 8\.0, and this one has 7\.5"):
        targets.load_backend(
            tiny(**FITS_INT4), torch.device("cuda"), torch.bfloat16, rounding="int4"
        )


def test_backends(tiny: Tiny) -> None:
    for name, kind in (("auto", LlamaBackend), ("native", LlamaBackend), ("hf", HFBackend)):
        assert isinstance(targets.load_backend(tiny(), CPU, torch.float32, name), kind)
    with pytest.raises(
        DraftpickError, match="unknown backend 'onnx'; use auto, native, hf, fused, graphs"
    ):
        targets.load_backend(tiny(), CPU, torch.float32, "onnx")


def test_a_shape_that_native_cannot_run_goes_to_transformers(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny(attention_bias=True)
    with pytest.raises(DraftpickError, match="native backend cannot run model: biases"):
        targets.load_backend(folder, CPU, torch.float32, "native")
    assert isinstance(targets.load_backend(folder, CPU, torch.float32), HFBackend)
    assert "using the transformers backend" in capsys.readouterr().err


def test_end_of_sequence_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert targets.eos_ids(tmp_path) == ()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert targets.eos_ids(tmp_path) == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert targets.eos_ids(tmp_path) == (7, 9)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    assert targets.eos_ids(tmp_path) == (2,)


def test_a_fingerprint_stays_what_policies_and_collections_carry(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 600)
    assert targets.fingerprint(tmp_path) == "e1824e8a"


# -- pickles --------------------------------------------------------------------------------------


def as_pickles(folder: Path, to: Path, shards: int = 1) -> Path:
    """The same model as pytorch_model.bin, or as shards with their index."""
    to.mkdir()
    for name in ("config.json", "generation_config.json"):
        (to / name).write_bytes((folder / name).read_bytes())
    weights = transformers_model(folder).state_dict()
    if shards == 1:
        torch.save(weights, to / "pytorch_model.bin")
        return to
    where = {
        name: f"pytorch_model-{at % shards + 1:05d}-of-{shards:05d}.bin"
        for at, name in enumerate(weights)
    }
    for part in set(where.values()):
        torch.save({name: weights[name] for name in weights if where[name] == part}, to / part)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (to / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return to


@pytest.mark.parametrize("shards", [1, 2])
def test_a_model_of_pickles_answers_as_its_safetensors(
    shards: int, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = as_pickles(tiny(), tmp_path / "pickles", shards)
    target = targets.load_backend(folder, CPU, torch.float32)
    assert isinstance(target, HFBackend)
    said = capsys.readouterr().err
    assert "using the transformers backend for pickles: its weights are pickled" in said
    result = run(
        target, speculative(max_gram([*range(1, 16), 0], shortest=1), 3), [3, 1], Request(12)
    )
    assert result.ids == generate(transformers_model(tiny()), [3, 1], 12)
    assert not targets.runs_layers(folder, "auto") and targets.runs_layers(tiny(), "auto")
    with pytest.raises(DraftpickError, match="native backend cannot run pickles: its weights are"):
        targets.load_backend(folder, CPU, torch.float32, "native")


def test_pickles_have_fingerprints_of_their_own(tiny: Tiny, tmp_path: Path) -> None:
    made = [
        as_pickles(tiny(seed=seed), tmp_path / f"{seed}-{shards}", shards)
        for seed in (0, 1)
        for shards in (1, 2)
    ]
    assert len({targets.fingerprint(folder) for folder in [*made, tiny(), tiny(seed=1)]}) == 6
    again = as_pickles(tiny(), tmp_path / "again")
    assert targets.fingerprint(again) == targets.fingerprint(made[0])
    (again / "pytorch_model.bin").unlink()
    with pytest.raises(DraftpickError, match="holds no weights"):
        targets.fingerprint(again)


def test_safetensors_come_before_pickles(tiny: Tiny, tmp_path: Path) -> None:
    both = as_pickles(tiny(seed=1), tmp_path / "both")
    (both / "model.safetensors").write_bytes((tiny() / "model.safetensors").read_bytes())
    assert targets.fingerprint(both) == targets.fingerprint(tiny())
    assert isinstance(targets.load_backend(both, CPU, torch.float32), LlamaBackend)


@pytest.mark.parametrize("harm", ["code", "cut", "gone"])
def test_a_pickle_that_is_no_tensors_is_refused_in_one_sentence(
    harm: str, tiny: Tiny, tmp_path: Path
) -> None:
    folder = as_pickles(tiny(), tmp_path / "bad", 2)
    part = next(folder.glob("*.bin"))
    if harm == "code":
        torch.save({"weights": CPU, "run": pytest.raises}, part)
    elif harm == "cut":
        part.write_bytes(part.read_bytes()[:5000])
    else:
        part.unlink()
    said_of = f"lacks {part.name}" if harm == "gone" else f"{part.name} cannot be read as tensors"
    with pytest.raises(DraftpickError, match=said_of) as said:
        targets.load_backend(folder, CPU, torch.float32, "hf")
    assert "\n" not in str(said.value) and "again" in str(said.value)


def test_a_hub_model_of_pickles_is_fetched(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def download(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tiny() if name == "some/safe" else tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert targets.resolve("some/old") == tmp_path
    assert asked[1:] == [["pytorch_model*.bin"]]
    assert (
        capsys.readouterr().err == "some/old has no safetensors; fetching its pytorch_model*.bin\n"
    )
    assert targets.resolve("some/safe") == tiny() and len(asked) == 3
