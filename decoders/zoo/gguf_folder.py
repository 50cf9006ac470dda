"""A GGUF file as a model's folder: config and tokenizer out of its metadata, no weights.

The weights stay where they are and are read from there (backends/gguf). The tokenizer is kept, as
making one takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from ..backends.gguf.folder import save_header
from ..backends.gguf.header import Header
from ..backends.gguf.tensors import names_of
from ..backends.llama.contents import needed
from ..common.errors import DraftpickError
from ..common.tensor_files import require
from .gguf_config import config_of


def name_of(header: Header) -> str:
    """Another one where the files have moved or changed."""
    stats = [(file, file.stat()) for file in header.files]
    facts = [(str(file.absolute()), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()
    return f"{header.files[0].stem}-{digest[:8]}"


def write_folder(header: Header, made: Path) -> None:
    """Fills a folder. Raises DraftpickError as `config_of` does."""
    print("reading its config and tokenizer (once) ...", file=sys.stderr, flush=True)
    _check_kinds(header)
    config = config_of(header)
    _check(header, config)
    (made / "config.json").write_text(json.dumps(config, indent=1))
    _write_tokenizer(header.files[0], made)
    save_header(header, made)


def _check_kinds(header: Header) -> None:
    """Raises DraftpickError where weights are of a kind that cannot be made numbers."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    for number, name in {each.kind: each.name for each in header.tensors.values()}.items():
        kind = GGMLQuantizationType(number)
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            raise DraftpickError(
                f"{name} is stored as {kind.name}, which cannot be read here: take the file in "
                "Q4_K_M, Q8_0 or another common kind"
            ) from None


def _check(header: Header, config: dict[str, Any]) -> None:
    """Raises Damaged where the files lack a tensor, or hold it in another shape."""
    held = {name: header.tensors[own].shape for name, own in names_of(header).items()}
    shapes = [
        {_whole(name): shape for name, shape in each.items()} for each in (held, needed(config))
    ]
    require(header.files[0], *shapes)


def _whole(name: str) -> str:
    """The tensors as a checkpoint of transformers has them."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def _write_tokenizer(file: Path, made: Path) -> None:
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, found, config = get_gguf_tokenizer(str(file))
    tokenizer, more = convert_gguf_tokenizer(architecture, found)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **config, **more).save_pretrained(made)
