"""The server's page: its files as they are sent, and the page as a user meets it in a browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from page_server import ROUNDS, SCORES, PageServer

from router.serve.page import FOLDER, TYPES

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1200,900",
)  # fmt: skip
WHOLE = "".join(text for _, tokens in ROUNDS for text, _ in tokens)
FILES = sorted(FOLDER.iterdir())


@pytest.fixture
def server() -> Iterator[PageServer]:
    running = PageServer()
    yield running
    running.stop()


def get(server: PageServer, path: str, **headers: str) -> tuple[HTTPResponse, str]:
    """The path goes out as it is spelled."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response, response.read().decode()


# -- the files ------------------------------------------------------------------------------------


def test_every_file_is_sent_with_its_type_and_the_same_strict_policy(server: PageServer) -> None:
    server.key = "secret"  # the page itself needs none
    for path, file in [("/", "index.html"), *((f"/page/{each.name}", each.name) for each in FILES)]:
        response, text = get(server, path)
        assert response.status == 200
        assert text == (FOLDER / file).read_text(encoding="utf-8")
        assert response.headers["Content-Type"] == TYPES[Path(file).suffix]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(policy)
        assert not re.search(r"unsafe|\*|https?:|data:", "".join(policy))


def test_a_browser_that_has_a_file_is_not_sent_it_again(server: PageServer) -> None:
    first, _ = get(server, "/page/main.js")
    tag = first.headers["ETag"]
    for shown in (tag, f'"other", W/{tag}'):
        again, text = get(server, "/page/main.js", **{"If-None-Match": shown})
        assert (again.status, text) == (304, "")
    assert get(server, "/page/main.js", **{"If-None-Match": '"other"'})[0].status == 200
    assert get(server, "/page/chat.js", **{"If-None-Match": tag})[0].status == 200


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/none.js", "/page/../page.py", "/page/..%2fpage.py", "/page/%2e%2e%2fpage.py",
     "/page/..%5cpage.py", "/page/page/main.js", "/page//etc/passwd", "/page/main.js%00"],
)  # fmt: skip
def test_nothing_else_is_sent(server: PageServer, path: str) -> None:
    assert get(server, path)[0].status in (307, 404)
    assert "import" not in get(server, path)[1]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_files_name_no_other_host_and_write_no_markup(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"[a-z]+://|[\"'(]//|@import|url\(", text)
    assert not re.search(r"(inner|outer)HTML|insertAdjacent|document\.write|\beval\b", text)
    if file.suffix == ".html":
        assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", text)
    for module in re.findall(r"from \"\./(.+?)\"", text):
        assert (FOLDER / module).is_file()


