"""What a GGUF file says is used, changes nothing or is refused: how texts are split, which tokens
end an answer, positions, heads. Splits are held to llama.cpp's own (llama_splits.json, made by
`make engines`)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_toys import save_gguf
from split_toys import TEXTS, golden, save_split
from transformers import LlamaTokenizer, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_PRE_TOKENIZER_SPLITS,
    set_split_regex,
)

from decoders.backends.gguf.header import Header, read_header, token_texts
from decoders.common.errors import DraftpickError
from decoders.models import targets
from decoders.zoo import converted, from_gguf
from decoders.zoo.gguf_tokenizer import SPLITS, ends_of, mend, put_right, split_of, tokenizer_of

LLAMA_S_OWN = {("deepseek-coder", 8)}  # which takes no wide space for one; its own tokenizer does


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Header, PreTrainedTokenizerFast]:
    header = read_header(save_split(tmp_path_factory.mktemp("pairs") / "m.gguf", "smollm"))
    return header, tokenizer_of(header)


def lengths(tokenizer: Any, text: str) -> str:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return "".join("1" if each < 256 else "2" for each in ids)


def test_every_kind_of_split_was_compared() -> None:
    assert golden().keys() == {*SPLITS, *GGUF_PRE_TOKENIZER_SPLITS}


@pytest.mark.parametrize("kind", golden())
def test_texts_are_split_as_llama_cpp_splits_them(
    kind: str, pairs: tuple[Header, PreTrainedTokenizerFast]
) -> None:
    header, tokenizer = pairs
    own = replace(header, metadata=header.metadata | {"tokenizer.ggml.pre": kind})
    if kind in SPLITS:
        put_right(tokenizer, own)
    else:
        set_split_regex(tokenizer, {"pre_tokenizer_type": kind})
    for at, (text, wanted) in enumerate(zip(TEXTS, golden()[kind], strict=True)):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
        if (kind, at) not in LLAMA_S_OWN:
            assert lengths(tokenizer, text) == wanted, text


@pytest.mark.parametrize("through", [from_gguf, converted])
def test_a_loaded_tokenizer_splits_so(through: Any, cache: Path, tmp_path: Path) -> None:
    folder = through(save_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": "smollm"}))
    made = targets.load_tokenizer(folder).backend_tokenizer.pre_tokenizer
    pieces = [piece for piece, _ in made.pre_tokenize_str("  1. a\n    12")]
    assert pieces == ["ĠĠ", "1", ".", "Ġa", "ĊĠĠĠĠ", "1", "2"]


@pytest.mark.parametrize("kind", ["kimi-k2", "afmoe", "deepseek-llm", "superbpe", "of tomorrow"])
@pytest.mark.parametrize("through", [from_gguf, converted])
def test_a_split_that_is_not_known_is_refused(
    kind: str, through: Any, cache: Path, tmp_path: Path
) -> None:
    path = save_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": kind})
    with pytest.raises(DraftpickError, match=rf"split as '{kind}' \(tokenizer.ggml.pre\)"):
        through(path)
    assert not list((cache / "gguf").glob("m-*"))


def test_no_word_is_begun_where_the_file_says_so(cache: Path, tmp_path: Path) -> None:
    header = read_header(save_gguf(tmp_path / "m.gguf"))
    joined = header.metadata | {"tokenizer.ggml.model": "llama"}
    for said in (None, True, False):
        more = {} if said is None else {"tokenizer.ggml.add_space_prefix": said}
        tokenizer = LlamaTokenizer()
        put_right(tokenizer, replace(header, metadata=joined | more))
        made = str(tokenizer.backend_tokenizer.pre_tokenizer)
        assert ("prepend_scheme=never" in made.replace('"', "")) == (said is False)
    assert split_of(joined, header.files[0]) is None


# -- ends -----------------------------------------------------------------------------------------

CODER = [
    "a", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
]  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "named", "ends"),
    [
        (CODER, {"eos": 3}, [3, 1, 7, 8, 9]),
        (CODER, {"eos": 1}, [1, 3, 7, 8, 9]),
        (["a", "b", "c", "d"], {"eos": 1, "eot": 2, "eom": 3}, [1, 2, 3]),
        (["a", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], {"eos": 3}, [3, 1, 2]),
        (["a", "b"], {"eos": 7, "eot": 1}, [1]),
        (["a", "b"], {}, []),
        (["<|return|>", "<|call|>", "<|end|>"], {"eos": 0}, [0, 1]),
        (["<|end|>", "</s>"], {"eos": 1}, [1, 0]),
    ],
)
def test_all_tokens_that_end_an_answer(
    tokens: list[str], named: dict[str, int], ends: list[int]
) -> None:
    ids = {f"tokenizer.ggml.{name}_token_id": each for name, each in named.items()}
    assert ends_of(Header((), {"tokenizer.ggml.tokens": tokens, **ids}, {})) == ends


@pytest.mark.parametrize("through", [from_gguf, converted])
def test_a_folder_names_them(through: Any, cache: Path, tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.eot_token_id": 5})
    assert targets.eos_ids(through(path)) == (0, 5)


def test_the_texts_of_many_tokens_are_read(tmp_path: Path) -> None:
    header = read_header(save_split(tmp_path / "m.gguf", "gpt-2"))
    assert isinstance(header.metadata["tokenizer.ggml.tokens"], int)
    assert len(token_texts(header)) == 256 + 256 * 256


def test_a_folder_of_an_older_version_is_put_right(
    cache: Path, tmp_path: Path, pairs: tuple[Header, PreTrainedTokenizerFast]
) -> None:
    header, tokenizer = pairs
    put_right(
        tokenizer, replace(header, metadata=header.metadata | {"tokenizer.ggml.pre": "gpt-2"})
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>", "<|im_end|>"]})
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    ends = [tokenizer.convert_tokens_to_ids(each) for each in ("<|im_end|>", "<|endoftext|>")]
    path.write_text(json.dumps({"eos_token_id": ends[0], "use_cache": True}))
    for _ in range(2):
        mend(tmp_path, "smollm")
        assert json.loads(path.read_text()) == {"eos_token_id": ends, "use_cache": True}
        loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        assert lengths(loaded, TEXTS[0]) == golden()["smollm"][0] != golden()["gpt-2"][0]


# -- fields ---------------------------------------------------------------------------------------

REFUSED: dict[str, Any] = {
    "llama.rope.scaling.attn_factor": 2,
    "llama.rope.scaling.yarn_beta_fast": 16,
    "llama.rope.dimension_count": 16,
    "llama.rope.scale_linear": 2,
    "llama.rope.of_tomorrow": 1,
    "llama.attention.value_length": 16,
    "llama.attention.clamp_kqv": 8,
    "llama.attention.temperature_length": 8,
    "llama.logit_scale": 16,
    "llama.residual_scale": 2,
    "llama.expert_count": 8,
    "llama.attn_logit_softcapping": 50,
    "tokenizer.ggml.of_tomorrow": 1,
    "tokenizer.ggml.precompiled_charsmap": "x",
}
TAKEN: dict[str, Any] = {
    "llama.rope.scaling.attn_factor": 1,
    "llama.rope.dimension_count": 32,
    "llama.attention.value_length": 32,
    "llama.attention.key_length": 32,
    "llama.vocab_size": 100,
    "llama.expert_count": 0,
    "tokenizer.ggml.seperator_token_id": 3,
    "tokenizer.chat_template.tool_use": "{{ messages }}",
    "general.of_tomorrow": "anything",
    "other.rope.of_tomorrow": 3,
}


@pytest.mark.parametrize("field", REFUSED)
@pytest.mark.parametrize("through", [from_gguf, converted])
def test_what_would_make_another_model_is_refused_by_name(
    field: str, through: Any, cache: Path, tmp_path: Path
) -> None:
    path = save_gguf(tmp_path / "m.gguf", metadata={field: REFUSED[field]})
    if field == "llama.rope.dimension_count" and through is converted:
        pytest.skip("transformers takes it for the width of a head")
    with pytest.raises(DraftpickError, match=rf"says {field} = {REFUSED[field]}, which is not kno"):
        through(path)
    assert not list((cache / "gguf").glob("m-*"))


def test_what_changes_nothing_is_taken(cache: Path, tmp_path: Path) -> None:
    assert from_gguf(save_gguf(tmp_path / "m.gguf", metadata=TAKEN)).is_dir()


def test_attention_that_slides_is_refused_where_it_would(cache: Path, tmp_path: Path) -> None:
    slides = {"llama.attention.sliding_window": 64}  # of 512
    with pytest.raises(DraftpickError, match=r"says llama\.attention\.sliding_window = 64"):
        from_gguf(save_gguf(tmp_path / "m.gguf", kind="F32", metadata=slides))


def test_a_file_of_every_usual_field_is_read(cache: Path, tmp_path: Path) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
    said = {f"llama.rope.scaling.{name}": value for name, value in yarn.items()}
    path = save_gguf(tmp_path / "yarn.gguf", metadata=said)
    assert json.loads((from_gguf(path) / "config.json").read_text())["eos_token_id"] == [0]


def test_longrope_is_not_left_out_of_what_transformers_reads(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DraftpickError, match=r"no longrope out of it; lower --context\); name"):
        converted(save_gguf(tmp_path / "m.gguf", "phi3-long"))
