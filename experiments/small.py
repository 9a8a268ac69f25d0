"""The paper's first comparison: thirty seconds of music, online against batch.

    python experiments/small.py [--audio FOLDER] [--quick] [--seeds N] [--seconds S] [--jobs N]

Writes experiments/results/small.json and docs/figures/small*.svg.
"""

from __future__ import annotations

from dataclasses import replace

import grid_report
from grid import Settings

SETTINGS = Settings(
    name="small",
    start_s=60,
    end_s=90,
    n_components=16,
    seconds=3.0,
    seeds=(0, 1, 2, 3, 4),
    betas=(1, 10, 100, 1000, None),  # None: all N frames
    rs=(0.0, 0.25, 0.5, 0.7, 0.9, 1.0),
)
QUICK = replace(SETTINGS, seconds=0.5, seeds=(0,), betas=(1, 100, 1000, None), rs=(0.0, 0.7, 1.0))


if __name__ == "__main__":
    grid_report.main(SETTINGS, QUICK, __doc__)
