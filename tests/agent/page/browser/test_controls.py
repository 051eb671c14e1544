"""What people do with the page: keys, clicks, the slider, copying, and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.agent.page.browser.test_layout import detail
from tests.support.browser.script import ENGINE, PEER, now, opening, stream

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab
    from tests.support.browser.scripted_server import ScriptedServer


def opened(
    tab: Tab, server: ScriptedServer, messages: dict[str, Any] | None = None, fragment: str = ""
) -> None:
    """Open the page and wait for its table."""
    server.opening = opening(messages or stream())
    tab.open(server.address + fragment)
    tab.until_text("#peers", "peer")
    tab.until_text("#fresh", "old")


def press(tab: Tab, *keys: str) -> None:
    """Press keys, one after the other."""
    ActionChains(tab.driver).send_keys(*keys).perform()


def focus(tab: Tab) -> str:
    """Return what has the focus: its id, else its text."""
    return str(tab.js("return document.activeElement.id || document.activeElement.textContent"))


def tab_to(tab: Tab, text: str, key: str = Keys.TAB) -> None:
    """Walk with the Tab key to what has a text."""
    for _ in range(80):
        press(tab, key)
        if focus(tab).strip() == text:
            return
    raise AssertionError(text)


def test_a_request_is_its_time_first(tab: Tab, server: ScriptedServer) -> None:
    """Then a sentence and its trace elsewhere; the rest unfolds, and nothing is cut where the screen is narrow."""
    said = detail()
    bar = {
        "side": "decode/0",
        "name": "penstock.request",
        "start": 1000,
        "end": 3000,
        "text": "peer=" + "x" * 90,
        "state": "ok",
    }
    gates = [
        {"gate": "queue", "start": 1000, "end": 1500},
        {"gate": "own_prefill", "start": 1500, "end": 2500},
    ]
    bars = {"kind": "waterfall", "title": "Where its time went", "start": 1000, "end": 4000, "sentence": ""}
    server.details["request"] = {
        **said,
        "sentences": ["It waited.", "It is long."],
        "sections": [
            {**bars, "rows": [{**bar, "gates": gates}]},
            {"kind": "text", "title": "Parts", "text": "all", "folded": True},
        ],
        "traceUrl": "https://jaeger.example.com/trace/1",
    }
    for width in (1280, 390):
        tab.size(width, 800)
        opened(tab, server, fragment="#open=request&open-id=r")
        tab.until_text("dialog .waterfall", "own prefill 1.00 s")
        assert (
            tab.js(
                "const [bars, first] = document.querySelectorAll('dialog .waterfall, dialog .inside > p'); return bars.tagName + first.textContent"
            )
            == "TABLEIt waited."
        )
        assert tab.texts("dialog details[open]") == []
        assert tab.js("const link = document.querySelector('dialog a'); return [link.href, link.rel]") == [
            "https://jaeger.example.com/trace/1",
            "noopener noreferrer",
        ]
        assert tab.js(
            "return [...document.querySelectorAll('dialog td > svg rect[fill]')].map((each) => each.getAttribute('width'))"
        ) == ["50", "100"]
        assert tab.js(
            "const found = document.querySelector('dialog .inside'); return found.scrollWidth <= found.clientWidth"
        )
    tab.size(1280, 800)


def test_keys_alone_filter_open_and_come_back(tab: Tab, server: ScriptedServer) -> None:
    """Every step from the first screen to a filtered one, to a detail and back needs no pointer."""
    server.details["peer"] = detail()
    opened(tab, server)
    press(tab, "2")
    assert focus(tab) == "peers"
    tab_to(tab, PEER)
    press(tab, Keys.ENTER)
    tab.until_text(".chips", PEER)
    assert tab.texts("#peers tbody th .name") == [PEER]
    assert "peer=10.0.0.12%3A5600" in tab.driver.current_url
    tab_to(tab, "9 failed in 1 min")
    press(tab, Keys.ENTER)
    tab.until_text("dialog", "It is connected.")
    assert tab.js("return document.querySelector('dialog').contains(document.activeElement)")
    press(tab, Keys.ESCAPE)
    tab.until(lambda: not tab.texts("dialog"))
    assert focus(tab).strip() == "9 failed in 1 min"
    press(tab, Keys.ESCAPE)
    tab.until(lambda: tab.texts(".chip") == [])
    assert "#" not in tab.driver.current_url
    press(tab, "?")
    tab.until_text("dialog", "Help and keys")
    press(tab, Keys.ESCAPE)
    tab.until(lambda: not tab.texts("dialog"))


def test_a_dialog_has_the_keys_as_soon_as_it_is_there(tab: Tab, server: ScriptedServer) -> None:
    """One that is pressed at once is not lost: it is modal before anything else runs."""
    opened(tab, server)
    modal = tab.js(
        "document.dispatchEvent(new KeyboardEvent('keydown', {key: '?'}));"
        "return Promise.resolve().then(() => document.querySelector('dialog').matches(':modal'))"
    )
    assert modal is True


def test_a_link_opens_the_page_as_it_was_sent(tab: Tab, server: ScriptedServer) -> None:
    """Filter and panel are in the address."""
    server.details["engine"] = detail()
    opened(tab, server, fragment=f"#engine={ENGINE}&open=engine&open-engine={ENGINE}")
    tab.until_text("dialog", "Engine a")
    assert tab.texts(".chip") == [f"engine {ENGINE} \u00d7"]
    assert len(tab.texts("#peers thead .name")) == 1


def test_each_click_filters_everything(tab: Tab, server: ScriptedServer) -> None:
    """Engine, peer and field each narrow peers, waits, failures, policy and causes; the verdict stays."""
    opened(tab, server)
    tab.js("document.querySelectorAll('#peers thead .name')[1].click()")
    tab.until_text(".chips", "serving/decode-1/0")
    assert tab.texts("#waits tbody tr") == []
    assert "hidden by the filter" in tab.text("#waits")
    assert tab.texts("#failures tbody tr") == []
    assert tab.texts(".causes li") == []
    assert "refuses" in tab.text("#verdict .sentence")
    tab.js("document.querySelector('.chip').click()")
    tab.until(lambda: len(tab.texts("#failures tbody tr")) == 3)
    tab.js(
        "[...document.querySelectorAll('#policy .name')].find((one) => one.textContent === 'quarantine.after').click()"
    )
    tab.until_text(".chips", "quarantine.after")
    assert len(tab.texts("#policy tbody tr")) == 1
    assert tab.texts("#peers thead .name") == ["serving/decode-1/0"]


def test_an_engine_that_is_none_of_the_worst_has_its_peers_in_its_details(
    tab: Tab, server: ScriptedServer
) -> None:
    """Where the filter leaves nothing of the table, it says where they are, and a click opens them."""
    server.details["engine"] = detail()
    opened(tab, server)
    tab.js("location.hash = 'engine=elsewhere%2F9'")
    tab.until_text("#peers .empty", "the peers of elsewhere/9 are in its details")
    tab.js("document.querySelector('#peers .empty .name').click()")
    tab.until_text("dialog", "It is connected.")


def test_a_past_moment_is_never_taken_for_now(tab: Tab, server: ScriptedServer) -> None:
    """The slider goes back by keys; what comes meanwhile does not show; the way back is one key."""
    messages = stream(now() - 30_000)
    opened(tab, server, messages)
    newer = stream()["screen"]
    newer["verdict"]["sentence"] = "nothing is wrong"
    server.say("screen", newer)
    tab.until_text("#verdict", "nothing is wrong")
    press(tab, "t", Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    tab.until_text(".as-of", "as of")
    assert "refuses" in tab.text("#verdict")
    place = tab.js("return document.getElementById('time').getBoundingClientRect().top")
    newest = stream()["screen"]
    newest["verdict"]["sentence"] = "something else"
    server.say("screen", newest)
    tab.until_text("#said", "something else")
    assert "refuses" in tab.text("#verdict")
    assert place == tab.js("return document.getElementById('time').getBoundingClientRect().top")
    tab.js("document.activeElement.blur()")
    press(tab, "l")
    tab.until_text("#verdict", "something else")
    assert tab.texts(".as-of") == []


def test_before_the_tab_there_are_counts_only(tab: Tab, server: ScriptedServer) -> None:
    """Of a time before the tab was opened the page has the journal's counts, and says that it has no more."""
    opened(tab, server)
    tab.js(
        "const time = document.getElementById('time'); time.value = +time.max - 210000; time.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    tab.until_text(".as-of", "This tab was opened at")
    assert tab.text("#verdict .sentence") == "The verdict of that time is not known to this tab."
    assert "8 failures, 2 deferrals" in tab.text("#peers")


def test_rows_do_not_jump_under_the_pointer(tab: Tab, server: ScriptedServer) -> None:
    """Rows keep their order while the pointer is among them, and take the new one when it leaves."""
    opened(tab, server)
    names = tab.texts("#peers tbody th .name")
    ActionChains(tab.driver).move_to_element(
        tab.driver.find_element(By.CSS_SELECTOR, "#peers tbody tr")
    ).perform()
    screen = stream()["screen"]
    screen["peers"]["rows"].reverse()
    screen["peers"]["rows"][1]["cells"][0]["text"] = "11 failed in 1 min"
    server.say("screen", screen)
    tab.until_text("#peers", "11 failed in 1 min")
    assert tab.texts("#peers tbody th .name") == names
    assert "order held" in tab.text("#peers")
    ActionChains(tab.driver).move_to_element(tab.driver.find_element(By.CSS_SELECTOR, "h1")).perform()
    tab.until(lambda: tab.texts("#peers tbody th .name") == list(reversed(names)))


def test_each_row_copies_its_command(tab: Tab, server: ScriptedServer) -> None:
    """The clipboard has the command; where the browser refuses it, the command is selected."""
    opened(tab, server)
    for part in (
        "#verdict",
        ".banners",
        "#peers tbody tr",
        "#waits tbody tr",
        "#failures tbody tr",
        "#policy tbody tr",
    ):
        assert tab.js("return document.querySelector(`${arguments[0]} .copy button`) !== null", part), part
    tab.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    tab.driver.find_element(By.CSS_SELECTOR, "#waits .copy button").click()
    tab.until_text("#waits .copy", "copied")
    copied = tab.driver.execute_async_script(
        "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
    )
    assert copied == "agentctl explain cmpl-91aa07be-0"
    tab.js(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined}); document.execCommand = () => false"
    )
    tab.driver.find_element(By.CSS_SELECTOR, "#policy .copy button").click()
    selected = (
        "const one = document.activeElement; return one.value?.slice(one.selectionStart, one.selectionEnd)"
    )
    tab.until(lambda: tab.js(selected) == "agentctl get policy recompute-first")


