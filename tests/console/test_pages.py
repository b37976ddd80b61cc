"""The console in a real browser: what each page shows, to whom, and what it lets them do (SPEC LOOK-8 to LOOK-10)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from deltamq.api.schemas.endpoint import CALLS as REGISTRY
from deltamq.jobs.export.definition import definition_of, save
from deltamq.jobs.export.plan import Plans
from tests.api.guarded import Guarded, guarded
from tests.api.routes.test_dead_letters import bury, letter
from tests.api.running import Api, config_for, running
from tests.console.chromium import chromium, needs_chromium
from tests.console.seeded import MARKUP, MARKUP_GROUP, NASTY_TOPIC, seed

pytestmark = needs_chromium
_AXE = Path(__file__).with_name("axe.min.js")
#: What a browser reports when a file or an address breaks the page's policy.
_WATCH = "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
_SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
_WIDE, _NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 844}


def _at(*parts: str, query: str = "") -> str:
    return "#/" + "/".join(quote(part, safe="") for part in parts) + query


_NASTY = f"{NASTY_TOPIC}@broker-a"
#: Every page and part of a page, with words that it shows to an administrator.
_PAGES = {
    "#/": "Groups with most to do",
    _at("topics"): "payments",
    _at("topics", query="?new=1"): "New topic",
    _at("topics", "orders"): "orders@broker-a",
    _at("topics", "static"): "Holes",
    _at("topics", "empty", "messages"): "This partition has no messages",
    _at("topics", "orders", "messages"): "order-",
    _at("topics", "orders", "messages", query="?how=search&key=order-7"): "All was looked at: 15 messages found",
    _at("topics", "orders", "messages", query="?how=tail"): "following",
    _at("topics", NASTY_TOPIC, "messages", query="?offset=0"): "<img src=x",
    _at("topics", NASTY_TOPIC, "messages", _NASTY, "0"): "Its life",
    _at("topics", "orders", "messages", "orders@broker-a", "0", query="?as=hex"): "00000000",
    _at("topics", "orders", "send"): "Deliver in, seconds",
    _at("topics", "orders", "groups"): "shipping",
    _at("topics", "orders", "settings"): "Delete the topic",
    _at("topics", "orders", "exports"): "amount is string here and double in lake.orders",
    _at("topics", "empty", "exports"): "No export of this topic is defined",
    _at("topics", "typed", "messages", "typed@broker-a", "0"): "Fields",
    _at("topics", "typed", "schema"): "Register the next one",
    _at("topics", "typed", "schema", query="?key=row-0"): "first",
    _at("topics", "typed", "quarantine"): "does not meet `minimum` of the schema",
    _at("topics", "typed", "quarantine", query="?code=not_json"): "Only",
    _at("groups"): MARKUP_GROUP,
    _at("groups", "billing"): "Lag by partition",
    _at("groups", "reports", "clients"): "reader-1",
    _at("groups", "billing", "in-flight"): "worker-2",
    _at("groups", "billing", "retries"): "Wait for their time",
    _at("groups", "idle", "retries"): "Nothing waits to be delivered again",
    _at("groups", "billing", "dead-letters"): "no such account",
    _at("groups", "billing", "reset"): "Show what that does",
    _at("groups", "billing", "settings"): "Delete the group",
    _at("groups", MARKUP_GROUP): MARKUP_GROUP,
    _at("delayed", query="?topic=orders.eu"): "remind 3",
    _at("jobs"): "revive runs nowhere",
    _at("cluster"): "Drain",
    _at("access"): "reader",
    _at("access", query="?tab=rules"): "subscribe",
    _at("access", query="?tab=keys"): "never",
    _at("access", query="?tab=quotas"): "No principal has a quota",
    _at("access", query="?tab=explain&principal=reader&verb=subscribe&name=orders"): "These rules allow it",
    _at("access", "reader"): "Quota of each process",
    _at("audit"): "PUT /v1/topics/{topic}",
    _at("audit", query="?tab=refusals"): "Refusals",
    _at("settings"): "service.auth",
    _at("settings", query="?tab=files"): "What differs",
    _at("nowhere"): "No such page",
}


@dataclass
class Seen:
    """A tab, and what went wrong in it."""

    page: Page
    base: str
    wrong: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def open(self, address: str) -> Page:
        """Go to an address of the console, as a link on its pages does."""
        self.page.evaluate("address => { location.hash = address; }", address)
        return self.page

    def shows(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=15_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("console"), authorization_ms=3_600_000) as found:

        def call(method: str, path: str, body: Any) -> Any:
            reply = found.call(method, path, body)
            assert reply.status in (200, 201), (method, path, reply)
            return reply.json

        seed(call)
        for reason in ("no such account", "amount is not a number", MARKUP[:100]):
            bury(found, "billing", *(letter("orders", number, key=b"order-7") for number in range(8)), reason=reason)
        store = found.service.warehouse.store
        export = save(store, definition_of("orders", "lake.orders", schema="amount DOUBLE"))
        Plans(store, export.id).failed(1_500, "amount is string here and double in lake.orders")
        wanted = {"topics": {"payments": {"partitions": 2, "retention_ms": 60_000}}, "groups": {MARKUP_GROUP: {}}}
        assert found.call("PUT", "/v1/applied", wanted).status == 200
        found.key("admin", until=(datetime.now(UTC) + timedelta(days=3)).isoformat())
        yield found


@pytest.fixture(scope="module")
def reader(admin: Guarded) -> Guarded:
    """A principal that may read topics and see groups, and change nothing."""
    admin.put_principal("reader", "shown on the page of access")
    admin.rule("reader", "topic", "*", "subscribe")
    admin.rule("reader", "group", "*", "describe")
    return admin.by(admin.key("reader")["key"])


def _tab(browser: Browser, api: Api, token: str | None, **context: Any) -> Seen:
    page = browser.new_context(viewport=_WIDE, **context).new_page()
    seen = Seen(page, f"http://127.0.0.1:{api.port}/")
    page.add_init_script(_WATCH)
    if token is not None:
        page.context.add_init_script(f"sessionStorage.setItem('deltamq.key', {json.dumps(token)})")
    page.on("pageerror", lambda error: seen.wrong.append(f"error: {error}"))
    page.on(
        "console",
        lambda message: (
            None
            if message.type != "error" or message.text.startswith("Failed to load resource")
            else seen.wrong.append(message.text)
        ),
    )
    page.on("request", lambda request: seen.asked.add(f"{request.method} {request.url}"))
    page.goto(seen.base)
    return seen


@pytest.fixture
def tab(browser: Browser, admin: Guarded, reader: Guarded) -> Iterator[Seen]:
    seen = _tab(browser, admin, admin.token)
    yield seen
    seen.page.unroute_all(behavior="ignoreErrors")
    seen.page.context.close()
    assert seen.wrong == []


def _axe(page: Page) -> list[str]:
    """Return what axe-core finds, each with the first place where it is."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(_AXE.read_text())  # as a debugger would: the page's own policy loads nothing of it
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {one['nodes'][0]['target']} {one['nodes'][0]['html'][:200]}" for one in found]


