#!/bin/sh
# Real recordings for the experiments, from Debian's packages: downloaded and unpacked, not installed.
set -eu
folder="${1:-audio}"
packages="wesnoth-1.16-music festvox-ru fretsonfire-songs-sectoid warzone2100-music"
mkdir -p "$folder/packages"
cd "$folder/packages"
for package in $packages; do
    ls "$package"_*.deb >/dev/null 2>&1 || apt-get download "$package"
    dpkg-deb -x "$package"_*.deb ..
done