def test_a_page_that_reads_has_nothing_that_writes(tab: Tab, server: ScriptedServer) -> None:
    """Without ``--page-write`` no detail has a form."""
    for kind in ("engine", "peer", "policy"):
        server.details[kind] = detail()
        opened(tab, server, fragment=f"#open={kind}&open-engine=a&open-peer=b&open-name=c")
        tab.until_text("dialog", "It is connected.")
        assert tab.texts("form, textarea, .write") == []


def test_a_page_that_writes_says_where_a_link_comes_from(tab: Tab, server: ScriptedServer) -> None:
    """Instead of forms, in each detail that has some with a token."""
    messages = stream()
    messages["hello"]["token"] = "needed"
    for kind in ("engine", "peer", "policy"):
        server.details[kind] = detail()
        opened(tab, server, messages, fragment=f"#open={kind}&open-engine=a&open-peer=b&open-name=c")
        tab.until_text("dialog", "open the link that agentctl page prints")
        assert tab.texts("form, textarea, .write") == []


def test_a_request_is_asked_for_by_its_id_and_shown_escaped(tab: Tab, server: ScriptedServer) -> None:
    """A row shows the id without what cannot be printed; its click asks for the id itself."""
    messages = stream()
    shown, itself = "a\\u202eb", "a\u202eb"
    entry = messages["log"]["entries"][1]
    entry |= {"request": shown, "requestId": itself, "sentence": f"load of {shown} failed"}
    server.details["request"] = detail()
    opened(tab, server, messages)
    for part in ("#failures", "#waits"):
        tab.open(server.address)
        tab.until_text("#failures", shown)
        name = shown if part == "#failures" else "cmpl-91aa07be-0"
        tab.js(
            "[...document.querySelectorAll(`${arguments[0]} .name`)].find((one) => one.textContent === arguments[1]).click()",
            part,
            name,
        )
        tab.until_text("dialog", "It is connected.")
        assert tab.js("return document.querySelector('dialog').ariaLabel") == f"request {name}"
        asked = tab.js("return new URLSearchParams(location.hash.slice(1)).get('open-id')")
        assert asked == (itself if part == "#failures" else name)


