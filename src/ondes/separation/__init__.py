"""Separation: a mixture in, its sources out."""

from ondes.separation.grouping import group_components
from ondes.separation.levels import StemLevels
from ondes.separation.masks import source_masks
from ondes.separation.separator import Separator, separate, separate_file
from ondes.separation.sources import REST, Sources

__all__ = [
    "REST",
    "Separator",
    "Sources",
    "StemLevels",
    "group_components",
    "separate",
    "separate_file",
    "source_masks",
]
