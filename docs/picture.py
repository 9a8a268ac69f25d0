"""Make docs/demo.webp: run the demo, and take a screenshot of its report in Chromium."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from ondes.demo import run_demo

SIZE = (1100, 1500)


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("The screenshot needs Chromium; install it first.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = run_demo(folder / "demo").report
        shot = folder / "shot.png"
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", f"--user-data-dir={folder / 'profile'}",
             f"--window-size={SIZE[0]},{SIZE[1]}", "--virtual-time-budget=4000",
             f"--screenshot={shot}", report.as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
        Image.open(shot).convert("RGB").save(
            Path(__file__).with_name("demo.webp"), quality=80, method=6
        )


if __name__ == "__main__":
    main()
