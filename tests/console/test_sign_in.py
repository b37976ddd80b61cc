"""Signing in to the console at an identity provider, in a real browser (SPEC SEC-50)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.guarded import Guarded, guarded
from tests.api.running import until
from tests.console.chromium import chromium, needs_chromium
from tests.console.test_pages import _axe
from tests.identity_provider import IdentityProvider, provider

pytestmark = needs_chromium
_WATCH = "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
_TOKENS = "JSON.parse(sessionStorage.getItem('deltamq.tokens'))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def one_idp() -> Iterator[IdentityProvider]:
    with provider() as made:
        yield made


@pytest.fixture
def idp(one_idp: IdentityProvider) -> IdentityProvider:
    one_idp.begin()
    return one_idp


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory, one_idp: IdentityProvider) -> Iterator[Guarded]:
    settings = one_idp.settings(console_client_id="console", console_scope="openid deltamq", console_audience="deltamq")
    with guarded(tmp_path_factory.mktemp("console"), oidc=settings) as found:
        found.put_principal("ada")
        found.rule("ada", "topic", "*", "subscribe")
        found.put_topic("orders")
        until(lambda: found.by(None).call("GET", "/v1/auth/sign-in").json.get("client_id") == "console")
        yield found


@pytest.fixture
def page(browser: Browser, admin: Guarded) -> Iterator[Page]:
    context = browser.new_context()
    page, wrong = context.new_page(), list[str]()
    page.add_init_script(_WATCH)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.text.startswith("policy") else None)
    yield page
    context.close()
    assert wrong == []


def _home(admin: Guarded) -> str:
    return f"http://127.0.0.1:{admin.port}/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_look_10_the_form_to_sign_in_passes_axe(page: Page, admin: Guarded, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(_home(admin))
    expect(page.get_by_role("button", name="Sign in at 127.0.0.1")).to_be_visible()
    for width in (1_400, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert _axe(page) == []


def _sign_in(page: Page, admin: Guarded, at: str = "") -> None:
    page.goto(_home(admin) + at)
    page.get_by_role("button", name="Sign in at 127.0.0.1").click()


def _alert(page: Page, text: str) -> None:
    expect(page.get_by_role("alert").filter(has_text=text)).to_be_visible()


def test_sec_50_people_sign_in_at_the_provider_and_come_back_to_the_page_that_they_wanted(
    page: Page, admin: Guarded, idp: IdentityProvider
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    _sign_in(page, admin, "#/topics?q=ord")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    assert page.url == _home(admin) + "#/topics?q=ord", "no code stays in the address"
    expect(page.get_by_text("ada")).to_be_visible()
    (begun,) = [parse_qs(urlsplit(url).query) for url in asked if url.startswith(idp.url + "/authorize")]
    assert (begun["scope"], begun["audience"]) == (["openid deltamq"], ["deltamq"])
    assert len(begun["code_challenge"][0]) == 43 and begun["code_challenge_method"] == ["S256"]
    assert {urlsplit(url).netloc for url in asked} == {f"127.0.0.1:{admin.port}", urlsplit(idp.url).netloc}
    page.reload()
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in at 127.0.0.1")).to_be_visible()
    assert "/logout" in idp.asked and page.evaluate("sessionStorage.length") == 0


def test_sec_50_a_token_is_renewed_before_it_ends_and_people_sign_in_again_when_it_cannot_be(
    page: Page, admin: Guarded, idp: IdentityProvider
) -> None:
    idp.person_life_s = 20
    _sign_in(page, admin, "#/topics")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    first = page.evaluate(_TOKENS)["refresh"]
    page.reload()
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    assert page.evaluate(_TOKENS)["refresh"] != first
    idp.refreshes.clear()
    page.reload()
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    assert "refresh" not in page.evaluate(_TOKENS)
    page.evaluate("sessionStorage.setItem('deltamq.key', 'what-is-over')")
    page.reload()
    _alert(page, "The key is refused")
    idp.person_life_s = 600
    page.get_by_role("button", name="Sign in at 127.0.0.1").click()
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("sends_back", "id_claims", "says"),
    [
        ({"state": "another"}, {}, "this tab did not begin it (state)"),
        ({"iss": "https://idp.example.org"}, {}, "another issuer answers"),
        ({"code": "stolen"}, {}, "the grant is not good"),
        ({"error": "access_denied", "error_description": "ada <b>may</b> not"}, {}, "ada <b>may</b> not"),
        ({}, {"nonce": "another"}, "the provider answers another sign-in (nonce)"),
        ({}, {"aud": "another"}, "for another client"),
        ({}, {"iss": "https://idp.example.org"}, "of another issuer"),
    ],
)
def test_sec_50_an_answer_to_another_sign_in_signs_nobody_in(
    page: Page, admin: Guarded, idp: IdentityProvider, sends_back: dict[str, str], id_claims: dict[str, Any], says: str
) -> None:
    idp.sends_back, idp.id_claims = sends_back, id_claims
    _sign_in(page, admin)
    _alert(page, says)
    assert page.url.rstrip("#/") == _home(admin).rstrip("/"), "nothing of the answer stays in the address"
    assert page.evaluate("sessionStorage.length") == 0
    idp.sends_back, idp.id_claims = {}, {}
    page.get_by_role("button", name="Sign in at 127.0.0.1").click()
    expect(page.get_by_text("ada")).to_be_visible()


def test_sec_50_a_typed_key_takes_the_place_of_a_token(page: Page, admin: Guarded, idp: IdentityProvider) -> None:
    idp.person = "nobody"
    _sign_in(page, admin)
    _alert(page, "The key is refused")
    page.get_by_label("Key, or a token").fill(admin.token or "")
    page.get_by_role("button", name="Use").click()
    expect(page.get_by_role("button", name="Forget the key")).to_be_visible()
    assert json.loads(json.dumps(page.evaluate(_TOKENS))) is None
