"""From a name and its options to an implementation, with a helpful failure."""
