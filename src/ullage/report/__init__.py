"""What a person or a program is shown; renders, computes nothing."""
