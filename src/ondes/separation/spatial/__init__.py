"""Sources told apart by where they are: microphones in a room, and panned stereo."""
