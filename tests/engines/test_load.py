"""Load by guidellm, by the environment of `make engines`: its figures beside the server's own."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from real_servers import ENGINES, ROOT, Server, free_port, started

GUIDELLM = ENGINES / "guidellm" / "bin" / "guidellm"
CLIENTS, REQUESTS, READ, WRITTEN = 4, 16, 64, 32
pytestmark = pytest.mark.engines


@dataclass(frozen=True)
class Figures:
    """Tokens of all prompts and answers. first_s: until an answer's first token, on average."""

    prompt_tokens: float
    tokens: float
    tokens_per_s: float
    first_s: float


def agree(theirs: Figures, ours: Figures) -> None:
    """Counts to the token. Times: a client waits longer than the server says, by what the way, both
    HTTP stacks and a client that shares the processor take."""
    assert (theirs.prompt_tokens, theirs.tokens) == (ours.prompt_tokens, ours.tokens)
    assert theirs.tokens_per_s == pytest.approx(ours.tokens_per_s, rel=0.1)
    assert 0.98 * ours.first_s <= theirs.first_s <= 1.2 * ours.first_s + 0.1


def samples(server: Server) -> dict[str, float]:
    """Metrics of all arms together."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {each.name.removeprefix("vllm:"): each.value for f in families for each in f.samples}


@contextmanager
def watched(server: Server) -> Iterator[list[Figures]]:
    """The figures of what is asked meanwhile, by the server's metrics."""
    seen, over = [(time.monotonic(), samples(server))], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            seen.append((time.monotonic(), samples(server)))

    thread, found = threading.Thread(target=watch), list[Figures]()
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
    first, last = seen[0][1], samples(server)
    made = {name: last[name] - first.get(name, 0) for name in last}
    began = next(at for at, each in seen if each["num_requests_running"])
    written = "generation_tokens_total"
    ended = next(at for at, each in seen if each[written] == last[written])
    waited = "time_to_first_token_seconds"
    found.append(
        Figures(
            made["prompt_tokens_total"],
            made[written],
            made[written] / (ended - began),
            made[f"{waited}_sum"] / made[f"{waited}_count"],
        )
    )


def guidellm(server: Server, tokenizer: Path, folder: Path) -> Figures:
    """CLIENTS at a time. tokenizer: a model's folder."""
    words = [str(GUIDELLM), "run", "--disable-console"]
    words += ["--backend", f"kind=openai_http,target={server.url},model=autoregressive"]
    words += ["--profile", f"kind=concurrent,streams={CLIENTS}"]
    words += ["--constraint", f"kind=max_requests,count={REQUESTS}"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens={READ},output_tokens={WRITTEN}"]
    words += ["--output", f"kind=json,path={folder / 'out.json'}"]
    environment = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    (made,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    metrics = {name: (each or {}).get("successful") for name, each in made["metrics"].items()}
    assert metrics["request_totals"] == REQUESTS
    return Figures(
        metrics["prompt_token_count"]["total_sum"],
        metrics["output_token_count"]["total_sum"],
        metrics["output_tokens_per_second"]["mean"],
        metrics["time_to_first_token_ms"]["mean"] / 1000,
    )


def test_guidellm_reports_what_the_server_does(tmp_path: Path) -> None:
    from decoders.zoo import fetch
    from decoders.zoo.catalogue import TARGET

    if not GUIDELLM.exists():
        pytest.fail(f"there is no {GUIDELLM}; run `make engines`")
    port, model = free_port(), fetch(TARGET)
    words = [str(Path(sys.executable).with_name("draftpick")), "serve", "--port", str(port)]
    words += ["--slots", str(CLIENTS), "--no-warm-up", "--prefix-memory", "0"]
    with started(words, port, tmp_path, {"PYTHONPATH": str(ROOT)}) as server:
        asked = {"model": "autoregressive", "prompt": "one two three", "max_tokens": WRITTEN}
        with ThreadPoolExecutor(CLIENTS) as pool:  # so that what is measured once is measured
            urls = [f"{server.url}/v1/completions"] * CLIENTS
            done = list(pool.map(lambda url: httpx.post(url, json=asked, timeout=600), urls))
        assert all(each.is_success for each in done)
        with watched(server) as found:
            theirs = guidellm(server, model, tmp_path)
    (ours,) = found
    print(theirs, ours, sep="\n")
    assert ours.tokens == REQUESTS * WRITTEN
    agree(theirs, ours)
    for name, times in [("prompt_tokens", 1.01), ("tokens", 0.99)] + [
        (name, times) for name in ("tokens_per_s", "first_s") for times in (0.5, 2)
    ]:
        with pytest.raises(AssertionError):  # where they do not
            agree(replace(theirs, **{name: times * getattr(theirs, name)}), ours)
