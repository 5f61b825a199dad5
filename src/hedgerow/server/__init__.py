"""The coordinator: runs a program over an engine, adds noise, keeps the ledger, writes the model."""
