"""llama.cpp's own next-token chances of small models.

python with_xllamacpp_logits.py FOLDER: of each NAME.gguf in it, after the ids of its prompt.json,
the logarithms of all tokens' chances, as JSON: {name: [...]}.
"""

from pathlib import Path

import xllamacpp
from xllama import params_of, read, tell_of_each_model


def chances(model: Path) -> list[float]:
    params = params_of(model, 512)
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    asked = {"prompt": read("prompt.json"), "n_predict": 1, "logprobs": 1000, "temperature": 0.0}
    (token,) = server.handle_completions(asked)["choices"][0]["logprobs"]["content"]
    found = {each["id"]: each["logprob"] for each in token["top_logprobs"]}
    return [round(found[id], 4) for id in range(len(found))]


tell_of_each_model(chances)
