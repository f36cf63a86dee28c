"""regard in the shape of what other systems call: one file per system."""
