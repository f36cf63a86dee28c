"""Example texts, by model."""

EXAMPLE_TEXTS = {
    "language": {
        "title": "a repeated sentence: do heads find the previous occurrence?",
        "model": "language",
        "text": " The captain saw the white whale and the boats went down. The captain saw the white whale",
    },
    "dates": {
        "title": "a date in words: which word gives which digit?",
        "model": "dates",
        "text": "on friday , the twenty first of march nineteen eighty six",
    },
}
