"""What is done to the sources, a verb each."""
