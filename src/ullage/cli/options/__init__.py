"""What commands take: options that several share, and one record of all for each large verb."""