def test_the_files_are_in_the_wheel() -> None:
    import tomllib

    settings = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    globs = tomllib.loads(settings)["tool"]["setuptools"]["package-data"]["router"]
    package = FOLDER.parents[1]
    shipped = {path for glob in globs for path in package.glob(glob)}
    assert {each for each in FILES if each.suffix in TYPES} == set(FILES) <= shipped


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_can_be_told_from_what_they_stand_on(theme: int) -> None:
    """Contrast of at least 4.5 for text and 3 for marks (WCAG 2.2, 1.4.3 and 1.4.11)."""
    blocks = re.findall(r":root \{(.*?)\}", (FOLDER / "style.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", blocks[theme]))
    pairs = [("on-accent", "accent", 4.5), ("ink", "notice", 4.5), ("ink", "track", 4.5)]
    pairs += [(text, ground, 4.5) for text in ("ink", "soft") for ground in ("page", "card")]
    for writer in ("draft", "target", "bonus"):
        pairs += [("ink", f"{writer}-fill", 4.5), (writer, f"{writer}-fill", 3)]
    pairs += [("accent", "track", 3), ("accent", "card", 3)]
    for one, other, least in pairs:
        light, dark = sorted((luminance(colours[one]), luminance(colours[other])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least, (one, other)


# -- in a browser ---------------------------------------------------------------------------------

in_a_browser = pytest.mark.slow


class User:
    """Someone at the page. Elements are CSS selectors; what they wait for has ten seconds."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, server: PageServer) -> None:
        self.driver.get("about:blank")
        self.driver.get(server.address)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def wait(self, true: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import NoSuchElementException as Absent
        from selenium.common.exceptions import StaleElementReferenceException as Stale
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.driver, 10, 0.05, ignored_exceptions=(Absent, Stale))
        return waiting.until(lambda _: true())

    def sees(self, selector: str, text: str) -> None:
        """Wait until one of the elements shows the text."""
        self.wait(lambda: any(text in each.text for each in self.all(selector)))

    def asks(self, question: str = "Why?", until: str = ".compare") -> None:
        before = len(self.all(until))
        self.one("#question").send_keys(f"{question}\n")
        self.wait(lambda: len(self.all(until)) > before)

    def fills(self, selector: str, value: str) -> None:
        self.one(selector).clear()
        self.one(selector).send_keys(value)

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def runs(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def narrow(self, width: int) -> None:
        told = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", told)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("there is no chromium with its chromedriver on the path")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    started = webdriver.Chrome(options=options, service=service)
    yield started
    started.quit()


@pytest.fixture
def user(driver: Any, server: PageServer) -> Iterator[User]:
    """At the page, where nothing may be thrown and nothing be refused by the page's own policy."""
    someone = User(driver)
    someone.open(server)
    yield someone
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    said = [entry["message"] for entry in driver.get_log("browser")]
    assert not [each for each in said if "Uncaught" in each or "Security Policy" in each]


@in_a_browser
def test_each_token_is_marked_by_who_wrote_it(user: User) -> None:
    user.asks()
    tokens = user.all("article .token")
    told = [(each.get_attribute("textContent"), each.get_attribute("data-by")) for each in tokens]
    assert told == [token for _, tokens in ROUNDS for token in tokens]
    fills, lines = {}, {}
    for each, (_, by) in zip(tokens, told, strict=True):
        fills[by] = each.value_of_css_property("background-color")
        lines[by] = each.value_of_css_property("border-bottom-style")
    assert len(set(fills.values())) == len(set(lines.values())) == 3
    for by in fills:  # the legend says the same
        shown = user.one(f".legend .token.{by}")
        assert shown.value_of_css_property("background-color") == fills[by]
        assert shown.value_of_css_property("border-bottom-style") == lines[by]
    user.one("#marks").click()
    assert tokens[0].value_of_css_property("background-color") == "rgba(0, 0, 0, 0)"


@in_a_browser
def test_markup_of_the_model_is_text(user: User, server: PageServer) -> None:
    bad = ["<script>harm = 1</script>", '<img src=x onerror="harm = 1">', "</div>&lt;"]
    server.rounds = [(0, [(text, "target")]) for text in bad]
    user.asks(bad[1], until="article .facts:not(:empty)")
    assert user.one("article .tokens").text == "".join(bad)
    assert user.one(".question").text == bad[1]
    assert not user.all("article script, article img, .question img")
    assert user.runs("return window.harm") is None


@in_a_browser
def test_the_text_of_a_chunk_is_shown_where_its_tokens_spell_another(
    user: User, server: PageServer
) -> None:
    """As where a character has several tokens: it comes with the last of them."""
    server.rounds = [(2, [("a", "draft"), ("b", "draft"), ("c", "target")]), (0, [("d", "target")])]
    server.spelled = {"b": "\ufffd"}
    user.asks()
    assert user.one("article .tokens").text == "abcd"
    assert [each.text for each in user.all("article .token")] == ["a", "bc", "d"]


@in_a_browser
def test_a_token_shows_its_round_to_the_pointer_and_the_keyboard(user: User) -> None:
    from selenium.webdriver import ActionChains, Keys

    user.asks()
    tokens = user.all("article .token")
    ActionChains(user.driver).move_to_element(tokens[2]).perform()
    assert user.one("#round").text == (
        "“␣red” drafted and accepted\nRound 2: 4 drafted, 2 accepted, then the target's own."
    )
    assert [each.text for each in user.all(".same-round")] == [each.text for each in tokens[1:4]]
    ActionChains(user.driver).move_to_element(user.one("h1")).perform()
    assert not user.one("#round").is_displayed()

    user.runs("arguments[0].focus()", tokens[0])
    user.press(Keys.END)
    assert "Round 3: 3 drafted, all accepted, then a bonus token." in user.one("#round").text
    assert user.driver.switch_to.active_element == tokens[-1]
    assert tokens[-1].get_attribute("aria-describedby") == "round"
    user.press(Keys.ARROW_LEFT)
    assert user.driver.switch_to.active_element == tokens[-2]
    user.press(Keys.ESCAPE)
    assert not user.one("#round").is_displayed()
    assert [each.get_attribute("tabindex") for each in tokens].count("0") == 1


@in_a_browser
def test_the_arm_and_the_scores_of_all(user: User, server: PageServer) -> None:
    server.others = 2
    user.asks()
    assert user.one(".choice summary").text == "Arm: hybrid, picked with probability 93%"
    shown = [each.text.split("\n") for each in user.all(".choice li")]
    assert [row[0].removesuffix(" picked") for row in shown] == list(SCORES)
    assert [float(row[-1]) for row in shown] == list(SCORES.values())
    widths = [each.size["width"] for each in user.all(".choice .bar-fill")]
    assert (
        widths == sorted(widths, reverse=True) and widths[-1] * 2.1 < widths[0] < widths[-1] * 2.3
    )
    facts = user.one(".facts").text
    assert facts.startswith("8 tokens in 3 rounds and ")
    for fact in ("acceptance rate 71%", "mean acceptance length 3.50", "beside 2 other requests"):
        assert fact in facts


@in_a_browser
def test_settings_and_the_conversation_are_sent(user: User, server: PageServer) -> None:
    from selenium.webdriver.support.ui import Select

    user.wait(lambda: len(user.all("#model option")) == 7)
    Select(user.one("#model")).select_by_value("max-gram")
    user.fills("#system", "Be brief.")
    user.fills("#temperature", "0.7")
    user.fills("#max-tokens", "64")
    user.asks("One?")
    user.asks("Two?")
    assert server.asked[-1] == {
        "model": "max-gram",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": WHOLE},
            {"role": "user", "content": "Two?"},
        ],
        "temperature": 0.7,
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
        "explain": True,
    }
    assert user.all(".choice")[-1].text == "Arm: max-gram, asked for by name"
    user.one("#anew").click()
    assert not user.all("article")
    assert user.one("#welcome").is_displayed()
    user.fills("#temperature", "9")  # more than the server takes
    user.one("#question").send_keys("Three?\n")
    assert len(server.asked) == 2


@in_a_browser
def test_what_is_left_empty_is_left_to_the_server(user: User, server: PageServer) -> None:
    server.stats["limits"] = {"most_tokens": 128, "temperature": 0.7}
    user.open(server)
    shown = {name: user.one(f"#{name}") for name in ("temperature", "max-tokens")}
    user.wait(lambda: shown["max-tokens"].get_attribute("placeholder") == "128")
    assert shown["temperature"].get_attribute("placeholder") == "0.7"
    user.asks()
    assert not {"temperature", "max_tokens"} & set(server.asked[-1])
    user.fills("#max-tokens", "129")  # more than the server gives
    user.one("#question").send_keys("More?\n")
    assert len(server.asked) == 1
    user.fills("#max-tokens", "12")
    user.one("#question").clear()
    user.asks("Less?")
    assert server.asked[-1]["max_tokens"] == 12 and "temperature" not in server.asked[-1]


@in_a_browser
def test_stopping_ends_the_answer_at_the_server_too(user: User, server: PageServer) -> None:
    server.rounds, server.pause_s = ROUNDS * 100, 0.05
    user.asks(until=".token.bonus")
    user.one("#stop").click()
    user.sees("article", "Stopped.")
    assert server.left.wait(5)
    part = user.one("article .tokens").text
    server.rounds, server.pause_s = ROUNDS, 0
    user.asks("And now?")
    assert [each["content"] for each in server.asked[-1]["messages"]] == ["Why?", part, "And now?"]


@in_a_browser
def test_a_new_conversation_forgets_the_answer_that_streams(user: User, server: PageServer) -> None:
    server.rounds, server.pause_s = ROUNDS * 100, 0.05
    user.asks(until=".token.bonus")
    user.one("#anew").click()
    assert server.left.wait(5)
    server.rounds, server.pause_s = ROUNDS, 0
    user.asks("And now?")
    assert [each["content"] for each in server.asked[-1]["messages"]] == ["And now?"]


@in_a_browser
def test_comparing_with_plain_decoding(user: User, server: PageServer) -> None:
    server.pause_s = 0.05
    user.asks()
    user.one(".compare").click()
    user.sees(".verdict", "Both answers are the same.")
    names = [each.text for each in user.all(".speeds .name")]
    speeds = [float(each.text.split()[0]) for each in user.all(".speeds .value")]
    assert names == ["hybrid", "autoregressive"]
    times = float(re.findall(r"hybrid was ([\d.]+) times as fast", user.one(".verdict").text)[0])
    assert times == pytest.approx(speeds[0] / speeds[1], rel=0.02)
    assert times > 2
    first, second = server.asked
    assert second == first | {"model": "autoregressive"}
    user.asks("More?")
    assert len(server.asked[-1]["messages"]) == 3  # the plain answer is no turn


@in_a_browser
def test_a_full_server_says_when_to_try_again(user: User, server: PageServer) -> None:
    server.busy = 2
    user.asks(until=".again")
    assert "100 requests are waiting" in user.one("article [role=alert]").text
    assert user.one(".again").text.startswith("Try again in")
    assert not user.one(".again").is_enabled()
    server.busy = None
    user.wait(lambda: user.one(".again").is_enabled())
    user.one(".again").click()
    user.wait(lambda: user.all(".compare"))
    assert user.one("article .tokens").text == WHOLE
    assert not user.all("article [role=alert]")


@in_a_browser
def test_a_connection_that_breaks(user: User, server: PageServer) -> None:
    server.broken_after = 2
    user.asks(until=".again")
    assert "The connection broke before the answer ended." in user.one("article").text
    assert user.one("article .tokens").text == "Leaves turn red when"
    server.broken_after = None
    user.asks("Next?")
    assert [each["content"] for each in server.asked[-1]["messages"]] == ["Next?"]


@in_a_browser
def test_a_server_with_a_key(user: User, server: PageServer) -> None:
    server.key = "secret"
    user.open(server)
    user.wait(lambda: user.one("#key").is_displayed())
    user.one("#key-value").send_keys("wrong\n")
    user.sees("#key-says", "The server refused this key.")
    user.one("#key-value").send_keys("secret\n")
    user.wait(lambda: len(user.all("#model option")) == 7)
    assert not user.one("#key").is_displayed()
    user.asks()
    assert user.runs("return Object.values(sessionStorage)") == ["secret"]
    assert user.runs("return localStorage.length + document.cookie.length") == 0
    assert "secret" not in user.driver.page_source


@in_a_browser
def test_the_key_is_not_asked_for_again_unless_needed(user: User, server: PageServer) -> None:
    server.key = "secret"
    user.open(server)
    user.wait(lambda: user.one("#key").is_displayed())
    user.one("#key-cancel").click()
    user.sees("#gone", "This server wants a key.")
    user.runs("""
        window.opened = window.asked = 0
        const show = HTMLDialogElement.prototype.showModal, ask = window.fetch
        HTMLDialogElement.prototype.showModal = function () { opened++; show.call(this) }
        window.fetch = (...all) => { asked++; return ask(...all) }
    """)
    user.wait(lambda: user.runs("return asked") > 1)
    assert user.runs("return opened") == 0
    user.one("#question").send_keys("Why?\n")
    user.wait(lambda: user.one("#key").is_displayed())
    user.one("#key-value").send_keys("secret\n")
    user.wait(lambda: user.all("article .facts:not(:empty)"))


@in_a_browser
def test_a_server_that_is_gone_and_comes_back(user: User, server: PageServer) -> None:
    server.stop()
    user.asks(until=".again")
    assert "The server does not answer." in user.one("article").text
    server.start()
    user.one(".again").click()
    user.wait(lambda: user.all(".compare"))


@in_a_browser
def test_every_control_has_a_name(user: User) -> None:
    user.asks()
    controls = user.all("button, input, select, textarea, [role=group]")
    names = {
        each.get_attribute("id") or each.get_attribute("class"): each.accessible_name
        for each in controls
        if each.is_displayed()
    }
    assert names == {
        "model": "Arm", "system": "System prompt", "temperature": "Temperature",
        "max-tokens": "Max tokens", "anew": "New conversation",
        "tokens": "Answer, token by token", "compare": "Compare with plain decoding",
        "marks": "Show colours", "question": "Question", "send": "Send",
    }  # fmt: skip


@in_a_browser
@pytest.mark.parametrize("width", [320, 390])
def test_a_narrow_screen_never_scrolls_sideways(user: User, server: PageServer, width: int) -> None:
    server.rounds = [*ROUNDS, (0, [("unbroken" * 30, "target")])]
    user.narrow(width)
    user.open(server)
    user.asks()
    user.one(".compare").click()
    user.sees(".verdict", "same")
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert user.runs(sideways) <= 0
