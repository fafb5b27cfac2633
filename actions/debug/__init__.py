"""Actions for when something is wrong with Sailor itself."""
