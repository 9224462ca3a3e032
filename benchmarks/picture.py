"""The picture at the top of the README: a page of `ullage run`, in a light and a dark window.

    ullage run --gpu rtx-4090 -o page.html --python thin/bin/python -- \
        examples/gpt2/train.py --batch-size 16
    python -m benchmarks.picture page.html

Writes docs/images/page-light.png and page-dark.png. Needs playwright (ullage[dev]) and a Chromium
on PATH (Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SCHEMES = ("light", "dark")
WINDOW = {"width": 1440, "height": 760}
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


def photograph(browser: Browser, page: Path, scheme: str) -> Path:
    """Opens the page in a window of that colour scheme, and keeps what it shows."""
    path = IMAGES / f"page-{scheme}.png"
    context = browser.new_context(viewport=WINDOW, color_scheme=scheme)
    window = context.new_page()
    window.goto(page.resolve().as_uri())
    window.wait_for_selector("body[data-state=ready]", timeout=30_000)
    window.wait_for_function("() => !window.ullage.frame", timeout=10_000)
    window.screenshot(path=path)
    context.close()
    return path


def main() -> None:
    """Photograph the page that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", type=Path, help="written by `ullage run -o FILE.html`")
    page = parser.parse_args().page
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs a Chromium on PATH (Debian: apt-get install chromium)")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for scheme in SCHEMES:
            print(f"Wrote {photograph(browser, page, scheme)}")
        browser.close()


if __name__ == "__main__":
    main()
