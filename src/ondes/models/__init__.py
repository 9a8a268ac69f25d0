"""What is learned, kept in a file, and applied to mixtures."""