def _fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


# Each page, to each caller -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", _PAGES)
def test_look_10_each_page_passes_axe_in_both_schemes_and_widths(every: Seen, address: str) -> None:
    page = every.open(address)
    page.set_viewport_size(_WIDE)
    every.shows(_PAGES[address])
    found: dict[str, list[str]] = {}
    for size in (_WIDE, _NARROW):
        page.set_viewport_size(size)
        for scheme in _SCHEMES:
            page.emulate_media(color_scheme=scheme)
            found[f"{scheme} {size['width']}"] = _axe(page)
        assert _fits(page), f"{size['width']}: wider than the screen"
    assert found == {"light 1400": [], "dark 1400": [], "light 390": [], "dark 390": []}
    assert every.wrong == []


@pytest.fixture(scope="module")
def every(browser: Browser, admin: Guarded, reader: Guarded) -> Iterator[Seen]:
    """One tab for the tour through all pages."""
    seen = _tab(browser, admin, admin.token)
    yield seen
    seen.page.context.close()


def test_look_10_who_may_only_read_is_shown_no_button_that_changes(reading: Seen) -> None:
    wanted = {
        _at("topics"): "payments",
        _at("topics", "orders"): "orders@broker-a",
        _at("topics", "orders", "messages", "orders@broker-a", "0"): "Its life",
        _at("topics", "orders", "settings"): "best_tried",
        _at("topics", query="?new=1"): "payments",
        _at("topics", "orders", "send"): "You may not send to this topic",
        _at("groups", "billing"): "Lag by partition",
        _at("groups", "billing", "reset"): "You may not reset this group",
        _at("groups", "billing", "settings"): "Deliveries at most",
        _at("groups", "billing", "dead-letters"): "Dead letters is not shown to you",
        _at("delayed", query="?topic=orders.eu"): "remind 3",
        _at("jobs"): "The list of jobs is not shown to you",
        _at("access"): "reader",
        _at("audit"): "The audit is not shown to you",
        _at("settings"): "What this process runs with is not shown to you",
    }
    words = "new topic|create|send|delete|close|reset|pause|cancel|drain|remove|revoke|^change"
    changes = re.compile(words, re.IGNORECASE)
    for address, text in wanted.items():
        page = reading.open(address)
        reading.shows(text)
        assert [one.inner_text() for one in page.get_by_role("button", name=changes).all()] == [], address
        assert page.get_by_role("link", name=re.compile("^(Send|Reset)$")).count() == 0, address
        if len(address) < len("#/settings"):  # the pages that differ most from an administrator's
            assert _axe(page) == [], address


