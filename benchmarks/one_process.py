"""One process on the GPU: the 1.5B model loaded once, steps in order of worth, each cut at
its bound. env: DEVICE, DEADLINE (seconds from now), QUICK=1, OUT, DATA, STEPS (names, in order),
CELL_S (seconds of the recurrent cell's training before the head's), WRITE_S."""
from __future__ import annotations

import argparse, contextlib, cProfile, gc, io, json, os, pstats, signal, sys, threading, time, traceback
from collections import Counter
from pathlib import Path

T0 = time.monotonic()
ROOT = Path(os.environ.get("ROOT", str(Path(__file__).resolve().parents[1])))
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
DEVICE = os.environ.get("DEVICE", "cuda")
QUICK = os.environ.get("QUICK", "0") == "1"
DEADLINE = float(os.environ.get("DEADLINE", "500"))
OUT = Path(os.environ.get("OUT", "runs/one_process"))
DATA = Path(os.environ.get("DATA", str(ROOT / "data")))
WORK = Path(os.environ.get("SESSION_WORK", "runs/one_process_work"))
NAME = "qwen2.5-coder-1.5b-instruct"
ARMS = "max-gram,recurrent,hybrid"
BASE = "autoregressive"
CONTEXT = 4096 if QUICK else 8192  # the batch makes room for 64 whole contexts
OUT.mkdir(parents=True, exist_ok=True)
WORK.mkdir(parents=True, exist_ok=True)

import torch

if DEVICE == "cpu":
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))

import rounds as rounds_script, routed as routed_script
from collect.queries import first_per_task, read_queries
from decoders import Engine, Request, loop
from decoders.backends.sync import synchronize
from decoders.records import Sampling

LOAD = Engine.load  # the bound classmethod itself
ORDER = os.environ.get("STEPS", "rounds,rounds1,compiled,int4,routed0,routed1,rounds07,prompt,loads,eagle").split(",")


RESERVE = float(os.environ.get("RESERVE", "0"))  # seconds that earlier steps leave to the head


class Cut(BaseException):
    """A step is over its bound."""


ENDS = Path(os.environ.get("ENDS", "runs/one_process_ends"))  # the time of day, in seconds, at which all is over


def left() -> float:
    with contextlib.suppress(OSError, ValueError):
        return float(ENDS.read_text()) - time.time()
    return DEADLINE - (time.monotonic() - T0)


def log(words: str) -> None:
    held = ""
    if DEVICE != "cpu":
        held = f" [{torch.cuda.memory_allocated() / 1e9:.1f} GB, most {torch.cuda.max_memory_allocated() / 1e9:.1f}]"
    line = f"{time.strftime('%H:%M:%S')} +{time.monotonic() - T0:6.1f} s, {left():6.1f} left: {words}{held}"
    print(line, flush=True)
    with (OUT / "log.txt").open("a") as sink:
        sink.write(line + "\n")


def put(name: str, record) -> None:
    path = OUT / f"{name}.json"
    path.with_suffix(".part").write_text(json.dumps(record, indent=1, default=str))
    os.replace(path.with_suffix(".part"), path)


