"""llama.cpp's own ids of texts, for every kind of `tokenizer.ggml.pre`; run in an environment that
has `xllamacpp` and not this project.

python with_xllamacpp.py FOLDER: of each KIND.gguf in it, for the texts of its texts.json, how many
bytes each token has, as JSON: {kind: [text: "12..."]}. Tokens have one or two.
"""

import json
import sys
import urllib.request
from pathlib import Path

import xllamacpp


def lengths(model: Path, texts: list[str]) -> list[str]:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.warmup, params.n_parallel = 64, False, 1
    server = xllamacpp.Server(params)
    found = []
    for text in texts:
        body = {"content": text, "add_special": False, "parse_special": False}
        asked = urllib.request.Request(
            f"{server.listening_address}/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked) as reply:
            ids = json.load(reply)["tokens"]
        found.append("".join("1" if each < 256 else "2" for each in ids))
    return found


def main(folder: Path) -> None:
    texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    found = {each.stem: lengths(each, texts) for each in sorted(folder.glob("*.gguf"))}
    print("\n" + json.dumps(found))


main(Path(sys.argv[1]))