@pytest.fixture
def reading(browser: Browser, admin: Guarded, reader: Guarded) -> Iterator[Seen]:
    seen = _tab(browser, admin, reader.token, color_scheme="dark")
    yield seen
    seen.page.context.close()
    assert seen.wrong == []


def test_without_authentication_it_says_so_on_every_page(browser: Browser, tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        seen = _tab(browser, api, None, color_scheme="light")
        seen.page.set_viewport_size(_NARROW)
        for address, text in {
            "#/": "No group consumes yet",
            "#/topics": "No topics yet",
            "#/groups": "No groups yet",
            "#/access": "This service asks nobody for a key",
            "#/audit": "set service.audit",
        }.items():
            seen.open(address)
            seen.shows(text)
            seen.shows("Without authentication: anyone who can reach this port")
            assert _axe(seen.page) == [] and _fits(seen.page), address
        seen.page.get_by_role("button", name="Menu").click()
        seen.page.get_by_role("link", name="Cluster").click()
        seen.shows("Brokers")
        seen.page.context.close()
        assert seen.wrong == []


def test_a_key_is_asked_for_kept_for_the_tab_and_forgotten(browser: Browser, admin: Guarded) -> None:
    seen = _tab(browser, admin, None)
    page = seen.page
    seen.shows("This service asks for a key.")
    assert _axe(page) == []
    page.get_by_label("Key, or a token").fill("no key at all!")
    page.get_by_role("button", name="Use").click()
    seen.shows("A key has letters, digits")
    page.get_by_label("Key, or a token").fill("mqk_0011223344556677_" + "a" * 43)
    page.get_by_role("button", name="Use").click()
    seen.shows("The key is refused")
    page.get_by_label("Key, or a token").fill(admin.token or "")
    page.get_by_role("button", name="Use").click()
    seen.shows("Groups with most to do")
    page.reload()
    seen.shows("Groups with most to do")
    page.get_by_role("button", name="Forget the key").click()
    seen.shows("This service asks for a key.")
    assert page.evaluate("Object.keys(sessionStorage).length + Object.keys(localStorage).length") == 0
    page.context.close()
    assert seen.wrong == []


# Addresses ------------------------------------------------------------------------------------------------------------


def test_look_08_each_state_has_an_address_and_back_goes_back(tab: Seen, admin: Guarded) -> None:
    page = tab.page
    page.get_by_role("link", name="Topics", exact=True).click()
    page.get_by_label("Find").fill("ord")
    tab.shows("2 of 7 topics")
    page.get_by_role("button", name="Messages").click()
    expect(page.get_by_role("columnheader", name="Messages")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("link", name="orders", exact=True).click()
    page.get_by_role("navigation", name="Parts of the topic").get_by_role("link", name="Messages").click()
    page.get_by_label("From offset").fill("7")
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.get_by_role("row").nth(1).get_by_role("link")).to_have_text("7")
    address = page.url
    assert "offset=7" in address and "partition=orders" in address
    page.get_by_role("link", name="7", exact=True).click()
    tab.shows("Its life")
    assert page.title().startswith("Message 7")
    page.go_back()
    expect(page.get_by_label("From offset")).to_have_value("7")
    page.reload()
    expect(page.get_by_label("From offset")).to_have_value("7")
    assert page.url == address
    page.go_back()
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    page.go_back()
    tab.shows("2 of 7 topics")
    expect(page.get_by_role("columnheader", name="Messages")).to_have_attribute("aria-sort", "descending")


def test_look_08_an_address_of_nothing_says_so_and_no_address_breaks_a_page(tab: Seen) -> None:
    for address in (
        _at("topics", "orders", "nothing"),
        _at("topics", "orders", "messages", "orders@broker-a"),
        _at("topics", "orders", "messages", "orders@broker-a", "no number"),
        _at("topics", "orders", "messages", "orders@broker-a", "-1"),
        _at("groups", "billing", "nothing"),
        _at("constructor"),
    ):
        tab.open("#/")
        tab.shows("Groups with most to do")
        tab.open(address)
        tab.shows("Nothing is at this address.")
    tab.open(_at("topics", "orders", "messages", query="?how=constructor&offset=0"))
    tab.shows("order-")
    tab.open(_at("groups", "billing", query="?range=constructor"))
    tab.shows("Lag by partition")


def test_look_08_it_asks_nothing_but_the_public_rest_of_its_service(every: Seen, admin: Guarded) -> None:
    for address, text in _PAGES.items() if len(every.asked) < 80 else ():  # unless another test was there
        every.open(address)
        every.shows(text)
    document = admin.call("GET", "/openapi.json").json["paths"]
    calls = {(method.upper(), path) for path, methods in document.items() for method in methods}
    calls |= {(method, path) for method, path in (call.split(" ") for call in REGISTRY)}
    shapes = [(method, re.compile(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path)))) for method, path in calls]
    assert len(every.asked) > 80
    for method, url in (one.split(" ", 1) for one in every.asked):
        assert url.startswith(every.base)
        path = urlsplit(url).path
        is_file = method == "GET" and path.startswith("/console/")
        assert (
            is_file or path == "/v1/history" or any(method == one and shape.fullmatch(path) for one, shape in shapes)
        ), url


