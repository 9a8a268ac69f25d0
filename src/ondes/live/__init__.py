"""Live sound: from a microphone, through a separator, to a loudspeaker."""
