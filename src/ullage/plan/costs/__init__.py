"""What a program costs: its work, its memory over time, and what each treatment changes of them."""
