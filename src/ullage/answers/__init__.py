"""What an answer is shown as: the blocks of a view, and one renderer for each medium."""
