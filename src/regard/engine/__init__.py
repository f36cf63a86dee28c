"""WHO computes: engines that answer a spec, each able to say what it cannot do."""
