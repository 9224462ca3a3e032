"""Documents for programs: what --json prints, one file per verb."""
