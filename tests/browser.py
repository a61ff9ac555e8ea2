"""A real Chromium for tests of pages."""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def needs_browser():
    return pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium to run the tests of the page")


class Tab:
    """A page with everything that went wrong in it."""

    def __init__(self, page):
        self.page = page
        self.errors = []
        self.requests = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type in LOUD else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dialog)

    def _dialog(self, dialog):
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, address):
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]", timeout=120_000)
        return self


LOUD = ("error", "warning", "assert")


@contextmanager
def chromium(**options):
    """Opens tabs: `open_tab(width=390)`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)

        def open_tab(width=1100, **more):
            context = browser.new_context(viewport={"width": width, "height": 900}, locale="en-US", **options, **more)
            return Tab(context.new_page())

        yield open_tab
        browser.close()