def test_it_asks_little_and_nothing_while_it_is_hidden(tab: Seen) -> None:
    page = tab.page
    page.clock.install()
    page.reload()
    for address in ("#/", _at("topics"), _at("topics", "orders"), _at("groups", "billing"), _at("jobs")):
        tab.open(address)
        page.clock.run_for(1_000)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        asked: list[str] = []
        page.on(
            "request", lambda request, asked=asked: asked.append(request.url) if "healthz" not in request.url else None
        )
        for _ in range(12):
            page.clock.run_for(5_000)
            page.evaluate("fetch('healthz')")  # by then what was asked before is answered
        assert 3 < len(asked) < 130, (address, len(asked))
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")
    page.clock.run_for(60_000)  # what had begun ends
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(120_000)
    assert asked == []
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert asked


# What messages hold, and what is done with them -----------------------------------------------------------------------


def test_look_09_what_messages_hold_is_shown_as_text(tab: Seen, admin: Guarded) -> None:
    page = tab.open(_at("topics", NASTY_TOPIC, "messages", _NASTY, "0"))
    expect(page.get_by_role("region", name="Body")).to_have_text(MARKUP)
    expect(page.get_by_role("region", name="Headers")).to_contain_text(MARKUP)
    tab.open(_at("groups", "billing", "dead-letters"))
    tab.shows(MARKUP[:60])
    tab.open(_at("groups", MARKUP_GROUP, "in-flight"))
    tab.shows("<b>client</b>")
    tab.open(_at("groups", MARKUP_GROUP, "clients"))
    tab.shows("<b>client</b>")
    tab.open(_at("topics", NASTY_TOPIC, "exports"))
    expect(page.get_by_text(f"deltamq jobs export add --topic '{NASTY_TOPIC}' --to")).to_be_visible()
    assert page.locator("img, main script, main b:text-is('client')").count() == 0
    tab.open(_at("topics", NASTY_TOPIC, "messages", _NASTY, "1"))
    body = page.get_by_role("region", name="Body")
    expect(body).to_contain_text(
        "bell \u2407, null \u2400, escape \u241b[31m, turned \u27e8U+202E\u27e9text\u27e8U+202C\u27e9, two\nlines"
    )
    tab.open(_at("topics", NASTY_TOPIC, "messages", _NASTY, "2"))
    expect(body).to_contain_text("00000000  00 01 02 03")
    assert "run" not in page.title()


def test_look_09_a_large_body_is_shown_in_part_and_whole_when_asked(tab: Seen) -> None:
    page = tab.open(_at("topics", NASTY_TOPIC, "messages", _NASTY, "3"))
    more = page.get_by_role("button", name="Show the other 960.0 KiB")
    expect(more).to_be_visible()
    body = page.get_by_role("region", name="Body")
    assert len(body.inner_text()) < 70_000
    more.click()
    expect(more).to_be_hidden()
    assert "12345678901234567890" in body.inner_text(), "numbers are shown as they were written"
    tab.open(_at("topics", NASTY_TOPIC, "messages", _NASTY, "4"))
    expect(body).to_contain_text(re.compile(r"\[\s*\[\s*\["))
    tab.open(_at("topics", NASTY_TOPIC, "messages", _NASTY, "7"))
    expect(page.get_by_role("region", name="Headers")).to_contain_text("header-59")


def test_look_09_any_time_is_shown(tab: Seen) -> None:
    time = ""
    shown = {
        "": "order-",
        "0000-01-01T00:00:00.000000Z": "-001-12-31|0000-01-0|0000-01-01T",
        "9999-12-31T23:59:59.999999Z": "9999-12-31|10000-01-01",
        "no time": "no time",
    }

    def answered(route: Route) -> None:
        reply = route.fetch()
        told = reply.json()
        for one in told.get("messages", []):
            one |= {"append_time": time, "born_time": time, "deliver_time": time}
        route.fulfill(response=reply, json=told)

    tab.page.route("**/messages?*", answered)
    for time in shown:
        page = tab.open(_at("topics", "orders", "messages", "orders@broker-a", "0"))
        tab.shows("Its life")
        expect(page.get_by_text(re.compile(shown[time])).first).to_be_visible()
        tab.open(_at("topics", "orders", "messages", query="?offset=0&partition=orders%40broker-a"))
        tab.shows("order-")


