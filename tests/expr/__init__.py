"""Each file of `regard.expr`, tested by one file of the same name here."""
