"""Draw the pictures of docs/studio.md: `python docs/studio_pictures.py`.

Starts the studio on real recordings, works in it with Chromium, and writes WebP files to
docs/figures. Needs playwright, Chromium, Pillow, and recordings from Debian's packages in
ONDES_RECORDINGS (build/recordings): the music and the sounds of The Battle for Wesnoth
(wesnoth-1.16-music and -data, GPL-2+) and the prompts of Asterisk (asterisk-core-sounds-en).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from PIL import Image
from playwright.sync_api import sync_playwright

import ondes

RECORDINGS = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"))
NOISE = RECORDINGS / "noise" / "wesnoth"
FIGURES = Path(__file__).parent / "figures"
DESK, PHONE = {"width": 1200, "height": 820}, {"width": 390, "height": 844}
GAP = 24  # pixels between phones


def main() -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=arguments
        )
        phones = [draw(browser, Path(name)) for draw in (_music, _speech, _field)]
        browser.close()
    beside = Image.new("RGB", (sum(each.width + GAP for each in phones) - GAP, phones[0].height))
    beside.paste("white", (0, 0, *beside.size))
    for number, phone in enumerate(phones):
        beside.paste(phone, (number * (phone.width + GAP), 0))
    _save(beside, "studio_phone")


def _music(browser: Any, folder: Path) -> Image.Image:
    del folder
    with _studio(browser, RECORDINGS / "music" / "wesnoth" / "transience.ogg") as page:
        for number, name in enumerate(("Strings", "Bass")):
            field = page.locator(".lane input.name").nth(number)
            field.fill(name)
            field.press("Enter")
            page.wait_for_selector(f".lane[aria-label='Group {name}']")
        _select(page, (0.25, 0.45), (0.35, 0.8))
        page.click("#choose-sounds")
        page.wait_for_selector(".card[aria-current=true]")
        page.evaluate("window.scrollTo(0, 0)")
        page.mouse.move(0, 0)
        time.sleep(4)
        _save(_shot(page), "studio_music")
        page.keyboard.press("Escape")
        return _on_a_phone(page)


def _speech(browser: Any, folder: Path) -> Image.Image:
    """Spoken prompts over the sound of a ship at sea."""
    prompts = sorted((RECORDINGS / "speech" / "asterisk_en").glob("conf-*.flac"))[:12]
    words = [_at(16000, path) for path in prompts]
    pause = np.zeros(8000, np.float32)
    voice = np.concatenate([part for each in words for part in (pause, each)])
    sea = np.resize(_at(16000, NOISE / "ship.ogg"), len(voice))
    talk = 0.5 * voice / np.abs(voice).max() + 0.02 * sea / np.std(sea)
    soundfile.write(folder / "talk.wav", talk, 16000)
    with _studio(browser, folder / "talk.wav", "#clean") as page:
        page.click("#clean")
        page.wait_for_selector("#clean:has-text('again')")
        page.wait_for_selector("html[data-job=done]", state="attached")
        page.set_viewport_size({"width": 1200, "height": 660})
        time.sleep(3)
        _save(_shot(page), "studio_speech")
        return _on_a_phone(page)


def _field(browser: Any, folder: Path) -> Image.Image:
    """Birds, the sea and a night, as a recorder in the field would name them."""
    field = folder / "field"
    field.mkdir()
    heard = (("morning", "birds1"), ("birds2", "ship"), ("night", "birds3"))
    for hour, names in enumerate(heard, 5):
        samples = np.concatenate([_at(22050, NOISE / f"{name}.ogg") for name in names * 3])
        soundfile.write(field / f"SM4_20240131_0{hour}3000.wav", samples, 22050)
    with _studio(browser, field, "#events tr") as page:
        page.set_viewport_size({"width": 1200, "height": 1080})
        time.sleep(4)
        _save(_shot(page), "studio_field")
        return _on_a_phone(page)


def _at(sr: int, path: Path) -> Any:
    samples, own = ondes.read(path)
    return soxr.resample(samples.mean(axis=1) if samples.ndim > 1 else samples, own, sr)


def _select(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag a box from one corner to another, in fractions of the picture."""
    box = page.locator("#view").bounding_box()
    corners = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in (start, end)]
    page.mouse.move(*corners[0])
    page.mouse.down()
    page.mouse.move(*corners[1], steps=4)
    page.mouse.up()


@contextlib.contextmanager
def _studio(browser: Any, path: Path, ready: str = ".card") -> Iterator[Any]:
    """A page of the studio, when its first job is done."""
    command = [sys.executable, "-m", "ondes", "studio", "--no-browser", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        page = browser.new_page(viewport=DESK)
        page.set_default_timeout(120_000)
        page.goto(found.group())
        page.wait_for_selector(ready, state="attached")
        page.wait_for_selector("html[data-job=done]", state="attached")
        time.sleep(2)
        yield page
        page.close()
        process.terminate()


def _on_a_phone(page: Any) -> Image.Image:
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    page.evaluate("window.scrollTo(0, 0)")
    time.sleep(3)
    return _shot(page)


def _shot(page: Any) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def _save(picture: Image.Image, name: str) -> None:
    picture.save(FIGURES / f"{name}.webp", quality=82, method=6)


if __name__ == "__main__":
    main()
