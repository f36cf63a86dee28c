"""WHAT is asked: terms, scores, masks, weighings and the frozen spec that holds a whole question."""
