"""What a launcher tells the fleet API, each from a background thread: nobody who trains waits for it."""
