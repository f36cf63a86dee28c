"""Each file of `regard.spec`, tested by one file of the same name here."""
