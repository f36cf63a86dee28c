"""HOW it is computed: which engine, in which tiles, at what cost."""