def test_look_09_a_change_asks_once_and_says_how_many_it_concerns(tab: Seen, admin: Guarded) -> None:
    page, dialog = tab.page, tab.page.get_by_role("dialog")
    tab.open(_at("groups", "billing", "dead-letters", query="?reason=no+such+account"))
    page.get_by_role("button", name="Send back", exact=True).click()
    expect(dialog).to_contain_text("8 dead letters (reason no such account)")
    dialog.get_by_role("button", name="Cancel").click()
    assert admin.call("GET", "/v1/groups/billing/dead-letters/counts").json["sent_back"] == 0
    page.get_by_role("button", name="Send back", exact=True).click()
    dialog.get_by_role("button", name="Send back 8").click()
    tab.shows("8 letters sent back.")
    assert admin.call("GET", "/v1/groups/billing/dead-letters/counts").json["sent_back"] == 8
    tab.open(_at("groups", "billing", "dead-letters", query="?reason=amount+is+not+a+number"))
    # A choice among the rows of before is gone when the others come.
    letters = page.get_by_role("row").filter(has=page.get_by_role("checkbox"), has_text="amount is not a number")
    letters.first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog).to_contain_text("1 dead letter (chosen)")
    dialog.get_by_role("button", name="Delete 1").click()
    tab.shows("1 letter deleted.")
    tab.open(_at("groups", "billing", "retries"))
    page.get_by_role("row").filter(has_text="waiting").first.get_by_role("button", name="Dead letter").click()
    expect(dialog).to_contain_text("for delivery 2, becomes a dead letter")
    dialog.get_by_label("Why").fill("no such ship")
    dialog.get_by_role("button", name="Bury 1 message").click()
    tab.shows("The message becomes a dead letter.")
    page.get_by_role("row").filter(has_text="waiting").first.get_by_role("button", name="Now").click()
    dialog.get_by_role("button", name="Bring 1 message forward").click()
    tab.shows("The message comes as soon as the job revive runs.")
    waiting = admin.call("GET", "/v1/groups/billing/retries").json["messages"]
    assert [one["state"] for one in waiting].count("waiting") == 1
    tab.open(_at("groups", "billing", "reset"))
    page.get_by_role("button", name="Show what that does").click()
    moved = admin.call("POST", "/v1/groups/billing/topics/orders/offsets/reset", {"to": "first", "plan": True}).json
    total = sum(one["messages"] for one in moved["offsets"].values())
    page.get_by_role("button", name="Reset", exact=True).click()
    expect(dialog).to_contain_text(f"{total} messages are delivered again.")
    dialog.get_by_role("button", name=f"Reset {total} messages").click()
    tab.shows("billing goes on where it was reset to.")
    tab.open(_at("delayed", query="?topic=orders.eu"))
    page.get_by_role("row").nth(1).get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel 1 message").click()
    tab.shows("reminder/0 is cancelled.")
    done = {(act["call"], act["outcome"]) for act in admin.call("GET", "/v1/audit?limit=1000").json["acts"]}
    assert ("POST /v1/groups/{group}/dead-letters/replay", "done") in done
    assert ("DELETE /v1/groups/{group}/dead-letters", "done") in done
    assert ("POST /v1/groups/{group}/topics/{topic}/offsets/reset", "done") in done


def test_look_28_a_table_says_how_to_get_its_rows_without_the_console(tab: Seen) -> None:
    for address, source, text in (
        (_at("delayed", query="?topic=orders.eu"), "SQL: mq_delayed", "topic = 'orders.eu' ORDER BY deliver_time"),
        (_at("access", "reader"), "SQL: mq_state_keys", "WHERE principal = 'reader'"),
        (
            _at("topics", "orders", "settings"),
            "REST: GET /v1/topics/{topic}/retention",
            "deltamq topic retention orders",
        ),
        (_at("settings", query="?tab=files"), "REST: GET /v1/applied", "deltamq describe --drift"),
    ):
        tab.open(address)
        tab.page.get_by_text(source, exact=True).click()
        tab.shows(text)