def test_a_write_shows_first_what_it_would_do(tab: Tab, server: ScriptedServer) -> None:
    """Nothing is confirmed that was not tried as it stands, and no reason is no confirmation."""
    messages = stream()
    messages["hello"]["writable"] = True
    server.details["engine"] = detail()
    opened(tab, server, messages, f"#open=engine&open-engine={ENGINE}")
    tab.until_text("dialog", "It is connected.")
    assert tab.texts(".confirm") == []
    form = tab.driver.find_element(By.CSS_SELECTOR, ".write")
    form.find_element(By.TAG_NAME, "summary").click()
    form.find_element(By.NAME, "reason").send_keys("router upgrade")
    form.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    tab.until_text(".dry-run", "Dry run: nothing has changed. 2 engines would be changed")
    body = {"engine": ENGINE, "seconds": 600, "reason": "router upgrade"}
    assert server.writes == [("pause", body | {"dryRun": True}, "page")]
    form.find_element(By.NAME, "seconds").send_keys("0")
    tab.until(lambda: tab.texts(".confirm") == [])
    form.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    tab.until_text(".confirm", f"Pause {ENGINE}: “router upgrade”")
    form.find_element(By.CSS_SELECTOR, ".confirm").click()
    tab.until_text(".write", "2 engines is changed")
    assert server.writes[2:] == [("pause", body | {"seconds": 6000, "dryRun": False}, "page")]
    assert tab.texts(".confirm") == []
