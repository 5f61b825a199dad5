"""Tables of sites, from their source to codes."""
