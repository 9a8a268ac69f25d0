"""Draw the pictures of docs/studio.md: `python docs/studio_pictures.py`.

Starts the studio on a scene that ondes makes, works in it with Chromium, and writes WebP files to
docs/figures. Needs playwright, Chromium and Pillow.
"""

from __future__ import annotations

import contextlib
import io
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
from PIL import Image
from playwright.sync_api import sync_playwright

from ondes.scene import make_scene

FIGURES = Path(__file__).parent / "figures"
DESK, PHONE = {"width": 1200, "height": 820}, {"width": 390, "height": 844}


def main() -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=arguments
        )
        folder = Path(name)
        _music(browser, folder)
        _speech(browser, folder)
        _field(browser, folder)
        browser.close()


def _music(browser: Any, folder: Path) -> None:
    scene = make_scene(seconds=24.0, sr=44100)
    stereo = np.stack([scene.mixture, scene.mixture - 0.4 * scene.stems["strings"]], axis=1)
    soundfile.write(folder / "band.wav", stereo, scene.sr)
    with _studio(browser, folder / "band.wav") as page:
        for number, name in enumerate(("Bass", "Strings", "Drums")):
            field = page.locator(".lane input.name").nth(number)
            field.fill(name)
            field.press("Enter")
            page.wait_for_selector(f".lane[aria-label='Group {name}']")
        page.locator(".lane .head [data-mute]").nth(2).click()
        page.evaluate("window.scrollTo(0, 0)")
        page.locator(".card").nth(1).hover()
        time.sleep(8)
        _save(page, "studio_music")
        page.mouse.move(0, 0)
        page.set_viewport_size(PHONE)
        page.emulate_media(color_scheme="dark")
        page.evaluate("window.scrollTo(0, 0)")
        time.sleep(3)
        _save(page, "studio_phone")


def _speech(browser: Any, folder: Path) -> None:
    scene = make_scene(seconds=20.0, sr=16000)
    quiet = np.zeros(3 * 16000, np.float32)
    voice = np.concatenate([quiet, scene.stems["strings"][: 17 * 16000]])
    soundfile.write(folder / "talk.wav", voice + 0.3 * scene.stems["wind"], 16000)
    with _studio(browser, folder / "talk.wav") as page:
        page.click("#tab-speech")
        _select(page, 0.2, 2.8)
        page.click("#is-noise")
        page.wait_for_selector("#clean:has-text('again')")
        page.wait_for_selector("html[data-job=done]", state="attached")
        _select(page, 4.0, 12.0)
        page.click("#is-voice")
        time.sleep(1)
        page.wait_for_selector("html[data-job=done]", state="attached")
        page.keyboard.press("Escape")
        page.set_viewport_size({"width": 1200, "height": 620})
        time.sleep(2)
        _save(page, "studio_speech")


def _field(browser: Any, folder: Path) -> None:
    rng = np.random.default_rng(0)
    sr = 16000
    length = np.arange(int(0.4 * sr)) / sr
    call = 0.2 * np.sin(2 * np.pi * (3000 * length + 4000 * length**2)) * np.hanning(len(length))
    field = folder / "field"
    field.mkdir()
    for hour in range(6, 9):
        wind = make_scene(seconds=60.0, sr=sr, random_state=hour).stems["wind"]
        samples = 0.1 * wind + 0.002 * rng.standard_normal(60 * sr)
        for at in rng.uniform(2, 55, 6):
            samples[int(at * sr) :][: len(call)] += call
        soundfile.write(field / f"SM4_20240131_0{hour}0000.wav", samples, sr)
    with _studio(browser, field) as page:
        page.click("#tab-field")
        page.set_viewport_size({"width": 1200, "height": 1080})
        page.wait_for_selector("#events tr")
        time.sleep(3)
        _save(page, "studio_field")


def _select(page: Any, start: float, end: float) -> None:
    box = page.locator("#view").bounding_box()
    seconds = page.evaluate("ondesStudio.timeline.duration")
    x = [box["x"] + box["width"] * each / seconds for each in (start, end)]
    page.mouse.move(x[0], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(x[1], box["y"] + 70, steps=4)
    page.mouse.up()


@contextlib.contextmanager
def _studio(browser: Any, path: Path) -> Iterator[Any]:
    """A page of the studio in which the sounds have been found and grouped."""
    command = [sys.executable, "-m", "ondes", "studio", "--no-browser", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        page = browser.new_page(viewport=DESK)
        page.set_default_timeout(120_000)
        page.goto(found.group())
        page.wait_for_selector(".card", state="attached")
        page.wait_for_selector("html[data-job=done]", state="attached")
        time.sleep(2)
        yield page
        page.close()
        process.terminate()


def _save(page: Any, name: str) -> None:
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").save(FIGURES / f"{name}.webp", quality=82, method=6)


if __name__ == "__main__":
    main()
