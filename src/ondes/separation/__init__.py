"""Separation: a mixture in, its sources out."""

from ondes.separation.grouping import discover_sources, group_components, power_frames
from ondes.separation.masks import Sources, source_masks
from ondes.separation.separator import Separator, separate, separate_file

__all__ = [
    "Separator",
    "Sources",
    "discover_sources",
    "group_components",
    "power_frames",
    "separate",
    "separate_file",
    "source_masks",
]
