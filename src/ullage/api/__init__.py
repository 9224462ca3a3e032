"""What `import ullage` offers: one file per verb, each a result record and a function."""
