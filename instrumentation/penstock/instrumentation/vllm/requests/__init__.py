"""What is known of each live request, and the events made of it."""
