"""What is shown of keys and passwords: nothing."""

import pytest

from collect.align.card import command
from decoders.common.errors import DraftpickError
from decoders.common.provenance import provenance, tags
from decoders.common.secrets import masked, masked_arguments, secret


def test_a_key_is_kept_out_of_its_own_words() -> None:
    key = secret("canary\n", "MY_KEY")
    assert key.get_secret_value() == "canary" and "canary" not in f"{key} {key!r}"


@pytest.mark.parametrize("wrong", ["", "\n", "can\nary", "can ary", "can\x7fary", "can\u2028ary"])
def test_a_key_that_no_header_can_hold_is_refused_by_its_place(wrong: str) -> None:
    with pytest.raises(DraftpickError, match="the key in MY_KEY") as error:
        secret(wrong, "MY_KEY")
    assert "ary" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:canary@db/x", "postgresql://me:***@db/x"),
        ("https://me:can/a:ry@h:1/x?y=1", "https://me:***@h:1/x?y=1"),
        ("https://h/v1?api-key=canary&v=1", "https://h/v1?api-key=***&v=1"),
        ("at https://h?v=1&access_token=canary now", "at https://h?v=1&access_token=*** now"),
        ("https://h?sig=canary#top", "https://h?sig=***#top"),
        ("http://localhost:5000/v1", "http://localhost:5000/v1"),
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
    ],
)
def test_addresses_lose_their_passwords(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["serve", "--api-key", "canary", "--port", "1"], "serve --api-key *** --port 1"),
        (["serve", "--api-key=canary"], "serve --api-key=***"),
        (["x", "--token", "canary", "--hf-token=canary"], "x --token *** --hf-token=***"),
        (["train", "--tracking-uri", "http://me:canary@h"], "train --tracking-uri http://me:***@h"),
        (["generate", "--max-new-tokens", "5"], "generate --max-new-tokens 5"),
    ],
)
def test_command_lines_are_stored_without_keys(given: list[str], shown: str) -> None:
    assert " ".join(masked_arguments(given)) == shown


def test_what_is_stored_of_a_run_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["draftpick", "train", "--api-key", "canary", "--tracking-uri", "http://me:canary@h"]
    monkeypatch.setattr("sys.argv", words)
    for stored in (provenance()["argv"], tags()["argv"], command("draftpick")):
        assert "canary" not in str(stored) and "me:***@h" in str(stored)
