"""What sounds when: levels as heard, novelty and events of recordings, as tables."""

from ondes.tables.events import Event, EventFinder, find_events
from ondes.tables.level_blocks import LevelBlock, clock_time, levels, recording_levels
from ondes.tables.writers import (
    OF_EVENTS,
    Rows,
    check_table,
    rows_of_block,
    rows_of_events,
    table_writer,
    write_labels,
)

__all__ = [
    "OF_EVENTS",
    "Event",
    "EventFinder",
    "LevelBlock",
    "Rows",
    "check_table",
    "clock_time",
    "find_events",
    "levels",
    "recording_levels",
    "rows_of_block",
    "rows_of_events",
    "table_writer",
    "write_labels",
]
