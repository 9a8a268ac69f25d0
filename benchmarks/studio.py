"""The studio's times and memory: one line of JSON, kept in benchmarks/results/studio.json.

    python benchmarks/studio.py                 a three-minute stereo song, dropped onto the page
    python benchmarks/studio.py --hours 10      also a folder of ten hours (1.2 GB on disk)

Needs Chromium and playwright. Times are from the drop to what is seen or heard; memory is the peak
of the server's resident set, and what the browser says that the page takes.
"""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
from kept import KEPT
from playwright.sync_api import sync_playwright

from ondes.demo_scene import make_scene

BRIGHTNESS = (
    "(() => { const c = document.getElementById('spectrogram'); if (!c.width) return 0;"
    "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
    "let n = 0; for (let i = 0; i < d.length; i += 400) n += d[i] > 60; return n; })()"
)
PAGE_BYTES = "performance.measureUserAgentSpecificMemory().then((found) => found.bytes)"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=180)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=arguments
        )
        results = {"song": _song(browser, Path(folder), given.seconds)}
        if given.hours:
            results["hours"] = _hours(browser, Path(folder), given.hours)
        browser.close()
    print(json.dumps(results))
    KEPT["studio"].write(KEPT["studio"].read() | results, list(results))


def _song(browser, folder, seconds):
    sr = 44100
    scene = make_scene(seconds=seconds, sr=sr)
    stereo = np.stack([scene.mixture, scene.mixture - 0.5 * scene.stems["bass"]], axis=1)
    soundfile.write(folder / "song.wav", stereo, sr)
    with _served() as (address, pid):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)
        page.goto(address)
        time.sleep(2)  # until the server has loaded everything
        start = time.monotonic()
        page.set_input_files("#files", [folder / "song.wav"])
        _wait(page, f"{BRIGHTNESS} > 100")
        times = {"spectrogram_s": time.monotonic() - start}
        page.wait_for_selector(".card")
        page.locator(".card [data-solo]").first.click()
        page.click("#play")
        _wait(page, "ondesStudio.player.level > 1e-5")
        times["component_heard_s"] = time.monotonic() - start
        page.wait_for_selector("html[data-job=done]", state="attached")
        times["groups_s"] = time.monotonic() - start
        time.sleep(20)  # of playing
        page_bytes = page.evaluate(PAGE_BYTES)
        page.locator(".card").nth(3).hover()
        page.locator(".lane").first.get_by_role("button", name="Split further").click()
        time.sleep(1)
        page.wait_for_selector("html[data-job=done]", state="attached")
        result = {
            **{name: round(value, 2) for name, value in times.items()},
            "page_mb": round(max(page_bytes, page.evaluate(PAGE_BYTES)) / 1e6),
            "server_peak_mb": _peak_mb(pid),
        }
        page.close()
    return result


def _hours(browser, folder, hours):
    sr, each = 16000, 1800
    field = folder / "field"
    field.mkdir()
    rng = np.random.default_rng(0)
    length = np.arange(int(0.4 * sr)) / sr
    call = 0.2 * np.sin(2 * np.pi * (3000 * length + 4000 * length**2)) * np.hanning(len(length))
    for n in range(round(hours * 3600 / each)):
        samples = (0.003 * rng.standard_normal(each * sr)).astype(np.float32)
        for at in rng.uniform(0, each - 1, 40):
            samples[int(at * sr) :][: len(call)] += call
        soundfile.write(field / f"SM4_20240131_{n // 2:02}{30 * (n % 2):02}00.wav", samples, sr)
    start = time.monotonic()
    with _served(field) as (address, pid):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(3_600_000)
        page.goto(address)
        _wait(page, f"{BRIGHTNESS} > 100")
        times = {"picture_s": time.monotonic() - start}
        page.click("#tab-field")
        start = time.monotonic()
        page.click("#find-field")
        page.wait_for_selector("#heat-map")
        times["first_pass_s"] = time.monotonic() - start
        page.wait_for_selector("html[data-job=done]", state="attached")
        times["groups_s"] = time.monotonic() - start
        result = {
            "hours": hours,
            **{name: round(value, 1) for name, value in times.items()},
            "page_mb": round(page.evaluate(PAGE_BYTES) / 1e6),
            "server_peak_mb": _peak_mb(pid),
        }
        page.close()
        return result


@contextlib.contextmanager
def _served(*files):
    command = [sys.executable, "-m", "ondes", "studio", "--no-browser", *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"http://\S+", process.stdout.readline()).group(), process.pid
        finally:
            process.terminate()


def _peak_mb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1000)


def _wait(page, expression):
    while not page.evaluate(expression):  # the page's policy forbids wait_for_function
        time.sleep(0.02)


if __name__ == "__main__":
    main()
