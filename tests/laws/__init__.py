"""The contract as laws: each runs on every engine, with shapes made by hypothesis."""
