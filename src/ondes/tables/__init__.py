"""What sounds when: levels as heard, oddness and events of recordings, as tables."""

from ondes.tables.clock import clock_time
from ondes.tables.events import Event, EventFinder, find_events
from ondes.tables.levels import LevelBlock, activations, recording_levels
from ondes.tables.rows import Rows, rows_of_block, rows_of_events
from ondes.tables.writers import check_table, table_writer, write_labels

__all__ = [
    "Event",
    "EventFinder",
    "LevelBlock",
    "Rows",
    "activations",
    "check_table",
    "clock_time",
    "find_events",
    "recording_levels",
    "rows_of_block",
    "rows_of_events",
    "table_writer",
    "write_labels",
]
