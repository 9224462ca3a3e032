"""The public interface, `import ullage`: one file per verb, each a result record and a function."""
