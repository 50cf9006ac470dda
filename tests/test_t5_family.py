"""The T5 family's script, end to end on a handful of sentences."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import train_t5_family as family

COLOURS = {"red": "rot", "blue": "blau", "green": "grün", "white": "weiß"}
THINGS = {"house": "Haus", "car": "Auto", "boat": "Boot", "book": "Buch"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sixteen sentences a task; the first four are the test set too."""
    pairs = [(c, t) for c in COLOURS for t in THINGS]
    rows: dict[str, list[dict[str, str]]] = {
        "en-de": [
            {
                "input": f"translate English to German: The {t} is {c}.",
                "target": f"Das {THINGS[t]} ist {COLOURS[c]}.",
                "source": "hand",
            }
            for c, t in pairs
        ],
        "sum": [
            {
                "input": f"summarize: We saw a {t}. It was {c}. We liked the {c} {t}.",
                "target": f"We liked a {c} {t}.",
                "source": "hand",
            }
            for c, t in pairs
        ],
    }
    for task, lines in rows.items():
        for split, kept in (("train", lines), ("test", lines[:4])):
            text = "".join(json.dumps(line) + "\n" for line in kept)
            (tmp_path / f"{task}.{split}.jsonl").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_family_is_made_scored_and_left_alone(data: Path, script: Any) -> None:
    from collect.queries import read_queries
    from decoders import Engine, Request

    out = data / "family"
    words = ("train_t5_family", *f"--data {data} --out {out} --minutes 0.1 --vocab 120".split())
    script(*words)
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    assert set(found["quality"]["target"]) == {"en-de", "sum"}
    for task in ("en-de", "sum"):
        arms = found["arms"][task]
        assert list(arms) == ["autoregressive", "draft-en-de", "draft-sum", "max-gram"]
        assert all(figures["equal"] == 1.0 for figures in arms.values())

    card = json.loads((out / "en-de" / "card.json").read_text())
    assert (card["kind"], card["data"], card["seed"]) == ("drafter", {"hand": 16}, 0)
    assert len(read_queries([out / "en-de.jsonl", out / "sum.jsonl"])) == 8
    asked = read_queries([out / "train.jsonl"])
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == [query.id for query in asked]
    engine = Engine.load(str(out / "target"), out / "arms.yaml", dtype="float32", device="cpu")
    ids = engine.encode_chat([{"role": "user", "content": "summarize: We saw a boat."}])
    assert engine.decode("draft-sum", ids, Request(5)).ids  # the card's hashes hold

    weights = out / "target" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    script(*words)  # nothing is left to do
    assert weights.stat().st_mtime_ns == before
    assert json.loads((out / "results.json").read_text()) == found


def test_muon_moves_matrices_as_torch_does() -> None:
    torch.manual_seed(0)
    shapes = [(16, 16), (32, 16), (16, 32), (16, 16), (32, 16)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    rules = [
        family.Muon(ours, torch.tensor(0.02)),
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.05),
    ]
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for rule in rules:
            rule.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@torch.no_grad()
def test_the_loss_is_transformers_own_and_padding_does_not_count() -> None:
    model = family.new_model(family.Shape(32, 64, 2, 2, 1, minutes=1.0), 50, 0).eval()
    inputs, answers = [[5, 6, 7, 1], [9, 8, 7, 6, 5, 1]], [[8, 9, 1], [11, 12, 13, 1]]
    ids, labels = family.padded(inputs, 0), family.padded(answers, -100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss
    assert float(family.loss_of(model, ids, labels)) == pytest.approx(float(expected), rel=1e-3)
    wider = family.padded([*inputs, [1]], 0, 9), family.padded([*answers, []], -100, 7)
    assert float(family.loss_of(model, *wider)) == pytest.approx(float(expected), rel=1e-2)


def test_recorded_batches_have_few_shapes_and_every_pair_once() -> None:
    pairs = [([5] * (n % 90) + [1], [n + 2] * (n % 37) + [1]) for n in range(200)]
    batches = list(family.shaped(pairs, 0, 512))
    assert len({(ids.shape, labels.shape) for ids, labels in batches}) <= 8
    found = [
        ([i for i in ids if i], [a for a in labels if a >= 0])
        for rows in batches
        for ids, labels in zip(*(side.tolist() for side in rows), strict=True)
        if max(labels) >= 0
    ]
    assert sorted(found) == sorted(pairs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_recorded_steps_on_cuda_train_as_plain_ones_do() -> None:
    device = torch.device("cuda")
    shape = family.Shape(32, 64, 2, 2, 1, minutes=1.0)
    pairs = [([5 + n, 6, 7, 1], [8 + n, 9, 1]) for n in range(20)]
    pairs += [([*range(5, 35), 1], [8 + n, 9, 1]) for n in range(20)]
    weights = []
    for recorded in (False, True):
        model = family.new_model(shape, 50, 0).to(device).train()
        rules = family.optimizers(model, shape)

        def step(ids: Any, labels: Any, model: Any = model, rules: Any = rules) -> None:
            family.loss_of(model, ids.to(device), labels.to(device), 0.1).backward()
            for rule in rules:
                rule.step()
                rule.zero_grad(set_to_none=True)

        run = family.Recorded(step, device) if recorded else step
        for epoch in range(4):
            for rule in rules:
                for group in rule.param_groups:
                    group["lr"].fill_(1e-3 * (epoch + 1))  # what was recorded must read it anew
            for ids, labels in family.shaped(pairs, epoch, 192):
                run(ids, labels)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    fresh = family.new_model(shape, 50, 0).to(device)
    moved = weights[0] - torch.cat([p.detach().flatten() for p in fresh.parameters()])
    assert (weights[1] - weights[0]).norm() < 0.05 * moved.norm()
