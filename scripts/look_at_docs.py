"""Opens each page of the built site in a headless browser: `make look` runs it.

    python scripts/look_at_docs.py [--site site] [--pictures FOLDER] [--chromium PATH]

Each page is opened as a phone shows it, in dark colors, and as a desktop does, in light ones. It
fails if it has no heading, if the browser reports an error, if an image or another file is missing,
or if the page is wider than the window. Screenshots go to the folder of pictures.
"""

import argparse
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parent.parent
#: Width and height of a window, and its colors.
WINDOWS = [(390, 844, "dark"), (1280, 900, "light")]

HEADINGS = "document.querySelectorAll('article h1').length"
MISSING_IMAGES = "[...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def look(browser: Browser, address: str, name: str, pictures: Path) -> list[str]:
    """Opens a page in each window. Returns what is wrong with it."""
    found = []
    for width, height, colors in WINDOWS:
        wrong: list[str] = []
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme=colors,
            reduced_motion="reduce",
        )
        page.on("console", lambda m, wrong=wrong: m.type == "error" and wrong.append(m.text))
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.on(
            "response",
            lambda r, wrong=wrong: r.ok or r.status == 304 or wrong.append(f"{r.status} {r.url}"),
        )
        page.goto(f"{address}/{name}", wait_until="networkidle")
        if page.evaluate(HEADINGS) != 1:
            wrong.append(f"{page.evaluate(HEADINGS)} headings of the first level")
        wrong += [f"missing image {source}" for source in page.evaluate(MISSING_IMAGES)]
        if (excess := page.evaluate(TOO_WIDE)) > 0:
            wrong.append(f"{excess} pixels wider than the window")
        picture = pictures / f"{name.removesuffix('.html').replace('/', '_')}_{width}.png"
        page.screenshot(path=picture, full_page=True)
        page.close()
        found += [f"{name}, {width} pixels wide: {each}" for each in wrong]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    parser.add_argument("--pictures", type=Path, default=ROOT / "site-pictures")
    parser.add_argument(
        "--chromium",
        help="a Chromium; by default that of `playwright install --only-shell chromium`",
    )
    arguments = parser.parse_args()
    pages = sorted(str(path.relative_to(arguments.site)) for path in arguments.site.rglob("*.html"))
    pages.remove("404.html")  # an error page has no place that its links could start from
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(QuietHandler, directory=str(arguments.site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = []
    with sync_playwright() as playwright:
        # Containers have no user namespaces for the sandbox. The pages are our own.
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox"]
        )
        for name in pages:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            found += look(browser, address, name, arguments.pictures)
        browser.close()
    server.shutdown()
    print(*found, f"{len(pages)} pages, {len(found)} findings", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
