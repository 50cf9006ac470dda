"""Arms files: every mistake named, with the path of its field."""

import json
from pathlib import Path
from typing import Any

import pytest

from collect.replay.batch import Batch
from decoders.arms import choose, load_arms, recipe
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.engine import Engine
from decoders.options import EngineOptions
from decoders.papers.rules.deferral import BiLD, SpeculativeCascade
from decoders.papers.rules.lossy import Lossless, Lossy
from decoders.testing.toys import ToyBackend
from decoders.verify import Coupled
from router.commands.arms import arms_json, describe

SMALL = "kind: neural, drafter: x"


def write(folder: Path, text: str) -> Path:
    path = folder / "arms.yaml"
    path.write_text(text)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    arms = load_arms(
        write(
            tmp_path,
            """
            arms:
              copy: {kind: max_gram, shortest: 3, earliest: true}
              small: {kind: neural, drafter: ./x, length: {kind: adaptive, k: 9}, note: hello}
              both:
                kind: horizontal
                parts:
                - &part {<<: {kind: neural, drafter: ./z}, drafter: ./y, length: {k: 2}}
                - {kind: max_gram, length: {k: 2}}
              alone: {<<: *part, note: merged from what is merged itself}
            """,
        )
    )
    assert list(arms) == ["autoregressive", "copy", "small", "both", "alone"]  # always there
    assert Path(arms["small"].drafter) == tmp_path / "x"  # next to the file
    assert arms["both"].parts[0].drafter == arms["alone"].drafter == str(tmp_path / "y")
    assert (arms["copy"].shortest, arms["copy"].earliest, arms["copy"].lossless) == (3, True, True)
    assert (arms["small"].length.kind, arms["small"].length.k) == ("adaptive", 9)
    assert arms["autoregressive"].kind == "autoregressive"


def test_autoregressive_stays_where_it_is_declared(tmp_path: Path) -> None:
    text = "arms: {copy: {kind: max_gram}, autoregressive: {kind: autoregressive, note: plain}}"
    arms = load_arms(write(tmp_path, text))
    assert list(arms) == ["copy", "autoregressive"]
    assert arms["autoregressive"].note == "plain"


def test_the_arms_that_ship() -> None:
    arms = load_arms()
    assert {"autoregressive", "max-gram"} <= set(arms)
    assert all(recipe.lossless for recipe in arms.values())


