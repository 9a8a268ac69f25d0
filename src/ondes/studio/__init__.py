"""The studio: a page on this machine where sounds are found, heard, grouped and exported."""