def test_look_26_a_topic_that_keeps_less_says_how_many_messages_go(tab: Seen, admin: Guarded) -> None:
    page, dialog = tab.page, tab.page.get_by_role("dialog")
    admin.put_topic("brief", partitions=1)
    for body in ("first", "second", "third"):
        assert admin.send("brief", body * 1_000).status == 200
    kept, limit = page.get_by_label("Keep messages for, in days"), page.get_by_label("Keep at most, in MiB")
    tab.open(_at("topics", "brief", "settings"))
    limit.fill("0.000001")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(dialog).to_contain_text("2 messages of brief are older or more than that")
    dialog.get_by_role("button", name="Cancel").click()
    assert admin.call("GET", "/v1/topics/brief").json["retention_bytes"] == -1
    limit.fill("")
    kept.fill("30")
    page.get_by_role("button", name="Change", exact=True).click()
    tab.shows("The topic is changed.")
    expect(dialog).to_have_count(0)
    kept.fill("1")
    page.get_by_role("button", name="Change", exact=True).click()
    dialog.get_by_role("button", name="Change, 0 messages go").click()
    expect(dialog).to_have_count(0)
    assert admin.call("GET", "/v1/topics/brief").json["retention_ms"] == 86_400_000
    assert admin.call("DELETE", "/v1/topics/brief").status == 204


def test_type_6_what_did_not_fit_is_seen_sent_again_and_deleted(tab: Seen, admin: Guarded) -> None:
    page, dialog, path = tab.page, tab.page.get_by_role("dialog"), "/v1/topics/typed/quarantine"
    tab.open(_at("topics", "typed", "quarantine"))
    expect(page.get_by_role("navigation", name="Parts of the topic")).to_contain_text("Quarantine")
    page.get_by_role("row").filter(has_text="note").get_by_role("checkbox").check()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog).to_contain_text("1 chosen message")
    dialog.get_by_role("button", name="Delete 1 chosen message").click()
    tab.shows("1 message deleted.")
    assert len(admin.call("GET", path).json["messages"]) == 3
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(dialog).to_contain_text("Of 3 messages (all), those that fit")
    dialog.get_by_role("button", name="Send 3 messages again").click()
    tab.shows("0 messages sent again. 3 messages stay: not_allowed.")
    page.get_by_role("row").filter(has_text="not_json").locator("time").click()
    expect(page.get_by_label("A message in quarantine")).to_contain_text("is not JSON")
    tab.open(_at("topics", "typed", "schema", query="?key=row-0"))
    expect(page.get_by_role("region", name="Value")).to_contain_text('"note": "first"')
    expect(page.get_by_role("region", name="Schema")).to_contain_text('"minimum": 1')
    tab.open(_at("topics", "typed", "messages", "typed@broker-a", "0"))
    expect(page.get_by_role("region", name="Fields")).to_contain_text('"big": 9007199254740993')
    tab.open(_at("topics", "typed", "schema", query="?key=nothing"))
    tab.shows("No message has this key, or the newest one has no value.")


def test_look_09_a_topic_is_deleted_by_typing_its_name(tab: Seen, admin: Guarded) -> None:
    admin.put_topic("to-delete", partitions=2)
    assert admin.send("to-delete", "a", "b", "c").status == 200
    page, dialog = tab.open(_at("topics", "to-delete", "settings")), tab.page.get_by_role("dialog")
    page.get_by_role("button", name="Delete the topic").click()
    expect(dialog).to_contain_text("3 messages in 2 partitions are deleted")
    yes = dialog.get_by_role("button", name="Delete the topic")
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill("to-delet")
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill("to-delete")
    yes.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    assert admin.call("GET", "/v1/topics/to-delete").status == 404


def test_send_14_a_topics_commit_window_is_seen_and_changed(tab: Seen, admin: Guarded) -> None:
    admin.put_topic("windows", partitions=1)
    page = tab.open(_at("topics", "windows", "settings"))
    window = page.get_by_label("Commit window")
    expect(window).to_have_attribute("placeholder", "as the service")
    window.fill("300")
    page.get_by_role("button", name="Change", exact=True).click()
    tab.shows("The topic is changed.")
    tab.shows("300 ms")
    assert admin.call("GET", "/v1/topics/windows").json["commit_window_ms"] == 300


def test_a_message_is_sent_found_as_it_comes_and_sent_again(tab: Seen, admin: Guarded) -> None:
    admin.put_topic("fresh", partitions=1)
    page = tab.open(_at("topics", "fresh", "messages", query="?how=tail"))
    tab.shows("following")
    with tab.page.context.new_page() as other:
        other.goto(tab.base + _at("topics", "fresh", "send"))
        other.get_by_label("Body").fill('{"hello": 1}')
        other.get_by_role("textbox", name="Key").fill("key-1")
        other.get_by_label("Headers").fill("region: eu\nnote: a: b")
        other.get_by_role("button", name="Send", exact=True).click()
        expect(other.get_by_role("link", name="fresh@broker-a at 0")).to_be_visible()
    expect(page.get_by_role("row").nth(1)).to_contain_text("key-1")
    page.get_by_role("row").nth(1).get_by_role("link").click()
    expect(page.get_by_role("region", name="Headers")).to_contain_text("a: b")
    page.get_by_role("button", name="Send again").click()
    page.get_by_role("button", name="Send 1 message").click()
    tab.shows("Sent again: fresh@broker-a at 1.")
    (first, second) = admin.fetch("fresh", "fresh@broker-a").json["messages"]
    assert {**first, "offset": 1} | {
        name: second[name] for name in ("append_time", "born_time", "message_id")
    } == second


