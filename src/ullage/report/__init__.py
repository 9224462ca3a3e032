"""What a person or a program is shown: text, document and page; renders, computes nothing."""
