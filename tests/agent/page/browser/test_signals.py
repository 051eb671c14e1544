"""The signals on the first screen: drawn, read by pointer and keyboard, as tables, of one engine, and of the past."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.browser.script import now, opening, signals, stream

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab
    from tests.support.browser.scripted_server import ScriptedServer

# Each plot, and a colour of one of its lines.
PLOTS = {
    "requests": "accent",
    "ttft": "text",
    "queue": "warning",
    "loads": "past",
    "failed": "error",
    "held": "accent",
}
_HOSTILE = "<img src=x onerror=document.title='hit'>"
_NEWEST = "return Number(document.querySelector('#signal-requests .plot').getAttribute('aria-valuemax'))"
# How many columns of a plot's canvas, of a part of its width, have a colour of the page.
_PAINTED = """
const [plot, name, from, to] = arguments;
const canvas = document.querySelector(`#signal-${plot} canvas`);
const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
Object.assign(probe.canvas, {width: canvas.width, height: canvas.height});
probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
probe.fillRect(0, 0, 1, 1);
const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
const left = Math.floor(canvas.width * from), width = Math.floor(canvas.width * (to - from));
probe.clearRect(0, 0, 1, 1);
probe.drawImage(canvas, 0, 0);
const {data} = probe.getImageData(left, 0, width, canvas.height);
const columns = new Set();
for (let place = 0; place < data.length; place += 4) {
  if (data[place + 3] > 200 && Math.abs(data[place] - red) + Math.abs(data[place + 1] - green) + Math.abs(data[place + 2] - blue) < 30) {
    columns.add((place / 4) % width);
  }
}
return columns.size;
"""


def shown(tab: Tab, server: ScriptedServer, sent: dict[str, Any] | None = None, fragment: str = "") -> None:
    """Open the page of a server that sends some signals."""
    server.opening = opening(stream() | {"signals": sent or signals()})
    tab.open(server.address + fragment)
    tab.until(lambda: tab.texts("#signals canvas") or (fragment and tab.text("#signals")))


def legend(tab: Tab, plot: str) -> str:
    """Return what the legend of a plot says."""
    return " ".join(tab.text(f"#signal-{plot} .legend").split())


def press(tab: Tab, plot: str, *keys: str) -> None:
    """Press keys in a plot."""
    for key in keys:
        tab.js(
            "const plot = document.querySelector(`#signal-${arguments[0]} .plot`); plot.focus();"
            "plot.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1], bubbles: true, cancelable: true}))",
            plot,
            key,
        )


def told(tab: Tab, plot: str) -> str:
    """Return what a screen reader says of a plot's cursor."""
    return str(
        tab.js(
            "return document.querySelector(`#signal-${arguments[0]} .plot`).getAttribute('aria-valuetext')",
            plot,
        )
    )


def test_each_plot_is_drawn_with_its_newest_values(tab: Tab, server: ScriptedServer) -> None:
    """Lines are on each canvas, of gates a layer each; the legends have values with units, of a gate of nothing none."""
    shown(tab, server, signals(requests=[4.0] * 180, running=[31] * 180, bytesIn=[3.1e9] * 180))
    tab.until(lambda: all(tab.js(_PAINTED, plot, colour, 0, 1) > 50 for plot, colour in PLOTS.items()))
    for gate in ("queue", "transfer", "recompute"):
        assert tab.js(_PAINTED, "ttft", f"gate-{gate}", 0, 1) > 50, gate
    assert legend(tab, "requests") == "ended 4/s"
    assert "bytes in 3.1 GB/s" in legend(tab, "loads")
    assert legend(tab, "queue").startswith("running 31")
    assert "handshake queue" in legend(tab, "ttft")
    assert "encoder" not in legend(tab, "ttft")
    assert "of 3 engines together" in tab.text("#signals")


def test_what_is_not_known_is_a_gap_and_not_zero(tab: Tab, server: ScriptedServer) -> None:
    """No line goes through slots without a value, and the legend says so of the newest."""
    held = [0.5] * 60 + [None] * 60 + [0.5] * 59 + [None]
    shown(tab, server, signals(held=held))
    tab.until(lambda: tab.js(_PAINTED, "held", "accent", 0.15, 0.35) > 20)
    assert tab.js(_PAINTED, "held", "accent", 0.5, 0.6) == 0
    assert legend(tab, "held") == "held not known"