def test_a_group_is_paused_and_resumed(tab: Seen, admin: Guarded) -> None:
    page = tab.open(_at("groups", "idle"))
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Why").fill("the bank is closed")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    tab.shows("paused: the bank is closed")
    tab.open("#/")
    tab.shows("is paused by admin")
    tab.open(_at("groups", "idle"))
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    tab.shows("idle goes on.")
    assert admin.call("GET", "/v1/groups/idle").json["paused"] is None


def test_what_is_typed_stays_while_numbers_change(tab: Seen, admin: Guarded) -> None:
    tab.page.clock.install()
    page = tab.open(_at("topics", "payments", "messages"))
    page.get_by_label("From offset").fill("7")
    assert admin.send("payments", "one more").status == 200
    with page.expect_response(re.compile("/v1/topics/payments$")):
        page.clock.run_for(6_000)
    expect(page.get_by_role("option", name="26").or_(page.get_by_role("option", name="27")).first).to_be_attached()
    expect(page.get_by_label("From offset")).to_have_value("7")


def test_ten_thousand_topics_are_a_few_rows_at_a_time(tab: Seen) -> None:
    names = [f"topic-{number:05}" for number in range(10_000)]
    tab.page.route("**/v1/topics", lambda route: route.fulfill(json={"topics": names}))
    page = tab.open(_at("topics"))
    tab.shows("10,000 topics")
    expect(page.get_by_role("link", name="topic-00000")).to_be_visible()
    assert page.locator("tbody tr").count() < 80
    page.get_by_role("region", name="Topics").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(page.get_by_role("link", name="topic-09999")).to_be_visible()
    page.get_by_label("Find").fill("topic-0777")
    tab.shows("10 of 10,000 topics")


def test_look_22_the_calls_of_an_object_store_and_their_price(tab: Seen) -> None:
    def answered(route: Route) -> None:
        reply = route.fetch()
        recent = [{"operation": "put", "requests": 900, "bytes": 1}, {"operation": "get", "requests": 225, "bytes": 1}]
        use = {"seconds": 5_000.0, "operations": recent, "recent_seconds": 90.0, "recent": recent}
        use |= {"prices": "s3-standard", "dollars_a_month": 133.7654, "dollars_a_gib": 0.2}
        route.fulfill(response=reply, json=reply.json() | {"store": use})

    tab.page.route("**/v1/cluster", answered)
    tab.open(_at("cluster"))
    tab.page.reload()
    tab.shows("13 a second by this process, $133.77 a month (s3-standard)")


def test_rows_keep_their_places_under_the_pointer(tab: Seen) -> None:
    lags = {"billing": 5, "shipping": 9}

    def answered(route: Route) -> None:
        reply = route.fetch()
        told, group = reply.json(), urlsplit(route.request.url).path.rpartition("/")[2]
        partition = {"partition": "orders@broker-a", "retry": False, "lag": lags.get(group, 0), "in_flight": 0}
        told |= {"topics": [{"topic": "orders", "lag": partition["lag"], "partitions": [partition]}], "members": []}
        route.fulfill(response=reply, json=told)

    tab.page.route(re.compile(r"/v1/groups/\w+$"), answered)
    tab.page.clock.install()
    tab.page.reload()
    page = tab.page
    first = page.get_by_role("region", name="Groups with most to do").get_by_role("row").nth(1)
    expect(first).to_contain_text("shipping")
    first.hover()
    lags["billing"] = 99
    page.clock.run_for(40_000)
    expect(page.get_by_role("row").filter(has_text="99")).to_be_visible()
    expect(first).to_contain_text("shipping")
    page.mouse.move(0, 0)
    lags["billing"] = 100
    page.clock.run_for(40_000)
    expect(first).to_contain_text("billing")


# What is wrong --------------------------------------------------------------------------------------------------------


