"""How long prompts take to read by the size of their parts."""
import json, statistics, time, random
import torch
from decoders.backends import native

def run(engine, out, lengths=(512, 2048, 4096), parts=(256, 1024, 4096), repeats=3):
    target, found = engine.target, {}
    rnd = random.Random(0)
    try:
        measure(target, rnd, found, out, lengths, parts, repeats)
    finally:
        native.PREFILL_CHUNK, native.LARGE_CHUNK = 1024, 256
    print("prompts, ms:", found)
    return found


def measure(target, rnd, found, out, lengths, parts, repeats):
    for n in lengths:
        if n >= target.context:
            continue
        ids = [rnd.randrange(1000, 100000) for _ in range(n)]
        for part in parts:
            native.PREFILL_CHUNK = native.LARGE_CHUNK = part
            times = []
            for _ in range(repeats + 1):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                t = time.perf_counter()
                target.prefill(ids)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - t)
            found[f"{n} by {part}"] = 1e3 * statistics.median(times[1:])
            open(out, "w").write(json.dumps(found, indent=1))
