"""The paper's second comparison: four minutes of music, online against batch.

    python experiments/medium.py [--audio FOLDER] [--quick] [--seeds N] [--seconds S] [--jobs N]

Writes experiments/results/medium.json and docs/figures/medium*.svg.
"""

from __future__ import annotations

from dataclasses import replace

import grid_report
from grid import Settings

SETTINGS = Settings(
    name="medium",
    start_s=0,
    end_s=240,
    n_components=16,
    seconds=10.0,
    seeds=(0, 1, 2, 3, 4),
    betas=(1, 10, 100, 1000, None),  # None: all N frames
    rs=(0.0, 0.25, 0.5, 0.7, 0.9, 1.0),
)
QUICK = replace(SETTINGS, seconds=1.5, seeds=(0,), betas=(1, 100, 1000, None), rs=(0.0, 0.7, 1.0))


if __name__ == "__main__":
    grid_report.main(SETTINGS, QUICK, __doc__)