def test_the_newest_slots_go_on(tab: Tab, server: ScriptedServer) -> None:
    """A message of the newest slots replaces what is there of them; signals that stop are not taken for now."""
    shown(tab, server)
    server.say("signals", signals(slots=2, whole=False, requests=[7.0, 9.0]))
    tab.until(lambda: legend(tab, "requests") == "ended 9/s")
    server.say("signals", signals(now() - 60_000))
    tab.until(lambda: legend(tab, "requests") == "ended not known")


def test_no_failure_is_no_alarm(tab: Tab, server: ScriptedServer) -> None:
    """At zero the line of failures has no colour of an error, and the strip of minutes no bar."""
    messages = stream() | {"signals": signals(failed=[0] * 180, recomputed=[0] * 180)}
    messages["log"]["entries"], messages["history"]["minutes"] = [], []
    server.opening = opening(messages)
    tab.open(server.address)
    tab.until(lambda: tab.js(_PAINTED, "failed", "faint", 0.2, 1) > 50)
    assert tab.js(_PAINTED, "failed", "error", 0, 1) == 0
    assert tab.js("return document.querySelectorAll('.track rect').length") == 0


def test_the_keyboard_reads_and_goes_back(tab: Tab, server: ScriptedServer) -> None:
    """Arrows move the cursor of all plots by a slot; Enter shows that moment, with its values; l is now again."""
    sent = signals(requests=[float(slot) for slot in range(180)], running=list(range(180)))
    shown(tab, server, sent)
    press(tab, "requests", "End")
    tab.until(lambda: "ended 179/s" in told(tab, "requests"))
    press(tab, "requests", "ArrowLeft")
    tab.until(lambda: legend(tab, "requests") == "ended 178/s")
    press(tab, "requests", "ArrowLeft")
    tab.until(lambda: legend(tab, "queue").startswith("running 177"))
    # Time goes on under the cursor.
    server.say("signals", signals(now() + 10_000, slots=2, whole=False))
    tab.until(lambda: tab.js(_NEWEST) >= sent["from"] + 180 * sent["step"])
    assert legend(tab, "requests") == "ended 177/s"
    press(tab, "requests", "Enter")
    tab.until_text(".as-of", "as of")
    tab.js("document.activeElement.blur()")
    tab.until(lambda: legend(tab, "requests") == "ended 177/s")
    assert tab.js(_PAINTED, "held", "past", 0, 1) >= 1
    tab.js("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'l'}))")
    tab.until(lambda: tab.text(".here").strip() == "")
    tab.js("document.dispatchEvent(new KeyboardEvent('keydown', {key: 's'}))")
    assert tab.js("return document.activeElement.id") == "signals"


def test_the_pointer_reads_all_plots_and_a_click_goes_back(tab: Tab, server: ScriptedServer) -> None:
    """What is under the pointer is read out of each plot."""
    shown(tab, server, signals(requests=[5.0] * 90 + [2.0] * 90, running=[5] * 90 + [2] * 90))
    point = (
        "const over = document.querySelector('#signal-held .u-over'), box = over.getBoundingClientRect();"
        "for (const type of arguments[0]) { over.dispatchEvent(new MouseEvent(type, {bubbles: true,"
        " clientX: box.left + box.width / 4, clientY: box.top + box.height / 2})) }"
    )
    tab.js(point, ["mouseenter", "mousemove"])
    tab.until(lambda: legend(tab, "requests") == "ended 5/s" and legend(tab, "queue").startswith("running 5"))
    tab.js(point, ["mousedown", "mouseup", "click"])
    tab.until_text(".as-of", "as of")


def test_each_plot_has_its_table(tab: Tab, server: ScriptedServer) -> None:
    """It is made when it is opened, the newest first, at most 180 rows; axe finds nothing in it."""
    shown(tab, server, signals(requests=[3.0] * 179 + [None]))
    assert tab.js("return document.querySelectorAll('#signals tbody tr').length") == 0
    tab.js("document.querySelector('#signal-requests summary').click()")
    tab.until(lambda: len(tab.texts("#signal-requests tbody tr")) == 180)
    assert tab.texts("#signal-requests tbody tr td:nth-child(2)")[:2] == ["not known", "3/s"]
    assert tab.findings() == []


