"""What was learned and separated, to see and to hear: one HTML file that needs no other."""

from ondes.report.building import build_report, describe_dictionaries, read_excerpt
from ondes.report.content import ReportContent, Source, describe_excerpt
from ondes.report.page import render, write_report

__all__ = [
    "ReportContent",
    "Source",
    "build_report",
    "describe_dictionaries",
    "describe_excerpt",
    "read_excerpt",
    "render",
    "write_report",
]
