"""Texts to begin with, by the model that reads them."""

EXAMPLES = {
    "language": {
        "title": "a sentence twice: what followed the last time?",
        "model": "language",
        "text": " The captain saw the white whale and the boats went down. The captain saw the white whale",
    },
    "dates": {
        "title": "a date in words: which word becomes which digit?",
        "model": "dates",
        "text": "on friday , the twenty first of march nineteen eighty six",
    },
}
