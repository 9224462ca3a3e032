"""Attribution judged: what ullage says of the owners of a peak against what the program knows."""