def test_three_mistakes_are_all_named(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        arms:
          a: {kind: telepathy}
          b: {kind: neural}
          c: {kind: max_gram, length: {k: 0}, colour: red}
        """,
    )
    with pytest.raises(DraftpickError) as caught:
        load_arms(path)
    said = str(caught.value)
    assert "\n" not in said and str(path) in said and "4 mistake(s)" in said
    for word in ("arms.a.kind", "arms.b", "arms.b.drafter", "arms.c.length.k", "arms.c.colour"):
        assert word in said


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("arms: {a: null}", "arms.a.kind"),
        ("arms: {a: 5}", "arms.a.kind"),
        ("arms: 5", "arms"),
        ("arms: [a, b]", "arms"),
        ("tools: {}", "tools"),
        ("{arms: {}, more: 1}", "more"),
        ("arms: {a: [1, 2]}", "arms.a.kind: [1, 2] is not known"),
        ("arms: {a: {kind: max_gram}, a: {kind: calm}}", "line 1 gives 'a' a second time"),
        ("arms: {autoregressive: {kind: max_gram}}", "arms.autoregressive: by this name"),
        *((text, "top-level `arms:`") for text in ("", "# nothing\n", "- a\n- b\n", "hello")),
        *((text, "is not YAML") for text in ("arms: {a: [", "arms:\n\t- b", "a: b: c")),
    ],
)
def test_a_mistake_in_the_file(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(DraftpickError) as caught:
        load_arms(write(tmp_path, text))
    assert word in str(caught.value) and "\n" not in str(caught.value)


# One arm's fields, and what is said of them; ... stands for words between.
MISTAKES = """
kind: autoregressive, drafter: x => arms.a.drafter
kind: [neural] => arms.a.kind: ['neural'] is not known
kind: max_gram, 3: 4 => arms.a.3: there is no such field
kind: max_gram, lenght: 4 => arms.a.lenght: there is no such field; there
kind: max_gram, name: b => arms.a.name: leave it out
kind: max_gram, shortest: 5, longest: 3 => longest ... must not be below
kind: max_gram, length: 5 => arms.a.length: give a mapping
kind: max_gram, length: {min_confidence: 1.5} => a.length.min_confidence
kind: max_gram, length: {min_confidence: 0.2} => give `stop_below`
kind: early_exit => arms.a: give either `drafter`, a trained exit, or `layer`
kind: early_exit, layer: 1, drafter: exit-2 => give either `drafter`
kind: eagle3, drafter: x, every: true => it is for trees

kind: max_gram, verifier: kind => arms.a.verifier
kind: neural, drafter: x, verifier: magic
    => a.verifier ... `rule: magic` is not one ... coupled, lossless, lossy, lossy_star, chow
kind: neural, drafter: x, verifier: 3 => a.verifier
kind: neural, drafter: x, verifier: {alpha: 1} => arms.a.verifier: give a `rule:`
kind: neural, drafter: x, verifier: {rule: lossless, alpha: 1} => verifier.alpha
kind: neural, drafter: x, verifier: {rule: lossy, alpha: 3}
    => 1 mistake(s): arms.a.verifier.alpha: Input should be less than 1, not 3
kind: neural, drafter: x, verifier: {rule: lossy, alpha: 0.3, beta: 0.6}
    => a.verifier: ... 1 - alpha = 0.7
kind: neural, drafter: x, verifier: {rule: lossy, alpha: 0.3, kl_budget: 1} => verifier.kl_budget
kind: neural, drafter: x, verifier: {rule: lossy_star}
    => a.verifier: ... either `alpha` or `kl_budget`
kind: neural, drafter: x, verifier: {rule: lossy_star, alpha: 0.1, kl_budget: 1}
    => a.verifier: ... either `alpha` or
kind: neural, drafter: x, verifier: {rule: lossy_star, kl_budget: .inf}
    => verifier.kl_budget ... finite
kind: neural, drafter: x, verifier: {rule: lossy_star, alpha: 0.1, beta: 1} => verifier.beta
kind: neural, drafter: x, verifier: {rule: chow, alpha: 1.1} => a.verifier: ... between 0 and 1
kind: neural, drafter: x, verifier: {rule: diff, alpha: -0.5} => verifier.alpha
kind: neural, drafter: x, verifier: {rule: bild_star, alpha: 1, log_loss: true}
    => verifier.log_loss
kind: neural, drafter: x, verifier: {rule: bild, alpha: 1}
    => 2 mistake(s) ... verifier.rollback ... verifier.alpha

kind: tree, drafter: x, branch: [-1]
    => 1 mistake(s): arms.a.branch.0: Input should be greater than or equal to 1, not -1
kind: tree, drafter: x, branch: [2, 2, 2], length: {k: 2} => 3 depths
kind: tree, drafter: x, branch: [8, 8, 8], every: true => 1096 nodes
kind: tree, drafter: x, branch: [2], verifier: lossy => verifier
kind: tree, drafter: x, branch: [16, 8], every: true, length: {kind: scheduled, k: 2}
    => the tree has 8080 nodes, more than 256
kind: early_exit, layer: 2, branch: [3], verifier: {rule: chow, alpha: 0.1}
    => a tree is verified by the target's own tokens
kind: recurrent, drafter: x, branch: [2, 2], verifier: {rule: lossy, alpha: 0.1}
    => verified by the target's own tokens
kind: recurrent, drafter: x, branch: [2, 2], length: {k: 1} => a draft ends after 1

kind: hybrid, model: COPY => a drafter that does not copy
kind: hybrid, model: {kind: autoregressive} => cannot draft
kind: hybrid, model: SMALL, shortest: 5, longest: 3 => must not be below
kind: hybrid, model: SMALL, length: {k: 3, min_confidence: 0.5} => has no confidence

kind: beam, beams: 2, length_penalty: .inf => a finite number, not inf
kind: beam, beams: 2, length: {k: 3} => name a `drafter`
kind: beam, beams: 2, width: 4 => name a `drafter`
kind: beam, beams: 4, width: 3, drafter: SMALL => raise `width`
kind: beam, beams: 2, drafter: {kind: neural, drafter: x, length: {k: 3}} => to the arm
kind: beam, beams: 2, drafter: COPY => 2 mistake(s) ... drafter
kind: beam, beams: 2, drafter: SMALL, length: {min_confidence: 0.5} => min_confidence
kind: sampled_beams, beams: 2, drafter: {kind: max_gram, verifier: lossless}
    => verifier: leave it out

kind: token_cascade, alpha: 1.5, drafter: SMALL => arms.a.alpha: Input should be less than
kind: token_cascade, alpha: 0.5, drafter: x => arms.a.drafter: give a mapping
kind: token_cascade, alpha: 0.5, drafter: {kind: magic} => 'magic' is not known
kind: token_cascade, alpha: 0.5, drafter: {kind: neural} => arms.a.drafter: drafter: F
kind: token_cascade, alpha: 0.5, drafter: {kind: autoregressive} => cannot draft
kind: token_cascade, alpha: 0.5, drafter: {kind: max_gram, length: {k: 3}} => leave out `length`
kind: oracle_cascade, alpha: 0.5, drafter: {kind: max_gram, verifier: lossless}
    => verifier: leave it out
kind: sequence_cascade, alpha: 0.5, drafter: COPY => must be `kind: neural`
kind: token_cascade, alpha: 0.5, drafter: COPY => confidence in each token
kind: oracle_cascade, alpha: 0.5, drafter: {kind: hierarchy, middle: x, small: COPY}
    => `kind: hierarchy` does not stop by
kind: token_cascade, alpha: 0.5, drafter: {kind: horizontal, parts: [SMALL, COPY]}
    => `kind: horizontal` does not stop by
kind: calm, threshold: 1.2 => arms.a.threshold: Input should be less than

kind: cs_drafting, models: [x, COPY], K: [[1, 2, 3], [0, 1, 1]] => K: give 2 rows of 2 numbers
kind: cs_drafting, models: [x, COPY], K: [[1, 2]] => K: give 2 rows of 2 numbers
kind: cs_drafting, models: [x, COPY], K: [[1, 2], [3, 1]]
    => K: row 1 must be 0 left of the diag
kind: cs_drafting, models: [x, COPY], K: [[0, 2], [0, 1]]
    => K: row 0 must have 1 or more on the diag
kind: cs_drafting, models: [x, COPY], K: [[1, -2], [0, 1]]
    => row 0 must have ... 0 or more right of it
kind: cs_drafting, models: [x, COPY], K: [[1, 64], [0, 1]] => row 0 ... at most 64 together
kind: cs_drafting, models: [x, y], K: [[1]] => end the list with
kind: cs_drafting, models: [COPY], K: [[1]] => at least one draft
kind: cs_drafting, models: [x, COPY, y], K: [[1]] => end the list with
kind: cs_drafting, models: [], K: [[1]] => at least one draft model
kind: cs_drafting, models: [x, COPY], K: [[1, 3], [0, 1]], branch: [64, 64, 64, 64]
    => the tree has 316 nodes, more than 256
kind: cs_drafting, models: [x, {kind: max_gram, shortest: 0}], K: [[1, 1], [0, 1]]
    => arms.a.models.1.shortest: Input should be greater
kind: cs_drafting, models: [x, {kind: max_gram, length: {k: 3}}], K: [[1, 1], [0, 1]]
    => arms.a.models: leave out `length` of the Max-Gram
kind: cs_drafting, models: [x, {kind: max_gram, by_cost: true}], K: [[1, 1], [0, 1]]
    => `by_cost` goes by the target's passes
kind: vertical, review: x, inner: {kind: tree, drafter: y, branch: [2]}
    => inner: kind: 'tree' is for the target's verification alone
kind: vertical, review: x, inner: COPY, lenience: 0.9
    => a.lenience: ... greater than or equal to 1
kind: vertical, review: x, inner: COPY, lenience: .inf => a.lenience: ... finite
kind: vertical, review: x, inner: {} => inner: give a mapping
kind: vertical, review: x, inner: {kind: autoregressive}
    => inner: kind: 'autoregressive' cannot draft for another model
kind: vertical, review: x, inner: {kind: cs_drafting, models: [x, COPY], K: [[1, 1], [0, 1]]}
    => inner: kind: 'cs_drafting' cannot draft for another model
kind: vertical, review: x, inner: {kind: max_gram, shortest: 0, colour: red}
    => arms.a.inner: shortest: ... ; colour:
kind: vertical, review: x, inner: {kind: max_gram, verifier: lossless}
    => inner: verifier: leave it out
kind: vertical, review: x, inner: {kind: max_gram, context_to: 9}
    => inner: context_to: give it to the arm as a whole
kind: vertical, review: x, inner: {kind: max_gram, by_cost: true}
    => `by_cost` goes by the target's passes
kind: vertical, review: x, inner: {kind: early_exit, drafter: y}
    => inner: an early exit runs on the target's own layers
kind: vertical, review: x, inner: COPY, length: {min_confidence: 0.3}
    => length.min_confidence: ... set it on `inner`
kind: hierarchy, middle: x, small: {kind: horizontal, parts: [{kind: early_exit, drafter: y}, COPY]}
    => small: an early exit runs on the target's own layers
kind: hierarchy, middle: x, small: {kind: max_gram, by_cost: true}
    => `by_cost` goes by the target's passes
kind: hierarchy, middle: x, small: COPY, length: {min_confidence: 0.3}
    => length.min_confidence: ... set it on `small`
kind: hierarchy, middle: x, small: COPY, length: {k: 1} => length.k: give at least 2
kind: horizontal, parts: [COPY] => arms.a.parts: ... at least 2
kind: horizontal, parts: [{kind: early_exit, drafter: x}, {kind: early_exit, drafter: y}]
    => parts: only one early exit
kind: horizontal, parts: [COPY, {kind: neural, drafter: x, length: {kind: adaptive}}]
    => parts.1.length: give {kind: fixed
kind: horizontal, parts: [COPY, {kind: horizontal, parts: [COPY, COPY]}]
    => parts.1: list the parts of that cascade here
kind: horizontal, parts: [COPY, {kind: neural}] => arms.a.parts.1: drafter: Field required
kind: horizontal, parts: [SMALL, {kind: early_exit, layer: 2, branch: [3]}]
    => branch: leave it out; only the target verifies a tree
kind: horizontal, parts: [SMALL, COPY], verifier: {rule: chow, alpha: 0.1}
    => compares confidences, and a copy has none
kind: horizontal, parts: [SMALL, COPY], length: {min_confidence: 0.1}
    => not all of the parts stop at an unsure token

kind: endpoint, url: 'h:1', model: m => arms.a.url: give an address such as
kind: endpoint, url: 'http://h:x', model: m => arms.a.url: give an address such as
kind: endpoint, url: 'http://me:canary@h/v1', model: m
    => arms.a.url: http://me:***@h/v1 holds a password
kind: endpoint, url: 'http://h/v1?api-key=canary', model: m
    => arms.a.url: http://h/v1?api-key=*** holds a password or key
kind: endpoint, url: 'http://h', model: m, extra_body: {stream: false}
    => arms.a.extra_body: stream is set by every request
kind: endpoint, url: 'http://h', model: m, limit_field: most, extra_body: {most: 1}
    => arms.a.extra_body: most is set by every request
kind: endpoint, url: 'http://h', model: m, limit_field: stream
    => arms.a.limit_field: stream is another field
kind: endpoint, url: 'http://h', model: m, extra_body: {x: .nan}
    => arms.a.extra_body: Out of range float
kind: endpoint, url: 'http://h', model: m, extra_body: {x: 2026-01-01}
    => arms.a.extra_body: Object of type date
kind: endpoint, url: 'http://h', model: m, timeout_s: 1.0e+10
    => arms.a.timeout_s: Input should be less than or equal to 86400
"""
ROWS = MISTAKES.replace("\n    =>", " =>").split("\n")


@pytest.mark.parametrize("row", filter(None, ROWS))
def test_a_mistake_in_an_arm(tmp_path: Path, row: str) -> None:
    body, words = row.split(" => ")
    body = body.replace("COPY", "{kind: max_gram}").replace("SMALL", f"{{{SMALL}}}")
    with pytest.raises(DraftpickError) as caught:
        load_arms(write(tmp_path, f"arms: {{a: {{{body}}}}}"))
    said = str(caught.value)
    assert all(word in said for word in words.split(" ... "))
    assert "2 mistake(s)" in words or "1 mistake(s)" in said
    assert "\n" not in said and "Value error" not in said


def test_what_is_no_text_file(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_bytes(b"\xff\xfe\x00arms")
    with pytest.raises(DraftpickError, match=r"arms\.yaml"):
        load_arms(path)
    with pytest.raises(DraftpickError, match=r"cannot read the arms file.*No such file"):
        load_arms(tmp_path / "none.yaml")
    with pytest.raises(DraftpickError, match="cannot read the arms file"):
        load_arms(tmp_path)


def test_choosing() -> None:
    arms = load_arms()
    assert choose(arms, None) == arms
    assert list(choose(arms, ["max-gram", "autoregressive"])) == ["autoregressive", "max-gram"]
    with pytest.raises(NoSuchName, match=r"unknown arm 'magic'; known: .*max-gram"):
        choose(arms, ["max-gram", "magic"])


# -- what `verifier:` may say, and what an arm's JSON says of it -----------------------------------


def arms_file(folder: Path, *said: str, kind: str = "neural, drafter: ./x") -> Path:
    path = folder / "arms.yaml"
    arms = [f"  a{i}: {{kind: {kind}, verifier: {text}}}" for i, text in enumerate(said)]
    path.write_text("\n".join(["arms:", *arms]))
    return path


GOOD: dict[str, tuple[type, bool]] = {
    "coupled": (Coupled, True),
    "{rule: coupled}": (Coupled, True),
    "lossless": (Lossless, True),
    "{rule: lossy, alpha: 0.3}": (Lossy, False),
    "{rule: lossy, alpha: 0.3, beta: 0.7}": (Lossy, False),
    "{rule: lossy, alpha: 0.7, beta: 0.3}": (Lossy, False),
    "{rule: lossy, alpha: 0, beta: 2}": (Lossy, False),
    "{rule: lossy, alpha: 0}": (Lossy, True),
    "{rule: lossy_star, alpha: 0.3}": (Lossy, False),
    "{rule: lossy_star, alpha: 0}": (Lossy, True),
    "{rule: lossy_star, kl_budget: 0.1}": (Lossy, False),
    "{rule: lossy_star, kl_budget: 0}": (Lossy, True),
    "{rule: chow, alpha: 0}": (SpeculativeCascade, False),
    "{rule: chow, alpha: 1}": (SpeculativeCascade, False),
    "{rule: chow, alpha: 2.5, log_loss: true}": (SpeculativeCascade, False),
    "{rule: diff, alpha: 0.1}": (SpeculativeCascade, False),
    "{rule: opt, alpha: 3, log_loss: false}": (SpeculativeCascade, False),
    "{rule: bild_star, alpha: 2}": (SpeculativeCascade, False),
    "{rule: bild, rollback: 2}": (BiLD, False),
    "{rule: bild, rollback: 0}": (BiLD, True),
    "{rule: bild, rollback: 2, keep_argmax: false}": (BiLD, False),
}


@pytest.mark.parametrize("said", GOOD)
def test_good_ones(said: str, tmp_path: Path) -> None:
    arm: Any = load_arms(arms_file(tmp_path, said))["a0"]
    kind, lossless = GOOD[said]
    built = arm.verifier.build()
    assert type(built) is kind
    assert arm.lossless == built.lossless == lossless
    assert built.needs_raw == (kind is SpeculativeCascade)
    again = recipe(**json.loads(arm.model_dump_json()))
    assert again == arm


@pytest.mark.parametrize("rule", ["chow", "diff", "opt"])
def test_a_copy_has_no_confidence_to_compare(rule: str, tmp_path: Path) -> None:
    said = f"{{rule: {rule}, alpha: 0.1}}"
    with pytest.raises(DraftpickError, match=r"a0: .*a copy has none.*use coupled, lossless"):
        load_arms(arms_file(tmp_path, said, kind="max_gram"))
    for other in ("lossy, alpha: 0.1", "bild_star, alpha: 2", "bild, rollback: 2"):
        load_arms(arms_file(tmp_path, f"{{rule: {other}}}", kind="max_gram"))


def test_the_json_view_shows_rule_and_thresholds(tmp_path: Path) -> None:
    path = arms_file(tmp_path, "lossless", "{rule: opt, alpha: 0.5, log_loss: true}")
    none, plain, optimal = arms_json(EngineOptions(arms=path))
    assert (none["verifier"], none["lossless"]) == (None, True)
    assert (plain["verifier"], plain["lossless"]) == ("lossless", True)
    assert optimal["verifier"] == {"rule": "opt", "alpha": 0.5, "log_loss": True}
    assert optimal["lossless"] is False
    assert describe(optimal["verifier"]) == "rule=opt, alpha=0.5, log_loss=yes"
    json.dumps([none, plain, optimal])


def test_the_json_view_shows_what_is_the_kind_s_own(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text(
        "arms:\n"
        "  copy: {kind: max_gram, length: {k: 9}, stop_below: 0.25}\n"
        "  cs: {kind: cs_drafting, models: [m, {kind: max_gram}], K: [[2, 3], [0, 3]]}\n"
    )
    found = {arm["name"]: arm["settings"] for arm in arms_json(EngineOptions(arms=path))}
    assert found == {
        "autoregressive": None,
        "copy": {"stop_below": 0.25},
        "cs": {"K": [[2, 3], [0, 3]]},
    }


def test_the_name_alone_is_the_default() -> None:
    said, left_out = (recipe(kind="max_gram", **more) for more in ({"verifier": "coupled"}, {}))
    assert said == left_out
    assert "verifier" not in said.model_dump(mode="json", exclude_defaults=True)
    assert said.model_dump(mode="json")["verifier"] == "coupled"


# -- what they become -----------------------------------------------------------------------------


def test_rounds_of_a_lossy_arm_are_not_told_from_the_target_s_answer() -> None:
    arms = {
        "exact": recipe(kind="max_gram", name="exact", verifier={"rule": "bild", "rollback": 0}),
        "loose": recipe(kind="max_gram", name="loose", verifier={"rule": "bild", "rollback": 1}),
    }
    engine = Engine(ToyBackend.random(100, seed=1), arms)  # costs are measured on ids below 98
    batch = Batch(engine)
    assert batch.replay("exact", [[1, 2, 1]], [[2, 1, 2]], 3)[0].rounds > 0
    with pytest.raises(DraftpickError, match="arm 'loose' gives answers of its own"):
        batch.replay("loose", [[1, 2, 1]], [[2, 1, 2]], 3)
    for name in arms:  # writing alone is the drafter's own affair
        assert batch.arm(name, [[1, 2, 1]], 4).ids
