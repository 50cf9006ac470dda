"""llama.cpp's own ids of texts, for every kind of `tokenizer.ggml.pre`.

python with_xllamacpp.py FOLDER: of each KIND.gguf in it, for the texts of its texts.json, how many
bytes each token has, as JSON: {kind: [text: "12..."]}. Tokens have one or two.
"""

from pathlib import Path

import xllamacpp
from xllama import asked, params_of, read, tell_of_each_model


def lengths(model: Path) -> list[str]:
    server, found = xllamacpp.Server(params_of(model)), []
    for text in read("texts.json"):
        told = asked(server, "tokenize", content=text, add_special=False, parse_special=False)
        found.append("".join("1" if each < 256 else "2" for each in told["tokens"]))
    return found


tell_of_each_model(lengths)