def test_changes_have_marks_that_are_said(tab: Tab, server: ScriptedServer) -> None:
    """A condition that begins between two screens, and a policy, stand in the table and in the key of signs."""
    messages = stream() | {"signals": signals()}
    causes = messages["screen"]["verdict"]["causes"]
    messages["log"]["entries"][0]["kind"] = "policy_applied"
    messages["screen"]["verdict"]["causes"] = []
    # In a slot that the signals have, whatever time goes by.
    messages["screen"]["now"] -= 20_000
    server.opening = opening(messages)
    tab.open(server.address)
    tab.until_text("#signals", "◆ a policy changes")
    server.say(
        "screen",
        messages["screen"]
        | {"now": now() - 10_000, "verdict": stream()["screen"]["verdict"] | {"causes": causes}},
    )
    tab.until_text("#signals", "▼ a condition begins")
    tab.js("document.querySelector('#signal-held summary').click()")
    tab.until_text("#signal-held tbody", "refuses connections")
    assert "◆ policy recompute-first" in tab.text("#signal-held tbody")


def test_a_filter_by_an_engine_shows_its_own(tab: Tab, server: ScriptedServer) -> None:
    """The plots say whose they are; a name is text; an error is a sentence."""
    server.details["signals"] = signals(engine=_HOSTILE, engines=1, requests=[6.0] * 180)
    shown(tab, server, fragment=f"#engine={_HOSTILE}")
    tab.until(lambda: tab.text("#signals") and legend(tab, "requests") == "ended 6/s")
    assert f"of {_HOSTILE}" in tab.text("#signals header")
    assert tab.js("return document.querySelectorAll('img').length") == 0
    assert tab.js("return document.title") == "Penstock"
    del server.details["signals"]
    tab.open(f"{server.address}#engine=gone")
    tab.until_text("#signals", "There is nothing of that name.")


def test_a_server_without_signals_leaves_one_line(tab: Tab, server: ScriptedServer) -> None:
    """An older server sends none."""
    server.opening = [message for message in opening(stream()) if message[0] != "signals"]
    tab.open(server.address)
    tab.until_text("#signals", "This server sends no signals")
    assert tab.js("return document.querySelector('#signals').getBoundingClientRect().height") < 40


def test_a_bundle_stands_still(tab: Tab, server: ScriptedServer) -> None:
    """Its window ends at its time, and its newest values stay the newest."""
    moment = now() - 86_400_000
    messages = stream(moment) | {"signals": signals(moment, requests=[3.0] * 180)}
    messages["hello"]["source"] = "bundle"
    server.opening = opening(messages)
    tab.open(server.address)
    tab.until(lambda: legend(tab, "requests") == "ended 3/s")
    tab.until(lambda: tab.js(_PAINTED, "requests", "accent", 0.5, 1) > 50)


def test_on_a_phone_nothing_is_cut_off_sideways_and_in_the_dark_lines_are_light(
    tab: Tab, server: ScriptedServer
) -> None:
    """One column at 390 pixels; a colour scheme that changes is drawn."""
    tab.size(390, 844)
    shown(tab, server)
    tab.js("document.querySelectorAll('#signals details').forEach((one) => { one.open = true; })")
    tab.until(lambda: len(tab.texts("#signals tbody tr")) == 6 * 180)
    assert tab.js("return document.scrollingElement.scrollWidth") <= 390
    lefts = tab.js(
        "return [...document.querySelectorAll('.plots article')].map((one) => one.getBoundingClientRect().left)"
    )
    assert len(set(lefts)) == 1
    tab.size(390, 844, dark=True)
    tab.until(lambda: tab.js(_PAINTED, "held", "accent", 0, 1) > 50)


def test_it_says_of_how_many_engines_the_numbers_are(tab: Tab, server: ScriptedServer) -> None:
    """Of those that are known now, and which are not counted at all; a server that does not tell is shown, too."""
    shown(tab, server, signals(known=[3] * 179 + [2], leftOut=1))
    tab.until_text("#signals .note", "of 2 of 3 engines together; 1 without room are not counted")
    older = {name: value for name, value in signals().items() if name not in {"known", "leftOut"}}
    shown(tab, server, older)
    tab.until_text("#signals .note", "of 3 engines together")
