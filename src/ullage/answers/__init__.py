"""The form of an answer: the blocks of a view, and one renderer for each medium."""
