"""Each file of `regard.plan`, tested by one file of the same name here."""
