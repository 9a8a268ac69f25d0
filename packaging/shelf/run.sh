#!/usr/bin/env bash
# What the separators that come with ondes were trained by, on one NVIDIA H200: 19 minutes in all.
# The runs are by time, so another machine gives other numbers of updates (20,237, 14,105, 5,675).
set -euo pipefail
cd "$(dirname "$0")"
python3 train.py --seconds 65 --out first
python3 train.py --seconds 545 --start first.pt --seed 1 --out second
python3 train.py --seconds 375 --start second.pt --seed 2 --rate 1.5e-3 --warm 100 --out talk
python3 train.py --seconds 160 --start talk.pt --seed 3 --rate 1e-3 --warm 50 \
    --names speech,noise --parts .10,.60,.15,.03,.09,.01,.02 --out denoise
python3 convert.py talk.pt talk.ondes speech,music,effects
python3 convert.py denoise.pt denoise.ondes speech,noise
