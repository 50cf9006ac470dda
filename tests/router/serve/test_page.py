"""The server's page: its files as they are sent, and a question in a browser."""

import re
import shutil
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from endpoint_toys import events
from pydantic import SecretStr
from serve_toys import ASKED, CHAT, Served, served

from router.serve.app import Settings
from router.serve.page import FOLDER, TYPES

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1200,900",
)  # fmt: skip
FILES = sorted(FOLDER.iterdir())
KEY = "secret"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(Settings(api_key=SecretStr(KEY)), pause_s=0.005) as running:
        yield running


def get(server: Served, path: str, **headers: str) -> tuple[HTTPResponse, str]:
    """The path goes out as it is spelled."""
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response, response.read().decode()


# -- the files ------------------------------------------------------------------------------------


def test_every_file_is_sent_with_its_type_and_the_same_strict_policy(server: Served) -> None:
    """Without the key, which everything else on this server needs."""
    assert get(server, "/stats")[0].status == 401
    for path, file in [("/", "index.html"), *((f"/page/{each.name}", each.name) for each in FILES)]:
        response, text = get(server, path)
        assert response.status == 200
        assert text == (FOLDER / file).read_text(encoding="utf-8")
        assert response.headers["Content-Type"] == TYPES[Path(file).suffix]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(policy)
        assert not re.search(r"unsafe|\*|https?:|data:", "".join(policy))


def test_a_browser_that_has_a_file_is_not_sent_it_again(server: Served) -> None:
    first, _ = get(server, "/page/main.js")
    tag = first.headers["ETag"]
    for shown in (tag, f'"other", W/{tag}'):
        again, text = get(server, "/page/main.js", **{"If-None-Match": shown})
        assert (again.status, text) == (304, "")
    assert get(server, "/page/main.js", **{"If-None-Match": '"other"'})[0].status == 200
    assert get(server, "/page/chat.js", **{"If-None-Match": tag})[0].status == 200


def test_nothing_else_is_sent(server: Served) -> None:
    for path in (
        "/page/", "/page/none.js", "/page/../page.py", "/page/..%2fpage.py",
        "/page/%2e%2e%2fpage.py", "/page/..%5cpage.py", "/page/page/main.js", "/page//etc/passwd",
        "/page/main.js%00",
    ):  # fmt: skip
        response, text = get(server, path)
        assert response.status in (307, 404) and "import" not in text, path


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


class User:
    """Someone at the page. Elements are CSS selectors; what they wait for has ten seconds."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def wait(self, true: Callable[[], Any]) -> None:
        from selenium.common.exceptions import NoSuchElementException as Absent
        from selenium.common.exceptions import StaleElementReferenceException as Stale
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.driver, 10, 0.05, ignored_exceptions=(Absent, Stale))
        waiting.until(lambda _: true())

    def sees(self, selector: str, text: str) -> None:
        """Wait until one of the elements shows the text."""
        self.wait(lambda: any(text in each.text for each in self.all(selector)))

    def types(self, selector: str, text: str) -> None:
        self.wait(lambda: self.one(selector).is_displayed())
        self.one(selector).send_keys(text)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Nothing may be thrown and nothing be refused by the page's own policy."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("there is no chromium with its chromedriver on the path")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(executable_path=DRIVER))
    yield User(driver)
    said = [entry["message"] for entry in driver.get_log("browser")]
    driver.quit()
    assert not [each for each in said if "Uncaught" in each or "Security Policy" in each]


@pytest.mark.slow
def test_a_question_its_marks_and_a_comparison(server: Served, user: User) -> None:
    question = '<img src=x onerror="harm = 1">'
    asked = ASKED | {"messages": [{"role": "user", "content": question}], "explain": True}
    http = server.http(headers={"Authorization": f"Bearer {KEY}"})
    told = events(http.post(CHAT, json=asked | {"stream": True}))
    tokens = [token for each in told for token in each["draftpick"].get("tokens", [])]
    user.driver.get(server.url)
    user.types("#key-value", "wrong\n")
    user.sees("#key-says", "The server refused this key.")
    user.types("#key-value", f"{KEY}\n")
    user.wait(lambda: len(user.all("#model option")) == 5)
    assert KEY not in user.driver.page_source
    user.types("#max-tokens", str(ASKED["max_tokens"]))
    user.types("#question", f"{question}\n")
    user.wait(lambda: user.all(".compare"))
    assert user.one(".question").text == question and not user.all(".question img")
    spans = user.all("article .token")
    assert [
        (each.get_attribute("textContent"), each.get_attribute("data-by")) for each in spans
    ] == [(each["text"], each["by"]) for each in tokens]
    fills = {
        token["by"]: span.value_of_css_property("background-color")
        for token, span in zip(tokens, spans, strict=True)
    }
    assert len({*fills.values()}) == 3
    for by, fill in fills.items():  # the legend says the same
        assert user.one(f".legend .{by}").value_of_css_property("background-color") == fill
    user.one(".compare").click()
    user.sees(".verdict", "Both answers are the same.")
    assert [each.text for each in user.all(".speeds .name")] == ["copy", "autoregressive"]
    assert http.get("/stats").json()["arms"]["autoregressive"]["requests"] == 1