def step(name: str, bound: float, least: float, run) -> bool:
    """run(bound), in at most `bound` seconds, where `least` are left; whether it ended."""
    bound = min(bound, left() - 5)
    if bound < least:
        log(f"{name}: left out, {left():.0f} s are left, it wants {least:.0f}")
        return False
    log(f"{name}: begins, at most {bound:.0f} s")
    began, ended = time.monotonic(), False

    def ring(*_):
        raise Cut(name)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, bound, 5.0)  # again, where a first one was swallowed
    try:
        with (OUT / f"{name}.txt").open("a") as sink, contextlib.redirect_stdout(sink):
            run(bound)
        ended = True
        log(f"{name}: done in {time.monotonic() - began:.1f} s")
    except Cut:
        signal.setitimer(signal.ITIMER_REAL, 0)
        log(f"{name}: CUT after {time.monotonic() - began:.1f} s")
        (OUT / f"{name}.cut.txt").write_text(traceback.format_exc())
    except (Exception, SystemExit) as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        log(f"{name}: FAILED after {time.monotonic() - began:.1f} s: {type(error).__name__}: {str(error)[:300]}")
        (OUT / f"{name}.error.txt").write_text(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ended


def free() -> None:
    gc.collect()
    if DEVICE != "cpu":
        torch.cuda.empty_cache()


def serving(engine: Engine):
    """Engine.load gives this one from now on."""
    Engine.load = classmethod(lambda cls, *a, **k: engine)


def argv(*words) -> None:
    sys.argv = [str(w) for w in words]


# -- the queries ------------------------------------------------------------------------------------

DEV = [DATA / "dev" / f"{t}.jsonl" for t in ("code", "edit", "math", "mt_bench", "qa", "rag", "summarization", "translation")]
SHORT = [DATA / "dev" / f"{t}.jsonl" for t in ("code", "math", "mt_bench", "translation")]
NEW = 8 if QUICK else 96
if QUICK:
    DEV, SHORT = DEV[:2], SHORT[:2]


def prompts_of(engine: Engine, most: int, per_task: int, files=None) -> list[list[int]]:
    made = []
    for query in first_per_task(read_queries(files or DEV), per_task):
        ids = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        if len(ids) <= most:
            made.append(ids)
    return made


# -- a. rounds, b. routed ---------------------------------------------------------------------------


def rounds(temperature: float, top_p: float = 1.0):
    def run(bound: float) -> None:
        kept = loop.rounds_ahead
        more = ["--temperature", temperature, "--top-p", top_p] if temperature else []
        name = f"rounds-{temperature:g}.json" if temperature else "rounds.json"
        argv("rounds", "--queries", *DEV, "--limit", 1, "--repeats", 1, "--max-new-tokens", NEW, "--arms", ARMS,
             "--target", NAME, "--device", DEVICE, "--out", OUT / name, *more)
        try:
            rounds_script.main()
        finally:
            loop.rounds_ahead = kept
    return run


def routed(temperature: float):
    def run(bound: float) -> None:
        minutes = max(0.05, (bound - 15) / 60)
        if QUICK:
            minutes = 0.3
        argv("routed", "measure", "--queries", *DEV, "--limit", 1 if QUICK else 6, "--max-new-tokens", NEW,
             "--arms", ARMS, "--target", NAME, "--device", DEVICE, "--minutes", min(1.0, minutes),
             "--temperature", temperature, "--out", OUT / f"timed-{temperature:g}")
        routed_script.main()
    return run


# -- c. transformers beside it ----------------------------------------------------------------------


def dense_parts(target, prefix: str) -> dict:
    """Tensors below `prefix` by transformers' names; views of the target's own where it holds dense ones."""
    from decoders.backends.weights.packed import dense

    w, shape = target.weights, target.shape
    if prefix == "embed_tokens.":
        return {"weight": dense(w.embedding)}
    if prefix == "norm.":
        return {"weight": w.norm}
    if prefix == "lm_head.":
        return {} if w.tied else {"weight": dense(w.head)}
    each = w.layers[int(prefix.split(".")[1])]
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    made = {"input_layernorm.weight": each.attention_norm, "post_attention_layernorm.weight": each.mlp_norm,
            "self_attn.o_proj.weight": dense(each.out), "mlp.down_proj.weight": dense(each.down)}
    for name, part in zip("qkv", dense(each.qkv).split([q, kv, kv])):
        made[f"self_attn.{name}_proj.weight"] = part
    if each.qkv_bias is not None:
        for name, part in zip("qkv", each.qkv_bias.split([q, kv, kv])):
            made[f"self_attn.{name}_proj.bias"] = part
    for name, part in zip(("gate", "up"), dense(each.gate_up).chunk(2)):
        made[f"mlp.{name}_proj.weight"] = part
    return made


def as_transformers(engine: Engine):
    """The engine's own weights as a Qwen2ForCausalLM; shared, not copied, where they are dense."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from decoders.models import targets

    folder = targets.resolve(NAME)
    config = AutoConfig.from_pretrained(folder)
    w = engine.target.weights
    config.tie_word_embeddings = bool(w.tied)
    parts = ("embed_tokens.", "norm.", "lm_head.", *(f"layers.{i}." for i in range(len(w.layers))))
    state = {}
    for part in parts:
        for name, tensor in dense_parts(engine.target, part).items():
            state[("" if part == "lm_head." else "model.") + part + name] = tensor
    if w.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    state = {k: v.clone() if v.is_inference() else v for k, v in state.items()}
    quiet = contextlib.nullcontext()
    with contextlib.suppress(ImportError):
        from transformers.initialization import no_init_weights
        quiet = no_init_weights()
    with torch.device(DEVICE), quiet:
        model = AutoModelForCausalLM.from_config(config, dtype=engine.target.dtype)
    model.requires_grad_(False).eval()
    missing = model.load_state_dict(state, strict=False, assign=True)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    if w.tied:
        model.tie_weights()
    strange = {str(p.device.type) for p in [*model.parameters(), *model.buffers()]}
    assert strange == {torch.device(DEVICE).type}, strange
    model.generation_config.eos_token_id = list(engine.eos_ids)
    model.generation_config.pad_token_id = engine.eos_ids[0]
    return model


def compiled(bound: float) -> None:
    try:
        _compiled(bound)
    finally:
        torch._dynamo.reset()  # its graphs hold memory


def _compiled(bound: float) -> None:
    from peers import transformers_runs

    ends = time.monotonic() + bound
    most = NEW
    asked = prompts_of(ENGINE, 512 - most, 40, SHORT)  # one static cache, one compilation
    asked = asked[:: max(1, len(asked) // 4)][: 1 if QUICK else 4]
    model = as_transformers(ENGINE)
    theirs = transformers_runs(model, most, None, 0, 0 if QUICK and DEVICE == "cpu" and os.environ.get("NO_COMPILE") else max(map(len, asked)))
    record = {"prompts": [len(p) for p in asked], "max_new_tokens": most, "warm_up_s": {}, "seconds": {}, "tokens": {}, "equal_first_ids": {}}
    request = Request(most)

    def ours(arm):
        return lambda ids: len(ENGINE.decode(arm, ids, request).ids)

    runs = {"ours plain": ours(BASE), "ours hybrid": ours("hybrid"), **theirs}
    once = {"transformers", "transformers prompt lookup"}

    def timed(name, ids):
        synchronize(torch.device(DEVICE))
        began = time.perf_counter()
        made = runs[name](ids)
        synchronize(torch.device(DEVICE))
        return time.perf_counter() - began, made

    # the same model? its next token after the prompt against ours
    with torch.no_grad():
        their = model(torch.tensor([asked[0]], device=DEVICE)).logits[0, -1].float()
    our = ENGINE.prefill(asked[0]).logits.float()
    record["largest_logit_gap"] = float((their - our).abs().max())
    record["same_next"] = bool(their.argmax() == our.argmax())
    for name in sorted(runs, key=lambda n: n in once):  # both ends of the lengths
        spent = 0.0
        for ids in ([asked[0]] if name in once else [max(asked, key=len), min(asked, key=len)]):
            try:
                spent += timed(name, ids)[0]
            except Exception as error:
                record.setdefault("failed", {})[name] = f"{type(error).__name__}: {str(error)[:500]}"
                (OUT / f"compiled-{name.replace(' ', '-')}.error.txt").write_text(traceback.format_exc())
                break
        record["warm_up_s"][name] = spent
        log(f"compiled: {name} warm after {spent:.1f} s {record.get('failed', {}).get(name, '')}")
    for name in record.get("failed", {}):
        runs.pop(name, None)
    put("compiled", record)
    for repeat in range(1 if QUICK else 2):
        for at, ids in enumerate(asked):
            for name in list(runs)[at % len(runs):] + list(runs)[: at % len(runs)]:
                if name in once and repeat:
                    continue
                if time.monotonic() > ends - 6:
                    record["stopped"] = True
                    put("compiled", record)
                    return
                seconds, made = timed(name, ids)
                record["seconds"].setdefault(name, {}).setdefault(str(at), []).append(seconds)
                record["tokens"].setdefault(name, {})[str(at)] = made
        summary = {}
        for name, by in record["seconds"].items():
            best = sum(sorted(times)[len(times) // 2] if len(times) % 2 else sum(times) / len(times) for times in by.values())
            summary[name] = {"tokens_per_s": sum(record["tokens"][name][at] for at in by) / best, "prompts": len(by)}
        record["summary"] = summary
        put("compiled", record)
    log("compiled: " + ", ".join(f"{n} {r['tokens_per_s']:.0f}" for n, r in record["summary"].items()))


# -- d. several answers at once ---------------------------------------------------------------------


def loads(bound: float) -> None:
    from decoders.continuous_batching import batch_engine
    from decoders.zoo.catalogue import cache_dir

    ends = time.monotonic() + bound
    counts = (1, 2) if QUICK else (1, 8, 32, 64)
    most = 4 if QUICK else 64
    asked = prompts_of(ENGINE, 400, 1 if QUICK else 12)
    rows: list[dict] = []
    began = time.perf_counter()
    batch = batch_engine(ENGINE, max(counts), False, cache_dir() / "costs")
    ready = time.perf_counter() - began
    log(f"loads: room for {max(counts)} answers after {ready:.1f} s, {len(asked)} prompts")

    def at_once(n: int, arm: str, temperature: float, new: int) -> dict:
        done, first = [], []

        def answer(number):
            def run(engine):
                ids = asked[number % len(asked)]
                request = Request(new, Sampling(temperature), seed=number)
                read = engine.prefill(ids)
                first.append(time.perf_counter())
                made = engine.decode(arm, ids, request, read)
                done.append((len(made.ids), made.rounds, made.drafted, made.accepted, time.perf_counter()))
            return run

        synchronize(torch.device(DEVICE))
        began, steps = time.perf_counter(), 0
        for number in range(n):
            batch.begin(batch.free(), answer(number))
        while batch.running:
            batch.step()
            steps += 1
        synchronize(torch.device(DEVICE))
        seconds = time.perf_counter() - began
        tokens = sum(each[0] for each in done)
        writing = max(1e-9, began + seconds - max(first))
        return {"n": n, "arm": arm, "temperature": temperature, "tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds,
                "steps": steps, "ms_a_step": 1e3 * seconds / steps, "all_read_after_s": max(first) - began, "after_reading_s": writing,
                "rounds": sum(e[1] for e in done), "drafted": sum(e[2] for e in done), "accepted": sum(e[3] for e in done),
                "prompt_tokens": sum(len(asked[i % len(asked)]) for i in range(n))}

    def keep(row) -> None:
        rows.append(row)
        put("loads", {"ready_s": ready, "context": ENGINE.context, "rows": rows})
        log(f"loads: {row['n']:3} x {row['arm']} T={row['temperature']:g}: {row['tokens_per_s']:.0f} tokens/s, {row['ms_a_step']:.1f} ms a step, {row['seconds']:.2f} s")

    try:
        for arm in (BASE, "hybrid"):
            at_once(min(8, max(counts)), arm, 0.0, 8 if not QUICK else 2)
        for temperature in (0.0, 1.0):
            for n in counts:
                for arm in (BASE, "hybrid"):
                    if time.monotonic() > ends - 22:
                        break
                    keep(at_once(n, arm, temperature, most))
        n = 2 if QUICK else 32
        text = io.StringIO()
        for arm, temperature in (("hybrid", 0.0), (BASE, 0.0)):
            if time.monotonic() > ends - 8:
                break
            # cProfile does not know greenlets: callers' cumulative times are mixed, own times are right
            profile = cProfile.Profile()
            profile.enable()
            row = at_once(n, arm, temperature, most)
            profile.disable()
            text.write(f"\n##### cProfile, {n} x {arm}, T={temperature:g}: {row}\n")
            stats = pstats.Stats(profile, stream=text)
            stats.sort_stats("cumulative").print_stats(25)
            stats.sort_stats("tottime").print_stats(25)
            (OUT / "loads-profile.txt").write_text(text.getvalue())
            if time.monotonic() > ends - 5:
                break
            row, samples = sampled(lambda: at_once(n, arm, temperature, most))
            text.write(f"\n##### sampled stacks (right for greenlets), {n} x {arm}, T={temperature:g}: {row}\n{samples}\n")
            (OUT / "loads-profile.txt").write_text(text.getvalue())
    finally:
        batch.close()


def sampled(run):
    """What it gives, and a table of where the main thread was, every 2 ms."""
    own, total, count = Counter(), Counter(), 0
    main, stop = threading.main_thread().ident, threading.Event()
    root = str(ROOT)

    def named(frame):
        code = frame.f_code
        return f"{code.co_filename.removeprefix(root)}:{code.co_firstlineno} {code.co_qualname}"

    def line(frame):
        return f"{frame.f_code.co_filename.removeprefix(root)}:{frame.f_lineno} {frame.f_code.co_name}"

    def look():
        nonlocal count
        while not stop.wait(0.002):
            frame = sys._current_frames().get(main)
            if frame is None:
                continue
            count += 1
            own[line(frame)] += 1
            seen = set()
            while frame is not None:
                seen.add(named(frame))
                frame = frame.f_back
            total.update(seen)

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        result = run()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
    text = [f"{count} samples; by the whole stack:"]
    text += [f"{100 * n / max(1, count):6.1f}%  {where}" for where, n in total.most_common(40)]
    text += ["by line:"]
    text += [f"{100 * n / max(1, count):6.1f}%  {where}" for where, n in own.most_common(30)]
    return result, "\n".join(text)


# -- e. int4 ----------------------------------------------------------------------------------------


def int4(bound: float) -> None:
    began = time.perf_counter()
    from decoders.backends.llama import loading

    class Held:
        """As FileStored, out of the engine that is loaded: spares reading the file again."""

        def __init__(self, *_):
            pass

        def tensors(self, prefix):
            return dense_parts(ENGINE.target, prefix)

    kept_stored, loading.FileStored = loading.FileStored, Held
    try:
        second = LOAD(NAME, None, only=[BASE, "hybrid"], dtype="int4", device=DEVICE, context=CONTEXT)
    except Exception as error:
        log(f"int4: out of the other's weights: {type(error).__name__}: {error}; from the file then")
        loading.FileStored = kept_stored
        second = LOAD(NAME, None, only=[BASE, "hybrid"], dtype="int4", device=DEVICE, context=CONTEXT)
    finally:
        loading.FileStored = kept_stored
    log(f"int4: loaded in {time.perf_counter() - began:.1f} s, passes {second.target.passes}")
    kept = loop.rounds_ahead
    serving(second)
    try:
        argv("rounds", "--queries", *SHORT, "--limit", 1, "--repeats", 1, "--max-new-tokens", 8 if QUICK else 64,
             "--arms", "hybrid", "--target", NAME, "--dtype", "int4", "--device", DEVICE, "--out", OUT / "rounds-int4.json")
        rounds_script.main()
    finally:
        loop.rounds_ahead = kept
        serving(ENGINE)


# -- f. a head of EAGLE-3 beside the recurrent cell -------------------------------------------------


def eagle(bound: float) -> None:
    """The main engine is gone; WEIGHTS are its shape and weights."""
    import write_tokens
    from token_files import held_out as apart_of, load as load_tokens
    from collect.align.eagle3 import HeadHeldOut, train_head, usual_features
    from collect.align.eagle3_module import HeadSizes, Target as HeadTarget
    from collect.align.held_out import HeldOut
    from collect.align.recipe import RecurrentRecipe
    from collect.align.teacher import Teacher
    from collect.align.training_stage import Target, TrainingStage, commonest, run_stage
    from decoders.backends.config import config_of
    from decoders.backends.native import LlamaBackend
    from decoders.models import targets

    from collect.align import training_state
    from decoders.common.files import write_atomically

    def curve_only(self, folder, recipe, weights):  # no checkpoint of a gigabyte: nothing resumes here
        if self.curve:
            write_atomically(folder / "curve.jsonl", "".join(json.dumps(p) + "\n" for p in self.curve))

    training_state.TrainingState.keep = curve_only
    ends = time.monotonic() + bound
    tokens_at = WORK / "tokens"
    native = LlamaBackend(*WEIGHTS, 1024)
    original = targets.load_backend
    targets.load_backend = lambda *a, **k: native
    left_now = ends - time.monotonic()
    write_s = float(os.environ.get("WRITE_S", "60"))
    write_s = 4 if QUICK else min(write_s, max(15.0, 0.33 * left_now))
    small = ["--max-new-tokens", 8, "--max-asking", 8, "--max-prompt", 100, "--rows", 4, "--held-out-percent", 40, "--greedy", 1] if QUICK else ["--rows", 1024]
    queries = DATA / "dev" if QUICK else DATA / "train"
    argv("write", "--target", NAME, "--queries", queries, "--out", tokens_at, "--minutes", write_s / 60,
         "--cool", 2, "--warm", 2, "--own", 0 if QUICK else 3, "--device", DEVICE, *small)
    began = time.monotonic()
    try:
        write_tokens.main()
    finally:
        targets.load_backend = original
    free()
    tokens = load_tokens(sorted(tokens_at.glob("*.npz")))
    log(f"eagle: {len(tokens)} texts of {len(tokens.ids)} tokens in {time.monotonic() - began:.1f} s")

    folder = targets.resolve(NAME)
    teacher = Teacher(native)
    for name in ("embedding", "head"):  # a gradient is taken past them
        if getattr(teacher, name).is_inference():
            setattr(teacher, name, getattr(teacher, name).clone())
    eos = targets.eos_ids(folder)
    apart = apart_of(tokens, 40) if QUICK else apart_of(tokens)
    kept, aside = tokens.pick(~apart), tokens.pick(apart)
    vocab_size, width = 12288, 1536
    sizes = {"batch_tokens": 512, "steps": 2, "longest": 128} if QUICK else {"batch_tokens": 16384}
    each = 2 if QUICK else 40

    def told(name):
        def report(now):
            print(name, " ".join(f"{k}={v:.4g}" for k, v in now.items()), flush=True)
            if DEVICE != "cpu":
                print(f"  {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most", flush=True)
        return report

    def keep(name, point, began, seconds):
        curve = WORK / name / "curve.jsonl"
        points = [json.loads(l) for l in curve.read_text().splitlines()] if curve.exists() else []
        put(name, {"seconds_given": seconds, "seconds_all": time.monotonic() - began, "texts": len(kept), "tokens": len(kept.ids),
                   "held_out": held.texts, "curve": points, "last": vars(point)})
        overall = point.figures.get("overall", {})
        log(f"{name}: {point.positions:,} positions in {point.seconds:.0f} s; " + ", ".join(f"{k} {v:.3f}" for k, v in overall.items()))

    cell_s = float(os.environ.get("CELL_S", "60"))
    rest = ends - time.monotonic() - 25
    if QUICK:
        cell_s = 6
    elif rest < 2.2 * cell_s:  # the same for both
        cell_s = 0.42 * rest
    if cell_s > (1 if QUICK else 12):
        began = time.monotonic()
        held = HeldOut(teacher, aside, each, 4096, 16384 if not QUICK else 512)
        log(f"eagle: cell for {cell_s:.0f} s; judged on {held.texts} texts, read in {time.monotonic() - began:.1f} s")
        stage = TrainingStage(WORK / "cell", None, (), width, 2, vocab_size)
        recipe = RecurrentRecipe(minutes=cell_s / 60, **sizes)
        try:
            keep("cell", run_stage(stage, Target(NAME, teacher, eos), kept, held, recipe, "session", told("cell")), began, cell_s)
        except Exception as error:
            log(f"cell: FAILED: {type(error).__name__}: {str(error)[:300]}")
            (OUT / "cell.error.txt").write_text(traceback.format_exc())
        del held
        free()
        if (WORK / "cell" / "curve.jsonl").exists():
            (OUT / "cell-curve.jsonl").write_bytes((WORK / "cell" / "curve.jsonl").read_bytes())
    began = time.monotonic()
    found = config_of(folder)
    heads = HeadSizes(native.shape, found["intermediate_size"], usual_features(len(native.weights.layers)))
    held = HeadHeldOut(teacher, aside, each, 4096, 16384 if not QUICK else 512)
    vocab = commonest(kept, vocab_size, native.vocab_size, eos)
    head_s = 8.0 if QUICK else ends - time.monotonic() - 25
    log(f"eagle: head for {head_s:.0f} s; features after {heads.features}, {vocab.size} draft ids; held out read in {time.monotonic() - began:.1f} s")
    if head_s < 5:
        raise RuntimeError("no time is left for the head")
    recipe = RecurrentRecipe(minutes=head_s / 60, **sizes)
    parts = (HeadTarget(NAME, found), teacher, vocab, heads, kept, held)
    try:
        keep("head", train_head(WORK / "head", *parts, recipe, "session", told("head")), began, head_s)
    finally:
        if (WORK / "head" / "curve.jsonl").exists():
            (OUT / "head-curve.jsonl").write_bytes((WORK / "head" / "curve.jsonl").read_bytes())
        for name in ("cell", "head"):
            card = WORK / name / "model" / "card.json"
            if card.exists():
                (OUT / f"{name}-card.json").write_bytes(card.read_bytes())


def prompt(bound: float) -> None:
    """prompt_step.py beside this file, if it was brought; not in the default order."""
    sys.path.insert(0, str(Path(__file__).parent))
    import prompt_step

    small = {"lengths": (64,), "parts": (32,), "repeats": 1} if QUICK else {"lengths": (512, 2048, CONTEXT - 256)}
    prompt_step.run(ENGINE, OUT / "prompt.json", **small)


# -- all ------------------------------------------------------------------------------------------

ENGINE = None
WEIGHTS = None


def tuned() -> None:
    """Kernels and tiles as fused_tiles.py found them best, of those that change no bit."""
    try:
        found = json.loads((OUT / "tiles.json").read_text())
        same = found.get("1.5B changed kernels", {})
        ways = {n: w for n, w in found["ways"].items() if n.startswith("1.5B")
                and (w[3] == "plain" or same.get(w[3], {}).get("same bits"))}
        name = min(ways, key=lambda n: ways[n][0])
        _, table, reading, kernels = ways[name]
        sys.path.insert(0, str(ROOT / "benchmarks"))
        import fused_tiles as tiles
        from decoders.backends.cuda import fused_launch

        usual, cut = fused_launch.tile_of, {(n, k): c for n, k, *c in table if not c[2]}

        def tile_of(outputs, inputs, how=0):
            chosen = cut.get((outputs, inputs)) if how == 0 else None
            return fused_launch.Tile(*chosen[:2]) if chosen else usual(outputs, inputs, how)

        fused_launch.tile_of = tile_of
        fused_launch.SPAN, fused_launch.READERS = reading
        fused_launch.kernels = tiles.changed(kernels)
        log(f"tuned: {name} {ways[name]}")
    except Exception as error:
        log(f"tuned: nothing, {type(error).__name__}: {error}")


def begin(bound: float) -> None:
    global ENGINE
    if DEVICE != "cpu" or os.environ.get("TUNED"):
        tuned()
    ENGINE = LOAD(NAME, None, only=[BASE, *ARMS.split(",")], dtype="bfloat16", device=DEVICE, backend="auto", context=CONTEXT)
    serving(ENGINE)
    log(f"load: {ENGINE.target_fingerprint}, passes {ENGINE.target.passes}, arms {ENGINE.arm_names}")


def main() -> None:
    global ENGINE, WEIGHTS
    import transformers
    from decoders.common.provenance import hardware, versions

    log(f"begins: torch {torch.__version__}, transformers {transformers.__version__}, python {sys.version.split()[0]}, {DEVICE}")
    put("about", {"hardware": hardware(), "versions": versions(), "order": ORDER, "deadline": DEADLINE})
    if not step("load", 150, 10, begin):
        return
    bounds = {"rounds": (75, 20), "rounds1": (75, 20), "rounds07": (60, 20), "routed0": (75, 20), "routed1": (75, 20), "compiled": (120, 40), "loads": (85, 25), "int4": (60, 20), "prompt": (20, 8), "eagle": (1e9, 60)}
    todo = {"rounds": rounds(0.0), "rounds1": rounds(1.0), "rounds07": rounds(0.7, 0.95), "routed0": routed(0.0), "routed1": routed(1.0), "compiled": compiled, "loads": loads, "int4": int4, "prompt": prompt, "eagle": eagle}
    for name in ORDER:
        bound, least = bounds[name]
        if QUICK:
            bound, least = 400, 1
        if name == "eagle":
            WEIGHTS = ENGINE.target.shape, ENGINE.target.weights
            rounds_kept = ENGINE
            Engine.load = LOAD
            ENGINE = rounds_kept = None
            free()
        else:
            bound = min(bound, left() - RESERVE)
        step(name, bound, least, todo[name])
        free()
    log("all done")


if __name__ == "__main__":
    main()
