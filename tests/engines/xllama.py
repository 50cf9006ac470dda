"""llama.cpp in Python for the scripts beside it, which run where `xllamacpp` is and this project is
not."""

import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import xllamacpp


def params_of(model: Path, context: int = 64) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.warmup, params.n_parallel = context, False, 1
    return params


def asked(server: xllamacpp.Server, path: str, **body: object) -> dict:
    request = urllib.request.Request(
        f"{server.listening_address}/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def read(name: str) -> object:
    """A file of the folder that the script was called with."""
    return json.loads((Path(sys.argv[1]) / name).read_text(encoding="utf-8"))


def tell(found: object) -> None:
    """As the last line."""
    print("\n" + json.dumps(found))


def tell_of_each_model(made: Callable[[Path], object]) -> None:
    tell({each.stem: made(each) for each in sorted(Path(sys.argv[1]).glob("*.gguf"))})
