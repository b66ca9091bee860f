"""The demo as a user sees it."""