def test_the_overview_begins_with_what_is_wrong_and_what_can_be_done(tab: Seen, admin: Guarded) -> None:
    """A worker died, a partition is damaged, a broker has no process, a job fails, dead letters grow."""
    stopped = {
        "space": "topics",
        "topic": "orders",
        "partition": "orders@broker-a",
        "queue": None,
        "code": "corrupt",
        "detail": "the commit file is cut off",
    }

    def cluster(told: Any) -> None:
        told["stopped"] = [stopped]
        told["brokers"][1] |= {"online": False, "address": None, "host": None}

    def jobs(told: Any) -> None:
        told["jobs"][0] |= {"ok": False, "missing": None, "failures": 3, "detail": "No space left on device"}

    def in_flight(told: Any) -> None:
        for one in told["messages"]:
            one["visible_time"] = "2020-01-01T00:00:00.000000Z"

    def old(told: Any) -> None:
        told["created_time"] = "2020-01-01T00:00:00.000000Z"

    def grown(told: Any) -> None:
        now = datetime.now(UTC)
        points = [[(now - timedelta(minutes=ago)).isoformat(), value] for ago, value in ((20, 9), (9, 2), (6, 4))]
        told["series"] = [{"metric": "dead_letters", "labels": {"group": "billing"}, "points": points}]

    def changed(change: Callable[[Any], None]) -> Callable[[Route], None]:
        def answered(route: Route) -> None:
            reply = route.fetch()
            told = reply.json()
            change(told)
            route.fulfill(response=reply, json=told)

        return answered

    page, dead = tab.page, admin.call("GET", "/v1/groups/billing/dead-letters/counts").json["new"]
    page.route("**/v1/cluster", changed(cluster))
    page.route("**/v1/jobs", changed(jobs))
    page.route("**/v1/groups/shipping/in-flight?*", changed(in_flight))
    page.route("**/v1/groups/billing", changed(old))
    page.route("**/v1/history?metric=dead_letters*", changed(grown))
    page.reload()
    found = page.get_by_role("listitem")
    for text in (
        "orders@broker-a of orders has stopped",
        "No process serves broker broker-b",
        "No job revive runs: messages that are not acknowledged in time do not come again",
        "fails (3 times): No space left on device",
        re.compile("messages of shipping are overdue"),
        f"Dead letters of billing grow: {dead - 2} more in 15 min",
        re.compile(r"Key [0-9a-f]+ of admin\s+ends\s+at"),
        "1 thing differs from the files that were applied",
    ):
        expect(found.filter(has_text=text)).to_be_visible()
    expect(found.filter(has_text="No job revive runs").get_by_text("deltamq jobs run")).to_be_visible()
    assert _axe(page) == []
    found.filter(has_text=re.compile("shipping are overdue")).get_by_role("link", name="Look").click()
    tab.shows("Overdue messages come again when the job revive next runs")


def test_a_job_that_stops_is_seen_before_the_service_calls_it_missing(tab: Seen) -> None:
    def running(route: Route) -> None:
        reply = route.fetch()
        told = reply.json()
        for one in told["jobs"]:
            one |= {"missing": None, "ok": True, "every_s": 0.25, "seconds": 0.1, "started_at": started[0]}
        route.fulfill(response=reply, json=told)

    started = ["2026-01-01T00:00:00.000000Z"]
    page = tab.page
    page.route("**/v1/jobs", running)
    page.clock.install()
    page.reload()
    tab.shows("Groups with most to do")
    silent = page.get_by_role("listitem").filter(has_text="Job revive has not run again for")
    with page.expect_response("**/v1/jobs"):
        page.clock.run_for(4_000)
    expect(silent).to_be_hidden()
    page.clock.run_for(9_000)
    expect(silent).to_be_visible()
    started[0] = "2026-01-01T00:00:15.000000Z"
    with page.expect_response("**/v1/jobs"):
        page.clock.run_for(4_000)
    expect(silent).to_be_hidden()


def test_one_topic_in_trouble_is_shown_with_its_problem(tab: Seen) -> None:
    problem = {"status": 503, "code": "corrupt", "detail": "the metadata of orders is damaged", "title": "", "type": ""}
    tab.page.route(re.compile("/v1/topics/orders$"), lambda route: route.fulfill(status=503, json=problem))
    tab.page.route(re.compile("/v1/groups/idle$"), lambda route: route.fulfill(status=503, json=problem))
    page = tab.open(_at("topics"))
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders", exact=True))
    expect(row).to_contain_text("the metadata of orders is damaged")
    expect(page.get_by_role("row").filter(has_text="payments")).to_contain_text("KiB")
    tab.open("#/")
    tab.shows("Group idle cannot be shown: the metadata of orders is damaged")
    tab.open(_at("topics", "orders"))
    expect(page.get_by_role("alert")).to_contain_text("the metadata of orders is damaged corrupt")


def test_a_service_that_is_gone_is_said_to_be_and_found_again(tab: Seen) -> None:
    page = tab.page
    tab.shows("Groups with most to do")
    page.clock.install()
    page.reload()
    tab.shows("Groups with most to do")
    page.route("**/v1/**", lambda route: route.abort())
    page.clock.run_for(11_000)
    tab.shows("The service does not answer.")
    expect(page.get_by_role("link", name="billing").first).to_be_visible()
    page.unroute("**/v1/**")
    page.clock.run_for(11_000)
    expect(page.get_by_text("The service does not answer.")).to_be_hidden()
