"""What was learned and separated, to see and to hear: one HTML file that asks for nothing else."""

from ondes.report.content import ReportContent, Source, describe_excerpt
from ondes.report.page import render, write_report

__all__ = ["ReportContent", "Source", "describe_excerpt", "render", "write_report"]
