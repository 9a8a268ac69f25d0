"""Signal: recordings to frames and back. Knows no NMF."""
