"""Separation: a mixture in, its sources out."""

from ondes.models.adaptation import REST
from ondes.models.masks import source_masks
from ondes.models.sources import Sources
from ondes.separation.discovery import group_components
from ondes.separation.separator import Separator, StemLevels, separate, separate_file

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
