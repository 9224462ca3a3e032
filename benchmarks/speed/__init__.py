"""How much longer a program takes under ullage, as ratios measured in one run."""
