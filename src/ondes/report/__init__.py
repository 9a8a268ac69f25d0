"""What was learned and separated, to see and to hear: one HTML file that needs no other."""

from ondes.report.building import build_report, describe_dictionaries, describe_separator
from ondes.report.content import (
    Component,
    Explained,
    ReportContent,
    Sound,
    Track,
    describe_excerpt,
)
from ondes.report.page import render, write_report

__all__ = [
    "Component",
    "Explained",
    "ReportContent",
    "Sound",
    "Track",
    "build_report",
    "describe_dictionaries",
    "describe_excerpt",
    "describe_separator",
    "render",
    "write_report",
]
